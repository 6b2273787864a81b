//! Steps on the names of files: create, stat, open and remove, in the manner of mdtest.
//!
//! Names are made before the clock starts; one call (or open and close) a file is measured.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::error::{c_path, failed, StepError};
use crate::timing::{now_ns, timing_since, Prepared};

/// The kind of call that a process makes on a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NameCall {
    /// `open(O_CREAT | O_EXCL)` and `close`.
    Create,
    /// `stat` by path.
    Stat,
    /// `open(O_RDONLY)` and `close`.
    Open,
    /// `unlink`.
    Remove,
}

impl NameCall {
    /// All, in the order in which a file knows them.
    pub const ALL: [NameCall; 4] = [
        NameCall::Create,
        NameCall::Stat,
        NameCall::Open,
        NameCall::Remove,
    ];
}

/// One call for each of the files `fFIRST`, `fFIRST + 1`... of a directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NameStep {
    /// The kind of call.
    pub call: NameCall,
    /// The directory.
    pub directory: PathBuf,
    /// The number of the first file.
    pub first: u64,
    /// How many files.
    pub files: u64,
}

/// Makes the names.
pub fn call_names(step: &NameStep) -> anyhow::Result<Prepared<'static>> {
    let path = |number: u64| c_path(&step.directory.join(format!("f{number}")));
    let names = (step.first..step.first + step.files).map(path);
    let names = names.collect::<Result<Vec<_>, _>>()?;
    let (call, files) = (step.call, step.files);
    Ok(Box::new(move || {
        let start_ns = now_ns();
        match call {
            NameCall::Create => each(&names, "create", |name| {
                open_close(name, libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL)
            }),
            NameCall::Open => each(&names, "open", |name| open_close(name, libc::O_RDONLY)),
            NameCall::Stat => each(&names, "stat", stat),
            // SAFETY: the path is nul-terminated.
            NameCall::Remove => each(&names, "unlink", |name| unsafe {
                libc::unlink(name.as_ptr())
            }),
        }?;
        Ok(timing_since(start_ns, 0, files))
    }))
}

#[inline]
fn each(
    names: &[CString],
    call: &'static str,
    act: impl Fn(&CString) -> libc::c_int,
) -> Result<(), StepError> {
    for name in names {
        if act(name) < 0 {
            return Err(failed(
                call,
                Path::new(std::ffi::OsStr::from_bytes(name.as_bytes())),
            ));
        }
    }
    Ok(())
}

fn open_close(name: &CString, flags: libc::c_int) -> libc::c_int {
    // SAFETY: the path is nul-terminated; the descriptor is closed here and nowhere else.
    unsafe {
        match libc::open(name.as_ptr(), flags | libc::O_CLOEXEC, 0o600) {
            fd if fd >= 0 => libc::close(fd),
            error => error,
        }
    }
}

fn stat(name: &CString) -> libc::c_int {
    let mut status = std::mem::MaybeUninit::<libc::stat>::uninit();
    // SAFETY: the path is nul-terminated, and `status` has room for what the call writes.
    unsafe { libc::stat(name.as_ptr(), status.as_mut_ptr()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_made_once_and_is_gone_when_it_is_removed() {
        let directory =
            std::env::temp_dir().join(format!("weir-bench-names-{}", std::process::id()));
        std::fs::create_dir(&directory).unwrap();
        let run = |call, first, files| {
            let step = NameStep {
                call,
                directory: directory.clone(),
                first,
                files,
            };
            call_names(&step).unwrap()()
        };
        run(NameCall::Create, 5, 2).unwrap();
        assert!(directory.join("f6").exists());
        assert!(
            run(NameCall::Create, 6, 1).is_err(),
            "a name that is there is not made again"
        );
        for (call, files) in [
            (NameCall::Stat, 2),
            (NameCall::Open, 2),
            (NameCall::Remove, 1),
        ] {
            assert_eq!(run(call, 5, files).unwrap().ops, files);
        }
        let gone = run(NameCall::Stat, 5, 1).unwrap_err();
        assert!(gone.to_string().contains("f5"), "{gone}");
        std::fs::remove_dir_all(&directory).unwrap();
    }
}

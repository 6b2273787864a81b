//! Metadata steps of a worker: create, stat, open and remove, in the manner of mdtest.
//!
//! Names are made before the clock starts; one call (or open and close) a file is measured.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::control::Control;
use crate::data::{c_path, failed, StepError};
use crate::job::{MetaOp, MetaStep, Timing};
use crate::worker::now_ns;

/// Does `step` for `rank`.
pub fn run(step: &MetaStep, rank: u32, control: &Control) -> Result<Timing, StepError> {
    let dir = &step.dirs[rank as usize % step.dirs.len()];
    let names = (0..step.files)
        .map(|i| c_path(&dir.join(format!("file.{rank}.{i}"))))
        .collect::<Result<Vec<_>, _>>()?;
    control.barrier()?;
    let start_ns = now_ns();
    match step.op {
        MetaOp::Create => each(&names, "create", |name| {
            open_close(name, libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL)
        }),
        MetaOp::Open => each(&names, "open", |name| open_close(name, libc::O_RDONLY)),
        MetaOp::Stat => each(&names, "stat", stat),
        // SAFETY: the path is nul-terminated.
        MetaOp::Remove => each(&names, "unlink", |name| unsafe {
            libc::unlink(name.as_ptr())
        }),
    }?;
    Ok(Timing {
        start_ns,
        end_ns: now_ns(),
        bytes: 0,
        ops: step.files,
    })
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

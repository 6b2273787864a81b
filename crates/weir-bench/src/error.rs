//! Why a step, or a run, failed.

use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::content::Mismatch;

/// Data was not what was written.
#[derive(Debug, thiserror::Error)]
#[error("wrong data: {0}")]
pub struct WrongData(pub String);

/// The user interrupted the run.
#[derive(Debug, thiserror::Error)]
#[error("interrupted")]
pub struct Interrupted;

/// Why a step on files failed.
#[derive(Debug, thiserror::Error)]
pub enum StepError {
    /// A call failed.
    #[error("{call} {path}: {source}", path = path.display())]
    Call {
        /// The call.
        call: &'static str,
        /// On what.
        path: PathBuf,
        /// The kernel's reason.
        source: io::Error,
    },
    /// Fewer bytes than the file should have.
    #[error("{path}: end of file at offset {offset}, where data was written", path = path.display())]
    EndOfFile {
        /// The file.
        path: PathBuf,
        /// Where the file ended, in bytes.
        offset: u64,
    },
    /// A byte that is not what was written.
    #[error("{path}: wrong data at offset {}: found {:#04x}, wrote {:#04x}{}", found.offset, found.found,
        found.expected, misplaced(found), path = path.display())]
    WrongData {
        /// The file.
        path: PathBuf,
        /// The first wrong byte.
        found: Mismatch,
    },
    /// Memory for buffers.
    #[error("buffers: {0}")]
    Memory(#[from] io::Error),
}

impl StepError {
    /// True if bytes differ from what was written, as against a call that failed.
    pub fn is_wrong_data(&self) -> bool {
        matches!(self, Self::WrongData { .. } | Self::EndOfFile { .. })
    }
}

fn misplaced(found: &Mismatch) -> String {
    match found.belongs_at {
        Some(at) => {
            format!(" (a misplaced piece: these bytes belong at {at} modulo the content's period)")
        }
        None => String::new(),
    }
}

/// The error of a call on `path`, made of the kernel's reason.
pub fn call_error(call: &'static str, path: &Path) -> impl FnOnce(io::Error) -> StepError {
    let path = path.to_owned();
    move |source| StepError::Call { call, path, source }
}

/// The error of the call that has just failed.
pub fn failed(call: &'static str, path: &Path) -> StepError {
    call_error(call, path)(io::Error::last_os_error())
}

/// A path for a C call.
pub fn c_path(path: &Path) -> Result<CString, StepError> {
    let name = CString::new(path.as_os_str().as_bytes());
    name.map_err(|e| call_error("open", path)(e.into()))
}

//! The progress of a move.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;

/// The state of a stage, for the thread that shows it.
#[derive(Debug, Default)]
pub struct StageProgress {
    /// Files found so far.
    pub files_found: AtomicU64,
    /// Bytes of them.
    pub bytes_found: AtomicU64,
    /// Files done, copied or not.
    pub files_done: AtomicU64,
    /// Bytes of them, and of files under way.
    pub bytes_done: AtomicU64,
    /// True once all files were found.
    pub is_walked: AtomicBool,
    /// Any thread may set it: the stage ends soon.
    pub stop: Arc<AtomicBool>,
    /// Any thread may set it: no more files are begun, and those that are being copied are finished.
    pub yields: AtomicBool,
}

impl StageProgress {
    /// True if no file is to be begun any more.
    pub(crate) fn begins_no_more(&self) -> bool {
        self.stop.load(Ordering::Relaxed) || self.yields.load(Ordering::Relaxed)
    }
}

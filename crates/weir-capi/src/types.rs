//! The structures of weir.h, field for field; `tests/header.rs` compares the layouts.

use core::ffi::{c_char, c_int, c_void};
use core::time::Duration;

use weir_client::library::{
    DrainPhase, DrainReport, FileReport, Lamination, TransferState, Visibility,
};
use weir_client::process::FileInfo;

/// `struct weir_stat`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs)] // weir.h says it
pub struct Stat {
    pub size: u64,
    pub stored_bytes: u64,
    pub inode: u64,
    pub mtime_s: i64,
    pub mtime_ns: u32,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub links: u32,
    pub visibility: i32,
    pub lamination: i32,
    pub home: u32,
    pub here: u32,
    pub servers: u32,
    pub reserved: [u64; 4],
}

/// `struct weir_location`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs)] // weir.h says it
pub struct Location {
    pub rank: u32,
    pub reserved: u32,
    pub memory_bytes: u64,
    pub file_bytes: u64,
}

/// `struct weir_io`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)] // weir.h says it
pub struct Io {
    pub path: *const c_char,
    pub fd: c_int,
    pub reserved: c_int,
    pub offset: u64,
    pub buffer: *mut c_void,
    pub length: usize,
    pub result: isize,
}

/// `struct weir_transfer`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)] // weir.h says it
pub struct TransferEntry {
    pub source: *const c_char,
    pub destination: *const c_char,
    pub mode: c_int,
    pub reserved: c_int,
}

/// `struct weir_transfer_result`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs)] // weir.h says it
pub struct TransferResult {
    pub state: i32,
    pub error: i32,
    pub bytes: u64,
    pub size: u64,
    pub seconds: f64,
    pub reserved: [u64; 2],
}

impl From<&FileReport> for TransferResult {
    fn from(report: &FileReport) -> TransferResult {
        TransferResult {
            state: match report.state {
                TransferState::Waiting => 0,
                TransferState::Moving => 1,
                TransferState::Done => 2,
                TransferState::Failed => 3,
                TransferState::Cancelled => 4,
            },
            error: -report.error,
            bytes: report.bytes,
            size: report.size,
            seconds: Duration::from_micros(report.microseconds).as_secs_f64(),
            reserved: [0; 2],
        }
    }
}

/// The bytes of a reason, with its NUL.
pub const REASON_BYTES: usize = 256;

/// `struct weir_drain_state`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)] // weir.h says it
pub struct FileDrain {
    pub step: i32,
    pub reserved: i32,
    pub size: u64,
    pub age_ms: u64,
    pub more: [u64; 4],
    pub reason: [u8; REASON_BYTES],
}

impl From<&DrainReport> for FileDrain {
    fn from(report: &DrainReport) -> FileDrain {
        let mut reason = [0; REASON_BYTES];
        let length = report.reason.len().min(REASON_BYTES - 1);
        reason[..length].copy_from_slice(&report.reason.as_bytes()[..length]);
        FileDrain {
            step: match report.state {
                DrainPhase::Unmoved => 0,
                DrainPhase::Writing => 1,
                DrainPhase::Written => 2,
                DrainPhase::Analysis => 3,
                DrainPhase::Safe => 4,
                DrainPhase::Failed => 5,
            },
            reserved: 0,
            size: report.size,
            age_ms: report.age_ms,
            more: [0; 4],
            reason,
        }
    }
}

/// The mode of a transfer with this number: true if the source is removed.
pub fn removes_source(mode: c_int) -> Option<bool> {
    match mode {
        0 => Some(false),
        1 => Some(true),
        _ => None,
    }
}

impl From<&FileInfo> for Stat {
    fn from(about: &FileInfo) -> Stat {
        let (stat, attr) = (&about.stat, &about.attr);
        Stat {
            size: stat.size,
            stored_bytes: stat.blocks.saturating_mul(512),
            inode: stat.ino,
            mtime_s: stat.mtime.sec,
            mtime_ns: u32::try_from(stat.mtime.nsec).unwrap_or(0),
            mode: stat.mode,
            uid: stat.uid,
            gid: stat.gid,
            links: stat.nlink,
            visibility: number_of(attr.policy.visibility),
            lamination: match attr.lamination {
                Lamination::No => 0,
                Lamination::Done => 1,
                Lamination::Due | Lamination::Sealing => 2,
            },
            home: about.home.0.into(),
            here: about.here.0.into(),
            servers: about.servers.into(),
            reserved: [0; 4],
        }
    }
}

/// `enum weir_visibility`.
const VISIBILITIES: [Visibility; 3] = [
    Visibility::ReadAfterSync,
    Visibility::ReadAfterWrite,
    Visibility::ReadAfterLaminate,
];

/// Its number in weir.h.
pub fn number_of(visibility: Visibility) -> c_int {
    match visibility {
        Visibility::ReadAfterSync => 0,
        Visibility::ReadAfterWrite => 1,
        Visibility::ReadAfterLaminate => 2,
    }
}

/// The visibility with this number.
pub fn visibility_of(number: c_int) -> Option<Visibility> {
    VISIBILITIES
        .into_iter()
        .find(|known| number_of(*known) == number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_visibilities_are_those_of_the_header() {
        for (number, visibility) in (0..).zip(VISIBILITIES) {
            assert_eq!(number_of(visibility), number);
            assert_eq!(visibility_of(number), Some(visibility));
        }
        assert_eq!(visibility_of(3), None);
        assert_eq!(visibility_of(-1), None);
    }
}

//! Single calls, one after the other in one process: how long the median one takes.
//!
//! Bandwidth and rates of many processes say little about a shell script or `git`, whose time is that of
//! single calls. Each call is timed by itself, or in batches where one takes less than the clock can tell; what
//! prepares a call is not timed. A worker process does one call many times in one target and answers with
//! the timing of its median batch. The targets alternate, so that a ratio is of neighbours in time.
//!
//! If there are several, the baseline's workers run with an empty `LD_PRELOAD`: what is preloaded into the programs of the other
//! targets would slow down the calls that start a program there, too.
//!
//! | file | subject |
//! | --- | --- |
//! | `mod` | the calls |
//! | `clock` | the clock |
//! | `each` | what is done for each call |

mod clock;
mod each;

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::error::StepError;
use crate::timing::{Prepared, Timing};
use clock::{Clock, WorkDirectory};

macro_rules! calls {
    ($( $(#[doc = $doc:literal])+ $name:ident: $words:literal, $run:path; )*) => {
        /// A call, or a pair of calls that belong together.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, clap::ValueEnum)]
        #[serde(rename_all = "kebab-case")]
        pub enum Call {
            $( $(#[doc = $doc])+ $name, )*
        }

        impl Call {
            /// All of them, in the order of the table.
            pub const ALL: &'static [Call] = &[$( Call::$name ),*];

            /// Words for people.
            pub fn words(self) -> &'static str {
                match self { $( Call::$name => $words ),* }
            }

            fn routine(self) -> fn(&Clock, &WorkDirectory) -> Result<Timing, StepError> {
                match self { $( Call::$name => $run ),* }
            }
        }
    };
}

calls! {
    /// Opens and closes a file.
    OpenClose: "open+close", each::open_close;
    /// Makes a file and closes it.
    Create: "create+close", each::create;
    /// Removes a file.
    Unlink: "unlink", each::unlink;
    /// Attributes by name.
    Stat: "stat", each::stat;
    /// Attributes by descriptor.
    Fstat: "fstat", each::fstat;
    /// Reads 64 bytes.
    Pread: "pread 64 B", each::pread;
    /// Writes 64 bytes over others.
    Pwrite: "pwrite 64 B", each::pwrite;
    /// Moves the end of a file of 1 MiB over the hole behind its data and back.
    Ftruncate: "ftruncate, longer and back", each::ftruncate;
    /// Cuts 4 KiB of data off.
    FtruncateData: "ftruncate, 4 KiB of data", each::ftruncate_data;
    /// Looks for data and then for a hole in a file of 1000 pieces.
    SeekData: "SEEK_DATA+SEEK_HOLE, 1000 pieces", each::seek_data;
    /// Locks and unlocks a whole file.
    Flock: "flock, lock+unlock", each::flock;
    /// Locks and unlocks a byte of a file.
    FcntlLock: "fcntl, lock+unlock", each::fcntl_lock;
    /// Syncs a file of which nothing was written since it was synced.
    Fsync: "fsync", each::fsync;
    /// Syncs a file after 64 bytes were written.
    FsyncData: "fsync of 64 B", each::fsync_data;
    /// Changes the current directory.
    Chdir: "chdir", each::chdir;
    /// The name of the current directory.
    Getcwd: "getcwd", each::getcwd;
    /// Makes and removes a directory.
    MkdirRmdir: "mkdir+rmdir", each::mkdir_rmdir;
    /// Gives a file another name in its directory.
    Rename: "rename", each::rename;
    /// Lists a directory of 100 files.
    Readdir: "opendir+readdir+closedir, 100 names", each::readdir;
    /// Starts a child that ends at once.
    Fork: "fork+exit", each::fork;
    /// Starts a child that runs /bin/true.
    ForkExec: "fork+exec of /bin/true", each::fork_exec;
    /// Copies 1 MiB into a new file.
    CopyFileRange: "copy_file_range, 1 MiB", each::copy_file_range;
    /// Maps 1 MiB privately, reads a byte of each page and unmaps it.
    MmapPrivate: "mmap+read+munmap, 1 MiB private", each::mmap_private;
}

/// One call in one target.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CallStep {
    /// The call.
    pub call: Call,
    /// An empty directory.
    pub dir: PathBuf,
    /// How long it may take in all, in ns.
    pub budget_ns: u64,
}

/// Makes the clock ready.
pub fn time_call(step: &CallStep) -> Prepared<'_> {
    Box::new(|| {
        let directory = WorkDirectory(step.dir.clone());
        let clock = Clock {
            budget_ns: step.budget_ns,
        };
        Ok(step.call.routine()(&clock, &directory)?)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_call_works_in_any_directory() {
        for &call in Call::ALL {
            let dir = std::env::temp_dir()
                .join(format!("weir-bench-calls-{}-{call:?}", std::process::id()));
            std::fs::create_dir(&dir).unwrap();
            let timing = call.routine()(&Clock { budget_ns: 0 }, &WorkDirectory(dir.clone()));
            let timing = timing.unwrap_or_else(|error| panic!("{}: {error}", call.words()));
            assert!(
                timing.ops > 0 && timing.end_ns > timing.start_ns,
                "{call:?}"
            );
            std::env::set_current_dir("/").unwrap();
            std::fs::remove_dir_all(dir).unwrap();
        }
    }
}

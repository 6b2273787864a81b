//! Single calls, one after the other in one process: how long the median one takes.
//!
//! Bandwidth and rates of many processes say little about a shell script or `git`, whose time is that of
//! single calls. Each call is timed by itself, or in batches where one takes less than the clock can tell; what
//! prepares a call is not timed. A worker process does one call many times in one target and answers with
//! the timing of its median batch. The targets alternate, so that a ratio is of neighbours in time.
//!
//! The baseline's workers run with an empty `LD_PRELOAD`: what is preloaded into the programs of the other
//! targets would slow down the calls that start a program there, too.
//!
//! | file | subject |
//! | --- | --- |
//! | `mod` | the calls, the clock |
//! | `each` | what is done for each call |

mod each;

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::control::Control;
use crate::data::StepError;
use crate::job::Timing;
use crate::worker::now_ns;

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

            fn routine(self) -> fn(&Clock, &Place) -> Result<Timing, StepError> {
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
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CallStep {
    /// The call.
    pub call: Call,
    /// An empty directory.
    pub dir: PathBuf,
    /// How long it may take in all, in ns.
    pub budget_ns: u64,
}

/// Does `step`, after all are ready.
pub fn run(step: &CallStep, control: &Control) -> Result<Timing, StepError> {
    let place = Place(step.dir.clone());
    let clock = Clock {
        budget_ns: step.budget_ns,
    };
    control.barrier()?;
    step.call.routine()(&clock, &place)
}

/// The directory to work in.
struct Place(PathBuf);

/// Times a call again and again.
struct Clock {
    budget_ns: u64,
}

/// The fewest and the most samples of a call.
const SAMPLES: std::ops::Range<usize> = 11..2001;

impl Clock {
    /// Times batches of `batch` calls, each batch prepared by `prepare` outside of the clock, until there are
    /// enough of them or the time is over.
    ///
    /// # Returns
    /// The timing of the median batch.
    fn batches(
        &self,
        batch: u64,
        mut prepare: impl FnMut() -> Result<(), StepError>,
        mut call: impl FnMut(u64) -> Result<(), StepError>,
    ) -> Result<Timing, StepError> {
        let mut taken = Vec::new();
        let mut number = 0;
        let begin_ns = now_ns();
        while taken.len() < SAMPLES.start
            || (taken.len() < SAMPLES.end && now_ns() - begin_ns < self.budget_ns)
        {
            prepare()?;
            let start_ns = now_ns();
            for _ in 0..batch {
                call(number)?;
                number += 1;
            }
            taken.push(now_ns() - start_ns);
        }
        taken.sort_unstable();
        Ok(Timing {
            start_ns: begin_ns,
            end_ns: begin_ns + taken[taken.len() / 2],
            bytes: 0,
            ops: batch,
        })
    }

    /// The same without preparation.
    fn calls(
        &self,
        batch: u64,
        call: impl FnMut(u64) -> Result<(), StepError>,
    ) -> Result<Timing, StepError> {
        self.batches(batch, || Ok(()), call)
    }
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
            let timing = call.routine()(&Clock { budget_ns: 0 }, &Place(dir.clone()));
            let timing = timing.unwrap_or_else(|error| panic!("{}: {error}", call.words()));
            assert!(
                timing.ops > 0 && timing.end_ns > timing.start_ns,
                "{call:?}"
            );
            std::env::set_current_dir("/").unwrap();
            std::fs::remove_dir_all(dir).unwrap();
        }
    }

    #[test]
    fn the_median_batch_is_what_counts() {
        let clock = Clock { budget_ns: 0 };
        // Of eleven batches one takes long.
        let timing = clock.calls(1, |number| {
            if number == 3 {
                std::thread::sleep(std::time::Duration::from_millis(50));
            }
            Ok(())
        });
        let timing = timing.unwrap();
        assert!(timing.end_ns - timing.start_ns < 50_000_000);
    }
}

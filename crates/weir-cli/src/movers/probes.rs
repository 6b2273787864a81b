//! Probes of the parallel file system: small files that a mover reads, to show that its node sees the same directories.
//!
//! They exist only while movers are being checked; all movers that are checked at the same time read the same ones. Once
//! the command has ended none are made.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result};
use weir_launch::random::random;

/// The bytes of a probe.
pub(super) const PROBE_BYTES: usize = 16;

/// The probes of the directories into which movers are to write.
#[derive(Debug, Default)]
pub(super) struct TargetProbes {
    probes: Vec<PathBuf>,
    state: Mutex<ProbeState>,
}

#[derive(Debug, Default)]
struct ProbeState {
    /// The number of movers that are being checked.
    asked: usize,
    content: [u8; PROBE_BYTES],
    is_closed: bool,
}

/// The probes while a mover is being checked. They are removed when no mover is being checked any more.
#[derive(Debug)]
pub(super) struct ProbesInUse<'p> {
    of: &'p TargetProbes,
    pub content: [u8; PROBE_BYTES],
}

impl TargetProbes {
    pub fn new(targets: &[PathBuf]) -> TargetProbes {
        TargetProbes {
            probes: targets.iter().map(|dir| dir.join(probe_name())).collect(),
            state: Mutex::default(),
        }
    }

    /// Makes the probes, unless they are there.
    pub fn begin(&self) -> Result<ProbesInUse<'_>> {
        let mut state = self.lock();
        anyhow::ensure!(!state.is_closed, "it came after the end of the command");
        if state.asked == 0 {
            state.content = random()?;
            for probe in &self.probes {
                if let Err(error) = std::fs::write(probe, state.content) {
                    self.remove();
                    return Err(error).with_context(|| probe.display().to_string());
                }
            }
        }
        state.asked += 1;
        Ok(ProbesInUse {
            of: self,
            content: state.content,
        })
    }

    /// Removes the probes for good.
    pub fn close(&self) {
        let mut state = self.lock();
        state.is_closed = true;
        if state.asked > 0 {
            self.remove();
        }
    }

    /// True if the command has ended.
    pub fn is_closed(&self) -> bool {
        self.lock().is_closed
    }

    fn remove(&self) {
        for probe in &self.probes {
            // A probe that stays is hidden, and the next command with this process number overwrites it.
            if let Err(error) = std::fs::remove_file(probe) {
                if error.kind() != io::ErrorKind::NotFound {
                    tracing::debug!("removing {}: {error}", probe.display());
                }
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, ProbeState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ProbesInUse<'_> {
    /// The probes with their directories.
    pub fn iter(&self) -> impl Iterator<Item = (&Path, &Path)> {
        let probes = self.of.probes.iter();
        probes.map(|probe| (probe.parent().unwrap_or(probe), probe.as_path()))
    }
}

impl Drop for ProbesInUse<'_> {
    fn drop(&mut self) {
        let mut state = self.of.lock();
        state.asked -= 1;
        if state.asked == 0 && !state.is_closed {
            self.of.remove();
        }
    }
}

/// A name like that of a part: programs that use an elevated directory do not see it.
fn probe_name() -> String {
    format!(".probe-{}.weir-part", std::process::id())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(dir: &Path) -> usize {
        dir.read_dir().unwrap().count()
    }

    #[test]
    fn probes_are_there_while_movers_are_asked() {
        let dir = tempfile::tempdir().unwrap();
        let probes = TargetProbes::new(&[dir.path().to_owned()]);
        let one = probes.begin().unwrap();
        let other = probes.begin().unwrap();
        drop(one);
        for (at, probe) in other.iter() {
            assert_eq!(at, dir.path());
            assert_eq!(std::fs::read(probe).unwrap(), other.content);
        }
        drop(other);
        assert_eq!(count(dir.path()), 0);
        assert_eq!(probes.begin().unwrap().iter().count(), 1, "made again");
    }

    #[test]
    fn none_is_left_or_made_once_the_command_has_ended() {
        let dir = tempfile::tempdir().unwrap();
        let probes = TargetProbes::new(&[dir.path().to_owned()]);
        let asked = probes.begin().unwrap();
        probes.close();
        assert_eq!(count(dir.path()), 0);
        drop(asked);
        assert!(probes.begin().is_err());
        assert_eq!(count(dir.path()), 0);
    }

    #[test]
    fn one_that_cannot_be_made_leaves_no_other() {
        let dir = tempfile::tempdir().unwrap();
        let targets = [dir.path().to_owned(), dir.path().join("missing")];
        assert!(TargetProbes::new(&targets).begin().is_err());
        assert_eq!(count(dir.path()), 0);
    }
}

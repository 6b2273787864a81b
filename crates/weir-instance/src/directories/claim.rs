//! Claiming the directories of an instance, for the life of its server.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use weir_config::Config;

use super::job::Job;
use super::label::{has_journal, remove_labels, Label};
use super::life::{is_kept, lives};
use super::names::check_name;
use super::parent::Parent;
use super::private::{check_private, make_private};
use super::removal::{remove, Burial};
use crate::lock::Lock;

/// The directories of a live instance and the locks on them. Held by the server for its life.
#[derive(Debug)]
pub struct Claim {
    /// The instance's name.
    pub name: String,
    /// Socket, log.
    pub run_dir: PathBuf,
    /// The memory tier.
    pub shm_dir: PathBuf,
    /// The file tier, in the order of the configuration.
    pub storage_dirs: Vec<PathBuf>,
    /// A server was killed here, and left what this one can go on with.
    pub takes_up: bool,
    /// When the first server of it was started, ns since 1970.
    born_ns: u64,
    locks: Vec<Lock>,
}

/// The result of [`claim`].
#[derive(Debug)]
pub enum Claimed {
    /// The instance is ours to serve.
    Ours(Claim, Burial),
    /// One of that name lives.
    Lives {
        /// Its run directory.
        run_dir: PathBuf,
    },
    /// A server of that name was killed, and this one does not go on with what it left.
    Dead(Label),
}

/// The start that claims an instance.
#[derive(Clone, Copy, Debug)]
pub struct Claimant<'a> {
    /// The job that the instance is to belong to.
    pub job: &'a Job,
    /// The start takes up what a killed server of that name left.
    pub resumes: bool,
}

/// Makes and locks the directories of instance `name`, and puts aside what dead ones left that
/// nobody comes back for.
pub fn claim(
    name: &str,
    config: &Config,
    runs: &Parent,
    claimant: Claimant<'_>,
) -> Result<Claimed> {
    check_name(name)?;
    let memory = Parent::of_memory(config);
    let data: Vec<Parent> = std::iter::once(memory)
        .chain(Parent::of_files(config))
        .collect();
    // Batch systems take their time: asked before any lock is taken.
    let over = jobs_over(std::iter::once(runs).chain(&data), claimant.job);
    let clears = |dir: &Path| {
        let label = Label::read(dir);
        label.is_none_or(|label| over.contains(&label.job) && !label.outlives_job())
    };
    let mut burial = Burial::default();
    let run_dir = runs.child(name);
    let Some(run_lock) = claim_in(runs, name, claimant, &clears, &mut burial)? else {
        return Ok(Claimed::Lives { run_dir });
    };
    let mut claim = Claim {
        name: name.to_owned(),
        run_dir,
        shm_dir: PathBuf::new(),
        storage_dirs: Vec::new(),
        takes_up: false,
        born_ns: now_ns(),
        locks: vec![run_lock],
    };
    match claim.claim_data(&data, claimant, &clears, &mut burial) {
        Ok(None) => {}
        Ok(Some(run_dir)) => {
            claim.undo();
            return Ok(Claimed::Lives { run_dir });
        }
        Err(e) => {
            claim.undo();
            return Err(e);
        }
    }
    if let Some(left) = claim.dirs().iter().find_map(|dir| Label::read(dir)) {
        let same = left.memory_dir == claim.shm_dir && has_journal(&claim.shm_dir);
        if !(claimant.resumes && same) {
            claim.undo();
            return Ok(Claimed::Dead(left));
        }
        claim.takes_up = true;
        claim.born_ns = left.born_ns;
    }
    Ok(Claimed::Ours(claim, burial))
}

fn now_ns() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |now| u64::try_from(now.as_nanos()).unwrap_or(0))
}

/// The jobs that are over, of those whose dead instances have directories in `parents`.
fn jobs_over<'p>(parents: impl Iterator<Item = &'p Parent>, now: &Job) -> Vec<Job> {
    let mut judged: Vec<(Job, bool)> = Vec::new();
    for parent in parents {
        for name in parent.children() {
            let dir = parent.child(&name);
            if lives(&dir) {
                continue;
            }
            let job = Label::read(&dir).map(|label| label.job);
            if let Some(job) = job.filter(|job| judged.iter().all(|(known, _)| known != job)) {
                let is_over = job.is_over(now);
                judged.push((job, is_over));
            }
        }
    }
    judged.retain(|(_, is_over)| *is_over);
    judged.into_iter().map(|(job, _)| job).collect()
}

/// Claims `name` in one parent; `None` if it lives, or is kept for another. What dead instances left
/// is put aside where `clears` says so of their directory.
fn claim_in(
    parent: &Parent,
    name: &str,
    claimant: Claimant<'_>,
    clears: &dyn Fn(&Path) -> bool,
    burial: &mut Burial,
) -> Result<Option<Lock>> {
    parent.prepare()?;
    let _guard = parent.guard()?;
    parent.bury_dead(clears, burial);
    let dir = parent.child(name);
    if !claimant.resumes && is_kept(&dir) {
        return Ok(None);
    }
    make_private(&dir)?;
    check_private(&dir)?;
    Lock::try_acquire(&dir.join("lock"))
}

impl Claim {
    /// Claims the directories of the tiers, that of memory first; gives one that somebody lives in.
    /// The same name under another XDG_RUNTIME_DIR or TMPDIR is another instance, whose data directories would be these.
    fn claim_data(
        &mut self,
        parents: &[Parent],
        claimant: Claimant<'_>,
        clears: &dyn Fn(&Path) -> bool,
        burial: &mut Burial,
    ) -> Result<Option<PathBuf>> {
        for parent in parents {
            let dir = parent.child(&self.name);
            let Some(lock) = claim_in(parent, &self.name, claimant, clears, burial)? else {
                return Ok(Some(dir));
            };
            self.locks.push(lock);
            self.storage_dirs.push(dir);
        }
        self.shm_dir = self.storage_dirs.remove(0);
        Ok(None)
    }

    /// Removes what was made of a claim that failed; what cannot be has no label, and is cleared by
    /// the next start.
    fn undo(self) {
        let data = self.storage_dirs.iter().chain([&self.shm_dir]);
        for dir in data.chain([&self.run_dir]) {
            if !dir.as_os_str().is_empty() && Label::read(dir).is_none() {
                let _ = remove(dir);
            }
        }
    }

    /// The label of its directories.
    pub fn label(&self, servers: u16, job: &Job, mount: &Path, settings: &str) -> Label {
        Label {
            drain_to: None,
            name: self.name.clone(),
            born_ns: self.born_ns,
            servers,
            part: None,
            job: job.clone(),
            mount: mount.to_owned(),
            settings: settings.to_owned(),
            run_dir: self.run_dir.clone(),
            memory_dir: self.shm_dir.clone(),
            storage_dirs: self.storage_dirs.clone(),
        }
    }

    /// The directories of the tiers, and the run directory.
    pub fn dirs(&self) -> Vec<PathBuf> {
        let data = self.storage_dirs.iter().chain([&self.shm_dir]);
        data.chain([&self.run_dir]).cloned().collect()
    }

    /// Leaves everything as it is, for another start.
    pub fn leave(self) {
        drop(self.locks);
    }

    /// Removes the directories, the run directory last: while it is there the name is taken.
    pub fn release(self) -> Result<()> {
        let mut result = Ok(());
        remove_labels(&self.dirs());
        for dir in self
            .storage_dirs
            .iter()
            .chain([&self.shm_dir, &self.run_dir])
        {
            let removed = remove(dir);
            result = result.and(removed.with_context(|| format!("removing {}", dir.display())));
        }
        drop(self.locks);
        result
    }
}

#[cfg(test)]
mod tests;

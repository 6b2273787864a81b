//! Where an instance lives: its name, run directory, data directories, and the locks that say
//! whether it lives.
//!
//! ```text
//! $XDG_RUNTIME_DIR/weir-NAME/            or, without XDG_RUNTIME_DIR,
//! $TMPDIR/weir-UID/NAME/                 the run directory: lock, server.sock, server.log
//! launch.directory/weir-UID/NAME/                    the same of an instance of several servers, and
//!                                        secret, roster.json, agent.sock, agent.log
//! MEMORY/weir-UID-memory/NAME/           the memory tier: lock, regions, slabs
//! STORAGE/weir-UID-files-HOST/NAME/      the file tier: lock, slabs
//! ```
//!
//! Invariants:
//! - every directory holds a file `lock`, which the server keeps locked for its life
//!   (see [`crate::lock`]). The kernel drops the lock with the process, so "does it live" never rests on a pid;
//! - directories are claimed and judged dead only under the `guard` lock of their parent, so
//!   that one being set up is not taken for one left behind;
//! - what a killed server left of an instance is there for a start of the same name, which
//!   goes on with it; a start of any other clears it away;
//! - of several servers, the agent that would start a killed one again keeps its directories for
//!   that (`keep`, locked by the agent): no other start clears them away;
//! - a directory in a place where others can write is hostile until it was opened without
//!   following links and found to be ours and private.
//!
//! Left out: what is inside (the server's business).

mod parent;
mod private;

use std::io::{
    self,
    ErrorKind::{DirectoryNotEmpty, NotFound},
};
use std::path::{Path, PathBuf};

use anyhow::{ensure, Context, Result};
use weir_config::{Config, Environment};

use crate::lock::Lock;
pub use parent::Parent;
use private::{check_private, make_private};

/// The name of the server's socket in the run directory.
pub const SOCKET: &str = "server.sock";
/// The name of the lock by which an agent keeps a directory while its server does not live.
const KEEP: &str = "keep";
/// The name of a server's journal in its memory directory.
const JOURNAL: &str = "journal";
/// Directories on their way out are renamed to this and a number, so that a name is free at once.
const DEAD_PREFIX: &str = ".weir-dead-";
const NAME_MOST: usize = 64;

/// The names by which batch systems tell a job.
const JOB_VARIABLES: &[&str] = &[
    "SLURM_JOB_ID",
    "FLUX_JOB_ID",
    "PBS_JOBID",
    "LSB_JOBID",
    "JOB_ID",
];

/// The effective user.
pub fn uid() -> u32 {
    nix::unistd::geteuid().as_raw()
}

/// The name `weir start` gives an instance that was not named: of the job, or of the user.
pub fn default_name(env: &Environment) -> String {
    JOB_VARIABLES
        .iter()
        .find_map(|variable| env.get(variable))
        .map_or_else(
            || format!("user-{}", uid()),
            |job| format!("job-{}", tame(job)),
        )
}

/// What a job's id can hold that a name must not (`123[4].server`, flux's letters) becomes `-`.
fn tame(text: &str) -> String {
    let kept = |c: char| {
        if c.is_ascii_alphanumeric() || ".-_".contains(c) {
            c
        } else {
            '-'
        }
    };
    text.chars().map(kept).take(NAME_MOST - 8).collect()
}

/// Whether `name` can name an instance: it becomes part of paths.
pub fn check_name(name: &str) -> Result<()> {
    ensure!(
        !name.is_empty() && name.len() <= NAME_MOST && tame(name).starts_with(&name[..1])
            && name.chars().all(|c| c.is_ascii_alphanumeric() || ".-_".contains(c))
            && !name.starts_with('.'),
        "`{name}` cannot name an instance: use at most {NAME_MOST} letters, digits, `-`, `_` and `.`"
    );
    Ok(())
}

/// Whether a server holds the lock of the directory `dir`.
pub fn lives(dir: &Path) -> bool {
    check_private(dir).is_ok() && Lock::is_held(&dir.join("lock"))
}

/// Waits until no server holds the lock of `dir`, by waiting for the lock itself.
pub fn wait_until_gone(dir: &Path) -> Result<()> {
    let path = dir.join("lock");
    // Taken without making it: the file goes with the directory.
    match Lock::take_existing(&path) {
        Ok(_) => Ok(()),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(e) => Err(e).with_context(|| format!("waiting for {}", path.display())),
    }
}

/// The lock of a directory that nobody lives in. What cannot be judged is left alone.
fn lock_of_dead(dir: &Path) -> Option<Lock> {
    check_private(dir).ok()?;
    if Lock::is_held(&dir.join(KEEP)) {
        return None;
    }
    Lock::try_take(&dir.join("lock")).ok()?
}

/// Removes a directory that another start may be burying at the same time: once the lock in it is
/// gone it looks like a dead instance's, and one that looks makes a lock of its own there.
fn remove(dir: &Path) -> io::Result<()> {
    const TRIES: u32 = 100;
    let mut tries = 0;
    loop {
        tries += 1;
        match std::fs::remove_dir_all(dir) {
            Err(_) if dir.symlink_metadata().is_err_and(|e| e.kind() == NotFound) => return Ok(()),
            Err(e) if matches!(e.kind(), NotFound | DirectoryNotEmpty) && tries < TRIES => {}
            done => return done,
        }
    }
}

/// Keeps the directories of a server from being cleared away while it does not live, for as long
/// as the locks are held.
pub fn keep(dirs: &[PathBuf]) -> Result<Vec<Lock>> {
    let locks = dirs.iter().map(|dir| {
        let lock = Lock::try_take(&dir.join(KEEP))?;
        lock.with_context(|| format!("{} is kept by another", dir.display()))
    });
    locks.collect()
}

/// Directories of dead instances, out of the way but still to be removed.
#[derive(Debug, Default)]
pub struct Burial {
    names: Vec<String>,
    dirs: Vec<(PathBuf, Lock)>,
}

impl Burial {
    fn add(&mut self, path: PathBuf, lock: Lock, name: Option<String>) {
        let aside = path.with_file_name(format!(
            "{DEAD_PREFIX}{}-{}",
            std::process::id(),
            self.dirs.len()
        ));
        let path = match std::fs::rename(&path, &aside) {
            Ok(()) => aside,
            Err(_) => path,
        };
        self.names.extend(name);
        self.dirs.push((path, lock));
    }

    /// The instances whose remains are cleared.
    pub fn names(&self) -> Vec<String> {
        let mut names = self.names.clone();
        names.sort();
        names.dedup();
        names
    }

    /// Removes the directories; what fails is said and left for the next start.
    pub fn remove(self) {
        for (path, _lock) in self.dirs {
            if let Err(e) = remove(&path) {
                tracing::warn!("cannot remove {}: {e}", path.display());
            }
        }
    }
}

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
    locks: Vec<Lock>,
}

/// What [`claim`] found.
#[derive(Debug)]
pub enum Claimed {
    /// The instance is ours to serve.
    Ours(Claim, Burial),
    /// One of that name lives.
    Lives {
        /// Its run directory.
        run_dir: PathBuf,
    },
}

/// Makes and locks the directories of instance `name`, and puts aside what dead ones left. With
/// `resume` this one goes on with what a killed server of that name left.
pub fn claim(name: &str, config: &Config, runs: &Parent, resume: bool) -> Result<Claimed> {
    check_name(name)?;
    let mut burial = Burial::default();
    let run_dir = runs.child(name);
    let memory = Parent::of_memory(config);
    let kept = |other: &str| resume && are_kin(name, other) && has_remains(&memory.child(other));
    let takes_up = kept(name);
    let Some(run_lock) = claim_in(runs, name, resume, &kept, &mut burial)? else {
        return Ok(Claimed::Lives { run_dir });
    };
    let mut claim = Claim {
        name: name.to_owned(),
        run_dir,
        shm_dir: PathBuf::new(),
        storage_dirs: Vec::new(),
        takes_up,
        locks: vec![run_lock],
    };
    match claim.claim_data(config, resume, &kept, &mut burial) {
        Ok(None) => Ok(Claimed::Ours(claim, burial)),
        Ok(Some(run_dir)) => {
            claim.undo();
            Ok(Claimed::Lives { run_dir })
        }
        Err(e) => {
            claim.undo();
            Err(e)
        }
    }
}

/// Whether a killed server left something in its memory directory to go on with.
fn has_remains(memory_dir: &Path) -> bool {
    check_private(memory_dir).is_ok() && memory_dir.join(JOURNAL).is_file()
}

/// Whether two names are of one instance: several servers of one machine are called `NAME`,
/// `NAME.1`, `NAME.2`.
fn are_kin(a: &str, b: &str) -> bool {
    let base = |name: &str| match name.rsplit_once('.') {
        Some((base, rank)) if rank.parse::<u16>().is_ok() => base.to_owned(),
        _ => name.to_owned(),
    };
    base(a) == base(b)
}

/// Claims `name` in one parent; `None` if it lives, or is kept for another. What dead instances left is put aside, but
/// for those that are to be `kept`.
fn claim_in(
    parent: &Parent,
    name: &str,
    resume: bool,
    kept: &dyn Fn(&str) -> bool,
    burial: &mut Burial,
) -> Result<Option<Lock>> {
    parent.prepare()?;
    let _guard = parent.guard()?;
    parent.bury_dead(kept, burial);
    let dir = parent.child(name);
    if !resume && Lock::is_held(&dir.join(KEEP)) {
        return Ok(None);
    }
    make_private(&dir)?;
    check_private(&dir)?;
    Lock::try_take(&dir.join("lock"))
}

impl Claim {
    /// Claims the directories of the tiers; gives one that somebody lives in. The same name under
    /// another XDG_RUNTIME_DIR or TMPDIR is another instance, whose data directories would be these.
    fn claim_data(
        &mut self,
        config: &Config,
        resume: bool,
        kept: &dyn Fn(&str) -> bool,
        burial: &mut Burial,
    ) -> Result<Option<PathBuf>> {
        let memory = Parent::of_memory(config);
        for parent in std::iter::once(&memory).chain(&Parent::of_files(config)) {
            let dir = parent.child(&self.name);
            let Some(lock) = claim_in(parent, &self.name, resume, kept, burial)? else {
                return Ok(Some(dir));
            };
            self.locks.push(lock);
            self.storage_dirs.push(dir);
        }
        self.shm_dir = self.storage_dirs.remove(0);
        Ok(None)
    }

    /// Removes what was made of a claim that failed; what cannot be is dead, and cleared by the
    /// next start.
    fn undo(self) {
        if self.takes_up {
            return;
        }
        for dir in self.storage_dirs.iter().chain([&self.run_dir]) {
            let _ = std::fs::remove_dir_all(dir);
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
mod tests {
    use super::parent::file_names;
    use super::*;
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    struct Room {
        dir: tempfile::TempDir,
        env: Environment,
        config: Config,
    }

    fn room() -> Room {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().to_str().unwrap();
        let env: Environment = [("TMPDIR", path)].into_iter().collect();
        let mut config = Config::defaults(&env).unwrap();
        config.memory.directory = dir.path().to_owned();
        Room { dir, env, config }
    }

    impl Room {
        fn runs(&self) -> Parent {
            Parent::of_runs(&self.env)
        }

        fn claim(&self, name: &str) -> Claimed {
            claim(name, &self.config, &self.runs(), true).unwrap()
        }

        fn ours(&self, name: &str) -> (Claim, Burial) {
            match self.claim(name) {
                Claimed::Ours(claim, burial) => (claim, burial),
                Claimed::Lives { run_dir } => panic!("lives: {}", run_dir.display()),
            }
        }
    }

    #[test]
    fn directories_are_private_and_apart() {
        let room = room();
        let (claim, _) = room.ours("a");
        let dirs = [&claim.run_dir, &claim.shm_dir, &claim.storage_dirs[0]];
        for (i, dir) in dirs.iter().enumerate() {
            assert_eq!(dir.metadata().unwrap().mode() & 0o777, 0o700);
            assert!(dirs[i + 1..].iter().all(|other| other != dir));
            assert!(lives(dir));
        }
        claim.release().unwrap();
        let parents = std::fs::read_dir(room.dir.path()).unwrap();
        for parent in parents {
            let left = file_names(&parent.unwrap().path());
            assert_eq!(left, ["guard.lock"]);
        }
    }

    #[test]
    fn a_second_claim_of_a_name_is_told() {
        let room = room();
        let (first, _) = room.ours("a");
        assert!(matches!(room.claim("a"), Claimed::Lives { run_dir } if run_dir == first.run_dir));
        let (second, _) = room.ours("b");
        assert_ne!(first.shm_dir, second.shm_dir);
        assert_eq!(Parent::of_runs(&room.env).live(), ["a", "b"]);
        first.release().unwrap();
        let (third, _) = room.ours("a");
        drop(third);
        assert!(lives(&second.run_dir));
    }

    #[test]
    fn what_a_dead_instance_left_is_cleared_and_the_living_kept() {
        let room = room();
        let (living, _) = room.ours("living");
        let (dead, _) = room.ours("dead");
        let (run, shm) = (dead.run_dir.clone(), dead.shm_dir.clone());
        std::fs::write(shm.join("slab-0"), "data").unwrap();
        // A killed server does not release: the kernel drops its locks.
        drop(dead);
        let (_new, burial) = room.ours("new");
        assert_eq!(burial.names(), ["dead"]);
        assert!(!run.exists() && !shm.exists(), "names are free at once");
        burial.remove();
        for parent in std::fs::read_dir(room.dir.path()).unwrap() {
            let left = file_names(&parent.unwrap().path());
            assert!(
                !left.iter().any(|name| name.starts_with(DEAD_PREFIX)),
                "{left:?}"
            );
        }
        assert!(lives(&living.run_dir) && lives(&living.shm_dir));
    }

    #[test]
    fn what_a_killed_server_left_is_kept_for_its_name_alone() {
        let room = room();
        for name in ["b", "a", "a.1"] {
            let (dead, _) = room.ours(name);
            assert!(!dead.takes_up);
            std::fs::write(dead.shm_dir.join("journal"), "data").unwrap();
            std::fs::write(dead.run_dir.join("server.log"), "data").unwrap();
        }
        // Its servers come again one after the other; `b` was cleared when they first came.
        let (second, burial) = room.ours("a.1");
        assert_eq!(burial.names(), [""; 0]);
        let (first, burial) = room.ours("a");
        assert_eq!(burial.names(), [""; 0]);
        for claim in [&first, &second] {
            assert!(claim.takes_up);
            assert!(claim.shm_dir.join("journal").exists());
            assert!(claim.run_dir.join("server.log").exists());
        }
        let journal = first.shm_dir.join("journal");
        first.leave();
        assert!(journal.exists());
        let (_other, burial) = room.ours("other");
        assert_eq!(burial.names(), ["a"]);
    }

    #[test]
    fn what_an_agent_keeps_is_for_its_own_start_alone() {
        let room = room();
        let (killed, _) = room.ours("several.1");
        std::fs::write(killed.shm_dir.join(JOURNAL), "").unwrap();
        let dirs = killed.dirs();
        let kept = keep(&dirs).unwrap();
        drop(killed);
        let (other, burial) = room.ours("other");
        assert_eq!(burial.names(), [""; 0]);
        assert!(dirs.iter().all(|dir| dir.exists()));
        let anew = claim("several.1", &room.config, &room.runs(), false).unwrap();
        assert!(matches!(anew, Claimed::Lives { .. }));
        let (again, _) = room.ours("several.1");
        assert!(again.takes_up);
        drop(again);
        drop(kept);
        other.release().unwrap();
        let (_other, burial) = room.ours("other");
        assert_eq!(burial.names(), ["several.1"]);
    }

    #[test]
    fn an_interrupted_removal_is_finished_by_the_next_start() {
        let room = room();
        let (dead, _) = room.ours("dead");
        drop(dead);
        let (new, burial) = room.ours("new");
        drop(burial);
        new.release().unwrap();
        let (_next, burial) = room.ours("next");
        assert!(!burial.dirs.is_empty());
        burial.remove();
        let runs = Parent::of_runs(&room.env);
        assert!(file_names(&runs.path)
            .iter()
            .all(|name| !name.starts_with(DEAD_PREFIX)));
    }

    #[test]
    fn ends_of_instances_and_starts_of_others_do_not_disturb_each_other() {
        let room = room();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let room = &room;
                scope.spawn(move || {
                    for life in 0..100 {
                        let (claim, burial) = room.ours(&format!("{thread}-{life}"));
                        burial.remove();
                        claim.release().unwrap();
                    }
                });
            }
        });
        assert_eq!(file_names(&room.runs().path), ["guard.lock"]);
    }

    #[test]
    fn planted_directories_are_refused() {
        let room = room();
        let planted = room.dir.path().join(format!("weir-{}", uid()));
        std::os::unix::fs::symlink(room.dir.path(), &planted).unwrap();
        let error = claim("a", &room.config, &room.runs(), false).unwrap_err();
        assert!(error.to_string().contains("link"), "{error}");

        std::fs::remove_file(&planted).unwrap();
        std::fs::create_dir(&planted).unwrap();
        std::fs::set_permissions(&planted, std::fs::Permissions::from_mode(0o755)).unwrap();
        let error = claim("a", &room.config, &room.runs(), false).unwrap_err();
        assert!(error.to_string().contains("open to others"), "{error}");
    }

    #[test]
    fn a_directory_of_another_user_is_refused() {
        if uid() != 0 {
            return;
        }
        let room = room();
        let planted = room.dir.path().join("weir-0");
        std::fs::create_dir(&planted).unwrap();
        std::os::unix::fs::chown(&planted, Some(12345), None).unwrap();
        let error = claim("a", &room.config, &room.runs(), false).unwrap_err();
        assert!(
            error.to_string().contains("belongs to user 12345"),
            "{error}"
        );
    }

    #[test]
    fn names_come_from_the_job_and_cannot_leave_the_directory() {
        let env: Environment = [("PBS_JOBID", "12[3].pbs01")].into_iter().collect();
        assert_eq!(default_name(&env), "job-12-3-.pbs01");
        check_name(&default_name(&env)).unwrap();
        assert_eq!(
            default_name(&Environment::default()),
            format!("user-{}", uid())
        );
        for bad in ["", "..", ".dead-1", "a/b", "a b", &"x".repeat(65)] {
            assert!(check_name(bad).is_err(), "{bad}");
        }
    }
}

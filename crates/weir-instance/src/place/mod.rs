//! Where an instance lives: its name, run directory, data directories, and the locks that say
//! whether it lives.
//!
//! ```text
//! $XDG_RUNTIME_DIR/weir-NAME/            or, without XDG_RUNTIME_DIR,
//! $TMPDIR/weir-UID/NAME/                 the run directory: lock, label.json, server.sock, server.log
//! launch.directory/weir-UID/NAME/                    the same of an instance of several servers, and
//!                                        secret, roster.json, agent.sock, agent.log
//! MEMORY/weir-UID-memory/NAME/           the memory tier: lock, label.json, regions, slabs
//! STORAGE/weir-UID-files-HOST/NAME/      the file tier: lock, label.json, slabs
//! ```
//!
//! Invariants:
//! - every directory holds a file `lock`, which the server keeps locked for its life
//!   (see [`crate::lock`]). The kernel drops the lock with the process, so "does it live" never rests on a pid;
//! - directories are claimed and judged dead only under the `guard` lock of their parent, so
//!   that one being set up is not taken for one left behind;
//! - what a killed server left of an instance goes with `weir stop`, with a start of the same name
//!   that goes on with it, or with a start after its job is over; no other start touches it
//!   (`remains`);
//! - of several servers, the agent that would start a killed one again keeps its directories for
//!   that (`keep`, locked by the agent): nobody else clears them away or claims them;
//! - a directory in a place where others can write is hostile until it was opened without
//!   following links and found to be ours and private.
//!
//! Left out: what is inside (the server's business).

mod job;
mod parent;
mod private;
pub mod remains;

use std::io::{
    self,
    ErrorKind::{DirectoryNotEmpty, NotFound},
};
use std::path::{Path, PathBuf};

use anyhow::{ensure, Context, Result};
use weir_config::{Config, Environment};

use crate::lock::Lock;
use crate::mounts;
pub use job::Job;
pub use parent::Parent;
use private::{check_private, make_private};
pub use remains::{Label, Remains};

/// The name of the server's socket in the run directory.
pub const SOCKET: &str = "server.sock";
/// The name of the lock by which an agent keeps a directory while its server does not live.
const KEEP: &str = "keep";
/// The name of a server's journal in its memory directory.
const JOURNAL: &str = "journal";
/// Directories on their way out are renamed to this and a number, so that a name is free at once.
const DEAD_PREFIX: &str = ".weir-dead-";
const NAME_MOST: usize = 64;

/// The effective user.
pub fn uid() -> u32 {
    nix::unistd::geteuid().as_raw()
}

/// The name `weir start` gives an instance that was not named: of the job, or of the user.
pub fn default_name(env: &Environment) -> String {
    job::batch_id(env).map_or_else(
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
    // What is mounted there is no part of it: a mount whose process and server were killed.
    mounts::clear_below(dir).map_err(io::Error::other)?;
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
    /// When the first server of it was started, ns since 1970.
    born_ns: u64,
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
    let clears = |dir: &Path| Label::read(dir).is_none_or(|label| over.contains(&label.job));
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
        let same = left.memory_dir == claim.shm_dir && remains::has_journal(&claim.shm_dir);
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

/// Whether an agent is about to start a server of the directory `dir` again.
pub fn is_kept(dir: &Path) -> bool {
    Lock::is_held(&dir.join(KEEP))
}

/// Of the jobs whose dead instances have directories in `parents`, those that are over.
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

/// The name of the instance of a server that is called so: several servers of one machine are called
/// `NAME`, `NAME.1`, `NAME.2`.
fn base_name(name: &str) -> &str {
    match name.rsplit_once('.') {
        Some((base, rank)) if rank.parse::<u16>().is_ok() => base,
        _ => name,
    }
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
    if !claimant.resumes && Lock::is_held(&dir.join(KEEP)) {
        return Ok(None);
    }
    make_private(&dir)?;
    check_private(&dir)?;
    Lock::try_take(&dir.join("lock"))
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
            name: self.name.clone(),
            born_ns: self.born_ns,
            servers,
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
        remains::remove_labels(&self.dirs());
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
        // Not `TMPDIR`, which may be too long for a socket below it: then runs are elsewhere.
        let dir = tempfile::tempdir_in("/tmp").unwrap();
        let path = dir.path().to_str().unwrap();
        let env: Environment = [("TMPDIR", path)].into_iter().collect();
        let mut config = Config::defaults(&env).unwrap();
        config.memory.directory = dir.path().to_owned();
        config.launch.directory = dir.path().to_owned();
        Room { dir, env, config }
    }

    impl Room {
        fn runs(&self) -> Parent {
            Parent::of_runs(&self.env)
        }

        fn claim(&self, name: &str) -> Claimed {
            self.claim_as(name, &Job::default(), true)
        }

        fn claim_as(&self, name: &str, job: &Job, resumes: bool) -> Claimed {
            let claimant = Claimant { job, resumes };
            claim(name, &self.config, &self.runs(), claimant).unwrap()
        }

        fn refused(&self, name: &str) -> anyhow::Error {
            let claimant = Claimant {
                job: &Job::default(),
                resumes: false,
            };
            claim(name, &self.config, &self.runs(), claimant).unwrap_err()
        }

        /// A server of this name that took clients, had a journal, and was killed.
        fn killed(&self, name: &str) -> Label {
            let (claim, _) = self.ours(name);
            let label = claim.label(1, &Job::default(), Path::new("/weir"), "");
            label.prepare().unwrap();
            label.put().unwrap();
            std::fs::write(claim.shm_dir.join(JOURNAL), "data").unwrap();
            std::fs::write(claim.run_dir.join("server.log"), "data").unwrap();
            label
        }

        fn ours(&self, name: &str) -> (Claim, Burial) {
            match self.claim(name) {
                Claimed::Ours(claim, burial) => (claim, burial),
                other => panic!("{name}: {other:?}"),
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
    fn what_a_start_that_failed_left_is_cleared_and_the_living_kept() {
        let room = room();
        let (living, _) = room.ours("living");
        let (dead, _) = room.ours("dead");
        let (run, shm) = (dead.run_dir.clone(), dead.shm_dir.clone());
        std::fs::write(shm.join("slab-0"), "data").unwrap();
        // A killed server does not release: the kernel drops its locks. It took no clients yet.
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
            room.killed(name);
        }
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
        let (other, burial) = room.ours("other");
        assert_eq!(burial.names(), [""; 0]);
        assert!(!other.takes_up && journal.exists());
        let names: Vec<String> = remains::all(&room.config, &room.env)
            .into_iter()
            .map(|one| one.name)
            .collect();
        assert_eq!(names, ["a", "b"]);
    }

    #[test]
    fn what_a_start_does_not_go_on_with_it_refuses_and_leaves() {
        let room = room();
        let label = room.killed("a");
        let anew = room.claim_as("a", &Job::default(), false);
        assert!(matches!(anew, Claimed::Dead(left) if left == label));
        std::fs::remove_file(label.memory_dir.join(JOURNAL)).unwrap();
        assert!(matches!(room.claim("a"), Claimed::Dead(left) if left == label));
        assert!(label.dirs().all(|dir| Label::read(dir).is_some()));
        let remains = Remains::named("a", &room.config, &room.env).unwrap();
        assert!(remains.obstacle().unwrap().contains("journal"));
        remains.clear().unwrap();
        assert!(!label.dirs().any(Path::exists));
        let (anew, _) = room.ours("a");
        assert!(!anew.takes_up);
    }

    #[test]
    fn what_is_left_of_a_job_that_is_over_is_cleared() {
        let room = room();
        let before: Environment = [("SLURM_JOB_ID", "7")].into_iter().collect();
        let again = [("SLURM_JOB_ID", "7"), ("SLURM_RESTART_COUNT", "1")];
        let jobs = [Job::of(&before), Job::of(&again.into_iter().collect())];
        let mut label = room.killed("a");
        label.job = jobs[0].clone();
        label.prepare().unwrap();
        label.put().unwrap();
        assert!(
            matches!(room.claim_as("b", &jobs[0], true), Claimed::Ours(_, burial) if burial.names().is_empty())
        );
        let Claimed::Ours(anew, burial) = room.claim_as("a", &jobs[1], true) else {
            panic!("it is not ours");
        };
        assert!(!anew.takes_up);
        assert!(burial.names().contains(&"a".to_owned()));
    }

    #[test]
    fn what_an_agent_keeps_is_for_its_own_start_alone() {
        let room = room();
        let label = room.killed("several.1");
        let dirs: Vec<PathBuf> = label.dirs().map(Path::to_owned).collect();
        let kept = keep(&dirs).unwrap();
        let (other, burial) = room.ours("other");
        assert_eq!(burial.names(), [""; 0]);
        assert!(remains::all(&room.config, &room.env).is_empty());
        assert!(dirs.iter().all(|dir| dir.exists()));
        let anew = room.claim_as("several.1", &Job::default(), false);
        assert!(matches!(anew, Claimed::Lives { .. }));
        let (again, _) = room.ours("several.1");
        assert!(again.takes_up);
        drop(again);
        drop(kept);
        other.release().unwrap();
        assert_eq!(remains::all(&room.config, &room.env).len(), 1);
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
        let error = room.refused("a");
        assert!(error.to_string().contains("link"), "{error}");

        std::fs::remove_file(&planted).unwrap();
        std::fs::create_dir(&planted).unwrap();
        std::fs::set_permissions(&planted, std::fs::Permissions::from_mode(0o755)).unwrap();
        let error = room.refused("a");
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
        let error = room.refused("a");
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

//! Claims of directories, with others alive, dead and in the way.

use super::*;
use crate::directories::names::{DEAD_PREFIX, JOURNAL};
use crate::directories::parent::file_names;
use crate::directories::*;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use weir_config::Environment;

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
    let jobs = [
        Job::from_environment(&before),
        Job::from_environment(&again.into_iter().collect()),
    ];
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
fn what_is_to_be_moved_outlives_its_job() {
    let room = room();
    let label = Label {
        job: Job::from_environment(&[("SLURM_JOB_ID", "7")].into_iter().collect()),
        ..room.killed("a")
    };
    let again = [("SLURM_JOB_ID", "7"), ("SLURM_RESTART_COUNT", "1")];
    let later = Job::from_environment(&again.into_iter().collect());
    let elevates = "elevate.directories = [\"/pfs/run\"]";
    for (drain_to, settings) in [(Some("/pfs/run".into()), ""), (None, elevates)] {
        let label = Label {
            drain_to,
            settings: settings.to_owned(),
            ..label.clone()
        };
        assert!(label.awaits_drain());
        label.prepare().unwrap();
        label.put().unwrap();
        let Claimed::Ours(other, burial) = room.claim_as("b", &later, true) else {
            panic!("it is not ours");
        };
        assert_eq!(burial.names(), [""; 0]);
        other.release().unwrap();
        let advice = Remains::named("a", &room.config, &room.env)
            .unwrap()
            .advice();
        assert!(advice.contains("weir recover a"), "{advice}");
    }
    // Nothing can go on with it.
    std::fs::remove_file(label.memory_dir.join(JOURNAL)).unwrap();
    let Claimed::Ours(_, burial) = room.claim_as("b", &later, true) else {
        panic!("it is not ours");
    };
    assert_eq!(burial.names(), ["a"]);
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

#[test]
fn several_servers_go_on_if_they_know_each_other() {
    use weir_core::roster::{InstanceId, Member, Roster};
    use weir_core::types::Rank;
    let room = room();
    let instance = InstanceId([7; 16]);
    let label = Label {
        servers: 2,
        part: Some(ServerPart {
            instance,
            rank: 0,
            host: "n0".into(),
            share: 1,
        }),
        drain_to: Some("/pfs/run".into()),
        ..room.killed("a")
    };
    label.prepare().unwrap();
    label.put().unwrap();
    let describe = || {
        let remains = Remains::named("a", &room.config, &room.env).unwrap();
        assert!(remains.is_of_several());
        (remains.obstacle(), remains.describe())
    };
    assert!(describe()
        .0
        .unwrap()
        .contains("the list of its servers is gone"));
    let members = (0..2).map(|rank| Member {
        rank: Rank(rank),
        host: format!("n{rank}"),
        address: ([10, 0, 0, 1], 4000 + rank).into(),
        endpoint: None,
        is_mover: false,
    });
    let write = |instance| {
        let roster = Roster::new(instance, members.clone().collect()).unwrap();
        let text = serde_json::to_string(&roster).unwrap();
        crate::roster::write(&label.memory_dir, &text).unwrap();
    };
    write(InstanceId([8; 16]));
    assert!(describe().0.is_some());
    write(instance);
    let (obstacle, text) = describe();
    assert_eq!(obstacle, None);
    assert!(
        text.contains("its 2 servers on n0, n1 were killed"),
        "{text}"
    );
    assert!(text.contains("weir recover a moves"), "{text}");
    assert!(label.outlives_job());
    // An instance that is started anew is another one.
    let anew = room.claim_as("a", &Job::default(), false);
    assert!(matches!(anew, Claimed::Dead(left) if left == label));
}

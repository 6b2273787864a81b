//! Which instance is meant, and which there are on this node.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use anyhow::Result;
use weir_config::{Config, Environment};
use weir_core::elevated::{other_name_link, MOST_OTHER_NAMES, MOST_TREES, TARGET_LINK};
use weir_instance::directories::{self, Label, Parent, Remains};
use weir_instance::roster::ROSTER;

use crate::exit::Failure;

/// Which instance is meant: by name or run directory, by `WEIR_INSTANCE`, or by default.
pub fn run_dir_of(named: Option<&str>, config: &Config, env: &Environment) -> Result<PathBuf> {
    let named = named.or_else(|| env.get("WEIR_INSTANCE"));
    let name = match named {
        Some(path) if path.contains('/') => return Ok(PathBuf::from(path)),
        Some(name) => name.to_owned(),
        None => directories::default_name(env),
    };
    directories::check_name(&name)?;
    let of_several = Parent::of_shared_runs(config).child(&name);
    let of_one = Parent::of_runs(env).child(&name);
    // One of several servers that is dead is meant only if no other one is there.
    let is_dead = || Label::read(&of_several).is_some() && Label::read(&of_one).is_none();
    if directories::lives(&of_several) || !directories::lives(&of_one) && is_dead() {
        return Ok(of_several);
    }
    Ok(of_one)
}

/// The same, of an instance that lives.
pub fn live_run_dir(
    named: Option<&str>,
    config: &Config,
    env: &Environment,
) -> Result<PathBuf, Failure> {
    living(run_dir_of(named, config, env)?, config, env)
}

/// Refuses an instance that does not live.
pub fn living(run_dir: PathBuf, config: &Config, env: &Environment) -> Result<PathBuf, Failure> {
    if directories::lives(&run_dir) {
        return Ok(run_dir);
    }
    Err(match remains_of(&run_dir, config, env) {
        Some(remains) => Failure::Dead {
            why: remains.describe(),
        },
        None => Failure::NoInstance { run_dir },
    })
}

/// The remains of the instance that has, or had, this run directory, if its server was killed.
pub fn remains_of(run_dir: &Path, config: &Config, env: &Environment) -> Option<Remains> {
    if let Some(remains) = Remains::at(run_dir, config, env) {
        return Some(remains);
    }
    // A directory for temporary files may be gone before the memory that belongs to it.
    let name = Parent::holding(run_dir)?.name_in(run_dir)?;
    let remains = Remains::named(&name, config, env)?;
    // Of several servers of this machine, the first one's may be cleared already.
    let known = &remains.first().run_dir;
    let is_same = known.parent() == run_dir.parent();
    (is_same || !known.exists()).then_some(remains)
}

/// The run directories of all instances of the user on this node.
pub fn live(config: &Config, env: &Environment) -> Vec<PathBuf> {
    let (runs, shared) = (Parent::of_runs(env), Parent::of_shared_runs(config));
    let others = (shared != runs).then_some(shared);
    let dirs = std::iter::once(runs).chain(others).flat_map(|parent| {
        let names = parent.live().into_iter();
        names
            .map(move |name| parent.child(&name))
            .collect::<Vec<_>>()
    });
    dirs.filter(|run_dir| !is_another(run_dir)).collect()
}

/// The elevated directories of the instance with this run directory, by their canonical paths. None where mirrors lie over
/// them: what moves files there is outside of that mount namespace.
pub fn elevated_directories(run_dir: &Path) -> Vec<PathBuf> {
    match sees_mirrors(run_dir) {
        true => Vec::new(),
        false => elevated_targets(run_dir),
    }
}

/// The same, also under mirrors: to name them.
pub fn elevated_targets(run_dir: &Path) -> Vec<PathBuf> {
    let link = |number| run_dir.join(format!("{TARGET_LINK}{number}"));
    let targets = (0..MOST_TREES).map_while(|number| std::fs::read_link(link(number)).ok());
    targets.collect()
}

/// The paths of an elevated directory by other mounts of its file system on this node.
pub fn other_names_of(run_dir: &Path, tree: usize) -> Vec<PathBuf> {
    let link = |other| run_dir.join(other_name_link(tree, other));
    let names = (0..MOST_OTHER_NAMES).map_while(|other| std::fs::read_link(link(other)).ok());
    names.collect()
}

/// True if mirrors lie over the elevated directories of the instance with this run directory, as this process finds them.
pub fn sees_mirrors(run_dir: &Path) -> bool {
    weir_client::process::sees_mirrors(run_dir.as_os_str().as_bytes())
}

/// Refuses to start or end servers of an instance where mirrors lie over its elevated directories: files could not be moved there.
pub fn refuse_under_mirrors(run_dir: &Path) -> Result<(), Failure> {
    match sees_mirrors(run_dir) {
        true => Err(Failure::Refused(
            "here mirrors lie over elevated directories (run.mirror), and files cannot be moved there: do this outside of \
             the command of weir run"
                .to_owned(),
        )),
        false => Ok(()),
    }
}

/// True if `run_dir` is of one of several servers of this machine, and not of the first.
fn is_another(run_dir: &Path) -> bool {
    let name = run_dir.file_name().unwrap_or_default().to_string_lossy();
    let first = name
        .rsplit_once('.')
        .filter(|(_, rank)| rank.parse::<u16>().is_ok());
    first.is_some_and(|(first, _)| {
        run_dir.join(ROSTER).exists() && directories::lives(&run_dir.with_file_name(first))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instances_are_named_by_name_path_or_variable() {
        let env: Environment = [("TMPDIR", "/t"), ("SLURM_JOB_ID", "9")]
            .into_iter()
            .collect();
        let runs = format!("/t/weir-{}", directories::uid());
        let config = Config::defaults(&env).unwrap();
        let dir = |named| run_dir_of(named, &config, &env).unwrap();
        assert_eq!(dir(None), Path::new(&runs).join("job-9"));
        assert_eq!(dir(Some("x")), Path::new(&runs).join("x"));
        assert_eq!(dir(Some("/r/x")), Path::new("/r/x"));
        assert!(run_dir_of(Some(".."), &config, &env).is_err());
        let env: Environment = [("WEIR_INSTANCE", "/r/y")].into_iter().collect();
        assert_eq!(run_dir_of(None, &config, &env).unwrap(), Path::new("/r/y"));
    }
}

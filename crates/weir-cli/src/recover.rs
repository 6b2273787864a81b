//! `weir recover`: what dead instances of this node have is moved to the parallel file system, and they are
//! cleared, one after the other. What one cannot have moved does not keep the others.

use weir_config::{Environment, Loaded};
use weir_instance::directories::{self, Remains};

use crate::args::RecoverArgs;
use crate::exit::Failure;
use crate::locate::{remains_of, run_dir_of};
use crate::run::{self, InstanceEnding};

/// `weir recover`. `NotMoved`: what an instance has is not all safe; it stays.
pub fn recover(args: &RecoverArgs, settings: &Loaded, env: &Environment) -> Result<(), Failure> {
    let found = find_dead(args, settings, env)?;
    if found.is_empty() {
        outln!("weir: no dead instance on this node has files that are to be moved out of it");
    }
    let mut left = Vec::new();
    for remains in &found {
        if args.list || !may_move(args, remains) {
            outln!("weir: {}", remains.describe());
            left.extend((!args.list).then(|| remains.name.clone()));
            continue;
        }
        let ending = InstanceEnding {
            drain_to: args.drain_to.as_deref(),
            drains: true,
            by_force: false,
        };
        if let Err(failure) = run::end_dead(remains, ending, settings) {
            eprintln!("weir: {}: {failure}", remains.name);
            left.push(remains.name.clone());
        }
    }
    match left.is_empty() {
        true => Ok(()),
        false => Err(Failure::NotMoved(left.join(", "))),
    }
}

/// The instances that are asked for.
fn find_dead(
    args: &RecoverArgs,
    settings: &Loaded,
    env: &Environment,
) -> Result<Vec<Remains>, Failure> {
    if args.instances.is_empty() {
        let mut all = directories::all(&settings.config, env);
        all.retain(|remains| args.list || args.drain_to.is_some() || remains.awaits_drain());
        return Ok(all);
    }
    let find = |name: &String| {
        let run_dir = run_dir_of(Some(name), &settings.config, env)?;
        if directories::lives(&run_dir) {
            return Err(Failure::Refused(format!(
                "{name} is not dead: weir stop {name} moves what is to be moved out of it"
            )));
        }
        let remains = remains_of(&run_dir, &settings.config, env);
        remains.ok_or(Failure::NoInstance { run_dir })
    };
    args.instances.iter().map(find).collect()
}

/// True if there is a directory to move files to, and something that can.
fn may_move(args: &RecoverArgs, remains: &Remains) -> bool {
    remains.obstacle().is_none() && (args.drain_to.is_some() || remains.awaits_drain())
}

//! `weir stop`.

use weir_config::{Environment, Loaded};
use weir_instance::directories;

use crate::args::{EarlierDrains, StopArgs};
use crate::ending::{end_living, InstanceEnding};
use crate::exit::Failure;
use crate::locate::{remains_of, run_dir_of};
use crate::recover::{clear_dead, end_dead};

/// `weir stop`.
pub fn stop(args: &StopArgs, settings: &Loaded, env: &Environment) -> Result<(), Failure> {
    let run_dir = run_dir_of(args.instance.as_deref(), &settings.config, env)?;
    let drain_to = args.drain_to.as_deref();
    let ending = InstanceEnding {
        drain_to,
        drains: !args.no_drain,
        by_force: args.force,
        before: EarlierDrains::Ended,
    };
    if directories::lives(&run_dir) {
        return end_living(&run_dir, ending, settings);
    }
    let Some(remains) = remains_of(&run_dir, &settings.config, env) else {
        return Err(Failure::NoInstance { run_dir });
    };
    if args.no_drain || drain_to.is_none() && !remains.awaits_drain() {
        return clear_dead(&remains, settings, env);
    }
    end_dead(&remains, ending, settings, env)
}

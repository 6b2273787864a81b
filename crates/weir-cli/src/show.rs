//! `weir status` and `weir ls`: asking an instance that runs.

use anyhow::anyhow;
use weir_config::Environment;

use crate::args::{LsArgs, StatusArgs};
use crate::exit::Failure;
use crate::place::Parent;
use crate::run::live_run_dir;

/// `weir status`.
pub fn status(args: &StatusArgs, env: &Environment) -> Result<(), Failure> {
    if args.instance.is_none() && env.get("WEIR_INSTANCE").is_none() {
        for name in Parent::of_runs(env).live() {
            println!("{name}");
        }
        return Ok(());
    }
    live_run_dir(args.instance.as_deref(), env)?;
    Err(anyhow!("this build has no server").into())
}

/// `weir ls`.
pub fn list(args: &LsArgs, env: &Environment) -> Result<(), Failure> {
    live_run_dir(args.instance.as_deref(), env)?;
    Err(anyhow!("this build has no server").into())
}

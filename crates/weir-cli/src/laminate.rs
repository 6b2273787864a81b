//! `weir laminate`: making files read-only for good.

use std::time::{Duration, Instant};

use anyhow::Context;
use weir_config::{Config, Environment};
use weir_core::proto::{Cause, Laminate, Lookup};
use weir_instance::connection::Connection;

use crate::args::LaminateArgs;
use crate::exit::Failure;
use crate::locate::live_run_dir;
use crate::show::components;

/// How often it is asked again whether the writers have closed a file.
const AGAIN: Duration = Duration::from_millis(50);

/// Laminates each path; without `--wait`, those that somebody has open for writing are named
/// and stay due.
pub fn laminate(args: &LaminateArgs, config: &Config, env: &Environment) -> Result<(), Failure> {
    let run_dir = live_run_dir(args.instance.as_deref(), config, env)?;
    let mut connection = Connection::to(&run_dir)?;
    let deadline = args
        .wait
        .map(|seconds| Instant::now() + Duration::from_secs(seconds));
    let mut open = Vec::new();
    for path in &args.paths {
        let components = components(path, &connection.welcome().prefix);
        let found = connection
            .call(Lookup { components })
            .with_context(|| path.clone())?;
        loop {
            let op = Laminate {
                ino: found.ino,
                cause: Cause::Request,
            };
            if connection.call(op).with_context(|| path.clone())? {
                break;
            }
            if deadline.is_none_or(|deadline| Instant::now() >= deadline) {
                open.push(path.as_str());
                break;
            }
            std::thread::sleep(AGAIN);
        }
    }
    if open.is_empty() {
        return Ok(());
    }
    Err(anyhow::anyhow!(
        "open for writing: {}; laminated once that is closed (--wait SECONDS waits for it)",
        open.join(", ")
    )
    .into())
}

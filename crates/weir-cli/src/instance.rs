//! The seam to `weir-server`: serving an instance, and talking to one that runs.

use std::path::Path;

use anyhow::{bail, Result};
use serde::{Deserialize, Serialize};
use weir_config::Config;

use crate::place::Claim;

/// What an instance did, told at its end.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Report {}

/// Serves the instance of `claim` until it is stopped; calls `ready` once clients may come.
pub fn serve(_claim: &Claim, _config: &Config, _ready: impl FnOnce()) -> Result<Report> {
    bail!("this build has no server")
}

/// Stops the instance in `run_dir`.
pub fn stop(_run_dir: &Path) -> Result<Report> {
    bail!("this build has no server")
}

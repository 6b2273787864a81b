//! Workers: a process beside each server, which connects to the program that wants them and does what
//! that says. Those of `weir bench` measure, those of a drain move files.
//!
//! ```text
//!  weir bench --Work--> agent --Work--> agent of another node
//!      ^                  | Task, one JSON line on standard input
//!      |                weir worker ------+  more of itself, with the client injected
//!      +----- TCP, greeting, orders ------+
//! ```
//!
//! A worker ends when its connection does, or what started it.

use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use weir_core::roster::{InstanceId, Secret};

use crate::greet::GreetingSecrets;
use crate::server::to_line;

/// The program that a worker is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WorkerProgram {
    /// Of `weir bench`.
    Bench,
    /// Moves files of a drain.
    Mover,
}

/// Where workers are awaited.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct WorkerInvitation {
    /// The program that they are.
    pub program: WorkerProgram,
    /// The address at which the program that wants them listens.
    pub address: SocketAddr,
    /// Which run it is.
    pub run: InstanceId,
    /// The secret that its workers prove to know.
    pub secret: Secret,
}

impl WorkerInvitation {
    /// The knowledge of both sides of the greeting.
    pub fn known(&self) -> GreetingSecrets<'_> {
        GreetingSecrets {
            instance: self.run,
            secret: &self.secret,
        }
    }
}

/// The first message to a worker.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Task {
    /// Where to.
    pub invitation: WorkerInvitation,
    /// Which worker it is; nobody else's number.
    pub number: u16,
    /// The run directory of its server.
    pub run_dir: PathBuf,
}

impl Task {
    /// Starts the worker, with these variables besides.
    pub fn start(&self, variables: &[(&str, std::ffi::OsString)]) -> Result<Child> {
        let program = std::env::current_exe().context("finding the weir program")?;
        let mut child = Command::new(program)
            .arg(match self.invitation.program {
                WorkerProgram::Bench => "worker",
                WorkerProgram::Mover => "mover",
            })
            .env("LD_PRELOAD", "")
            .envs(variables.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .context("starting a worker")?;
        let mut stdin = child.stdin.take().context("piped")?;
        // One that died already is missed soon.
        let _ = writeln!(stdin, "{}", to_line(self));
        Ok(child)
    }
}

//! Starting a server process and hearing from it.
//!
//! ```text
//! weir run/start                         weir server
//!   | --- stdin:  Launch, one JSON line --->|
//!   |                                       | claims its directories, serves
//!   |<-- stdout: Reply, one JSON line ----- |
//!   |     (weir start goes away here)       |
//!   | --- stdin:  end of file ------------->| stops
//!   |<-- stdout: Ended, one JSON line ----- | exits
//! ```
//!
//! Both ends wait in read(2): no polling. The end of file on stdin is the lifeline of
//! `weir run`: the kernel closes the pipe however weir run ends, so a server never outlives it.
//! A server of `weir start` does not look at its stdin after the first line.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{anyhow, Context, Result};
use serde::{Deserialize, Serialize};

use crate::exit::Failure;
use crate::instance::Report;

/// What a server is told.
#[derive(Debug, Serialize, Deserialize)]
pub struct Launch {
    /// The instance's name; `None` to choose one that is free.
    pub name: Option<String>,
    /// Stop when stdin ends.
    pub lifeline: bool,
    /// The settings in force, as a weir.toml.
    pub settings: String,
}

/// The first line a server says.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reply {
    /// Clients may come.
    Ready(Ready),
    /// An instance of that name lives.
    Lives {
        /// Its run directory.
        run_dir: PathBuf,
    },
    /// There is no instance; one line says why.
    Failed(String),
}

/// An instance that runs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Ready {
    /// Its name.
    pub name: String,
    /// Its run directory: `WEIR_INSTANCE`.
    pub run_dir: PathBuf,
    /// Where programs see it.
    pub mount: PathBuf,
    /// Dead instances whose remains were cleared.
    pub cleared: Vec<String>,
}

/// The last line a server says to `weir run`.
#[derive(Debug, Serialize, Deserialize)]
pub struct Ended {
    /// What was done, if serving ended well; else why not.
    pub result: Result<Report, String>,
    /// The server's log, if it was kept.
    pub log: Option<PathBuf>,
}

/// A server process that answered.
#[derive(Debug)]
pub struct Server {
    child: Child,
    lifeline: ChildStdin,
    replies: BufReader<ChildStdout>,
    /// The instance.
    pub ready: Ready,
}

/// Starts a server process and waits until clients may come.
pub fn start(launch: &Launch) -> Result<Server, Failure> {
    let program = std::env::current_exe().context("finding the weir program")?;
    let mut child = Command::new(program)
        .arg("server")
        // Nothing is to be injected into the server, by an outer weir run or by anyone.
        .env_remove("LD_PRELOAD")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("starting the server process")?;
    let mut lifeline = child.stdin.take().expect("piped");
    let mut replies = BufReader::new(child.stdout.take().expect("piped"));
    // A server that died already shows in the reply, with its exit status.
    let _ = writeln!(lifeline, "{}", to_line(launch));
    let reply = match read_line(&mut replies) {
        Ok(reply) => reply,
        Err(e) => {
            let status = child.wait().context("waiting for the server")?;
            return Err(e.context(format!("the server gave up ({status})")).into());
        }
    };
    match reply {
        Reply::Ready(ready) => Ok(Server {
            child,
            lifeline,
            replies,
            ready,
        }),
        Reply::Lives { run_dir } => Err(Failure::AlreadyRunning {
            name: launch.name.clone().unwrap_or_default(),
            run_dir,
        }),
        Reply::Failed(why) => Err(anyhow!(why).into()),
    }
}

impl Server {
    /// Ends the lifeline and waits for the server's last words.
    pub fn stop(mut self) -> Result<Ended> {
        drop(self.lifeline);
        let ended = read_line(&mut self.replies);
        let status = self.child.wait().context("waiting for the server")?;
        ended.with_context(|| format!("the server was lost ({status})"))
    }

    /// Leaves the server to itself.
    pub fn detach(self) -> Ready {
        self.ready
    }
}

/// One line of JSON; a message of ours always has that form.
pub fn to_line(message: &impl Serialize) -> String {
    serde_json::to_string(message).expect("a message of ours")
}

/// Reads one line.
pub fn read_line<T: for<'de> Deserialize<'de>>(from: &mut impl BufRead) -> Result<T> {
    let mut line = String::new();
    anyhow::ensure!(from.read_line(&mut line)? > 0, "it said nothing");
    serde_json::from_str(&line).with_context(|| format!("it said {line:?}"))
}

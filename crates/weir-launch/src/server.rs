//! Starting a server process and hearing from it.
//!
//! ```text
//! weir run/start/agent                   weir server
//!   | --- stdin:  Launch, one JSON line --->|
//!   |                                       | claims its directories
//!   |<-- stdout: Bound ---------------------|   of several servers only: listens for others,
//!   | --- run directory: roster.json ------>|   waits until told of them
//!   | --- stdin:  Go ---------------------->|
//!   |                                       | serves
//!   |<-- stdout: Ready -------------------- |
//!   |     (weir start goes away here)       |
//!   | --- stdin:  Stay -------------------->|   or lives on until it is told to stop
//!   | --- stdin:  Stop, or end of file ---->| stops
//!   |<-- stdout: Ended -------------------- | exits
//! ```
//!
//! Both ends wait in read(2): no polling. The end of file on stdin is the lifeline of
//! `weir run` and of `weir agent`: the kernel closes the pipe however they end, so a server never
//! outlives them. If it ends without a word, and files were to be moved out of the instance at the end of the run, what the
//! server holds stays, as if it had been killed, for `weir recover`; so it does on all nodes if the first one's agent is
//! lost. The server of a `weir start` of one node does not look at its stdin after the
//! first line.

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{anyhow, Context, Result};
use serde::{Deserialize, Serialize};
use weir_core::roster::{Endpoint, InstanceId, Secret};
use weir_instance::directories::{Job, Label, Remains};
use weir_instance::report::Report;

use crate::error::LaunchError;
use crate::mount_right::MountRight;

/// The first message to a server.
#[derive(Debug, Serialize, Deserialize)]
pub struct Launch {
    /// The instance's name; `None` to choose one that is free.
    pub name: Option<String>,
    /// Its run directory, where it is to be that of a server that was killed.
    pub run_dir: Option<PathBuf>,
    /// The job that it belongs to.
    pub job: Job,
    /// Stop when stdin ends.
    pub lifeline: bool,
    /// The directory that everything in the instance is to be moved to at the end of the run.
    pub drain_to: Option<PathBuf>,
    /// The settings in force, as a weir.toml.
    pub settings: String,
    /// Its part among several servers.
    pub part: Option<ServerAssignment>,
}

/// A server's part in an instance of several.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerAssignment {
    /// Which life of the instance.
    pub instance: InstanceId,
    /// The secret that its servers prove to know.
    pub secret: Secret,
    /// This server's number.
    pub rank: u16,
    /// How many servers there are.
    pub servers: u16,
    /// The name of its node.
    pub host: String,
    /// How many servers share this machine's budgets; above 1 they meet on the loopback.
    pub share: u32,
    /// Where it listened, of one that was killed and is started again: it knows the others from
    /// then.
    pub again: Option<SocketAddr>,
    /// True if all servers were killed, and go on together with what they left.
    pub recovers: bool,
    /// The servers that do not: they count as lost.
    pub given_up: Vec<u16>,
}

/// The word that the roster is in the run directory.
#[derive(Debug, Serialize, Deserialize)]
pub struct RosterWritten {}

/// The last word to a server with a lifeline.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LifelineWord {
    /// It lives on without a lifeline.
    Stay,
    /// It stops, and nothing that it holds is needed any more.
    Stop,
}

/// A line that a server says.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ServerMessage {
    /// It listens for other servers.
    Bound {
        /// Where.
        address: SocketAddr,
        /// Its run directory.
        run_dir: PathBuf,
        /// Its libfabric endpoint, if it has one.
        endpoint: Option<Endpoint>,
    },
    /// Clients may come.
    Ready(ReadyInstance),
    /// An instance of that name lives.
    Lives {
        /// Its run directory.
        run_dir: PathBuf,
    },
    /// One of that name is dead, and this server does not go on with it.
    Dead(Box<Label>),
    /// There is no instance; one line says why.
    Failed(String),
    /// The last word, of one with a lifeline.
    Ended(ServerEnd),
}

/// An instance that runs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ReadyInstance {
    /// Its name.
    pub name: String,
    /// Its run directory: `WEIR_INSTANCE`.
    pub run_dir: PathBuf,
    /// All of its directories.
    pub dirs: Vec<PathBuf>,
    /// Where programs see it.
    pub mount: PathBuf,
    /// Where the kernel has mounted it, if it has.
    pub kernel_mount: Option<PathBuf>,
    /// Dead instances whose remains were cleared.
    pub cleared: Vec<String>,
    /// It goes on where a killed server left off.
    pub took_up: bool,
}

/// How a server ended.
#[derive(Debug, Serialize, Deserialize)]
pub struct ServerEnd {
    /// The report, if serving ended well; else the reason why not.
    pub result: Result<Report, String>,
    /// The server's log, if it was kept.
    pub log: Option<PathBuf>,
}

/// A server process that answered.
#[derive(Debug)]
pub struct Server {
    child: Child,
    lifeline: ChildStdin,
    words: BufReader<ChildStdout>,
    /// The instance.
    pub ready: ReadyInstance,
}

/// Starts a server process and tells it what it is; it has not answered yet.
pub fn spawn(launch: &Launch) -> Result<(Child, ChildStdin, ChildStdout)> {
    let program = std::env::current_exe().context("finding the weir program")?;
    let _right = MountRight::hand_on();
    let mut child = Command::new(program)
        .arg("server")
        // Nothing is to be injected into the server, by an outer weir run or by anyone.
        .env("LD_PRELOAD", "")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("starting the server process")?;
    let mut lifeline = child.stdin.take().expect("piped");
    let words = child.stdout.take().expect("piped");
    // A server that died already shows in its answer, with its exit status.
    let _ = writeln!(lifeline, "{}", to_line(launch));
    Ok((child, lifeline, words))
}

/// Starts the one server of an instance and waits until clients may come.
pub fn start(launch: &Launch) -> Result<Server, LaunchError> {
    let (mut child, lifeline, words) = spawn(launch)?;
    let mut words = BufReader::new(words);
    let word = match read_line(&mut words) {
        Ok(word) => word,
        Err(e) => {
            let status = child.wait().context("waiting for the server")?;
            return Err(e.context(format!("the server gave up ({status})")).into());
        }
    };
    let failure = match word {
        ServerMessage::Ready(ready) => {
            return Ok(Server {
                child,
                lifeline,
                words,
                ready,
            })
        }
        ServerMessage::Lives { run_dir } => LaunchError::AlreadyRunning {
            name: launch.name.clone().unwrap_or_default(),
            run_dir,
        },
        ServerMessage::Dead(label) => LaunchError::Dead {
            why: Remains::from_label(*label).describe(),
        },
        ServerMessage::Failed(why) => anyhow!(why).into(),
        other => anyhow!("the server said {other:?}").into(),
    };
    // Until it has ended its directories look like those of one that lives.
    drop(lifeline);
    child.wait().context("waiting for the server")?;
    Err(failure)
}

impl Server {
    /// Ends the lifeline and waits for the server's last words.
    pub fn stop(mut self) -> Result<ServerEnd> {
        // A server that is lost says so below.
        let _ = writeln!(self.lifeline, "{}", to_line(&LifelineWord::Stop));
        drop(self.lifeline);
        let word = read_line(&mut self.words);
        let status = self.child.wait().context("waiting for the server")?;
        match word.with_context(|| format!("the server was lost ({status})"))? {
            ServerMessage::Ended(ended) => Ok(ended),
            other => Err(anyhow!("the server said {other:?} ({status})")),
        }
    }

    /// Leaves a server with a lifeline to itself: it stays until `weir stop`.
    pub fn leave(mut self) -> Result<()> {
        writeln!(self.lifeline, "{}", to_line(&LifelineWord::Stay)).context("the server was lost")
    }

    /// Leaves a server without a lifeline to itself.
    pub fn detach(self) -> ReadyInstance {
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

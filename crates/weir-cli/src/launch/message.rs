//! What agents say to each other: one line of JSON a message, upwards with a mark before it.
//!
//! ```text
//!  above                                below
//!    | --- Charge ------------------------>|   who you are, who is below you, the secret
//!    |<-- Bound: where its servers are ----|
//!    | --- Roster ------------------------>|
//!    |<-- Ready ---------------------------|
//!    |          ... the instance runs ...  |
//!    |<-- Lost: a server died -------------|
//!    | --- Look, <-- Saw: for weir status  |
//!    | --- Work: for weir bench ---------->|   starts workers, which connect to who asks
//!    |<-- Stop: somebody asked there ------|
//!    | --- Stop -------------------------->|
//!    |<-- Ended: reports ------------------|
//!    | --- Farewell: the sum of them ----->|   exits
//! ```
//!
//! `Failed` may come instead of `Bound` or `Ready`; the end of file from above means Stop at any
//! time. What comes up without the mark is noise of shells and launchers, kept for an error
//! message.

use std::io::{BufRead, Read, Write};
use std::path::PathBuf;

use anyhow::{ensure, Context, Result};
use serde::{Deserialize, Serialize};
use weir_core::roster::{InstanceId, Member, Roster, Secret};

use super::errand::Errand;
use super::reach::Reach;
use super::server::{to_line, Ended, Ready};
use crate::instance::Report;

/// The longest line, bytes: a roster of the most members fits several times.
const LINE_MOST: u64 = 16 << 20;

/// Before each line upwards.
const MARK: &str = "weir-agent ";

/// A server of an instance and its node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seat {
    /// Its rank.
    pub rank: u16,
    /// As the batch system or the user calls its node.
    pub host: String,
}

/// Which seats are an agent's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Own {
    /// The first; the others are below it.
    First,
    /// The one whose host is this node; others were told the same.
    ByName,
    /// All: several servers on one machine.
    All,
}

/// What an agent is told first.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Charge {
    /// The version of weir that speaks; both ends must be one.
    pub version: String,
    /// Which life of the instance.
    pub instance: InstanceId,
    /// What its servers prove to know.
    pub secret: Secret,
    /// Its name.
    pub name: String,
    /// How many servers it has.
    pub servers: u16,
    /// The settings in force, as a weir.toml.
    pub settings: String,
    /// The seats of this agent and of those below.
    pub seats: Vec<Seat>,
    /// Which of them are its own.
    pub own: Own,
    /// How agents below are started.
    pub reach: Reach,
    /// How long all below may take to be ready, ms.
    pub deadline_ms: u64,
    /// Whether this is the first node's.
    pub root: bool,
    /// Whether it stops when what is above ends; only the root of `weir start` does not.
    pub lifeline: bool,
    /// Whether it stops on SIGTERM; not under `weir run`, whose command may still be saving.
    pub heed_signals: bool,
}

/// Downwards.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Down {
    /// The beginning.
    Charge(Box<Charge>),
    /// Who is where.
    Roster(Roster),
    /// End the servers.
    Stop,
    /// Start a worker of `weir bench` beside each of your servers.
    Work(Errand),
    /// Say what your servers are doing.
    Look(u64),
    /// What came of somebody's [`Up::Ask`].
    Answer(u64, Vec<Seen>),
    /// All have ended; what they did, summed up, if it is known.
    Farewell(Option<Box<Report>>),
}

/// Upwards.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Up {
    /// These servers listen.
    Bound(Vec<Member>),
    /// These servers take clients; of the dead, their remains were cleared.
    Ready(Vec<Seated>),
    /// It cannot be.
    Failed(Failed),
    /// A server died while the instance ran.
    Lost {
        /// Its rank and host.
        seat: Seat,
        /// How, as far as known.
        why: String,
    },
    /// Somebody asked for the end of the instance.
    Stop,
    /// Somebody asks what all servers are doing.
    Ask(u64),
    /// What one is doing, for [`Down::Look`].
    Saw(u64, Box<Seen>),
    /// These servers ended.
    Ended(Vec<(Seat, Ended)>),
}

/// A server that takes clients.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Seated {
    /// Which.
    pub seat: Seat,
    /// What it says of itself.
    pub ready: Ready,
}

/// What a server is doing.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Seen {
    /// Which.
    pub seat: Seat,
    /// What it says of itself, or why it does not.
    pub report: Result<Report, String>,
    /// How often it was killed and started again.
    #[serde(default)]
    pub restarts: u32,
}

/// Why an instance could not be started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failed {
    /// Where.
    pub host: String,
    /// Why.
    pub why: String,
    /// The run directory of the instance of that name which runs there already.
    pub lives: Option<PathBuf>,
}

/// A line upwards.
pub fn send_up(out: &mut impl Write, up: &Up) -> std::io::Result<()> {
    // One write, so that launchers that merge the output of many keep it whole.
    out.write_all(format!("{MARK}{}\n", to_line(up)).as_bytes())?;
    out.flush()
}

/// A line from below.
#[derive(Debug)]
pub enum Heard {
    /// A message.
    Message(Box<Up>),
    /// Something else.
    Noise(String),
}

/// Reads a line from below; `None` at the end.
pub fn hear(from: &mut impl BufRead) -> Result<Option<Heard>> {
    let Some(line) = read_text(from)? else {
        return Ok(None);
    };
    // Shells print before the first line, sometimes without ending their own.
    let Some(at) = line.find(MARK) else {
        return Ok(Some(Heard::Noise(line)));
    };
    let message = serde_json::from_str(&line[at + MARK.len()..]);
    let message = message.with_context(|| format!("it said {line:?}"))?;
    Ok(Some(Heard::Message(message)))
}

/// Reads a message from above; `None` at the end.
pub fn read_down(from: &mut impl BufRead) -> Result<Option<Down>> {
    let Some(line) = read_text(from)? else {
        return Ok(None);
    };
    Ok(Some(
        serde_json::from_str(&line).context("a message from above")?,
    ))
}

fn read_text(from: &mut impl BufRead) -> Result<Option<String>> {
    let mut line = Vec::new();
    from.take(LINE_MOST).read_until(b'\n', &mut line)?;
    if line.is_empty() {
        return Ok(None);
    }
    let whole = line.pop() == Some(b'\n');
    ensure!(whole, "a line was cut off, or is too long");
    Ok(Some(String::from_utf8_lossy(&line).into_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_told_from_noise() {
        let mut bytes = b"Welcome to node 7\nprompt> ".to_vec();
        send_up(&mut bytes, &Up::Stop).unwrap();
        let mut from = &bytes[..];
        let Some(Heard::Noise(noise)) = hear(&mut from).unwrap() else {
            panic!();
        };
        assert_eq!(noise, "Welcome to node 7");
        let Some(Heard::Message(up)) = hear(&mut from).unwrap() else {
            panic!();
        };
        assert!(matches!(*up, Up::Stop));
        assert!(hear(&mut from).unwrap().is_none());
    }

    #[test]
    fn what_cannot_be_understood_is_an_error() {
        assert!(hear(&mut &b"weir-agent {}\n"[..]).is_err());
        assert!(hear(&mut &b"cut"[..]).is_err());
        assert!(read_down(&mut &b"\"frobnicate\"\n"[..]).is_err());
        assert!(read_down(&mut &b""[..]).unwrap().is_none());
    }
}

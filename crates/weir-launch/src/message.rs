//! The messages of agents: one line of JSON each; upwards in short lines, with a mark.
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
//! `Failed` may come instead of `Bound` or `Ready`. The end of file from above without Stop means that what is
//! above was lost: what is to be moved out of the instance stays with its servers' directories, anything else is cleared. What comes up without the mark is noise of shells and launchers, kept for an error
//! message.
//!
//! ```text
//!  weir-agent 1f+{"saw":[12,{"seat":{"rank":3,"host":"n3"},"report":{"Ok":{"instance":[7,...
//!  weir-agent a7.{"lost":{"seat":{"rank":5,"host":"n5"},"why":"..."}}
//!  weir-agent 1f.66,0],"servers":8, ...}}}]}
//!             | ||
//!             | |the message, or a part of it
//!             | +: more of it follows, .: this is the end of it
//!             number of the agent that speaks, hexadecimal
//! ```
//!
//! srun, which merges what all tasks print, keeps lines of up to 1024 bytes whole and may put
//! another task's between the parts of longer ones (`MAX_MSG_LEN` and `_task_build_message` of
//! Slurm's slurmstepd).

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{BufRead, Read, Write};
use std::path::PathBuf;

use anyhow::{ensure, Context, Result};
use serde::{Deserialize, Serialize};
use weir_core::roster::{InstanceId, Member, Roster, Secret};
pub use weir_instance::directories::Job;
use weir_instance::report::Report;

use crate::hosted_server::{HostedServer, OwnServers};
use crate::reach::StartMethod;
use crate::server::{to_line, ReadyInstance, ServerEnd};
use crate::workers::WorkerInvitation;

/// The longest line, bytes: a roster of the most members fits several times.
const LINE_MOST: u64 = 16 << 20;

/// Before each line upwards.
const MARK: &str = "weir-agent ";

/// The longest part of a message in a line upwards, bytes; with what is before and behind it, it
/// is less than launchers keep whole.
const PART_MOST: usize = 960;

/// The first message to an agent.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct AgentAssignment {
    /// The version of weir that speaks; both ends must be one.
    pub version: String,
    /// Which life of the instance.
    pub instance: InstanceId,
    /// The secret that its servers prove to know.
    pub secret: Secret,
    /// Its name.
    pub name: String,
    /// The job that it belongs to.
    pub job: Job,
    /// How many servers it has.
    pub servers: u16,
    /// The directory that everything in it is to be moved to at the end of the run.
    pub drain_to: Option<PathBuf>,
    /// The settings in force, as a weir.toml.
    pub settings: String,
    /// The servers of this agent and of the agents below it.
    #[serde(rename = "seats")]
    pub assigned: Vec<HostedServer>,
    /// The ones among them that are its own.
    pub own: OwnServers,
    /// How agents below are started.
    pub reach: StartMethod,
    /// Its part in the life of the instance.
    pub task: AgentTask,
    /// How long all below may take to be ready, ms.
    pub deadline_ms: u64,
    /// True of the first node's agent.
    pub root: bool,
    /// It stops when the process above ends; only the root of `weir start` does not.
    pub lifeline: bool,
    /// It stops on SIGTERM; not under `weir run`, whose command may still be saving.
    pub heed_signals: bool,
}

/// The task of an agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AgentTask {
    /// It starts them.
    Start,
    /// All servers of the instance were killed: it has its own go on with what they left.
    Recover {
        /// The servers that cannot, with the addresses that they had. They count as lost.
        missing: Vec<Member>,
    },
    /// All servers were killed: it clears what they left.
    Clear,
}

/// Downwards.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MessageDown {
    /// The beginning.
    Charge(Box<AgentAssignment>),
    /// The servers and their addresses.
    Roster(Roster),
    /// End the servers.
    Stop,
    /// Live on without the process above, as under `weir start`.
    Stay,
    /// Start a worker beside each of your servers.
    Work(WorkerInvitation),
    /// Say what your servers are doing.
    Look(u64),
    /// The answer to an [`MessageUp::Ask`].
    Answer(u64, Vec<ServerReport>),
    /// All have ended; what they did, summed up, if it is known.
    Farewell(Option<Box<Report>>),
}

/// Upwards.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MessageUp {
    /// These servers listen.
    Bound(Vec<Member>),
    /// These servers take clients; of the dead, their remains were cleared.
    Ready(Vec<ReadyServer>),
    /// The start has failed.
    Failed(StartFailure),
    /// The remains of these servers are cleared, or the reason why they are not.
    Cleared(Vec<(HostedServer, Result<(), String>)>),
    /// A server died while the instance ran.
    Lost {
        /// Its rank and host.
        #[serde(rename = "seat")]
        server: HostedServer,
        /// How, as far as known.
        why: String,
    },
    /// Somebody asked for the end of the instance.
    Stop,
    /// Somebody asks what all servers are doing.
    Ask(u64),
    /// The state of one server, for [`MessageDown::Look`].
    Saw(u64, Box<ServerReport>),
    /// These servers ended.
    Ended(Vec<(HostedServer, ServerEnd)>),
}

/// A server that takes clients.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ReadyServer {
    /// Its rank and host.
    #[serde(rename = "seat")]
    pub server: HostedServer,
    /// Its own description.
    pub ready: ReadyInstance,
}

/// The state of a server.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ServerReport {
    /// Its rank and host.
    #[serde(rename = "seat")]
    pub server: HostedServer,
    /// Its report, or the reason why there is none.
    pub report: Result<Report, String>,
    /// How often it was killed and started again.
    #[serde(default)]
    pub restarts: u32,
}

/// Why an instance could not be started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartFailure {
    /// Where.
    pub host: String,
    /// Which server failed, if it was one.
    pub rank: Option<u16>,
    /// Why.
    pub why: String,
    /// The run directory of the instance of that name which runs there already.
    pub lives: Option<PathBuf>,
    /// An instance of that name is dead there, and nobody has cleared it.
    pub dead: bool,
}

/// A message upwards, of the agent with this number.
pub fn send_up(out: &mut impl Write, number: u64, up: &MessageUp) -> std::io::Result<()> {
    let text = to_line(up);
    let mut rest = &text[..];
    let mut lines = String::with_capacity(text.len() + 64);
    while !rest.is_empty() {
        let mut cut = rest.len().min(PART_MOST);
        while !rest.is_char_boundary(cut) {
            cut -= 1;
        }
        let (part, after) = rest.split_at(cut);
        let end = if after.is_empty() { '.' } else { '+' };
        let _ = writeln!(lines, "{MARK}{number:x}{end}{part}");
        rest = after;
    }
    out.write_all(lines.as_bytes())?;
    out.flush()
}

/// A line from below.
#[derive(Debug)]
pub enum AgentLine {
    /// A message.
    Message(Box<MessageUp>),
    /// Something else.
    Noise(String),
}

/// The reader of the lines of agents below, which may take turns.
#[derive(Debug)]
pub struct AgentLineReader<R> {
    from: R,
    /// The beginnings of messages, by who speaks.
    begun: BTreeMap<u64, String>,
}

impl<R: BufRead> AgentLineReader<R> {
    /// Nothing was heard yet.
    pub fn new(from: R) -> Self {
        let begun = BTreeMap::new();
        Self { from, begun }
    }

    /// Where it comes from, for what follows the last message.
    pub fn source(&mut self) -> &mut R {
        &mut self.from
    }

    /// Waits for a message, or a line that is none; `None` at the end. A message that cannot be
    /// understood is noise: those after it can be.
    ///
    /// # Errors
    ///
    /// Reading fails, or the parts of messages without an end are too long.
    pub fn hear(&mut self) -> Result<Option<AgentLine>> {
        loop {
            let Some(line) = read_text(&mut self.from)? else {
                return Ok(None);
            };
            let Some((number, whole, part)) = part_of(&line) else {
                return Ok(Some(AgentLine::Noise(line)));
            };
            let message = self.begun.entry(number).or_default();
            message.push_str(part);
            if !whole {
                let all: usize = self.begun.values().map(String::len).sum();
                ensure!(all as u64 <= LINE_MOST, "a message without an end");
                continue;
            }
            let message = self.begun.remove(&number).unwrap_or_default();
            return Ok(Some(match serde_json::from_str(&message) {
                Ok(message) => AgentLine::Message(message),
                Err(e) => AgentLine::Noise(format!("not understood ({e}): {message}")),
            }));
        }
    }
}

/// Returns the sender of a line, true if it is the last of its message, and its text.
fn part_of(line: &str) -> Option<(u64, bool, &str)> {
    // Shells print before the first line, sometimes without ending their own.
    let line = &line[line.find(MARK)? + MARK.len()..];
    let (number, part) = line.split_at(line.find(['+', '.'])?);
    let whole = part.starts_with('.');
    Some((u64::from_str_radix(number, 16).ok()?, whole, &part[1..]))
}

/// Reads a message from above; `None` at the end.
pub fn read_down(from: &mut impl BufRead) -> Result<Option<MessageDown>> {
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

    fn lines(number: u64, up: &MessageUp) -> Vec<String> {
        let mut bytes = Vec::new();
        send_up(&mut bytes, number, up).unwrap();
        let text = String::from_utf8(bytes).unwrap();
        text.lines().map(|line| format!("{line}\n")).collect()
    }

    fn lost(rank: u16, why: &str) -> MessageUp {
        let host = format!("n{rank}");
        MessageUp::Lost {
            server: HostedServer::new(rank, host),
            why: why.into(),
        }
    }

    #[test]
    fn messages_are_told_from_noise() {
        let text = format!(
            "Welcome to node 7\nprompt> {}",
            lines(3, &MessageUp::Stop).concat()
        );
        let mut ear = AgentLineReader::new(text.as_bytes());
        let Some(AgentLine::Noise(noise)) = ear.hear().unwrap() else {
            panic!();
        };
        assert_eq!(noise, "Welcome to node 7");
        let Some(AgentLine::Message(up)) = ear.hear().unwrap() else {
            panic!();
        };
        assert!(matches!(*up, MessageUp::Stop));
        assert!(ear.hear().unwrap().is_none());
    }

    #[test]
    fn long_messages_of_several_come_whole_though_their_lines_take_turns() {
        let why = ["\u{e4}".repeat(3000), "x".repeat(5000)];
        let [one, other] =
            [1, 2].map(|rank| lines(rank.into(), &lost(rank, &why[usize::from(rank) - 1])));
        assert!(one.iter().chain(&other).all(|line| line.len() <= 1000));
        let mut merged = vec!["motd\n".to_owned()];
        let count = one.len().max(other.len());
        for i in 0..count {
            merged.extend(one.get(i).into_iter().chain(other.get(i)).cloned());
        }
        let merged = merged.concat();
        let mut ear = AgentLineReader::new(merged.as_bytes());
        let (mut heard, mut noise) = (Vec::new(), 0);
        while let Some(what) = ear.hear().unwrap() {
            match what {
                AgentLine::Message(up) => heard.push(*up),
                AgentLine::Noise(_) => noise += 1,
            }
        }
        assert_eq!((heard.len(), noise), (2, 1));
        for up in heard {
            let MessageUp::Lost { server, why: said } = up else {
                panic!("{up:?}");
            };
            assert_eq!(said, why[usize::from(server.rank) - 1]);
        }
    }

    #[test]
    fn what_cannot_be_understood_holds_up_nothing_that_follows() {
        for garbage in [
            "weir-agent 1.{}\n",
            "weir-agent \n",
            "weir-agent x.1\n",
            "weir-agent 10000000000000000.1\n",
        ] {
            let text = [garbage.to_owned(), lines(1, &MessageUp::Stop).concat()].concat();
            let mut ear = AgentLineReader::new(text.as_bytes());
            assert!(matches!(ear.hear().unwrap(), Some(AgentLine::Noise(_))));
            assert!(matches!(ear.hear().unwrap(), Some(AgentLine::Message(_))));
        }
        assert!(AgentLineReader::new(&b"cut"[..]).hear().is_err());
        assert!(read_down(&mut &b"\"frobnicate\"\n"[..]).is_err());
        assert!(read_down(&mut &b""[..]).unwrap().is_none());
    }

    #[test]
    fn messages_without_an_end_are_not_kept_for_ever() {
        let part = format!("weir-agent 1+{}\n", "x".repeat(1 << 20));
        let text = part.repeat(17);
        assert!(AgentLineReader::new(text.as_bytes()).hear().is_err());
    }
}

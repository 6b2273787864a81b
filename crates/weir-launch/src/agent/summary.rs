//! Requests at the socket of an agent, and the summary of an instance that ended.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{ensure, Context, Result};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use weir_instance::errln;
use weir_instance::report;
use weir_instance::report::Report;

use crate::hosted_server::HostedServer;
use crate::message::ServerReport;
use crate::server::{to_line, ServerEnd};
use crate::workers::WorkerInvitation;

/// The agent's socket in the run directory.
pub const SOCKET: &str = "agent.sock";

/// How long who connects may take to ask.
const PATIENCE: Duration = Duration::from_secs(5);

/// The longest invitation, bytes.
const INVITATION_BYTES: u64 = 4096;

/// How long an agent may take to say what all are doing; it waits 3 s for them itself.
const ANSWER: Duration = Duration::from_secs(10);

/// The answer of an agent to a request for the end of the instance.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Summary {
    /// The sum of the reports, if all servers gave one.
    pub report: Option<Report>,
    /// The problems, a line each.
    pub problems: Vec<String>,
    /// How many servers did not end in order.
    pub lost: usize,
}

impl Summary {
    pub(super) fn sum(ended: &[(HostedServer, ServerEnd)], lost: &[String]) -> Self {
        let (mut problems, mut failed) = (lost.to_vec(), lost.len());
        let mut reports = Vec::new();
        for (server, ended) in ended {
            match &ended.result {
                Ok(report) => reports.push(report),
                Err(why) => {
                    failed += 1;
                    problems.push(format!("server {} on {}: {why}", server.rank, server.host));
                }
            }
            if let Some(log) = &ended.log {
                let log = log.display();
                problems.push(format!("the log of the server on {} is {log}", server.host));
            }
        }
        Self {
            report: report::sum(&reports),
            problems,
            lost: failed,
        }
    }
}

/// A request at the socket, a line.
#[derive(Clone, Debug)]
pub(super) enum Request {
    /// To end the instance.
    Stop,
    /// Asks for the state of all servers.
    Status,
    /// To start a worker beside each server.
    Employ(WorkerInvitation),
}

impl Request {
    /// Reads the request of a connection, which has a moment to send it.
    pub(super) fn read(stream: UnixStream) -> Option<(Self, UnixStream)> {
        stream.set_read_timeout(Some(PATIENCE)).ok()?;
        let mut word = [0; 5];
        (&stream).read_exact(&mut word).ok()?;
        let request = match &word {
            b"stop\n" => Self::Stop,
            b"look\n" => Self::Status,
            b"work\n" => {
                let mut line = String::new();
                let mut invitation = BufReader::new((&stream).take(INVITATION_BYTES));
                invitation.read_line(&mut line).ok()?;
                Self::Employ(serde_json::from_str(&line).ok()?)
            }
            _ => return None,
        };
        Some((request, stream))
    }
}

/// Asks the agent at `run_dir` to end the whole instance; `None` if there is no agent.
pub fn stop(run_dir: &Path) -> Result<Option<Summary>> {
    ask(run_dir, "stop\n", None)
}

/// Asks the agent at `run_dir` what all servers are doing; `None` if there is no agent.
pub fn status(run_dir: &Path) -> Result<Option<Vec<ServerReport>>> {
    ask(run_dir, "look\n", Some(ANSWER))
}

/// Has the agent at `run_dir` start a worker beside each server of the instance; `false` if there is no
/// agent, or it is not the first node's.
pub fn employ(run_dir: &Path, invitation: &WorkerInvitation) -> Result<bool> {
    let request = format!("work\n{}\n", to_line(invitation));
    let answer: Option<EmployAnswer> = ask(run_dir, &request, Some(ANSWER))?;
    Ok(answer.is_some_and(|answer| answer.employed))
}

/// The answer to [`Request::Employ`].
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct EmployAnswer {
    /// True if workers are on their way.
    pub employed: bool,
}

/// `patience` is for an agent that does not answer at all.
fn ask<T: DeserializeOwned>(
    run_dir: &Path,
    request: &str,
    patience: Option<Duration>,
) -> Result<Option<T>> {
    let Ok(stream) = UnixStream::connect(run_dir.join(SOCKET)) else {
        return Ok(None);
    };
    stream.set_read_timeout(patience)?;
    (&stream).write_all(request.as_bytes())?;
    let mut answer = BufReader::new(stream);
    loop {
        let mut line = String::new();
        answer
            .read_line(&mut line)
            .context("the instance's agent on this node does not answer")?;
        ensure!(!line.is_empty(), "the instance's agent was lost");
        if line.starts_with(['{', '[']) {
            return Ok(Some(serde_json::from_str(&line)?));
        }
        // Whom it waits for.
        errln!("weir: {}", line.trim_end());
    }
}

//! A process below an agent: what it says, what else comes out of it, and what it is told.
//!
//! Each has a thread that writes (a launcher that hangs must not hold up the others), one that
//! reads messages, and one that reads its standard error. Under pbsdsh, whose programs have no
//! standard input, the agent connects back ([`Link::joined`]), and the pipes carry only noise.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::net::{Shutdown, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{channel, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use nix::sys::wait::{waitid, Id, WaitPidFlag};
use nix::unistd::Pid;

use crate::hosted_server::HostedServer;
use crate::message::{AgentLine, AgentLineReader, MessageDown, MessageUp};
use crate::reach::AgentBranch;
use crate::server::to_line;

/// How many lines of noise are kept for an error message, and how long ones, characters.
const NOISE_LINES: usize = 12;
const NOISE_CHARS: usize = 300;

/// How long the end of noise is waited for after that of messages.
const NOISE_END: Duration = Duration::from_millis(200);

/// The last of what a process printed that is no message.
#[derive(Debug, Default)]
struct OtherOutput(VecDeque<String>);

/// Where messages are written to, once that is known.
type MessageSink = Box<dyn Write + Send>;

/// The receiver of messages, and of `None` at the end.
type MessageHandler = Arc<dyn Fn(Option<MessageUp>) + Send + Sync>;

/// A process below.
pub struct Link {
    /// The servers that it answers for.
    pub servers: Vec<HostedServer>,
    /// Those of them that have done what is waited for now: see [`Link::awaited`].
    pub done: Vec<u16>,
    /// It said something, so there is an agent.
    pub heard: bool,
    /// It says no more.
    pub closed: bool,
    child: Child,
    name: String,
    down: Option<Sender<Arc<str>>>,
    sink: Option<Sender<MessageSink>>,
    has_joined: Arc<AtomicBool>,
    tell: MessageHandler,
    noise: Arc<Mutex<OtherOutput>>,
}

impl Link {
    /// Starts it. `tell` hears its messages, and `None` at the end. One that is to join has no
    /// standard input; what it is told waits until it has.
    pub fn start<F>(branch: &AgentBranch, tell: F) -> Result<Self>
    where
        F: Fn(Option<MessageUp>) + Send + Sync + 'static,
    {
        let (program, arguments) = branch.command.split_first().context("no command")?;
        let piped = || Stdio::piped();
        let mut child = Command::new(program)
            .args(arguments)
            .env("LD_PRELOAD", "")
            .stdin(if branch.joins { Stdio::null() } else { piped() })
            .stdout(piped())
            .stderr(piped())
            .spawn()
            .with_context(|| program.clone())?;
        let (down, lines) = channel();
        let (sink, sinks) = channel::<MessageSink>();
        if let Some(stdin) = child.stdin.take() {
            let _ = sink.send(Box::new(stdin));
        }
        spawn("weir-tell", move || pass_on(&lines, &sinks))?;
        let link = Self {
            servers: branch.servers.clone(),
            done: Vec::new(),
            heard: false,
            closed: false,
            name: program.clone(),
            down: Some(down),
            sink: Some(sink),
            has_joined: Arc::default(),
            tell: Arc::new(tell),
            noise: Arc::default(),
            child,
        };
        link.listen()
    }

    /// Starts the threads that hear it.
    fn listen(mut self) -> Result<Self> {
        let stdout = BufReader::new(self.child.stdout.take().expect("piped"));
        let stderr = BufReader::new(self.child.stderr.take().expect("piped"));
        let pid = Pid::from_raw(i32::try_from(self.child.id()).context("a pid")?);
        let (over, noise_over) = channel::<()>();
        let noise = Arc::clone(&self.noise);
        spawn("weir-noise", move || {
            listen_to_noise(stderr, &noise);
            drop(over);
        })?;
        let (noise, tell) = (Arc::clone(&self.noise), Arc::clone(&self.tell));
        let has_joined = Arc::clone(&self.has_joined);
        spawn("weir-hear", move || {
            listen(stdout, &noise, &*tell);
            // A launcher may close its output early. Who waits for its status does so later.
            let _ = waitid(Id::Pid(pid), WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT);
            // The reason is often the last line of the other pipe, which somebody else may
            // hold open (ssh leaves it to a ControlMaster): not waited for long.
            let _ = noise_over.recv_timeout(NOISE_END);
            if !has_joined.load(Ordering::SeqCst) {
                tell(None);
            }
        })?;
        Ok(self)
    }

    /// It came by another way, which counts from now on.
    pub fn joined(&mut self, stream: TcpStream) -> Result<()> {
        let Some(sink) = self.sink.take() else {
            return Ok(());
        };
        self.has_joined.store(true, Ordering::SeqCst);
        let from = BufReader::new(stream.try_clone()?);
        let _ = sink.send(Box::new(WriteHalf(stream)));
        let (noise, tell) = (Arc::clone(&self.noise), Arc::clone(&self.tell));
        spawn("weir-joined", move || {
            listen(from, &noise, &*tell);
            tell(None);
        })
    }

    /// Sends a message to the agent below.
    pub fn send(&self, message: &MessageDown) {
        self.send_line(&to_line(message).into());
    }

    /// As [`Self::send`], for a message that is a line already.
    pub fn send_line(&self, line: &Arc<str>) {
        if let Some(down) = &self.down {
            let _ = down.send(Arc::clone(line));
        }
    }

    /// Ends its standard input, after what was told before.
    pub fn hang_up(&mut self) {
        self.down = None;
        self.sink = None;
    }

    /// The first server that has not done what is waited for.
    pub fn awaited(&self) -> Option<&HostedServer> {
        self.servers
            .iter()
            .find(|server| !self.done.contains(&server.rank))
    }

    /// The last lines that it printed, for an error message.
    pub fn last_output(&self) -> String {
        let noise = self.noise.lock().unwrap_or_else(PoisonError::into_inner);
        let lines: Vec<String> = noise.0.iter().map(|line| format!("\n  | {line}")).collect();
        lines.concat()
    }

    /// How it ended; to be asked when it says no more.
    pub fn describe_end(&mut self) -> String {
        let status = self.child.wait();
        let status = status.map_or_else(|e| e.to_string(), |status| status.to_string());
        format!("{} ended with {status}{}", self.name, self.last_output())
    }

    /// Ends it, whatever it does.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The way down of a connection; dropped, the other end reads its end, as of a pipe.
struct WriteHalf(TcpStream);

impl Write for WriteHalf {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.0.flush()
    }
}

impl Drop for WriteHalf {
    fn drop(&mut self) {
        let _ = self.0.shutdown(Shutdown::Write);
    }
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<()> {
    let builder = std::thread::Builder::new().name(name.into());
    builder
        .stack_size(256 << 10)
        .spawn(run)
        .map(drop)
        .context("starting a thread")
}

/// Writes lines to the sink, once there is one; closes it when there are no more.
fn pass_on(lines: &Receiver<Arc<str>>, sinks: &Receiver<MessageSink>) {
    let Ok(mut sink) = sinks.recv() else {
        return;
    };
    for line in lines {
        // One that went away says so by its end.
        if writeln!(sink, "{line}")
            .and_then(|()| sink.flush())
            .is_err()
        {
            return;
        }
    }
}

fn listen(
    from: impl BufRead,
    noise: &Mutex<OtherOutput>,
    tell: &(dyn Fn(Option<MessageUp>) + Send + Sync),
) {
    let mut ear = AgentLineReader::new(from);
    loop {
        match ear.hear() {
            Ok(Some(AgentLine::Message(up))) => tell(Some(*up)),
            Ok(Some(AgentLine::Noise(line))) => keep(noise, &line),
            Ok(None) => return,
            Err(e) => return keep(noise, &format!("{e:#}")),
        }
    }
}

fn listen_to_noise(mut from: impl BufRead, noise: &Mutex<OtherOutput>) {
    let mut line = Vec::new();
    while from.read_until(b'\n', &mut line).is_ok_and(|n| n > 0) {
        keep(noise, String::from_utf8_lossy(&line).trim_end());
        line.clear();
    }
}

/// Keeps a line.
fn keep(noise: &Mutex<OtherOutput>, line: &str) {
    let line: String = line.chars().take(NOISE_CHARS).collect();
    let mut noise = noise.lock().unwrap_or_else(PoisonError::into_inner);
    noise.0.push_back(line);
    if noise.0.len() > NOISE_LINES {
        noise.0.pop_front();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hosted_server::OwnServers;
    use crate::message::send_up;
    use crate::reach::StartMethod;
    use std::sync::mpsc::Receiver;

    fn shell(script: &str) -> (Link, Receiver<Option<MessageUp>>) {
        let branch = AgentBranch {
            command: ["sh", "-c", script].map(str::to_owned).to_vec(),
            servers: vec![HostedServer::new(1, "a".into())],
            own: OwnServers::First,
            reach: StartMethod::Nowhere,
            joins: false,
        };
        let (tell, heard) = channel();
        let link = Link::start(&branch, move |up| {
            let _ = tell.send(up);
        });
        (link.unwrap(), heard)
    }

    #[test]
    fn messages_come_through_and_noise_is_kept() {
        let mut line = Vec::new();
        send_up(&mut line, 1, &MessageUp::Stop).unwrap();
        let line = String::from_utf8(line).unwrap();
        let script = format!("echo hello; echo oops >&2; echo '{}'; exit 3", line.trim());
        let (mut link, heard) = shell(&script);
        assert!(matches!(heard.recv().unwrap(), Some(MessageUp::Stop)));
        assert!(heard.recv().unwrap().is_none());
        let end = link.describe_end();
        for part in ["exit status: 3", "| hello", "| oops"] {
            assert!(end.contains(part), "{end}");
        }
    }

    #[test]
    fn one_that_does_not_read_holds_nobody_up() {
        let (mut link, heard) = shell("exec sleep 1000");
        let long: Arc<str> = "x".repeat(1 << 20).into();
        link.send_line(&long);
        link.send_line(&long);
        link.kill();
        assert!(heard.recv().unwrap().is_none());
    }
}

//! A process below an agent: what it says, what else comes out of it, and what it is told.
//!
//! Each has a thread that writes (a launcher that hangs must not hold up the others), one that
//! reads messages, and one that reads its standard error.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{channel, Sender};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result};

use super::message::{hear, Down, Heard, Seat, Up};
use super::reach::Branch;
use super::server::to_line;

/// How many lines of noise are kept for an error message, and how long ones, characters.
const NOISE_LINES: usize = 12;
const NOISE_CHARS: usize = 300;

/// The last of what a process printed that is no message.
#[derive(Debug, Default)]
struct Noise(VecDeque<String>);

/// A process below.
#[derive(Debug)]
pub struct Link {
    /// The seats that it answers for.
    pub seats: Vec<Seat>,
    /// Those of them that have done what is waited for now: see [`Link::awaited`].
    pub done: Vec<u16>,
    /// Whether it said anything: there is an agent.
    pub heard: bool,
    /// Whether it says no more.
    pub closed: bool,
    child: Child,
    name: String,
    down: Option<Sender<Arc<str>>>,
    noise: Arc<Mutex<Noise>>,
}

impl Link {
    /// Starts it. `tell` hears its messages, and `None` at the end.
    pub fn start<F>(branch: &Branch, tell: F) -> Result<Self>
    where
        F: Fn(Option<Up>) + Send + 'static,
    {
        let (program, arguments) = branch.command.split_first().context("no command")?;
        let mut child = Command::new(program)
            .args(arguments)
            .env_remove("LD_PRELOAD")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| program.clone())?;
        let noise = Arc::new(Mutex::new(Noise::default()));
        let stdin = child.stdin.take().expect("piped");
        let stdout = BufReader::new(child.stdout.take().expect("piped"));
        let stderr = BufReader::new(child.stderr.take().expect("piped"));
        let for_errors = Arc::clone(&noise);
        // Ends first what may hold the reason that the end of messages makes asked for.
        let errors = spawn("weir-noise", move || listen_to_noise(stderr, &for_errors))?;
        let for_messages = Arc::clone(&noise);
        spawn("weir-hear", move || {
            listen(stdout, &for_messages, &tell);
            let _ = errors.join();
            tell(None);
        })?;
        let (down, lines) = channel::<Arc<str>>();
        spawn("weir-tell", move || {
            let mut stdin = stdin;
            for line in lines {
                // One that went away says so by its end.
                if writeln!(stdin, "{line}")
                    .and_then(|()| stdin.flush())
                    .is_err()
                {
                    return;
                }
            }
        })?;
        Ok(Self {
            seats: branch.seats.clone(),
            done: Vec::new(),
            heard: false,
            closed: false,
            child,
            name: program.clone(),
            down: Some(down),
            noise,
        })
    }

    /// Tells it something.
    pub fn tell(&self, message: &Down) {
        self.tell_line(&to_line(message).into());
    }

    /// The same, of what is a line already.
    pub fn tell_line(&self, line: &Arc<str>) {
        if let Some(down) = &self.down {
            let _ = down.send(Arc::clone(line));
        }
    }

    /// Ends its standard input, after what was told before.
    pub fn hang_up(&mut self) {
        self.down = None;
    }

    /// The first seat that has not done what is waited for.
    pub fn awaited(&self) -> Option<&Seat> {
        self.seats
            .iter()
            .find(|seat| !self.done.contains(&seat.rank))
    }

    /// What it printed last, for an error message.
    pub fn last_output(&self) -> String {
        let noise = self.noise.lock().unwrap_or_else(PoisonError::into_inner);
        let lines: Vec<String> = noise.0.iter().map(|line| format!("\n  | {line}")).collect();
        lines.concat()
    }

    /// How it ended; to be asked when it says no more.
    pub fn end(&mut self) -> String {
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

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<std::thread::JoinHandle<()>> {
    let builder = std::thread::Builder::new().name(name.into());
    builder
        .stack_size(256 << 10)
        .spawn(run)
        .context("starting a thread")
}

fn listen(mut from: impl BufRead, noise: &Mutex<Noise>, tell: &impl Fn(Option<Up>)) {
    loop {
        match hear(&mut from) {
            Ok(Some(Heard::Message(up))) => tell(Some(*up)),
            Ok(Some(Heard::Noise(line))) => keep(noise, &line),
            Ok(None) => return,
            Err(e) => return keep(noise, &format!("{e:#}")),
        }
    }
}

fn listen_to_noise(mut from: impl BufRead, noise: &Mutex<Noise>) {
    let mut line = Vec::new();
    while from.read_until(b'\n', &mut line).is_ok_and(|n| n > 0) {
        keep(noise, String::from_utf8_lossy(&line).trim_end());
        line.clear();
    }
}

/// Keeps a line.
fn keep(noise: &Mutex<Noise>, line: &str) {
    let line: String = line.chars().take(NOISE_CHARS).collect();
    let mut noise = noise.lock().unwrap_or_else(PoisonError::into_inner);
    noise.0.push_back(line);
    if noise.0.len() > NOISE_LINES {
        noise.0.pop_front();
    }
}

#[cfg(test)]
mod tests {
    use super::super::message::{send_up, Own};
    use super::super::reach::Reach;
    use super::*;
    use std::sync::mpsc::Receiver;

    fn shell(script: &str) -> (Link, Receiver<Option<Up>>) {
        let branch = Branch {
            command: ["sh", "-c", script].map(str::to_owned).to_vec(),
            seats: vec![Seat {
                rank: 1,
                host: "a".into(),
            }],
            own: Own::First,
            reach: Reach::Nowhere,
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
        send_up(&mut line, &Up::Stop).unwrap();
        let line = String::from_utf8(line).unwrap();
        let script = format!("echo hello; echo oops >&2; echo '{}'; exit 3", line.trim());
        let (mut link, heard) = shell(&script);
        assert!(matches!(heard.recv().unwrap(), Some(Up::Stop)));
        assert!(heard.recv().unwrap().is_none());
        let end = link.end();
        for part in ["exit status: 3", "| hello", "| oops"] {
            assert!(end.contains(part), "{end}");
        }
    }

    #[test]
    fn one_that_does_not_read_holds_nobody_up() {
        let (mut link, heard) = shell("exec sleep 1000");
        let long: Arc<str> = "x".repeat(1 << 20).into();
        link.tell_line(&long);
        link.tell_line(&long);
        link.kill();
        assert!(heard.recv().unwrap().is_none());
    }
}

//! One node's part in an instance of several servers: `weir agent`.
//!
//! It starts its own server and the agents below, passes addresses up and the roster down, and
//! stays until the instance ends. Everything that happens is an event of one queue.
//!
//! Invariants:
//! - until all is ready, any failure ends everything below and is told above with the name of
//!   its node; after that, a server that is killed is started again, unless it had not become
//!   ready: then its death is told, and the others go on;
//! - what is above ends, then this ends its servers and what is below; only the agent of the
//!   first node under `weir start` lives on, until it is asked (`agent.sock`, SIGTERM).
//!
//! | file | subject |
//! | --- | --- |
//! | `begin` | from nothing to ready |
//! | `hear` | what servers and the agents below say |
//! | `look` | what all servers are doing |
//! | `summary` | what is asked at the socket, how it ended |
//! | `seat` | which node this is |

mod begin;
mod hear;
mod look;
mod seat;
mod summary;

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin};
use std::sync::mpsc::{channel, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use anyhow::{ensure, Context, Result};
use nix::sys::signal::{SigSet, Signal};
use weir_core::roster::{Member, Roster};

use super::errand::{Errand, Task};
use super::join;
use super::link::Link;
use super::message::{read_down, send_up, Charge, Down, Failed, Seat, Seated, Seen, Up};
use super::root::random;
use super::server::{to_line, Ended, Ready, Word};
use crate::instance::Report;
use crate::lock::Lock;
use crate::place::remains::clear_dirs;
use look::Looks;
pub use seat::find_here;
use summary::Request;
pub use summary::{status, stop, Summary};

/// How long what was given up may take to end by itself.
const GIVE_UP: Duration = Duration::from_secs(10);

/// How long the end of servers is waited for in silence.
const SAY_AFTER: Duration = Duration::from_secs(5);

/// Something that happened.
enum Event {
    Above(Result<Option<Down>>),
    Server(usize, Option<Word>),
    Link(usize, Option<Up>),
    Signal(Signal),
    Asked(Request, UnixStream),
    Seen(u64, Seen),
    LookOver(u64),
    JobOver,
    Joined(u16, TcpStream),
}

/// That all have ended; the report is of the root.
struct Farewell {
    report: Option<Box<Report>>,
}

/// A server of this node.
struct Local {
    seat: Seat,
    child: Child,
    lifeline: Option<ChildStdin>,
    run_dir: Option<PathBuf>,
    bound: bool,
    ready: Option<Ready>,
    /// Its directories, once it was ready.
    dirs: Vec<PathBuf>,
    /// What keeps its directories while it does not live.
    kept: Vec<Lock>,
    ended: Option<Ended>,
    closed: bool,
    /// How often it was killed and started again.
    restarts: u32,
}

struct Agent {
    /// Its own among all agents, before it knows its rank; drawn at random.
    number: u64,
    charge: Charge,
    locals: Vec<Local>,
    links: Vec<Link>,
    members: Vec<Member>,
    seated: Vec<Seated>,
    roster: Option<Roster>,
    ended: Vec<(Seat, Ended)>,
    lost: Vec<String>,
    farewell: Option<Farewell>,
    asked: Vec<UnixStream>,
    looks: Looks,
    started: bool,
    stopping: bool,
    above_closed: bool,
    up: Box<dyn Write + Send>,
    invitation: Option<join::Invited>,
    events: Receiver<Event>,
    tell: Sender<Event>,
}

/// `weir agent`: told what it is on standard input, or by the file of an invitation.
pub fn run(invitation: Option<&Path>) -> Result<()> {
    let (tell, events) = channel();
    watch_signals(tell.clone())?;
    match invitation {
        None => {
            let mut above = BufReader::new(std::io::stdin());
            let charge = match read_down(&mut above)? {
                Some(Down::Charge(charge)) => *charge,
                _ => anyhow::bail!("weir agent is started by weir run and weir start"),
            };
            act(charge, above, Box::new(std::io::stdout()), events, tell)
        }
        Some(file) => {
            let (charge, above, up) = join::join(file)?;
            act(charge, BufReader::new(above), Box::new(up), events, tell)
        }
    }
}

fn act(
    charge: Charge,
    mut above: impl BufRead + Send + 'static,
    up: Box<dyn Write + Send>,
    events: Receiver<Event>,
    tell: Sender<Event>,
) -> Result<()> {
    let own = env!("CARGO_PKG_VERSION");
    ensure!(
        charge.version == own,
        "weir here is of version {own}, on the first node of {}",
        charge.version
    );
    if charge.root {
        // A terminal's keys and hangups are not for it. Fails for who leads a group: as good.
        let _ = nix::unistd::setsid();
    }
    let to = tell.clone();
    spawn("weir-above", move || loop {
        let down = read_down(&mut above);
        let over = !matches!(down, Ok(Some(_)));
        if to.send(Event::Above(down)).is_err() || over {
            return;
        }
    })?;
    let number = u64::from_ne_bytes(random()?);
    let mut agent = Agent::new(number, charge, up, events, tell);
    match agent.begin() {
        Ok(()) => agent.live(),
        Err(failed) => {
            agent.say(&Up::Failed(failed));
            agent.give_up();
        }
    }
    Ok(())
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<()> {
    let builder = std::thread::Builder::new().name(name.into());
    builder
        .stack_size(256 << 10)
        .spawn(run)
        .map(drop)
        .context("starting a thread")
}

/// Reads signals in a thread; the others inherit that they are blocked. Children do too, which
/// for servers is as it should be, and launchers are ended by their pipes.
fn watch_signals(tell: Sender<Event>) -> Result<()> {
    let signals: SigSet = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP]
        .into_iter()
        .collect();
    signals.thread_block()?;
    spawn("weir-signals", move || {
        while let Ok(signal) = signals.wait() {
            if tell.send(Event::Signal(signal)).is_err() {
                return;
            }
        }
    })
}

impl Agent {
    fn new(
        number: u64,
        charge: Charge,
        up: Box<dyn Write + Send>,
        events: Receiver<Event>,
        tell: Sender<Event>,
    ) -> Self {
        Self {
            number,
            charge,
            locals: Vec::new(),
            links: Vec::new(),
            members: Vec::new(),
            seated: Vec::new(),
            roster: None,
            ended: Vec::new(),
            lost: Vec::new(),
            farewell: None,
            asked: Vec::new(),
            looks: Looks::default(),
            started: false,
            stopping: false,
            above_closed: false,
            up,
            invitation: None,
            events,
            tell,
        }
    }

    /// Tells what is above. That it is gone shows by the end of what it sends.
    fn say(&mut self, up: &Up) {
        let _ = send_up(&mut self.up, self.number, up);
    }

    /// Takes note of one event.
    fn take(&mut self, event: Event) -> Result<(), Failed> {
        match event {
            Event::Above(Ok(Some(Down::Roster(roster)))) => self.roster = Some(roster),
            Event::Above(Ok(Some(Down::Stop))) => self.stopping = true,
            Event::Above(Ok(Some(Down::Farewell(report)))) => {
                self.farewell = Some(Farewell { report });
            }
            Event::Above(Ok(Some(Down::Look(id)))) => self.look(id),
            Event::Above(Ok(Some(Down::Work(errand)))) => self.work(&errand),
            Event::Above(Ok(Some(Down::Answer(id, seen)))) => self.answered(id, seen),
            Event::Above(Ok(Some(Down::Charge(_)))) => {}
            Event::Above(Ok(None) | Err(_)) => {
                self.above_closed = true;
                self.stopping |= self.charge.lifeline || !self.started;
            }
            Event::Server(index, word) => return self.heard_server(index, word),
            Event::Link(index, up) => return self.heard_link(index, up),
            Event::Signal(signal) => {
                if self.charge.heed_signals || !self.started {
                    eprintln!("stopping on {signal}");
                    self.ask_to_stop();
                }
            }
            Event::Joined(rank, stream) => {
                let link = self
                    .links
                    .iter_mut()
                    .find(|link| link.seats[0].rank == rank);
                if let Some(Err(e)) = link.map(|link| link.joined(stream)) {
                    eprintln!("{e:#}");
                }
            }
            Event::JobOver => {
                eprintln!("stopping with the job");
                self.ask_to_stop();
            }
            Event::Asked(Request::Stop, stream) => {
                self.asked.push(stream);
                self.ask_to_stop();
            }
            Event::Asked(Request::Status, stream) => self.asked_for_status(stream),
            Event::Seen(id, seen) => self.saw(id, seen),
            Event::LookOver(id) => self.close_look(id),
        }
        Ok(())
    }

    /// Has a worker started beside each server. One that cannot be is missed by who waits for it.
    fn work(&self, errand: &Errand) {
        let down = Down::Work(errand.clone());
        self.links.iter().for_each(|link| link.tell(&down));
        for local in &self.locals {
            let Some(run_dir) = local.run_dir.clone() else {
                continue;
            };
            let task = Task {
                errand: errand.clone(),
                number: local.seat.rank,
                run_dir,
            };
            let tended = task.start(&[]).and_then(|mut child| {
                spawn("weir-worker", move || {
                    let _ = child.wait();
                })
            });
            if let Err(e) = tended {
                eprintln!("a worker beside server {}: {e:#}", local.seat.rank);
            }
        }
    }

    /// The whole instance is to stop: the root knows how.
    fn ask_to_stop(&mut self) {
        if self.charge.root {
            self.stopping = true;
        } else {
            self.say(&Up::Stop);
        }
    }

    /// From ready to the end.
    fn live(&mut self) {
        for link in &mut self.links {
            link.done.clear();
        }
        while !self.stopping {
            let Ok(event) = self.events.recv() else {
                return;
            };
            let _ = self.take(event);
        }
        self.stop();
    }

    /// Ends what is here and below, tells what came of it, and leaves.
    fn stop(&mut self) {
        self.links.iter().for_each(|link| link.tell(&Down::Stop));
        self.locals
            .iter_mut()
            .for_each(|local| local.lifeline = None);
        self.take_until(|agent| {
            agent.locals.iter().all(|local| local.closed)
                && agent
                    .links
                    .iter()
                    .all(|link| link.closed || link.awaited().is_none())
        });
        for local in &mut self.locals {
            match local.ended.take() {
                Some(ended) => self.ended.push((local.seat.clone(), ended)),
                None => clear_lost(local),
            }
        }
        let ended = std::mem::take(&mut self.ended);
        let summary = if self.charge.root {
            Summary::of(&ended, &self.lost)
        } else {
            self.say(&Up::Ended(ended));
            self.take_until(|agent| agent.farewell.is_some() || agent.above_closed);
            Summary {
                report: self
                    .farewell
                    .take()
                    .and_then(|all| all.report.map(|report| *report)),
                problems: self.lost.clone(),
                lost: self.lost.len(),
            }
        };
        let farewell = Down::Farewell(summary.report.clone().map(Box::new));
        self.farewell = Some(Farewell { report: None });
        for link in &mut self.links {
            link.tell(&farewell);
            link.hang_up();
        }
        self.take_until(|agent| agent.links.iter().all(|link| link.closed));
        for asked in &mut self.asked {
            let _ = writeln!(asked, "{}", to_line(&summary));
        }
        if self.charge.root && self.charge.lifeline {
            println!("{}", to_line(&summary));
        }
    }

    /// Takes events until `done`. No end is put to the wait, for what servers still do may take
    /// its time; who asked for it is told whom it is for.
    fn take_until(&mut self, done: impl Fn(&Self) -> bool) {
        while !done(self) {
            match self.events.recv_timeout(SAY_AFTER) {
                Ok(event) => drop(self.take(event)),
                Err(RecvTimeoutError::Timeout) => self.say_whom_it_waits_for(),
                Err(RecvTimeoutError::Disconnected) => unreachable!("a sender is kept"),
            }
        }
    }

    fn say_whom_it_waits_for(&mut self) {
        let locals = self.locals.iter().filter(|local| !local.closed);
        let links = self.links.iter().filter(|link| !link.closed);
        let below = links.flat_map(|link| {
            let awaited = link.seats.iter();
            awaited.filter(|seat| !link.done.contains(&seat.rank))
        });
        let names = locals.map(|local| &local.seat).chain(below);
        let names = names.map(|seat| format!("server {} on {}", seat.rank, seat.host));
        let mut names: Vec<String> = names.collect();
        if names.is_empty() {
            names.push("servers of other nodes".to_owned());
        }
        for asked in &mut self.asked {
            let _ = writeln!(asked, "waiting for {}", names.join(", "));
        }
    }

    /// The start failed: everything here and below is to go, soon.
    fn give_up(&mut self) {
        self.started = true;
        self.farewell = Some(Farewell { report: None });
        self.links.iter_mut().for_each(Link::hang_up);
        // Where no agent is yet, none has anything to clear away; if it is on its way, it
        // finds the connection closed.
        let silent = self.links.iter_mut().filter(|link| !link.heard);
        silent.for_each(Link::kill);
        self.locals
            .iter_mut()
            .for_each(|local| local.lifeline = None);
        let deadline = Instant::now() + GIVE_UP;
        let gone = |agent: &Self| {
            agent.locals.iter().all(|local| local.closed)
                && agent.links.iter().all(|link| link.closed)
        };
        while !gone(self) {
            let left = deadline.saturating_duration_since(Instant::now());
            let Ok(event) = self.events.recv_timeout(left) else {
                break;
            };
            let _ = self.take(event);
        }
        self.links.iter_mut().for_each(Link::kill);
    }
}

/// The instance ends: what a server left that was lost is of no use to anybody.
fn clear_lost(local: &mut Local) {
    local.kept.clear();
    if let Err(e) = clear_dirs(local.dirs.iter().map(PathBuf::as_path)) {
        eprintln!("server {} on {}: {e:#}", local.seat.rank, local.seat.host);
    }
}

/// Standard output was the pipe to `weir start`, and standard input too.
fn forget_stdio() {
    if let Ok(null) = std::fs::File::options().write(true).open("/dev/null") {
        let _ = nix::unistd::dup2_stdout(&null);
    }
}

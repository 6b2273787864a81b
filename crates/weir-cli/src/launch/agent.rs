//! One node's part in an instance of several servers: `weir agent`.
//!
//! It starts its own server and the agents below, passes addresses up and the roster down, and
//! stays until the instance ends. Everything that happens is an event of one queue.
//!
//! Invariants:
//! - until all is ready, any failure ends everything below and is told above with the name of
//!   its node; after that, a server's death is told and the others go on;
//! - what is above ends, then this ends its servers and what is below; only the agent of the
//!   first node under `weir start` lives on, until it is asked (`agent.sock`, SIGTERM).
//!
//! Left out: starting a dead server again; it needs a journal to come back to.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command};
use std::sync::mpsc::{channel, Receiver, RecvTimeoutError, Sender};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{ensure, Context, Result};
use nix::sys::signal::{SigSet, Signal};
use serde::{Deserialize, Serialize};
use weir_core::roster::{Member, Roster};
use weir_core::types::Rank;

use super::address::is_here;
use super::link::Link;
use super::message::{read_down, send_up, Charge, Down, Failed, Own, Seat, Seated, Up};
use super::reach::Reach;
use super::server::{self, read_line, to_line, Ended, Go, Launch, Part, Ready, Word};
use crate::instance::Report;
use crate::report;

/// The agent's socket in the run directory.
pub const SOCKET: &str = "agent.sock";

/// How long what was given up may take to end by itself.
const GIVE_UP: Duration = Duration::from_secs(10);

/// What an agent answers to who asked at its socket for the end of the instance.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Summary {
    /// What all servers did, if all told.
    pub report: Option<Report>,
    /// What is to be told, a line each.
    pub problems: Vec<String>,
    /// How many servers did not end in order.
    pub lost: usize,
}

/// Something that happened.
enum Event {
    Above(Result<Option<Down>>),
    Server(usize, Option<Word>),
    Link(usize, Option<Up>),
    Signal(Signal),
    Asked(UnixStream),
    JobOver,
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
    ended: Option<Ended>,
    closed: bool,
}

struct Agent {
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
    started: bool,
    stopping: bool,
    above_closed: bool,
    events: Receiver<Event>,
    tell: Sender<Event>,
}

/// `weir agent`.
pub fn run() -> Result<()> {
    let (tell, events) = channel();
    watch_signals(tell.clone())?;
    let mut above = BufReader::new(std::io::stdin());
    let charge = match read_down(&mut above)? {
        Some(Down::Charge(charge)) => *charge,
        _ => anyhow::bail!("weir agent is started by weir run and weir start"),
    };
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
    let mut agent = Agent::new(charge, events, tell);
    match agent.begin() {
        Ok(()) => agent.live(),
        Err(failed) => {
            say(&Up::Failed(failed));
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
    fn new(charge: Charge, events: Receiver<Event>, tell: Sender<Event>) -> Self {
        Self {
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
            started: false,
            stopping: false,
            above_closed: false,
            events,
            tell,
        }
    }

    /// From nothing to ready.
    fn begin(&mut self) -> Result<(), Failed> {
        let deadline = Instant::now() + Duration::from_millis(self.charge.deadline_ms);
        let (own, below) = self.seats()?;
        let here = own
            .first()
            .map_or_else(|| "this node".to_owned(), |seat| seat.host.clone());
        let fail = |e: anyhow::Error| Failed {
            host: here.clone(),
            why: format!("{e:#}"),
            lives: None,
        };
        // Others first: they take longer.
        self.start_links(&below).map_err(fail)?;
        for seat in own {
            self.start_server(seat).map_err(fail)?;
        }
        self.wait(deadline, |agent| {
            agent.locals.iter().all(|local| local.bound)
        })?;
        self.settle_in().map_err(fail)?;
        self.wait(deadline, |agent| {
            agent.links.iter().all(|link| link.awaited().is_none())
        })?;
        self.members.sort_by_key(|member| member.rank);
        if self.charge.root {
            let members = std::mem::take(&mut self.members);
            let roster = Roster::new(self.charge.instance, members);
            self.roster = Some(roster.map_err(|e| fail(e.into()))?);
        } else {
            let members = std::mem::take(&mut self.members);
            say(&Up::Bound(members));
            self.wait(deadline, |agent| agent.roster.is_some())?;
        }
        self.spread_roster().map_err(fail)?;
        self.wait(deadline, |agent| {
            agent.locals.iter().all(|local| local.ready.is_some())
                && agent.links.iter().all(|link| link.awaited().is_none())
        })?;
        self.serve_socket().map_err(fail)?;
        self.started = true;
        let seated = std::mem::take(&mut self.seated);
        say(&Up::Ready(seated));
        if self.charge.root && !self.charge.lifeline {
            forget_stdio();
        }
        Ok(())
    }

    /// Own seats, and those below.
    fn seats(&self) -> Result<(Vec<Seat>, Vec<Seat>), Failed> {
        let mut seats = self.charge.seats.clone();
        match self.charge.own {
            Own::All => Ok((seats, Vec::new())),
            Own::First => {
                let below = seats.split_off(1.min(seats.len()));
                Ok((seats, below))
            }
            Own::ByName => match find_here(&seats) {
                Ok(seat) => Ok((vec![seat], Vec::new())),
                Err(e) => Err(Failed {
                    host: own_name(),
                    why: format!("{e:#}"),
                    lives: None,
                }),
            },
        }
    }

    fn start_links(&mut self, below: &[Seat]) -> Result<()> {
        for branch in self.charge.reach.branches(below) {
            let (index, tell) = (self.links.len(), self.tell.clone());
            let link = Link::start(&branch, move |up| {
                let _ = tell.send(Event::Link(index, up));
            });
            let link =
                link.with_context(|| format!("starting weir on {}", branch.seats[0].host))?;
            link.tell(&Down::Charge(Box::new(Charge {
                seats: branch.seats,
                own: branch.own,
                reach: branch.reach,
                // Whoever is nearest to what hangs is to be the first to say so.
                deadline_ms: self.charge.deadline_ms * 9 / 10,
                root: false,
                lifeline: true,
                ..self.charge.clone()
            })));
            self.links.push(link);
        }
        Ok(())
    }

    fn start_server(&mut self, seat: Seat) -> Result<()> {
        let share = match self.charge.own {
            Own::All => u32::from(self.charge.servers),
            _ => 1,
        };
        let (child, lifeline, words) = server::spawn(&Launch {
            name: Some(name_of(&self.charge.name, seat.rank, share)),
            lifeline: true,
            settings: self.charge.settings.clone(),
            part: Some(Part {
                instance: self.charge.instance,
                secret: self.charge.secret.clone(),
                rank: seat.rank,
                servers: self.charge.servers,
                host: seat.host.clone(),
                share,
            }),
        })?;
        let (index, tell) = (self.locals.len(), self.tell.clone());
        spawn("weir-server", move || {
            let mut words = BufReader::new(words);
            loop {
                let word = read_line(&mut words).ok();
                let over = word.is_none();
                if tell.send(Event::Server(index, word)).is_err() || over {
                    return;
                }
            }
        })?;
        self.locals.push(Local {
            seat,
            child,
            lifeline: Some(lifeline),
            run_dir: None,
            bound: false,
            ready: None,
            ended: None,
            closed: false,
        });
        Ok(())
    }

    /// Once there is a run directory, standard error is a file in it.
    fn settle_in(&self) -> Result<()> {
        if let Some(run_dir) = self.run_dir() {
            let log = std::fs::File::options()
                .create(true)
                .append(true)
                .open(run_dir.join("agent.log"))?;
            nix::unistd::dup2_stderr(&log)?;
        }
        Ok(())
    }

    fn run_dir(&self) -> Option<&Path> {
        self.locals.first()?.run_dir.as_deref()
    }

    fn spread_roster(&mut self) -> Result<()> {
        let roster = self.roster.as_ref().expect("made, or waited for");
        let line: Arc<str> = to_line(&Down::Roster(roster.clone())).into();
        for link in &mut self.links {
            link.done.clear();
            link.tell_line(&line);
        }
        let text = to_line(roster);
        for local in &mut self.locals {
            let run_dir = local.run_dir.as_deref().expect("bound");
            crate::roster::write(run_dir, &text)?;
            let lifeline = local.lifeline.as_mut().expect("not ended");
            writeln!(lifeline, "{}", to_line(&Go {})).context("the server went away")?;
        }
        Ok(())
    }

    fn serve_socket(&self) -> Result<()> {
        for local in &self.locals {
            let run_dir = local.run_dir.as_deref().expect("bound");
            let listener = UnixListener::bind(run_dir.join(SOCKET)).context(SOCKET)?;
            let tell = self.tell.clone();
            spawn("weir-asked", move || {
                let asked = listener.incoming().flatten();
                for asked in asked.filter(is_request) {
                    if tell.send(Event::Asked(asked)).is_err() {
                        return;
                    }
                }
            })?;
        }
        Ok(())
    }

    /// Takes events until `done` or the deadline.
    fn wait(&mut self, deadline: Instant, done: impl Fn(&Self) -> bool) -> Result<(), Failed> {
        while !done(self) {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.events.recv_timeout(left) {
                Ok(event) => self.take(event)?,
                Err(RecvTimeoutError::Timeout) => return Err(self.too_late()),
                Err(RecvTimeoutError::Disconnected) => unreachable!("a sender is kept"),
            }
            if self.stopping {
                return Err(Failed {
                    host: own_name(),
                    why: "given up: it was asked to end before all was ready".into(),
                    lives: None,
                });
            }
        }
        Ok(())
    }

    fn too_late(&self) -> Failed {
        let seconds = self.charge.deadline_ms.div_ceil(1000);
        let late = self
            .links
            .iter()
            .find_map(|link| Some((link.awaited()?, link.last_output())));
        let (host, output) = match late {
            Some((seat, output)) => (seat.host.clone(), output),
            None => (own_name(), String::new()),
        };
        Failed {
            host,
            why: format!("not ready after {seconds} s (launch.deadline_s){output}"),
            lives: None,
        }
    }

    /// Takes note of one event.
    fn take(&mut self, event: Event) -> Result<(), Failed> {
        match event {
            Event::Above(Ok(Some(Down::Roster(roster)))) => self.roster = Some(roster),
            Event::Above(Ok(Some(Down::Stop))) => self.stopping = true,
            Event::Above(Ok(Some(Down::Farewell(report)))) => {
                self.farewell = Some(Farewell { report });
            }
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
            Event::JobOver => {
                eprintln!("stopping with the job");
                self.ask_to_stop();
            }
            Event::Asked(stream) => {
                self.asked.push(stream);
                self.ask_to_stop();
            }
        }
        Ok(())
    }

    /// The whole instance is to stop: the root knows how.
    fn ask_to_stop(&mut self) {
        if self.charge.root {
            self.stopping = true;
        } else {
            say(&Up::Stop);
        }
    }

    fn heard_server(&mut self, index: usize, word: Option<Word>) -> Result<(), Failed> {
        let local = &mut self.locals[index];
        let host = local.seat.host.clone();
        let failed = |why, lives| Failed { host, why, lives };
        match word {
            Some(Word::Bound { address, run_dir }) => {
                local.bound = true;
                local.run_dir = Some(run_dir);
                self.members.push(Member {
                    rank: Rank(local.seat.rank),
                    host: local.seat.host.clone(),
                    address,
                });
            }
            Some(Word::Ready(ready)) => {
                local.ready = Some(ready.clone());
                let seat = local.seat.clone();
                self.seated.push(Seated { seat, ready });
            }
            Some(Word::Lives { run_dir }) => {
                let why = format!("instance {} runs already", self.charge.name);
                return Err(failed(why, Some(run_dir)));
            }
            Some(Word::Failed(why)) => return Err(failed(why, None)),
            Some(Word::Ended(ended)) => local.ended = Some(ended),
            None => {
                local.closed = true;
                let status = local.child.wait();
                let status = status.map_or_else(|e| e.to_string(), |status| status.to_string());
                if !self.started {
                    return Err(failed(format!("the server gave up ({status})"), None));
                }
                if local.ended.is_none() {
                    let seat = local.seat.clone();
                    self.heard_of_loss(seat, format!("the server was lost ({status})"));
                }
            }
        }
        Ok(())
    }

    fn heard_link(&mut self, index: usize, up: Option<Up>) -> Result<(), Failed> {
        let link = &mut self.links[index];
        link.heard |= up.is_some();
        match up {
            Some(Up::Bound(members)) => {
                link.done.extend(members.iter().map(|member| member.rank.0));
                self.members.extend(members);
            }
            Some(Up::Ready(seated)) => {
                link.done
                    .extend(seated.iter().map(|seated| seated.seat.rank));
                self.seated.extend(seated);
            }
            Some(Up::Failed(failed)) if !self.started => return Err(failed),
            Some(Up::Failed(_)) => {}
            Some(Up::Lost { seat, why }) => self.heard_of_loss(seat, why),
            Some(Up::Stop) => self.ask_to_stop(),
            Some(Up::Ended(ended)) => {
                link.done.extend(ended.iter().map(|(seat, _)| seat.rank));
                self.ended.extend(ended);
            }
            None => {
                link.closed = true;
                link.hang_up();
                let missing: Vec<Seat> = link.seats.clone();
                let missing = missing
                    .into_iter()
                    .filter(|seat| !link.done.contains(&seat.rank));
                let missing: Vec<Seat> = missing.collect();
                if !self.started {
                    let why = link.end();
                    let host = missing.first().or(link.seats.first()).expect("not empty");
                    return Err(Failed {
                        host: host.host.clone(),
                        why,
                        lives: None,
                    });
                }
                if !missing.is_empty() && self.farewell.is_none() {
                    let why = link.end();
                    for seat in missing {
                        self.heard_of_loss(seat, why.clone());
                    }
                    self.ask_after_the_job();
                }
            }
        }
        Ok(())
    }

    /// The command that held all other nodes ended: with its nodes, or with the job. A batch
    /// system that does not see daemons as part of the job would leave this node's.
    fn ask_after_the_job(&self) {
        let Reach::All { alive, .. } = &self.charge.reach else {
            return;
        };
        let (alive, tell) = (alive.clone(), self.tell.clone());
        let asked = spawn("weir-job", move || {
            let Some((program, arguments)) = alive.split_first() else {
                return;
            };
            let output = Command::new(program).args(arguments).output();
            if output.is_ok_and(|output| output.status.success() && output.stdout.is_empty()) {
                let _ = tell.send(Event::JobOver);
            }
        });
        if let Err(e) = asked {
            eprintln!("{e:#}");
        }
    }

    fn heard_of_loss(&mut self, seat: Seat, why: String) {
        let known = format!("server {} on {}: ", seat.rank, seat.host);
        if self.lost.iter().any(|line| line.starts_with(&known)) {
            return;
        }
        eprintln!("{known}{why}");
        self.lost.push(known + &why);
        if !self.charge.root {
            say(&Up::Lost { seat, why });
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
            if let Some(ended) = local.ended.take() {
                self.ended.push((local.seat.clone(), ended));
            }
        }
        let ended = std::mem::take(&mut self.ended);
        let summary = if self.charge.root {
            Summary::of(&ended, &self.lost)
        } else {
            say(&Up::Ended(ended));
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

    fn take_until(&mut self, done: impl Fn(&Self) -> bool) {
        while !done(self) {
            let Ok(event) = self.events.recv() else {
                return;
            };
            let _ = self.take(event);
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

impl Summary {
    fn of(ended: &[(Seat, Ended)], lost: &[String]) -> Self {
        let (mut problems, mut failed) = (lost.to_vec(), lost.len());
        let mut reports = Vec::new();
        for (seat, ended) in ended {
            match &ended.result {
                Ok(report) => reports.push(report),
                Err(why) => {
                    failed += 1;
                    problems.push(format!("server {} on {}: {why}", seat.rank, seat.host));
                }
            }
            if let Some(log) = &ended.log {
                let log = log.display();
                problems.push(format!("the log of the server on {} is {log}", seat.host));
            }
        }
        Self {
            report: report::sum(&reports),
            problems,
            lost: failed,
        }
    }
}

/// Tells what is above. That it is gone shows by the end of what it sends.
fn say(up: &Up) {
    let _ = send_up(&mut std::io::stdout(), up);
}

/// What is asked at the socket.
const REQUEST: &str = "stop\n";

/// Whether a connection asks for the end of the instance; it has a moment to do so.
fn is_request(stream: &UnixStream) -> bool {
    let mut line = [0; REQUEST.len()];
    let limited = stream.set_read_timeout(Some(GIVE_UP));
    let mut stream = stream;
    limited.is_ok() && stream.read_exact(&mut line).is_ok() && line == *REQUEST.as_bytes()
}

/// Asks the agent at `run_dir` to end the whole instance; `None` if there is no agent.
pub fn stop(run_dir: &Path) -> Result<Option<Summary>> {
    let Ok(stream) = UnixStream::connect(run_dir.join(SOCKET)) else {
        return Ok(None);
    };
    let mut line = String::new();
    (&stream).write_all(REQUEST.as_bytes())?;
    BufReader::new(stream).read_line(&mut line)?;
    ensure!(!line.is_empty(), "the instance's agent was lost");
    Ok(Some(serde_json::from_str(&line)?))
}

/// The instance's name at a server: several of one machine each have their own.
fn name_of(name: &str, rank: u16, share: u32) -> String {
    if share > 1 && rank > 0 {
        format!("{name}.{rank}")
    } else {
        name.to_owned()
    }
}

fn own_name() -> String {
    let name = nix::unistd::gethostname().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

/// The seat whose host is this node: as Slurm calls it, or as it calls itself.
fn find_here(seats: &[Seat]) -> Result<Seat> {
    let slurm = std::env::var("SLURMD_NODENAME").ok();
    let named = |seat: &&Seat| match &slurm {
        Some(name) => seat.host == *name,
        None => is_here(&seat.host).unwrap_or(false),
    };
    let seat = seats.iter().find(named);
    let seat = seat.with_context(|| format!("{} is not among the nodes", own_name()))?;
    Ok(seat.clone())
}

/// Standard output was the pipe to `weir start`, and standard input too.
fn forget_stdio() {
    if let Ok(null) = std::fs::File::options().write(true).open("/dev/null") {
        let _ = nix::unistd::dup2_stdout(&null);
    }
}

//! The thread that waits for connections, hangups and the ends of processes.
//!
//! A client is gone when its process is. A killed process's socket may close a moment before its
//! other descriptors, and a program may close all descriptors and live on. So the poller keeps a
//! process descriptor (pidfd) for each client beside its connection. If the kernel has none (before
//! 5.3), the poller looks at /proc after the hangup.
//!
//! Within one round hangups are reported before greetings: a program that became another one (exec)
//! hung up before it greeted anew.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;
use rustix::net::{accept_with, SocketFlags};
use rustix::process::{getuid, pidfd_open, Pid, PidfdFlags};
use weir_core::proto::{encode, Welcome, VERSION};
use weir_core::types::ClientId;
use weir_store::acl;

use super::connection::{Connection, ConnectionEnd, Peer, ReceivedMessage};
use super::mailbox::{Answer, Event, PollerBox, Serial};
use super::refusals::{ConnectionRefusals, Refusal};
use super::regions::Placeholder;
use super::ServerError;
use crate::options::Options;

/// The interval of looks for events that cannot be waited for.
const LOOK_AGAIN: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 50_000_000,
};

/// A connection that has said nothing for so long makes room when there is no other room.
const MANNERS: Duration = Duration::from_secs(1);

/// The way to learn that a process has ended.
#[derive(Debug)]
enum Life {
    /// It becomes readable when the process ends.
    Pidfd(OwnedFd),
    /// The process to look up in /proc, once it has hung up.
    Proc(u32),
    /// The end cannot be known (another pid namespace): the hangup counts instead.
    Unknown,
}

struct Poller {
    listener: OwnedFd,
    mailbox: PollerBox,
    connections: BTreeMap<Serial, Connection>,
    /// The processes of clients, including those that hung up.
    lives: BTreeMap<Serial, Life>,
    watched: Option<OwnedFd>,
    next: u64,
    most: usize,
    /// No descriptors are left: accept later.
    exhausted: bool,
    refusals: Arc<ConnectionRefusals>,
    placeholder: Arc<Placeholder>,
}

/// Starts the thread.
pub fn start(
    listener: OwnedFd,
    mailbox: PollerBox,
    options: &Options,
    refusals: Arc<ConnectionRefusals>,
    placeholder: Arc<Placeholder>,
) -> Result<JoinHandle<()>, ServerError> {
    let watched = options
        .watch_pid
        .map(|pid| open_pidfd(pid).map_err(|errno| ServerError::Watched { pid, errno }));
    let mut poller = Poller {
        listener,
        mailbox,
        connections: BTreeMap::new(),
        lives: BTreeMap::new(),
        watched: watched.transpose()?,
        next: 0,
        most: 2 * options.max_clients + 64,
        exhausted: false,
        refusals,
        placeholder,
    };
    std::thread::Builder::new()
        .name("weir-poller".into())
        .stack_size(256 << 10)
        .spawn(move || poller.run())
        .map_err(ServerError::Thread)
}

fn open_pidfd(pid: u32) -> Result<OwnedFd, Errno> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    pidfd_open(pid.ok_or(Errno::SRCH)?, PidfdFlags::empty())
}

/// The sources that were ready.
#[derive(Default)]
struct Ready {
    accept: bool,
    watched: bool,
    bell: bool,
    sockets: Vec<(Serial, PollFlags)>,
    exited: Vec<Serial>,
}

impl Poller {
    fn run(&mut self) {
        loop {
            let ready = match self.wait() {
                Ok(ready) => ready,
                Err(errno) => {
                    tracing::error!(%errno, "poll failed: the server stops");
                    self.mailbox.tell(Event::Stop);
                    return;
                }
            };
            if ready.bell {
                self.mailbox.silence();
                while let Some(answer) = self.mailbox.next() {
                    if matches!(answer, Answer::End) {
                        return self.farewell();
                    }
                    self.answer(answer);
                }
            }
            if ready.watched {
                self.watched = None;
                self.mailbox.tell(Event::Stop);
            }
            self.hear(&ready.sockets);
            for serial in ready.exited {
                self.lives.remove(&serial);
                self.connections.remove(&serial);
                self.mailbox.tell(Event::Exited(serial));
            }
            if ready.accept {
                self.accept();
            }
        }
    }

    fn wait(&mut self) -> Result<Ready, Errno> {
        let mut fds = vec![PollFd::new(self.mailbox.bell(), PollFlags::IN)];
        if !self.exhausted {
            fds.push(PollFd::new(&self.listener, PollFlags::IN));
        }
        if let Some(watched) = &self.watched {
            fds.push(PollFd::new(watched, PollFlags::IN));
        }
        let first = fds.len();
        for connection in self.connections.values() {
            let (socket, flags) = connection.interest();
            fds.push(PollFd::from_borrowed_fd(socket.as_fd(), flags));
        }
        let pidfds = |life: (&Serial, &'_ Life)| matches!(life.1, Life::Pidfd(_));
        for life in self.lives.values() {
            if let Life::Pidfd(fd) = life {
                fds.push(PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN));
            }
        }
        let look = self.exhausted || !self.ended_by_proc().0;
        loop {
            match poll(&mut fds, look.then_some(&LOOK_AGAIN)) {
                Err(Errno::INTR) => {}
                other => break other,
            }
        }?;
        let events: Vec<PollFlags> = fds.iter().map(PollFd::revents).collect();
        drop(fds);
        let is_ready = |at: usize| events.get(at).is_some_and(|flags| !flags.is_empty());
        let mut ready = Ready {
            bell: is_ready(0),
            accept: !self.exhausted && is_ready(1),
            watched: self.watched.is_some() && is_ready(first - 1),
            ..Ready::default()
        };
        self.exhausted = false;
        let sockets = self.connections.keys().zip(&events[first..]);
        ready.sockets.extend(
            sockets
                .filter(|(_, flags)| !flags.is_empty())
                .map(|(s, f)| (*s, *f)),
        );
        let processes = self.lives.iter().filter(|life| pidfds(*life));
        let processes = processes.zip(&events[first + self.connections.len()..]);
        ready.exited.extend(
            processes
                .filter(|(_, flags)| !flags.is_empty())
                .map(|((s, _), _)| *s),
        );
        ready.exited.extend(self.ended_by_proc().1);
        Ok(ready)
    }

    /// Looks at the clients that hung up and have no process descriptor. Returns true if there are
    /// none, and those that have ended.
    fn ended_by_proc(&self) -> (bool, Vec<Serial>) {
        let mut none = true;
        let mut ended = Vec::new();
        for (serial, life) in &self.lives {
            if self.connections.contains_key(serial) {
                continue;
            }
            match life {
                Life::Pidfd(_) => {}
                Life::Proc(pid) if std::path::Path::new(&format!("/proc/{pid}")).exists() => {
                    none = false;
                }
                Life::Proc(_) | Life::Unknown => {
                    none = false;
                    ended.push(*serial);
                }
            }
        }
        (none, ended)
    }

    /// Reads from the sockets that are ready: hangups first.
    fn hear(&mut self, ready: &[(Serial, PollFlags)]) {
        let mut messages = Vec::new();
        for (serial, flags) in ready {
            let Some(connection) = self.connections.get_mut(serial) else {
                continue;
            };
            if flags.contains(PollFlags::OUT) && connection.flush().is_err() {
                self.hung_up(*serial);
                continue;
            }
            match connection.receive() {
                Ok(heard) => messages.extend(heard.into_iter().map(|heard| (*serial, heard))),
                Err(end) => {
                    if end == ConnectionEnd::Garbled {
                        self.refusals.refuse(Refusal::Garbled, connection.pid);
                    }
                    self.hung_up(*serial);
                }
            }
        }
        for (serial, heard) in messages {
            self.understand(serial, heard);
        }
    }

    fn understand(&mut self, serial: Serial, heard: ReceivedMessage) {
        let Some(connection) = self.connections.get_mut(&serial) else {
            return;
        };
        let pid = connection.pid;
        if matches!(heard, ReceivedMessage::Client(_) | ReceivedMessage::Tool) {
            connection.give(Arc::clone(&self.placeholder));
        }
        match heard {
            ReceivedMessage::Request(bytes) => self.mailbox.tell(Event::Request(serial, bytes)),
            // Programs of admitted users may only be clients.
            ReceivedMessage::Tool if !connection.is_own => {
                self.connections.remove(&serial);
                self.refusals.refuse(Refusal::User, pid);
            }
            ReceivedMessage::Tool => self.mailbox.tell(Event::Tool(serial)),
            ReceivedMessage::OtherVersion => {
                connection.closing = true;
                self.refusals.refuse(Refusal::Version, pid);
                self.say(serial, &version_only());
            }
            ReceivedMessage::Client(kind) => {
                let life = match open_pidfd(pid) {
                    _ if pid == 0 => Life::Unknown,
                    Ok(fd) => Life::Pidfd(fd),
                    Err(Errno::SRCH) => return drop(self.connections.remove(&serial)),
                    Err(_) => Life::Proc(pid),
                };
                self.lives.insert(serial, life);
                self.mailbox.tell(Event::Client { serial, pid, kind });
            }
        }
    }

    fn hung_up(&mut self, serial: Serial) {
        let Some(connection) = self.connections.remove(&serial) else {
            return;
        };
        if connection.peer == Peer::Client {
            self.mailbox.tell(Event::HungUp(serial));
        }
    }

    fn answer(&mut self, answer: Answer) {
        match answer {
            Answer::Send(serial, message) => self.say(serial, &message),
            Answer::Close(serial) => {
                self.lives.remove(&serial);
                if let Some(connection) = self.connections.get_mut(&serial) {
                    connection.closing = true;
                    // The server hears nothing more from it.
                    connection.peer = Peer::Unknown;
                    self.close_if_done(serial);
                }
            }
            Answer::End => {}
        }
    }

    fn say(&mut self, serial: Serial, message: &[u8]) {
        let Some(connection) = self.connections.get_mut(&serial) else {
            return;
        };
        if connection.send(message).is_err() {
            self.hung_up(serial);
        } else {
            self.close_if_done(serial);
        }
    }

    fn close_if_done(&mut self, serial: Serial) {
        let done = |connection: &Connection| connection.closing && !connection.is_pending();
        if self.connections.get(&serial).is_some_and(done) {
            self.connections.remove(&serial);
        }
    }

    fn accept(&mut self) {
        loop {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            match accept_with(&self.listener, flags) {
                Ok(socket) => self.welcome(socket),
                Err(Errno::AGAIN) => return,
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(errno) => {
                    tracing::debug!(%errno, "connections wait");
                    self.refusals.refuse(Refusal::Descriptors, 0);
                    self.exhausted = true;
                    return;
                }
            }
        }
    }

    fn welcome(&mut self, socket: OwnedFd) {
        let Ok(peer) = socket_peercred(&socket) else {
            return;
        };
        let pid = u32::try_from(peer.pid.as_raw_nonzero().get()).unwrap_or(0);
        let is_own = peer.uid == getuid();
        if !is_own && !acl::is_admitted(peer.uid.as_raw()) {
            return self.refusals.refuse(Refusal::User, pid);
        }
        if self.connections.len() >= self.most && !self.make_room() {
            return self.refusals.refuse(Refusal::Crowd, pid);
        }
        let serial = Serial(self.next);
        self.next += 1;
        self.connections
            .insert(serial, Connection::new(socket, pid, is_own));
    }

    /// Closes the oldest connection that has not said its kind in time. Returns false if there is
    /// none.
    fn make_room(&mut self) -> bool {
        let silent = |connection: &Connection| {
            connection.peer == Peer::Unknown && connection.since.elapsed() >= MANNERS
        };
        let oldest = self.connections.iter().find(|(_, c)| silent(c));
        let Some((serial, pid)) = oldest.map(|(serial, c)| (*serial, c.pid)) else {
            return false;
        };
        self.refusals.refuse(Refusal::Silent, pid);
        self.connections.remove(&serial);
        true
    }

    /// Sends the pending bytes, for as long as a reader makes progress.
    fn farewell(&mut self) {
        while let Some(answer) = self.mailbox.next() {
            self.answer(answer);
        }
        self.connections
            .retain(|_, connection| connection.is_pending());
        while !self.connections.is_empty() {
            let mut fds: Vec<PollFd<'_>> = Vec::new();
            for connection in self.connections.values() {
                fds.push(PollFd::from_borrowed_fd(
                    connection.interest().0.as_fd(),
                    PollFlags::OUT,
                ));
            }
            let patience = Timespec {
                tv_sec: 1,
                tv_nsec: 0,
            };
            if !poll(&mut fds, Some(&patience)).is_ok_and(|ready| ready > 0) {
                return;
            }
            drop(fds);
            self.connections
                .retain(|_, connection| connection.flush().is_ok() && connection.is_pending());
        }
    }
}

/// A welcome of which only the version counts.
fn version_only() -> Vec<u8> {
    let welcome = Welcome {
        version: VERSION,
        client: ClientId(u32::MAX),
        rank: 0,
        servers: 0,
        shm_dir: String::new(),
        storage_dirs: Vec::new(),
        prefix: String::new(),
        spin_us: 0,
        fences: false,
    };
    let mut bytes = Vec::new();
    encode(&welcome, &mut bytes);
    bytes
}

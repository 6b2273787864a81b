//! The queues between the service thread and the poller.
//!
//! The service thread sleeps on the futex that clients ring. If it serves the sockets of other
//! servers, it sleeps at a bell. The poller sleeps in poll(2). So each is woken in its own way.

use std::sync::atomic::{fence, Ordering};
use std::sync::mpsc::{channel, Receiver, Sender};
use std::sync::Arc;

use rustix::event::{eventfd, EventfdFlags};
use rustix::fd::OwnedFd;
use rustix::io::{read, write, Errno};
use weir_core::node::region::{Hub, SLEEPS_AT_BELL};
use weir_core::proto::ClientKind;

use super::kernel::wake;

/// A connection's number; never used twice.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Serial(pub u64);

/// An event that the poller reports.
#[derive(Debug)]
pub enum Event {
    /// A process wants to be a client.
    Client {
        /// Its connection.
        serial: Serial,
        /// The process.
        pid: u32,
        /// The client's kind according to its hello.
        kind: ClientKind,
    },
    /// A tool connected.
    Tool(Serial),
    /// A tool's request.
    Request(Serial, Vec<u8>),
    /// A client's connection ended; its process may live.
    HungUp(Serial),
    /// A client's process is gone, and its connection with it.
    Exited(Serial),
    /// The watched process ended.
    Stop,
}

/// A command of the service thread to the poller.
#[derive(Debug)]
pub enum Answer {
    /// Send this message.
    Send(Serial, Vec<u8>),
    /// Close the connection, and no longer watch the process.
    Close(Serial),
    /// Send the pending bytes, and end.
    End,
}

/// Wakes the service thread, from any thread.
#[derive(Clone, Debug)]
pub struct Rouser {
    hub: &'static Hub,
    /// The named pipe at which the thread waits, if it does.
    bell: Option<Arc<OwnedFd>>,
}

impl Rouser {
    /// Wakes a service thread with this bell, or without one.
    pub fn new(hub: &'static Hub, bell: Option<Arc<OwnedFd>>) -> Rouser {
        Rouser { hub, bell }
    }

    /// Wakes the service thread if it sleeps. The caller has queued the thread's work before.
    pub fn rouse(&self) {
        fence(Ordering::SeqCst);
        match (self.hub.server_sleeps.swap(0, Ordering::SeqCst), &self.bell) {
            (0, _) => {}
            // A full pipe has been rung already.
            (SLEEPS_AT_BELL, Some(bell)) => drop(write(bell, &[1])),
            _ => wake(&self.hub.server_sleeps),
        }
    }
}

/// The service thread's side.
#[derive(Debug)]
pub struct ServiceBox {
    events: Receiver<Event>,
    answers: Sender<Answer>,
    bell: Arc<OwnedFd>,
}

/// The poller's side.
#[derive(Debug)]
pub struct PollerBox {
    events: Sender<Event>,
    answers: Receiver<Answer>,
    bell: Arc<OwnedFd>,
    rouser: Rouser,
}

/// The two ends.
pub fn mailboxes(rouser: Rouser) -> Result<(ServiceBox, PollerBox), Errno> {
    let (to_service, events) = channel();
    let (to_poller, answers) = channel();
    let bell = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
    let service = ServiceBox {
        events,
        answers: to_poller,
        bell: Arc::clone(&bell),
    };
    let poller = PollerBox {
        events: to_service,
        answers,
        bell,
        rouser,
    };
    Ok((service, poller))
}

impl ServiceBox {
    /// The next event, if there is one.
    pub fn next(&self) -> Option<Event> {
        self.events.try_recv().ok()
    }

    /// Tells the poller. It hears nothing more once it has ended.
    pub fn tell(&self, answer: Answer) {
        if self.answers.send(answer).is_ok() {
            let _ = write(&*self.bell, &1u64.to_ne_bytes());
        }
    }
}

impl PollerBox {
    /// Tells the service thread.
    pub fn tell(&self, event: Event) {
        if self.events.send(event).is_ok() {
            self.rouser.rouse();
        }
    }

    /// The next answer, if there is one.
    pub fn next(&self) -> Option<Answer> {
        self.answers.try_recv().ok()
    }

    /// The bell, which is readable when there are answers.
    pub fn bell(&self) -> &OwnedFd {
        &self.bell
    }

    /// Silences the bell. Later answers ring it again.
    pub fn silence(&self) {
        let mut count = [0; 8];
        let _ = read(&*self.bell, &mut count);
    }
}

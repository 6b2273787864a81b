//! libfabric: servers that reach each other over any network that it has a provider for.
//!
//! ```text
//!  service thread        `weir-fabric`, one thread
//!   Libfabric::call --->  links    calls, deadlines, repetition (as over TCP)
//!            ::poll <---  lines    incarnations of peers, lost packets
//!                         offers, pulls    bodies and bulk too long for a packet
//!                         peers    addresses, and packets that wait for room
//!                         packet   layout and MAC
//!                         endpoint (opening, transfer), memory, library, abi: libfabric
//! ```
//!
//! Endpoints are of reliable datagrams. A packet holds up to 11 KiB of body and bulk. A longer part
//! is offered: the receiver reads it from the sender's memory, or asks for it in pieces if the
//! provider has no remote reads. The packet has the part's hash.
//!
//! Invariants:
//! - libfabric is not needed at build time. Without it, or without a provider that can be waited
//!   for, [`BoundEndpoint::open`] returns the reason and nothing else here runs.
//! - All `unsafe` is in `library`, `memory` and `endpoint`.
//! - Every packet carries a MAC under the instance's secret; see `packet` for replayed packets.
//! - Memory that another server may read has a random key, and is closed when the call that needed
//!   it has ended.
//!
//! Left out: encryption, as over TCP.

mod abi;
mod endpoint;
#[cfg(test)]
mod layout;
mod library;
mod lines;
mod memory;
mod offers;
pub mod packet;
mod peers;
mod pulls;
mod thread;

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{channel, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{eventfd, EventfdFlags};
use weir_core::types::Rank;

use crate::frame::{BODY_MOST, BULK_MOST};
use crate::{
    CallError, CallId, Event, Fabric, Membership, Message, RefusalCounters, Timing, Token,
};
pub use endpoint::NAME_MOST;
use endpoint::{Completion, Endpoint};
pub use library::Unusable;
use thread::{Command, EndpointThread, ThreadChannels};

/// The installed libfabric, for people: its version, the providers that weir can use, and the
/// others.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LibfabricReport {
    /// For example `1.17`.
    pub version: String,
    /// Usable providers, in the library's order.
    pub usable: Vec<String>,
    /// The other providers of reliable datagrams.
    pub left_out: Vec<String>,
}

impl LibfabricReport {
    /// Returns true if a provider is of a network faster than TCP.
    pub fn is_fast(&self) -> bool {
        let fast = |name: &String| endpoint::FAST.contains(&name.as_str());
        self.usable.iter().any(fast)
    }
}

/// Looks for libfabric and its providers.
pub fn find() -> Result<LibfabricReport, Unusable> {
    let library = library::library()?;
    let offers = library.offers(None, None, abi::MSG)?;
    let mut names: Vec<String> = Vec::new();
    for offer in offers.iter() {
        let name = offer.provider();
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let (usable, left_out) = names
        .into_iter()
        .partition(|name| endpoint::is_usable(name));
    Ok(LibfabricReport {
        version: library.version(),
        usable,
        left_out,
    })
}

/// The endpoint to open.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EndpointOptions {
    /// The provider; `None`: the best usable one.
    pub provider: Option<String>,
    /// This node's address, for providers with addresses of that kind.
    pub source: SocketAddr,
    /// Use remote reads where the provider has them; otherwise long messages travel in pieces.
    pub reads: bool,
}

/// An open endpoint that is not in use yet.
pub struct BoundEndpoint {
    endpoint: Box<Endpoint>,
}

impl BoundEndpoint {
    /// Opens an endpoint.
    pub fn open(choice: &EndpointOptions) -> Result<BoundEndpoint, Unusable> {
        let endpoint = Box::new(Endpoint::open(choice)?);
        Ok(BoundEndpoint { endpoint })
    }

    /// The name by which others reach it, at most [`NAME_MOST`] bytes.
    pub fn name(&self) -> &[u8] {
        self.endpoint.name()
    }

    /// The provider.
    pub fn provider(&self) -> &str {
        self.endpoint.provider()
    }

    /// Sends bytes to an endpoint without a MAC, and waits at most `patience`; returns true if they
    /// were sent. For tests of unauthorised senders.
    pub fn send_unsealed(
        &mut self,
        to: &[u8],
        bytes: &[u8],
        patience: Duration,
    ) -> std::io::Result<bool> {
        let refused = std::io::Error::from_raw_os_error;
        let to = self.endpoint.resolve(to).ok_or(ErrorKind::NotFound)?;
        let (bell, begin) = (Bell::new()?, Instant::now());
        let mut under_way = false;
        while begin.elapsed() < patience {
            if !under_way {
                let sent = self.endpoint.send(Rank(0), to, bytes);
                under_way = sent.map_err(|code| refused(-code))?;
            }
            match self.endpoint.next().map_err(|code| refused(-code))? {
                Some(Completion::Sent { good, .. }) => return Ok(good),
                Some(_) => {}
                None => self
                    .endpoint
                    .wait(bell.fd(), Some(Duration::from_millis(5))),
            }
        }
        Ok(false)
    }
}

impl std::fmt::Debug for BoundEndpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "BoundEndpoint({})", self.provider())
    }
}

/// Wakes the thread.
#[derive(Debug, Clone)]
struct Bell(Arc<OwnedFd>);

impl Bell {
    fn new() -> std::io::Result<Bell> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(Bell(Arc::new(eventfd(0, flags)?)))
    }

    fn ring(&self) {
        // It fails only after 2^64 rings.
        let _ = rustix::io::write(&*self.0, &1_u64.to_ne_bytes());
    }

    fn clear(&self) {
        // It fails if the bell has not been rung.
        let _ = rustix::io::read(&*self.0, &mut [0_u8; 8]);
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// One server's end.
#[derive(Debug)]
pub struct Libfabric {
    commands: Sender<Command>,
    events: Receiver<Event>,
    own: Sender<Event>,
    bell: Bell,
    next: AtomicU64,
    counters: Arc<Mutex<RefusalCounters>>,
    thread: Option<JoinHandle<()>>,
}

impl Libfabric {
    /// Starts with an open endpoint. `names` are those of all servers' endpoints, by rank; the
    /// addresses of `membership` are not used. The thread calls `wake` whenever there is an event
    /// to be polled.
    pub fn start(
        bound: BoundEndpoint,
        membership: Membership,
        names: Vec<Vec<u8>>,
        timing: Timing,
        wake: impl Fn() + Send + 'static,
    ) -> std::io::Result<Libfabric> {
        let (commands, orders) = channel();
        let (told, events) = channel();
        let counters = Arc::new(Mutex::new(RefusalCounters::default()));
        let bell = Bell::new()?;
        let ends = ThreadChannels {
            commands: orders,
            events: told.clone(),
            wake: Box::new(wake),
            counters: Arc::clone(&counters),
            bell: bell.clone(),
        };
        let thread = std::thread::Builder::new()
            .name("weir-fabric".to_owned())
            .spawn(move || {
                EndpointThread::new(*bound.endpoint, membership, names, timing, ends).run();
            })?;
        Ok(Libfabric {
            commands,
            events,
            own: told,
            bell,
            next: AtomicU64::new(1),
            counters,
            thread: Some(thread),
        })
    }
}

impl Libfabric {
    fn ask(&self, to: Rank, message: Message, unbounded: bool) -> CallId {
        let id = CallId(self.next.fetch_add(1, Ordering::Relaxed));
        let too_long = message.body.len() > BODY_MOST - 8 || message.bulk.len() > BULK_MOST;
        let call = Command::Call {
            to,
            id,
            message,
            unbounded,
        };
        if too_long || self.commands.send(call).is_err() {
            // This end of the queue is open as long as `self`.
            let _ = self.own.send(Event::Done(id, Err(CallError::Ended)));
        }
        self.bell.ring();
        id
    }
}

impl Fabric for Libfabric {
    fn call(&self, to: Rank, message: Message) -> CallId {
        self.ask(to, message, false)
    }

    fn call_without_deadline(&self, to: Rank, message: Message) -> CallId {
        self.ask(to, message, true)
    }

    fn reply(&self, token: Token, message: Message) {
        // A caller that has ended needs no reply.
        let _ = self.commands.send(Command::Reply { token, message });
        self.bell.ring();
    }

    fn poll(&self) -> Option<Event> {
        self.events.try_recv().ok()
    }

    fn counters(&self) -> RefusalCounters {
        *self.counters.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Libfabric {
    fn drop(&mut self) {
        let _ = self.commands.send(Command::End);
        self.bell.ring();
        if let Some(thread) = self.thread.take() {
            // A panic has already been reported.
            let _ = thread.join();
        }
    }
}

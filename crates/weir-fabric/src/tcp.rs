//! TCP: the handles that the service thread holds, of two kinds.
//!
//! | | who polls the sockets ([`crate::io`]) | for |
//! | --- | --- | --- |
//! | [`PolledTcp`] | the caller, whenever it polls or waits | servers: a call costs no change of thread |
//! | [`Tcp`] | a thread of its own | callers that wait by other means |

use std::cell::{Cell, RefCell};
use std::net::TcpListener;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{channel, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use weir_core::types::Rank;

use crate::bulk::{BulkPlane, BulkReader, EmptyLogSource, LogSource};
use crate::command::IoCommand;
use crate::frame::{BODY_MOST, BULK_MOST};
use crate::io::{EventSink, Io, LoopState};
use crate::mailbox::MailboxSender;
use crate::{
    CallError, CallId, Event, Fabric, Membership, Message, RefusalCounters, Timing, Token,
};

/// The parts of both kinds.
struct TcpParts {
    io: Io,
    commands: MailboxSender<IoCommand>,
    reads: BulkReader,
    counters: Arc<Mutex<RefusalCounters>>,
}

impl TcpParts {
    fn new(
        listener: TcpListener,
        membership: Membership,
        timing: Timing,
        source: Arc<dyn LogSource>,
    ) -> std::io::Result<TcpParts> {
        let counters = Arc::new(Mutex::new(RefusalCounters::default()));
        let servers = membership.addresses.len();
        let mut reads = None;
        let count = Arc::clone(&counters);
        let (io, commands) = Io::new(listener, membership, timing, count, |dial| {
            let (bulk, reader) = BulkPlane::start(source, servers, timing, dial)?;
            reads = Some(reader);
            Ok(bulk)
        })?;
        Ok(TcpParts {
            io,
            commands,
            reads: reads.ok_or(std::io::ErrorKind::Other)?,
            counters,
        })
    }
}

fn is_too_large(message: &Message) -> bool {
    message.body.len() > BODY_MOST - 8 || message.bulk.len() > BULK_MOST
}

/// One server's end of the fabric, whose sockets are served when the caller polls or waits.
pub struct PolledTcp {
    io: RefCell<Io>,
    reads: BulkReader,
    next: Cell<u64>,
    ended: Cell<bool>,
}

impl std::fmt::Debug for PolledTcp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PolledTcp").finish_non_exhaustive()
    }
}

impl PolledTcp {
    /// Listens on `listener`, whose address the others know; others read from `source`.
    pub fn start(
        listener: TcpListener,
        membership: Membership,
        timing: Timing,
        source: Arc<dyn LogSource>,
    ) -> std::io::Result<PolledTcp> {
        let parts = TcpParts::new(listener, membership, timing, source)?;
        Ok(PolledTcp {
            io: RefCell::new(parts.io),
            reads: parts.reads,
            next: Cell::new(1),
            ended: Cell::new(false),
        })
    }

    /// Makes [`PolledTcp::wait`] return when another descriptor becomes readable. The caller reads
    /// that descriptor until it is empty ([`PolledTcp::take_bell`]).
    pub fn watch(&self, bell: RawFd) -> std::io::Result<()> {
        self.io.borrow().watch(bell)
    }

    /// Sends pending messages, and sleeps until something happens or the time is over. There may be
    /// no event after it.
    pub fn wait(&self, most: Option<Duration>) {
        self.turn(most);
    }

    /// Returns true if the watched descriptor became readable since the last call.
    pub fn take_bell(&self) -> bool {
        self.io.borrow_mut().take_bell()
    }

    /// The next event already known: it polls no socket, which [`PolledTcp::wait`] does.
    pub fn next_event(&self) -> Option<Event> {
        self.io.borrow_mut().next_event()
    }

    /// Receives without waiting and without sending.
    pub fn look(&self) {
        if self.io.borrow_mut().poll_sockets(Some(Duration::ZERO)) == LoopState::Ended {
            self.ended.set(true);
        }
    }

    /// Sends pending messages.
    pub fn flush(&self) {
        self.io.borrow_mut().send_pending();
    }

    fn ask(&self, to: Rank, message: Message, unbounded: bool) -> CallId {
        let id = CallId(self.next.get());
        self.next.set(id.0 + 1);
        let mut io = self.io.borrow_mut();
        if is_too_large(&message) || self.ended.get() {
            io.refuse_call(id);
        } else {
            io.ask(to, id, message, unbounded);
        }
        id
    }

    fn turn(&self, most: Option<Duration>) {
        if self.io.borrow_mut().turn(most) == LoopState::Ended {
            self.ended.set(true);
        }
    }

    /// The reader of other servers' logs.
    pub fn reads(&self) -> &BulkReader {
        &self.reads
    }
}

impl Fabric for PolledTcp {
    fn call(&self, to: Rank, message: Message) -> CallId {
        self.ask(to, message, false)
    }

    fn call_without_deadline(&self, to: Rank, message: Message) -> CallId {
        self.ask(to, message, true)
    }

    fn reply(&self, token: Token, message: Message) {
        self.io.borrow_mut().answer(token, message);
    }

    fn poll(&self) -> Option<Event> {
        let event = self.io.borrow_mut().next_event();
        if event.is_some() || self.ended.get() {
            return event;
        }
        self.turn(Some(Duration::ZERO));
        self.io.borrow_mut().next_event()
    }

    fn counters(&self) -> RefusalCounters {
        self.io.borrow().counters()
    }
}

/// One server's end of the fabric, with a thread for its sockets.
#[derive(Debug)]
pub struct Tcp {
    commands: MailboxSender<IoCommand>,
    reads: BulkReader,
    events: Receiver<Event>,
    own: Sender<Event>,
    next: AtomicU64,
    counters: Arc<Mutex<RefusalCounters>>,
    thread: Option<JoinHandle<()>>,
}

impl Tcp {
    /// Listens on `listener`, whose address the others know. The I/O thread calls `wake` whenever
    /// there is an event to be polled.
    pub fn start(
        listener: TcpListener,
        membership: Membership,
        timing: Timing,
        wake: impl Fn() + Send + 'static,
    ) -> std::io::Result<Tcp> {
        Tcp::with_log_source(listener, membership, timing, Arc::new(EmptyLogSource), wake)
    }

    /// As [`Tcp::start`]; others read from `source`.
    pub fn with_log_source(
        listener: TcpListener,
        membership: Membership,
        timing: Timing,
        source: Arc<dyn LogSource>,
        wake: impl Fn() + Send + 'static,
    ) -> std::io::Result<Tcp> {
        let (told, events) = channel();
        let sink = EventSink {
            events: told.clone(),
            wake: Box::new(wake),
        };
        let TcpParts {
            io,
            commands,
            reads,
            counters,
        } = TcpParts::new(listener, membership, timing, source)?;
        let thread = std::thread::Builder::new()
            .name("weir-fabric".to_owned())
            .spawn(move || io.run(&sink))?;
        Ok(Tcp {
            commands,
            reads,
            events,
            own: told,
            next: AtomicU64::new(1),
            counters,
            thread: Some(thread),
        })
    }

    /// The reader of other servers' logs.
    pub fn reads(&self) -> &BulkReader {
        &self.reads
    }
}

impl Tcp {
    fn ask(&self, to: Rank, message: Message, unbounded: bool) -> CallId {
        let id = CallId(self.next.fetch_add(1, Ordering::Relaxed));
        if is_too_large(&message) {
            let _ = self.own.send(Event::Done(id, Err(CallError::Ended)));
            return id;
        }
        let call = IoCommand::Call {
            to,
            id,
            message,
            unbounded,
        };
        if self.commands.send(call).is_err() {
            let _ = self.own.send(Event::Done(id, Err(CallError::Ended)));
        }
        id
    }
}

impl Fabric for Tcp {
    fn call(&self, to: Rank, message: Message) -> CallId {
        self.ask(to, message, false)
    }

    fn call_without_deadline(&self, to: Rank, message: Message) -> CallId {
        self.ask(to, message, true)
    }

    fn reply(&self, token: Token, message: Message) {
        // A caller that has ended needs no reply.
        let _ = self.commands.send(IoCommand::Reply { token, message });
    }

    fn poll(&self) -> Option<Event> {
        self.events.try_recv().ok()
    }

    fn counters(&self) -> RefusalCounters {
        *self.counters.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Tcp {
    fn drop(&mut self) {
        let _ = self.commands.send(IoCommand::End);
        if let Some(thread) = self.thread.take() {
            // A panic has already been reported.
            let _ = thread.join();
        }
    }
}

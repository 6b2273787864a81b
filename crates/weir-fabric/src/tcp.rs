//! TCP: what the service thread holds, in two shapes.
//!
//! | | who turns the sockets over ([`crate::io`]) | for |
//! | --- | --- | --- |
//! | [`Driven`] | who asks and answers, whenever it polls or waits | servers: a call costs no change of thread |
//! | [`Tcp`] | a thread of its own | whoever waits for other things by other means |

use std::cell::{Cell, RefCell};
use std::net::TcpListener;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{channel, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use weir_core::types::Rank;

use crate::bulk::{Asker, Bulk, NoShelf, Shelf};
use crate::frame::{BODY_MOST, BULK_MOST};
use crate::io::{Command, Io, Turn};
use crate::post::Post;
use crate::{CallId, Counters, Event, Fabric, Lost, Membership, Message, Timing, Token};

/// What both shapes are made of.
struct Parts {
    io: Io,
    commands: Post<Command>,
    reads: Asker,
    counters: Arc<Mutex<Counters>>,
}

impl Parts {
    fn new(
        listener: TcpListener,
        membership: Membership,
        timing: Timing,
        shelf: Arc<dyn Shelf>,
    ) -> std::io::Result<Parts> {
        let counters = Arc::new(Mutex::new(Counters::default()));
        let servers = membership.addresses.len();
        let mut reads = None;
        let count = Arc::clone(&counters);
        let (io, commands) = Io::new(listener, membership, timing, count, |dial| {
            let (bulk, asker) = Bulk::start(shelf, servers, timing, dial)?;
            reads = Some(asker);
            Ok(bulk)
        })?;
        Ok(Parts {
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

/// One server's end of the fabric, whose sockets are served when it is polled and waited for.
pub struct Driven {
    io: RefCell<Io>,
    reads: Asker,
    next: Cell<u64>,
    ended: Cell<bool>,
}

impl std::fmt::Debug for Driven {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Driven").finish_non_exhaustive()
    }
}

impl Driven {
    /// Listens on `listener`, whose address the others know; others read from `shelf`.
    pub fn start(
        listener: TcpListener,
        membership: Membership,
        timing: Timing,
        shelf: Arc<dyn Shelf>,
    ) -> std::io::Result<Driven> {
        let parts = Parts::new(listener, membership, timing, shelf)?;
        Ok(Driven {
            io: RefCell::new(parts.io),
            reads: parts.reads,
            next: Cell::new(1),
            ended: Cell::new(false),
        })
    }

    /// Has [`Driven::wait`] return when another descriptor becomes readable; the caller reads it
    /// until there is no more ([`Driven::take_rung`]).
    pub fn watch(&self, bell: RawFd) -> std::io::Result<()> {
        self.io.borrow().watch(bell)
    }

    /// Sends what is to be sent, and sleeps until something happens or so much time is over.
    /// There may be no event after it.
    pub fn wait(&self, most: Option<Duration>) {
        self.turn(most);
    }

    /// Whether the watched descriptor became readable since this was asked last.
    pub fn take_rung(&self) -> bool {
        self.io.borrow_mut().take_rung()
    }

    /// What has happened as far as is known: no socket is looked at, which [`Driven::wait`] does.
    pub fn next_event(&self) -> Option<Event> {
        self.io.borrow_mut().next_event()
    }

    /// Takes in what has come, without waiting and without sending anything.
    pub fn look(&self) {
        if self.io.borrow_mut().take_in(Some(Duration::ZERO)) == Turn::End {
            self.ended.set(true);
        }
    }

    /// Sends what is to be sent.
    pub fn flush(&self) {
        self.io.borrow_mut().work();
    }

    fn ask(&self, to: Rank, message: Message, surely: bool) -> CallId {
        let id = CallId(self.next.get());
        self.next.set(id.0 + 1);
        let mut io = self.io.borrow_mut();
        if is_too_large(&message) || self.ended.get() {
            io.refuse_call(id);
        } else {
            io.ask(to, id, message, surely);
        }
        id
    }

    fn turn(&self, most: Option<Duration>) {
        if self.io.borrow_mut().turn(most) == Turn::End {
            self.ended.set(true);
        }
    }

    /// Where bytes of other servers' logs are asked for.
    pub fn reads(&self) -> &Asker {
        &self.reads
    }
}

impl Fabric for Driven {
    fn call(&self, to: Rank, message: Message) -> CallId {
        self.ask(to, message, false)
    }

    fn call_surely(&self, to: Rank, message: Message) -> CallId {
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

    fn counters(&self) -> Counters {
        self.io.borrow().counters()
    }
}

/// One server's end of the fabric, with a thread for its sockets.
#[derive(Debug)]
pub struct Tcp {
    commands: Post<Command>,
    reads: Asker,
    events: Receiver<Event>,
    own: Sender<Event>,
    next: AtomicU64,
    counters: Arc<Mutex<Counters>>,
    thread: Option<JoinHandle<()>>,
}

impl Tcp {
    /// Listens on `listener`, whose address the others know. `wake` is called by the I/O
    /// thread whenever there is an event to be polled.
    pub fn start(
        listener: TcpListener,
        membership: Membership,
        timing: Timing,
        wake: impl Fn() + Send + 'static,
    ) -> std::io::Result<Tcp> {
        Tcp::with_shelf(listener, membership, timing, Arc::new(NoShelf), wake)
    }

    /// As [`Tcp::start`]; others read from `shelf`.
    pub fn with_shelf(
        listener: TcpListener,
        membership: Membership,
        timing: Timing,
        shelf: Arc<dyn Shelf>,
        wake: impl Fn() + Send + 'static,
    ) -> std::io::Result<Tcp> {
        let (told, events) = channel();
        let ends: (_, Box<dyn Fn() + Send>) = (told.clone(), Box::new(wake));
        let Parts {
            io,
            commands,
            reads,
            counters,
        } = Parts::new(listener, membership, timing, shelf)?;
        let thread = std::thread::Builder::new()
            .name("weir-fabric".to_owned())
            .spawn(move || io.run(&ends))?;
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

    /// Where bytes of other servers' logs are asked for.
    pub fn reads(&self) -> &Asker {
        &self.reads
    }
}

impl Tcp {
    fn ask(&self, to: Rank, message: Message, surely: bool) -> CallId {
        let id = CallId(self.next.fetch_add(1, Ordering::Relaxed));
        if is_too_large(&message) {
            let _ = self.own.send(Event::Done(id, Err(Lost::Ended)));
            return id;
        }
        let call = Command::Call {
            to,
            id,
            message,
            surely,
        };
        if self.commands.send(call).is_err() {
            let _ = self.own.send(Event::Done(id, Err(Lost::Ended)));
        }
        id
    }
}

impl Fabric for Tcp {
    fn call(&self, to: Rank, message: Message) -> CallId {
        self.ask(to, message, false)
    }

    fn call_surely(&self, to: Rank, message: Message) -> CallId {
        self.ask(to, message, true)
    }

    fn reply(&self, token: Token, message: Message) {
        // An asker that is gone needs no answer.
        let _ = self.commands.send(Command::Reply { token, message });
    }

    fn poll(&self) -> Option<Event> {
        self.events.try_recv().ok()
    }

    fn counters(&self) -> Counters {
        *self.counters.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Tcp {
    fn drop(&mut self) {
        let _ = self.commands.send(Command::End);
        if let Some(thread) = self.thread.take() {
            // If it panicked it has said so.
            let _ = thread.join();
        }
    }
}

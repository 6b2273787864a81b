//! TCP: what the service thread holds. The sockets belong to one I/O thread ([`crate::io`]).

use std::net::TcpListener;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{channel, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use weir_core::types::Rank;

use crate::bulk::{Asker, Bulk, NoShelf, Shelf};
use crate::frame::{BODY_MOST, BULK_MOST};
use crate::io::{Command, Io};
use crate::post::Post;
use crate::{CallId, Counters, Event, Fabric, Lost, Membership, Message, Timing, Token};

/// One server's end of the fabric.
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
        let counters = Arc::new(Mutex::new(Counters::default()));
        let mut reads = None;
        let (io, commands) = Io::new(
            listener,
            membership,
            timing,
            (told.clone(), Box::new(wake)),
            Arc::clone(&counters),
            |dial| {
                let (bulk, asker) = Bulk::start(shelf, timing, dial)?;
                reads = Some(asker);
                Ok(bulk)
            },
        )?;
        let reads = reads.ok_or(std::io::ErrorKind::Other)?;
        let thread = std::thread::Builder::new()
            .name("weir-fabric".to_owned())
            .spawn(move || io.run())?;
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
        if message.body.len() > BODY_MOST - 8 || message.bulk.len() > BULK_MOST {
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

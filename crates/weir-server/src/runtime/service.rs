//! The service thread: answers clients' channels and the poller's events, and sleeps.
//!
//! To sleep, the thread stores its intent (`server_sleeps` = 1), passes a fence, looks once more at
//! everything that may wake it, and only then sleeps on that word. A client that rings sets its
//! bell first and then looks if the server sleeps. So one of the two sees the other.
//!
//! One of several servers sleeps over the sockets of the others and a named pipe, so that their
//! requests and answers come without another thread. Then a client that rings writes to the pipe.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::atomic::{fence, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::thread::{futex, sched_getcpu};
use rustix::time::Timespec;
use weir_core::node::region::{set_bits, Hub, SLEEPS_AT_BELL, SLEEPS_HERE};
use weir_core::proto::{encode, ClientKind, ServerStatus, Welcome, NO_CLIENT, NO_ROOM};
use weir_core::types::ClientId;

use super::clock::now_ns;
use super::kernel::Kernel;
use super::mailbox::{Answer, Event, Serial, ServiceBox};
use super::patience::Patience;
use super::reactor::Reactor;
use super::refusals::{ConnectionRefusals, Refusal};
use super::regions::Instance;
use crate::node::Node;

/// The number of looks at the bells between two looks at the clock.
const LOOKS: u32 = 32;

/// The service thread's state.
pub struct Service<'a> {
    node: Rc<RefCell<Node<'static, Kernel>>>,
    reactor: Reactor,
    refusals: Arc<ConnectionRefusals>,
    hub: &'static Hub,
    mailbox: ServiceBox,
    instance: &'a Instance,
    welcome: Welcome,
    patience: Patience,
    /// The time at which all requested work was done.
    done: Instant,
    /// The clients by connection.
    clients: HashMap<Serial, ClientId>,
    /// The number of bell words in use.
    bells: usize,
    stop: bool,
}

impl<'a> Service<'a> {
    /// A service thread for `node`.
    pub fn new(
        node: Rc<RefCell<Node<'static, Kernel>>>,
        reactor: Reactor,
        refusals: Arc<ConnectionRefusals>,
        hub: &'static Hub,
        mailbox: ServiceBox,
        instance: &'a Instance,
        welcome: Welcome,
    ) -> Service<'a> {
        let spin_us = welcome.spin_us;
        Service {
            node,
            reactor,
            refusals,
            hub,
            mailbox,
            instance,
            welcome,
            patience: Patience::new(Duration::from_micros(spin_us.into())),
            done: Instant::now(),
            clients: HashMap::new(),
            bells: 1,
            stop: false,
        }
    }

    /// Serves until it must stop. Returns the status at the end.
    pub fn run(&mut self) -> ServerStatus {
        while !self.stop {
            // `work` may learn of a stop when it has nothing else to do: the request for it came in
            // `sleep`.
            let worked = self.work() || self.stop;
            let more = self.renew_journal();
            if worked {
                self.watch();
            } else {
                let now_ns = now_ns();
                self.idle(now_ns);
                let due = self.reactor.catch_up(now_ns);
                if !more {
                    self.sleep(due);
                }
            }
        }
        self.reactor.status()
    }

    /// Does a step of beginning the journal anew. Returns true if the next one is due.
    fn renew_journal(&mut self) -> bool {
        let reactor = &self.reactor;
        self.node
            .borrow_mut()
            .renew_journal(&|at, visit| reactor.show_shared(at, visit))
    }

    fn idle(&mut self, now_ns: i64) {
        self.reactor.idle(now_ns);
        let dead = self.node.borrow_mut().drop_dead_ghosts(now_ns);
        for id in dead {
            self.instance.remove_client(id);
        }
    }

    /// Refuses all further requests, and lets the poller end.
    pub fn shut_down(&mut self) {
        self.node.borrow_mut().stop();
        self.mailbox.tell(Answer::End);
    }

    /// Does all requested work; false if there was none.
    fn work(&mut self) -> bool {
        let mut worked = false;
        while let Some(event) = self.mailbox.next() {
            worked = true;
            self.handle_event(event);
        }
        for (first, word) in (0..).step_by(64).zip(0..self.bells) {
            if self.hub.doorbells[word].load(Ordering::Relaxed) == 0 {
                continue;
            }
            let rung = self.hub.doorbells[word].swap(0, Ordering::SeqCst);
            worked = true;
            for bit in set_bits(rung) {
                self.poll_client(ClientId(first + bit));
            }
        }
        worked |= self.step(worked);
        self.stop |= self.node.borrow().stopping();
        worked
    }

    fn poll_client(&mut self, id: ClientId) {
        let kind = match self.node.borrow().clients().is_mount(id) {
            true => ClientKind::Mount,
            false => ClientKind::Program,
        };
        self.patience.served(kind);
        self.reactor.poll_client(id, now_ns());
    }

    /// Takes messages from other servers; false if there were none.
    fn step(&mut self, look: bool) -> bool {
        let stepped = self.reactor.step(look);
        if stepped {
            self.patience.served(ClientKind::Program);
        }
        self.send_answers();
        stepped
    }

    /// Sends tools the answers to their requests.
    fn send_answers(&self) {
        for (serial, reply) in self.reactor.answers() {
            self.mailbox.tell(Answer::Send(serial, reply));
        }
    }

    fn is_rung(&self) -> bool {
        let bells = &self.hub.doorbells[..self.bells];
        bells.iter().any(|word| word.load(Ordering::SeqCst) != 0)
    }

    /// Waits a little without sleeping: a client that asked once often asks again. See
    /// [`Patience`].
    fn watch(&mut self) {
        self.done = Instant::now();
        let limit = self.patience.limit();
        if limit.is_zero() {
            return;
        }
        let cpu = u32::try_from(sched_getcpu()).unwrap_or(u32::MAX);
        self.hub.server_cpu.store(cpu, Ordering::Relaxed);
        loop {
            for _ in 0..LOOKS {
                if self.is_rung() {
                    return self.patience.asked_after(self.done.elapsed());
                }
                std::hint::spin_loop();
            }
            if self.step(true) {
                return self.patience.asked_after(self.done.elapsed());
            }
            if self.done.elapsed() >= limit {
                return self.patience.watched_in_vain();
            }
        }
    }

    /// Sleeps until a client rings, or until `due_ns` ns have passed.
    fn sleep(&mut self, due_ns: Option<i64>) {
        let sleeps = &self.hub.server_sleeps;
        let at_bell = self.reactor.has_bell();
        let how = if at_bell { SLEEPS_AT_BELL } else { SLEEPS_HERE };
        sleeps.store(how, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        if let Some(event) = self.mailbox.next() {
            sleeps.store(0, Ordering::SeqCst);
            self.handle_event(event);
            return;
        }
        if self.step(false) {
            sleeps.store(0, Ordering::SeqCst);
            return;
        }
        if at_bell {
            if !self.is_rung() && sleeps.load(Ordering::SeqCst) == how {
                self.reactor.sleep(due_ns);
            }
            sleeps.store(0, Ordering::SeqCst);
            self.patience.asked_after(self.done.elapsed());
            return;
        }
        let due = due_ns.map(|ns| Timespec {
            tv_sec: ns / 1_000_000_000,
            tv_nsec: ns % 1_000_000_000,
        });
        // A client may have set the word to 0 by any store: only the bell counts.
        while !self.is_rung() && sleeps.load(Ordering::SeqCst) == how {
            let woken = futex::wait(sleeps, futex::Flags::empty(), how, due.as_ref());
            if woken == Err(Errno::TIMEDOUT) {
                break;
            }
        }
        sleeps.store(0, Ordering::SeqCst);
        self.patience.asked_after(self.done.elapsed());
    }

    fn handle_event(&mut self, event: Event) {
        match event {
            Event::Client { serial, pid, kind } => self.admit(serial, pid, kind),
            Event::Tool(serial) => self.say(serial, &self.welcome),
            Event::Request(serial, bytes) => {
                self.reactor.serve_tool(serial, bytes, now_ns());
                self.send_answers();
                // Look at once: after an event that `sleep` took, no look in `work` would keep the
                // thread from sleeping again.
                self.stop |= self.node.borrow().stopping();
            }
            Event::HungUp(serial) => {
                if let Some(id) = self.clients.get(&serial) {
                    self.node.borrow_mut().hung_up(*id, now_ns());
                }
            }
            Event::Exited(serial) => self.bury(serial),
            Event::Stop => self.stop = true,
        }
    }

    fn say(&self, serial: Serial, welcome: &Welcome) {
        let mut bytes = Vec::new();
        encode(welcome, &mut bytes);
        self.mailbox.tell(Answer::Send(serial, bytes));
    }

    fn admit(&mut self, serial: Serial, pid: u32, kind: ClientKind) {
        self.bury_predecessors(pid);
        let vacant = self.node.borrow().clients().vacant(kind);
        let Some(id) = vacant else {
            self.refusals.refuse(Refusal::Clients, pid);
            return self.turn_away(serial, NO_CLIENT);
        };
        match self.instance.client_region(id) {
            Ok(region) => {
                self.node
                    .borrow_mut()
                    .admit(id, pid, kind, Arc::new(region));
                self.clients.insert(serial, id);
                self.bells = self.bells.max(id.0 as usize / 64 + 1);
                let welcome = Welcome {
                    client: id,
                    ..self.welcome.clone()
                };
                self.say(serial, &welcome);
            }
            Err(error) => {
                tracing::error!(pid, %error, "a client cannot be taken in");
                self.instance.remove_client(id);
                self.turn_away(serial, NO_ROOM);
            }
        }
    }

    /// Tells a process why it is not accepted as a client.
    fn turn_away(&self, serial: Serial, why: ClientId) {
        let refused = Welcome {
            client: why,
            ..self.welcome.clone()
        };
        self.say(serial, &refused);
        self.mailbox.tell(Answer::Close(serial));
    }

    /// Ends earlier clients of a process. A process that connects anew after it hung up has become
    /// another program, and no longer writes as the earlier one.
    fn bury_predecessors(&mut self, pid: u32) {
        let earlier: Vec<Serial> = self
            .clients
            .iter()
            .filter(|(_, id)| {
                let node = self.node.borrow();
                node.clients().pid(**id) == Some(pid) && !node.clients().is_connected(**id)
            })
            .map(|(serial, _)| *serial)
            .collect();
        for serial in earlier {
            self.bury(serial);
            self.mailbox.tell(Answer::Close(serial));
        }
    }

    fn bury(&mut self, serial: Serial) {
        if let Some(id) = self.clients.remove(&serial) {
            self.reactor.client_gone(id, now_ns());
            self.instance.remove_client(id);
        }
    }
}

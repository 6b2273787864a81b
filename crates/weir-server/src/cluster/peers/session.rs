//! Sessions with the other servers. One server's knowledge of another ends when either gives the
//! other up, and both learn of that before they rely on it again.
//!
//! A server that asks another numbers its session with it. Each call carries that number and the
//! time that its operation has left (`deadline`):
//!
//! ```text
//! | session number, u64 little-endian; its top bit: this begins it | ms left, u32 | the request |
//! ```
//!
//! A session ends for the asker when a call is lost or the fabric gives the other server up. It
//! ends for the asked server when the fabric gives the asker up: that server drops the asker's
//! locks and holds, and refuses every call of the session ([`FsError::NewSession`]) without acting.
//! So a call that was under way when a session ended has acted before the next session began, or
//! never does. The next session begins with a list of the files that the asker holds
//! ([`peer::Begin`]).
//!
//! *Leases have a term.* A server believes a lease for [`TERM_NS`] after it sent a request that was
//! answered, and renews it ([`peer::Renew`]) before that is over. A home that cannot recall a lease
//! waits until the holder has stopped believing it. So no read is older than visibility allows,
//! whichever servers are cut off from each other. The end of the term is in shared memory
//! ([`Hub::believed_until_ns`]): if a node's server was killed or is stopped, its programs believe
//! the lease no longer than the server may.
//!
//! [`Hub::believed_until_ns`]: weir_core::node::region::Hub::believed_until_ns

use std::collections::BTreeMap;

use futures_channel::oneshot;
use futures_util::future::{select, Either};
use weir_core::proto::peer::{self, PeerOperation};
use weir_core::proto::FsError;
use weir_core::types::Rank;

use super::debts;
use crate::cluster::peers::PeerServers;
use crate::cluster::Answer;

/// The time for which a lease is believed after the last sign of its home, ns.
pub(in crate::cluster) const TERM_NS: i64 = 2_000_000_000;
/// The longest time between two looks at the leases, while the server believes any, ns.
const LOOK_NS: i64 = 500_000_000;
/// The shortest time between two looks, ns: a server with thousands of others looks between
/// messages.
const LOOK_LEAST_NS: i64 = LOOK_NS / 4;
/// The longest time until the next look, ns.
const LOOK_MOST_NS: i64 = LOOK_NS + LOOK_LEAST_NS;
/// The clock of programs that check the term may be late by a tick of the kernel, ns.
const TICK_NS: i64 = 10_000_000;
/// The bit of a session number in the call that begins the session.
const BEGINS: u64 = 1 << 63;

/// The state of a server's sessions with the others.
#[derive(Debug, Default)]
pub struct Sessions {
    with: BTreeMap<Rank, Session>,
    /// Wakes tasks that wait for a time.
    timers: BTreeMap<(i64, u64), oneshot::Sender<()>>,
    next_timer: u64,
    looked_ns: i64,
    /// The time of the last check for leases that are over.
    doubted_ns: i64,
}

#[allow(clippy::struct_excessive_bools)] // each is of another matter
#[derive(Debug, Default)]
struct Session {
    /// The number of the session in which this server asks.
    number: u64,
    /// True if that session has ended, and a new one must begin.
    ended: bool,
    /// The number of the other server's session that is served here.
    served: u64,
    /// True if the served session has ended.
    refused: bool,
    /// The time at which the last answered call was sent.
    heard_ns: i64,
    /// An upper bound on the time at which the other server sent its last request; it may believe
    /// its leases for a term after that.
    asked_ns: i64,
    /// True if leases of the other server's files are believed here.
    believes: bool,
    /// True if something that the other server told was used since the last look.
    used: bool,
    /// The number of failed tries to begin a session.
    failures: u64,
    /// Told when the server is given up, and when a session begins.
    on_end: Vec<oneshot::Sender<()>>,
    on_begin: Vec<oneshot::Sender<()>>,
    /// Told when a new session of the other server is served.
    on_served: Vec<oneshot::Sender<()>>,
    /// The debts to the other server.
    account: debts::Account,
}

impl Session {
    fn mark_ended(&mut self) {
        self.ended = true;
        self.believes = false;
        for waiting in self.on_end.drain(..) {
            let _ = waiting.send(());
        }
    }

    /// Returns true if a task waits for a session to begin.
    fn is_awaited(&self) -> bool {
        self.ended && !self.on_begin.is_empty()
    }
}

impl Sessions {
    fn session_with(&mut self, rank: Rank) -> &mut Session {
        self.with.entry(rank).or_default()
    }

    /// The time until which all leases are believed, if no other server answers any more.
    fn believed_until(&self) -> Option<i64> {
        let believed = self.with.values().filter(|session| session.believes);
        believed
            .map(|session| session.heard_ns + TERM_NS - TICK_NS)
            .min()
    }

    /// Starts as after a restart: no earlier session with another server holds.
    pub(super) fn begin_anew(&mut self, others: impl Iterator<Item = Rank>, now_ns: i64) {
        for rank in others {
            let session = self.session_with(rank);
            (session.ended, session.refused) = (true, true);
            // The server's previous life may have been asked until just now.
            session.asked_ns = now_ns;
        }
    }
}

/// Encloses a request with the number of its session (0 for the first) and the time left for it.
pub fn enclose(number: u64, left_ms: u32, request: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(12 + request.len());
    out.extend_from_slice(&number.to_le_bytes());
    out.extend_from_slice(&left_ms.to_le_bytes());
    out.extend_from_slice(request);
    out
}

/// A request of another server.
pub(in crate::cluster) struct Admitted<'a> {
    /// The request, encoded.
    pub request: &'a [u8],
    /// The session within which it is asked.
    pub number: u64,
    /// The time by which it is to be done, ns since 1970.
    pub deadline_ns: i64,
}

impl PeerServers {
    /// Extracts the request from another server's message, unless its session is not served.
    pub(in crate::cluster) fn admitted<'a>(
        &self,
        from: Rank,
        bytes: &'a [u8],
    ) -> Result<Admitted<'a>, FsError> {
        let (number, rest) = bytes.split_first_chunk().ok_or(FsError::Malformed)?;
        let (left_ms, request) = rest.split_first_chunk().ok_or(FsError::Malformed)?;
        let left_ms = u32::from_le_bytes(*left_ms);
        let number = u64::from_le_bytes(*number);
        let now_ns = self.now_ns();
        let mut sessions = self.inner.sessions.borrow_mut();
        let session = sessions.session_with(from);
        if number & BEGINS != 0 {
            let number = number & !BEGINS;
            // A late repetition: a newer session has begun.
            if number <= session.served {
                return Err(FsError::NewSession);
            }
            session.served = number;
            session.refused = false;
            // The other server believes nothing from earlier sessions.
            for waiting in session.on_served.drain(..) {
                let _ = waiting.send(());
            }
        } else if session.refused || number != session.served {
            return Err(FsError::NewSession);
        }
        session.asked_ns = now_ns;
        let number = session.served;
        drop(sessions);
        Ok(Admitted {
            request,
            number,
            deadline_ns: self.deadline_in(left_ms),
        })
    }

    /// Fails with `NewSession` if the task performs a request of `from` whose session has ended
    /// meanwhile. If the task recorded a hold, a lease or a token of `from` now, it would stay for
    /// ever, because the end of that session is past. As a reply, the error says that nothing was
    /// done.
    pub(in crate::cluster) fn check_session_of(&self, from: Rank) -> Result<(), FsError> {
        let Some((asker, number)) = self.inner.asker.get().filter(|(asker, _)| *asker == from)
        else {
            return Ok(());
        };
        let mut sessions = self.inner.sessions.borrow_mut();
        let session = sessions.session_with(asker);
        match session.refused || session.served != number {
            true => Err(FsError::NewSession),
            false => Ok(()),
        }
    }

    /// Returns true if a server was given up and has begun no session since.
    pub(in crate::cluster) fn is_refused(&self, rank: Rank) -> bool {
        self.inner.sessions.borrow_mut().session_with(rank).refused
    }

    /// The time until which a server may believe its leases of this server's files.
    fn believed_until(&self, rank: Rank) -> i64 {
        self.inner.sessions.borrow_mut().session_with(rank).asked_ns + TERM_NS
    }

    /// Refuses the requests of a server that missed a message, until it begins a new session and so believes nothing
    /// from before.
    pub(in crate::cluster) fn refuse(&self, rank: Rank) {
        self.inner.sessions.borrow_mut().session_with(rank).refused = true;
    }

    /// Waits until a server that missed a message has stopped believing its leases.
    pub(in crate::cluster) async fn outwait(&self, rank: Rank) {
        self.refuse(rank);
        self.served_or(rank, self.believed_until(rank)).await;
    }

    /// Waits until a server begins a session, or until a time.
    pub(in crate::cluster) async fn served_or(&self, rank: Rank, at_ns: i64) {
        let served = self.told(rank, |session| &mut session.on_served);
        select(served, Box::pin(self.until(at_ns))).await;
    }

    /// Returns true if the session in which something was asked still holds.
    pub(in crate::cluster) fn is_session(&self, with: Rank, number: u64) -> bool {
        let mut sessions = self.inner.sessions.borrow_mut();
        let session = sessions.session_with(with);
        with == self.rank() || (session.number == number && !session.ended)
    }

    /// Ends the sessions with another server, in both directions.
    pub(in crate::cluster) fn end_sessions(&self, with: Rank) {
        let mut sessions = self.inner.sessions.borrow_mut();
        let session = sessions.session_with(with);
        session.refused = true;
        session.mark_ended();
    }

    /// Ends the session in which this server asks another; its leases are not believed any more.
    fn end_session(&self, with: Rank, number: u64) {
        {
            let mut sessions = self.inner.sessions.borrow_mut();
            let session = sessions.session_with(with);
            if session.number != number || session.ended {
                return;
            }
            session.mark_ended();
        }
        self.server().doubt(with);
    }

    /// Runs `act` on the account of a server.
    pub(super) fn account<T>(&self, of: Rank, act: impl FnOnce(&mut debts::Account) -> T) -> T {
        act(&mut self.inner.sessions.borrow_mut().session_with(of).account)
    }

    /// The number of the current session, if there is one.
    pub(in crate::cluster) fn session_now(&self, with: Rank) -> Option<u64> {
        let mut sessions = self.inner.sessions.borrow_mut();
        let session = sessions.session_with(with);
        (!session.ended).then_some(session.number)
    }

    /// The number of the session with a server; begins one if needed and if there is time.
    pub(in crate::cluster) async fn session_in_time(&self, with: Rank) -> Result<u64, FsError> {
        match self.session_now(with) {
            Some(number) => Ok(number),
            None => self.in_time(self.begin_session(with)).await,
        }
    }

    /// Begins a new session if the last has ended. It serves all waiting tasks, so it has the full
    /// time of a call.
    pub(in crate::cluster) async fn begin_session(&self, with: Rank) -> Result<u64, FsError> {
        let current = |peers: &Self| {
            let mut sessions = peers.inner.sessions.borrow_mut();
            let session = sessions.session_with(with);
            ((!session.ended).then_some(session.number), session.failures)
        };
        let (known, failures) = current(self);
        if let Some(number) = known {
            return Ok(number);
        }
        if self.is_given_up(with) {
            return Err(FsError::Unreachable);
        }
        let _turn = self.inner.beginning.hold(with, self.token()).await;
        match current(self) {
            (Some(number), _) => return Ok(number),
            // A task that waited for another's try does not try again.
            (None, now) if now != failures => return Err(FsError::Unreachable),
            (None, _) => {}
        }
        let now = u64::try_from(self.now_ns()).unwrap_or(0);
        let number = {
            let mut sessions = self.inner.sessions.borrow_mut();
            let session = sessions.session_with(with);
            // A server that was restarted does not begin with its earlier number.
            session.number = now.max(session.number + 1);
            session.number
        };
        self.server().doubt(with);
        let held = self.server().held_of(with).ok_or(FsError::Unreachable)?;
        let request = peer::request(held);
        self.server().commit();
        let asked = self
            .inner
            .net
            .call(with, enclose(number | BEGINS, u32::MAX, &request));
        let answer = asked.await.map_err(|_| FsError::Unreachable);
        let cuts = answer.and_then(|answer| peer::reply::<peer::Begin>(&answer.body));
        if let Ok(cuts) = &cuts {
            self.server().cut(cuts);
        }
        let mut sessions = self.inner.sessions.borrow_mut();
        let session = sessions.session_with(with);
        if let Err(error) = cuts {
            session.failures += 1;
            return Err(error);
        }
        session.ended = false;
        for waiting in session.on_begin.drain(..) {
            let _ = waiting.send(());
        }
        let owed = session.account.is_open();
        drop(sessions);
        self.server().note_own_session(with);
        if owed {
            let this = self.clone();
            self.spawn(async move { this.pay_debts(with).await });
        }
        Ok(number)
    }

    /// Asks another server, never this one, within a session, and again in each new session until it
    /// acts; returns the answer and the session's number.
    pub(in crate::cluster) async fn ask(
        &self,
        to: Rank,
        request: Vec<u8>,
    ) -> Result<(Answer, u64), FsError> {
        debug_assert_ne!(to, self.rank());
        loop {
            let number = self.session_in_time(to).await?;
            if let Some(answer) = self.ask_within(to, number, &request, false).await? {
                return Ok((answer, number));
            }
        }
    }

    /// Sends a request to another server.
    pub(super) async fn call_other<O>(&self, to: Rank, op: O) -> Result<O::Reply, FsError>
    where
        O: PeerOperation + 'static,
    {
        let (answer, _) = self.ask(to, peer::request(op)).await?;
        peer::reply::<O>(&answer.body)
    }

    /// Asks within one session; `None` if it has ended, and nothing was done.
    pub(in crate::cluster) async fn ask_within(
        &self,
        to: Rank,
        number: u64,
        request: &[u8],
        surely: bool,
    ) -> Result<Option<Answer>, FsError> {
        self.server().commit();
        let sent_ns = self.now_ns();
        let left_ns = self.time_left();
        if left_ns <= 0 && !surely {
            return Err(FsError::Unreachable);
        }
        let left_ms = if surely {
            i64::MAX
        } else {
            left_ns / 1_000_000 + 1
        };
        let enclosed = enclose(number, u32::try_from(left_ms).unwrap_or(u32::MAX), request);
        self.count_moved(1, enclosed.len());
        let net = &self.inner.net;
        let asked = match surely {
            true => net.call_without_deadline(to, enclosed).await,
            false => self.brought(to, net.call(to, enclosed), left_ns).await,
        };
        let Ok(answer) = asked else {
            self.end_session(to, number);
            return Err(FsError::Unreachable);
        };
        self.count_moved(0, answer.body.len() + answer.bulk.len());
        if peer::is_refused(&answer.body) {
            self.end_session(to, number);
            return Ok(None);
        }
        let mut sessions = self.inner.sessions.borrow_mut();
        let session = sessions.session_with(to);
        if session.number == number {
            session.heard_ns = session.heard_ns.max(sent_ns);
        }
        Ok(Some(answer))
    }

    /// Asks another server, without a time limit. `None` if it was restarted, and it is unknown if it acted.
    pub(super) async fn surely_told<O>(&self, to: Rank, op: O) -> Option<Result<O::Reply, FsError>>
    where
        O: PeerOperation + 'static,
    {
        let request = peer::request(op);
        let _asking = self.asking(to);
        loop {
            let Ok(number) = self.begin_session(to).await else {
                self.next_session(to).await;
                continue;
            };
            if let Some(answer) = self.ask_within(to, number, &request, true).await.ok()? {
                return Some(peer::reply::<O>(&answer.body));
            }
        }
    }

    /// Waits, as long as any call does, for the result of a task that asks a server surely.
    pub(in crate::cluster) async fn told_or_lost<T>(
        &self,
        to: Rank,
        done: oneshot::Receiver<Result<T, FsError>>,
    ) -> Result<T, FsError> {
        match select(done, Box::pin(self.lost(to))).await {
            Either::Left((result, _)) => result.unwrap_or(Err(FsError::Unreachable)),
            Either::Right(_) => Err(FsError::Unreachable),
        }
    }

    /// Waits until a server is given up, or no time is left.
    pub(super) async fn lost(&self, with: Rank) {
        let ended = self.told(with, |session| &mut session.on_end);
        let late = self.until(self.deadline());
        select(ended, Box::pin(late)).await;
    }

    /// Waits until there is a session with a server.
    pub(in crate::cluster) async fn reached(&self, with: Rank) {
        if self.session_now(with).is_none() {
            self.next_session(with).await;
        }
    }

    /// Waits for a session to begin.
    async fn next_session(&self, with: Rank) {
        let begun = self.told(with, |session| &mut session.on_begin);
        let _ = begun.await;
    }

    /// Registers a wait for a session's event; it is told once, or the channel is dropped.
    fn told(
        &self,
        with: Rank,
        list: impl FnOnce(&mut Session) -> &mut Vec<oneshot::Sender<()>>,
    ) -> oneshot::Receiver<()> {
        let (sender, receiver) = oneshot::channel();
        list(self.inner.sessions.borrow_mut().session_with(with)).push(sender);
        receiver
    }

    /// Waits until a time, by the clock of the server.
    pub(in crate::cluster) async fn until(&self, at_ns: i64) {
        if at_ns <= self.now_ns() {
            return;
        }
        let (sender, due) = oneshot::channel();
        {
            let mut sessions = self.inner.sessions.borrow_mut();
            let next = sessions.next_timer;
            sessions.next_timer += 1;
            sessions.timers.insert((at_ns, next), sender);
        }
        let _ = due.await;
    }

    /// Wakes tasks whose time has come, and stops believing leases whose term is over.
    pub(in crate::cluster) fn look_at_times(&self, now_ns: i64) {
        let mut doubted = Vec::new();
        let believed_until = {
            let mut sessions = self.inner.sessions.borrow_mut();
            while let Some(first) = sessions
                .timers
                .first_entry()
                .filter(|t| t.key().0 <= now_ns)
            {
                let _ = first.remove().send(());
            }
            if (0..LOOK_LEAST_NS).contains(&(now_ns - sessions.doubted_ns)) {
                return;
            }
            sessions.doubted_ns = now_ns;
            for (rank, session) in &mut sessions.with {
                if session.believes && now_ns + LOOK_MOST_NS > session.heard_ns + TERM_NS {
                    session.believes = false;
                    doubted.push(*rank);
                }
            }
            sessions.believed_until()
        };
        for rank in doubted {
            self.server().doubt(rank);
        }
        self.server().set_believed_until(believed_until);
    }

    /// Believes a lease of a server's files from now on, if the request sent at `asked_ns` is
    /// recent enough; returns true if so.
    pub(in crate::cluster) fn believe_lease(&self, of: Rank, asked_ns: i64) -> bool {
        let now_ns = self.now_ns();
        let mut sessions = self.inner.sessions.borrow_mut();
        let session = sessions.session_with(of);
        let heard_ns = session.heard_ns.max(asked_ns);
        if session.ended || now_ns + LOOK_MOST_NS > heard_ns + TERM_NS {
            return false;
        }
        session.used = true;
        if !session.believes {
            session.believes = true;
            let believed_until = sessions.believed_until();
            drop(sessions);
            self.server().set_believed_until(believed_until);
        }
        true
    }

    /// Notes that this node uses something that a server told, without a request to it.
    pub(in crate::cluster) fn use_lease(&self, of: Rank) {
        self.inner.sessions.borrow_mut().session_with(of).used = true;
    }

    /// Begins sessions that a task waits for, and renews leases in use. Returns the time of the
    /// next call, if nothing else happens. The runner of the cluster calls it.
    pub fn look_at_sessions(&self) -> Option<i64> {
        let now_ns = self.now_ns();
        let due = |sessions: &Sessions| {
            let timer = sessions.timers.keys().next().map(|(at, _)| *at);
            let mut with = sessions.with.values();
            let looks = with.any(|s| s.believes || s.account.is_open() || s.is_awaited());
            let look = looks.then_some(sessions.looked_ns + LOOK_NS);
            [timer, look].into_iter().flatten().min()
        };
        let mut wanted = Vec::new();
        {
            let mut sessions = self.inner.sessions.borrow_mut();
            if now_ns - sessions.looked_ns < LOOK_NS {
                return due(&sessions);
            }
            sessions.looked_ns = now_ns;
            for (rank, session) in &mut sessions.with {
                session.on_end.retain(|waiting| !waiting.is_canceled());
                session.on_served.retain(|waiting| !waiting.is_canceled());
                let used = std::mem::take(&mut session.used);
                let renews = session.believes && now_ns - session.heard_ns >= LOOK_NS / 2;
                let owed = session.account.is_open();
                let awaited = owed || !session.on_begin.is_empty();
                wanted.push((*rank, (session.ended, owed), (renews, used), awaited));
            }
            sessions.timers.retain(|_, waiting| !waiting.is_canceled());
        }
        for (rank, (ended, owed), (renews, used), awaited) in wanted {
            let this = self.clone();
            if owed && !ended {
                let this = self.clone();
                self.spawn(async move { this.pay_debts(rank).await });
            }
            if ended && (awaited || self.server().uses_files_of(rank)) {
                if !self.inner.beginning.is_held(&rank) {
                    self.spawn(async move {
                        // The next look tries again.
                        let _ = this.begin_session(rank).await;
                    });
                }
            } else if renews && (used || self.server().uses_files_of(rank)) {
                self.spawn(async move {
                    // A lease that is not renewed is not believed.
                    let _ = this.call_other(rank, peer::Renew {}).await;
                });
            }
        }
        due(&self.inner.sessions.borrow())
    }
}

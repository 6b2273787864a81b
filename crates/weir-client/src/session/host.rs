//! The session as the data path uses it: the [`Host`] of real processes.

use core::ops::Range;
use core::sync::atomic::{fence, Ordering};
use core::time::Duration;

use rustix::io::Errno;
use weir_core::node::block::FileBlock;
use weir_core::node::cell::Cell;
use weir_core::node::claim::Claim;
use weir_core::node::landing::LandingSlot;
use weir_core::node::region::Counter;
use weir_core::node::ring::{Note, Record};
use weir_core::node::tail::TailWords;
use weir_core::proto::peer::LogRange;
use weir_core::proto::{
    Append, Attach, Attached, Audit, AwaitRoom, Fetch, Landing, Lent, Locate, Located, Publish,
    Segment, SetAttr, Token, FETCH_PIECES,
};
use weir_core::types::Ino;
use weir_store::slabmap::{ReadWindow, SlabMap};

use super::{now_ns, sleep_on, Session};
use crate::beneath::Transfer;
use crate::data::{file_state, FileState, Host, Log, SegmentSource};
use crate::internal::InternalSlot;
use crate::kernel::{self, Fd};
use crate::limits::{self, mode_after_write};
use crate::operation;
use crate::path::walk::Names;
use crate::target_copy::open_copy;
use crate::view::View;

impl SegmentSource for Session {
    fn tail(&self) -> Option<&TailWords> {
        Some(&self.header().tail)
    }

    fn segment(&self, min_bytes: u64, want_bytes: u64) -> Result<Lent, Errno> {
        self.call(Segment {
            min_bytes,
            want_bytes,
        })
    }

    fn note(&self, note: Note) {
        Session::note(self, note);
    }

    #[inline]
    fn slabs(&self) -> &SlabMap {
        Session::slabs(self)
    }
}

impl Host for Session {
    #[inline]
    fn cells(&self) -> &'static [Cell] {
        Session::cells(self)
    }

    #[inline]
    fn blocks(&self) -> &'static [FileBlock] {
        Session::blocks(self)
    }

    #[inline]
    fn file(&self, ino: Ino) -> Result<FileState, Errno> {
        file_state(self, ino)
    }

    #[inline]
    fn log(&self) -> &Log {
        Session::log(self)
    }

    fn attach(&self, ino: Ino) -> Result<Attached, Errno> {
        self.call(Attach { ino })
    }

    fn is_mapped(&self, ino: Ino) -> bool {
        Session::is_mapped(self, ino)
    }

    fn move_mapped(
        &self,
        ino: Ino,
        slot: &InternalSlot,
        bytes: Transfer<'_>,
    ) -> Option<Result<usize, Errno>> {
        Session::move_mapped(self, ino, slot, bytes)
    }

    fn open_copy(&self, ino: Ino) -> Result<Fd, Errno> {
        let view = View::new(self);
        let file = view.attr(ino)?.ok_or(Errno::IO)?.home;
        open_copy(&view, file).map(kernel::into_number)
    }

    // Inlined, its request would take its room on the stack, and a look for the thread's own memory, at each write.
    #[cold]
    #[inline(never)]
    fn await_room(&self, ino: Ino, waited: &mut Duration) -> Result<(), Errno> {
        let waited_ms = u64::try_from(waited.as_millis()).unwrap_or(u64::MAX);
        let begun_ns = now_ns();
        let awaited = self.call(AwaitRoom { ino, waited_ms });
        let now = Duration::from_nanos(now_ns().saturating_sub(begun_ns));
        *waited += now;
        if awaited.is_ok() {
            let now_us = u64::try_from(now.as_micros()).unwrap_or(u64::MAX);
            self.count(Counter::RoomWaitUs, now_us);
        }
        awaited
    }

    #[inline]
    fn size_limit(&self) -> u64 {
        limits::file_bytes()
    }

    fn exceed_size_limit(&self) {
        kernel::raise_file_size_signal();
    }

    fn before_write(&self, ino: Ino) -> Result<(), Errno> {
        let attr = self.node().names().attr(ino);
        let mode = attr.ok().flatten().as_ref().and_then(mode_after_write);
        if mode.is_none() {
            return Ok(());
        }
        self.call(SetAttr {
            mode,
            ..SetAttr::nothing(ino)
        })
    }

    fn locate(&self, ino: Ino, offset: u64, length: u64) -> Result<Located, Errno> {
        self.call(Locate {
            ino,
            offset,
            length,
        })
    }

    #[inline]
    fn rank(&self) -> u16 {
        self.welcome().rank
    }

    #[inline]
    fn is_one_of_several(&self) -> bool {
        self.welcome().servers > 1
    }

    // A request `ahead` waits for no other thread, because its caller may have room that others wait
    // for.
    fn ask(&self, ino: Ino, reads: &[Vec<LogRange>], ahead: bool) -> Result<Vec<Landing>, Errno> {
        let reads = reads[..as_many_as_fit(reads)].to_vec();
        let most = reads.len();
        let fetch = Fetch { ino, reads, ahead };
        let landings = match ahead {
            true => self.call_at_once(fetch).unwrap_or(Ok(Vec::new()))?,
            false => self.call(fetch)?,
        };
        let fit = landings.len() <= most;
        fit.then_some(landings).ok_or(Errno::IO)
    }

    fn arrive(
        &self,
        landing: Landing,
        part: Range<usize>,
        wait: bool,
        show: &mut dyn FnMut(usize, ReadWindow),
    ) -> Result<usize, Errno> {
        let slot = self.slot(landing).ok_or(Errno::IO)?;
        let begin_ns = now_ns();
        loop {
            let arrived = slot.arrived().map_err(|_| Errno::IO)?;
            let upto = part.end.min(arrived as usize);
            if upto > part.start {
                let pool = self.node().pool()?;
                let place = pool.part(landing.at as usize, part.end).ok_or(Errno::IO)?;
                let came = place.part(part.start, upto - part.start);
                show(part.start, came.ok_or(Errno::IO)?);
                return Ok(upto);
            }
            if !wait || part.is_empty() {
                return Ok(part.start);
            }
            slot.client_sleeps.store(1, Ordering::SeqCst);
            // More may have arrived since; a thread that announces it checks for sleepers.
            if slot.arrived() == Ok(arrived)
                && sleep_on(slot.word(), arrived) == Err(Errno::TIMEDOUT)
            {
                if self.server_gone() {
                    return Err(Errno::SHUTDOWN);
                }
                // Its server would notice that too, but counts from the time of the request.
                let waited_ns = now_ns().saturating_sub(begin_ns);
                if self.is_over(operation::spent_ns().saturating_add(waited_ns)) {
                    return Err(Errno::IO);
                }
            }
        }
    }

    fn slot(&self, landing: Landing) -> Option<&LandingSlot> {
        self.landings().get(usize::from(landing.slot))
    }

    fn now_us(&self) -> u64 {
        now_ns() / 1_000
    }

    fn is_left_behind(&self) -> bool {
        // After the stores to cells: see the server's `runtime/recovery.rs`.
        fence(Ordering::SeqCst);
        self.hub().stopped.load(Ordering::SeqCst) != 0
    }

    fn publish(&self, ino: Ino) -> Result<(), Errno> {
        if self.welcome().servers <= 1 {
            return Ok(());
        }
        self.call(Publish { ino })
    }

    fn append(&self, ino: Ino, length: u64, reserved: Option<u64>) -> Result<u64, Errno> {
        self.call(Append {
            ino,
            length,
            reserved,
        })
    }

    fn token(&self, ino: Ino, needed: &Claim, wished: &Claim) -> Result<Claim, Errno> {
        self.call(Token {
            ino,
            needed: *needed,
            wished: *wished,
        })
    }

    fn fences(&self) -> bool {
        Session::fences(self)
    }

    #[inline]
    fn audits(&self) -> bool {
        self.hub().audit.load(Ordering::Relaxed) != 0
    }

    fn audit(&self, ino: Ino, offset: u64, length: u64) -> Result<(), Errno> {
        self.call(Audit {
            ino,
            offset,
            length,
        })
    }

    fn push(&self, record: &Record) -> Result<(), Errno> {
        Session::push(self, record)
    }

    #[inline]
    fn count(&self, counter: Counter, n: u64) {
        Session::count(self, counter, n);
    }
}

impl Session {
    /// True if a call that has waited so long for servers is to end.
    fn is_over(&self, waited_ns: u64) -> bool {
        let most_ms = self.hub().deadline_ms.load(Ordering::Relaxed);
        most_ms != 0 && waited_ns / 1_000_000 > u64::from(most_ms)
    }
}

/// The number of reads, at least one, that together have no more pieces than one request may.
fn as_many_as_fit(reads: &[Vec<LogRange>]) -> usize {
    let mut pieces = 0;
    let fit = reads.iter().take_while(|ranges| {
        pieces += ranges.len();
        pieces <= FETCH_PIECES
    });
    fit.count().max(1).min(reads.len())
}

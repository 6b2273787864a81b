//! A stream: one process's writing to one file.
//!
//! It holds the process's copy of its cell's record. The hot path ([`Stream::grow`]) is a compare
//! with the file's epoch, a copy and a store. If it does not apply, 3 and 1 of the following are
//! tried where the claim covers the bytes ([`Stream::write_in_claim`]). The slow path
//! ([`Stream::write`]) decides how the record continues, in this order:
//!
//! 1. *In place*: the live piece already covers the write.
//! 2. *Grow*: the write begins where the live piece ends; the claim or the
//!    reservation may have to be extended.
//! 3. *Next piece*: the write begins where the arithmetic progression of the record
//!    has its next piece (N-1 strided).
//! 4. *Begin*: the record is pushed to the server's ring, and another one begins.
//!
//! *Raw files* of several servers. A node writes bytes of such a file only while it has a write
//! token for them (the server's `cluster/files/tokens.rs`). The file's block says if this node
//! holds all of it; if not, the server is asked before a record begins or its claim grows. When the
//! token is revoked, the epoch ends every claim, as a conflict does. A write that was under way
//! then checks once more when its bytes are in place: the hot path hands it to the slow path, which
//! asks for the token again ([`Stream::confirm`]). So when another node gets the token, either the
//! bytes are published or the write has not returned yet.
//!
//! Published bytes are not written in place: a publish first ends all claims, so that the bytes
//! that other nodes hold stay valid until those nodes are told.
//!
//! *Settled bytes* may be freed, since the parallel file system has them (the server's
//! `cluster/files/evict_part.rs`). When the server settles a file, the epoch ends every claim, and a
//! write of the slow path that was under way is made again as a new record: else the server could free
//! bytes that came after its look at the record.
//!
//! A progression is guessed from two consecutive pieces at equal distances.

use core::sync::atomic::{compiler_fence, fence, Ordering};

use rustix::io::Errno;
use weir_core::node::block::{FileBlock, ASK};
use weir_core::node::cell::{Cell, State};
use weir_core::node::claim::{self, Claim, Outcome};
use weir_core::node::region::Counter;
use weir_core::node::ring::{Note, Record};
use weir_core::types::Ino;
use weir_store::slabmap::Window;

use super::host::{Host, MAX_FILE_BYTES};
use super::log::Reservation;
use crate::sys;

/// The least by which a claim is extended, in bytes.
const MIN_CLAIM: u64 = 64 << 10;
/// The most.
const MAX_CLAIM: u64 = 1 << 30;
/// The most that a reservation takes beyond what a write needs, in bytes.
const MAX_RESERVE: u64 = 16 << 20;
/// The tail of a segment is used up before another segment is requested, if it can take this much
/// of a write.
const MIN_RESERVE: u64 = 1 << 20;
/// A write of `n` bytes counts as `n` plus this towards the next look at the clock.
const CLOCK_STEP: u64 = 256;
/// The number of bytes that writes may advance without a look at the clock.
const CLOCK_BYTES: u64 = 4096;
/// Some ticks of the kernel's clock, which may be idle.
const RECENT_NS: u64 = 20_000_000;
/// The number of segments that may turn out to have no pages before a write gives up.
const REFUSALS: u32 = 8;
/// An epoch that no file has: the record must not grow.
const NEVER: u64 = u64::MAX;

/// The state of a process's writing to a file.
#[derive(Debug, Default)]
pub struct Stream {
    /// The offset in the file at which the live piece continues.
    next: u64,
    /// The number of bytes that it may still take without a decision.
    room: u64,
    /// The epoch of the claim.
    epoch: u64,
    /// The epoch of the last check if a write clears set-id bits of the file.
    cleared: u64,
    /// The number of times that this node had given up its token of the file when the stream last
    /// asked.
    revocations: u64,
    /// Bytes of a raw file for which this node has held a token since then.
    token: Claim,
    /// True if the server cannot make this process execute a barrier: see [`Host::fences`].
    fences: bool,
    /// True if another node's append follows the bytes being written: then only they are claimed.
    ends_here: bool,
    /// The offset in the reservation of the next byte.
    used: u64,
    /// The cell's counter of bytes.
    committed: u64,
    /// Bytes (and a bit for each write) since the last look at the clock.
    unseen: u64,
    /// True if the noted time is that of the last write, if no bytes are unseen; or there was none.
    is_time_exact: bool,
    window: Option<Window>,
    file: Option<AttachedFile>,
    state: State,
    claim: Claim,
    reservation: Option<Reservation>,
    /// The distance from the piece before the live one to the live one.
    jump: u64,
    /// `committed` when the stream was attached.
    counted: u64,
    /// `committed` at the last publish, or when the stream was attached.
    published: u64,
}

/// The file's block and cell, from attaching.
#[derive(Clone, Copy, Debug)]
struct AttachedFile {
    ino: Ino,
    block: &'static FileBlock,
    cell: &'static Cell,
    index: u32,
}

impl Stream {
    /// The hot path: appends to the live piece if there is nothing to decide. No allocation, no
    /// system call, no lock that processes share. False if nothing was written, or claims ended
    /// meanwhile; then [`Stream::write`] does it again.
    #[inline(always)]
    #[allow(clippy::inline_always)] // measured: see process/io/mod.rs
    pub fn grow(&mut self, offset: u64, bytes: &[u8]) -> bool {
        let length = bytes.len() as u64;
        if offset != self.next || length > self.room {
            return false;
        }
        let (Some(file), Some(window)) = (&self.file, &self.window) else {
            return false;
        };
        if file.block.epoch.load(Ordering::Acquire) != self.epoch {
            return false;
        }
        let block = file.block;
        window.write(index(self.used), bytes);
        self.advance(length);
        self.unseen += length + CLOCK_STEP;
        if self.unseen >= CLOCK_BYTES {
            self.touch();
        }
        self.settle_order();
        block.epoch.load(Ordering::Acquire) == self.epoch
    }

    /// Orders the store to the cell before the look at the block that follows. The server makes
    /// every processor execute a barrier before it relies on that order, so here only the compiler
    /// must be held back.
    #[inline(always)]
    #[allow(clippy::inline_always)] // as for `grow`
    fn settle_order(&self) {
        compiler_fence(Ordering::SeqCst);
        if self.fences {
            fence(Ordering::SeqCst);
        }
    }

    /// Accounts for `length` bytes that are in place, and shows them.
    #[inline(always)]
    #[allow(clippy::inline_always)] // as for `grow`
    fn advance(&mut self, length: u64) {
        self.used += length;
        self.next += length;
        self.room -= length;
        self.committed = self.committed.wrapping_add(length);
        if let Some(file) = &self.file {
            file.cell.commit(self.committed);
        }
    }

    /// Notes the time of the write that was just made. The first one since the file was attached, or got another time, has the
    /// exact time: else it could seem older than a file that was closed before it, if nobody refines it.
    #[cold]
    fn touch(&mut self) {
        let cell = self.file.as_ref().map(|file| file.cell);
        let noted = cell.map_or(0, |cell| cell.mtime_ns.load(Ordering::Relaxed));
        self.note_time(match noted {
            0 => sys::now_ns(),
            noted => sys::coarse_now_ns().max(noted),
        });
        self.is_time_exact = noted == 0;
    }

    /// Notes the time of the last write to the nanosecond, if it was a moment ago and nobody has looked at it since. So the
    /// times of two files tell which was written first, as the drain needs it: the kernel's clock ticks.
    pub fn refine_time(&mut self) {
        let Some(cell) = self.file.as_ref().map(|file| file.cell) else {
            return;
        };
        if self.is_time_exact && self.unseen == 0 {
            return;
        }
        let noted = cell.mtime_ns.load(Ordering::Relaxed);
        // A time that is past the clock's tick is exact already.
        let since = sys::coarse_now_ns().checked_sub(noted);
        let is_recent = noted != 0 && since.is_some_and(|since| since < RECENT_NS);
        if (self.unseen > 0 || is_recent) && !cell.is_time_seen() {
            self.note_time(sys::now_ns());
            self.is_time_exact = true;
        }
    }

    fn note_time(&mut self, now_ns: u64) {
        self.unseen = 0;
        if let Some(file) = &self.file {
            file.cell.mtime_ns.store(now_ns, Ordering::Release);
            file.cell
                .mtime_mark
                .store(self.committed, Ordering::Release);
        }
    }

    /// Writes bytes that the claim already covers: the next piece of a progression, or over bytes of the live piece. False if
    /// neither was possible, or claims ended meanwhile; then [`Stream::write`] does it (again).
    #[inline(never)]
    pub fn write_in_claim<H: Host>(
        &mut self,
        host: &H,
        offset: u64,
        bytes: &[u8],
    ) -> Result<bool, Errno> {
        let Some(file) = self.file.filter(|file| self.is_growing(file)) else {
            return Ok(false);
        };
        if self.epoch != self.cleared || bytes.is_empty() {
            return Ok(false);
        }
        if self.next_piece(host, &file, offset) {
            return Ok(self.grow(offset, bytes));
        }
        self.write_in_place(host, &file, offset, bytes)
    }

    /// Writes over bytes of the live piece. False if it does not hold them all, or is not growing any more: if it was published,
    /// other nodes may have fetched the old bytes, and nothing would tell them of the change.
    fn write_in_place<H: Host>(
        &mut self,
        host: &H,
        file: &AttachedFile,
        offset: u64,
        bytes: &[u8],
    ) -> Result<bool, Errno> {
        let length = bytes.len() as u64;
        if !self.covers(offset, length) || offset + length > host.size_limit() {
            return Ok(false);
        }
        self.store(host, self.used - (self.next - offset), bytes)?;
        // The barrier of this look orders the bytes before both.
        if host.is_left_behind() || !self.is_growing(file) {
            return Ok(false);
        }
        host.count(Counter::BytesWritten, length);
        self.touch();
        Ok(true)
    }

    /// Writes `bytes` at `offset`; returns how many, fewer only if there was no room for the rest.
    pub fn write<H: Host>(
        &mut self,
        host: &H,
        ino: Ino,
        offset: u64,
        bytes: &[u8],
    ) -> Result<usize, Errno> {
        let length = bytes.len() as u64;
        if offset
            .checked_add(length)
            .is_none_or(|e| e > MAX_FILE_BYTES)
        {
            return Err(Errno::INVAL);
        }
        if length == 0 {
            return Ok(0);
        }
        if host.is_left_behind() {
            return Err(Errno::IO);
        }
        let file = self.attach(host, ino)?;
        self.clear_set_ids(host, &file)?;
        if self.is_growing(&file) && self.write_in_place(host, &file, offset, bytes)? {
            return Ok(bytes.len());
        }
        #[cfg(debug_assertions)]
        crate::bugs::planted::set_off(bytes);
        let mut done = 0;
        while done < bytes.len() {
            match self.put(host, &file, offset + done as u64, &bytes[done..]) {
                Ok(n) => done += n,
                Err(errno) => {
                    // No look at the epoch has confirmed that the record may grow.
                    self.epoch = NEVER;
                    if done == 0 {
                        return Err(errno);
                    }
                    break;
                }
            }
        }
        self.confirm(host, &file, &Claim::range(offset, done as u64))?;
        self.touch();
        Ok(done)
    }

    /// Clears set-id bits of the file. The server ends all claims when the file gets one, so one
    /// check an epoch is enough.
    fn clear_set_ids<H: Host>(&mut self, host: &H, file: &AttachedFile) -> Result<(), Errno> {
        let epoch = file.block.epoch.load(Ordering::Acquire);
        if epoch != self.cleared {
            host.before_write(file.ino)?;
            self.cleared = epoch;
        }
        Ok(())
    }

    /// The part of `wished` that may be written of a raw file, at least `needed`. Asks the server
    /// if this node is not known to hold a token for it.
    fn permit<H: Host>(
        &mut self,
        host: &H,
        file: &AttachedFile,
        needed: &Claim,
        wished: &Claim,
    ) -> Result<Claim, Errno> {
        let revocations = file.block.revocations.load(Ordering::SeqCst);
        let holds = revocations == self.revocations && self.token.contains(needed);
        self.revocations = revocations;
        if file.block.tokens.load(Ordering::SeqCst) != ASK {
            return Ok(*wished);
        }
        if !holds {
            self.token = Claim::default();
            self.token = host.token(file.ino, needed, wished)?;
        }
        let held = |claim: &Claim| self.token.contains(claim);
        Ok(wished.clip(needed, held).unwrap_or(*needed))
    }

    /// Asks again for the token of a finished write, if it was revoked meanwhile: its next holder
    /// may not have seen the bytes.
    fn confirm<H: Host>(
        &mut self,
        host: &H,
        file: &AttachedFile,
        written: &Claim,
    ) -> Result<(), Errno> {
        self.settle_order();
        if file.block.revocations.load(Ordering::SeqCst) == self.revocations {
            return Ok(());
        }
        self.epoch = NEVER;
        self.permit(host, file, written, written).map(drop)
    }

    /// The offset of `length` bytes that are appended by another way than this stream.
    pub fn place_append<H: Host>(
        &mut self,
        host: &H,
        ino: Ino,
        length: usize,
    ) -> Result<u64, Errno> {
        let file = self.attach(host, ino)?;
        Self::place_of_append(host, &file, ino, length as u64)
    }

    /// Writes `bytes` at the end of the file; returns the offset and how many, 0 if there is no room. No other
    /// append gets the offset.
    pub fn append<H: Host>(
        &mut self,
        host: &H,
        ino: Ino,
        bytes: &[u8],
    ) -> Result<(u64, usize), Errno> {
        let file = self.attach(host, ino)?;
        let length = bytes.len() as u64;
        let size = file.block.size(host.cells());
        if size.saturating_add(length) > MAX_FILE_BYTES {
            return Err(Errno::FBIG);
        }
        let room = host.size_limit().saturating_sub(size);
        let length = length.min(room);
        let bytes = &bytes[..usize::try_from(length).unwrap_or(bytes.len())];
        if room == 0 {
            return Err(Errno::FBIG);
        }
        let offset = Self::place_of_append(host, &file, ino, length)?;
        if offset.saturating_add(length) > host.size_limit() {
            // Others have appended meanwhile. The reserved bytes stay, and read as zeros.
            return Err(Errno::FBIG);
        }
        if self.grow(offset, bytes) {
            return Ok((offset, bytes.len()));
        }
        self.ends_here = file.block.shares_appends();
        let done = self.write(host, ino, offset, bytes);
        self.ends_here = false;
        match done {
            Err(Errno::NOSPC) => Ok((offset, 0)),
            done => Ok((offset, done?)),
        }
    }

    /// Reserves the offset of `length` bytes to append: no other append gets them.
    fn place_of_append<H: Host>(
        host: &H,
        file: &AttachedFile,
        ino: Ino,
        length: u64,
    ) -> Result<u64, Errno> {
        if file.block.shares_appends() {
            return host.append(ino, length, None);
        }
        let offset = file.block.reserve_append(host.cells(), length);
        if file.block.shares_appends() {
            return host.append(ino, length, Some(offset));
        }
        Ok(offset)
    }

    /// Writes a first part of `bytes`, at least one byte.
    fn put<H: Host>(
        &mut self,
        host: &H,
        file: &AttachedFile,
        offset: u64,
        bytes: &[u8],
    ) -> Result<usize, Errno> {
        for _ in 0..REFUSALS {
            let settlings = file.block.settlings.load(Ordering::SeqCst);
            let room = self.continue_at(host, file, offset, bytes.len() as u64)?;
            let n = usize::try_from(room).map_or(bytes.len(), |r| r.min(bytes.len()));
            match self.store(host, self.used, &bytes[..n]) {
                Ok(()) => {
                    self.advance(n as u64);
                    self.settle_order();
                    if file.block.settlings.load(Ordering::SeqCst) == settlings {
                        return Ok(n);
                    }
                    // The server may have taken the record for finished before it had these bytes.
                    self.epoch = NEVER;
                }
                Err(Errno::NOSPC) => self.refuse(host),
                Err(errno) => return Err(errno),
            }
        }
        Err(Errno::NOSPC)
    }

    /// Tells the server that others have filled the tmpfs; it then lends something else.
    #[cold]
    fn refuse<H: Host>(&mut self, host: &H) {
        let segment = self.reservation.as_ref().map(|held| held.segment);
        self.give_back(host);
        if let Some(segment) = segment {
            host.log().refuse(host, segment);
        }
    }

    /// Ends the reservation, and with it the record, which without it can neither grow nor be
    /// changed in place.
    fn give_back<H: Host>(&mut self, host: &H) {
        if let Some(held) = self.reservation.take() {
            host.log().give_back(host, &held, self.used);
        }
        self.epoch = NEVER;
        self.window = None;
        self.room = 0;
    }

    /// Makes the live piece continue at `offset`; returns how much it may take, at least 1.
    fn continue_at<H: Host>(
        &mut self,
        host: &H,
        file: &AttachedFile,
        offset: u64,
        left: u64,
    ) -> Result<u64, Errno> {
        let growing = self.is_growing(file);
        let on = growing
            && if offset == self.next {
                self.room > 0 || self.extend(host, file, left)
            } else {
                self.next_piece(host, file, offset)
            };
        if !on {
            self.begin(host, file, offset, left)?;
        }
        Ok(self.room)
    }

    /// Attaches to the file unless that was done already.
    fn attach<H: Host>(&mut self, host: &H, ino: Ino) -> Result<AttachedFile, Errno> {
        if let Some(file) = self.file {
            return Ok(file);
        }
        let attached = host.attach(ino)?;
        let block = host.blocks().get(attached.block as usize);
        let cell = host.cells().get(attached.cell as usize);
        let (Some(block), Some(cell)) = (block, cell) else {
            return Err(Errno::IO);
        };
        self.adopt(
            host,
            AttachedFile {
                ino,
                block,
                cell,
                index: attached.cell,
            },
        );
        self.file.ok_or(Errno::IO)
    }

    fn adopt<H: Host>(&mut self, host: &H, file: AttachedFile) {
        self.fences = host.fences();
        self.committed = file.cell.committed.load(Ordering::Relaxed);
        self.counted = self.committed;
        self.published = self.committed;
        self.token = Claim::default();
        self.epoch = NEVER;
        self.cleared = NEVER;
        self.room = 0;
        self.is_time_exact = file.cell.mtime_ns.load(Ordering::Relaxed) == 0;
        self.state = file.cell.state().0;
        self.file = Some(file);
    }

    /// Takes over an attachment that came with the creation of the file.
    pub fn attached<H: Host>(&mut self, host: &H, ino: Ino, block: u32, cell: u32) {
        let block = host.blocks().get(block as usize);
        let index = cell;
        if let (None, Some(block), Some(cell)) = (self.file, block, host.cells().get(cell as usize))
        {
            let file = AttachedFile {
                ino,
                block,
                cell,
                index,
            };
            self.adopt(host, file);
        }
    }

    /// True if the record may grow: its claim has not ended.
    fn is_growing(&self, file: &AttachedFile) -> bool {
        self.state.stamp != 0 && file.block.epoch.load(Ordering::Acquire) == self.epoch
    }

    /// The length of the live piece.
    fn live(&self) -> u64 {
        self.committed.wrapping_sub(self.state.mark)
    }

    fn covers(&self, offset: u64, length: u64) -> bool {
        offset >= self.state.live_offset() && offset + length <= self.next
    }

    /// True if the live piece holds all of `[offset, offset + length)` and nobody wrote there
    /// since; then [`Stream::read_live`] can read it.
    pub fn holds(&self, offset: u64, length: u64) -> bool {
        self.file.is_some_and(|p| self.is_growing(&p)) && self.covers(offset, length)
    }

    /// Reads bytes that the live piece holds.
    pub fn read_live<H: Host>(&self, host: &H, offset: u64, bytes: &mut [u8]) -> Result<(), Errno> {
        let at = self.used - (self.next - offset);
        if let Some(window) = &self.window {
            window.read(index(at), bytes);
            return Ok(());
        }
        let held = self.reservation.as_ref().ok_or(Errno::IO)?;
        host.slabs().read_at(held.slab, held.pos + at, bytes)
    }

    /// Puts bytes at `at` of the reservation.
    fn store<H: Host>(&self, host: &H, at: u64, bytes: &[u8]) -> Result<(), Errno> {
        if let Some(window) = &self.window {
            window.write(index(at), bytes);
            return Ok(());
        }
        let held = self.reservation.as_ref().ok_or(Errno::IO)?;
        let pos = held.pos + at;
        match &held.cold {
            Some(writer) => writer.write(host.slabs(), index(pos - writer.pos()), bytes),
            None => host.slabs().write_at(held.slab, pos, bytes),
        }
    }

    /// Extends the claim and the reservation of a record that grows at its end. False: another
    /// record must begin.
    fn extend<H: Host>(&mut self, host: &H, file: &AttachedFile, left: u64) -> bool {
        if self.claim.count != 1 {
            return false;
        }
        if !self.lengthen_reservation(host, left, 1) {
            return false;
        }
        let Some(held) = &self.reservation else {
            return false;
        };
        let in_reservation = held.len - self.used;
        if self.claim.end() <= self.next && !self.widen_claim(host, file, left.min(in_reservation))
        {
            return false;
        }
        self.room = in_reservation.min(self.claim.end() - self.next);
        self.keep_within_limit(host);
        self.room > 0
    }

    /// Makes sure that the reservation has room for `least` bytes more, by lengthening it if
    /// possible; `left` bytes are about to be written.
    fn lengthen_reservation<H: Host>(&mut self, host: &H, left: u64, least: u64) -> bool {
        let want = self.bytes_to_reserve(left.max(least));
        let Some(held) = &mut self.reservation else {
            return false;
        };
        if held.len - self.used >= least {
            return true;
        }
        held.len = host.log().lengthen(host, held, want);
        if self.window.is_some() {
            match host.slabs().window(held.slab, held.pos, held.len) {
                Ok(window) => self.window = Some(window),
                Err(_) => return false,
            }
        }
        held.len - self.used >= least
    }

    /// Claims more bytes behind the live piece for the same record. That is correct only if no
    /// other record of the file began since this one, because its stamp stays.
    fn widen_claim<H: Host>(&mut self, host: &H, file: &AttachedFile, needed: u64) -> bool {
        let begin = self.state.offset;
        let more = match self.ends_here {
            true => needed,
            false => (self.live() * 2).clamp(MIN_CLAIM, MAX_CLAIM).max(needed),
        };
        let end = self.next.saturating_add(more).min(MAX_FILE_BYTES);
        let asked = self.permit(
            host,
            file,
            &Claim::range(self.next, needed),
            &Claim::range(self.next, end - self.next),
        );
        let Ok(permitted) = asked else {
            // The record that begins instead meets the same error.
            return false;
        };
        let end = permitted.end().min(end);
        let outcome = claim::acquire(
            file.block,
            host.cells(),
            file.index,
            &Claim::range(begin, self.next + needed - begin),
            &Claim::range(begin, end - begin),
        );
        match outcome {
            Outcome::Granted { claim, epoch }
                if epoch == self.epoch
                    && file.block.next_stamp.load(Ordering::SeqCst) == self.state.stamp + 1 =>
            {
                self.claim = claim;
                true
            }
            _ => {
                host.count(Counter::Conflicts, u64::from(outcome == Outcome::Single));
                self.epoch = NEVER;
                false
            }
        }
    }

    /// Continues with the next piece of the record's progression, if `offset` is its beginning.
    fn next_piece<H: Host>(&mut self, host: &H, file: &AttachedFile, offset: u64) -> bool {
        let is_next = self.claim.count > 1
            && self.live() == self.claim.length
            && offset == self.state.live_offset().wrapping_add(self.claim.stride)
            && offset < self.claim.end()
            && self.lengthen_reservation(host, self.claim.length, self.claim.length);
        if is_next {
            self.state.count += 1;
            self.state.length = self.claim.length;
            self.state.stride = self.claim.stride;
            self.state.mark = self.committed;
            file.cell.replace(&self.state);
            self.next = offset;
            self.room = self.claim.length;
            self.keep_within_limit(host);
        }
        is_next
    }

    /// Ends the record in force and begins another one at `offset`.
    fn begin<H: Host>(
        &mut self,
        host: &H,
        file: &AttachedFile,
        offset: u64,
        left: u64,
    ) -> Result<(), Errno> {
        let piece = self.live();
        let jump = offset.wrapping_sub(self.state.live_offset());
        let had_record = self.state.stamp != 0;
        let strided = had_record && jump == self.jump && piece > 0 && jump > piece && left <= piece;
        let goes_on = had_record && offset == self.next && !self.ends_here;
        let all = Claim::range(offset, left);
        let wished = if strided {
            Claim {
                offset,
                length: piece,
                stride: jump,
                count: (MAX_FILE_BYTES - offset) / jump,
            }
        } else if goes_on {
            let more = (piece * 2).clamp(MIN_CLAIM, MAX_CLAIM).max(left);
            Claim::range(offset, more.min(MAX_FILE_BYTES - offset))
        } else {
            all
        };
        let wished = if wished.count == 0 { all } else { wished };
        let permitted = self.permit(host, file, &all, &wished)?;
        self.close(host, file)?;
        self.reserve(host, if strided { piece } else { left })?;
        let held = self.reservation.as_ref().ok_or(Errno::NOSPC)?;
        let fits = held.len - self.used;
        let (slab, pos) = (held.slab.raw(), held.pos + self.used);
        let take = left.min(fits);
        let needed = Claim::range(offset, take);
        let wished = if permitted == all { needed } else { permitted };
        let outcome = claim::acquire(file.block, host.cells(), file.index, &needed, &wished);
        let stamp = file.block.stamp();
        let old = (self.state, piece);
        self.state = State::begin(offset, slab, pos, stamp, &old, file.block);
        self.state.mark = self.committed;
        file.cell.replace(&self.state);
        host.count(Counter::Records, 1);
        self.jump = jump;
        self.next = offset;
        match outcome {
            Outcome::Granted { claim, epoch } => {
                let limit = if claim.count > 1 {
                    claim.length
                } else {
                    claim.end() - offset
                };
                (self.claim, self.epoch, self.room) = (claim, epoch, limit.min(fits));
            }
            Outcome::Single => {
                host.count(Counter::Conflicts, 1);
                (self.claim, self.epoch, self.room) = (Claim::default(), NEVER, take);
            }
        }
        // It became mapped after this write looked: nothing may be written past the kernel's pages. The server marks the
        // file before it ends claims, so a claim that did not end sees the mark.
        if host.is_mapped(file.ino) {
            self.epoch = NEVER;
        }
        self.keep_within_limit(host);
        Ok(())
    }

    /// Makes writes without a decision keep within the limit of the file's size.
    fn keep_within_limit<H: Host>(&mut self, host: &H) {
        self.room = self.room.min(host.size_limit().saturating_sub(self.next));
    }

    /// Makes the next write need a decision.
    pub fn decide_anew(&mut self) {
        self.room = 0;
    }

    /// Hands the record in force to the server. It stays in the cell until another
    /// one begins; the server may see it twice.
    fn close<H: Host>(&mut self, host: &H, file: &AttachedFile) -> Result<(), Errno> {
        let state = &self.state;
        let live = self.live();
        if state.stamp == 0 {
            return Ok(());
        }
        let whole = state.count + u64::from(state.count > 0 && live == state.length);
        let record = Record {
            cell: file.index,
            slab: state.slab,
            offset: state.offset,
            length: state.length,
            stride: if whole > 1 { state.stride } else { 0 },
            count: whole,
            pos: state.pos,
            stamp: state.stamp,
        };
        if whole > 0 {
            host.push(&record)?;
        }
        if live > 0 && whole == state.count {
            host.push(&Record {
                offset: state.live_offset(),
                length: live,
                stride: 0,
                count: 1,
                pos: state.live_pos(),
                ..record
            })?;
        }
        Ok(())
    }

    /// The number of bytes to reserve for a stream that is about to write `left` bytes.
    fn bytes_to_reserve(&self, left: u64) -> u64 {
        let so_far = self.committed.wrapping_sub(self.counted);
        left.max((so_far * 2).min(MAX_RESERVE))
    }

    /// Makes sure that the reservation has room for a record that will take `left` bytes; if not,
    /// makes another one.
    fn reserve<H: Host>(&mut self, host: &H, left: u64) -> Result<(), Errno> {
        if let Some(held) = &self.reservation {
            if held.len - self.used >= left {
                return Ok(());
            }
            // Even if no other room is found.
            self.give_back(host);
        }
        let want = self.bytes_to_reserve(left);
        let min = left.min(MIN_RESERVE);
        let reservation = host.log().reserve(host, min, want)?;
        self.used = 0;
        self.window = if reservation.warm {
            let slabs = host.slabs();
            Some(slabs.window(reservation.slab, reservation.pos, reservation.len)?)
        } else {
            None
        };
        self.reservation = Some(reservation);
        Ok(())
    }

    /// Leaves the file: the process has closed its last descriptor. The server takes the record
    /// from the cell.
    pub fn detach<H: Host>(&mut self, host: &H) {
        if let Some(held) = self.reservation.take() {
            host.log().give_back(host, &held, self.used);
        }
        if let Some(file) = self.file {
            host.count(
                Counter::BytesWritten,
                self.committed.wrapping_sub(self.counted),
            );
            self.refine_time();
            host.note(Note::Detach(file.index));
        }
        *self = Stream::default();
    }

    /// The counter of committed bytes, if it has grown since the process published last; for
    /// [`Stream::set_published`].
    pub fn unpublished(&self) -> Option<u64> {
        let wrote = self.file.is_some() && self.committed != self.published;
        wrote.then_some(self.committed)
    }

    /// Notes that the process has published all bytes up to `committed`.
    pub fn set_published(&mut self, committed: u64) {
        self.published = committed;
    }

    /// The cell, if attached.
    pub fn cell(&self) -> Option<u32> {
        self.file.map(|p| p.index)
    }
}

/// An offset in a reservation, which is less than a slab.
#[inline]
#[allow(clippy::cast_possible_truncation)] // at most 64 MiB
fn index(at: u64) -> usize {
    at as usize
}

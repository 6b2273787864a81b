//! One file as one process sees it.
//!
//! Two streams: a signal handler that interrupts a write of its own thread writes through the
//! second one, with its own cell, like another process; claims keep the order of the two. A handler
//! that interrupts even that gets EAGAIN.
//!
//! If an assertion of ours fails while the state of a vnode is being changed, the vnode is *broken*
//! ([`crate::bugs`]): an empty state replaces it before its lock is free, and every call that moves
//! or syncs bytes fails with EIO until the process has closed the file. The bytes of finished
//! writes stay: they are in the cell and the ring, which the server keeps until the process ends.

use core::sync::atomic::{fence, AtomicBool, AtomicU64, Ordering};
use core::time::Duration;

use rustix::io::Errno;
use weir_core::types::Ino;

use super::ahead::Ahead;
use super::host::{at_once, Host};
use super::map::Map;
use super::pieces::index;
use super::stream::Stream;
use super::target_copy::CopyReader;
use crate::beneath::Transfer;
use crate::internal::{Internal, InternalSlot};
use crate::siglock::{SigLock, TryLock};

/// A file, open in this process.
#[derive(Debug, Default)]
pub struct Vnode {
    ino: AtomicU64,
    streams: [SigLock<Stream>; 2],
    pub(super) map: SigLock<Map>,
    /// The bytes fetched ahead of its readers, and a flag that is set if there are or may be any.
    pub(super) ahead: SigLock<Ahead>,
    pub(super) reads_far: AtomicBool,
    /// The file in the kernel mount, while it is mapped; the same read-only; and for private
    /// mappings alone.
    pub(crate) beneath: InternalSlot,
    pub(crate) beneath_reads: InternalSlot,
    pub(crate) beneath_private: InternalSlot,
    /// The copy of the file on the parallel file system, if it was evicted.
    pub(super) copy: CopyReader,
    /// True if an assertion failed during a change of this.
    broken: AtomicBool,
}

/// The state behind one of the locks, while it is changed. Dropped only by a panic, after which the state in the middle of
/// a change is not trusted: it breaks the vnode while the lock is held, so that nobody sees a half-changed state.
struct Breaks<'a, T: Default> {
    vnode: &'a Vnode,
    changed: &'a mut T,
}

impl<'a, T: Default> Breaks<'a, T> {
    #[inline(always)]
    #[allow(clippy::inline_always)] // as for `write_at`
    fn new(vnode: &'a Vnode, changed: &'a mut T) -> Breaks<'a, T> {
        Breaks { vnode, changed }
    }

    /// The change is whole.
    #[inline(always)]
    #[allow(clippy::inline_always)] // as for `write_at`
    fn end_change(self) {
        core::mem::forget(self);
    }
}

impl<T: Default> Drop for Breaks<'_, T> {
    fn drop(&mut self) {
        self.vnode.broken.store(true, Ordering::Release);
        *self.changed = T::default();
    }
}

impl Vnode {
    /// A vnode of no file.
    pub fn new() -> Vnode {
        Vnode::default()
    }

    /// Makes it the vnode of `ino`; nobody uses it for another file.
    pub fn open(&self, ino: Ino) {
        self.broken.store(false, Ordering::Relaxed);
        self.ino.store(ino.0, Ordering::Release);
    }

    /// The file.
    pub fn ino(&self) -> Ino {
        Ino(self.ino.load(Ordering::Acquire))
    }

    /// Fails with EIO if an assertion failed in the middle of a change of this vnode.
    #[inline]
    pub fn check(&self) -> Result<(), Errno> {
        match self.broken.load(Ordering::Acquire) {
            false => Ok(()),
            true => Err(Errno::IO),
        }
    }

    /// Gives the file up in this process: an assertion failed in a call on it.
    pub fn give_up(&self) {
        self.broken.store(true, Ordering::Release);
        for stream in &self.streams {
            if let Some(mut stream) = stream.lock() {
                *stream = Stream::default();
            }
        }
    }

    /// Changes the state behind one of the locks, see [`Breaks`].
    #[inline(always)]
    #[allow(clippy::inline_always)] // as for `write_at`
    pub(super) fn change<T: Default, R>(
        &self,
        changed: &mut T,
        change: impl FnOnce(&mut T) -> R,
    ) -> R {
        let breaks = Breaks::new(self, changed);
        let done = change(breaks.changed);
        breaks.end_change();
        done
    }

    /// Takes over an attachment that came with the creation of the file.
    pub fn attached<H: Host>(&self, host: &H, block: u32, cell: u32) {
        if let Some(mut stream) = self.streams[0].lock() {
            self.change(&mut *stream, |stream| {
                stream.attached(host, self.ino(), block, cell);
            });
        }
    }

    /// Writes at an offset; returns how many bytes, fewer only if there was no room for the rest.
    /// Errors: `ENOSPC`, `EFBIG`, `EIO`.
    #[inline(always)]
    #[allow(clippy::inline_always)] // measured: see process/io/mod.rs
    pub fn write_at<H: Host>(&self, host: &H, offset: u64, bytes: &[u8]) -> Result<usize, Errno> {
        if let TryLock::Held(mut stream) = self.streams[0].try_lock() {
            // Not by `change`: the compiler does not inline the closure, and passes its captured values through memory.
            let breaks = Breaks::new(self, &mut *stream);
            let is_written = breaks.changed.grow(offset, bytes)
                || breaks.changed.write_in_claim(host, offset, bytes) == Ok(true);
            breaks.end_change();
            if is_written {
                return Ok(bytes.len());
            }
        }
        self.write_slowly(host, offset, bytes)
    }

    #[cold]
    #[inline(never)]
    fn write_slowly<H: Host>(&self, host: &H, offset: u64, bytes: &[u8]) -> Result<usize, Errno> {
        self.check()?;
        let ino = self.ino();
        let Some(bytes) = within(host.size_limit(), offset, bytes) else {
            host.exceed_size_limit();
            return Err(Errno::FBIG);
        };
        if let Some(done) = self.write_mapped(host, offset, bytes) {
            return done;
        }
        let written = self.write_all(host, ino, offset, bytes)?;
        // The kernel may have read a page of it meanwhile, which would stay stale.
        fence(Ordering::SeqCst);
        match self.write_mapped(host, offset, &bytes[..written]) {
            Some(done) => done,
            None => Ok(written),
        }
    }

    /// Writes bytes, and waits for room for them if there may be some; fewer if there is none.
    fn write_all<H: Host>(
        &self,
        host: &H,
        ino: Ino,
        offset: u64,
        bytes: &[u8],
    ) -> Result<usize, Errno> {
        let (mut done, mut waited) = (0, Duration::ZERO);
        loop {
            let (at, rest) = (offset + done as u64, &bytes[done..]);
            match self.with_stream(|stream| stream.write(host, ino, at, rest)) {
                Ok(written) if written == rest.len() => return Ok(bytes.len()),
                Ok(written) => {
                    done += written;
                    waited = Duration::ZERO;
                }
                Err(Errno::NOSPC) => {}
                Err(error) if done == 0 => return Err(error),
                Err(_) => return Ok(done),
            }
            match host.await_room(ino, &mut waited) {
                Ok(()) => {}
                Err(error) if done == 0 => return Err(error),
                Err(_) => return Ok(done),
            }
        }
    }

    /// Writes through the kernel mount, if the kernel keeps pages of the file.
    fn write_mapped<H: Host>(
        &self,
        host: &H,
        offset: u64,
        bytes: &[u8],
    ) -> Option<Result<usize, Errno>> {
        if !host.is_mapped(self.ino()) {
            return None;
        }
        host.move_mapped(self.ino(), &self.beneath, Transfer::Write(offset, bytes))
    }

    /// Writes at the current end of the file; returns the offset and how many bytes. No two appends
    /// on this node share bytes.
    pub fn append<H: Host>(&self, host: &H, bytes: &[u8]) -> Result<(u64, usize), Errno> {
        self.check()?;
        let ino = self.ino();
        if host.is_mapped(ino) {
            let at = self.with_stream(|stream| stream.place_append(host, ino, bytes.len()))?;
            return Ok((at, self.write_slowly(host, at, bytes)?));
        }
        let appended = self.with_stream(|stream| stream.append(host, ino, bytes));
        // The stream is free again: a handler of the signal may write, too.
        if appended == Err(Errno::FBIG) && host.size_limit() != u64::MAX {
            host.exceed_size_limit();
        }
        let (at, mut written) = appended?;
        let end = at.saturating_add(bytes.len() as u64).min(host.size_limit());
        if at + (written as u64) < end {
            // There was no room for the rest.
            let rest = &bytes[written..index(end - at)];
            match self.write_all(host, ino, at + written as u64, rest) {
                Err(error) if written == 0 => return Err(error),
                more => written += more.unwrap_or(0),
            }
        }
        // As for every write.
        fence(Ordering::SeqCst);
        match self.write_mapped(host, at, &bytes[..written]) {
            Some(done) => Ok((at, done?)),
            None => Ok((at, written)),
        }
    }

    /// Does something to a stream that this thread is not already in.
    fn with_stream<T>(
        &self,
        act: impl FnOnce(&mut Stream) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        for stream in &self.streams {
            if let Some(mut stream) = stream.lock() {
                return self.change(&mut *stream, act);
            }
        }
        Err(Errno::AGAIN)
    }

    /// Makes the next write need a decision: the limits of writing have changed.
    pub fn decide_anew(&self) {
        for stream in &self.streams {
            if let Some(mut stream) = stream.lock() {
                stream.decide_anew();
            }
        }
    }

    /// The current size, in bytes.
    pub fn size<H: Host>(&self, host: &H) -> Result<u64, Errno> {
        at_once(host, self.ino(), |state, block| {
            block.map_or(state.size, |block| block.size(host.cells()))
        })
    }

    /// Reads the bytes that this process's live piece holds, without a request.
    pub(super) fn read_own<H: Host>(
        &self,
        host: &H,
        offset: u64,
        bytes: &mut [u8],
    ) -> Option<Result<(), Errno>> {
        let mut stream = self.streams[0].lock()?;
        stream
            .holds(offset, bytes.len() as u64)
            .then(|| self.change(&mut *stream, |stream| stream.read_live(host, offset, bytes)))
    }

    /// The process closed its last descriptor of the file, and has tried to publish its writes; if
    /// that failed, the server publishes them later.
    pub fn detach<H: Host>(&self, host: &H) {
        for stream in &self.streams {
            if let Some(mut stream) = stream.lock() {
                self.change(&mut *stream, |stream| stream.detach(host));
            }
        }
        let beneath = [&self.beneath, &self.beneath_reads, &self.beneath_private];
        for slot in beneath {
            slot.take_descriptor().into_iter().for_each(Internal::close);
        }
        self.copy.close();
        if let Some(mut map) = self.map.lock() {
            map.forget();
        }
        if self.reads_far.swap(false, Ordering::Relaxed) {
            if let Some(mut ahead) = self.ahead.lock() {
                self.change(&mut *ahead, |ahead| ahead.drop_all(host));
            }
        }
    }

    /// Opens the copy of an evicted file as of this generation of its extents, for later reads. ESTALE:
    /// it is not there as it was left.
    pub fn prepare_copy<H: Host>(&self, host: &H, generation: u64) -> Result<(), Errno> {
        self.copy.prepare(host, self.ino(), generation)
    }

    /// Publishes the process's writes, if there were any since the last time. EIO: no server takes
    /// the last writes.
    pub fn publish_written<H: Host>(&self, host: &H) -> Result<(), Errno> {
        self.check()?;
        // Other nodes hear of it now.
        self.refine_time();
        let wrote = |stream: &SigLock<Stream>| stream.lock()?.unpublished();
        let wrote = self.streams.each_ref().map(wrote);
        if wrote == [None; 2] {
            return Ok(());
        }
        if host.is_left_behind() {
            return Err(Errno::IO);
        }
        host.publish(self.ino())?;
        for (stream, upto) in self.streams.iter().zip(wrote) {
            if let Some((mut stream, upto)) = stream.lock().zip(upto) {
                stream.set_published(upto);
            }
        }
        Ok(())
    }

    /// Makes the time of the last write exact, as [`Stream::refine_time`] does.
    pub fn refine_time(&self) {
        for stream in &self.streams {
            if let Some(mut stream) = stream.lock() {
                stream.refine_time();
            }
        }
    }

    /// Forgets the parent's writing: in a child after fork, which has no cell and no other threads.
    pub fn forget_after_fork(&self) {
        // SAFETY: the parent's other threads do not exist here; no guard of theirs is used again.
        unsafe {
            for stream in &self.streams {
                stream.break_after_fork();
            }
            self.ahead.break_after_fork();
            self.map.break_after_fork();
            self.copy.break_after_fork();
        }
        for stream in &self.streams {
            if let Some(mut stream) = stream.lock() {
                *stream = Stream::default();
            }
        }
        self.reads_far.store(false, Ordering::Relaxed);
        if let Some(mut ahead) = self.ahead.lock() {
            ahead.forget();
        }
        if let Some(mut map) = self.map.lock() {
            map.forget();
        }
    }
}

/// The part of a write that keeps within a limit of the file's size; `None`: no byte does.
fn within(limit: u64, offset: u64, bytes: &[u8]) -> Option<&[u8]> {
    let room = usize::try_from(limit.saturating_sub(offset)).unwrap_or(usize::MAX);
    match room {
        0 if !bytes.is_empty() => None,
        _ => Some(&bytes[..bytes.len().min(room)]),
    }
}

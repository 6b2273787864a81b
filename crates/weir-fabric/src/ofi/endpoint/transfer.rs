//! The operations of an endpoint: sending and receiving packets, reads of remote memory, and
//! waiting.
//!
//! Packets travel in slots of memory that is registered once. A read has memory of its own, its
//! landing, which is handed out when all its reads have ended. A landing that is given up is kept
//! until then, since a provider cannot be told to stop writing.

use core::ffi::{c_int, c_void};
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::ptr::{null_mut, NonNull};
use std::time::Duration;

use rustix::event::{poll, PollFd, PollFlags, Timespec};
use weir_core::types::Rank;

use super::{Address, Endpoint, RemoteMemory};
use crate::ofi::abi;
use crate::ofi::memory::{Bytes, OpenObject};
use crate::ofi::packet::PACKET_MOST;

/// Slots allocated at a time; the first chunk's slots receive.
const CHUNK: usize = 64;
/// Completions read at a time.
const BATCH: usize = 32;
/// The limit of consecutive wake-ups without a completion.
const SPURIOUS_WAKES_MAX: u32 = 64;
/// The pause after that limit.
const PAUSE: Duration = Duration::from_millis(1);
/// The provider has no room for an operation now.
const AGAIN: c_int = -libc::EAGAIN;

/// A completed operation.
#[derive(Debug)]
pub enum Completion {
    /// A packet was received.
    Received(Vec<u8>),
    /// A packet was sent, or failed.
    Sent {
        /// The receiver.
        to: Rank,
        /// True if it was sent.
        good: bool,
    },
    /// A read ended.
    Read {
        /// The landing's number.
        landing: u64,
        /// True if the bytes have arrived.
        good: bool,
    },
}

/// The context of an operation.
#[repr(C)]
pub(super) struct Operation {
    context: abi::Context2,
    kind: OperationKind,
}

#[derive(Clone, Copy)]
enum OperationKind {
    Receive { slot: usize },
    Send { to: Rank, slot: usize },
    Read { landing: u64 },
}

/// Memory for packets.
#[derive(Default)]
pub(super) struct Slots {
    chunks: Vec<Chunk>,
    free: Vec<usize>,
    /// Receives that the provider had no room for.
    unposted: Vec<usize>,
}

struct Chunk {
    /// Closed before the bytes are freed.
    mr: Option<OpenObject<abi::Mr>>,
    bytes: Bytes,
}

/// Memory for the bytes of reads.
pub(super) struct ReadLanding {
    /// Closed before the bytes are freed.
    mr: Option<OpenObject<abi::Mr>>,
    bytes: Bytes,
    under_way: usize,
    given_up: bool,
}

fn descriptor(mr: Option<&OpenObject<abi::Mr>>) -> *mut c_void {
    // SAFETY: the registration is open.
    mr.map_or(null_mut(), |mr| unsafe { (*mr.as_ptr()).mem_desc })
}

impl Endpoint {
    /// Posts the first receives.
    pub(super) fn post_first_receives(&mut self) -> c_int {
        if let Err(code) = self.grow() {
            return code;
        }
        self.memory.slots.unposted = std::mem::take(&mut self.memory.slots.free);
        self.post_receives()
    }

    /// Allocates a chunk of slots.
    fn grow(&mut self) -> Result<(), c_int> {
        let bytes = Bytes::new(vec![0; CHUNK * PACKET_MOST]);
        let mr = self.register_local(&bytes, abi::SEND | abi::RECV)?;
        let slots = &mut self.memory.slots;
        let first = slots.chunks.len() * CHUNK;
        slots.chunks.push(Chunk { mr, bytes });
        slots.free.extend(first..first + CHUNK);
        Ok(())
    }

    /// Posts the receives that are not posted; returns the first error.
    fn post_receives(&mut self) -> c_int {
        while let Some(slot) = self.memory.slots.unposted.pop() {
            let chunk = &self.memory.slots.chunks[slot / CHUNK];
            let buffer = chunk.bytes.at(slot % CHUNK * PACKET_MOST, PACKET_MOST);
            let desc = descriptor(chunk.mr.as_ref());
            let recv = self.calls.recv;
            let code = self.begin(OperationKind::Receive { slot }, |ep, context| {
                // SAFETY: the slot is the operation's until it ends.
                unsafe {
                    recv(
                        ep,
                        buffer.cast(),
                        PACKET_MOST,
                        desc,
                        abi::ADDR_UNSPEC,
                        context,
                    )
                }
            });
            if code != 0 {
                self.memory.slots.unposted.push(slot);
                return if code == AGAIN { 0 } else { code };
            }
        }
        0
    }

    /// Begins an operation; returns 0, or an error if it did not begin.
    fn begin(
        &mut self,
        kind: OperationKind,
        call: impl FnOnce(*mut abi::Ep, *mut c_void) -> isize,
    ) -> c_int {
        let Some(ep) = &self.ep else {
            return -libc::EINVAL;
        };
        let context = abi::Context2 {
            internal: [null_mut(); 8],
        };
        let operation = NonNull::from(Box::leak(Box::new(Operation { context, kind })));
        let code = call(ep.as_ptr(), operation.as_ptr().cast());
        if code == 0 {
            let key = operation.as_ptr() as usize;
            self.memory.operations.insert(key, operation);
            return 0;
        }
        // SAFETY: leaked just now, and the provider took nothing of it.
        drop(unsafe { Box::from_raw(operation.as_ptr()) });
        c_int::try_from(code).unwrap_or(-libc::EIO)
    }

    /// Sends a packet; returns `Ok(false)` if there is no room for it now.
    pub fn send(&mut self, to: Rank, address: Address, packet: &[u8]) -> Result<bool, c_int> {
        if self.memory.slots.free.is_empty() {
            self.grow()?;
        }
        let Some(slot) = self.memory.slots.free.pop() else {
            return Ok(false);
        };
        let chunk = &mut self.memory.slots.chunks[slot / CHUNK];
        let offset = slot % CHUNK * PACKET_MOST;
        // SAFETY: a free slot is no operation's.
        unsafe { chunk.bytes.slice(offset, packet.len()) }.copy_from_slice(packet);
        let buffer = chunk.bytes.at(offset, packet.len()).cast_const();
        let desc = descriptor(chunk.mr.as_ref());
        let send = self.calls.send;
        let code = self.begin(OperationKind::Send { to, slot }, |ep, context| {
            // SAFETY: the slot is the operation's until it ends.
            unsafe { send(ep, buffer.cast(), packet.len(), desc, address.0, context) }
        });
        if code == 0 {
            return Ok(true);
        }
        self.memory.slots.free.push(slot);
        if code == AGAIN {
            Ok(false)
        } else {
            Err(code)
        }
    }

    /// Allocates the landing `landing`.
    pub fn land(&mut self, landing: u64, len: usize) -> Result<(), c_int> {
        let bytes = Bytes::new(vec![0; len]);
        let mr = self.register_local(&bytes, abi::READ)?;
        let landing = self.memory.landings.insert(
            landing,
            ReadLanding {
                mr,
                bytes,
                under_way: 0,
                given_up: false,
            },
        );
        assert!(landing.is_none(), "numbers of landings are not used twice");
        Ok(())
    }

    /// Reads a peer's memory into a part of a landing; returns `Ok(false)` if there is no room for
    /// another read now.
    pub fn read(
        &mut self,
        from: Address,
        landing: u64,
        part: Range<usize>,
        place: RemoteMemory,
    ) -> Result<bool, c_int> {
        let read = self.calls.read.ok_or(-libc::ENOSYS)?;
        let there = self.memory.landings.get(&landing);
        let there = there.filter(|there| !there.given_up).ok_or(-libc::EINVAL)?;
        let buffer = there.bytes.at(part.start, part.len());
        let desc = descriptor(there.mr.as_ref());
        let code = self.begin(OperationKind::Read { landing }, |ep, context| {
            let (len, from) = (part.len(), from.0);
            // SAFETY: the part is within the landing, which lives until its reads have ended
            // and gives out no reference before.
            unsafe {
                read(
                    ep,
                    buffer.cast(),
                    len,
                    desc,
                    from,
                    place.address,
                    place.key,
                    context,
                )
            }
        });
        match code {
            0 => {
                let there = self.memory.landings.get_mut(&landing);
                there.expect("looked up above").under_way += 1;
                Ok(true)
            }
            AGAIN => Ok(false),
            code => Err(code),
        }
    }

    /// Copies bytes of packets into a landing; returns false if they do not belong there.
    pub fn fill(&mut self, landing: u64, offset: usize, bytes: &[u8]) -> bool {
        let Some(there) = self.memory.landings.get_mut(&landing) else {
            return false;
        };
        let room = there.bytes.len().checked_sub(offset);
        if there.under_way > 0 || room.is_none_or(|room| room < bytes.len()) {
            return false;
        }
        // SAFETY: no read is under way.
        unsafe { there.bytes.slice(offset, bytes.len()) }.copy_from_slice(bytes);
        true
    }

    /// Removes and returns a landing's bytes, once no read is under way.
    pub fn landed(&mut self, landing: u64) -> Option<Vec<u8>> {
        let there = self.memory.landings.get(&landing)?;
        if there.under_way > 0 {
            return None;
        }
        let ReadLanding { mr, bytes, .. } = self.memory.landings.remove(&landing)?;
        drop(mr);
        // SAFETY: its reads have ended.
        Some(unsafe { bytes.into_vec() })
    }

    /// Gives up a landing.
    pub fn give_up(&mut self, landing: u64) {
        if let Some(there) = self.memory.landings.get_mut(&landing) {
            there.given_up = true;
            if there.under_way == 0 {
                self.memory.landings.remove(&landing);
            }
        }
    }

    /// The next completed operation, without waiting. An error is the end of the endpoint.
    pub fn next(&mut self) -> Result<Option<Completion>, c_int> {
        loop {
            if let Some(completion) = self.ready.pop_front() {
                return Ok(Some(completion));
            }
            if !self.collect()? {
                return Ok(None);
            }
        }
    }

    /// Reads the queue; returns false if it is empty.
    fn collect(&mut self) -> Result<bool, c_int> {
        let entry = abi::CqMsgEntry {
            op_context: null_mut(),
            flags: 0,
            len: 0,
        };
        let mut entries = [entry; BATCH];
        let cq = self.cq.as_ptr();
        // SAFETY: the queue is open and was opened for entries of this format, of which there
        // is room for BATCH.
        let count = unsafe { (self.calls.cq_read)(cq, entries.as_mut_ptr().cast(), BATCH) };
        if count == -abi::EAGAIN || count == -(libc::EINTR as isize) {
            return Ok(false);
        }
        if count == -abi::EAVAIL {
            // SAFETY: all its fields are numbers and pointers, for which 0 is a value.
            let mut error: abi::CqErrEntry = unsafe { std::mem::zeroed() };
            // SAFETY: the queue is open, and the entry is at least as long as any version's.
            let read = unsafe { (self.calls.cq_readerr)(cq, &raw mut error, 0) };
            if read > 0 {
                self.complete_operation(error.op_context, None, error.err);
            }
            return Ok(true);
        }
        let Ok(count) = usize::try_from(count) else {
            return Err(c_int::try_from(count).unwrap_or(-libc::EIO));
        };
        self.spurious_wakes = 0;
        for entry in &entries[..count.min(BATCH)] {
            self.complete_operation(entry.op_context, Some(entry.len), 0);
        }
        Ok(count > 0)
    }

    /// Completes an operation: `len` bytes, or an error.
    fn complete_operation(&mut self, context: *mut c_void, len: Option<usize>, error: c_int) {
        let Some(operation) = self.memory.operations.remove(&(context as usize)) else {
            // Some providers report the end of a connection as an operation.
            let error = self.library.error(error);
            tracing::debug!(error, "the provider reports something of its own");
            return;
        };
        // SAFETY: of Box::leak in `begin`, and out of the table now; the operation has ended.
        let kind = unsafe { Box::from_raw(operation.as_ptr()) }.kind;
        let good = len.is_some();
        if !good {
            let error = self.library.error(error);
            tracing::debug!(error, "an operation failed");
        }
        match kind {
            OperationKind::Receive { slot } => {
                let chunk = &mut self.memory.slots.chunks[slot / CHUNK];
                if let Some(len) = len {
                    let offset = slot % CHUNK * PACKET_MOST;
                    // SAFETY: the receive has ended, so that the slot is nobody's.
                    let bytes = unsafe { chunk.bytes.slice(offset, len.min(PACKET_MOST)) };
                    self.ready.push_back(Completion::Received(bytes.to_vec()));
                }
                self.memory.slots.unposted.push(slot);
                let code = self.post_receives();
                if code != 0 {
                    let error = self.library.error(code);
                    tracing::warn!(error, "a receive cannot be posted");
                }
            }
            OperationKind::Send { to, slot } => {
                self.memory.slots.free.push(slot);
                self.ready.push_back(Completion::Sent { to, good });
            }
            OperationKind::Read { landing } => {
                if let Some(there) = self.memory.landings.get_mut(&landing) {
                    there.under_way -= 1;
                    if there.given_up && there.under_way == 0 {
                        self.memory.landings.remove(&landing);
                    }
                }
                self.ready.push_back(Completion::Read { landing, good });
            }
        }
    }

    /// Waits until the queue may have a completion, `bell` rings, or the time is over.
    pub fn wait(&mut self, bell: BorrowedFd<'_>, timeout: Option<Duration>) {
        if !self.ready.is_empty() {
            return;
        }
        let mut fids = [self.cq.fid()];
        // SAFETY: the fabric is open, and so is the one object of the list.
        let idle = unsafe { (self.calls.trywait)(self.fabric.as_ptr(), fids.as_mut_ptr(), 1) };
        if idle != 0 {
            // The queue has a completion already. But rxm also reports one while it reconnects to a
            // peer that does not accept, and then none follows.
            self.spurious_wakes += 1;
            if self.spurious_wakes > SPURIOUS_WAKES_MAX {
                let timeout = Timespec::try_from(PAUSE).ok();
                // As below.
                let _ = poll(&mut [PollFd::new(&bell, PollFlags::IN)], timeout.as_ref());
            }
            return;
        }
        self.spurious_wakes = 0;
        // SAFETY: the queue's descriptor is open as long as the queue.
        let queue = unsafe { BorrowedFd::borrow_raw(self.wait_fd) };
        let mut fds = [
            PollFd::new(&queue, PollFlags::IN),
            PollFd::new(&bell, PollFlags::IN),
        ];
        let timeout = timeout.and_then(|time| Timespec::try_from(time).ok());
        // Interrupted or over: the caller checks everything again.
        let _ = poll(&mut fds, timeout.as_ref());
    }
}

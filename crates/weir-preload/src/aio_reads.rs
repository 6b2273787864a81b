//! Consecutive reads of one file in a list, done as one read: the client asks each remote node for all
//! of its bytes at once, not piece by piece.

use core::ffi::c_int;
use core::sync::atomic::Ordering;

use weir_client::data::Target;

use crate::aio_block::ControlBlock;
use crate::calls::room;
use crate::{attempt, process};

/// Returns the number of blocks at the front that are reads of the same file; 0 if the first is no read.
///
/// # Safety
///
/// Each block is null or a control block of the application's.
pub unsafe fn as_one(blocks: &[*mut ControlBlock]) -> usize {
    // SAFETY: the block is null or a control block, by the caller.
    let read_of = |block: &*mut ControlBlock| unsafe {
        let block = block.as_ref()?;
        let has_room = block.length == 0 || crate::is_address(block.buffer);
        let plain = block.opcode == libc::LIO_READ && block.offset >= 0 && has_room;
        plain.then_some(block.fd)
    };
    let Some(fd) = blocks.first().and_then(read_of) else {
        return 0;
    };
    let same = |block: &&*mut ControlBlock| read_of(block) == Some(fd);
    blocks.iter().take_while(same).count()
}

/// Does the reads of `blocks`, all of `fd`, and stores their results. Returns false if nothing was done:
/// after an error the caller does them one by one to find the read that fails.
///
/// # Safety
///
/// Each is a control block whose buffer may be written.
pub unsafe fn perform(fd: c_int, blocks: &[*mut ControlBlock]) -> bool {
    let Some(process) = process() else {
        return false;
    };
    // SAFETY: each is a control block with a buffer that only this read writes to, by the caller;
    // [`as_one`] saw that no offset is negative, and that a buffer can be there.
    let target = |block: &*mut ControlBlock| unsafe {
        let block = &**block;
        Target {
            offset: block.offset.unsigned_abs(),
            bytes: room(block.buffer, block.length),
        }
    };
    let mut targets: Vec<Target<'_>> = blocks.iter().map(target).collect();
    let done = attempt(|| process.io.read_all(fd, &mut targets));
    if !matches!(done, Ok(Some(Ok(())))) {
        return false;
    }
    for (block, target) in blocks.iter().zip(&targets) {
        // SAFETY: a control block, by the caller; its results are atomics.
        let block = unsafe { &**block };
        block
            .result
            .store(target.bytes.len().cast_signed(), Ordering::Relaxed);
        block.error.store(0, Ordering::Release);
    }
    true
}

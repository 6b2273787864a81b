//! Copy steps: the machine's limit of a write and of a read.

use serde::{Deserialize, Serialize};

use crate::content::Content;
use crate::copy::{self, CopyOp, Method};
use crate::memory::{Buffer, WarmShared};
use crate::timing::{now_ns, timing_since, Prepared, Timing};

/// A copy over all of a rank's warm memory.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CopyStep {
    /// The direction.
    pub op: CopyOp,
    /// Bytes of one copy.
    pub transfer: u64,
    /// Bytes of warm memory for each rank.
    pub block: u64,
    /// In huge pages.
    pub huge: bool,
    /// How.
    pub method: Method,
}

/// The warm memory of the last copy step, kept for the next of the same kind.
#[derive(Default)]
pub enum Warm {
    /// There is none.
    #[default]
    None,
    /// There is some.
    Ready {
        /// In huge pages.
        huge: bool,
        /// The memory.
        memory: WarmShared,
    },
}

impl Warm {
    /// Memory of this kind, or `None` where the kernel cannot make it.
    fn get(&mut self, huge: bool, length: usize) -> Option<&mut WarmShared> {
        let fits = matches!(self, Warm::Ready { huge: h, memory }
            if *h == huge && memory.bytes().len() >= length);
        if !fits {
            // The old one goes first, so that there is memory for one of them.
            *self = Warm::None;
            let memory = WarmShared::new(length, huge).ok()?;
            *self = Warm::Ready { huge, memory };
        }
        match self {
            Warm::Ready { memory, .. } => Some(memory),
            Warm::None => None,
        }
    }
}

/// Makes memory and buffers. The `Timing` has no operations if the machine cannot do the step.
pub fn copy<'a>(step: &'a CopyStep, warm: &'a mut Warm) -> anyhow::Result<Prepared<'a>> {
    let transfer = usize::try_from(step.transfer)?;
    let block = usize::try_from(step.block)?;
    let content = Content::new(1, transfer, false)?;
    let mut buffer = Buffer::new(transfer)?;
    let ready = copy::routine(step.op, step.method).zip(warm.get(step.huge, block));
    Ok(Box::new(move || {
        let Some((copy, memory)) = ready else {
            return Ok(Timing::default());
        };
        let start_ns = now_ns();
        match step.op {
            CopyOp::In => copy_in(copy, memory.bytes_mut(), block, &content),
            CopyOp::Out => copy_out(copy, memory.bytes(), block, buffer.bytes_mut()),
        }
        Ok(timing_since(
            start_ns,
            step.block,
            step.block / step.transfer,
        ))
    }))
}

fn copy_in(copy: copy::Copy, memory: &mut [u8], block: usize, content: &Content) {
    let transfer = content.transfer();
    let (period, step) = (content.period(), content.position(transfer as u64));
    let mut position = 0;
    for piece in memory[..block].chunks_exact_mut(transfer) {
        // SAFETY: `transfer` bytes follow every position below the period; the piece is as long; they are
        // different mappings.
        unsafe {
            copy(
                piece.as_mut_ptr(),
                content.bytes().as_ptr().add(position),
                transfer,
            );
        };
        position += step;
        if position >= period {
            position -= period;
        }
    }
}

fn copy_out(copy: copy::Copy, memory: &[u8], block: usize, buffer: &mut [u8]) {
    for piece in memory[..block].chunks_exact(buffer.len()) {
        // SAFETY: both are as long as the buffer, in different mappings.
        unsafe { copy(buffer.as_mut_ptr(), piece.as_ptr(), piece.len()) };
    }
}

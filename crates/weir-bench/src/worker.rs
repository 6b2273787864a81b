//! The worker: a process that does one rank's part of a job and says when it did it.
//!
//! The coordinator starts it as the same program with the same arguments, with the rank in the environment
//! and the job's shared memory as standard input, so that whatever is preloaded into programs starts afresh in each.

use std::io::{self, Write};

use crate::calls;
use crate::content::Content;
use crate::control::Control;
use crate::copy;
use crate::data::{self, StepError};
use crate::job::{Answer, CopyOp, CopyStep, Job, Step, Timing};
use crate::memory::{Buffer, WarmShared};
use crate::meta;

/// The environment variable that makes a process a worker; its value is the rank.
pub const RANK_VARIABLE: &str = "WEIR_BENCH_WORKER_RANK";

/// The rank, if this process was started as a worker.
pub fn rank() -> Option<u32> {
    std::env::var(RANK_VARIABLE).ok()?.parse().ok()
}

/// `CLOCK_MONOTONIC` in ns, comparable between the processes of a node.
pub fn now_ns() -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `now` is a valid place for the result.
    let failed = unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    assert_eq!(failed, 0, "CLOCK_MONOTONIC exists on every Linux");
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}

/// Does the job found on standard input as `rank` and answers on standard output.
pub fn run(rank: u32) -> anyhow::Result<u8> {
    // SAFETY: no memory is involved. A worker must not outlive an interrupted coordinator.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    let control = Control::map(&io::stdin())?;
    let job: Job = serde_json::from_slice(control.job())?;
    let answer = match run_steps(&job, rank, &control) {
        Ok(timings) => Answer::Done(timings),
        Err(StepError::Aborted(_)) => Answer::Aborted,
        Err(error) => {
            control.abort();
            Answer::Failed {
                message: error.to_string(),
                wrong_data: matches!(
                    error,
                    StepError::WrongData { .. } | StepError::EndOfFile { .. }
                ),
            }
        }
    };
    io::stdout().write_all(&serde_json::to_vec(&answer)?)?;
    Ok(match answer {
        Answer::Done(_) => 0,
        _ => 1,
    })
}

fn run_steps(job: &Job, rank: u32, control: &Control) -> Result<Vec<Timing>, StepError> {
    let mut warm = Warm::None;
    job.steps
        .iter()
        .map(|step| match step {
            Step::Data(step) => data::run(step, rank, control),
            Step::Meta(step) => meta::run(step, rank, control),
            Step::Call(step) => calls::run(step, control),
            Step::Copy(step) => run_copy(step, &mut warm, control),
        })
        .collect()
}

/// The warm memory of the last copy step, kept for the next of the same kind.
enum Warm {
    None,
    Ready { huge: bool, memory: WarmShared },
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

/// A copy step; a `Timing` without operations if the machine cannot do it.
fn run_copy(step: &CopyStep, warm: &mut Warm, control: &Control) -> Result<Timing, StepError> {
    let transfer = usize::try_from(step.transfer).expect("checked by the coordinator");
    let block = usize::try_from(step.block).expect("checked by the coordinator");
    let content = Content::new(1, transfer, false)?;
    let mut buffer = Buffer::new(transfer)?;
    let ready = copy::routine(step.op, step.method).zip(warm.get(step.huge, block));
    control.barrier()?;
    let Some((copy, memory)) = ready else {
        return Ok(Timing::default());
    };
    let start_ns = now_ns();
    match step.op {
        CopyOp::In => copy_in(copy, memory.bytes_mut(), block, &content),
        CopyOp::Out => copy_out(copy, memory.bytes(), block, buffer.bytes_mut()),
    }
    Ok(Timing {
        start_ns,
        end_ns: now_ns(),
        bytes: step.block,
        ops: step.block / step.transfer,
    })
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

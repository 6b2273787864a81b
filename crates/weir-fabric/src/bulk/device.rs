//! Reads from storage, by threads that may wait for devices, so that requests for bytes in memory
//! need not.
//!
//! A thread takes all waiting requests, up to a batch, and reads their pieces in device order.
//! Adjacent pieces of one request become one read.

use std::sync::mpsc::{channel, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};

use super::request::{ReadRequest, SenderCommand};
use super::{LogSource, Piece};
use crate::mailbox::MailboxSender;

/// The number of threads.
const THREADS: usize = 2;
/// The bytes of a batch, if it has more than one request.
const BATCH_BYTES: usize = 1 << 20;

/// A request that needs a device.
struct DeviceRequest {
    request: ReadRequest,
    /// Receives the result.
    done: MailboxSender<SenderCommand>,
}

/// The queue of requests that need a device.
#[derive(Clone, Debug)]
pub struct DeviceReaders(Sender<DeviceRequest>);

impl DeviceReaders {
    /// Starts the threads. They end when the last of these handles is dropped.
    pub fn start(source: &Arc<dyn LogSource>) -> std::io::Result<DeviceReaders> {
        let (jobs, todo) = channel();
        let todo = Arc::new(Mutex::new(todo));
        for _ in 0..THREADS {
            let (source, todo) = (Arc::clone(source), Arc::clone(&todo));
            std::thread::Builder::new()
                .name("weir-device".to_owned())
                .spawn(move || {
                    while let Some(batch) = next_batch(&todo) {
                        read_batch(&*source, batch);
                    }
                })?;
        }
        Ok(DeviceReaders(jobs))
    }

    /// Queues a request; `done` receives the result.
    pub fn read(&self, request: ReadRequest, done: MailboxSender<SenderCommand>) {
        // The threads live as long as this handle.
        let _ = self.0.send(DeviceRequest { request, done });
    }
}

/// Waits for requests; returns `None` at the end.
fn next_batch(todo: &Mutex<Receiver<DeviceRequest>>) -> Option<Vec<DeviceRequest>> {
    let todo = todo.lock().unwrap_or_else(PoisonError::into_inner);
    let mut batch = vec![todo.recv().ok()?];
    let mut bytes = batch[0].request.bytes;
    while bytes < BATCH_BYTES {
        let Ok(waiting) = todo.try_recv() else { break };
        bytes += waiting.request.bytes;
        batch.push(waiting);
    }
    Some(batch)
}

/// One read of a batch, and its place in the bytes of a request.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct DeviceRead {
    piece: Piece,
    job: usize,
    at: usize,
}

/// The reads of a batch, in device order.
fn plan_reads<'a>(requests: impl Iterator<Item = &'a [Piece]>) -> Vec<DeviceRead> {
    let mut steps = Vec::new();
    for (job, pieces) in requests.enumerate() {
        let mut at = 0;
        for piece in pieces {
            let piece = *piece;
            steps.push(DeviceRead { piece, job, at });
            at += piece.len as usize;
        }
    }
    steps.sort_unstable_by_key(|step| (step.piece.slab, step.piece.pos, step.job, step.at));
    steps.dedup_by(|next, last| {
        let len = last.piece.len as usize;
        let touches = (next.piece.slab, next.job) == (last.piece.slab, last.job)
            && last.piece.pos.checked_add(u64::from(last.piece.len)) == Some(next.piece.pos)
            && next.at == last.at + len;
        if touches {
            // Both are of one request, whose size is limited.
            last.piece.len += next.piece.len;
        }
        touches
    });
    steps
}

fn read_batch(source: &dyn LogSource, batch: Vec<DeviceRequest>) {
    let room = |waiting: &DeviceRequest| Some(vec![0; waiting.request.bytes]);
    let mut out: Vec<Option<Vec<u8>>> = batch.iter().map(room).collect();
    for step in plan_reads(batch.iter().map(|waiting| &waiting.request.pieces[..])) {
        let Some(bytes) = &mut out[step.job] else {
            continue;
        };
        let range = step.at..step.at + step.piece.len as usize;
        if let Err(error) = source.copy(&step.piece, &mut bytes[range]) {
            tracing::warn!(piece = ?step.piece, %error, "bytes of the log cannot be read");
            out[step.job] = None;
        }
    }
    for (waiting, bytes) in batch.into_iter().zip(out) {
        // If the receiver is gone the server has ended.
        let _ = waiting
            .done
            .send(SenderCommand::Staged(waiting.request, bytes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(slab: u32, pos: u64, len: u32) -> Piece {
        Piece { slab, len, pos }
    }

    #[test]
    fn a_batch_is_read_in_the_order_of_the_device_and_joined() {
        let requests = [
            vec![piece(2, 0, 10), piece(1, 100, 10), piece(1, 110, 5)],
            vec![piece(1, 90, 10), piece(1, 95, 1)],
        ];
        let steps = plan_reads(requests.iter().map(|pieces| &pieces[..]));
        let said: Vec<_> = steps.iter().map(|s| (s.piece, s.job, s.at)).collect();
        assert_eq!(
            said,
            [
                (piece(1, 90, 10), 1, 0),
                (piece(1, 95, 1), 1, 10),
                (piece(1, 100, 15), 0, 10),
                (piece(2, 0, 10), 0, 0),
            ]
        );
    }
}

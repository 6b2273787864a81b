//! The order in which the entries of all processes go into the file (`weir_arrays::waves`).
//!
//! Each process notes where the entries lie that it logged up to each collective call, and all of them find the same waves, by one
//! allreduce: as many numbers as there were calls since the last one, two of each.

use weir_arrays::waves::{FileSpan, Waves};
use weir_connect::mpi::Communicator;

/// The collective calls since the entries of all processes were moved into the file. The number of calls is the same in all processes.
#[derive(Debug)]
pub struct PutOrder {
    /// There is one process: its own order is all there is.
    is_alone: bool,
    /// The span of the puts since the last call.
    open: FileSpan,
    /// Those of this process alone: the calls of which the processes have not told each other yet.
    own: Vec<FileSpan>,
    /// The waves of the calls before these.
    waves: Vec<u32>,
    known: Waves,
}

impl PutOrder {
    /// Of no calls of so many processes.
    pub fn new(processes: u32) -> PutOrder {
        PutOrder {
            is_alone: processes == 1,
            open: FileSpan::EMPTY,
            own: Vec::new(),
            waves: Vec::new(),
            known: Waves::default(),
        }
    }

    /// Notes a put. Returns the number of the collective call with which it ends.
    pub fn note_put(&mut self, span: FileSpan) -> usize {
        self.open = self.open.joined(span);
        self.waves.len() + self.own.len()
    }

    /// Notes the end of a collective call.
    pub fn end_call(&mut self) {
        let span = core::mem::replace(&mut self.open, FileSpan::EMPTY);
        if !self.is_alone {
            self.own.push(span);
        }
    }

    /// The numbers that this process tells the others: the highest ones of all processes are those for [`Self::learn`].
    pub fn numbers(&self) -> Vec<i64> {
        let offset = |offset: u64| i64::try_from(offset).unwrap_or(i64::MAX);
        let spans = self.own.iter();
        let pairs = spans.flat_map(|span| [offset(span.end), -offset(span.first)]);
        pairs.collect()
    }

    /// Finds the waves of the calls so far, by the highest numbers of all processes.
    pub fn learn(&mut self, numbers: &[i64]) {
        let offset = |number: i64| u64::try_from(number).unwrap_or(0);
        for pair in numbers.chunks_exact(2) {
            let wave = self.known.add(FileSpan {
                first: offset(-pair[1]),
                end: offset(pair[0]),
            });
            self.waves.push(wave);
        }
        self.own.clear();
    }

    /// Finds the waves of all calls. All processes call this. `None`: MPI failed.
    pub fn agree(&mut self, comm: &Communicator) -> Option<()> {
        self.end_call();
        let all = comm.highest_of(&self.numbers())?;
        self.learn(&all);
        Some(())
    }

    /// True if calls that all processes know must be written one after the other.
    pub fn has_several_waves(&self) -> bool {
        self.known.count() > 1
    }

    /// How many waves there are, at least 1.
    pub fn wave_count(&self) -> u32 {
        self.known.count().max(1)
    }

    /// The wave of a call.
    pub fn wave_of(&self, call: usize) -> u32 {
        self.waves.get(call).copied().unwrap_or(0)
    }
}

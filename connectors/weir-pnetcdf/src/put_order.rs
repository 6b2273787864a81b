//! The order in which the entries of all processes go into the file (`weir_arrays::waves`).
//!
//! Each process notes the span of the entries that it logged for each collective call. By one allreduce, of two numbers for each
//! call since the last one, all processes find the same waves.

use weir_arrays::waves::{FileSpan, Waves};
use weir_connect::peers::FilePeers;

/// The collective calls since the entries of all processes were moved into the file. The number of calls is the same in all processes.
#[derive(Debug)]
pub struct PutOrder {
    /// True if there is one process, whose own order suffices.
    is_alone: bool,
    /// The span of the puts since the last call.
    open: FileSpan,
    /// The spans of this process's puts, for the calls of which the processes have not told each other yet.
    own: Vec<FileSpan>,
    /// The waves of the calls before those of `own`.
    waves: Vec<u32>,
    known: Waves,
}

impl PutOrder {
    /// The order of no calls yet.
    pub fn new(processes: u32) -> PutOrder {
        PutOrder {
            is_alone: processes == 1,
            open: FileSpan::EMPTY,
            own: Vec::new(),
            waves: Vec::new(),
            known: Waves::default(),
        }
    }

    /// Notes a put. Returns the number of the collective call that ends it.
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

    /// The numbers that this process contributes to the reduction; [`Self::learn`] takes the highest ones of all processes.
    pub fn numbers(&self) -> Vec<i64> {
        let offset = |offset: u64| i64::try_from(offset).unwrap_or(i64::MAX);
        let spans = self.own.iter();
        let pairs = spans.flat_map(|span| [offset(span.end), -offset(span.first)]);
        pairs.collect()
    }

    /// Finds the waves of the calls so far from the highest numbers of all processes.
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
    pub fn agree(&mut self, peers: &FilePeers) -> Option<()> {
        self.end_call();
        let all = peers.highest_of(&self.numbers())?;
        self.learn(&all);
        Some(())
    }

    /// True if some of the known calls must be written one after the other.
    pub fn has_several_waves(&self) -> bool {
        self.known.count() > 1
    }

    /// The number of waves, at least 1.
    pub fn wave_count(&self) -> u32 {
        self.known.count().max(1)
    }

    /// The wave of a call.
    pub fn wave_of(&self, call: usize) -> u32 {
        self.waves.get(call).copied().unwrap_or(0)
    }
}

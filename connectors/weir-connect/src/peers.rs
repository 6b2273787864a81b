//! The processes that have a file open together, and what they agree on: by memory that they share, if all are clients of one
//! server; else by messages, with a communicator of our own.

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use crate::mpi::{Communicator, Mpi, MpiHandle, PendingHighest};
use crate::node_memory::{MemoryAddress, NodeMemory, OfferedNodeMemory, ReductionChannel};

/// The most processes that share memory: each of them looks at the areas of all others.
const MAX_SHARING: u32 = 256;
/// The most reductions of told numbers in progress.
const MAX_TELLING: usize = 64;

/// An invitation to a group of processes, before they have agreed that they need one. If it is dropped, there is none.
#[derive(Debug)]
pub struct PeersOffer {
    memory: Option<OfferedNodeMemory>,
    /// Where the first process offers memory, once the processes have agreed.
    address: Option<MemoryAddress>,
    /// This process's rank in the communicator.
    pub rank: u32,
    size: u32,
}

impl PeersOffer {
    /// Begins an offer; if this process knows already that no group is wanted, one without memory. No process waits for another one.
    /// `None`: MPI failed, and has called its error handler.
    ///
    /// # Safety
    ///
    /// A valid communicator.
    pub unsafe fn make(mpi: &Mpi, comm: MpiHandle, is_wanted: bool) -> Option<PeersOffer> {
        // SAFETY: the communicator is valid, by the caller.
        let (rank, size) = unsafe { (mpi.rank(comm)?, mpi.size(comm)?) };
        let has_memory =
            is_wanted && rank == 0 && (2..=MAX_SHARING).contains(&size) && mpi.can_pause();
        let memory = has_memory.then(|| OfferedNodeMemory::make(size as usize).ok());
        Some(PeersOffer {
            memory: memory.flatten(),
            address: None,
            rank,
            size,
        })
    }

    /// The highest of each number over all processes. With them the others learn where the memory is. `None`: MPI failed, and has
    /// called its error handler.
    ///
    /// # Safety
    ///
    /// All processes of the communicator, which is that of the offer, call this.
    pub unsafe fn highest<const N: usize>(
        &mut self,
        mpi: &Mpi,
        comm: MpiHandle,
        mine: [i64; N],
    ) -> Option<[i64; N]> {
        let address = self.memory.as_ref().map(OfferedNodeMemory::address);
        let address = address.map_or([0; 2], |address| for_own_server(address).to_numbers());
        let mine = [&mine[..], &address].concat();
        let mut all = vec![0; mine.len()];
        // SAFETY: the communicator is valid, and all its processes call this, by the caller.
        if !unsafe { mpi.reduce_to_highest(comm, &mine, &mut all) } {
            return None;
        }
        let (all, address) = all.split_last_chunk()?;
        self.address = MemoryAddress::from_numbers(*address).map(for_own_server);
        all.try_into().ok()
    }

    /// Makes the group, after [`PeersOffer::highest`]. `None`: MPI failed, and has called its error handler.
    ///
    /// # Safety
    ///
    /// All processes of the communicator, which is that of the offer, call this.
    pub unsafe fn accept(self, mpi: &'static Mpi, comm: MpiHandle) -> Option<FilePeers> {
        let PeersOffer {
            memory,
            address,
            rank,
            size,
        } = self;
        let means = if size == 1 {
            Means::Alone
        } else {
            let opened = match (&memory, address) {
                (None, Some(address)) => {
                    NodeMemory::open(address, size as usize, rank as usize).ok()
                }
                _ => None,
            };
            let has_memory = (memory.is_some() || opened.is_some()) && mpi.can_pause();
            let [is_shared] = match address {
                // SAFETY: the communicator is valid, and all its processes call this, by the caller.
                Some(_) => unsafe { mpi.all_agree(comm, [has_memory]) },
                None => [false],
            };
            // The first process has kept its descriptor until all have opened it.
            let memory = memory.map(OfferedNodeMemory::into_memory).or(opened);
            match memory.filter(|_| is_shared) {
                Some(memory) => Means::Memory(mpi, Arc::new(memory)),
                // SAFETY: as above.
                None => Means::Messages(unsafe { Communicator::copy(mpi, comm)? }, VecDeque::new()),
            }
        };
        Some(FilePeers { rank, size, means })
    }
}

/// An address with a token that only clients of this process's server turn into the true one, by the same. The servers of several nodes
/// may be on one machine.
fn for_own_server(address: MemoryAddress) -> MemoryAddress {
    let mut hash = DefaultHasher::new();
    std::env::var_os("WEIR_INSTANCE").hash(&mut hash);
    MemoryAddress {
        token: address.token ^ hash.finish() >> 1,
        ..address
    }
}

/// The means of agreement: the same in all processes.
#[derive(Debug)]
enum Means {
    Alone,
    Memory(&'static Mpi, Arc<NodeMemory>),
    /// With the reductions of told numbers in progress, one for each collective call.
    Messages(Communicator, VecDeque<PendingHighest>),
}

/// A reduction that a group has begun.
#[derive(Debug)]
#[must_use]
pub struct PendingAgreement<const N: usize> {
    mine: [i64; N],
    /// `None`: the group has another means, or MPI failed.
    message: Option<PendingHighest>,
}

/// A group of processes.
#[derive(Debug)]
pub struct FilePeers {
    /// This process's rank in it.
    pub rank: u32,
    /// The number of its processes.
    pub size: u32,
    means: Means,
}

impl FilePeers {
    /// The highest of each number over all processes, which must all call this. `None`: MPI failed, and has called its error handler.
    pub fn highest<const N: usize>(&self, mine: [i64; N]) -> Option<[i64; N]> {
        let mut all = mine;
        self.reduce_to_highest(&mine, &mut all).then_some(all)
    }

    /// The same for a list, of the same length in all processes.
    pub fn highest_of(&self, mine: &[i64]) -> Option<Vec<i64>> {
        let mut all = mine.to_vec();
        self.reduce_to_highest(mine, &mut all).then_some(all)
    }

    fn reduce_to_highest(&self, mine: &[i64], all: &mut [i64]) -> bool {
        match &self.means {
            Means::Alone => true,
            Means::Memory(mpi, memory) => {
                memory.highest(mine, all, || mpi.pause());
                true
            }
            Means::Messages(comm, _) => comm.reduce_to_highest(mine, all),
        }
    }

    /// Begins a reduction to the highest of each number over all processes, without waiting for any. All processes call this. A group
    /// has one such reduction at a time; others may begin and end meanwhile.
    pub fn begin_highest<const N: usize>(&self, mine: [i64; N]) -> PendingAgreement<N> {
        let message = match &self.means {
            Means::Alone => None,
            Means::Memory(_, memory) => {
                memory.post(ReductionChannel::Deferred, &mine);
                None
            }
            Means::Messages(comm, _) => comm.begin_highest(&mine),
        };
        PendingAgreement { mine, message }
    }

    /// Ends it: waits for processes that have not begun it yet. `None`: MPI failed, and has called its error handler.
    pub fn end_highest<const N: usize>(&self, pending: PendingAgreement<N>) -> Option<[i64; N]> {
        let PendingAgreement { mine, message } = pending;
        match &self.means {
            Means::Alone => Some(mine),
            Means::Memory(mpi, memory) => {
                let mut all = mine;
                memory.collect(ReductionChannel::Deferred, &mut all, || mpi.pause());
                Some(all)
            }
            Means::Messages(comm, _) => comm.end_highest(message?)?.try_into().ok(),
        }
    }

    /// Ends a collective call, and tells the other processes a number, which never becomes less. All processes call this after the
    /// same calls; it seldom waits.
    pub fn tell_number(&mut self, number: i64) {
        match &mut self.means {
            Means::Alone => {}
            Means::Memory(mpi, memory) => memory.tell_number(number, || mpi.pause()),
            Means::Messages(comm, telling) => {
                telling.extend(comm.begin_highest(&[number]));
                if telling.len() > MAX_TELLING {
                    // A higher number comes with the next one.
                    let _ = telling
                        .pop_front()
                        .and_then(|oldest| comm.end_highest(oldest));
                }
            }
        }
    }

    /// The highest number that all processes told with the calls so far; `None`: there was none, or MPI failed. Waits for processes
    /// that have not made these calls yet.
    pub fn highest_told(&mut self) -> Option<i64> {
        match &mut self.means {
            Means::Alone => None,
            Means::Memory(mpi, memory) => memory.highest_told(|| mpi.pause()),
            Means::Messages(comm, telling) => {
                let mut highest = None;
                while let Some(oldest) = telling.pop_front() {
                    highest = comm.end_highest(oldest);
                }
                highest?.first().copied()
            }
        }
    }

    /// The group of the processes on this node. All processes call this. `None`: MPI failed.
    pub fn of_node(&self) -> Option<FilePeers> {
        let (rank, size, means) = match &self.means {
            Means::Alone => (self.rank, self.size, Means::Alone),
            Means::Memory(mpi, memory) => {
                (self.rank, self.size, Means::Memory(mpi, Arc::clone(memory)))
            }
            Means::Messages(comm, _) => {
                let node = comm.of_node()?;
                (node.rank, node.size, Means::Messages(node, VecDeque::new()))
            }
        };
        Some(FilePeers { rank, size, means })
    }

    /// Ends it. All processes call this, before MPI_Finalize.
    pub fn free(mut self) {
        if let Means::Messages(..) = self.means {
            self.highest_told();
        }
        if let Means::Messages(comm, _) = self.means {
            comm.free();
        }
    }
}

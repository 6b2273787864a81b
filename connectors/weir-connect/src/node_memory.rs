//! Memory that the processes of a communicator share if they run on one node: they agree there on numbers without messages.
//!
//! MPI's reductions cost several messages a process, and its waits poll without yielding the processor. Here a process writes its
//! numbers into an area of its own, and reads those of the others.
//!
//! The memory is a memfd of the first process, which the others open as `/proc/PID/fd/N`: it has no name that a killed program
//! could leave. A process on another node, or with another view of processes, does not find it there, and then nobody uses it.
//!
//! An area has three parts, each written by its process alone:
//!
//! | part | use |
//! | --- | --- |
//! | `channels` | reductions, of each channel one at a time: the numbers of round n lie in half n % 2, until all processes have posted round n + 1 |
//! | `calls` | the collective calls that the process has made |
//! | `told`, `history` | the number that it told with these calls: an entry for each change, in a ring |
//!
//! Invariant: an entry of a history is overwritten only when all processes have made the call of the entry behind it, so a process
//! finds, for its own last call, the number that another one told then, however far that one is ahead.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags};
use rustix::io::{Errno, Result};
use rustix::mm::{MapFlags, ProtFlags};

/// The most numbers of one round of a reduction.
const NUMBERS: usize = 2048;
/// The most changes of the told number that a process may be ahead of another one.
const HISTORY: usize = 4096;
/// The name of the memfd, which `/proc` shows.
const NAME: &str = "weir-agreement";

/// A change of the told number.
#[repr(C)]
struct ToldNumber {
    /// The call that told it, from 1 on.
    call: AtomicU64,
    number: AtomicI64,
}

/// A counter in a cache line of its own.
#[repr(C, align(64))]
struct Counter(AtomicU64);

/// The reductions that may be in progress at the same time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReductionChannel {
    /// Those that a process waits for at once.
    Prompt,
    /// Those that it waits for at a later call.
    Deferred,
}

/// The numbers that a process has posted in a channel.
#[repr(C)]
struct PostedNumbers {
    /// The number of rounds.
    rounds: Counter,
    numbers: [[AtomicI64; NUMBERS]; 2],
}

/// The memory of one process. Zeros are its first state.
#[repr(C, align(4096))]
struct ProcessArea {
    /// In the first area: the token of the memory.
    token: Counter,
    calls: Counter,
    told: Counter,
    history: [ToldNumber; HISTORY],
    channels: [PostedNumbers; 2],
}

/// Where a process finds the memory of another one: `/proc/PID/fd/DESCRIPTOR`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemoryAddress {
    /// The first process.
    pub process: u32,
    /// Its descriptor of the memfd.
    pub descriptor: u32,
    /// A random number, which the memory has, too.
    pub token: u64,
}

impl MemoryAddress {
    /// As two numbers, of which both are positive: the highest ones of all processes are those of the only one that has an address.
    pub fn to_numbers(self) -> [i64; 2] {
        let place = u64::from(self.process) << 32 | u64::from(self.descriptor);
        [place, self.token].map(u64::cast_signed)
    }

    /// `None`: no process had an address.
    pub fn from_numbers(numbers: [i64; 2]) -> Option<MemoryAddress> {
        let [place, token] = numbers.map(i64::cast_unsigned);
        (place != 0).then_some(MemoryAddress {
            process: u32::try_from(place >> 32).ok()?,
            descriptor: u32::try_from(place & 0xffff_ffff).ok()?,
            token,
        })
    }
}

/// Memory that the first process offers to the others.
#[derive(Debug)]
pub struct OfferedNodeMemory {
    memory: NodeMemory,
    file: OwnedFd,
    token: u64,
}

impl OfferedNodeMemory {
    /// Makes memory for `processes` processes, of which this is the first.
    ///
    /// # Errors
    ///
    /// Errors of memfd_create(2), ftruncate(2), mmap(2); `NOSYS`: there are no random numbers.
    pub fn make(processes: usize) -> Result<OfferedNodeMemory> {
        let mut token = [0_u8; 8];
        getrandom::fill(&mut token).map_err(|_| Errno::NOSYS)?;
        let token = u64::from_ne_bytes(token) >> 1;
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create(NAME, flags)?;
        rustix::fs::ftruncate(&file, bytes_of(processes) as u64)?;
        // A process that maps it relies on its length.
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW)?;
        let memory = NodeMemory::map(&file, processes, 0)?;
        memory.areas()[0].token.0.store(token, Ordering::Release);
        Ok(OfferedNodeMemory {
            memory,
            file,
            token,
        })
    }

    /// Its address for the other processes, as long as this value exists.
    pub fn address(&self) -> MemoryAddress {
        MemoryAddress {
            process: std::process::id(),
            descriptor: self.file.as_raw_fd().cast_unsigned(),
            token: self.token,
        }
    }

    /// The memory itself. The others have opened it.
    pub fn into_memory(self) -> NodeMemory {
        self.memory
    }
}

/// Memory that the processes of a communicator share.
#[derive(Debug)]
pub struct NodeMemory {
    areas: NonNull<ProcessArea>,
    processes: usize,
    own: usize,
}

// SAFETY: the areas have atomic numbers only, and stay mapped until this is dropped.
unsafe impl Send for NodeMemory {}
// SAFETY: as above.
unsafe impl Sync for NodeMemory {}

impl NodeMemory {
    /// Opens the memory of another process, for process `own` of `processes`.
    ///
    /// # Errors
    ///
    /// `BADF`: at the address is another file; others of open(2), mmap(2).
    pub fn open(address: MemoryAddress, processes: usize, own: usize) -> Result<NodeMemory> {
        let MemoryAddress {
            process,
            descriptor,
            token,
        } = address;
        let path = format!("/proc/{process}/fd/{descriptor}");
        // To open another kind of file could have effects, or wait.
        let link = rustix::fs::readlink(path.as_str(), Vec::new())?;
        if link.to_bytes() != format!("/memfd:{NAME} (deleted)").as_bytes() {
            return Err(Errno::BADF);
        }
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file = rustix::fs::open(path.as_str(), flags, Mode::empty())?;
        let seals = rustix::fs::fcntl_get_seals(&file)?;
        let bytes = rustix::fs::fstat(&file)?.st_size;
        if !seals.contains(SealFlags::SHRINK) || usize::try_from(bytes) != Ok(bytes_of(processes)) {
            return Err(Errno::BADF);
        }
        let memory = NodeMemory::map(&file, processes, own)?;
        match memory.areas()[0].token.0.load(Ordering::Acquire) == token {
            true => Ok(memory),
            false => Err(Errno::BADF),
        }
    }

    /// Maps a memfd that is at least as long as the areas of all processes, for ever.
    fn map(file: impl AsFd, processes: usize, own: usize) -> Result<NodeMemory> {
        assert!(own < processes, "each process has an area");
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let areas = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                bytes_of(processes),
                access,
                MapFlags::SHARED,
                file,
                0,
            )
        }?;
        let areas = NonNull::new(areas.cast()).expect("the kernel does not map page 0");
        let memory = NodeMemory {
            areas,
            processes,
            own,
        };
        // The pages of the counters lie near the processor that touches them first.
        let ProcessArea {
            calls, channels, ..
        } = memory.own();
        for counter in [calls, &channels[0].rounds, &channels[1].rounds] {
            counter.0.store(0, Ordering::Relaxed);
        }
        Ok(memory)
    }

    fn areas(&self) -> &[ProcessArea] {
        // SAFETY: so many areas are mapped until this is dropped; any bytes are values of atomic numbers, and all processes change
        // them by atomic operations only.
        unsafe { std::slice::from_raw_parts(self.areas.as_ptr(), self.processes) }
    }

    fn own(&self) -> &ProcessArea {
        &self.areas()[self.own]
    }

    /// The areas of the other processes, the next one first, so that not all processes read the same area at a time.
    fn others(&self) -> impl Iterator<Item = &ProcessArea> {
        let (before, from_own) = self.areas().split_at(self.own);
        from_own[1..].iter().chain(before)
    }

    /// The highest of each number over all processes, which must all call this with as many numbers. `pause` is called again and
    /// again while others have not called it yet.
    pub fn highest(&self, mine: &[i64], all: &mut [i64], mut pause: impl FnMut()) {
        for (mine, all) in mine.chunks(NUMBERS).zip(all.chunks_mut(NUMBERS)) {
            self.post(ReductionChannel::Prompt, mine);
            self.collect(ReductionChannel::Prompt, all, &mut pause);
        }
    }

    /// Begins a reduction in a channel, in which this process has ended those before. At most 2,048 numbers.
    pub fn post(&self, channel: ReductionChannel, mine: &[i64]) {
        assert!(mine.len() <= NUMBERS, "a round has room for the numbers");
        let own = &self.own().channels[channel as usize];
        let round = own.rounds.0.load(Ordering::Relaxed) + 1;
        for (place, number) in own.numbers[half_of(round)].iter().zip(mine) {
            place.store(*number, Ordering::Relaxed);
        }
        own.rounds.0.store(round, Ordering::Release);
    }

    /// Ends the reduction that this process has begun last in a channel: gives the highest numbers. Waits as [`NodeMemory::highest`].
    pub fn collect(&self, channel: ReductionChannel, all: &mut [i64], mut pause: impl FnMut()) {
        let round = self.own().channels[channel as usize]
            .rounds
            .0
            .load(Ordering::Relaxed);
        all.fill(i64::MIN);
        for area in std::iter::once(self.own()).chain(self.others()) {
            let posted = &area.channels[channel as usize];
            wait_until(&posted.rounds, round, &mut pause);
            for (highest, number) in all.iter_mut().zip(&posted.numbers[half_of(round)]) {
                *highest = number.load(Ordering::Relaxed).max(*highest);
            }
        }
    }

    /// Ends a collective call, and tells the other processes a number, which never becomes less. Waits only if this process is
    /// thousands of changes ahead of another one.
    pub fn tell_number(&self, number: i64, mut pause: impl FnMut()) {
        let own = self.own();
        let call = own.calls.0.load(Ordering::Relaxed) + 1;
        let told = own.told.0.load(Ordering::Relaxed);
        let entry = |index: u64| &own.history[place_of(index)];
        let last = told.checked_sub(1).map(entry);
        if last.is_none_or(|last| last.number.load(Ordering::Relaxed) < number) {
            // The oldest entry is free once all processes have made the call of the one behind it.
            if let Some(oldest) = told.checked_sub(HISTORY as u64) {
                let next = entry(oldest + 1).call.load(Ordering::Relaxed);
                for other in self.others() {
                    wait_until(&other.calls, next, &mut pause);
                }
            }
            entry(told).call.store(call, Ordering::Relaxed);
            entry(told).number.store(number, Ordering::Relaxed);
            own.told.0.store(told + 1, Ordering::Release);
        }
        own.calls.0.store(call, Ordering::Release);
    }

    /// The highest number that the processes told in their calls up to this process's last one. `None`: it has made none. Waits for
    /// processes that have made fewer.
    pub fn highest_told(&self, mut pause: impl FnMut()) -> Option<i64> {
        let calls = self.own().calls.0.load(Ordering::Relaxed);
        if calls == 0 {
            return None;
        }
        let all = std::iter::once(self.own()).chain(self.others());
        let numbers = all.filter_map(|area| {
            wait_until(&area.calls, calls, &mut pause);
            let told = area.told.0.load(Ordering::Acquire);
            let entries = (told.saturating_sub(HISTORY as u64)..told).rev();
            let mut entries = entries.map(|index| &area.history[place_of(index)]);
            let last = entries.find(|entry| entry.call.load(Ordering::Relaxed) <= calls)?;
            Some(last.number.load(Ordering::Relaxed))
        });
        numbers.max()
    }
}

impl Drop for NodeMemory {
    fn drop(&mut self) {
        // SAFETY: the mapping of these bytes is ours, and not used again.
        let _ = unsafe { rustix::mm::munmap(self.areas.as_ptr().cast(), bytes_of(self.processes)) };
    }
}

/// Bytes of the memory of so many processes.
fn bytes_of(processes: usize) -> usize {
    size_of::<ProcessArea>() * processes
}

/// The half of a channel's numbers that a round uses.
fn half_of(round: u64) -> usize {
    usize::from(round % 2 == 1)
}

/// The place in a history of the change with this index.
fn place_of(index: u64) -> usize {
    usize::try_from(index % HISTORY as u64).expect("less than a history")
}

/// Waits until a counter has reached a number. The next one to change it may need this processor, and messages that this process
/// must receive, so it calls `pause` after a short time.
fn wait_until(counter: &Counter, number: u64, pause: &mut impl FnMut()) {
    const SPINS: u32 = 64;
    let mut spins = 0;
    while counter.0.load(Ordering::Acquire) < number {
        match spins < SPINS {
            true => std::hint::spin_loop(),
            false => pause(),
        }
        spins += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs an action as each of some processes, in threads.
    fn run_as_processes<R: Send>(
        processes: usize,
        act: impl Fn(usize, &NodeMemory) -> R + Sync,
    ) -> Vec<R> {
        let offered = OfferedNodeMemory::make(processes).unwrap();
        let address = MemoryAddress::from_numbers(offered.address().to_numbers()).unwrap();
        let open = |own| NodeMemory::open(address, processes, own).unwrap();
        let mut all: Vec<NodeMemory> = (1..processes).map(open).collect();
        all.insert(0, offered.into_memory());
        std::thread::scope(|scope| {
            let act = &act;
            let threads = all.into_iter().enumerate();
            let threads: Vec<_> = threads
                .map(|(own, memory)| scope.spawn(move || act(own, &memory)))
                .collect();
            let results = threads.into_iter().map(|thread| thread.join().unwrap());
            results.collect()
        })
    }

    #[test]
    fn all_processes_find_the_highest_numbers() {
        let rounds = 300_i64;
        run_as_processes(5, |own, memory| {
            let own = i64::try_from(own).unwrap();
            for round in 0..rounds {
                // Lists of several pieces now and then, and another process with the highest number in each round.
                let length = if round % 50 == 0 { 2 * NUMBERS + 3 } else { 3 };
                let mine = vec![round * 10 - (own - round % 5).abs(); length];
                let mut all = vec![0; length];
                memory.highest(&mine, &mut all, std::thread::yield_now);
                assert!(all.iter().all(|number| *number == round * 10), "{own}");
                // Meanwhile one of the other channel is in progress, from every third round to the next such one.
                if round % 3 == 0 {
                    let mut deferred = [0];
                    if round > 0 {
                        memory.collect(
                            ReductionChannel::Deferred,
                            &mut deferred,
                            std::thread::yield_now,
                        );
                        assert_eq!(deferred, [4 - (round - 3)]);
                    }
                    memory.post(ReductionChannel::Deferred, &[own - round]);
                }
            }
        });
    }

    #[test]
    fn the_highest_told_number_is_that_of_the_same_call() {
        // More changes than a history has, told at different speeds.
        let calls = 3 * i64::try_from(HISTORY).unwrap();
        run_as_processes(3, |own, memory| {
            assert_eq!(memory.highest_told(std::thread::yield_now), None);
            for call in 1..=calls {
                // The number of the process that tells more changes with every seventh call only.
                let number = match own {
                    0 => call / 7 * 7 + 3,
                    _ => call - i64::try_from(own).unwrap(),
                };
                memory.tell_number(number, std::thread::yield_now);
                // One process asks often, one seldom, and one never.
                let asks = own == 0 && call % 3 == 0 || own == 1 && call % 1000 == 0;
                if asks || call == calls {
                    let told = memory.highest_told(std::thread::yield_now);
                    assert_eq!(told, Some((call / 7 * 7 + 3).max(call - 1)));
                }
            }
        });
    }

    #[test]
    fn only_the_offered_memory_is_opened() {
        let offered = OfferedNodeMemory::make(2).unwrap();
        let address = offered.address();
        assert!(NodeMemory::open(address, 2, 1).is_ok());
        let wrong_token = MemoryAddress {
            token: address.token ^ 1,
            ..address
        };
        // Of other processes' number, or not a memfd: standard input, and none.
        assert_eq!(NodeMemory::open(wrong_token, 2, 1).err(), Some(Errno::BADF));
        assert_eq!(NodeMemory::open(address, 3, 1).err(), Some(Errno::BADF));
        let of_input = MemoryAddress {
            descriptor: 0,
            ..address
        };
        assert!(NodeMemory::open(of_input, 2, 1).is_err());
        drop(offered);
        assert!(NodeMemory::open(address, 2, 1).is_err());
        assert_eq!(MemoryAddress::from_numbers([0; 2]), None);
    }
}

//! Communicators and info objects of the MPI that this process uses, found at run time.
//!
//! Handles are `int` in MPICH and pointers in Open MPI. Both are passed as words here: a function that takes an `int` looks
//! at the lower half of the word, in the C calling conventions of x86-64 and aarch64.

use core::ffi::{c_char, c_int, c_void, CStr};
use core::ptr::NonNull;
use std::ffi::CString;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::OnceLock;

use crate::bugs::contain;
use crate::symbols::{find_symbol, function, Search};

/// A handle: `MPI_Comm`, `MPI_Info`, `MPI_Datatype`, `MPI_File`.
pub type MpiHandle = usize;
/// `MPI_Offset`.
pub type Offset = i64;
/// `MPI_Count`.
pub type Count = i64;
/// `MPI_Fint`.
pub type Fint = c_int;

/// `MPI_SUCCESS`.
pub const SUCCESS: c_int = 0;
/// An error code for a function that MPI does not have: `MPI_ERR_OTHER` of MPICH, and a failure in Open MPI as well.
pub const MISSING: c_int = 15;
/// `MPI_ERR_INTERN` of MPICH, and of Open MPI: a fault of the implementation.
const INTERNAL: [c_int; 2] = [16, 17];
/// The predefined handles of MPICH's ABI (mpich.org/abi).
const MPICH_CONSTANTS: Constants = Constants {
    comm_null: 0x0400_0000,
    comm_world: 0x4400_0000,
    datatype_null: 0x0c00_0000,
    info_null: 0x1c00_0000,
    long_long: 0x4c00_0809,
    max: 0x5800_0001,
};
/// `MPI_STATUS_IGNORE` of MPICH and of Open MPI, as a number.
const STATUS_IGNORE: [usize; 2] = [1, 0];
/// `MPI_COMM_TYPE_SHARED` of MPICH and of Open MPI.
const SHARED: [c_int; 2] = [1, 0];
/// The most numbers of one reduction.
const REDUCED_AT_ONCE: usize = 1 << 20;
/// The highest tag that every MPI has (MPI 4.0, section 9.1.2), and how many from there down are probed for in turn.
const LAST_TAG: c_int = 32_767;
const PROBED_TAGS: u32 = 4;
/// The longest value of a hint that is read, bytes.
const HINT_BYTES: usize = 63;

/// The direction of a transfer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// From memory to the file.
    Write,
    /// From the file.
    Read,
}

/// Predefined handles.
#[derive(Clone, Copy, Debug)]
struct Constants {
    comm_null: MpiHandle,
    comm_world: MpiHandle,
    datatype_null: MpiHandle,
    info_null: MpiHandle,
    long_long: MpiHandle,
    max: MpiHandle,
}

type MpiFree = unsafe extern "C" fn(*mut MpiHandle) -> c_int;
type MpiDup = unsafe extern "C" fn(MpiHandle, *mut MpiHandle) -> c_int;
type MpiCreate = unsafe extern "C" fn(*mut MpiHandle) -> c_int;
type MpiNumber = unsafe extern "C" fn(MpiHandle, *mut c_int) -> c_int;
type MpiSplit = unsafe extern "C" fn(MpiHandle, c_int, c_int, MpiHandle, *mut MpiHandle) -> c_int;
type MpiSetHint = unsafe extern "C" fn(MpiHandle, *const c_char, *const c_char) -> c_int;
type MpiGetHint =
    unsafe extern "C" fn(MpiHandle, *const c_char, c_int, *mut c_char, *mut c_int) -> c_int;
type MpiBeginAllreduce = unsafe extern "C" fn(
    *const c_void,
    *mut c_void,
    c_int,
    MpiHandle,
    MpiHandle,
    MpiHandle,
    *mut MpiHandle,
) -> c_int;
type MpiTest = unsafe extern "C" fn(*mut MpiHandle, *mut c_int, *mut c_void) -> c_int;
type MpiProbe = unsafe extern "C" fn(c_int, c_int, MpiHandle, *mut c_int, *mut c_void) -> c_int;

/// The functions of an MPI that connectors call, all from the profiling interface (`PMPI_`).
#[derive(Clone, Copy, Debug)]
pub struct Mpi {
    constants: Constants,
    /// True for Open MPI.
    pub is_openmpi: bool,
    info_create: MpiCreate,
    info_dup: MpiDup,
    info_free: MpiFree,
    info_set: MpiSetHint,
    info_get: MpiGetHint,
    iallreduce: MpiBeginAllreduce,
    test: MpiTest,
    iprobe: MpiProbe,
    initialized: unsafe extern "C" fn(*mut c_int) -> c_int,
    comm_dup: MpiDup,
    comm_free: MpiFree,
    comm_rank: MpiNumber,
    comm_size: MpiNumber,
    comm_split_type: MpiSplit,
}

/// The error code for a call in which an assertion of ours failed.
pub fn internal_error() -> c_int {
    // The failed assertion may be in this search.
    let found = contain("the search for MPI", Mpi::get, || None);
    INTERNAL[usize::from(found.is_some_and(|mpi| mpi.is_openmpi))]
}

impl Mpi {
    /// The MPI of this process; `None`: none is loaded, or it lacks a function.
    pub fn get() -> Option<&'static Mpi> {
        static MPI: OnceLock<Option<Mpi>> = OnceLock::new();
        MPI.get_or_init(Mpi::find).as_ref()
    }

    fn find() -> Option<Mpi> {
        // A program that is not position-independent has its own copies of MPI's variables, and MPI uses those. They come first in
        // the order of all libraries.
        let openmpi = |name: &CStr| find_symbol(Search::All, name).map(|at| at as MpiHandle);
        let is_openmpi = openmpi(c"ompi_mpi_comm_world").is_some();
        let constants = match is_openmpi {
            false => MPICH_CONSTANTS,
            true => Constants {
                comm_null: openmpi(c"ompi_mpi_comm_null")?,
                comm_world: openmpi(c"ompi_mpi_comm_world")?,
                datatype_null: openmpi(c"ompi_mpi_datatype_null")?,
                info_null: openmpi(c"ompi_mpi_info_null")?,
                long_long: openmpi(c"ompi_mpi_long_long_int")?,
                max: openmpi(c"ompi_mpi_op_max")?,
            },
        };
        // SAFETY: the types are those of MPI's functions of these names.
        unsafe {
            Some(Mpi {
                constants,
                is_openmpi,
                info_create: function(c"PMPI_Info_create")?,
                info_dup: function(c"PMPI_Info_dup")?,
                info_free: function(c"PMPI_Info_free")?,
                info_set: function(c"PMPI_Info_set")?,
                info_get: function(c"PMPI_Info_get")?,
                iallreduce: function(c"PMPI_Iallreduce")?,
                test: function(c"PMPI_Test")?,
                iprobe: function(c"PMPI_Iprobe")?,
                initialized: function(c"PMPI_Initialized")?,
                comm_dup: function(c"PMPI_Comm_dup")?,
                comm_free: function(c"PMPI_Comm_free")?,
                comm_rank: function(c"PMPI_Comm_rank")?,
                comm_size: function(c"PMPI_Comm_size")?,
                comm_split_type: function(c"PMPI_Comm_split_type")?,
            })
        }
    }

    /// True if a handle is this predefined one. The upper half of a word with an `int` may be anything.
    fn is(&self, handle: MpiHandle, constant: MpiHandle) -> bool {
        match self.is_openmpi {
            true => handle == constant,
            false => handle & 0xffff_ffff == constant,
        }
    }

    /// True for `MPI_COMM_NULL`.
    pub fn is_null_comm(&self, comm: MpiHandle) -> bool {
        self.is(comm, self.constants.comm_null)
    }

    /// True for `MPI_DATATYPE_NULL`.
    pub fn is_null_datatype(&self, datatype: MpiHandle) -> bool {
        self.is(datatype, self.constants.datatype_null)
    }

    /// For each answer: true if all processes of a communicator agree. All of them must call this. A failure of MPI counts as "no",
    /// and MPI has called its error handler.
    ///
    /// # Safety
    ///
    /// A valid communicator.
    pub unsafe fn all_agree<const N: usize>(&self, comm: MpiHandle, mine: [bool; N]) -> [bool; N] {
        let dissents = mine.map(|agrees| i64::from(!agrees));
        // SAFETY: the communicator is valid, and all its processes call this, by the caller.
        let all = unsafe { self.highest(comm, dissents) };
        all.map_or([false; N], |all| all.map(|dissents| dissents == 0))
    }

    /// The highest of each number over all processes of a communicator, which must all call this. `None`: MPI failed, and has
    /// called its error handler.
    ///
    /// # Safety
    ///
    /// A valid communicator.
    pub unsafe fn highest<const N: usize>(
        &self,
        comm: MpiHandle,
        mine: [i64; N],
    ) -> Option<[i64; N]> {
        let mut all = [0_i64; N];
        // SAFETY: the caller owes a valid communicator.
        unsafe { self.reduce_to_highest(comm, &mine, &mut all) }.then_some(all)
    }

    /// The same for two lists of equal length. False: MPI failed.
    ///
    /// # Safety
    ///
    /// A valid communicator, and lists of the same length in all of its processes.
    pub(crate) unsafe fn reduce_to_highest(
        &self,
        comm: MpiHandle,
        mine: &[i64],
        all: &mut [i64],
    ) -> bool {
        let pieces = mine.chunks(REDUCED_AT_ONCE);
        let mut pairs = pieces.zip(all.chunks_mut(REDUCED_AT_ONCE));
        pairs.all(|(mine, all)| {
            // SAFETY: the caller owes a valid communicator.
            let pending = unsafe { self.begin_highest(comm, mine) };
            let highest = pending.and_then(|pending| self.end_highest(pending));
            if let Some(highest) = &highest {
                all.copy_from_slice(highest);
            }
            highest.is_some()
        })
    }

    /// Begins a reduction to the highest of each number; does not wait for it. `None`: MPI failed.
    ///
    /// # Safety
    ///
    /// A valid communicator, and lists of the same length in all of its processes.
    unsafe fn begin_highest(&self, comm: MpiHandle, mine: &[i64]) -> Option<PendingHighest> {
        let count = c_int::try_from(mine.len()).ok()?;
        let numbers = NonNull::from(Box::leak(Box::new(ReducedNumbers {
            mine: mine.to_vec(),
            highest: mine.to_vec(),
        })));
        let at = numbers.as_ptr();
        let mut request: MpiHandle = 0;
        let Constants { long_long, max, .. } = self.constants;
        // SAFETY: lists of `count` numbers of type `long long`, which live until MPI is done: only `end_highest` frees them, after the
        // wait. A valid communicator, by the caller; room for a handle.
        let code = unsafe {
            (self.iallreduce)(
                (*at).mine.as_ptr().cast(),
                (*at).highest.as_mut_ptr().cast(),
                count,
                long_long,
                max,
                comm,
                &raw mut request,
            )
        };
        (code == SUCCESS).then_some(PendingHighest { numbers, request })
    }

    /// Waits until all processes have begun it. `None`: MPI failed.
    fn end_highest(&self, mut pending: PendingHighest) -> Option<Vec<i64>> {
        self.wait_for(&mut pending.request).then_some(())?;
        // SAFETY: `begin_highest` leaked this box, and MPI does not use it any more.
        let numbers = unsafe { Box::from_raw(pending.numbers.as_ptr()) };
        Some(numbers.highest)
    }

    /// Waits for a request; false: MPI failed. It yields the processor, since MPICH's wait polls without: where processes share cores,
    /// it keeps the others from what it waits for until its time slice ends.
    fn wait_for(&self, request: &mut MpiHandle) -> bool {
        let mut is_done = 0;
        loop {
            // SAFETY: the request is pending, and the status is the one to be ignored; room for a flag.
            let code =
                unsafe { (self.test)(&raw mut *request, &raw mut is_done, self.no_status()) };
            if code != SUCCESS || is_done != 0 {
                return code == SUCCESS;
            }
            std::thread::yield_now();
        }
    }

    fn no_status(&self) -> *mut c_void {
        STATUS_IGNORE[usize::from(self.is_openmpi)] as *mut c_void
    }

    /// True if this process may wait outside of MPI: [`Mpi::pause`] needs a `MPI_COMM_WORLD` of several processes. A program may have
    /// none (sessions, MPI 4.0), or be alone in it (MPI_Comm_spawn).
    pub fn can_pause(&self) -> bool {
        let mut is_initialized = 0;
        // SAFETY: room for a flag; with it set `MPI_COMM_WORLD` is valid.
        unsafe {
            let code = (self.initialized)(&raw mut is_initialized);
            code == SUCCESS
                && is_initialized != 0
                && self
                    .size(self.constants.comm_world)
                    .is_some_and(|size| size > 1)
        }
    }

    /// For a wait outside of MPI: lets MPI deal with messages, which another process may need before it does what is waited for, and
    /// yields the processor. Only where [`Mpi::can_pause`] is true: a probe of a communicator of one process makes MPICH look at that
    /// process's own messages alone.
    pub fn pause(&self) {
        // A probe that finds a message may return at once. A program hardly has several pending with these tags.
        static TURN: AtomicU32 = AtomicU32::new(0);
        let turn = TURN.fetch_add(1, Ordering::Relaxed) % PROBED_TAGS;
        let tag = LAST_TAG - turn.cast_signed();
        let mut is_found = 0;
        // SAFETY: a predefined communicator, which has a process 0, a valid tag, and room for a flag.
        unsafe {
            (self.iprobe)(
                0,
                tag,
                self.constants.comm_world,
                &raw mut is_found,
                self.no_status(),
            )
        };
        std::thread::yield_now();
    }

    /// This process's rank in a communicator. `None`: MPI failed, and has called its error handler.
    ///
    /// # Safety
    ///
    /// A valid communicator.
    pub unsafe fn rank(&self, comm: MpiHandle) -> Option<u32> {
        // SAFETY: the caller vouches for the communicator.
        unsafe { number_of(self.comm_rank, comm) }
    }

    /// The number of processes of a communicator. `None`: as for [`Mpi::rank`].
    ///
    /// # Safety
    ///
    /// As [`Mpi::rank`].
    pub unsafe fn size(&self, comm: MpiHandle) -> Option<u32> {
        // SAFETY: the caller vouches for the communicator.
        unsafe { number_of(self.comm_size, comm) }
    }

    /// The value of a hint of an info object; `None`: it has none.
    ///
    /// # Safety
    ///
    /// A valid info object, or `MPI_INFO_NULL`.
    pub unsafe fn hint(&self, info: MpiHandle, name: &CStr) -> Option<CString> {
        if self.is(info, self.constants.info_null) {
            return None;
        }
        let mut value = [0_u8; HINT_BYTES + 1];
        let mut is_set = 0;
        let bytes = c_int::try_from(HINT_BYTES).expect("a small number");
        // SAFETY: a C string; room for the value and its end; the caller vouches for the object.
        let code = unsafe {
            (self.info_get)(
                info,
                name.as_ptr(),
                bytes,
                value.as_mut_ptr().cast(),
                &raw mut is_set,
            )
        };
        let value = CStr::from_bytes_until_nul(&value).ok()?;
        (code == SUCCESS && is_set != 0).then(|| value.to_owned())
    }

    /// An info object of our own: a copy of another one, with more hints. `None`: MPI failed, and has called its error handler.
    ///
    /// # Safety
    ///
    /// A valid info object, or `MPI_INFO_NULL`.
    pub unsafe fn with_hints(
        &self,
        info: MpiHandle,
        hints: &[(&CStr, &CStr)],
    ) -> Option<MpiHandle> {
        let mut own: MpiHandle = 0;
        // SAFETY: room for a handle; C strings; the caller vouches for the object.
        unsafe {
            let code = match self.is(info, self.constants.info_null) {
                true => (self.info_create)(&raw mut own),
                false => (self.info_dup)(info, &raw mut own),
            };
            if code != SUCCESS {
                return None;
            }
            for (name, value) in hints {
                (self.info_set)(own, name.as_ptr(), value.as_ptr());
            }
        }
        Some(own)
    }

    /// An info object with these hints alone; `None`: as for [`Mpi::with_hints`].
    pub fn info_of(&self, hints: &[(&CStr, &CStr)]) -> Option<MpiHandle> {
        // SAFETY: it is the null object.
        unsafe { self.with_hints(self.constants.info_null, hints) }
    }

    /// Frees an info object of our own.
    ///
    /// # Safety
    ///
    /// An object from [`Mpi::with_hints`], or that a library made for its caller, not used any more.
    pub unsafe fn free_info(&self, mut info: MpiHandle) {
        // SAFETY: the object is valid, our own, and not used again, by the caller.
        unsafe { (self.info_free)(&raw mut info) };
    }
}

/// The number that one of MPI's functions has for a communicator.
///
/// # Safety
///
/// A valid communicator.
unsafe fn number_of(get: MpiNumber, comm: MpiHandle) -> Option<u32> {
    let mut number: c_int = -1;
    // SAFETY: room for a number; the caller vouches for the communicator.
    let code = unsafe { get(comm, &raw mut number) };
    u32::try_from(number).ok().filter(|_| code == SUCCESS)
}

/// The memory of a reduction.
#[derive(Debug)]
struct ReducedNumbers {
    mine: Vec<i64>,
    highest: Vec<i64>,
}

/// A reduction in progress. If it is dropped, its memory leaks, since MPI may still use it.
#[derive(Debug)]
#[must_use]
pub struct PendingHighest {
    numbers: NonNull<ReducedNumbers>,
    request: MpiHandle,
}

// SAFETY: only MPI uses the numbers until `end_highest`, which takes this by value.
unsafe impl Send for PendingHighest {}
// SAFETY: a shared reference gives no access to them.
unsafe impl Sync for PendingHighest {}

/// A communicator of our own, whose messages never mix with the program's.
#[derive(Debug)]
pub struct Communicator {
    mpi: &'static Mpi,
    comm: MpiHandle,
    /// This process's rank in it.
    pub rank: u32,
    /// The number of its processes.
    pub size: u32,
}

impl Communicator {
    /// A copy of another one. `None`: MPI failed, and has called its error handler.
    ///
    /// # Safety
    ///
    /// A valid communicator, all of whose processes call this.
    pub unsafe fn copy(mpi: &'static Mpi, comm: MpiHandle) -> Option<Communicator> {
        let mut own: MpiHandle = 0;
        // SAFETY: room for a handle; the caller vouches for the communicator.
        let code = unsafe { (mpi.comm_dup)(comm, &raw mut own) };
        Communicator::adopt(mpi, code, own)
    }

    /// The communicator of those of its processes that share this node's memory. All processes must call this.
    pub fn of_node(&self) -> Option<Communicator> {
        let mut own: MpiHandle = 0;
        let kind = SHARED[usize::from(self.mpi.is_openmpi)];
        let (key, info) = (0, self.mpi.constants.info_null);
        // SAFETY: the communicator is ours; room for a handle.
        let code = unsafe { (self.mpi.comm_split_type)(self.comm, kind, key, info, &raw mut own) };
        Communicator::adopt(self.mpi, code, own)
    }

    fn adopt(mpi: &'static Mpi, code: c_int, comm: MpiHandle) -> Option<Communicator> {
        if code != SUCCESS {
            return None;
        }
        // SAFETY: the communicator was just made.
        let (rank, size) = unsafe { (mpi.rank(comm)?, mpi.size(comm)?) };
        Some(Communicator {
            mpi,
            comm,
            rank,
            size,
        })
    }

    /// Reduces a list to the highest of each number over all processes, which must all call this with lists of the same length.
    /// False: MPI failed, and has called its error handler.
    pub fn reduce_to_highest(&self, mine: &[i64], all: &mut [i64]) -> bool {
        // SAFETY: the communicator is ours, and all its processes call this.
        unsafe { self.mpi.reduce_to_highest(self.comm, mine, all) }
    }

    /// Begins a reduction to the highest of each number over all processes; does not wait for it. All processes must call this, in the
    /// same order as their other calls with this communicator. `None`: MPI failed, and has called its error handler.
    pub fn begin_highest(&self, mine: &[i64]) -> Option<PendingHighest> {
        // SAFETY: the communicator is ours, and all its processes call this.
        unsafe { self.mpi.begin_highest(self.comm, mine) }
    }

    /// Waits until all processes have begun it. `None`: MPI failed.
    pub fn end_highest(&self, pending: PendingHighest) -> Option<Vec<i64>> {
        self.mpi.end_highest(pending)
    }

    /// Frees it. All processes must call this, before MPI_Finalize.
    pub fn free(mut self) {
        // SAFETY: it is ours, and not used again.
        unsafe { (self.mpi.comm_free)(&raw mut self.comm) };
    }
}

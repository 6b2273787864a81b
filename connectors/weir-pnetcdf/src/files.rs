//! The files of this process whose writes are logged, by PnetCDF's numbers, and the choice of these files.

use core::ffi::{c_char, c_int, c_void, CStr};
use std::collections::HashMap;
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

use weir_arraylog::log_name;
use weir_arrays::definitions::{FileDefinitions, Variable};
use weir_arrays::element::ElementType;
use weir_arrays::log::{BlockMap, LogRecord};
use weir_connect::bugs::contain;
use weir_connect::complain;
use weir_connect::mpi::{Mpi, MpiHandle, Offset};
use weir_connect::peers::{FilePeers, PeersOffer};
use weir_connect::place;

use crate::datatypes::Datatypes;
use crate::direct::DirectFile;
use crate::file::{now_ns, DataMode, LoggedFile, NewFile, TransferKind};
use crate::library::{
    inside, is_inside, Library, CLASSIC_FORMATS, FORMAT_CDF5, NAME_BYTES, NC_EINTERNAL, NC_GLOBAL,
    NC_NOERR,
};
use crate::log_files::LogFiles;
use crate::settings::{LogSharing, Settings, BLOCK_BYTES};

/// A hint in the info object of an open: with `disable` the file's writes are not logged.
const HINT: &CStr = c"weir_pnetcdf_log";

type Files = HashMap<c_int, Arc<Mutex<LoggedFile>>>;

static FILES: RwLock<Option<Files>> = RwLock::new(None);
/// The number of logged files: while it is 0, a look-up takes no lock.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Calls `act` with a file if its writes are logged and the call is the program's, not one of PnetCDF's own. A failed assertion of
/// ours is an error of the call.
pub fn with<R: From<c_int>>(
    number: c_int,
    act: impl FnOnce(&mut LoggedFile) -> Option<R>,
) -> Option<R> {
    if COUNT.load(Ordering::Relaxed) == 0 || is_inside() {
        return None;
    }
    let file = {
        let files = FILES.read().unwrap_or_else(PoisonError::into_inner);
        files.as_ref()?.get(&number)?.clone()
    };
    let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
    // A second guard inside that of the whole call: PnetCDF is called even after a panic here, since other processes call it.
    let act = || inside(|| act(&mut file));
    contain("a logged file", act, || Some(NC_EINTERNAL.into()))
}

/// Flushes before a put that is not logged, or a get that PnetCDF does.
///
/// # Safety
///
/// For a collective put or get, all processes call this.
pub unsafe fn flush_before(number: c_int, timing: TransferKind) -> Option<c_int> {
    with(number, |file| file.flush_before(timing))
}

/// Ends the logging of a file. Its log is not removed.
pub fn forget(number: c_int) -> Option<LoggedFile> {
    let mut files = FILES.write().unwrap_or_else(PoisonError::into_inner);
    let file = files.as_mut()?.remove(&number)?;
    COUNT.fetch_sub(1, Ordering::Relaxed);
    let file = Arc::into_inner(file)?;
    Some(file.into_inner().unwrap_or_else(PoisonError::into_inner))
}

/// The file that a program has just opened or created.
#[derive(Clone, Copy, Debug)]
pub struct NewlyOpened<'a> {
    pub comm: MpiHandle,
    pub path: &'a CStr,
    pub info: MpiHandle,
    pub number: c_int,
    pub mode: DataMode,
    pub is_writable: bool,
}

/// Decides if the writes of a file are logged, and begins its log.
///
/// # Safety
///
/// All processes of the communicator call this, with valid handles, after their open succeeded.
pub unsafe fn note_opened(opened: NewlyOpened<'_>) {
    let (Some(mpi), Some(library)) = (Mpi::get(), Library::get()) else {
        return;
    };
    let settings = Settings::read();
    // SAFETY: the info object is valid, by the caller.
    let is_wanted = settings.directory.is_some()
        && settings.log != LogSharing::None
        && opened.is_writable
        && datatypes(mpi).is_some()
        && (settings.all_files || place::lives_in_weir(opened.path))
        && unsafe { mpi.hint(opened.info, HINT) }.is_none_or(|hint| hint.as_bytes() != b"disable")
        && !library.has_own_log(mpi, opened.number);
    // Only for a file that is opened for writing: weir moves such a file to its target anew. If the open fails, PnetCDF flushes,
    // and reports its own failure.
    let direct = match is_wanted && settings.is_direct {
        true => DirectFile::open(opened.path).ok().flatten(),
        false => None,
    };
    let is_shared = settings.log == LogSharing::Node;
    // The inode number of the file, and a number that no other log of it has: both from the first process.
    // SAFETY: the communicator is valid, by the caller.
    let Some(mut offer) = (unsafe { PeersOffer::make(mpi, opened.comm, is_wanted) }) else {
        return;
    };
    let id = match offer.rank {
        0 => LogId {
            inode: inode_of(opened.path),
            number: now_ns(),
        }
        .to_numbers(),
        _ => [0; 3],
    };
    let dissents = [is_wanted, is_shared, direct.is_some()].map(|agrees| i64::from(!agrees));
    let [wanted, shared, direct_ones] = dissents;
    let [high, low, number] = id;
    // SAFETY: the communicator is valid, and all its processes call this, by the caller.
    let agreed = unsafe {
        offer.highest(
            mpi,
            opened.comm,
            [wanted, shared, direct_ones, high, low, number],
        )
    };
    let (Some([0, shared, direct_ones, high, low, number]), Some(datatypes)) =
        (agreed, datatypes(mpi))
    else {
        return;
    };
    let (is_shared, is_direct) = (shared == 0, direct_ones == 0);
    // SAFETY: the communicator is valid, and all its processes call this: they agreed that the file is logged.
    let Some(peers) = (unsafe { offer.accept(mpi, opened.comm) }) else {
        return;
    };
    let id = LogId::from_numbers([high, low, number]);
    let log = match begin_log(&peers, &settings, opened.path, is_shared, id) {
        Ok(log) => log,
        Err(why) => {
            if let Some(why) = why {
                complain!(
                    "weir: writes of {} are not logged: {why}",
                    opened.path.to_string_lossy()
                );
            }
            peers.free();
            return;
        }
    };
    let new = NewFile {
        number: opened.number,
        peers,
        settings,
        log,
        direct: direct.filter(|_| is_direct),
        mode: opened.mode,
        is_writable: opened.is_writable,
    };
    let file = LoggedFile::new(library, datatypes, new);
    {
        let mut files = FILES.write().unwrap_or_else(PoisonError::into_inner);
        let files = files.get_or_insert_default();
        if files
            .insert(opened.number, Arc::new(Mutex::new(file)))
            .is_none()
        {
            COUNT.fetch_add(1, Ordering::Relaxed);
        }
    }
    if opened.mode != DataMode::Define {
        note_defined(opened.number);
    }
}

fn datatypes(mpi: &Mpi) -> Option<&'static Datatypes> {
    static DATATYPES: OnceLock<Option<Datatypes>> = OnceLock::new();
    DATATYPES.get_or_init(|| Datatypes::find(mpi)).as_ref()
}

/// The numbers in the name of a log.
#[derive(Clone, Copy, Debug)]
struct LogId {
    /// The inode number of the file; 0: it is not known.
    inode: u64,
    /// A number that no other log of the file has.
    number: u64,
}

impl LogId {
    /// As non-negative numbers, so that they win over the zeros of the other processes.
    fn to_numbers(self) -> [i64; 3] {
        [self.inode >> 32, self.inode & 0xffff_ffff, self.number].map(u64::cast_signed)
    }

    fn from_numbers(numbers: [i64; 3]) -> LogId {
        let [high, low, number] = numbers.map(i64::cast_unsigned);
        LogId {
            inode: high << 32 | low,
            number,
        }
    }
}

/// The inode number of a file; 0: it has none.
fn inode_of(name: &CStr) -> u64 {
    let found = place::path(name).metadata();
    found.map_or(0, |found| found.ino())
}

/// Makes the files of a log. `id`: the numbers for its name. All processes call this. If one of them fails, all
/// do, and only that one knows the reason.
fn begin_log(
    peers: &FilePeers,
    settings: &Settings,
    path: &CStr,
    is_shared: bool,
    id: LogId,
) -> Result<LogFiles, Option<String>> {
    let path = place::path(path);
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let above = settings.directory.as_ref().ok_or(None)?;
    let LogId { inode, number } = id;
    let directory = above.join(log_name(&path, inode, number));
    // Each process makes the directory: waiting for one that does takes longer.
    let mut failure = LogFiles::create_directory(&directory).err();
    let node = is_shared.then(|| peers.of_node()).flatten();
    let (name, map, writer) = match &node {
        None => (
            format!("{:06}", peers.rank),
            BlockMap {
                writers: 1,
                block_bytes: BLOCK_BYTES,
            },
            0,
        ),
        Some(node) => {
            // The lowest rank of the node, as the highest of negative numbers.
            let [leader] = node.highest([-i64::from(peers.rank)]).ok_or(None)?;
            let map = BlockMap {
                writers: node.size,
                block_bytes: BLOCK_BYTES,
            };
            (format!("node-{:06}", -leader), map, node.rank)
        }
    };
    let mut log = None;
    // The first writer of a pair makes its files; then the others open them.
    for turn in [true, false] {
        if (writer == 0) == turn {
            match LogFiles::open(&directory, &name, map, writer) {
                Ok(files) => log = Some(files),
                Err(error) => failure = Some(error),
            }
        }
        if let Some(node) = &node {
            node.highest([0]);
        }
    }
    if let Some(node) = node {
        node.free();
    }
    if let Some(log) = log.as_mut() {
        let opened = LogRecord::Opened {
            path: path.as_os_str().as_bytes().to_vec(),
            inode,
            rank: peers.rank,
            processes: peers.size,
        };
        failure = log.append_kept(&opened).err();
    }
    if peers.highest([i64::from(failure.is_some())]) != Some([0]) {
        if let Some(log) = log {
            let _ = log.remove();
        }
        LogFiles::remove_directory(&directory);
        return Err(failure.map(|error| error.to_string()));
    }
    log.ok_or(None)
}

/// Reads and logs the definitions, after `ncmpi_enddef`. All processes call this. If one of them fails, all forget the file, whose
/// log has no entries then.
pub fn note_defined(number: c_int) {
    let is_ready = with(number, |file| {
        file.mode = DataMode::Collective;
        let is_own_ready = file.read_definitions().is_some() && {
            let defined = LogRecord::Defined(file.definitions.clone());
            file.log.append_kept(&defined).is_ok()
        };
        let all = file.peers.highest([i64::from(!is_own_ready)]);
        Some(c_int::from(all == Some([0])))
    });
    if is_ready == Some(0) {
        complain!("weir: the writes of a PnetCDF file are not logged: its definitions cannot be read, or its log not written");
        end_log(number);
    }
}

/// Ends the logging of a file whose log is kept. All processes call this.
pub fn forget_kept(number: c_int) {
    if let Some(mut file) = forget(number) {
        file.abandon_check();
        file.peers.free();
    }
}

/// Ends and removes the log of a file whose entries are all in the file. All processes call this.
pub fn end_log(number: c_int) {
    let Some(mut file) = forget(number) else {
        return;
    };
    file.abandon_check();
    let directory = file.log.directory().map(Path::to_path_buf);
    if let Err(error) = file.log.remove() {
        complain!("weir: a log of PnetCDF's writes cannot be removed: {error}");
    }
    // Only the last process removes it: for the others it is not empty.
    if let Some(directory) = directory {
        LogFiles::remove_directory(&directory);
    }
    file.peers.free();
}

impl LoggedFile {
    /// Reads the definitions. `None`: PnetCDF refuses, or the file has another format.
    fn read_definitions(&mut self) -> Option<()> {
        let (library, number) = (self.library, self.number);
        let (mut variables, mut format, mut record_dimension) = (0, 0, -1);
        let mut record_bytes: Offset = 0;
        // SAFETY: room for each answer; PnetCDF permits null for answers that are not wanted.
        let is_read = unsafe {
            let null = core::ptr::null_mut;
            (library.inq)(
                number,
                null(),
                &raw mut variables,
                null(),
                &raw mut record_dimension,
            ) == NC_NOERR
                && (library.inq_format)(number, &raw mut format) == NC_NOERR
                && (library.inq_recsize)(number, &raw mut record_bytes) == NC_NOERR
        };
        if !is_read || !CLASSIC_FORMATS.contains(&format) {
            return None;
        }
        self.record_dimension = record_dimension;
        if record_dimension >= 0 {
            let mut records: Offset = 0;
            // SAFETY: room for the answer.
            let code = unsafe { (library.inq_dimlen)(number, record_dimension, &raw mut records) };
            self.records = u64::try_from(records).ok().filter(|_| code == NC_NOERR)?;
        }
        if self.has_subfiles() {
            self.direct = None;
        }
        let variables = (0..variables).map(|variable| self.read_variable(variable));
        self.definitions = FileDefinitions {
            variables: variables.collect::<Option<_>>()?,
            is_cdf5: format == FORMAT_CDF5,
            record_bytes: u64::try_from(record_bytes).ok()?,
        };
        Some(())
    }

    /// True if PnetCDF keeps variables in other files (hint `nc_num_subfiles`): their offsets are not those in this file.
    fn has_subfiles(&self) -> bool {
        const ATTRIBUTE: &CStr = c"_PnetCDF_SubFiling.num_subfiles";
        let (mut kind, mut length): (c_int, Offset) = (0, 0);
        // SAFETY: a C string, and room for the answers.
        let code = unsafe {
            (self.library.inq_att)(
                self.number,
                NC_GLOBAL,
                ATTRIBUTE.as_ptr(),
                &raw mut kind,
                &raw mut length,
            )
        };
        code == NC_NOERR
    }

    fn read_variable(&self, variable: c_int) -> Option<Variable> {
        let (library, number) = (self.library, self.number);
        let mut rank = 0;
        // SAFETY: room for the answer.
        let code = unsafe { (library.inq_varndims)(number, variable, &raw mut rank) };
        let rank = usize::try_from(rank).ok().filter(|_| code == NC_NOERR)?;
        let mut dimensions: Vec<c_int> = vec![-1; rank];
        let mut name = [0_u8; NAME_BYTES];
        let (mut kind, mut begin, mut has_no_fill): (c_int, Offset, c_int) = (0, 0, 0);
        let mut fill = [0_u8; 8];
        // SAFETY: room for the name, for as many dimensions as there are, and for an element of any type.
        let is_read = unsafe {
            let null = core::ptr::null_mut();
            let name = name.as_mut_ptr().cast::<c_char>();
            (library.inq_var)(
                number,
                variable,
                name,
                &raw mut kind,
                null,
                dimensions.as_mut_ptr(),
                null,
            ) == NC_NOERR
                && (library.inq_varoffset)(number, variable, &raw mut begin) == NC_NOERR
                && (library.inq_var_fill)(
                    number,
                    variable,
                    &raw mut has_no_fill,
                    (&raw mut fill).cast::<c_void>(),
                ) == NC_NOERR
        };
        let external = ElementType::from_number(kind.into()).filter(|_| is_read)?;
        let lengths = dimensions.iter().map(|dimension| {
            let mut length: Offset = 0;
            // SAFETY: room for the answer.
            let code = unsafe { (library.inq_dimlen)(number, *dimension, &raw mut length) };
            u64::try_from(length).ok().filter(|_| code == NC_NOERR)
        });
        let mut fill = fill[..external.bytes()].to_vec();
        if cfg!(target_endian = "little") {
            fill.reverse();
        }
        Some(Variable {
            name: CString::from(CStr::from_bytes_until_nul(&name).ok()?)
                .into_string()
                .ok()?,
            external,
            shape: lengths.collect::<Option<_>>()?,
            is_record: dimensions
                .first()
                .is_some_and(|first| *first == self.record_dimension),
            begin: u64::try_from(begin).ok()?,
            fill,
        })
    }
}

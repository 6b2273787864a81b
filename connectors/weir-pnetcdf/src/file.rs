//! A file whose writes are logged.
//!
//! Invariants:
//! - an entry is in `entries` from its put, or from the wait for it, until it is in the file; `entries` has the order of these;
//! - the entries are flushed before PnetCDF itself changes the file (a put that is not logged, fill values, new definitions), so
//!   such a change comes after them;
//! - `mode` is that of PnetCDF: a flush is collective in collective mode, and for this process alone in independent mode.

use core::ffi::{c_int, c_void};
use std::io;
use std::time::{SystemTime, UNIX_EPOCH};

use weir_arrays::definitions::FileDefinitions;
use weir_arrays::element::ElementType;
use weir_arrays::log::{LogEntry, LogRecord};
use weir_arrays::subarray::Subarray;
use weir_connect::mpi::Offset;
use weir_connect::peers::{FilePeers, PendingAgreement};

use crate::arguments::{self, MemoryType, NamedPart};
use crate::datatypes::Datatypes;
use crate::direct::DirectFile;
use crate::library::{
    Library, NC_EINDEFINE, NC_EINDEP, NC_EINSUFFBUF, NC_EINTERNAL, NC_EINVAL, NC_EIOMISMATCH,
    NC_EMPI, NC_ENOTINDEP, NC_ENO_SPACE, NC_ENULLABUF, NC_EPERM, NC_EQUOTA, NC_ERANGE,
    NC_EUNSPTETYPE, NC_EWRITE, NC_NOERR,
};
use crate::log_files::LogFiles;
use crate::put_order::PutOrder;
use crate::requests::{PutRequest, PutRequests};
use crate::settings::Settings;

/// The most collective puts between two checks of the budget of all processes.
const MAX_PUTS_UNCHECKED: u64 = 1024;
/// Bytes of memory and of the log that an entry takes beside its elements.
const ENTRY_BYTES: u64 = 256;

/// PnetCDF's mode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DataMode {
    /// Between `ncmpi_create` or `ncmpi_redef` and `ncmpi_enddef`.
    Define,
    /// Data mode: transfers are collective.
    Collective,
    /// Between `ncmpi_begin_indep_data` and `ncmpi_end_indep_data`.
    Independent,
}

/// The kind of a transfer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TransferKind {
    /// `_all`.
    Collective,
    /// Without `_all`.
    Independent,
    /// `iput`.
    Nonblocking,
    /// `bput`.
    Buffered,
}

/// The arguments of a put of one part.
#[derive(Clone, Copy, Debug)]
pub struct Put {
    pub variable: c_int,
    pub part: NamedPart,
    /// The distances of neighbours in memory (`varm`); null: the elements are contiguous.
    pub distances: *const Offset,
    pub memory: *const c_void,
    pub kind: MemoryType,
}

/// An entry of the log.
#[derive(Debug)]
pub struct LoggedPut {
    /// The collective call that ends the put (`put_order`).
    pub call: usize,
    pub entry: LogEntry,
}

/// The result of logging the elements of puts.
#[derive(Clone, Copy, Debug)]
struct LoggedElements {
    /// True if no value is out of range.
    fit: bool,
    /// Bytes of the elements in the file.
    external_bytes: u64,
}

impl LoggedElements {
    const NONE: LoggedElements = LoggedElements {
        fit: true,
        external_bytes: 0,
    };

    fn code(self) -> c_int {
        match self.fit {
            true => NC_NOERR,
            false => NC_ERANGE,
        }
    }
}

/// A file whose writes are logged.
#[derive(Debug)]
pub struct LoggedFile {
    pub library: &'static Library,
    pub datatypes: &'static Datatypes,
    /// PnetCDF's number of the file (`ncid`).
    pub number: c_int,
    pub peers: FilePeers,
    pub settings: Settings,
    pub log: LogFiles,
    /// The file itself, if processes write the entries without PnetCDF: set in all processes, or in none.
    pub direct: Option<DirectFile>,
    pub mode: DataMode,
    pub is_writable: bool,
    pub definitions: FileDefinitions,
    /// The number of the record dimension; -1: there is none.
    pub record_dimension: c_int,
    /// The number of records in the file, with those that this process logged, and those of others that it knows of. PnetCDF may
    /// know of more.
    pub records: u64,
    pub entries: Vec<LoggedPut>,
    /// Bytes of the budget in use: those of the elements, and [`ENTRY_BYTES`] for each entry.
    used: u64,
    pub order: PutOrder,
    pub requests: PutRequests,
    /// Bytes that this process has written to the file itself; PnetCDF does not count them.
    pub moved_bytes: i64,
    /// Bytes of the attached buffer (`ncmpi_buffer_attach`).
    pub attached: Option<u64>,
    /// Collective puts from one check of the budget to the next, and those since the last check.
    puts_until_check: u64,
    puts_unchecked: u64,
    /// The check that was begun last: the next one ends it.
    check: Option<PendingAgreement<3>>,
    /// Bytes of the budget in use after the last collective call, and the most that one call has added.
    used_at_call: u64,
    largest_call: u64,
}

/// The parts of a new file's state that differ from file to file.
#[derive(Debug)]
pub struct NewFile {
    pub number: c_int,
    pub peers: FilePeers,
    pub settings: Settings,
    pub log: LogFiles,
    pub direct: Option<DirectFile>,
    pub mode: DataMode,
    pub is_writable: bool,
}

impl LoggedFile {
    /// The state of a file that was just opened.
    pub fn new(
        library: &'static Library,
        datatypes: &'static Datatypes,
        new: NewFile,
    ) -> LoggedFile {
        let order = PutOrder::new(new.peers.size);
        LoggedFile {
            library,
            datatypes,
            number: new.number,
            peers: new.peers,
            settings: new.settings,
            log: new.log,
            direct: new.direct,
            mode: new.mode,
            is_writable: new.is_writable,
            definitions: FileDefinitions::default(),
            record_dimension: -1,
            records: 0,
            entries: Vec::new(),
            order,
            requests: PutRequests::default(),
            moved_bytes: 0,
            attached: None,
            puts_until_check: 1,
            puts_unchecked: 0,
            check: None,
            used_at_call: 0,
            largest_call: 0,
            used: 0,
        }
    }

    /// Checks that a transfer may be made in the present mode.
    pub fn check_mode(&self, timing: TransferKind) -> Result<(), c_int> {
        match (self.mode, timing) {
            (DataMode::Define, _) => Err(NC_EINDEFINE),
            (DataMode::Collective, TransferKind::Independent) => Err(NC_ENOTINDEP),
            (DataMode::Independent, TransferKind::Collective) => Err(NC_EINDEP),
            _ => Ok(()),
        }
    }

    /// Logs a blocking put. `None`: PnetCDF must do it.
    ///
    /// # Safety
    ///
    /// The arguments are valid for PnetCDF: lists are null or have a number for every dimension, a datatype is valid, and the
    /// memory has the elements of the part, of the type of `kind`.
    pub unsafe fn put(&mut self, puts: &[Put], timing: TransferKind) -> Option<c_int> {
        if let Err(code) = self.check_mode(timing) {
            return Some(code);
        }
        // SAFETY: the arguments are valid as PnetCDF wants them, by the caller.
        let logged = unsafe { self.log_puts(puts, LoggedFile::add_entry) };
        let mut result = logged.map_or_else(|code| code, LoggedElements::code);
        if timing == TransferKind::Independent
            && (self.used > self.settings.budget || is_no_room(result))
        {
            let flushed = self.flush(None);
            if is_no_room(result) && flushed == NC_NOERR {
                return None;
            }
            result = first_error(flushed, result);
        }
        if timing == TransferKind::Collective {
            result = first_error(result, self.check_budget());
        }
        Some(result)
    }

    /// Logs a nonblocking put. `None`: PnetCDF must do it.
    ///
    /// # Safety
    ///
    /// As [`LoggedFile::put`]; `request` is null or has room for a number.
    pub unsafe fn begin_put(
        &mut self,
        puts: &[Put],
        timing: TransferKind,
        request: *mut c_int,
    ) -> Option<c_int> {
        if self.mode == DataMode::Define || self.used / 2 > self.settings.budget {
            return None;
        }
        if timing == TransferKind::Buffered {
            let Some(attached) = self.attached else {
                return Some(NC_ENULLABUF);
            };
            // SAFETY: the arguments are valid as PnetCDF wants them, by the caller.
            let wanted = unsafe { self.bytes_of_puts(puts) };
            if self.requests.buffered_bytes().saturating_add(wanted) > attached {
                return Some(NC_EINSUFFBUF);
            }
        }
        let mut begun = Vec::new();
        let begin = |file: &mut LoggedFile, entry: LogEntry| {
            file.used += used_by(&entry);
            begun.push(entry);
            Ok(())
        };
        // SAFETY: the arguments are valid as PnetCDF wants them, by the caller.
        let logged = unsafe { self.log_puts(puts, begin) };
        let logged = match logged {
            Ok(logged) => logged,
            Err(code) => {
                self.count_used();
                return (!is_no_room(code)).then_some(code);
            }
        };
        let number = match begun.is_empty() {
            true => crate::library::REQ_NULL,
            false => self.requests.begin(PutRequest {
                entries: begun,
                buffered: (timing == TransferKind::Buffered).then_some(logged.external_bytes),
            }),
        };
        if !request.is_null() {
            // SAFETY: `request` is not null, so it has room for a number, by the caller.
            unsafe { *request = number };
        }
        Some(logged.code())
    }

    /// Bytes of the puts in the file; puts that are not valid count as 0.
    ///
    /// # Safety
    ///
    /// As [`LoggedFile::put`].
    unsafe fn bytes_of_puts(&self, puts: &[Put]) -> u64 {
        let bytes = puts.iter().map(|put| {
            let (_, variable) = arguments::variable(&self.definitions, put.variable).ok()?;
            // SAFETY: the lists of the part are null or have a number for every dimension, by the
            // caller.
            let part = unsafe {
                put.part
                    .checked(variable, self.records, self.definitions.is_cdf5, true)
            };
            let elements = part.ok()?.elements()?;
            Some(elements.saturating_mul(variable.external.bytes() as u64))
        });
        bytes.flatten().fold(0, u64::saturating_add)
    }

    /// Logs the elements of puts in order, and passes the entries to `keep`. Stops at the first put that cannot be logged. Values
    /// that are out of range are logged all the same.
    ///
    /// # Safety
    ///
    /// As [`LoggedFile::put`].
    unsafe fn log_puts(
        &mut self,
        puts: &[Put],
        mut keep: impl FnMut(&mut LoggedFile, LogEntry) -> io::Result<()>,
    ) -> Result<LoggedElements, c_int> {
        if !self.is_writable {
            return Err(NC_EPERM);
        }
        let mut all = LoggedElements::NONE;
        for put in puts {
            if put.part.is_whole() && self.is_record_variable(u32::try_from(put.variable).ok()) {
                self.learn_records();
            }
            // SAFETY: the put's arguments are valid as PnetCDF wants them, by the caller.
            let one = unsafe { self.log_put(put, &mut keep)? };
            all.fit &= one.fit;
            all.external_bytes += one.external_bytes;
        }
        Ok(all)
    }

    /// Logs a put.
    ///
    /// # Safety
    ///
    /// As [`LoggedFile::put`].
    unsafe fn log_put(
        &mut self,
        put: &Put,
        keep: &mut impl FnMut(&mut LoggedFile, LogEntry) -> io::Result<()>,
    ) -> Result<LoggedElements, c_int> {
        let (number, variable) = arguments::variable(&self.definitions, put.variable)?;
        if let MemoryType::Named(element) = put.kind {
            arguments::check_type(element, variable)?;
        }
        // SAFETY: the lists of the part are null or have a number for every dimension, by the
        // caller.
        let part = unsafe {
            put.part
                .checked(variable, self.records, self.definitions.is_cdf5, true)?
        };
        // SAFETY: a datatype is valid, by the caller.
        let element =
            unsafe { put.kind.element_of(self.datatypes, variable) }.ok_or(NC_EUNSPTETYPE)?;
        arguments::check_type(element, variable)?;
        let bytes = arguments::memory_bytes(&part, element).ok_or(NC_EINVAL)?;
        if bytes == 0 {
            return Ok(LoggedElements::NONE);
        }
        // Null is `MPI_BOTTOM`, which only makes sense with a derived datatype.
        if put.memory.is_null() && put.kind.derived(self.datatypes).is_none() {
            return Err(NC_EINVAL);
        }
        let own;
        // SAFETY: the memory has the elements of the part, by the caller, and is not null without a derived datatype; with one,
        // `gathered` copies them. `gathered` has compared a count with the part.
        let elements: &[u8] = unsafe {
            own = self.gathered(put, &part, element, bytes)?;
            match &own {
                Some(own) => own,
                None => core::slice::from_raw_parts(put.memory.cast(), bytes),
            }
        };
        let external_bytes = part.elements().unwrap_or(0) * variable.external.bytes() as u64;
        let mut entry = LogEntry {
            variable: number,
            memory: element,
            part,
            data: 0,
            stamp_ns: 0,
        };
        let conversion = entry.conversion(&self.definitions).ok_or(NC_EINTERNAL)?;
        let fits = conversion.fits(elements);
        let logged = self.log.append_elements(elements).and_then(|data| {
            entry.data = data;
            keep(self, entry)
        });
        logged.map_err(|error| error_code(&error))?;
        Ok(LoggedElements {
            fit: fits,
            external_bytes,
        })
    }

    /// Gathers the elements of a put. `None`: they are contiguous in memory.
    ///
    /// # Safety
    ///
    /// As [`LoggedFile::put`].
    unsafe fn gathered(
        &self,
        put: &Put,
        part: &Subarray,
        element: ElementType,
        bytes: usize,
    ) -> Result<Option<Vec<u8>>, c_int> {
        // SAFETY: a datatype is valid, the memory has its elements, and there is a distance for every dimension, by the caller;
        // packed elements are checked to reach as far as the distances.
        unsafe {
            let mut elements = None;
            if let Some((count, datatype)) = put.kind.derived(self.datatypes) {
                let packed = self.datatypes.packed(put.memory, count, datatype, bytes);
                elements = Some(packed.ok_or(NC_EIOMISMATCH)?);
            } else if !put.kind.has_elements(self.datatypes, part) {
                return Err(NC_EIOMISMATCH);
            }
            if put.distances.is_null() {
                return Ok(elements);
            }
            // The program vouches for its own memory; only packed elements are checked.
            let is_within = |packed: &Vec<u8>| {
                arguments::are_within(part, put.distances, packed.len() / element.bytes())
            };
            if !elements.as_ref().is_none_or(is_within) {
                return Err(NC_EINVAL);
            }
            let memory = elements
                .as_ref()
                .map_or(put.memory, |packed| packed.as_ptr().cast());
            Ok(Some(arguments::gather(
                part,
                element,
                put.distances,
                memory,
            )))
        }
    }

    /// Adds a finished put to the entries, in the log and here.
    pub fn add_entry(&mut self, mut entry: LogEntry) -> io::Result<()> {
        entry.stamp_ns = now_ns();
        let record = LogRecord::Put(entry);
        self.log.append_record(&record)?;
        let LogRecord::Put(entry) = record else {
            unreachable!("it was made above");
        };
        let end = entry.end_record(&self.definitions);
        self.records = self.records.max(end);
        self.used += used_by(&entry);
        let variable = &self.definitions.variables[entry.variable as usize];
        let span = variable.span(self.definitions.record_bytes, &entry.part);
        let call = self.order.note_put(span);
        self.entries.push(LoggedPut { call, entry });
        Ok(())
    }

    /// Ends a nonblocking put: adds its entries.
    pub fn end_put(&mut self, request: PutRequest) -> c_int {
        let mut result = NC_NOERR;
        for entry in request.entries {
            self.used -= used_by(&entry);
            let added = self.add_entry(entry);
            result = first_error(
                result,
                added.map_or_else(|error| error_code(&error), |()| NC_NOERR),
            );
        }
        result
    }

    /// Tells the other processes the number of records. All processes call this.
    fn tell_records(&mut self) {
        if self.record_dimension < 0 {
            return;
        }
        let records = Offset::try_from(self.records).unwrap_or(Offset::MAX);
        self.peers.tell_number(records);
    }

    /// The number of records of all processes after the collective calls so far. Waits for processes that have not made them yet.
    pub fn agreed_records(&mut self) -> u64 {
        let highest = self.peers.highest_told();
        let highest = highest.and_then(|records| u64::try_from(records).ok());
        self.records = self.records.max(highest.unwrap_or(0));
        self.records
    }

    /// Updates the number of records, for a part that is all of them.
    pub fn learn_records(&mut self) {
        let known = u64::try_from(self.known_records()).unwrap_or(0);
        self.records = self.agreed_records().max(known);
    }

    /// The most bytes that the entries may take, so that those of all processes fit into the file while they are still in the log.
    fn limit_of_room(&self) -> u64 {
        let processes = u64::from(self.peers.size);
        // Three quarters of it: servers lend more room than is written yet.
        let room = self.log.available_bytes() / processes / 4 * 3;
        match room.checked_sub(self.used) {
            // Further entries need room in the log and then in the file.
            Some(more) => self.used.saturating_add(more / 2),
            None => 0,
        }
    }

    /// Called after collective puts. From time to time it checks the budgets of all processes, and flushes when one process has
    /// used up its own. All processes check after the same call, since its number comes from values that all know.
    ///
    /// A check has two parts, so that processes seldom wait for others that are only some calls behind: it begins after one call, and
    /// ends after a later one. The first is at once, since nothing is known then, and so are those near the limit.
    pub fn check_budget(&mut self) -> c_int {
        self.order.end_call();
        self.tell_records();
        let added = self.used.saturating_sub(self.used_at_call);
        self.largest_call = self.largest_call.max(added);
        self.used_at_call = self.used;
        self.puts_unchecked += 1;
        if self.puts_unchecked < self.puts_until_check {
            return NC_NOERR;
        }
        let result = match self.check.take() {
            Some(check) => self.end_check(check),
            None => self.check_now(),
        };
        self.begin_check();
        result
    }

    /// The numbers that this process tells the others for a check: bytes of its entries beyond the limit (negative: its room), bytes that the
    /// largest recent call has added, and bytes of the budget in use.
    fn budget_numbers(&self) -> [i64; 3] {
        let limit = self.settings.budget.min(self.limit_of_room());
        // A flush does not move puts that were not waited for.
        let pending: u64 = self.requests.entries().map(used_by).sum();
        let number = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        let over = number(self.used - pending) - number(limit);
        [over, number(self.largest_call), number(self.used)]
    }

    /// Begins a check.
    fn begin_check(&mut self) {
        // The least room of any process is the highest of negative numbers.
        self.check = Some(self.peers.begin_highest(self.budget_numbers()));
        self.puts_unchecked = 0;
        self.largest_call /= 2;
        self.used_at_call = self.used;
    }

    /// Ends a check that was begun `puts_until_check` calls ago. Flushes if one process has used up its room, and decides when the
    /// next check ends.
    fn end_check(&mut self, check: PendingAgreement<3>) -> c_int {
        let Some([over, largest, most_used]) = self.peers.end_highest(check) else {
            return NC_EMPI;
        };
        // Assumes that all puts are as large as the largest recent one, and uses a quarter of the room, since larger ones may
        // follow.
        let room = u64::try_from(-over).unwrap_or(0);
        let largest = u64::try_from(largest).unwrap_or(0).max(1);
        let safe = (room / 4 / largest).saturating_sub(self.puts_until_check);
        // Less than twice as many, since they become known one check later.
        let longest = MAX_PUTS_UNCHECKED.min(self.puts_until_check + self.puts_until_check / 2 + 1);
        self.puts_until_check = safe.clamp(1, longest);
        match safe > 0 && most_used > 0 {
            true => NC_NOERR,
            false => self.check_now(),
        }
    }

    /// Flushes if one process has used up its room by the present call, for which this waits.
    fn check_now(&mut self) -> c_int {
        let Some([over, _, most_used]) = self.peers.highest(self.budget_numbers()) else {
            return NC_EMPI;
        };
        if most_used == 0 {
            // Nothing is logged: start anew, so that calls without elements do not accumulate.
            self.order = PutOrder::new(self.peers.size);
        }
        match over >= 0 {
            true => self.flush(None),
            false => NC_NOERR,
        }
    }

    /// Ends a check that is in progress, before the file is closed. All processes call this.
    pub fn abandon_check(&mut self) {
        if let Some(check) = self.check.take() {
            self.peers.end_highest(check);
        }
    }

    /// Counts the budget in use again, after entries were moved into the file or cancelled.
    pub fn count_used(&mut self) {
        let entries = self.entries.iter().map(|logged| &logged.entry);
        self.used = entries.chain(self.requests.entries()).map(used_by).sum();
        self.used_at_call = self.used;
    }

    /// Bytes of entries in the file.
    pub fn external_bytes<'a>(&self, entries: impl IntoIterator<Item = &'a LogEntry>) -> i64 {
        let bytes = entries.into_iter().map(|entry| {
            let variable = &self.definitions.variables[entry.variable as usize];
            entry.part.elements().unwrap_or(0) * variable.external.bytes() as u64
        });
        i64::try_from(bytes.sum::<u64>()).unwrap_or(i64::MAX)
    }

    /// Bytes that this process has written to the file or the log; PnetCDF does not count them.
    pub fn own_bytes(&self) -> i64 {
        let logged = self.entries.iter().map(|logged| &logged.entry);
        self.moved_bytes + self.external_bytes(logged)
    }
}

/// Bytes of the budget that an entry takes.
fn used_by(entry: &LogEntry) -> u64 {
    entry.bytes().unwrap_or(0).saturating_add(ENTRY_BYTES)
}

/// The first error of two results.
pub fn first_error(first: c_int, second: c_int) -> c_int {
    match first {
        NC_NOERR => second,
        error => error,
    }
}

/// True if the log had no room.
fn is_no_room(code: c_int) -> bool {
    code == NC_ENO_SPACE || code == NC_EQUOTA
}

/// PnetCDF's code for an error of the log.
pub fn error_code(error: &io::Error) -> c_int {
    match error.raw_os_error() {
        Some(libc::ENOSPC) => NC_ENO_SPACE,
        Some(libc::EDQUOT) => NC_EQUOTA,
        _ => NC_EWRITE,
    }
}

/// The time, ns since 1970.
pub fn now_ns() -> u64 {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
}

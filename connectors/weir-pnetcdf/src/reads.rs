//! Gets of logged data. If the log has the whole part, it is read from the log. Otherwise the variable's entries are flushed, and
//! PnetCDF reads the file.

use core::ffi::{c_int, c_void};

use weir_arrays::definitions::Variable;
use weir_arrays::element::{Conversion, ElementType};
use weir_arrays::log::LogEntry;
use weir_arrays::subarray::Subarray;
use weir_connect::mpi::Offset;

use crate::arguments::{self, MemoryType, NamedPart};
use crate::file::{LoggedFile, TransferKind};
use crate::library::{NC_EMPI, NC_ERANGE, NC_EREAD, NC_NOERR};

/// The arguments of a get of one part.
#[derive(Clone, Copy, Debug)]
pub struct Get {
    pub variable: c_int,
    pub part: NamedPart,
    /// As for a put.
    pub distances: *const Offset,
    pub memory: *mut c_void,
    pub kind: MemoryType,
}

/// Elements that the log has, for a get.
struct LoggedPart {
    part: Subarray,
    element: ElementType,
    /// The elements, contiguous; `None`: the program's memory has them already.
    elements: Option<Vec<u8>>,
    fits: bool,
}

impl LoggedFile {
    /// Does a blocking get of one part from the log. `None`: PnetCDF must do it, and the file has all that it needs.
    ///
    /// # Safety
    ///
    /// The arguments are valid for PnetCDF; all processes call this for a collective get.
    pub unsafe fn get(&mut self, get: &Get, timing: TransferKind) -> Option<c_int> {
        if self.check_mode(timing).is_err() {
            return None;
        }
        let number = u32::try_from(get.variable).ok();
        if get.part.is_whole() && self.is_record_variable(number) {
            self.learn_records();
        }
        // SAFETY: the get's arguments are valid as PnetCDF wants them, by the caller.
        let logged = unsafe { self.logged_part(get) };
        let has_entries = self
            .entries
            .iter()
            .any(|logged| Some(logged.entry.variable) == number);
        if timing == TransferKind::Collective {
            let wants_file = i64::from(!matches!(logged, Ok(Some(_))));
            let variable = i64::from(get.variable);
            let records = i64::try_from(self.records).unwrap_or(i64::MAX);
            let mine = [
                wants_file,
                i64::from(has_entries),
                variable,
                -variable,
                records,
                -self.known_records(),
            ];
            // No put is open: each collective call that put something has ended.
            let mine = [&mine[..], &self.order.numbers()].concat();
            let Some(all) = self.peers.highest_of(&mine) else {
                return Some(NC_EMPI);
            };
            let (&[wants_file, has_entries, highest, lowest, records, fewest_known], calls) = all
                .split_first_chunk()
                .expect("as many numbers as were given");
            self.order.learn(calls);
            self.records = u64::try_from(records).unwrap_or(self.records);
            // Where puts of several processes may overlap, the log of one process may have the older elements.
            if wants_file != 0 || self.order.has_several_waves() {
                // If the processes ask for several variables, all entries are flushed.
                let is_one = highest == -lowest;
                let lacks_records = records > -fewest_known && self.is_record_variable(number);
                // Only a flush of all entries resets the waves, whose number grows otherwise.
                let is_enough = is_one && !lacks_records && !self.order.has_several_waves();
                let variable = number.filter(|_| is_enough);
                return self.flush_for_get(variable, has_entries != 0);
            }
        }
        let Ok(Some(logged)) = logged else {
            let known = u64::try_from(self.known_records()).unwrap_or(0);
            let lacks_records = self.records > known && self.is_record_variable(number);
            return self.flush_for_get(number.filter(|_| !lacks_records), has_entries);
        };
        // SAFETY: the get's arguments are valid as PnetCDF wants them, by the caller; `logged` is
        // of this get.
        let is_given = unsafe { self.give(get, &logged) };
        Some(match (is_given, logged.fits) {
            (false, _) => NC_EMPI,
            (true, false) => NC_ERANGE,
            (true, true) => NC_NOERR,
        })
    }

    /// Flushes the entries of a variable, if there are any, or all entries.
    fn flush_for_get(&mut self, variable: Option<u32>, has_entries: bool) -> Option<c_int> {
        let code = match has_entries || variable.is_none() {
            true => self.flush(variable),
            false => NC_NOERR,
        };
        Some(code).filter(|code| *code != NC_NOERR)
    }

    /// True for a variable with records. PnetCDF reads only the records that it knows of; entries of other variables may have added
    /// some.
    pub fn is_record_variable(&self, number: Option<u32>) -> bool {
        let variable = number.and_then(|number| self.definitions.variables.get(number as usize));
        variable.is_some_and(|variable| variable.is_record)
    }

    /// Flushes before PnetCDF does another kind of read, or a put that is not logged. All processes call this for a collective one.
    /// `None`: PnetCDF goes on.
    pub fn flush_before(&mut self, timing: TransferKind) -> Option<c_int> {
        if self.check_mode(timing).is_err() {
            return None;
        }
        let code = match timing {
            TransferKind::Collective => {
                match self.peers.highest([i64::from(!self.entries.is_empty())]) {
                    Some([0]) => NC_NOERR,
                    Some(_) => self.flush(None),
                    None => NC_EMPI,
                }
            }
            TransferKind::Independent => self.flush(None),
            // The wait flushes.
            TransferKind::Nonblocking | TransferKind::Buffered => NC_NOERR,
        };
        Some(code).filter(|code| *code != NC_NOERR)
    }

    /// The elements of a get, if the log has all of them; `Ok(None)` if not. They are read into the program's memory if that has
    /// the layout of the log. An error: PnetCDF would refuse the arguments.
    ///
    /// # Safety
    ///
    /// As [`LoggedFile::get`].
    unsafe fn logged_part(&self, get: &Get) -> Result<Option<LoggedPart>, c_int> {
        let (number, variable) = arguments::variable(&self.definitions, get.variable)?;
        let of_variable = || {
            self.entries
                .iter()
                .map(|logged| &logged.entry)
                .filter(|entry| entry.variable == number)
        };
        if of_variable().next().is_none() {
            return Ok(None);
        }
        // SAFETY: the lists of the part are null or have a number for every dimension, by the
        // caller.
        let part = unsafe {
            get.part
                .checked(variable, self.records, self.definitions.is_cdf5, false)?
        };
        // SAFETY: a datatype is valid, by the caller.
        let element = unsafe { get.kind.element_of(self.datatypes, variable) };
        let Some(element) = element.filter(|_| !self.is_mapped_derived(get)) else {
            return Ok(None);
        };
        arguments::check_type(element, variable)?;
        let Some(bytes) = arguments::memory_bytes(&part, element).filter(|bytes| *bytes > 0) else {
            return Ok(None);
        };
        // PnetCDF refuses a count that differs from the part's. Null is `MPI_BOTTOM`, as for puts.
        if !get.kind.has_elements(self.datatypes, &part)
            || get.memory.is_null() && get.kind.derived(self.datatypes).is_none()
        {
            return Ok(None);
        }
        let overlapping: Vec<&LogEntry> = of_variable()
            .filter(|entry| entry.part.overlaps(&part))
            .collect();
        if !covers(&overlapping, &part) {
            return Ok(None);
        }
        let Some(conversion) =
            Conversion::new(element, variable.external, self.definitions.is_cdf5)
        else {
            return Ok(None);
        };
        let is_packed = !get.distances.is_null() || get.kind.derived(self.datatypes).is_some();
        let mut logged = LoggedPart {
            part,
            element,
            elements: is_packed.then(|| vec![0; bytes]),
            fits: true,
        };
        let elements = match &mut logged.elements {
            Some(elements) => elements.as_mut_slice(),
            // SAFETY: the memory is not null, and has room for the elements of the part, by the caller. If PnetCDF does the get
            // after all, since another process needs the file, it overwrites them.
            None => unsafe { core::slice::from_raw_parts_mut(get.memory.cast(), bytes) },
        };
        for entry in overlapping {
            logged.fits &= self.read_entry(entry, conversion, variable, &logged.part, elements)?;
        }
        Ok(Some(logged))
    }

    /// Reads the elements that an entry and a part have in common, over those of earlier entries. Returns false if one is out of
    /// range.
    fn read_entry(
        &self,
        entry: &LogEntry,
        conversion: Conversion,
        variable: &Variable,
        part: &Subarray,
        elements: &mut [u8],
    ) -> Result<bool, c_int> {
        let own = entry.conversion(&self.definitions).ok_or(NC_EREAD)?;
        let (from, to) = (entry.memory.bytes(), conversion.memory.bytes());
        let (mut native, mut external, mut wanted) = (Vec::new(), Vec::new(), Vec::new());
        let mut result = Ok(());
        let mut fits = true;
        entry.part.for_common_runs(part, |run| {
            let count = usize::try_from(run.count).expect("a part of memory");
            let at = usize::try_from(run.first[1]).expect("a part of memory") * to;
            let place = &mut elements[at..at + count * to];
            let data = entry.data + run.first[0] * from as u64;
            if own == conversion && own.is_exact() {
                result = result.and(self.log.read_elements(data, place).map_err(|_| NC_EREAD));
                return;
            }
            native.resize(count * from, 0);
            result = result.and(
                self.log
                    .read_elements(data, &mut native)
                    .map_err(|_| NC_EREAD),
            );
            external.clear();
            own.to_external(&native, &variable.fill, &mut external);
            wanted.clear();
            fits &= conversion.to_native(&external, &mut wanted);
            place.copy_from_slice(&wanted);
        });
        result.map(|()| fits)
    }

    /// Copies elements into the program's memory. False: MPI failed.
    ///
    /// # Safety
    ///
    /// As [`LoggedFile::get`].
    unsafe fn give(&self, get: &Get, logged: &LoggedPart) -> bool {
        let Some(elements) = &logged.elements else {
            return true;
        };
        // SAFETY: a datatype is valid, and the memory has room for the elements in its layout or that of the distances, by the
        // caller.
        unsafe {
            if let Some((count, datatype)) = get.kind.derived(self.datatypes) {
                return self.datatypes.unpack(elements, get.memory, count, datatype);
            }
            let LoggedPart { part, element, .. } = logged;
            arguments::scatter(part, *element, get.distances, elements, get.memory);
        }
        true
    }

    /// True for a mapped get of a derived datatype: PnetCDF maps the packed elements itself.
    fn is_mapped_derived(&self, get: &Get) -> bool {
        !get.distances.is_null() && get.kind.derived(self.datatypes).is_some()
    }
}

/// True if entries contain each element of a part.
fn covers(entries: &[&LogEntry], part: &Subarray) -> bool {
    let Some(elements) = part
        .elements()
        .and_then(|elements| usize::try_from(elements).ok())
    else {
        return false;
    };
    // A single entry with the whole part needs no map.
    let common = |entry: &LogEntry| {
        let mut common = 0;
        entry.part.for_common_runs(part, |run| common += run.count);
        usize::try_from(common).unwrap_or(0)
    };
    let counts: Vec<usize> = entries.iter().map(|entry| common(entry)).collect();
    if counts.contains(&elements) {
        return true;
    }
    if counts.iter().sum::<usize>() < elements {
        return false;
    }
    let mut is_logged = vec![false; elements];
    for entry in entries {
        entry.part.for_common_runs(part, |run| {
            let at = usize::try_from(run.first[1]).expect("a part of memory");
            let count = usize::try_from(run.count).expect("a part of memory");
            is_logged[at..at + count].fill(true);
        });
    }
    is_logged.into_iter().all(|is_logged| is_logged)
}

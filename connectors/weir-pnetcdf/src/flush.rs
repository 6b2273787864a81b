//! Moves entries of the log into the file. If the file is in weir, each process writes its own entries, and tells PnetCDF the new
//! number of records. Otherwise PnetCDF's nonblocking puts do it: it converts, sorts and aggregates them, and writes each round in
//! one request.

use core::ffi::c_int;

use std::collections::BTreeSet;

use weir_arrays::batch::{batch_ends, joined};
use weir_arrays::log::{LogEntry, LogRecord};
use weir_arrays::subarray::Range;
use weir_connect::mpi::Offset;

use crate::file::{error_code, first_error, DataMode, LoggedFile, LoggedPut};
use crate::library::{NC_EMPI, NC_ERANGE, NC_NOERR, REQ_NULL};
use crate::put_order::PutOrder;

impl LoggedFile {
    /// Moves the entries of a variable, or all, into the file. In collective mode all processes call this. If it fails, the entries
    /// stay, and the next flush tries again.
    pub fn flush(&mut self, variable: Option<u32>) -> c_int {
        let is_due = |entry: &LogEntry| variable.is_none_or(|variable| variable == entry.variable);
        let mut variables = BTreeSet::new();
        let result = self.write_in_waves(is_due, &mut variables);
        let is_collective = self.mode == DataMode::Collective;
        let has_failed = i64::from(result != NC_NOERR);
        let has_any_failed = is_collective && self.peers.highest([has_failed]) != Some([0]);
        if result != NC_NOERR || has_any_failed && self.order.has_several_waves() {
            // If entries of several processes may overlap, all entries stay, so that the next flush writes them in their order
            // again.
            return result;
        }
        if variable.is_none() && is_collective && !has_any_failed {
            self.order = PutOrder::new(self.peers.size);
        }
        if variables.is_empty() && self.log.bytes() == 0 {
            return NC_NOERR;
        }
        if self.direct.is_some() {
            let due = self.entries.iter().map(|logged| &logged.entry);
            self.moved_bytes += self.external_bytes(due.filter(|entry| is_due(entry)));
        }
        self.entries.retain(|logged| !is_due(&logged.entry));
        self.count_used();
        let noted = match self.entries.is_empty() && self.requests.count() == 0 {
            true => self.log.clear(),
            false => Ok(()),
        };
        // Without this record, a replay after a kill would write these entries again, over later ones.
        let noted = noted.and_then(|()| match self.log.bytes() {
            0 => Ok(()),
            _ => variables
                .into_iter()
                .try_for_each(|variable| self.log.append_record(&LogRecord::Flushed(variable))),
        });
        noted.map_or_else(|error| error_code(&error), |()| NC_NOERR)
    }

    /// Writes the entries that are due, and returns their variables in `variables`. In collective mode all processes call this, and
    /// entries of several processes that may overlap are written in the order of their calls (`put_order`).
    fn write_in_waves(
        &mut self,
        is_due: impl Fn(&LogEntry) -> bool,
        variables: &mut BTreeSet<u32>,
    ) -> c_int {
        let is_collective = self.mode == DataMode::Collective;
        if is_collective && self.order.agree(&self.peers).is_none() {
            return NC_EMPI;
        }
        let waves = match is_collective {
            true => self.order.wave_count(),
            false => 1,
        };
        // Sorted by waves, and within a wave in the order of the puts.
        let wave_of = |logged: &LoggedPut| match waves {
            1 => 0,
            _ => self.order.wave_of(logged.call),
        };
        let due = self.entries.iter().filter(|logged| is_due(&logged.entry));
        let mut due: Vec<(u32, &LogEntry)> =
            due.map(|logged| (wave_of(logged), &logged.entry)).collect();
        due.sort_by_key(|(wave, _)| *wave);
        variables.extend(due.iter().map(|(_, entry)| entry.variable));
        let mut by_wave: Vec<Vec<LogEntry>> = Vec::new();
        for of_wave in due.chunk_by(|(one, _), (next, _)| one == next) {
            let wave = usize::try_from(of_wave[0].0).expect("at most the calls in memory");
            by_wave.resize(wave, Vec::new());
            by_wave.push(joined(of_wave.iter().map(|(_, entry)| *entry)));
        }
        let mut by_wave = by_wave.into_iter();
        let mut result = NC_NOERR;
        for wave in 0..waves {
            let entries = by_wave.next().unwrap_or_default();
            result = first_error(result, self.write(&entries));
            if wave + 1 < waves && self.direct.is_none() {
                // With several servers, other processes may only write over it after a sync.
                // SAFETY: the number of a file that is open. All processes call it.
                result = first_error(result, unsafe { (self.library.sync)(self.number) });
            }
        }
        result
    }

    /// Writes entries, in order if this process does it itself. In collective mode all processes call this, and when it returns,
    /// the entries of all processes are in the file.
    fn write(&mut self, entries: &[LogEntry]) -> c_int {
        let Some(direct) = &mut self.direct else {
            return self.write_by_rounds(entries);
        };
        let is_collective = self.mode == DataMode::Collective;
        if is_collective {
            // Waits for all processes: one that is still in a collective write may write back the gaps between its pieces.
            match self.peers.highest([i64::from(!entries.is_empty())]) {
                Some([0]) => return NC_NOERR,
                Some(_) => {}
                None => return NC_EMPI,
            }
        }
        let written = direct.write_entries(&self.log, &self.definitions, entries);
        let last = entries
            .iter()
            .max_by_key(|entry| entry.end_record(&self.definitions));
        // Records are raised only after a successful write: a file with too many records is damaged.
        let last = last.filter(|_| written.is_ok());
        let own = last.map_or(0, |entry| entry.end_record(&self.definitions));
        let (own, mut known) = (
            Offset::try_from(own).unwrap_or(Offset::MAX),
            self.known_records(),
        );
        let mut most = own;
        if is_collective {
            // The fewest records that a process knows, as the highest of negative numbers.
            let Some([highest, fewest]) = self.peers.highest([own, -known]) else {
                return NC_EMPI;
            };
            (most, known) = (highest, -fewest);
        }
        let mut result = written.map_or_else(|error| error_code(&error), |()| NC_NOERR);
        if most > known {
            let round = last.filter(|_| own == most);
            let round: Vec<LogEntry> = round
                .map(LogEntry::first_of_last_record)
                .into_iter()
                .collect();
            // PnetCDF counts this element a second time.
            self.moved_bytes -= self.external_bytes(&round);
            result = first_error(result, self.flush_round(&round));
        }
        result
    }

    /// The number of records in the file that PnetCDF knows of.
    pub fn known_records(&self) -> Offset {
        let mut records: Offset = 0;
        if self.record_dimension >= 0 {
            // SAFETY: room for the answer, which stays 0 if there is none.
            unsafe {
                (self.library.inq_dimlen)(self.number, self.record_dimension, &raw mut records)
            };
        }
        records
    }

    /// Lets PnetCDF write entries. In collective mode all processes call this.
    fn write_by_rounds(&mut self, due: &[LogEntry]) -> c_int {
        let ends = batch_ends(&self.definitions, due, self.settings.buffer);
        let mut rounds = ends.len();
        if self.mode == DataMode::Collective {
            let own = i64::try_from(rounds).unwrap_or(i64::MAX);
            let Some([most]) = self.peers.highest([own]) else {
                return NC_EMPI;
            };
            rounds = usize::try_from(most).unwrap_or(rounds);
        }
        let mut result = NC_NOERR;
        let mut start = 0;
        for round in 0..rounds {
            let end = ends.get(round).copied().unwrap_or(due.len());
            result = first_error(result, self.flush_round(&due[start..end]));
            start = end;
        }
        // The MPI-IO connector may make a collective write independent, so this waits: the next read must find the data of all
        // processes.
        if self.mode == DataMode::Collective && rounds > 0 && self.peers.highest([0]).is_none() {
            return NC_EMPI;
        }
        result
    }

    /// Lets PnetCDF write entries that do not overlap. In collective mode all processes call this.
    fn flush_round(&mut self, entries: &[LogEntry]) -> c_int {
        let mut result = NC_NOERR;
        let mut requests: Vec<c_int> = Vec::with_capacity(entries.len());
        let bytes = entries.iter().filter_map(LogEntry::bytes).sum::<u64>();
        let mut elements = vec![0_u8; usize::try_from(bytes).unwrap_or(0)];
        let mut rest = elements.as_mut_slice();
        for entry in entries {
            let length = entry.bytes().and_then(|bytes| usize::try_from(bytes).ok());
            let (own, behind) = rest.split_at_mut(length.unwrap_or(0));
            rest = behind;
            if let Err(error) = self.log.read_elements(entry.data, own) {
                result = first_error(result, error_code(&error));
                continue;
            }
            let (code, request) = self.begin_write(entry, own);
            if request != REQ_NULL {
                requests.push(request);
            }
            result = first_error(result, code);
        }
        let mut statuses = vec![NC_NOERR; requests.len()];
        let wait = match self.mode {
            DataMode::Independent => self.library.wait,
            _ => self.library.wait_all,
        };
        let count = c_int::try_from(requests.len()).expect("a batch is small");
        // SAFETY: `count` requests and statuses. The elements live until they are written.
        let code = unsafe {
            wait(
                self.number,
                count,
                requests.as_mut_ptr(),
                statuses.as_mut_ptr(),
            )
        };
        statuses.into_iter().fold(
            first_error(result, without_range(code)),
            |result, status| first_error(result, without_range(status)),
        )
    }

    fn begin_write(&self, entry: &LogEntry, elements: &[u8]) -> (c_int, c_int) {
        let list = |number: fn(&Range) -> u64| -> Vec<Offset> {
            let numbers = entry.part.0.iter().map(number);
            numbers
                .map(|number| Offset::try_from(number).unwrap_or(Offset::MAX))
                .collect()
        };
        let (start, count) = (list(|range| range.start), list(|range| range.count));
        let stride = list(|range| range.stride);
        let mut request = REQ_NULL;
        // SAFETY: each list has a number for every dimension of the variable. The elements are those of the part, and outlive the
        // request.
        let code = unsafe {
            (self.library.iput_vars)(
                self.number,
                c_int::try_from(entry.variable).expect("it came from PnetCDF"),
                start.as_ptr(),
                count.as_ptr(),
                stride.as_ptr(),
                elements.as_ptr().cast(),
                Offset::try_from(elements.len() / entry.memory.bytes()).expect("a length"),
                self.datatypes.handle(entry.memory),
                &raw mut request,
            )
        };
        (without_range(code), request)
    }
}

/// Drops the code for a value out of range: the put itself has returned it.
fn without_range(code: c_int) -> c_int {
    match code {
        NC_ERANGE => NC_NOERR,
        other => other,
    }
}

//! The other functions: those that open and close files, change modes, deal with requests and buffers, and those that inquire.

use core::ffi::{c_char, c_int, CStr};

use weir_connect::complain;
use weir_connect::mpi::{MpiHandle, Offset};

use crate::exported::around;
use crate::file::{first_error, DataMode, LoggedFile, TransferKind};
use crate::files::{self, NewlyOpened};
use crate::left_over;
use crate::library::{
    is_inside, GET_REQ_ALL, NC_EMPI, NC_EPENDING, NC_EPENDINGBPUT, NC_NOERR, NC_WRITE, REQ_NULL,
};
use crate::requests::PutRequest;

around!("ncmpi_create", create(comm: MpiHandle, path: *const c_char, mode: c_int, info: MpiHandle, number: *mut c_int), |call| {
    let code = call();
    if code == NC_NOERR && !is_inside() {
        let path = CStr::from_ptr(path);
        left_over::remove_left_over(comm, path);
        files::note_opened(NewlyOpened { comm, path, info, number: *number, mode: DataMode::Define, is_writable: true });
    }
    code
});

around!("ncmpi_open", open(comm: MpiHandle, path: *const c_char, mode: c_int, info: MpiHandle, number: *mut c_int), |call| {
    if !is_inside() && !path.is_null() {
        left_over::replay_left_over(comm, CStr::from_ptr(path));
    }
    let code = call();
    if code == NC_NOERR && !is_inside() {
        let path = CStr::from_ptr(path);
        let is_writable = mode & NC_WRITE != 0;
        files::note_opened(NewlyOpened { comm, path, info, number: *number, mode: DataMode::Collective, is_writable });
    }
    code
});

around!("ncmpi_enddef", enddef(number: c_int), |call| end_definitions(number, call));
around!("ncmpi__enddef", enddef_aligned(number: c_int, header: Offset, variables: Offset, gap: Offset, records: Offset), |call| {
    end_definitions(number, call)
});

fn end_definitions(number: c_int, call: impl FnOnce() -> c_int) -> c_int {
    let code = call();
    if code == NC_NOERR && !is_inside() {
        files::note_defined(number);
    }
    code
}

around!("ncmpi_redef", redef(number: c_int), |call| flushed_and(number, call, |file| file.mode = DataMode::Define));
around!("ncmpi_begin_indep_data", begin_independent(number: c_int), |call| {
    flushed_and(number, call, |file| file.mode = DataMode::Independent)
});
around!("ncmpi_end_indep_data", end_independent(number: c_int), |call| {
    flushed_and(number, call, |file| file.mode = DataMode::Collective)
});
around!("ncmpi_sync", sync(number: c_int), |call| flushed_and(number, call, |_| {}));
around!("ncmpi_flush", flush(number: c_int), |call| flushed_and(number, call, |_| {}));
around!("ncmpi_sync_numrecs", sync_numrecs(number: c_int), |call| flushed_and(number, call, |_| {}));
around!("ncmpi_fill_var_rec", fill_var_rec(number: c_int, variable: c_int, record: Offset), |call| {
    flushed_and(number, call, |_| {})
});

/// Flushes, calls PnetCDF, and applies `note` if PnetCDF succeeded. PnetCDF is called even if the flush failed, since the other
/// processes call it, too.
fn flushed_and(
    number: c_int,
    call: impl FnOnce() -> c_int,
    note: impl FnOnce(&mut LoggedFile),
) -> c_int {
    let flushed = files::with(number, |file| {
        (file.mode != DataMode::Define).then(|| file.flush(None))
    });
    let code = call();
    if code == NC_NOERR {
        files::with(number, |file| {
            note(file);
            None::<c_int>
        });
    }
    first_error(flushed.unwrap_or(NC_NOERR), code)
}

around!("ncmpi_close", close(number: c_int), |call| end_file(number, call));
around!("ncmpi_abort", abort(number: c_int), |call| end_file(number, call));

/// A flush before a close.
struct FlushedFile {
    /// The error code of this process.
    code: c_int,
    /// True if all processes have moved their entries.
    is_moved: bool,
}

impl From<c_int> for FlushedFile {
    fn from(code: c_int) -> FlushedFile {
        FlushedFile {
            code,
            is_moved: false,
        }
    }
}

/// Flushes and closes a file. As in PnetCDF, puts that were not waited for are cancelled (its own burst buffer does them).
fn end_file(number: c_int, call: impl FnOnce() -> c_int) -> c_int {
    let flushed = files::with(number, |file| {
        let code = match file.mode {
            DataMode::Define => NC_NOERR,
            _ => file.flush(None),
        };
        // All processes together remove the log, or all keep it: the entries of one are still in it.
        let is_moved = file.peers.highest([i64::from(code != NC_NOERR)]) == Some([0]);
        if code != NC_NOERR {
            let log = file.log.directory().unwrap_or(std::path::Path::new(""));
            complain!(
                "weir: writes of a PnetCDF file could not be moved into it; they are in {}",
                log.display()
            );
        }
        let pending = file.requests.count();
        if pending > 0 {
            complain!(
                "weir: {pending} nonblocking puts to a PnetCDF file that is closed were not waited for; they are not done"
            );
        }
        let code = match pending {
            0 => code,
            _ => first_error(code, NC_EPENDING),
        };
        Some(FlushedFile { code, is_moved })
    });
    let Some(flushed) = flushed else {
        return call();
    };
    // The communicator is freed before PnetCDF forgets the number, which another file may get at once.
    match flushed.is_moved {
        true => files::end_log(number),
        false => files::forget_kept(number),
    }
    first_error(flushed.code, call())
}

around!("ncmpi_wait", wait(number: c_int, count: c_int, requests: *mut c_int, statuses: *mut c_int), |call| {
    let waited = files::with(number, |file| Some(file.wait(RequestList { count, numbers: requests, statuses }, false)));
    waited.unwrap_or_else(call)
});
around!("ncmpi_wait_all", wait_all(number: c_int, count: c_int, requests: *mut c_int, statuses: *mut c_int), |call| {
    let waited = files::with(number, |file| Some(file.wait(RequestList { count, numbers: requests, statuses }, true)));
    waited.unwrap_or_else(call)
});
around!("ncmpi_cancel", cancel(number: c_int, count: c_int, requests: *mut c_int, statuses: *mut c_int), |call| {
    let cancelled = files::with(number, |file| Some(file.cancel_requests(RequestList { count, numbers: requests, statuses })));
    cancelled.unwrap_or_else(call)
});

/// The requests of a wait, as PnetCDF's functions take them.
#[derive(Clone, Copy)]
struct RequestList {
    /// The number of requests, or a negative constant for a kind of them.
    count: c_int,
    numbers: *mut c_int,
    /// Null, or room for a status of each.
    statuses: *mut c_int,
}

impl LoggedFile {
    /// Waits for requests. Our own become entries of the log. If there are others, all processes flush before PnetCDF does them.
    ///
    /// # Safety
    ///
    /// The list has `count` numbers, if that is not negative, and room for as many statuses, or null.
    unsafe fn wait(&mut self, list: RequestList, is_collective: bool) -> c_int {
        let timing = match is_collective {
            true => TransferKind::Collective,
            false => TransferKind::Independent,
        };
        if self.check_mode(timing).is_err() {
            // PnetCDF returns that error, without communication.
            let mut all: Vec<usize> = (0..usize::try_from(list.count).unwrap_or(0)).collect();
            // SAFETY: the list has `count` numbers, and null or as many statuses, by the caller.
            return unsafe { self.wait_for_others(list, &mut all, is_collective) };
        }
        let mut result = NC_NOERR;
        let end_put = |file: &mut LoggedFile, request| {
            let code = file.end_put(request);
            result = first_error(result, code);
            code
        };
        // SAFETY: the list has `count` numbers, and null or as many statuses, by the caller.
        let (mut others, is_all) = unsafe { self.end_own(list, end_put) };
        // PnetCDF's own requests come after the entries before them.
        let has_others = !others.is_empty() || is_all && self.has_requests_of_library();
        let mut left = [has_others, has_others || is_all];
        if is_collective {
            let Some(of_all) = self.peers.highest(left.map(i64::from)) else {
                return NC_EMPI;
            };
            left = of_all.map(|count| count != 0);
        }
        let [has_others, is_any_left] = left;
        if has_others {
            result = first_error(result, self.flush(None));
        }
        let code = match is_any_left {
            // SAFETY: the list has `count` numbers, and null or as many statuses, by the caller;
            // the places come from `end_own`.
            true => unsafe { self.wait_for_others(list, &mut others, is_collective) },
            false => NC_NOERR,
        };
        result = first_error(result, code);
        if is_collective {
            result = first_error(result, self.check_budget());
        }
        result
    }

    /// True if PnetCDF has pending requests of its own.
    fn has_requests_of_library(&self) -> bool {
        let mut requests = 0;
        // SAFETY: room for the answer, which stays 0 if there is none.
        unsafe { (self.library.inq_nreqs)(self.number, &raw mut requests) };
        requests > 0
    }

    /// Ends our own requests, and sets their statuses. Returns the positions of the other requests in the list, and true if there
    /// is no list and PnetCDF's own requests are meant, too.
    ///
    /// # Safety
    ///
    /// As [`LoggedFile::wait`].
    unsafe fn end_own(
        &mut self,
        list: RequestList,
        mut act: impl FnMut(&mut LoggedFile, PutRequest) -> c_int,
    ) -> (Vec<usize>, bool) {
        let Ok(count) = usize::try_from(list.count) else {
            if list.count != GET_REQ_ALL {
                for request in self.requests.end_all() {
                    act(self, request);
                }
            }
            return (Vec::new(), true);
        };
        let mut others = Vec::new();
        for index in 0..count {
            // SAFETY: `index` is below `count`, and the list has `count` numbers, and null or as
            // many statuses, by the caller.
            unsafe {
                let number = list.numbers.add(index);
                let status = match self.requests.end_request(*number) {
                    Some(request) => act(self, request),
                    None if *number == REQ_NULL => NC_NOERR,
                    None => {
                        others.push(index);
                        continue;
                    }
                };
                *number = REQ_NULL;
                if !list.statuses.is_null() {
                    *list.statuses.add(index) = status;
                }
            }
        }
        (others, false)
    }

    /// Lets PnetCDF wait for the requests at some positions of a list, or for all of a kind.
    ///
    /// # Safety
    ///
    /// As [`LoggedFile::wait`].
    unsafe fn wait_for_others(
        &self,
        list: RequestList,
        others: &mut [usize],
        is_collective: bool,
    ) -> c_int {
        let wait = match is_collective {
            true => self.library.wait_all,
            false => self.library.wait,
        };
        // SAFETY: the list has `count` numbers, and null or as many statuses, by the caller;
        // `others` are places of it.
        unsafe {
            with_others(list, others, |count, requests, statuses| {
                wait(self.number, count, requests, statuses)
            })
        }
    }

    /// Cancels pending requests.
    ///
    /// # Safety
    ///
    /// As [`LoggedFile::wait`].
    unsafe fn cancel_requests(&mut self, list: RequestList) -> c_int {
        // SAFETY: the list has `count` numbers, and null or as many statuses, by the caller; the
        // places come from `end_own`.
        unsafe {
            // Elements that are in the log already stay there until it is cleared.
            let (others, is_all) = self.end_own(list, |_, _| NC_NOERR);
            self.count_used();
            if !is_all && others.is_empty() {
                return NC_NOERR;
            }
            with_others(list, &others, |count, requests, statuses| {
                (self.library.cancel)(self.number, count, requests, statuses)
            })
        }
    }
}

/// Calls PnetCDF with the requests at these positions of a list, and puts its answers there.
///
/// # Safety
///
/// As [`LoggedFile::wait`]; `others` are places of the list.
unsafe fn with_others(
    list: RequestList,
    others: &[usize],
    call: impl FnOnce(c_int, *mut c_int, *mut c_int) -> c_int,
) -> c_int {
    if list.count < 0 {
        return call(list.count, list.numbers, list.statuses);
    }
    // SAFETY: each place is below the list's count, and the list has `count` numbers, by the caller.
    let number_at = |place: &usize| unsafe { *list.numbers.add(*place) };
    let mut own: Vec<c_int> = others.iter().map(number_at).collect();
    let mut answers = vec![NC_NOERR; own.len()];
    let code = call(
        c_int::try_from(own.len()).unwrap_or(0),
        own.as_mut_ptr(),
        answers.as_mut_ptr(),
    );
    for ((index, number), answer) in others.iter().zip(own).zip(answers) {
        // SAFETY: each place is below the list's count, and the list has `count` numbers, and null
        // or as many statuses, by the caller.
        unsafe {
            *list.numbers.add(*index) = number;
            if !list.statuses.is_null() {
                *list.statuses.add(*index) = answer;
            }
        }
    }
    code
}

around!("ncmpi_buffer_attach", buffer_attach(number: c_int, bytes: Offset), |call| attach(number, Some(bytes), call));
around!("ncmpi_buffer_detach", buffer_detach(number: c_int), |call| attach(number, None, call));

/// Notes the attached buffer. `bytes` of `None`: it is detached.
fn attach(number: c_int, bytes: Option<Offset>, call: impl FnOnce() -> c_int) -> c_int {
    let is_used = files::with(number, |file| {
        let is_used = bytes.is_none() && file.requests.buffered_bytes() > 0;
        is_used.then_some(NC_EPENDINGBPUT)
    });
    let code = is_used.unwrap_or_else(call);
    if code == NC_NOERR {
        files::with(number, |file| {
            file.attached = bytes.and_then(|bytes| u64::try_from(bytes).ok());
            None::<c_int>
        });
    }
    code
}

around!("ncmpi_inq_buffer_usage", inq_buffer_usage(number: c_int, bytes: *mut Offset), |call| {
    adding(number, bytes, call(), |file| Offset::try_from(file.requests.buffered_bytes()).unwrap_or(Offset::MAX))
});
around!("ncmpi_inq_put_size", inq_put_size(number: c_int, bytes: *mut Offset), |call| {
    adding(number, bytes, call(), LoggedFile::own_bytes)
});
around!("ncmpi_inq_nreqs", inq_nreqs(number: c_int, requests: *mut c_int), |call| {
    adding(number, requests, call(), |file| c_int::try_from(file.requests.count()).unwrap_or(c_int::MAX))
});

/// Adds the log's share to an answer of PnetCDF.
///
/// # Safety
///
/// `answer` was passed to PnetCDF's function, which returned `code`.
unsafe fn adding<T: Copy + core::ops::Add<Output = T>>(
    number: c_int,
    answer: *mut T,
    code: c_int,
    logged: impl FnOnce(&LoggedFile) -> T,
) -> c_int {
    if code == NC_NOERR && !answer.is_null() {
        files::with(number, |file| {
            // SAFETY: `answer` is not null, and PnetCDF has just put its answer there.
            unsafe { *answer = *answer + logged(file) };
            None::<c_int>
        });
    }
    code
}

around!("ncmpi_inq_dimlen", inq_dimlen(number: c_int, dimension: c_int, length: *mut Offset), |call| {
    with_records(number, dimension, length, call())
});
around!("ncmpi_inq_dim", inq_dim(number: c_int, dimension: c_int, name: *mut c_char, length: *mut Offset), |call| {
    with_records(number, dimension, length, call())
});

/// Raises a number of records to that of the log. It includes records of other processes in collective calls, as in PnetCDF.
///
/// # Safety
///
/// `length` was passed to PnetCDF's function, which returned `code`.
unsafe fn with_records(number: c_int, dimension: c_int, length: *mut Offset, code: c_int) -> c_int {
    if code == NC_NOERR && !length.is_null() {
        files::with(number, |file| {
            if dimension == file.record_dimension {
                let records = Offset::try_from(file.agreed_records()).unwrap_or(Offset::MAX);
                // SAFETY: PnetCDF has just put its answer there.
                unsafe { *length = (*length).max(records) };
            }
            None::<c_int>
        });
    }
    code
}

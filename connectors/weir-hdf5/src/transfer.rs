//! Reads and writes of datasets: collective ones of files in weir become independent.
//!
//! In a collective transfer the processes of HDF5 agree on how to make it, and then make collective calls of MPI-IO. The MPI-IO
//! connector changes only those calls. All processes of a file decide alike, since they know the same: the choice made for the file
//! when it was opened, and the dataset's creation list.
//!
//! These stay collective:
//! - all transfers of datasets with filters: HDF5 requires it of writes, and a chunk is decompressed once;
//! - writes to chunked datasets whose chunks may not all exist: a serial program makes a chunk when it writes it, a parallel one
//!   makes all at once.

use core::ffi::c_void;

use weir_connect::bugs::contain;
use weir_connect::mpi::Direction;

use crate::arguments::{Herr, Hid, VolObject, VolRequest, DATASET, FAILED};
use crate::class::TransferCallback;
use crate::connector::{connector, VolConnector};

/// The arguments of a transfer, as HDF5 gives them.
struct TransferArguments {
    count: usize,
    datasets: *mut VolObject,
    memory_types: *mut Hid,
    memory_spaces: *mut Hid,
    file_spaces: *mut Hid,
    list: Hid,
    buffers: *mut *mut c_void,
    request: VolRequest,
}

/// Declares the callbacks.
macro_rules! transfers {
    ($($name:ident $callback:ident $direction:ident;)*) => {$(
        pub unsafe extern "C" fn $name<const SLOT: usize>(
            count: usize,
            datasets: *mut VolObject,
            memory_types: *mut Hid,
            memory_spaces: *mut Hid,
            file_spaces: *mut Hid,
            list: Hid,
            buffers: *mut *mut c_void,
            request: VolRequest,
        ) -> Herr {
            let arguments = TransferArguments {
                count, datasets, memory_types, memory_spaces, file_spaces, list, buffers, request,
            };
            let work = || match connector(SLOT) {
                // SAFETY: HDF5 calls this with `count` datasets of this connector, as many of the rest, and a transfer
                // list.
                Some(connector) => unsafe {
                    let callback = connector.under.dataset.$callback;
                    transfer(connector, callback, Direction::$direction, &arguments)
                },
                None => FAILED,
            };
            contain(stringify!($name), work, || FAILED)
        }
    )*};
}

transfers! {
    read_datasets read Read;
    write_datasets write Write;
}

/// Makes a transfer.
///
/// # Safety
///
/// The connector's callback for this direction, and arguments as HDF5 gives them.
unsafe fn transfer(
    connector: &VolConnector,
    callback: TransferCallback,
    direction: Direction,
    arguments: &TransferArguments,
) -> Herr {
    let Some(callback) = callback else {
        return FAILED;
    };
    let (hdf5, list) = (&connector.hdf5, arguments.list);
    // SAFETY: `callback` and the arguments are those of one transfer of HDF5, by the caller. The list is the program's own; HDF5
    // lets nobody else use it during the call, and its mode is restored after it.
    unsafe {
        let is_changed =
            is_changed(connector, direction, arguments) && hdf5.set_collective(list, false);
        let code = callback(
            arguments.count,
            arguments.datasets,
            arguments.memory_types,
            arguments.memory_spaces,
            arguments.file_spaces,
            list,
            arguments.buffers,
            arguments.request,
        );
        if is_changed {
            match code {
                0.. => hdf5.set_collective(list, true),
                _ => hdf5.keep_errors(|| hdf5.set_collective(list, true)),
            };
        }
        code
    }
}

/// True if a transfer is collective and can be independent.
///
/// # Safety
///
/// As for [`transfer`].
unsafe fn is_changed(
    connector: &VolConnector,
    direction: Direction,
    arguments: &TransferArguments,
) -> bool {
    // SAFETY: there are `count` datasets, of this connector, and a valid transfer list, by the
    // caller.
    unsafe {
        if connector.files.is_empty() || !connector.hdf5.is_collective(arguments.list) {
            return false;
        }
        let mut datasets = (0..arguments.count).map(|at| *arguments.datasets.add(at));
        datasets.all(|dataset| may_be_independent(connector, dataset, direction, arguments.list))
    }
}

/// True if independent transfers of a dataset have the same result.
///
/// # Safety
///
/// A dataset of the connector, and a transfer list.
unsafe fn may_be_independent(
    connector: &VolConnector,
    dataset: VolObject,
    direction: Direction,
    list: Hid,
) -> bool {
    let hdf5 = &connector.hdf5;
    // SAFETY: `dataset` is one of this connector, and `list` a transfer list, by the caller; the
    // creation list is ours.
    unsafe {
        let file = connector.number_of_its_file(dataset, DATASET, list);
        let Some(file) = file.and_then(|file| connector.files.begin_collective(file, direction))
        else {
            return false;
        };
        let Some(creation) = connector.creation_list(dataset, list) else {
            return false;
        };
        let is_suitable = hdf5.is_unfiltered(creation)
            && (direction == Direction::Read || file.is_new || hdf5.is_allocated_at_open(creation));
        hdf5.close_list(creation);
        is_suitable
    }
}

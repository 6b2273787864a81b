//! Chooses the calls of a file that are changed: when it is opened, and again when its mode, its view or its hints change.

use core::ffi::{c_int, CStr};

use weir_connect::mpi::{Mpi, MpiHandle};
use weir_connect::peers::{FilePeers, PeersOffer};
use weir_connect::place;

use crate::atomic;
use crate::files::{self, ChangedCalls};
use crate::mpi::{MpiIo, CREATE, WRITE_ONLY};

/// The calls of a file that is about to be opened.
#[derive(Debug)]
pub struct OpenChoice {
    calls: ChangedCalls,
    /// The processes, which agree before the open: that may fail in only some of them.
    peers: Option<FilePeers>,
    /// The info object for the open, if it is not the caller's.
    info: Option<MpiHandle>,
}

impl OpenChoice {
    /// Agrees with the other processes on the calls.
    ///
    /// # Safety
    ///
    /// All processes of the communicator call this; the info object is valid, or null.
    pub unsafe fn make(
        mpi: &'static Mpi,
        comm: MpiHandle,
        path: &CStr,
        mode: c_int,
        info: MpiHandle,
    ) -> OpenChoice {
        let none = OpenChoice {
            calls: ChangedCalls::default(),
            peers: None,
            info: None,
        };
        if mpi.is_null_comm(comm) {
            // MPI refuses it.
            return none;
        }
        // SAFETY: the info object is valid or null, and all processes of the communicator, which is
        // not null, call this, by the caller.
        unsafe {
            let is_ours = place::lives_in_weir(path)
                || mode & CREATE != 0 && place::may_be_made_in_weir(path);
            let wanted = match is_ours {
                true => ChangedCalls::wanted(mpi, info),
                false => ChangedCalls::default(),
            };
            let Some(mut offer) = PeersOffer::make(mpi, comm, wanted.writes || wanted.reads) else {
                return none;
            };
            let dissents = [wanted.writes, wanted.reads].map(|agrees| i64::from(!agrees));
            let Some([writes, reads]) = offer.highest(mpi, comm, dissents) else {
                return none;
            };
            // The mode is the same in all processes.
            let (writes, reads) = (writes == 0, reads == 0 && mode & WRITE_ONLY == 0);
            if !writes && !reads {
                return none;
            }
            let mut calls = ChangedCalls::new(writes, reads);
            calls.keep_hints(mpi, info, &[]);
            let info = mpi.with_hints(info, &calls.hints());
            let peers = offer.accept(mpi, comm);
            OpenChoice { calls, peers, info }
        }
    }

    /// The info object for the file.
    pub fn info(&self, callers: MpiHandle) -> MpiHandle {
        self.info.unwrap_or(callers)
    }

    /// Notes the file, once it is open. If a rule of an elevated directory has put it on the parallel file system after all, it
    /// gets the usual hints; all processes see that alike.
    ///
    /// # Safety
    ///
    /// All processes of the file's communicator call this.
    pub unsafe fn note(&mut self, mpi: &MpiIo, path: &CStr, file: MpiHandle) {
        atomic::note_path(file, path);
        files::forget(file);
        if self.calls == ChangedCalls::default() {
            return;
        }
        match place::lives_in_weir(path) {
            true => files::note(file, self.calls, self.peers.take()),
            // SAFETY: the file is open, and all its processes call this, by the caller.
            false => unsafe { mpi.give_hints(file, &self.calls.usual_hints()) },
        }
    }

    /// Frees the info object, which MPI no longer needs, and the group of processes, if no file has it.
    pub fn free(self, mpi: &Mpi) {
        if let Some(peers) = self.peers {
            peers.free();
        }
        if let Some(info) = self.info {
            // SAFETY: it is ours, and only the open has used it.
            unsafe { mpi.free_info(info) };
        }
    }
}

/// Forgets a file that is closed.
pub fn forget(file: MpiHandle) {
    files::forget(file);
    atomic::forget_path(file);
}

/// Adapts the hints of a file after a change of its mode: in atomic mode none of its calls are changed.
///
/// # Safety
///
/// All processes of the file's communicator call this; the file is open.
pub unsafe fn change_mode(mpi: &MpiIo, file: MpiHandle, is_atomic: bool) {
    if let Some(hints) = files::note_atomicity(file, is_atomic) {
        // SAFETY: the file is open, and all its processes call this, by the caller.
        unsafe { mpi.give_hints(file, &hints) };
    }
}

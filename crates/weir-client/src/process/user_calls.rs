//! The calls by which a process changes its user, its umask and its limits. The kernel does them; weir learns of
//! them here.

use super::admit::admit;
use super::first_call::FirstCall;
use super::open_files::OpenFileTable;
use super::server_link::ServerLink;
use super::user::ProcessUser;
use super::ProcessState;
use crate::limits;

/// The calls that change the user of a process, its umask and its limits. They may touch the user, open files and the
/// server.
#[derive(Debug)]
pub struct UserCalls {
    first_call: FirstCall,
    server: &'static ServerLink,
    user: &'static ProcessUser,
    open_files: &'static OpenFileTable,
}

impl UserCalls {
    pub(super) const fn over(state: &'static ProcessState) -> UserCalls {
        UserCalls {
            first_call: FirstCall::over(state),
            server: &state.server,
            user: &state.user,
            open_files: &state.open_files,
        }
    }

    /// Called before this process acts as `uid`. It reports no error: a failure shows when a call
    /// of that user needs the server.
    pub fn before_user_change(&self, uid: u32) {
        let is_roots = rustix::process::geteuid().is_root();
        if uid == 0 || !is_roots || self.user.is_admitted(uid) {
            return;
        }
        let Some(instance) = self.first_call.instance() else {
            return;
        };
        if admit(&instance.run_dir, uid).is_ok() {
            self.user.set_admitted(uid);
        }
    }

    /// Called after setuid(2) or one of its kin.
    pub fn credentials_changed(&self) {
        if self.server.connection.instance().is_some() {
            self.read_credentials();
        }
    }

    fn read_credentials(&self) {
        let _held = self.server.lock.hold();
        self.user.read_credentials();
    }

    /// Called after setrlimit(2) or prlimit(2): makes the next writes need a decision.
    pub fn limits_changed(&self) {
        limits::look();
        if self.server.connection.session().is_none() {
            return;
        }
        let _held = self.server.lock.hold();
        self.open_files.decide_limits_anew();
    }

    /// Called after umask(2) with `mask`.
    pub fn umask_changed(&self, mask: u32) {
        self.user.set_umask(mask & 0o777);
    }
}

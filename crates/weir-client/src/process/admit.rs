//! A root process that becomes another user first tells its server to let that user's programs be
//! clients. So the program goes on, and programs that it starts can begin.

use rustix::io::Errno;
use weir_core::proto::{Admit, FsError, Operation, Request, Role};

use super::Process;
use crate::socket;

impl Process {
    /// Called before this process acts as `uid`. It reports no error: a failure shows when a call
    /// of that user needs the server.
    pub fn before_user_change(&'static self, uid: u32) {
        let is_roots = rustix::process::geteuid().is_root();
        if uid == 0 || !is_roots || self.user.is_admitted(uid) {
            return;
        }
        let Some(instance) = self.instance() else {
            return;
        };
        if admit(&instance.run_dir, uid).is_ok() {
            self.user.set_admitted(uid);
        }
    }
}

fn admit(run_dir: &[u8], uid: u32) -> Result<(), Errno> {
    let connected = socket::connect(run_dir, Role::Control)?;
    let request: Request = Admit { uid }.into();
    socket::send(&connected.socket, &request)?;
    let (reply, _): (Result<(), FsError>, _) = socket::receive_with(&connected.socket)?;
    reply.map_err(|error| crate::errno::errno_of(Admit::OBJECT, error))
}

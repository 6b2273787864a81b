//! A root process that becomes another user first tells its server to let that user's programs be
//! clients. So the program goes on, and programs that it starts can begin.

use rustix::io::Errno;
use weir_core::proto::{Admit, FsError, Operation, Request, Role};

use crate::socket;

/// Has the server of this run directory let programs of a user be clients.
pub(super) fn admit(run_dir: &[u8], uid: u32) -> Result<(), Errno> {
    let connected = socket::connect(run_dir, Role::Control)?;
    let request: Request = Admit { uid }.into();
    socket::send(&connected.socket, &request)?;
    let (reply, _): (Result<(), FsError>, _) = socket::receive_with(&connected.socket)?;
    reply.map_err(|error| crate::errno::errno_of(Admit::OBJECT, error))
}

//! The watch over this node's server, which its agent starts again if it is killed.
//!
//! The new server does not know the clients of the killed one, and their state refers to the old server. So the drain
//! process then executes itself again ([`succession`](super::succession)), as a drain that takes over from a killed one.

use std::io;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use weir_mover::InstanceTree;

use crate::show;

/// The interval between two checks for a new server.
const RETRY: Duration = Duration::from_millis(100);
/// The time within which an agent has started a server again.
const RESTART_TIME: Duration = Duration::from_secs(10);

/// Watches the server. The returned stream hangs up once a new server has taken its place.
pub fn watch_server(instance: InstanceTree, run_dir: &Path) -> io::Result<UnixStream> {
    let (watched, told) = UnixStream::pair()?;
    let run_dir = run_dir.to_owned();
    std::thread::Builder::new().spawn(move || {
        instance.wait_for_server_end();
        while !is_served(&run_dir) {
            std::thread::sleep(RETRY);
        }
        drop(told);
    })?;
    Ok(watched)
}

/// True if the server has ended, and another one takes its place within `RESTART_TIME`.
pub fn is_served_again(instance: &InstanceTree, run_dir: &Path) -> bool {
    let until = Instant::now() + RESTART_TIME;
    while !instance.is_served() {
        if is_served(run_dir) {
            return true;
        }
        if Instant::now() > until {
            return false;
        }
        std::thread::sleep(RETRY);
    }
    false
}

fn is_served(run_dir: &Path) -> bool {
    show::prefix(run_dir).is_ok()
}

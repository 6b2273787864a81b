//! The watch over this node's server, which its agent starts again if it is killed.
//!
//! A client of the killed server is none of the new one: all that it knows is the old one's. So the process that drains
//! begins anew then, as one that takes over from a killed drain. Its parent does not notice.

use std::io;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use weir_instance::errln;
use weir_mover::InstanceTree;

use super::messages::starting_mark_of;
use super::service::SocketGuard;
use crate::args::{DrainProcessArgs, EarlierDrains};
use crate::show;

/// The time between two looks for a new server.
const RETRY: Duration = Duration::from_millis(100);
/// The time within which an agent has started a server again.
const RESTART_TIME: Duration = Duration::from_secs(10);

/// Watches the server; the stream hangs up once another one has taken its place.
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

/// True if the server has ended, and another one takes its place soon.
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

/// Has this process begin anew; returns if that is not possible.
pub fn begin_anew(args: &DrainProcessArgs, socket: &SocketGuard) {
    errln!("weir: drain: the server was started again; the drain begins anew");
    // `weir drain` waits for it.
    let _ = std::fs::write(starting_mark_of(&args.run_dir, std::process::id()), "");
    socket.remove();
    let before = match args.before {
        EarlierDrains::LostServers => EarlierDrains::LostServers,
        EarlierDrains::Ended | EarlierDrains::Killed => EarlierDrains::Killed,
    };
    let words = args.words_after(before);
    // Also if the program was replaced meanwhile.
    let mut program = Command::new("/proc/self/exe");
    let error = program.arg("drain-process").args(words).exec();
    errln!("weir: drain: cannot begin anew: {error}");
    let _ = std::fs::remove_file(starting_mark_of(&args.run_dir, std::process::id()));
}

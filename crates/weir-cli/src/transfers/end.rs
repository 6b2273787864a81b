//! The end of an instance: waits for transfers that programs have begun and did not wait for.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};

use weir_client::socket;
use weir_client::transfer::{TransferReply, TransferRequest, UnfinishedTransfers, BEGUN, SOCKET};
use weir_instance::errln;

/// The time between two looks, milliseconds.
const LOOK_MS: u32 = 1000;

/// Waits for the transfers of this node, as long as bytes are copied; `patience`: the longest time without progress. True
/// if all files that were to leave the instance have left it, or a program has been told of the failure.
pub fn finish_transfers(run_dir: &Path, patience: Duration) -> bool {
    if !run_dir.join(BEGUN).exists() {
        return true;
    }
    let mut moved = Instant::now();
    let mut before: Option<UnfinishedTransfers> = None;
    loop {
        let left = match find_unfinished(run_dir) {
            Ok(left) => left,
            Err(error) => {
                errln!("weir: transfers of the command may not have ended: {error}");
                return false;
            }
        };
        if left.files == 0 {
            if left.unheard_failures > 0 {
                errln!(
                    "weir: {} files of transfers that no program waited for could not be moved",
                    left.unheard_failures
                );
            }
            return left.unheard_failures == 0;
        }
        if before.is_none() {
            errln!("weir: waiting for {} files of transfers", left.files);
        }
        if before != Some(left) {
            moved = Instant::now();
        }
        before = Some(left);
        if moved.elapsed() > patience {
            let seconds = patience.as_secs();
            errln!(
                "weir: {} files of transfers are given up: nothing was copied for {seconds} s",
                left.files
            );
            return false;
        }
    }
}

fn find_unfinished(run_dir: &Path) -> Result<UnfinishedTransfers, rustix::io::Errno> {
    let request = TransferRequest::FindUnfinished { wait_ms: LOOK_MS };
    match socket::ask(run_dir.as_os_str().as_bytes(), SOCKET.as_bytes(), &request)? {
        TransferReply::Unfinished(left) => Ok(left),
        _ => Err(rustix::io::Errno::PROTO),
    }
}

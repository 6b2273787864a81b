//! Transfers: files that the transfer service of the node moves for a program, which asks how they fare.
//!
//! Each question is a connection of its own ([`crate::transfer`]): nothing is kept that a fork could share, and any
//! process of the node may ask about any transfer.

use rustix::io::Errno;

use super::current;
use crate::process::Process;
use crate::socket;
use crate::transfer::{
    DrainReport, FileTransfer, TransferId, TransferReply, TransferReport, TransferRequest,
    MOST_FILES, SOCKET,
};

/// The longest path, with the NUL that C has behind it, bytes.
const PATH_MAX: usize = 4096;
/// The most bytes of the paths of a request, which is one frame.
const MOST_PATH_BYTES: usize = 8 << 20;

/// Has files copied, or moved. The paths may be relative.
///
/// EXDEV: none of two paths is in the instance, or one is in an elevated directory. EINVAL: no files, or too many, or a
/// path with `..`. EAGAIN: very many files wait already.
pub fn start_transfer(mut files: Vec<FileTransfer>) -> Result<TransferId, Errno> {
    let process = current()?;
    check_count(files.len())?;
    for file in &mut files {
        file.source = absolute_path(process, &file.source)?;
        file.target = absolute_path(process, &file.target)?;
    }
    check_length(
        files
            .iter()
            .map(|file| file.source.len() + file.target.len()),
    )?;
    begin(process, &TransferRequest::Copy(files))
}

/// Has files of elevated directories taken into the instance. The paths may be relative.
pub fn start_prefetch(mut paths: Vec<Vec<u8>>) -> Result<TransferId, Errno> {
    let process = current()?;
    check_count(paths.len())?;
    for path in &mut paths {
        *path = absolute_path(process, path)?;
    }
    check_length(paths.iter().map(Vec::len))?;
    begin(process, &TransferRequest::Prefetch(paths))
}

/// The state of a transfer when it has ended, or after `wait_ms`; `None`: no limit. ESRCH: no such transfer.
pub fn await_transfer(id: TransferId, wait_ms: Option<u32>) -> Result<TransferReport, Errno> {
    match ask(current()?, &TransferRequest::Await { id, wait_ms })? {
        TransferReply::Report(report) => Ok(report),
        _ => Err(Errno::PROTO),
    }
}

/// Gives up the files of a transfer that have no names yet. ESRCH: no such transfer.
pub fn cancel_transfer(id: TransferId) -> Result<(), Errno> {
    match ask(current()?, &TransferRequest::Cancel(id))? {
        TransferReply::Done => Ok(()),
        _ => Err(Errno::PROTO),
    }
}

/// The state of a file on its way to the parallel file system. ENOENT: neither the instance nor its target has it. EXDEV: it is
/// not in the instance. EREMOTE: of several nodes, no drain runs on this one.
pub fn find_drain_state(path: &[u8]) -> Result<DrainReport, Errno> {
    let process = current()?;
    let path = absolute_path(process, path)?;
    match ask(process, &TransferRequest::FindDrainState(path))? {
        TransferReply::Drain(report) => Ok(report),
        _ => Err(Errno::PROTO),
    }
}

/// Has what is at and below a path drained first, and waits until it is safe, at most `wait_ms`; false: that is over. EIO: a
/// file of it could not be moved. EOPNOTSUPP: nothing drains it. Others as for [`find_drain_state`].
pub fn drain(path: &[u8], wait_ms: Option<u32>) -> Result<bool, Errno> {
    let process = current()?;
    let path = absolute_path(process, path)?;
    match ask(process, &TransferRequest::Drain { path, wait_ms })? {
        TransferReply::Drained(is_safe) => Ok(is_safe),
        _ => Err(Errno::PROTO),
    }
}

fn check_count(files: usize) -> Result<(), Errno> {
    match files {
        1..=MOST_FILES => Ok(()),
        _ => Err(Errno::INVAL),
    }
}

fn check_length(paths: impl Iterator<Item = usize>) -> Result<(), Errno> {
    match paths.sum::<usize>() <= MOST_PATH_BYTES {
        true => Ok(()),
        false => Err(Errno::INVAL),
    }
}

fn begin(process: &Process, request: &TransferRequest) -> Result<TransferId, Errno> {
    match ask(process, request)? {
        TransferReply::Started(id) => Ok(id),
        _ => Err(Errno::PROTO),
    }
}

fn ask(process: &Process, request: &TransferRequest) -> Result<TransferReply, Errno> {
    let run_dir = process.run_dir().ok_or(Errno::NOTCONN)?;
    match socket::ask(run_dir, SOCKET.as_bytes(), request) {
        Ok(TransferReply::Refused(errno)) => Err(Errno::from_raw_os_error(errno)),
        // The instance has ended.
        Err(Errno::NOTCONN) => Err(Errno::SHUTDOWN),
        reply => reply,
    }
}

/// A path from the root, by the current directory, without `.` and empty components. EINVAL: it has `..`, which only
/// the kernel knows how to follow.
fn absolute_path(process: &Process, path: &[u8]) -> Result<Vec<u8>, Errno> {
    if path.is_empty() {
        return Err(Errno::NOENT);
    }
    let mut whole = match path[0] {
        b'/' => Vec::new(),
        _ => match process.current_dir.getcwd() {
            Some(path) => path?,
            None => rustix::process::getcwd(Vec::new())?.into_bytes(),
        },
    };
    while whole.last() == Some(&b'/') {
        whole.pop();
    }
    for part in path.split(|byte| *byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." => return Err(Errno::INVAL),
            part => {
                whole.push(b'/');
                whole.extend_from_slice(part);
            }
        }
    }
    match whole.len() {
        0 => Ok(b"/".to_vec()),
        1..PATH_MAX => Ok(whole),
        _ => Err(Errno::NAMETOOLONG),
    }
}

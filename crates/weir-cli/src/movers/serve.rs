//! `weir mover`: the process that moves files on another node, for the command that it has connected to.

use std::io::{self, BufReader, Read};
use std::net::TcpStream;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{channel, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use serde::Serialize;
use weir_launch::server::read_line;
use weir_launch::workers::Task;
use weir_mover::list::move_files;
use weir_mover::mover::{FileToMove, MovedFiles, PieceFailure};
use weir_mover::piece::{copy_piece, FilePiece, PieceOptions};
use weir_mover::prepared::{PreparedFiles, PreparedLists};
use weir_mover::{DirectoryTree, InstanceTree, MoveError, StageProgress, WatchedTree};

use super::probes::PROBE_BYTES;
use super::remote::inode_of;
use super::{path_of, MoverOrder, MoverReply, MoverRole, WireFile, MESSAGE_BYTES};
use crate::bench::keep_alive;
use crate::json_lines::{receive, send};
use crate::share;

/// The least time between two progress messages of a mover.
const TELL_INTERVAL: Duration = Duration::from_secs(10);
/// The interval between two checks that the command is alive.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// `weir mover`: obeys the orders of the command until the connection ends.
pub fn serve() -> Result<()> {
    // The mover must not outlive the process that started it.
    set_pdeathsig(Signal::SIGKILL)?;
    let task: Task = read_line(&mut BufReader::new(std::io::stdin()))
        .context("weir mover is started by the agents of an instance")?;
    let invitation = &task.invitation;
    // The command refuses a second mover of a node.
    let Ok(stream) = invitation.known().come(invitation.address, task.number) else {
        return Ok(());
    };
    keep_alive(&stream)?;
    let whole = InstanceTree::attach(&task.run_dir)
        .with_context(|| format!("cannot reach the server of {}", task.run_dir.display()))?;
    share::allow_open_files();
    let mut work = MoverWork {
        instance: whole,
        outside: WatchedTree::new(DirectoryTree),
        role: MoverRole::default(),
    };
    let mut reader = BufReader::new(&stream);
    while let Some(role) = serve_orders(&mut reader, &stream, &work)? {
        let tree = role
            .tree
            .map_or(Some(whole), |number| whole.elevated(number));
        answer(&stream, tree.is_some())?;
        work.begin(tree.unwrap_or(whole), role);
    }
    Ok(())
}

/// Obeys the orders of the command until one sets another role; `None`: the command has ended.
fn serve_orders(
    reader: &mut BufReader<&TcpStream>,
    stream: &TcpStream,
    work: &MoverWork,
) -> Result<Option<MoverRole>> {
    let files_of = |files: Vec<WireFile>| -> Vec<FileToMove> {
        files.into_iter().map(FileToMove::from).collect()
    };
    // Lists of a command that has ended are dropped here.
    let mut prepared = PreparedLists::default();
    loop {
        match receive(reader, MESSAGE_BYTES) {
            Ok(MoverOrder::Probe(path)) => answer(stream, read_probe(&path_of(path)))?,
            Ok(MoverOrder::Find(path)) => answer(stream, inode_of(&path_of(path)))?,
            Ok(MoverOrder::Begin(role)) => return Ok(Some(role)),
            Ok(MoverOrder::Move { files, limit }) => {
                let files = files_of(files);
                let moved = tell_while(stream, limit, work, |progress| {
                    work.move_files(&files, progress)
                });
                answer(stream, moved)?;
            }
            Ok(MoverOrder::Prepare { list, files, limit }) => {
                anyhow::ensure!(
                    !work.role.is_inward,
                    "files that go into an instance get their names in no order"
                );
                let (from, to) = (&work.instance, &work.outside);
                let files = PreparedFiles::new(from, to, files_of(files), work.role.options);
                tell_while(stream, limit, work, |progress| files.copy(progress));
                prepared.add(list, files);
                answer(stream, ())?;
            }
            Ok(MoverOrder::Name { list, file }) => {
                let named = prepared.name(list, file, &StageProgress::default());
                answer(stream, named.context("an order to name an unknown file")?)?;
            }
            Ok(MoverOrder::Finish(list)) => {
                let moved = prepared.finish(list);
                answer(stream, moved.context("an order to end an unknown list")?)?;
            }
            Ok(MoverOrder::Copy { piece, limit }) => {
                let copied = tell_while(stream, limit, work, |progress| {
                    work.copy_piece(&piece, progress)
                });
                answer(stream, copied.map_err(|error| PieceFailure::from(&error)))?;
            }
            // The command has ended.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            Err(error) => return Err(error).context("listening for orders"),
        }
    }
}

/// The trees and the role of a mover.
struct MoverWork {
    instance: InstanceTree,
    outside: WatchedTree<DirectoryTree>,
    role: MoverRole,
}

impl MoverWork {
    fn begin(&mut self, instance: InstanceTree, mut role: MoverRole) {
        if role.gives_way {
            share::give_way();
        }
        let usual = match role.gives_way {
            true => share::threads_beside(),
            false => share::default_threads(),
        };
        role.options.threads = match role.options.threads {
            0 => usual,
            threads => threads.min(share::MOST_THREADS),
        };
        self.outside.set_stripe(role.stripe);
        (self.instance, self.role) = (instance, role);
    }

    fn move_files(&self, files: &[FileToMove], progress: &StageProgress) -> MovedFiles {
        let (inside, outside, options) = (&self.instance, &self.outside, self.role.options);
        match self.role.is_inward {
            true => move_files(outside, inside, files, options, progress),
            false => move_files(inside, outside, files, options, progress),
        }
    }

    fn copy_piece(&self, piece: &FilePiece, progress: &StageProgress) -> Result<(), MoveError> {
        let (inside, outside) = (&self.instance, &self.outside);
        let options = PieceOptions {
            threads: self.role.options.threads,
            verify: self.role.options.verify,
        };
        match self.role.is_inward {
            true => copy_piece(outside, inside, piece, options, progress),
            false => copy_piece(inside, outside, piece, options, progress),
        }
    }
}

fn answer<R: Serialize>(stream: &TcpStream, reply: R) -> io::Result<()> {
    send(stream, &MoverReply::Done(reply))
}

/// Runs `act` with a limit on the bytes written in a second. As long as bytes or files are moved, it tells the command so
/// now and then. It stops `act` if the command is gone, or has ended its orders.
fn tell_while<R>(
    stream: &TcpStream,
    limit: u64,
    work: &MoverWork,
    act: impl FnOnce(&StageProgress) -> R,
) -> R {
    work.outside.limit().set_rate(limit);
    let progress = StageProgress::default();
    let stop = &progress.stop;
    let (end, ended) = channel::<()>();
    let amount = || {
        let bytes = progress.bytes_done.load(Ordering::Relaxed);
        (bytes, progress.files_done.load(Ordering::Relaxed))
    };
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let (mut told, mut told_at) = (amount(), Instant::now());
            while ended.recv_timeout(LOOK_INTERVAL) == Err(RecvTimeoutError::Timeout) {
                if is_hung_up(stream) {
                    stop.store(true, Ordering::Relaxed);
                }
                let now = amount();
                if now != told && told_at.elapsed() >= TELL_INTERVAL {
                    // If it cannot be sent, the command is gone, and the answer cannot be sent either.
                    let _ = send(stream, &MoverReply::<()>::Alive);
                    (told, told_at) = (now, Instant::now());
                }
            }
        });
        let result = act(&progress);
        drop(end);
        result
    })
}

/// True if the other side has closed the connection, or its sending half.
fn is_hung_up(stream: &TcpStream) -> bool {
    let mut looked = [PollFd::new(stream, PollFlags::RDHUP)];
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    matches!(poll(&mut looked, Some(&now)), Ok(1..))
}

/// The content of a probe on this node; nothing if it is not there.
fn read_probe(path: &Path) -> Vec<u8> {
    let mut content = Vec::new();
    let file = std::fs::File::open(path);
    let read = file.and_then(|file| file.take(PROBE_BYTES as u64).read_to_end(&mut content));
    read.map_or_else(|_| Vec::new(), |_| content)
}

//! Movers: processes on the other nodes of an instance that move files for a drain.
//!
//! The drain listens on the network of the instance and has the agents start movers, which connect to it.
//! A mover shows first that it sees the target: on a node where that is another file system it would move
//! files to nowhere. Then it moves lists of files, one after the other. A mover that is lost is missed by
//! nobody: others take its list.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::{self, BufReader, Read};
use std::net::{TcpListener, TcpStream};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{channel, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use weir_core::roster::{InstanceId, Roster, Secret};
use weir_core::types::Rank;
use weir_instance::connection::Connection;
use weir_instance::roster;
use weir_launch::agent;
use weir_launch::random::random;
use weir_launch::server::read_line;
use weir_launch::workers::{Task, WorkerInvitation, WorkerProgram};
use weir_mover::drain::{move_files, FileMover, FileToMove, MovedFiles, Replaceable};
use weir_mover::piece::{copy_piece, FilePiece};
use weir_mover::{
    ContentStamp, DirectoryTree, InstanceTree, StagePair, StageProgress, WatchedTree,
};

use super::messages::{receive, send};
use super::share;
use crate::bench::keep_alive;
use crate::stage;

/// The longest message, bytes: a list has a few hundred paths, a byte of which takes up to four.
const MESSAGE_BYTES: u64 = 64 << 20;
/// The longest time in which a mover moves no byte. Its file system may hang: then others move its files.
const REPLY_TIME: Duration = Duration::from_secs(600);
/// The time between two messages of a mover that goes on.
const TELL_INTERVAL: Duration = Duration::from_secs(10);
/// The bytes of a probe of the target.
const PROBE_BYTES: usize = 16;

/// A message to a mover.
#[derive(Debug, Serialize, Deserialize)]
enum MoverOrder {
    /// Read this small file of the target.
    Probe(Vec<u8>),
    /// From now on, move files of the elevated tree with this number.
    Tree(usize),
    /// Move these files.
    Move {
        files: Vec<WireFile>,
        /// The most bytes that are written in a second; 0: without limit.
        limit: u64,
    },
    /// Copy this piece of a file.
    Copy {
        piece: FilePiece,
        /// As of files.
        limit: u64,
    },
}

/// A file that is to be moved, with the bytes of its paths.
#[derive(Debug, Serialize, Deserialize)]
struct WireFile {
    source: Vec<u8>,
    target: Vec<u8>,
    replaces: Replaceable,
    /// The only content that is moved.
    content: Option<ContentStamp>,
}

impl From<&FileToMove> for WireFile {
    fn from(file: &FileToMove) -> WireFile {
        let bytes = |path: &Path| path.as_os_str().as_bytes().to_vec();
        WireFile {
            source: bytes(&file.pair.source),
            target: bytes(&file.pair.target),
            replaces: file.replaces.clone(),
            content: file.content,
        }
    }
}

impl From<WireFile> for FileToMove {
    fn from(file: WireFile) -> FileToMove {
        FileToMove {
            pair: StagePair {
                source: path_of(file.source),
                target: path_of(file.target),
            },
            replaces: file.replaces,
            content: file.content,
        }
    }
}

/// A message of a mover.
#[derive(Debug, Serialize, Deserialize)]
enum MoverReply<R> {
    /// It has moved bytes since the last message.
    Alive,
    /// The answer to the order.
    Done(R),
}

/// The movers that have come.
#[derive(Debug, Default)]
pub struct MoverGate {
    arrived: Mutex<Vec<RemoteMover>>,
    /// The most bytes that each writes in a second; 0: without limit.
    limit_of_each: Arc<AtomicU64>,
}

impl MoverGate {
    /// Has movers started on the other nodes; they come in their own time. None come to an instance of one
    /// server.
    /// `tree`: the number of the elevated tree, if one is drained.
    pub fn open(run_dir: &Path, target: &Path, tree: Option<usize>) -> Result<Arc<MoverGate>> {
        let gate = Arc::new(MoverGate::default());
        let Some(roster) = roster::read(run_dir)? else {
            return Ok(gate);
        };
        let own = Rank(Connection::to(run_dir)?.welcome().rank);
        let wanted = wanted_movers(&roster, own);
        let member = roster.member(own).context("not in the roster")?;
        if wanted.is_empty() {
            return Ok(gate);
        }
        let listener =
            TcpListener::bind((member.address.ip(), 0)).context("listening for movers")?;
        let invitation = WorkerInvitation {
            program: WorkerProgram::Mover,
            address: listener.local_addr()?,
            run: InstanceId(random()?),
            secret: Secret::new(random()?),
        };
        let door = MoverDoor {
            gate: Arc::clone(&gate),
            invitation: invitation.clone(),
            wanted: Mutex::new(wanted),
            target: target.to_owned(),
            tree,
        };
        std::thread::spawn(move || door.let_in_all(&listener));
        if !agent::employ(run_dir, &invitation)? {
            tracing::debug!("the agent of the first node is not here: this node moves everything");
        }
        Ok(gate)
    }

    /// Takes those that have come since.
    pub fn take_arrived(&self) -> Vec<RemoteMover> {
        let mut arrived = self.arrived.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *arrived)
    }

    /// The limit that movers keep from their next order on.
    pub fn limit_of_each(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.limit_of_each)
    }
}

/// One server of each other node; if all are on one machine, all but this one.
fn wanted_movers(roster: &Roster, own: Rank) -> BTreeSet<u16> {
    let members = roster.members();
    let own_host = roster.member(own).map(|member| member.host.as_str());
    let mut hosts: BTreeSet<&str> = own_host.into_iter().collect();
    let others = members.iter().filter(|member| hosts.insert(&member.host));
    let others: BTreeSet<u16> = others.map(|member| member.rank.0).collect();
    match others.is_empty() {
        true => members
            .iter()
            .map(|member| member.rank.0)
            .filter(|rank| *rank != own.0)
            .collect(),
        false => others,
    }
}

/// Lets movers in.
struct MoverDoor {
    gate: Arc<MoverGate>,
    invitation: WorkerInvitation,
    /// The ranks that may come, each once.
    wanted: Mutex<BTreeSet<u16>>,
    target: PathBuf,
    tree: Option<usize>,
}

impl MoverDoor {
    fn let_in_all(&self, listener: &TcpListener) {
        std::thread::scope(|scope| {
            for stream in listener.incoming().flatten() {
                // Each in a thread: one that says nothing holds up nobody.
                scope.spawn(|| self.let_in(stream));
            }
        });
    }

    fn let_in(&self, stream: TcpStream) {
        let rank = self.invitation.known().let_in(&stream, |rank| {
            let mut wanted = self.wanted.lock().unwrap_or_else(PoisonError::into_inner);
            wanted.remove(&rank)
        });
        let rank = match rank {
            Ok(rank) => rank,
            // Strangers, and movers of nodes that have one.
            Err(error) => return tracing::debug!("turned away: {error:#}"),
        };
        let mover =
            RemoteMover::new(rank, stream, self.gate.limit_of_each()).context("its connection");
        let checked = mover.and_then(|mover| {
            mover.check_target(&self.target)?;
            self.tree.map_or(Ok(()), |tree| mover.choose_tree(tree))?;
            Ok(mover)
        });
        match checked {
            Ok(mover) => {
                let arrived = self.gate.arrived.lock();
                arrived.unwrap_or_else(PoisonError::into_inner).push(mover);
            }
            Err(error) => eprintln!("weir: drain: server {rank} does not help: {error:#}"),
        }
    }
}

/// A mover, seen by the drain.
#[derive(Debug)]
pub struct RemoteMover {
    rank: u16,
    /// `None`: it is lost, or has not moved a byte for a long time.
    stream: Mutex<Option<BufReader<TcpStream>>>,
    /// The most bytes that it writes in a second; 0: without limit.
    limit: Arc<AtomicU64>,
}

impl RemoteMover {
    fn new(rank: u16, stream: TcpStream, limit: Arc<AtomicU64>) -> io::Result<RemoteMover> {
        keep_alive(&stream)?;
        stream.set_read_timeout(Some(REPLY_TIME))?;
        let stream = Mutex::new(Some(BufReader::new(stream)));
        Ok(RemoteMover {
            rank,
            stream,
            limit,
        })
    }

    fn give_order<R: DeserializeOwned>(&self, order: &MoverOrder) -> io::Result<R> {
        let mut place = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
        // It stays away after an error: a late reply would be taken for one to another order.
        let mut stream = place.take().ok_or(io::ErrorKind::NotConnected)?;
        send(stream.get_ref(), order)?;
        loop {
            if let MoverReply::Done(reply) = receive(&mut stream, MESSAGE_BYTES)? {
                *place = Some(stream);
                return Ok(reply);
            }
        }
    }

    fn limit(&self) -> u64 {
        self.limit.load(Ordering::Relaxed)
    }

    /// Checks that the mover's node has the same target.
    fn check_target(&self, target: &Path) -> Result<()> {
        let content: [u8; PROBE_BYTES] = random()?;
        let probe = target.join(probe_name(self.rank));
        std::fs::write(&probe, content).with_context(|| probe.display().to_string())?;
        let seen: io::Result<Vec<u8>> =
            self.give_order(&MoverOrder::Probe(probe.as_os_str().as_bytes().to_vec()));
        let _ = std::fs::remove_file(&probe);
        anyhow::ensure!(
            seen.context("a mover was lost")? == content,
            "its node does not see {}",
            target.display()
        );
        Ok(())
    }
}

impl RemoteMover {
    fn choose_tree(&self, tree: usize) -> Result<()> {
        let is_there: bool = self.give_order(&MoverOrder::Tree(tree))?;
        anyhow::ensure!(is_there, "its server has no elevated tree {tree}");
        Ok(())
    }
}

/// Like the name of a file that is being moved: programs that use an elevated directory do not see it.
fn probe_name(rank: u16) -> String {
    format!(".probe-{}-{rank}.weir-part", std::process::id())
}

impl FileMover for RemoteMover {
    fn rank(&self) -> u16 {
        self.rank
    }

    fn move_files(&self, files: &[FileToMove]) -> io::Result<MovedFiles> {
        self.give_order(&MoverOrder::Move {
            files: files.iter().map(WireFile::from).collect(),
            limit: self.limit(),
        })
    }

    fn move_piece(&self, piece: &FilePiece) -> io::Result<Result<(), String>> {
        self.give_order(&MoverOrder::Copy {
            piece: piece.clone(),
            limit: self.limit(),
        })
    }
}

/// `weir mover`: does what the drain says until the connection ends.
pub fn serve() -> Result<()> {
    // Not to outlive what started it.
    set_pdeathsig(Signal::SIGKILL)?;
    let task: Task = read_line(&mut BufReader::new(std::io::stdin()))
        .context("weir mover is started by the agents of an instance")?;
    let invitation = &task.invitation;
    // A server of a node that has a mover already is turned away.
    let Ok(stream) = invitation.known().come(invitation.address, task.number) else {
        return Ok(());
    };
    keep_alive(&stream)?;
    let whole = InstanceTree::attach(&task.run_dir)
        .with_context(|| format!("cannot reach the server of {}", task.run_dir.display()))?;
    let mut instance = whole;
    share::give_way();
    stage::allow_open_files();
    let target = WatchedTree::new(DirectoryTree);
    let mut reader = BufReader::new(&stream);
    let mut buffer = Vec::new();
    loop {
        match receive(&mut reader, MESSAGE_BYTES) {
            Ok(MoverOrder::Probe(path)) => answer(&stream, read_probe(&path_of(path)))?,
            Ok(MoverOrder::Tree(number)) => {
                let tree = whole.elevated(number);
                answer(&stream, tree.is_some())?;
                instance = tree.unwrap_or(whole);
            }
            Ok(MoverOrder::Move { files, limit }) => {
                target.limit().set_rate(limit);
                let files: Vec<FileToMove> = files.into_iter().map(FileToMove::from).collect();
                let threads = share::threads();
                let progress = StageProgress::default();
                let moved = tell_while(&stream, &progress, || {
                    move_files(&instance, &target, &files, threads, &progress)
                });
                answer(&stream, moved)?;
            }
            Ok(MoverOrder::Copy { piece, limit }) => {
                target.limit().set_rate(limit);
                let progress = StageProgress::default();
                let copied = tell_while(&stream, &progress, || {
                    copy_piece(&instance, &target, &piece, &mut buffer, &progress)
                });
                answer(&stream, copied.map_err(|error| error.to_string()))?;
            }
            // The drain has ended.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            Err(error) => return Err(error).context("listening to the drain"),
        }
    }
}

fn answer<R: Serialize>(stream: &TcpStream, reply: R) -> io::Result<()> {
    send(stream, &MoverReply::Done(reply))
}

/// Does something, and tells the drain now and then that it goes on, as long as it does.
fn tell_while<R>(stream: &TcpStream, progress: &StageProgress, act: impl FnOnce() -> R) -> R {
    let (end, ended) = channel::<()>();
    let amount = || {
        let bytes = progress.bytes_done.load(Ordering::Relaxed);
        (bytes, progress.files_done.load(Ordering::Relaxed))
    };
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut told = amount();
            while ended.recv_timeout(TELL_INTERVAL) == Err(RecvTimeoutError::Timeout) {
                let now = amount();
                // If it cannot be sent, the drain is gone, and the answer cannot be sent either.
                if now != told {
                    let _ = send(stream, &MoverReply::<()>::Alive);
                }
                told = now;
            }
        });
        let result = act();
        drop(end);
        result
    })
}

/// The content of a probe on this node; nothing if it is not there.
fn read_probe(path: &Path) -> Vec<u8> {
    let mut content = Vec::new();
    let file = std::fs::File::open(path);
    let read = file.and_then(|file| file.take(PROBE_BYTES as u64).read_to_end(&mut content));
    read.map_or_else(|_| Vec::new(), |_| content)
}

fn path_of(bytes: Vec<u8>) -> PathBuf {
    OsString::from_vec(bytes).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, Write};
    use std::net::Ipv4Addr;

    /// A mover that answers each message with these lines.
    fn mover_that_says(answer: &'static [u8]) -> RemoteMover {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut peer, _) = listener.accept().unwrap();
        std::thread::spawn(move || {
            let mut line = String::new();
            BufReader::new(&peer).read_line(&mut line).unwrap();
            peer.write_all(answer).unwrap();
        });
        RemoteMover::new(1, stream, Arc::default()).unwrap()
    }

    #[test]
    fn a_node_with_another_file_system_does_not_help() {
        let dir = tempfile::tempdir().unwrap();
        for answer in [&b"[]\n"[..], b"[1,2,3]\n", b"{\n", b""] {
            let refused = mover_that_says(answer).check_target(dir.path());
            assert!(refused.is_err(), "{answer:?}");
        }
        assert_eq!(
            dir.path().read_dir().unwrap().count(),
            0,
            "no probe is left"
        );
    }

    #[test]
    fn a_mover_that_says_anything_else_is_lost() {
        for answer in [&b""[..], b"garbage\n", b"{\"copied\":1}\n"] {
            assert!(
                mover_that_says(answer).move_files(&[]).is_err(),
                "{answer:?}"
            );
        }
    }
}

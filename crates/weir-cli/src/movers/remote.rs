//! A mover on another node, as seen by the command that gives it orders.

use std::io::{self, BufReader};
use std::net::{Shutdown, TcpStream};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use serde::de::DeserializeOwned;
use weir_mover::mover::{FileMover, FileToMove, MovedFiles, NameOutcome, PieceFailure};
use weir_mover::piece::FilePiece;

use super::probes::TargetProbes;
use super::{MoverOrder, MoverReply, MoverRole, WireFile, MESSAGE_BYTES};
use crate::bench::keep_alive;
use crate::json_lines::{receive, send};

/// A mover that moves no byte for this time counts as lost: its file system may hang. Then others move its files.
const REPLY_TIME: Duration = Duration::from_secs(600);

/// A mover, seen by the command that gives it orders.
#[derive(Debug)]
pub struct RemoteMover {
    rank: u16,
    /// `None`: it is lost, or has not moved a byte for a long time.
    stream: Mutex<Option<BufReader<TcpStream>>>,
    /// The same connection, for another thread.
    stopped_by: TcpStream,
    /// The most bytes that it writes in a second; 0: without limit.
    limit: Arc<AtomicU64>,
}

impl RemoteMover {
    pub(super) fn new(
        rank: u16,
        stream: TcpStream,
        limit: Arc<AtomicU64>,
    ) -> io::Result<RemoteMover> {
        keep_alive(&stream)?;
        stream.set_read_timeout(Some(REPLY_TIME))?;
        let stopped_by = stream.try_clone()?;
        let stream = Mutex::new(Some(BufReader::new(stream)));
        Ok(RemoteMover {
            rank,
            stream,
            stopped_by,
            limit,
        })
    }

    fn give_order<R: DeserializeOwned>(&self, order: &MoverOrder) -> io::Result<R> {
        let mut place = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
        // After an error the stream is not put back: a late reply would be taken for the reply to another order.
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

    /// Checks that the mover's node has the same targets.
    pub(super) fn check_targets(&self, probes: &TargetProbes) -> Result<()> {
        let probes = probes.begin()?;
        for (target, probe) in probes.iter() {
            let order = MoverOrder::Probe(probe.as_os_str().as_bytes().to_vec());
            let seen: Vec<u8> = self.give_order(&order).context("a mover was lost")?;
            anyhow::ensure!(
                seen == probes.content,
                "its node does not see {}",
                target.display()
            );
        }
        Ok(())
    }

    /// Checks, by an inode number, that the mover's node has the same source. A mover also checks each file before it is
    /// copied.
    pub(super) fn check_source(&self, source: &Path) -> Result<()> {
        let bytes = source.as_os_str().as_bytes().to_vec();
        let found: Option<u64> = self
            .give_order(&MoverOrder::Find(bytes))
            .context("a mover was lost")?;
        anyhow::ensure!(
            found.is_some() && found == inode_of(source),
            "its node does not see {}",
            source.display()
        );
        Ok(())
    }

    pub(super) fn begin(&self, role: MoverRole) -> Result<()> {
        let has_begun: bool = self.give_order(&MoverOrder::Begin(role))?;
        anyhow::ensure!(has_begun, "its server has no elevated tree {:?}", role.tree);
        Ok(())
    }
}

/// The number of the inode at a path of the parallel file system.
pub(super) fn inode_of(path: &Path) -> Option<u64> {
    path.symlink_metadata().ok().map(|found| found.ino())
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

    fn prepare_files(&self, list: u32, files: &[FileToMove]) -> io::Result<()> {
        self.give_order(&MoverOrder::Prepare {
            list,
            files: files.iter().map(WireFile::from).collect(),
            limit: self.limit(),
        })
    }

    fn name_file(&self, list: u32, file: usize) -> io::Result<NameOutcome> {
        self.give_order(&MoverOrder::Name { list, file })
    }

    fn finish_files(&self, list: u32) -> io::Result<MovedFiles> {
        self.give_order(&MoverOrder::Finish(list))
    }

    fn move_piece(&self, piece: &FilePiece) -> io::Result<Result<(), PieceFailure>> {
        self.give_order(&MoverOrder::Copy {
            piece: piece.clone(),
            limit: self.limit(),
        })
    }

    fn stop(&self) {
        // The mover reads this as the end of its orders, and answers the last one at once.
        let _ = self.stopped_by.shutdown(Shutdown::Write);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, Write};
    use std::net::{Ipv4Addr, TcpListener};

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
        let probes = TargetProbes::new(&[dir.path().to_owned()]);
        for answer in [&b"[]\n"[..], b"[1,2,3]\n", b"{\n", b""] {
            let refused = mover_that_says(answer).check_targets(&probes);
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

//! The audit: finds programs that read bytes that others had written and not made known.
//!
//! Each read first asks the file's home, which asks the nodes that write the file. So the audit finds the bytes that
//! were missing at the moment of the read, not those published later. It costs messages, and is therefore off by
//! default.

use futures_util::future::join_all;
use weir_core::names::{Lamination, Visibility};
use weir_core::proto::audit::{united, Finding, Missing, Party, Unseen};
use weir_core::proto::peer;
use weir_core::proto::{self, FsError};
use weir_core::types::{ClientId, Ino, Rank};

use crate::cluster::abilities::NameTables;
use crate::cluster::extents::WriteTables;
use crate::cluster::files::{FileParts, FileSteps, FilesNeeds, NamesForFiles, ReadAudit};
use crate::rules::join;

/// The most findings that are kept apart; a further one that resembles none of them is counted with the last.
const FINDINGS: usize = 256;

impl<S: FilesNeeds> ReadAudit<S> {
    /// Checks a read of a client of this node.
    pub(in crate::cluster) async fn audit_for_client(
        &self,
        from: ClientId,
        op: proto::Audit,
    ) -> Result<(), FsError> {
        if self.server.has_all_extents() {
            return Ok(());
        }
        let ino = self.server.resolve(op.ino)?;
        let to = op.offset.saturating_add(op.length);
        let asked = peer::Audit {
            ino,
            from: op.offset,
            to,
        };
        let all = self.server.call(ino.rank(), asked).await?;
        if all.is_empty() {
            return Ok(());
        }
        let reader = self.server.node(|node| node.parties().party(from));
        let path = self.path_of_file(ino).await;
        for unseen in all {
            self.found(Finding {
                path: path.clone(),
                ranges: united(unseen.ranges),
                reader: reader.clone(),
                writers: unseen.writers,
                missing: unseen.missing,
                reads: 1,
            });
        }
        Ok(())
    }

    /// The bytes that nodes other than `from` wrote to a file of this server and did not make
    /// known.
    pub(in crate::cluster) async fn audit_at_home(
        &self,
        from: Rank,
        op: peer::Audit,
    ) -> Result<Vec<Unseen>, FsError> {
        let attr = self.server.node(|node| node.names().regular(op.ino))?;
        let done = attr.lamination == Lamination::Done;
        if done || attr.policy.visibility == Visibility::ReadAfterWrite {
            return Ok(Vec::new());
        }
        let writers = self.server.stand_ins().writers_of(op.ino);
        let others = writers.into_iter().filter(|rank| *rank != from);
        let asked = others.map(|rank| {
            let unseen = peer::UnseenHere {
                ino: op.ino,
                from: op.from,
                to: op.to,
            };
            self.server.call(rank, unseen)
        });
        let answers = join_all(asked).await.into_iter();
        // A lost node publishes nothing any more.
        Ok(answers.filter_map(Result::ok).flatten().collect())
    }

    /// The bytes that this node wrote to a file and did not make known.
    pub(in crate::cluster) fn unseen_here(
        &self,
        op: &peer::UnseenHere,
    ) -> Result<Option<Unseen>, FsError> {
        let Some(local) = self.server.local(op.ino) else {
            return Ok(None);
        };
        let attr = self.server.node(|node| node.names().attr_of(local))?;
        let mut runs = Vec::new();
        self.server.node(|node| {
            node.writes()
                .pending_runs(local, op.from, op.to, usize::MAX, &mut runs)
        });
        runs.extend(self.server.extents().in_flight(op.ino));
        let mut ranges = Vec::new();
        for run in &runs {
            // A limited number of the pieces of a strided run is enough to tell.
            for index in 0..run.count.min(1 << 16) {
                let piece = run.piece(index);
                let from = piece.offset.max(op.from);
                let to = (piece.offset + piece.length).min(op.to);
                if from < to {
                    ranges.push((from, to));
                }
            }
        }
        if ranges.is_empty() {
            return Ok(None);
        }
        let missing = match attr.policy.visibility {
            Visibility::ReadAfterLaminate => Missing::Lamination,
            Visibility::ReadAfterSync | Visibility::ReadAfterWrite => Missing::Sync,
        };
        let mut writers = self.server.node(|node| {
            let clients = node.writers().clients_of(local);
            node.parties().parties(clients)
        });
        if writers.is_empty() {
            writers.push(Party {
                rank: self.server.rank().0,
                pid: 0,
                program: "a program that has ended".to_owned(),
            });
        }
        Ok(Some(Unseen {
            ranges: united(ranges),
            writers,
            missing,
        }))
    }

    fn found(&self, finding: Finding) {
        let mut findings = self.state().findings.borrow_mut();
        if let Some(known) = findings.iter_mut().find(|known| known.is_like(&finding)) {
            known.add(&finding);
        } else if findings.len() < FINDINGS {
            tracing::warn!(?finding, "read before it was made known");
            findings.push(finding);
        } else {
            findings[FINDINGS - 1].reads = findings[FINDINGS - 1].reads.saturating_add(1);
        }
    }

    pub(in crate::cluster) fn findings(&self) -> Vec<Finding> {
        self.state().findings.borrow().clone()
    }

    /// The path of a file, for people.
    pub(in crate::cluster) async fn path_of_file(&self, ino: Ino) -> String {
        let asked = self.server.call(ino.rank(), peer::Whereabouts { ino });
        let Ok(Some((dir, name))) = asked.await else {
            return "a file without a name".to_owned();
        };
        let dir = self.server.names().path_by_homes(dir).await;
        let dir = dir.map_or_else(|_| b"?".to_vec(), |dir| dir.path);
        String::from_utf8_lossy(&join(&dir, &name)).into_owned()
    }
}

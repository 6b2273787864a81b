//! How a file is shared between nodes: visibility, and lamination.
//!
//! *Read after sync* is what publishing and leases make by themselves. *Read after write*:
//! the home knows which nodes write; as long as there are any, readers of other nodes ask
//! before each read, and the home lets those nodes publish. So a write costs what it always
//! does, and a file that nobody writes is read as any other. *Read after laminate*: nothing
//! is published before the lamination.
//!
//! A lamination has two steps. First all nodes that have the file open are asked whether
//! somebody writes it, and let nobody open it so meanwhile; one that says yes undoes it, and
//! the lamination stays due. Then all publish. What is then known of where the bytes are
//! holds for good: if the file was shared and is of few runs, it is passed down a tree
//! to all servers; otherwise each keeps what it asked for.

use std::collections::{BTreeSet, HashMap};

use futures_util::future::join_all;
use weir_core::extent::{Run, MAX_OFFSET};
use weir_core::names::{Attr, Lamination, Policy, Visibility};
use weir_core::proto::peer;
use weir_core::proto::{Cause, FsError};
use weir_core::types::{Ino, Rank};

use super::locate::Map;
use super::Cluster;
use crate::node::{Node, Platform};
use crate::rules::join;

/// How long the path of a directory is believed, in ns.
const PATHS_NS: i64 = 1_000_000_000;

/// Paths of directories, for the rules.
#[derive(Debug, Default)]
pub struct Paths {
    of_dirs: HashMap<Ino, Vec<u8>>,
    since_ns: i64,
}

/// A file of at most so many runs is passed to all when it is laminated: 64 KiB or less.
const FEW_RUNS: usize = 1024;

impl<P: Platform> Cluster<P> {
    /// Laminates a file of this server, if nobody has it open for writing; whether it is so
    /// now.
    pub(super) async fn laminate_at_home(&self, ino: Ino, cause: Cause) -> Result<bool, FsError> {
        let _alone = self.inner.publishing.hold(ino, self.token()).await;
        let attr = self.node(|node| node.regular(ino))?;
        if attr.lamination == Lamination::Done {
            return Ok(true);
        }
        if !Node::<P>::is_cause(&attr, cause) {
            return Ok(false);
        }
        let others = self.holders_of(ino);
        let sealed = self.seal_everywhere(ino, &others).await;
        let done = matches!(sealed, Ok(true));
        let is = if done {
            Lamination::Done
        } else {
            Lamination::Due
        };
        self.node(|node| node.set_lamination(ino, is))?;
        self.mark_holders(ino, false).await;
        if done {
            self.recall_leases(ino, None).await;
            let this = self.clone();
            self.spawn(async move {
                // Who does not learn it so asks when it reads.
                if let Err(error) = this.pass_laminated(ino, !others.is_empty()).await {
                    tracing::debug!(?ino, %error, "a laminated file's extents");
                }
            });
        }
        sealed
    }

    /// Lets all nodes publish, if none has a writer.
    async fn seal_everywhere(&self, ino: Ino, others: &[Rank]) -> Result<bool, FsError> {
        let mut writers = self.node(|node| node.try_seal(ino))?;
        if writers == 0 {
            let asked = others
                .iter()
                .map(|rank| self.call(*rank, peer::Seal { ino }));
            for answer in join_all(asked).await {
                writers = writers.saturating_add(answer?);
            }
        }
        if writers > 0 {
            return Ok(false);
        }
        let asked = others
            .iter()
            .map(|rank| self.call(*rank, peer::Flush { ino }));
        for answer in join_all(asked).await {
            answer?;
        }
        self.flush(ino).await?;
        Ok(true)
    }

    /// Whether anybody of this node has a foreign file open for writing; if not, nobody
    /// can from now on.
    pub(super) fn seal_here(&self, ino: Ino) -> Result<u32, FsError> {
        match self.local(ino) {
            Some(local) => self.node(|node| node.try_seal(local)),
            None => Ok(0),
        }
    }

    /// Tells the nodes that have a file of this server open how it is.
    pub(super) async fn mark_holders(&self, ino: Ino, unnamed: bool) {
        let Ok(attr) = self.node(|node| node.attr_of(ino)) else {
            return;
        };
        let asked = self.holders_of(ino).into_iter().map(|rank| {
            let mark = peer::Mark {
                ino,
                policy: attr.policy,
                lamination: attr.lamination,
                unnamed,
            };
            self.call(rank, mark)
        });
        // Who is gone has nothing open.
        join_all(asked).await;
    }

    pub(super) async fn mark_here(&self, op: &peer::Mark) -> Result<(), FsError> {
        let Some(local) = self.local(op.ino) else {
            return Ok(());
        };
        // What was learnt before the lamination is not for good.
        self.recall_here(op.ino);
        self.node(|node| {
            node.set_policy(local, op.policy)?;
            node.set_lamination(local, op.lamination)
        })?;
        if op.unnamed {
            self.leave_unnamed(op.ino).await;
        }
        Ok(())
    }

    /// Whether what this node wrote to a file is to be published before it is laminated.
    pub(super) fn may_publish(&self, ino: Ino, local: Ino) -> Result<bool, FsError> {
        let attr = self.node(|node| node.attr_of(local))?;
        let waits = attr.policy.visibility == Visibility::ReadAfterLaminate
            && !matches!(attr.lamination, Lamination::Sealing | Lamination::Done)
            && attr.nlink > 0
            && !self.is_unnamed_here(ino);
        Ok(!waits)
    }

    /// The path of an entry, if there are rules that may name it. That of its directory is
    /// looked up once a second at most.
    pub(super) async fn path_for_rules(
        &self,
        dir: Ino,
        name: &[u8],
    ) -> Result<Option<Vec<u8>>, FsError> {
        if self.node(|node| node.rules.is_empty()) {
            return Ok(None);
        }
        let now_ns = self.now_ns();
        let known = {
            let mut paths = self.inner.paths.borrow_mut();
            if now_ns - paths.since_ns > PATHS_NS {
                paths.of_dirs.clear();
                paths.since_ns = now_ns;
            }
            paths.of_dirs.get(&dir).map(|path| join(path, name))
        };
        if known.is_some() {
            return Ok(known);
        }
        let path = self.path_of(dir).await?;
        let joined = join(&path, name);
        self.inner.paths.borrow_mut().of_dirs.insert(dir, path);
        Ok(Some(joined))
    }

    /// A file of this server is shared in another way from now on.
    pub(super) async fn policy_changed(&self, ino: Ino, policy: Policy) {
        let written = self.node(|node| node.has_writers_of(ino));
        if policy.visibility == Visibility::ReadAfterWrite && written {
            self.add_writer(ino, self.rank()).await;
        }
        self.renew_ask(ino);
        self.mark_holders(ino, false).await;
    }

    /// Publishes for a reader of `from` what all other nodes wrote.
    pub(super) async fn pull(&self, from: Rank, ino: Ino) -> Result<(), FsError> {
        let writers = self.writers_of(ino);
        let others = writers.into_iter().filter(|rank| *rank != from);
        let asked = others.map(|rank| self.call(rank, peer::Flush { ino }));
        for answer in join_all(asked).await {
            match answer {
                // Its node is lost, and with it what only it had.
                Ok(()) | Err(FsError::Unreachable) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Whether readers at `rank` have to ask before they read.
    pub(super) fn must_ask(&self, attr: &Attr, rank: Rank) -> bool {
        attr.policy.visibility == Visibility::ReadAfterWrite
            && self.writers_of(attr.ino).iter().any(|w| *w != rank)
    }

    /// Says to readers of this node whether they have to ask.
    pub(super) fn renew_ask(&self, ino: Ino) {
        if let Ok(attr) = self.node(|node| node.attr_of(ino)) {
            let ask = self.must_ask(&attr, self.rank());
            if ask != attr.ask {
                self.node(|node| node.set_ask(ino, ask));
            }
        }
    }

    /// Laminates what this node's programs have closed and what was waiting for that.
    pub(super) fn laminate_unwritten(&self) {
        for local in self.node(Node::take_unwritten) {
            let ino = self.global(local);
            let this = self.clone();
            self.spawn(async move {
                let cause = Cause::Close;
                let asked = peer::Laminate { ino, cause };
                match this.call(ino.rank(), asked).await {
                    Ok(_) | Err(FsError::Stale | FsError::NotFound) => {}
                    Err(error) => tracing::warn!(?ino, %error, "a lamination that is due"),
                }
            });
        }
    }

    async fn pass_laminated(&self, ino: Ino, shared: bool) -> Result<(), FsError> {
        let attr = self.attr_at_home(ino).await?;
        let homes = self.homes_of(ino, 0, attr.size);
        let asked = homes.into_iter().map(|rank| {
            let (from, to) = (0, MAX_OFFSET);
            self.call(rank, peer::Runs { ino, from, to })
        });
        let mut runs: Vec<Run> = Vec::new();
        for answer in join_all(asked).await {
            runs.extend(answer?);
            if runs.len() > FEW_RUNS {
                return Ok(());
            }
        }
        let op = peer::Laminated { attr, runs };
        if shared {
            self.laminated(op).await
        } else {
            self.believe(&op)
        }
    }

    /// Takes in where the bytes of a laminated file are, and passes it on.
    pub(super) async fn laminated(&self, op: peer::Laminated) -> Result<(), FsError> {
        self.believe(&op)?;
        let asked = self
            .below(op.attr.home.rank())
            .into_iter()
            .map(|rank| self.call(rank, op.clone()));
        join_all(asked).await;
        Ok(())
    }

    fn believe(&self, op: &peer::Laminated) -> Result<(), FsError> {
        self.keep_map(op.attr.home, Map::of_laminated(&op.runs)?);
        Ok(())
    }

    /// A laminated file is no more.
    pub(super) async fn forget_laminated(&self, ino: Ino) -> Result<(), FsError> {
        self.inner.maps.borrow_mut().remove(&ino);
        let below = self.below(ino.rank());
        let asked = below
            .into_iter()
            .map(|rank| self.call(rank, peer::Forget { ino }));
        join_all(asked).await;
        Ok(())
    }

    /// The servers to which this one passes what comes down the tree of `root`: a binary
    /// one, in the order of ranks from the root's on.
    fn below(&self, root: Rank) -> Vec<Rank> {
        below(self.rank(), root, self.inner.servers)
    }
}

fn below(rank: Rank, root: Rank, servers: u16) -> Vec<Rank> {
    let servers = u32::from(servers);
    let place = (u32::from(rank.0) + servers - u32::from(root.0) % servers) % servers;
    let children = [2 * place + 1, 2 * place + 2];
    let inside = children.into_iter().filter(|child| *child < servers);
    let ranks: BTreeSet<u32> = inside.map(|c| (c + u32::from(root.0)) % servers).collect();
    ranks
        .into_iter()
        .filter_map(|rank| u16::try_from(rank).ok().map(Rank))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_reaches_each_server_once_in_few_steps() {
        for servers in [1, 2, 3, 7, 64, 1000] {
            for root in [0, servers / 2, servers - 1] {
                let mut seen = BTreeSet::from([root]);
                let mut level = vec![Rank(root)];
                let mut steps = 0;
                while !level.is_empty() {
                    level = level
                        .iter()
                        .flat_map(|rank| below(*rank, Rank(root), servers))
                        .collect();
                    for rank in &level {
                        assert!(seen.insert(rank.0), "{rank:?} twice");
                    }
                    steps += 1;
                }
                assert_eq!(seen.len(), usize::from(servers));
                assert!(steps <= servers.ilog2() + 1);
            }
        }
    }
}

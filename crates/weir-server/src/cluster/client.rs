//! What clients and tools of this node ask: what concerns the node alone is done by the
//! node, all else by those whom it concerns.

use serde::Serialize;
use weir_core::names::FileType;
use weir_core::proto::peer::{self, What};
use weir_core::proto::{self, Attach, Attached, Caller, Child, Created, Entry, FsError, Request};
use weir_core::proto::{encode, ServerStatus};
use weir_core::types::{Ino, Rank};

use super::placements::NameUse;
use super::{Cluster, ROOT};
use crate::node::{Node, Platform};

impl<P: Platform> Cluster<P> {
    /// Does one encoded request; the encoded reply.
    pub(super) async fn serve_client(&self, from: Caller, bytes: &[u8]) -> Vec<u8> {
        let request = postcard::from_bytes::<Request>(bytes);
        let name = request.as_ref().ok().map(Request::name);
        self.node(|node| node.count_asked(from, name, bytes.len()));
        let Ok(request) = request else {
            return encoded(&Err::<(), _>(FsError::Malformed));
        };
        match request {
            Request::Create(op) => encoded(&self.create(from, op).await),
            Request::CreateUnnamed(op) => encoded(&self.create_unnamed(from, op).await),
            Request::Mkdir(op) => {
                let made =
                    self.make_at_home(op.parent, op.name, What::Dir, op.mode, (op.uid, op.gid));
                encoded(&made.await)
            }
            Request::Symlink(op) => {
                let what = What::Symlink(op.target);
                let made = self.make_at_home(op.parent, op.name, what, 0o777, (op.uid, op.gid));
                encoded(&made.await)
            }
            Request::MakeSpecial(op) => {
                let what = What::Special(op.kind);
                let made = self.make_at_home(op.parent, op.name, what, op.mode, (op.uid, op.gid));
                encoded(&made.await)
            }
            Request::Link(op) => encoded(&self.link_at_home(op).await),
            Request::Unlink(op) => encoded(&self.unlink_at_home(op).await),
            Request::Rmdir(op) => {
                let (dir, name) = (self.global(op.parent), op.name);
                let removal = peer::Rmdir {
                    dir,
                    name: name.clone(),
                };
                let done = self.call_home((dir, &name), NameUse::Existing, removal);
                encoded(&done.await)
            }
            Request::Rename(op) => encoded(&self.rename(op).await),
            Request::SetAttr(op) => encoded(&self.set_attr(op).await),
            Request::GetXattr(op) => encoded(&self.get_xattr(op).await),
            Request::ListXattrs(op) => encoded(&self.list_xattrs(op).await),
            Request::SetXattr(op) => encoded(&self.set_xattr(from, op).await),
            Request::RemoveXattr(op) => encoded(&self.remove_xattr(op).await),
            Request::Truncate(op) => encoded(&self.truncate_here(op.ino, op.size).await),
            Request::Allocate(op) => encoded(&self.allocate(op).await),
            Request::Readdir(op) => encoded(&self.readdir(&op).await),
            Request::Attach(op) => encoded(&self.attach(from, op).await),
            Request::Locate(op) => encoded(&self.locate(&op).await),
            Request::Sync(op) => encoded(&self.sync(op.ino).await),
            Request::Find(op) => encoded(&self.find_for_client(op).await),
            Request::GetAttr(op) => encoded(&self.attr_here(op.ino).await),
            Request::Passage(op) => encoded(&self.passage_here(op.ino).await),
            Request::Readlink(op) => {
                let ino = op.ino;
                encoded(&self.call(ino.rank(), peer::Readlink { ino }).await)
            }
            Request::PathOf(op) => encoded(&self.path_of(op.ino).await),
            Request::Hold(op) => encoded(&self.hold_here(op.ino, op.write).await),
            Request::Laminate(op) => encoded(&self.laminate(op).await),
            Request::Lease(op) => encoded(&self.lease_here(op.ino).await),
            Request::Token(op) => encoded(&self.write_token(op).await),
            Request::Flush(op) => encoded(&self.close_written(from, op.ino).await),
            Request::Segment(op) => encoded(&self.segment(from, op).await),
            Request::Fetch(op) => encoded(&self.fetch_for(from, op).await),
            Request::Flock(op) => encoded(&self.flock(from, op).await),
            Request::RecordLock(op) => encoded(&self.record_lock(from, op).await),
            Request::TestLock(op) => encoded(&self.test_lock(from, op).await),
            Request::Lookup(op) => encoded(&self.lookup(&op.components).await),
            Request::Append(op) => encoded(&self.append(op).await),
            Request::Audit(op) => encoded(&self.audit(from, op).await),
            Request::Status(_) => encoded(&Ok::<_, FsError>(self.status_here())),
            Request::Stop(_) => encoded(&self.stop(from)),
            other => self.node(|node| {
                let mut out = Vec::new();
                node.perform(from, other, &mut out);
                out
            }),
        }
    }

    async fn make_at_home(
        &self,
        parent: Ino,
        name: Vec<u8>,
        what: What,
        mode: u32,
        (uid, gid): (u32, u32),
    ) -> Result<Ino, FsError> {
        let dir = self.global(parent);
        let make = peer::Make {
            dir,
            name: name.clone(),
            what,
            mode,
            uid,
            gid,
            exclusive: true,
            write: false,
            path: None,
        };
        let made = self.call_home((dir, &name), NameUse::New, make).await?;
        Ok(made.child.ino)
    }

    async fn unlink_at_home(&self, op: proto::Unlink) -> Result<(), FsError> {
        let (dir, name) = (self.global(op.parent), op.name);
        let removal = peer::Unlink {
            dir,
            name: name.clone(),
        };
        let asked = self.call_home((dir, &name), NameUse::Existing, removal);
        if let Some(unnamed) = asked.await? {
            self.lost_its_name(unnamed).await;
        }
        Ok(())
    }

    async fn create(&self, from: Caller, op: proto::Create) -> Result<Created, FsError> {
        let dir = self.global(op.parent);
        let path = self.path_for_rules(dir, &op.name).await?;
        let make = peer::Make {
            dir,
            name: op.name.clone(),
            what: What::File,
            mode: op.mode,
            uid: op.uid,
            gid: op.gid,
            exclusive: op.exclusive,
            write: op.attach,
            path,
        };
        let asked_ns = self.now_ns();
        let revocations = self.revocations();
        let times = self.inner.leaving.times();
        let recalled = self.inner.recalled.get();
        let told_of_unknown = self.inner.told_of_unknown.get();
        let made = self.ask_home((dir, &op.name), NameUse::New, make).await?;
        let (made, home, session) = made;
        if made.new && made.child.ino.rank() == self.rank() {
            self.add_writer(made.child.ino, self.rank()).await;
        }
        self.note_name(made.child.ino, dir, &op.name);
        let not_held = Created {
            ino: made.child.ino,
            new: false,
            held: false,
            attached: None,
        };
        let ino = match made.attr {
            None => return Ok(not_held),
            Some(attr) if attr.home.rank() == self.rank() => attr.home,
            Some(attr)
                if self.is_session(home, session)
                    && ((made.new && self.inner.told_of_unknown.get() == told_of_unknown)
                        || (self.inner.leaving.none_since(times)
                            && self.inner.recalled.get() == recalled)) =>
            {
                let seen = self.stand_in_for(&attr);
                let ino = seen.inspect_err(|_| self.leave_unknown(attr.home))?.ino;
                if op.attach {
                    self.may_reserve(attr.home, asked_ns);
                }
                ino
            }
            // The home may have been told after that that this node lets go of the file, or have
            // forgotten who holds it; or a truncation, a lamination or the end of its name overtook
            // the answer.
            Some(attr) => match self.hold_here(attr.home, op.attach).await {
                Ok(attr) => attr.ino,
                Err(FsError::Stale) => return Ok(not_held),
                Err(error) => return Err(error),
            },
        };
        if made.granted && self.is_session(home, session) && self.revocations() == revocations {
            self.hold_new(made.child.ino, asked_ns);
        }
        let attached = match from {
            Caller::Client(id) if op.attach && made.new => {
                match self.node(|node| node.attach_client(id, ino)) {
                    // The file is made: its first write finds no room.
                    Err(FsError::NoSpace) => None,
                    attached => {
                        let attached = attached?;
                        // The home may have told this node before it told it of the file.
                        self.attached_here(made.child.ino, ino);
                        Some(attached)
                    }
                }
            }
            _ => None,
        };
        Ok(Created {
            ino,
            new: made.new,
            held: true,
            attached,
        })
    }

    /// A file without a name lives at the server of the node that makes it.
    async fn create_unnamed(
        &self,
        from: Caller,
        op: proto::CreateUnnamed,
    ) -> Result<Created, FsError> {
        let Caller::Client(id) = from else {
            return Err(FsError::NotPermitted);
        };
        let dir = self.global(op.dir);
        let look = peer::GetAttr {
            ino: dir,
            keep: false,
        };
        let attr = self.call(dir.rank(), look).await?.what;
        let made = self.node(|node| node.create_unnamed_file(id, &op, &attr))?;
        self.add_writer(made.ino, self.rank()).await;
        self.attached_here(made.ino, made.ino);
        Ok(made)
    }

    async fn find_for_client(&self, op: proto::Find) -> Result<Option<Child>, FsError> {
        let (dir, name) = (self.global(op.dir), op.name.clone());
        let found = self.find_anywhere(op).await?;
        if let Some(file) = found.filter(|child| child.kind == FileType::File) {
            self.note_name(file.ino, dir, &name);
        }
        Ok(found)
    }

    /// Lends a segment. What is overwritten by bytes that are not published makes room when
    /// they are.
    async fn segment(&self, from: Caller, op: proto::Segment) -> Result<proto::Lent, FsError> {
        let Caller::Client(id) = from else {
            return Err(FsError::NotPermitted);
        };
        let lend = || self.node(|node| node.lend_segment(id, op.min_bytes, op.want_bytes));
        match lend() {
            Err(FsError::NoSpace) => {}
            lent => return lent,
        }
        for ino in self.dirty() {
            // Of whom is not reached nothing comes back.
            let _ = self.flush(ino).await;
        }
        lend()
    }

    async fn link_at_home(&self, op: proto::Link) -> Result<(), FsError> {
        let (ino, dir) = (self.global(op.ino), self.global(op.parent));
        let name = op.name;
        let link = peer::Link {
            ino,
            dir,
            name: name.clone(),
        };
        self.call_home((dir, &name), NameUse::New, link).await
    }

    async fn set_attr(&self, op: proto::SetAttr) -> Result<(), FsError> {
        let ino = self.global(op.ino);
        let local = self.local(ino).filter(|_| op.mtime_ns.is_some());
        if let Some(local) = local.filter(|local| self.node(|node| node.is_file(*local))) {
            // What was written before must not date it later.
            self.flush(ino).await?;
            self.node(|node| node.forget_cell_times(local));
        }
        let set = proto::SetAttr { ino, ..op };
        self.call(ino.rank(), peer::SetAttr { set }).await?;
        self.recall_here(ino);
        Ok(())
    }

    async fn laminate(&self, op: proto::Laminate) -> Result<bool, FsError> {
        let (ino, cause) = (self.global(op.ino), op.cause);
        self.call(ino.rank(), peer::Laminate { ino, cause }).await
    }

    async fn attach(&self, from: Caller, op: Attach) -> Result<Attached, FsError> {
        let Caller::Client(id) = from else {
            return Err(FsError::NotPermitted);
        };
        // The size from which appends go on must be the file's, not the stand-in's.
        let ino = self.global(op.ino);
        let local = self.hold_here(ino, true).await?.ino;
        let attached = self.node(|node| node.attach_client(id, local))?;
        self.attached_here(ino, local);
        Ok(attached)
    }

    async fn lookup(&self, components: &[Vec<u8>]) -> Result<Entry, FsError> {
        let mut ino = ROOT;
        for name in components {
            let op = proto::Find {
                dir: ino,
                name: name.clone(),
            };
            let found = self.find_anywhere(op).await?;
            ino = found.ok_or(FsError::NotFound)?.ino;
        }
        let look = peer::GetAttr { ino, keep: false };
        let attr = self.call(ino.rank(), look).await?.what;
        Ok(Entry {
            ino,
            cookie: 0,
            mode: attr.mode,
            size: attr.size,
            mtime_ns: attr.mtime_ns,
            name: components.last().cloned().unwrap_or_default(),
        })
    }

    fn stop(&self, from: Caller) -> Result<ServerStatus, FsError> {
        if from != Caller::Control {
            return Err(FsError::NotPermitted);
        }
        self.node(Node::begin_stop);
        Ok(self.status_here())
    }

    /// The state of this server.
    pub fn status_here(&self) -> ServerStatus {
        let mut status = self.node(Node::report);
        status.runs += self.published_runs() as u64;
        let asked = self.asked().into_iter();
        let of_peers = asked.map(|(name, count)| (format!("peer {name}"), count));
        status.requests.extend(of_peers);
        status.counters.extend(self.moved());
        let (kept_bytes, kept_hits) = self.kept();
        let kept = [("kept bytes", kept_bytes), ("kept hits", kept_hits)];
        let kept = kept.into_iter().filter(|(_, count)| *count > 0);
        let kept = kept.map(|(name, count)| (name.to_owned(), count));
        status.requests.extend(kept);
        status.findings = self.findings();
        status.rejected.extend(self.inner.net.refused());
        status
    }

    /// The state of every server that answers, in the order of ranks.
    pub async fn status_of_all(&self) -> Vec<(Rank, Result<ServerStatus, FsError>)> {
        let mut all = Vec::new();
        for rank in self.ranks() {
            all.push((rank, self.call(rank, peer::Status {}).await));
        }
        all
    }
}

fn encoded<T: Serialize>(reply: &Result<T, FsError>) -> Vec<u8> {
    let mut out = Vec::new();
    encode(reply, &mut out);
    out
}

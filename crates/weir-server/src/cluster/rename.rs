//! Renaming between servers.
//!
//! The asking server leads. It locks both names at their homes, in the order of their
//! keys, and directories that change their parent also need the one permit (rank 0), so
//! that no two moves make a loop together. Then the new name is assigned, and the old one
//! taken; both stay locked until that is done, so nobody sees the two states mixed.
//!
//! If the leader dies in between, the locks are dropped with it: the file then has both
//! names, and is lost under none.

use weir_core::names::FileType;
use weir_core::proto::peer;
use weir_core::proto::{self, Child, FsError};
use weir_core::types::{Ino, Rank};

use super::keyed::Token;
use super::Cluster;
use crate::node::Platform;

const NOREPLACE: u32 = 1;
const EXCHANGE: u32 = 2;

/// One of the two names.
struct Seat {
    home: Rank,
    dir: Ino,
    name: Vec<u8>,
}

impl Seat {
    fn key(&self) -> (u16, Ino, &[u8]) {
        (self.home.0, self.dir, &self.name)
    }
}

impl<P: Platform> Cluster<P> {
    pub(super) async fn rename(&self, op: proto::Rename) -> Result<(), FsError> {
        if op.flags > EXCHANGE {
            return Err(FsError::Invalid);
        }
        let from = self.seat(op.parent, op.name);
        let to = self.seat(op.new_parent, op.new_name);
        if from.key() == to.key() {
            let found = self.look(&from).await?;
            return match (found, op.flags) {
                (None, _) => Err(FsError::NotFound),
                (Some(_), NOREPLACE) => Err(FsError::Exists),
                (Some(_), _) => Ok(()),
            };
        }
        let token = self.token();
        // Whether directories move to another parent is known only under the locks; the
        // permit comes first, so it is taken on a look without them, and looked again.
        let mut permit = false;
        loop {
            let moves_dirs = op.parent != op.new_parent && self.any_dir(&from, &to).await?;
            if moves_dirs && !permit {
                let number = token.number;
                let asked = peer::LockMoves { token: number };
                self.call(Rank(0), asked).await?;
                permit = true;
            }
            let done = self
                .rename_locked(&from, &to, op.flags, token, permit)
                .await;
            if done == Err(FsError::WouldBlock) {
                continue;
            }
            if permit {
                let number = token.number;
                let asked = peer::UnlockMoves { token: number };
                self.call(Rank(0), asked).await?;
            }
            return done;
        }
    }

    fn seat(&self, dir: Ino, name: Vec<u8>) -> Seat {
        let dir = self.global(dir);
        Seat {
            home: self.home_of(dir, &name),
            dir,
            name,
        }
    }

    async fn look(&self, seat: &Seat) -> Result<Option<Child>, FsError> {
        let find = peer::Find {
            dir: seat.dir,
            name: seat.name.clone(),
        };
        self.call(seat.home, find).await
    }

    async fn any_dir(&self, from: &Seat, to: &Seat) -> Result<bool, FsError> {
        let found = [self.look(from).await?, self.look(to).await?];
        Ok(found
            .into_iter()
            .flatten()
            .any(|child| child.kind == FileType::Dir))
    }

    /// Locks both names, renames, and unlocks. `WouldBlock`: the permit is needed.
    async fn rename_locked(
        &self,
        from: &Seat,
        to: &Seat,
        flags: u32,
        token: Token,
        permit: bool,
    ) -> Result<(), FsError> {
        let mut order = [from, to];
        order.sort_by(|a, b| a.key().cmp(&b.key()));
        let first = self.lock_seat(order[0], token).await?;
        let second = match self.lock_seat(order[1], token).await {
            Ok(found) => found,
            Err(error) => {
                self.unlock_seat(order[0], token).await;
                return Err(error);
            }
        };
        let from_is_first = std::ptr::eq(order[0], from);
        let (source, target) = if from_is_first {
            (first, second)
        } else {
            (second, first)
        };
        let done = match source {
            None => Err(FsError::NotFound),
            Some(source) => {
                let what = Renaming {
                    from,
                    to,
                    source,
                    target,
                    exchange: flags == EXCHANGE,
                };
                let noreplace = flags == NOREPLACE;
                self.rename_found(what, noreplace, token, permit).await
            }
        };
        self.unlock_seat(order[1], token).await;
        self.unlock_seat(order[0], token).await;
        done
    }

    async fn rename_found(
        &self,
        what: Renaming<'_>,
        noreplace: bool,
        token: Token,
        permit: bool,
    ) -> Result<(), FsError> {
        match what.target {
            Some(_) if noreplace => return Err(FsError::Exists),
            None if what.exchange => return Err(FsError::NotFound),
            _ => {}
        }
        let elsewhere = what.from.dir != what.to.dir;
        let dirs = [Some(what.source), what.target];
        let is_dir = |child: &Child| child.kind == FileType::Dir;
        if elsewhere && dirs.iter().flatten().any(is_dir) {
            if !permit {
                return Err(FsError::WouldBlock);
            }
            self.check_loops(&what).await?;
        }
        if let Some(target) = what.target {
            if target.ino == what.source.ino {
                return Ok(()); // two names of one file: both stay
            }
        }
        if what.exchange {
            return self.exchange(&what, token).await;
        }
        self.replace(&what, token).await
    }

    async fn check_loops(&self, what: &Renaming<'_>) -> Result<(), FsError> {
        if what.source.kind == FileType::Dir && self.is_within(what.to.dir, what.source.ino).await?
        {
            return Err(FsError::WouldLoop);
        }
        let Some(target) = what.target.filter(|t| t.kind == FileType::Dir) else {
            return Ok(());
        };
        if self.is_within(what.from.dir, target.ino).await? {
            return Err(if what.exchange {
                FsError::WouldLoop
            } else {
                FsError::NotEmpty
            });
        }
        Ok(())
    }

    async fn replace(&self, what: &Renaming<'_>, token: Token) -> Result<(), FsError> {
        if let Some(target) = what.target {
            match (what.source.kind, target.kind) {
                (FileType::Dir, FileType::Dir) => {
                    let dir = target.ino;
                    self.call(dir.rank(), peer::Bury { dir }).await?;
                }
                (FileType::Dir, _) => return Err(FsError::NotADirectory),
                (_, FileType::Dir) => return Err(FsError::IsADirectory),
                _ => {}
            }
        }
        self.assign(what.to, token, Some(what.source)).await?;
        self.assign(what.from, token, None).await?;
        self.tell_moved(what.source, what.to).await?;
        if let Some(target) = what.target.filter(|t| t.kind != FileType::Dir) {
            let taken = peer::Relink {
                ino: target.ino,
                add: false,
            };
            match self.call(target.ino.rank(), taken).await {
                Ok(_) | Err(FsError::Stale) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    async fn exchange(&self, what: &Renaming<'_>, token: Token) -> Result<(), FsError> {
        let Some(target) = what.target else {
            return Err(FsError::NotFound);
        };
        self.assign(what.to, token, Some(what.source)).await?;
        self.assign(what.from, token, Some(target)).await?;
        self.tell_moved(what.source, what.to).await?;
        self.tell_moved(target, what.from).await
    }

    /// The inode's home dates the change, and remembers where a directory is.
    async fn tell_moved(&self, child: Child, seat: &Seat) -> Result<(), FsError> {
        let moved = peer::Moved {
            ino: child.ino,
            parent: seat.dir,
            name: seat.name.clone(),
        };
        self.call(child.ino.rank(), moved).await
    }

    async fn lock_seat(&self, seat: &Seat, token: Token) -> Result<Option<Child>, FsError> {
        let lock = peer::LockName {
            dir: seat.dir,
            name: seat.name.clone(),
            token: token.number,
        };
        self.call(seat.home, lock).await
    }

    async fn unlock_seat(&self, seat: &Seat, token: Token) {
        let unlock = peer::UnlockName {
            dir: seat.dir,
            name: seat.name.clone(),
            token: token.number,
        };
        // A server that is lost has lost its locks.
        let _ = self.call(seat.home, unlock).await;
    }

    async fn assign(&self, seat: &Seat, token: Token, child: Option<Child>) -> Result<(), FsError> {
        let assign = peer::Assign {
            dir: seat.dir,
            name: seat.name.clone(),
            token: token.number,
            child,
        };
        self.call(seat.home, assign).await
    }

    pub(super) async fn lock_name(
        &self,
        from: Rank,
        op: peer::LockName,
    ) -> Result<Option<Child>, FsError> {
        let token = Token {
            rank: from,
            number: op.token,
        };
        let key = (op.dir, op.name);
        self.inner.names.lock(key.clone(), token).await;
        let found = self.node(|node| node.find_child(key.0, &key.1));
        if found.is_err() {
            self.inner.names.unlock(&key, token);
        }
        found
    }

    pub(super) async fn assign_name(&self, from: Rank, op: peer::Assign) -> Result<(), FsError> {
        let token = Token {
            rank: from,
            number: op.token,
        };
        let key = (op.dir, op.name);
        if !self.inner.names.has(&key, token) {
            return Err(FsError::Stale);
        }
        let (dir, name) = (key.0, &key.1[..]);
        self.recall_entry(dir, name).await;
        let found = self.node(|node| node.find_child(dir, name))?;
        match (found, op.child) {
            (None, None) => Ok(()),
            (None, Some(child)) => self.enter(dir, name, child).await,
            (Some(_), None) => self.node(|node| node.withdraw(dir, name)).map(drop),
            (Some(_), Some(child)) => self.node(|node| node.substitute(dir, name, child)),
        }
    }
}

/// A rename whose names are locked.
struct Renaming<'a> {
    from: &'a Seat,
    to: &'a Seat,
    source: Child,
    target: Option<Child>,
    exchange: bool,
}

//! Renaming between servers.
//!
//! The asking server leads. It locks both names at their homes, in the order of their
//! keys, and directories that change their parent also need the one permit (rank 0), so
//! that no two moves make a loop together. Then the new name is assigned, and the old one
//! taken; both stay locked until that is done, so nobody sees the two states mixed.
//!
//! Once the new name may be there the leader sees it through, whoever waits for it: a server
//! that cannot be reached is asked when it can be. If its lock was dropped meanwhile, it changes
//! the name only if that is still as it was. If the leader dies in between, the locks are dropped
//! with it: the file then has both names, and is lost under none, for links are counted before
//! there is a name and until there is none.

use weir_core::names::FileType;
use weir_core::proto::peer;
use weir_core::proto::{self, Child, FsError};
use weir_core::types::{Ino, Rank};

use super::keyed::Token;
use super::session::Outcome;
use super::Cluster;
use crate::node::Platform;

const NOREPLACE: u32 = 1;
const EXCHANGE: u32 = 2;

/// A directory that has its new name, and may have its old one too.
#[derive(Debug)]
pub struct Moving {
    from: (Ino, Vec<u8>),
    child: Child,
}

fn moved(child: Child, at: &Seat) -> peer::Moved {
    peer::Moved {
        ino: child.ino,
        parent: at.dir,
        name: at.name.clone(),
    }
}

/// One of the two names.
#[derive(Clone)]
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
        let act = |this: Self, outcome| async move { this.rename_to_the_end(op, outcome).await };
        self.to_the_end(act).await
    }

    async fn rename_to_the_end(&self, op: proto::Rename, outcome: Outcome) -> Result<(), FsError> {
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
            let number = token.number;
            let mut done = Ok(());
            if op.parent != op.new_parent && !permit {
                match self.any_dir(&from, &to).await {
                    Ok(false) => {}
                    Ok(true) => {
                        permit = true;
                        done = self.call(Rank(0), peer::LockMoves { token: number }).await;
                    }
                    Err(error) => done = Err(error),
                }
            }
            if done.is_ok() {
                let how = (op.flags, permit);
                done = self.rename_locked(&from, &to, how, token, &outcome).await;
                if done == Err(FsError::WouldBlock) {
                    continue;
                }
            }
            if permit {
                self.owe(Rank(0), peer::UnlockMoves { token: number }).await;
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
        (flags, permit): (u32, bool),
        token: Token,
        outcome: &Outcome,
    ) -> Result<(), FsError> {
        let mut order = [from, to];
        order.sort_by(|a, b| a.key().cmp(&b.key()));
        let first = match self.lock_seat(order[0], token).await {
            Ok(found) => found,
            Err(error) => {
                // It may be locked when it is not waited for any more.
                self.unlock_seat(order[0], token).await;
                return Err(error);
            }
        };
        let second = match self.lock_seat(order[1], token).await {
            Ok(found) => found,
            Err(error) => {
                self.unlock_seat(order[1], token).await;
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
                    token,
                    outcome: &self.when_late(from, to, &source, token, outcome),
                };
                self.rename_found(what, flags == NOREPLACE, permit).await
            }
        };
        self.unlock_seat(order[1], token).await;
        self.unlock_seat(order[0], token).await;
        done
    }

    /// When it cannot be known in time how a rename ends, names of a file are free for others,
    /// for its links are counted; those of a directory nobody waits for.
    fn when_late(
        &self,
        from: &Seat,
        to: &Seat,
        source: &Child,
        token: Token,
        outcome: &Outcome,
    ) -> Outcome {
        let keys = [from, to].map(|seat| (seat.dir, seat.name.clone()));
        let this = self.clone();
        if source.kind == FileType::Dir {
            let number = token.number;
            return outcome.late(move || {
                for key in &keys {
                    this.inner.names.stick(key);
                }
                let this = this.clone();
                this.clone().spawn(async move {
                    this.owe(Rank(0), peer::UnlockMoves { token: number }).await;
                });
            });
        }
        let seats = [from, to].map(Clone::clone);
        outcome.late(move || {
            for seat in seats.clone() {
                let this = this.clone();
                this.clone()
                    .spawn(async move { this.unlock_seat(&seat, token).await });
            }
        })
    }

    /// Ends the moves of directories that a lost server had begun here.
    pub(super) fn end_moves_of(&self, rank: Rank) {
        let begun: Vec<Moving> = {
            let mut moving = self.inner.moving.borrow_mut();
            let its: Vec<Token> = moving.keys().filter(|t| t.rank == rank).copied().collect();
            its.iter()
                .filter_map(|token| moving.remove(token))
                .collect()
        };
        for Moving { from, child } in begun {
            let assign = peer::Assign {
                dir: from.0,
                name: from.1,
                token: self.token().number,
                was: Some(child),
                from: None,
                child: None,
            };
            let home = self.home_of(assign.dir, &assign.name);
            let this = self.clone();
            self.spawn(async move { this.owe(home, assign).await });
        }
    }

    async fn rename_found(
        &self,
        what: Renaming<'_>,
        noreplace: bool,
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
            return self.exchange(&what).await;
        }
        self.replace(&what).await
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

    async fn replace(&self, what: &Renaming<'_>) -> Result<(), FsError> {
        let ino = what.source.ino;
        if what.source.kind == FileType::Dir {
            return self.replace_by_dir(what).await;
        }
        if what
            .target
            .is_some_and(|target| target.kind == FileType::Dir)
        {
            return Err(FsError::IsADirectory);
        }
        match self.add_link(ino, peer::Relink { ino, add: true }).await {
            // The name is locked, so it should have a file.
            Err(FsError::Stale) => {
                let name = String::from_utf8_lossy(&what.from.name);
                tracing::error!(?ino, %name, "a name whose file is lost");
                return Err(FsError::Io);
            }
            added => added?,
        };
        let put = self.assign(what, what.to, (what.target, Some(what.source)));
        if let Err(error) = put.await {
            self.owe(ino.rank(), peer::Relink { ino, add: false }).await;
            return Err(error);
        }
        if let Some(target) = what.target {
            let ino = target.ino;
            self.owe(ino.rank(), peer::Relink { ino, add: false }).await;
        }
        // If that name is another's by now, the file keeps both that it has got.
        self.assign(what, what.from, (Some(what.source), None))
            .await?;
        self.owe(ino.rank(), peer::Relink { ino, add: false }).await;
        Ok(())
    }

    /// A directory says where it will be before it is there: so no two moves make a loop, though
    /// the permit is given back before the end of a move is known. And again at the end, for
    /// an entry that its own home takes away says that it is nowhere.
    async fn replace_by_dir(&self, what: &Renaming<'_>) -> Result<(), FsError> {
        let target = match what.target {
            Some(target) if target.kind != FileType::Dir => return Err(FsError::NotADirectory),
            target => target.map(|target| target.ino),
        };
        let source = what.source;
        let mut done = self.tell_moved(source, what.to).await;
        if let (Ok(()), Some(dir)) = (&done, target) {
            let buried = peer::Bury { dir };
            done = self.see_through(dir.rank(), buried, what.outcome).await;
        }
        if done.is_ok() {
            let put = self.assign(what, what.to, (what.target, Some(source)));
            done = put.await;
        }
        let at = match done {
            Ok(()) => what.to,
            Err(_) => what.from,
        };
        if done.is_ok() {
            done = self.assign(what, what.from, (Some(source), None)).await;
        }
        self.owe(source.ino.rank(), moved(source, at)).await;
        done
    }

    async fn exchange(&self, what: &Renaming<'_>) -> Result<(), FsError> {
        let Some(target) = what.target else {
            return Err(FsError::NotFound);
        };
        let (source, is) = (Some(what.source), Some(target));
        let mut done = self.tell_moved(what.source, what.to).await;
        if done.is_ok() {
            done = self.tell_moved(target, what.from).await;
        }
        if done.is_ok() {
            done = self.assign(what, what.to, (is, source)).await;
        }
        if done.is_ok() {
            done = self.assign(what, what.from, (source, is)).await;
            if done.is_err() {
                // As it was, if nobody has the name by now.
                self.assign(what, what.to, (source, is)).await?;
            }
        }
        let at = match done {
            Ok(()) => [what.to, what.from],
            Err(_) => [what.from, what.to],
        };
        for (child, seat) in [what.source, target].into_iter().zip(at) {
            self.owe(child.ino.rank(), moved(child, seat)).await;
        }
        done
    }

    /// The inode's home dates the change, and remembers where a directory is.
    async fn tell_moved(&self, child: Child, at: &Seat) -> Result<(), FsError> {
        self.call(child.ino.rank(), moved(child, at)).await
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
        self.owe(seat.home, unlock).await;
    }

    /// Lets a locked name that named `was` name `child`.
    async fn assign(
        &self,
        what: &Renaming<'_>,
        seat: &Seat,
        (was, child): (Option<Child>, Option<Child>),
    ) -> Result<(), FsError> {
        let moves = what.source.kind == FileType::Dir && !what.exchange;
        let from = (moves && child.is_some()).then(|| (what.from.dir, what.from.name.clone()));
        let assign = peer::Assign {
            dir: seat.dir,
            name: seat.name.clone(),
            token: what.token.number,
            was,
            from,
            child,
        };
        self.see_through(seat.home, assign, what.outcome).await
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
        let locked = self.inner.names.lock(key.clone(), token);
        let locked = async { locked.await.then_some(()).ok_or(FsError::Unreachable) };
        self.in_time(locked).await?;
        let found = self.node(|node| node.find_child(key.0, &key.1));
        if found.is_err() {
            self.inner.names.unlock(&key, token);
        }
        found
    }

    pub(super) async fn assign_name(&self, leader: Rank, op: peer::Assign) -> Result<(), FsError> {
        let token = Token {
            rank: leader,
            number: op.token,
        };
        let key = (op.dir, op.name);
        let (dir, name) = (key.0, &key.1[..]);
        // The leader seemed lost, and its lock was dropped.
        let _name = match self.inner.names.has(&key, token) {
            true => None,
            false => Some(self.name_lock(&key).await?),
        };
        self.recall_entry(dir, name).await;
        let found = self.node(|node| node.find_child(dir, name))?;
        let is_dir = |child: Child| child.kind == FileType::Dir;
        if found.is_none() && op.child.is_none() && op.was.is_some_and(is_dir) {
            return Ok(()); // another who saw it through
        }
        if found != op.was {
            // It was changed when the lock had been dropped; nobody knows what that comes to.
            return Err(FsError::Unreachable);
        }
        match (found, op.child) {
            (None, None) => Ok(()),
            (None, Some(child)) => self.enter(dir, name, child).await,
            (Some(_), None) => self.node(|node| node.withdraw(dir, name)).map(drop),
            (Some(_), Some(child)) => self.node(|node| node.substitute(dir, name, child)),
        }?;
        if let (Some(from), Some(child)) = (op.from, op.child) {
            let moving = Moving { from, child };
            self.inner.moving.borrow_mut().insert(token, moving);
            if !self.inner.names.has(&key, token) {
                // Its leader was given up meanwhile.
                self.end_moves_of(leader);
            }
        }
        Ok(())
    }
}

/// A rename whose names are locked.
struct Renaming<'a> {
    from: &'a Seat,
    to: &'a Seat,
    source: Child,
    target: Option<Child>,
    exchange: bool,
    token: Token,
    /// Who waits for it.
    outcome: &'a Outcome,
}

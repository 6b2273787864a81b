//! Renaming between servers.
//!
//! The asking server leads. It locks both names at their homes, in the order of their
//! keys, and directories that change their parent also need the one permit (rank 0), so
//! that no two moves make a loop together. Then the new name is assigned, and the old one
//! taken; both stay locked until that is done, so nobody sees the two states mixed.
//!
//! Once the new name may be there the leader sees it through, whoever waits for it: a server
//! that cannot be reached is asked when it can be. If its lock was dropped meanwhile, it changes
//! the name only if that is still as it was; and it takes a file's old name only if nobody has
//! locked that since, for who did may rely on it, and if the new one is still the file's, for else
//! the file could lose its last. A home that was started anew after it had been asked
//! is asked what the name is now; where that does not say whether it acted, links may be counted
//! too many, never too few. If the leader dies in between, a file has both names,
//! and is lost under none, for links are counted before there is a name and until there is none.
//! Of a directory, and of names that are exchanged, the second step is then done by the new
//! name's home; the old one's keeps the name locked until it has asked that one.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use weir_core::names::FileType;
use weir_core::proto::peer;
use weir_core::proto::{self, Child, FsError};
use weir_core::types::{Ino, Rank};

use super::debts::Debt;
use super::keyed::{Keyed, Token};
use super::session::Outcome;
use super::Cluster;
use crate::node::Platform;

const NOREPLACE: u32 = 1;
const EXCHANGE: u32 = 2;

/// What others rename here.
#[derive(Debug, Default)]
pub struct Moves {
    /// New names that were given, by which an old one is to be changed.
    moving: RefCell<BTreeMap<Token, Moving>>,
    /// Old names that are locked, and the new ones.
    leaving: RefCell<BTreeMap<Token, (Name, peer::Destination)>>,
    /// Old names of files, the renames that are to take them, whose locks may be dropped, and the
    /// new names.
    going: RefCell<BTreeMap<Name, (Token, Name)>>,
    /// Those of which nothing is to come any more.
    ended: RefCell<BTreeSet<Token>>,
    /// Those of which a name is being changed.
    assigning: Keyed<Token>,
}

/// A directory and a name in it.
type Name = (Ino, Vec<u8>);

/// What was given its new name, while the old one may be as it was.
#[derive(Clone, Debug)]
struct Moving {
    from: Name,
    child: Child,
    then: Option<Child>,
    /// The second step is being done here.
    ending: bool,
}

fn unlock_moves(token: u64) -> Debt {
    Debt::UnlockMoves(peer::UnlockMoves { token })
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
                self.owe(Rank(0), unlock_moves(number)).await;
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
        let going = |seat: &Seat| {
            std::ptr::eq(seat, from).then(|| peer::Destination {
                dir: to.dir,
                name: to.name.clone(),
                exchange: flags == EXCHANGE,
            })
        };
        let first = match self.lock_seat(order[0], token, going(order[0])).await {
            Ok(found) => found,
            Err(error) => {
                // It may be locked when it is not waited for any more.
                self.unlock_seat(order[0], token).await;
                return Err(error);
            }
        };
        let second = match self.lock_seat(order[1], token, going(order[1])).await {
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
                    outcome: &self.when_late([from, to], (&source, flags), token, outcome),
                };
                self.rename_found(what, flags == NOREPLACE, permit).await
            }
        };
        self.unlock_seat(order[1], token).await;
        self.unlock_seat(order[0], token).await;
        done
    }

    /// When it cannot be known in time how a rename ends, names of a file are free for others,
    /// for its links are counted; those of a directory, or two that are exchanged, nobody waits
    /// for.
    fn when_late(
        &self,
        names: [&Seat; 2],
        (source, flags): (&Child, u32),
        token: Token,
        outcome: &Outcome,
    ) -> Outcome {
        let keys = names.map(|seat| (seat.dir, seat.name.clone()));
        let this = self.clone();
        if source.kind == FileType::Dir || flags == EXCHANGE {
            let number = token.number;
            return outcome.late(move || {
                for key in &keys {
                    this.inner.names.stick(key);
                }
                let this = this.clone();
                this.clone().spawn(async move {
                    this.owe(Rank(0), unlock_moves(number)).await;
                });
            });
        }
        let [from, to] = names.map(Clone::clone);
        outcome.late(move || {
            let (this, from, to) = (this.clone(), from.clone(), to.clone());
            this.clone().spawn(async move {
                // In this order: who finds the new name free may take it away again.
                this.drop_seat(&from, token, true).await;
                this.unlock_seat(&to, token).await;
            });
        })
    }

    /// Does the second steps of renames that a lost server had begun here.
    pub(super) fn end_moves_of(&self, rank: Rank) {
        let begun: Vec<(Token, Moving)> = {
            let mut moving = self.inner.moves_of_others.moving.borrow_mut();
            let its = moving.iter_mut();
            let its = its.filter(|(token, moving)| token.rank == rank && !moving.ending);
            its.map(|(token, moving)| {
                moving.ending = true;
                (*token, moving.clone())
            })
            .collect()
        };
        for (token, moving) in begun {
            let Moving {
                from, child, then, ..
            } = moving;
            let assign = peer::Assign {
                dir: from.0,
                name: from.1,
                token: self.token().number,
                was: Some(child),
                from: None,
                to: None,
                child: then,
            };
            let home = self.home_of(assign.dir, &assign.name);
            let this = self.clone();
            self.spawn(async move {
                if let Err(error) = this.surely(home, assign).await {
                    tracing::debug!(?child, %error, "the second step of a rename");
                }
                // Until now the old name's home may ask.
                this.inner
                    .moves_of_others
                    .moving
                    .borrow_mut()
                    .remove(&token);
            });
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
        let change = (what.target, Some(what.source));
        match self.try_assign(what, what.to, change, Step::Only).await {
            Some(Ok(())) => {}
            Some(Err(error)) => {
                self.owe(ino.rank(), Debt::Link(ino)).await;
                return Err(error);
            }
            // The file keeps a link too many, perhaps: one too few could lose it.
            None => return Err(FsError::Unreachable),
        }
        if let Some(target) = what.target {
            let ino = target.ino;
            self.owe(ino.rank(), Debt::Link(ino)).await;
        }
        // If that name is another's by now, the file keeps both that it has got.
        self.assign(what, what.from, (Some(what.source), None), Step::Last)
            .await?;
        self.owe(ino.rank(), Debt::Link(ino)).await;
        Ok(())
    }

    /// A directory says where it will be before it is there: so no two moves make a loop, though
    /// the permit is given back before the end of a move is known. And again at the end, for
    /// an entry that its own home takes away says that it is nowhere.
    async fn replace_by_dir(&self, what: &Renaming<'_>) -> Result<(), FsError> {
        let is_file = |target: Child| target.kind != FileType::Dir;
        if what.target.is_some_and(is_file) {
            return Err(FsError::NotADirectory);
        }
        let source = what.source;
        let mut done = self.tell_moved(source, what.to).await;
        if done.is_ok() {
            let put = self.assign(
                what,
                what.to,
                (what.target, Some(source)),
                Step::First(None),
            );
            done = put.await;
        }
        let at = match done {
            Ok(()) => what.to,
            Err(_) => what.from,
        };
        if done.is_ok() {
            let taken = self.assign(what, what.from, (Some(source), None), Step::Only);
            done = taken.await;
        }
        self.owe(source.ino.rank(), Debt::Moved(moved(source, at)))
            .await;
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
            done = self
                .assign(what, what.to, (is, source), Step::First(is))
                .await;
        }
        if done.is_ok() {
            done = self.assign(what, what.from, (source, is), Step::Only).await;
            if done.is_err() {
                // As it was, if nobody has the name by now.
                self.assign(what, what.to, (source, is), Step::Only).await?;
            }
        }
        let at = match done {
            Ok(()) => [what.to, what.from],
            Err(_) => [what.from, what.to],
        };
        for (child, seat) in [what.source, target].into_iter().zip(at) {
            self.owe(child.ino.rank(), Debt::Moved(moved(child, seat)))
                .await;
        }
        done
    }

    /// The inode's home dates the change, and remembers where a directory is.
    async fn tell_moved(&self, child: Child, at: &Seat) -> Result<(), FsError> {
        self.forget_moved(child.ino);
        self.call(child.ino.rank(), moved(child, at)).await
    }

    async fn lock_seat(
        &self,
        seat: &Seat,
        token: Token,
        to: Option<peer::Destination>,
    ) -> Result<Option<Child>, FsError> {
        let lock = peer::LockName {
            dir: seat.dir,
            name: seat.name.clone(),
            token: token.number,
            to,
        };
        self.call(seat.home, lock).await
    }

    async fn unlock_seat(&self, seat: &Seat, token: Token) {
        self.drop_seat(seat, token, false).await;
    }

    async fn drop_seat(&self, seat: &Seat, token: Token, goes_on: bool) {
        let unlock = peer::UnlockName {
            dir: seat.dir,
            name: seat.name.clone(),
            token: token.number,
            goes_on,
        };
        self.owe(seat.home, Debt::Unlock(unlock)).await;
    }

    /// Lets a locked name that named `was` name `child`.
    async fn assign(
        &self,
        what: &Renaming<'_>,
        seat: &Seat,
        change: (Option<Child>, Option<Child>),
        step: Step,
    ) -> Result<(), FsError> {
        let assigned = self.try_assign(what, seat, change, step).await;
        assigned.unwrap_or(Err(FsError::Unreachable))
    }

    /// As [`Cluster::assign`]. A home that was started anew has perhaps acted, and locks the name
    /// no more: what the name is says which, unless others changed it (`None`).
    async fn try_assign(
        &self,
        what: &Renaming<'_>,
        seat: &Seat,
        (was, child): (Option<Child>, Option<Child>),
        step: Step,
    ) -> Option<Result<(), FsError>> {
        let from = match step {
            Step::Only | Step::Last => None,
            Step::First(then) => Some(peer::Origin {
                dir: what.from.dir,
                name: what.from.name.clone(),
                then,
            }),
        };
        let to = matches!(step, Step::Last).then(|| peer::Destination {
            dir: what.to.dir,
            name: what.to.name.clone(),
            exchange: false,
        });
        let assign = peer::Assign {
            dir: seat.dir,
            name: seat.name.clone(),
            token: what.token.number,
            was,
            from,
            to,
            child,
        };
        loop {
            let told = self.see_through(seat.home, assign.clone(), what.outcome);
            if let Some(told) = told.await {
                return Some(told);
            }
            let found = self.look(seat).await.ok()?;
            // Who else took a file's name away took its link away, too.
            let may_be_others = child.is_none() && was.is_some_and(|was| was.kind != FileType::Dir);
            if found == child && !may_be_others {
                return Some(Ok(()));
            }
            if found != was {
                return None;
            }
        }
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
        let moves = &self.inner.moves_of_others;
        let going_to = moves.going.borrow().get(&key).map(|(_, to)| to.clone());
        let asked = op.to.as_ref().filter(|to| !to.exchange);
        let asked = asked.map(|to| (to.dir, to.name.clone()));
        // Who asks for the same as before wants the name gone, too.
        if asked.is_none() || asked != going_to {
            self.have_name(&key);
        }
        let found = self.node(|node| node.find_child(key.0, &key.1));
        match (&found, op.to) {
            (Ok(Some(child)), Some(to)) if to.exchange || child.kind == FileType::Dir => {
                moves.leaving.borrow_mut().insert(token, (key, to));
            }
            (Ok(Some(_)), Some(to)) => {
                let going = (token, (to.dir, to.name));
                moves.going.borrow_mut().insert(key, going);
            }
            (Ok(_), _) => {}
            (Err(_), _) => drop(self.inner.names.unlock(&key, token)),
        }
        found
    }

    /// Somebody has locked a name and may rely on it: a rename whose lock of it was dropped does
    /// not take it any more.
    pub(super) fn have_name(&self, key: &Name) {
        let moves = &self.inner.moves_of_others;
        if let Some((token, _)) = moves.going.borrow_mut().remove(key) {
            moves.ended.borrow_mut().insert(token);
        }
    }

    /// A rename does not take an old name, or has.
    fn end_going(&self, key: &Name, token: Token) {
        let mut going = self.inner.moves_of_others.going.borrow_mut();
        if going.get(key).is_some_and(|(by, _)| *by == token) {
            going.remove(key);
        }
    }

    /// Drops the lock of a name that a rename had.
    pub(super) fn unlock_name_of(&self, key: &Name, token: Token, goes_on: bool) {
        let moves = &self.inner.moves_of_others;
        moves.moving.borrow_mut().remove(&token);
        moves.leaving.borrow_mut().remove(&token);
        if !goes_on {
            self.end_going(key, token);
        }
        self.inner.names.unlock(key, token);
    }

    /// A server is lost, or has begun a session: what it had locked is free, once it is known what
    /// came of the renames that it led.
    pub(super) fn drop_names_of(&self, rank: Rank) {
        let left: Vec<(Token, (Name, peer::Destination))> = {
            let mut leaving = self.inner.moves_of_others.leaving.borrow_mut();
            let its: Vec<Token> = leaving.keys().filter(|t| t.rank == rank).copied().collect();
            its.iter()
                .filter_map(|token| Some((*token, leaving.remove(token)?)))
                .collect()
        };
        for (token, (key, to)) in left {
            let own = self.token();
            if self.inner.names.lend(&key, token, own) {
                let this = self.clone();
                self.spawn(async move {
                    let ended = this.in_time(this.end_leaving(&key, &to, token)).await;
                    if let Err(error) = ended {
                        tracing::warn!(?key, %error, "it is not known what came of a rename");
                    }
                    this.inner.names.give_back(&key, own);
                });
            }
        }
        self.inner.names.drop_rank(rank);
    }

    /// Does the second step of a rename, if the first was done.
    async fn end_leaving(
        &self,
        key: &Name,
        to: &peer::Destination,
        token: Token,
    ) -> Result<(), FsError> {
        let home = self.home_of(to.dir, &to.name);
        let end = peer::EndMove {
            leader: token.rank.0,
            token: token.number,
        };
        match self.surely(home, end).await? {
            Some((child, then)) => self.change_name(key, Some(child), then).await,
            None => Ok(()),
        }
    }

    /// See [`peer::EndMove`].
    pub(super) async fn end_move(&self, op: peer::EndMove) -> Option<(Child, Option<Child>)> {
        let token = Token {
            rank: Rank(op.leader),
            number: op.token,
        };
        let moves = &self.inner.moves_of_others;
        let _assigned = moves.assigning.hold(token, self.token()).await;
        let moving = moves.moving.borrow().get(&token).cloned();
        if moving.is_none() {
            moves.ended.borrow_mut().insert(token);
        }
        moving.map(|moving| (moving.child, moving.then))
    }

    /// A server was started anew, and numbers its renames from the beginning.
    pub(super) fn forget_ended_moves(&self, rank: Rank) {
        let moves = &self.inner.moves_of_others;
        moves.ended.borrow_mut().retain(|token| token.rank != rank);
        let mut going = moves.going.borrow_mut();
        going.retain(|_, (token, _)| token.rank != rank);
    }

    pub(super) async fn assign_name(&self, leader: Rank, op: peer::Assign) -> Result<(), FsError> {
        let token = Token {
            rank: leader,
            number: op.token,
        };
        let key = (op.dir, op.name.clone());
        let moves = &self.inner.moves_of_others;
        let _assigning = moves.assigning.hold(token, self.token()).await;
        if op.from.is_some() && moves.ended.borrow().contains(&token) {
            return Err(FsError::Unreachable);
        }
        let own = self.token();
        if self.inner.names.lend(&key, token, own) {
            // Whatever becomes of the leader.
            let done = self.assign_locked(&key, &op, token).await;
            self.inner.names.give_back(&key, own);
            done?;
        } else if let Some(to) = &op.to {
            self.take_late(&key, &op, to, token).await?;
        } else {
            // The leader seemed lost, and its lock was dropped.
            let _name = self.name_lock(&key).await?;
            self.assign_locked(&key, &op, token).await?;
        }
        if self.is_given_up(leader) {
            self.end_moves_of(leader);
        }
        Ok(())
    }

    /// Takes the old name of a file whose lock was dropped. The new one is locked meanwhile, as
    /// renames lock names.
    async fn take_late(
        &self,
        key: &Name,
        op: &peer::Assign,
        to: &peer::Destination,
        token: Token,
    ) -> Result<(), FsError> {
        let old = self.seat(key.0, key.1.clone());
        let new = self.seat(to.dir, to.name.clone());
        let own = self.token();
        let lock_new = || self.lock_seat(&new, own, None);
        let (name, named) = if new.key() < old.key() {
            let named = lock_new().await;
            (self.hold_name(key).await, named)
        } else {
            (self.hold_name(key).await, lock_new().await)
        };
        let is_others = self.inner.moves_of_others.ended.borrow_mut().remove(&token);
        let done = match name {
            Ok(_) if named == Ok(op.was) && !is_others => self.assign_locked(key, op, token).await,
            _ => Err(FsError::Unreachable),
        };
        drop(name);
        self.unlock_seat(&new, own).await;
        done
    }

    async fn assign_locked(
        &self,
        key: &Name,
        op: &peer::Assign,
        token: Token,
    ) -> Result<(), FsError> {
        if let (Some(from), Some(was)) = (&op.from, op.was) {
            let is_there = self.node(|node| node.find_child(key.0, &key.1))? == op.was;
            if is_there && from.then.is_none() && was.kind == FileType::Dir {
                self.bury_replaced(was.ino).await?;
            }
        }
        self.change_name(key, op.was, op.child).await?;
        self.end_going(key, token);
        let mut moving = self.inner.moves_of_others.moving.borrow_mut();
        match (&op.from, op.child) {
            (Some(from), Some(child)) => {
                let step = Moving {
                    from: (from.dir, from.name.clone()),
                    child,
                    then: from.then,
                    ending: false,
                };
                moving.insert(token, step);
            }
            // The second step, or the first one undone.
            _ => drop(moving.remove(&token)),
        }
        Ok(())
    }

    /// Here, so that whoever leads: if the directory is buried, its name goes.
    async fn bury_replaced(&self, dir: Ino) -> Result<(), FsError> {
        if dir.rank() != self.rank() {
            self.begin_session(dir.rank()).await?;
        }
        match self.surely(dir.rank(), peer::Bury { dir }).await {
            Ok(()) | Err(FsError::Stale) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Lets a name of this server that the caller has locked, and that names `was`, name `child`.
    async fn change_name(
        &self,
        (dir, name): &Name,
        was: Option<Child>,
        child: Option<Child>,
    ) -> Result<(), FsError> {
        self.recall_entry(*dir, name).await;
        let found = self.node(|node| node.find_child(*dir, name))?;
        let is_dir = |child: Child| child.kind == FileType::Dir;
        if found == child && (found.is_some() || was.is_some_and(is_dir)) {
            return Ok(()); // another who saw it through
        }
        if found != was {
            // It was changed when the lock had been dropped; nobody knows what that comes to.
            return Err(FsError::Unreachable);
        }
        match (found, child) {
            (None, None) => Ok(()),
            (None, Some(child)) => self.enter(*dir, name, child).await,
            (Some(_), None) => self.node(|node| node.withdraw(*dir, name)).map(drop),
            (Some(_), Some(child)) => self.node(|node| node.substitute(*dir, name, child)),
        }
    }
}

/// Whether a change of a name has to be followed by another one.
#[derive(Clone, Copy)]
enum Step {
    /// No; or it is that one.
    Only,
    /// The old name must name this afterwards.
    First(Option<Child>),
    /// Of a file: its old name goes.
    Last,
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

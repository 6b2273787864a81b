//! Renames at the homes of their names: the state that the homes keep of a rename with two steps,
//! so that it is done completely or not at all, even if its leader or a home is lost or killed.
//!
//! A directory has only one name, and each of two exchanged names names only one thing. So both
//! homes record the renames of these, in their journals too:
//!
//! ```text
//!                            old name's home              new name's home
//!  LockName                  Locked, with the new name    (Locked, if they are exchanged)
//!  Assign, the first step                                 Changing; bury; the name; Changing, done
//!  Leave, the second one     the name, Unlocked
//!  UnlockName                                             ChangeOver
//! ```
//!
//! If the leader is lost, or a home comes back, each home finds out the outcome for itself. The old
//! name's home asks the new name's home if the first step was done ([`peer::EndMove`]); after that
//! answer, a step that was not done is never done. The old name's home then does the second step,
//! or tells where the directory is. The new name's home requests the second step ([`peer::Leave`]);
//! it is done only once, because the old name is locked until then. A name stays locked until its
//! home knows the outcome; requests that wait for it fail when that takes too long.
//!
//! A directory's new location is recorded before its name is there. So the step that takes the old
//! name away does not change the recorded location.
//!
//! The leader alone does both steps for a file, and repeats a request if the home was restarted
//! meanwhile. So each home records that it has done a step, in its journal too, until the leader
//! says that the rename has ended. By then others may have changed the name; a second assignment or
//! removal would cost them a link.
//!
//! Removing a directory is such a change without a second step: its home buries it, which cannot be
//! undone, before the name goes.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;

use futures_util::future::{select, Either};
use weir_core::journal::{self, Item, LockedName, NameChange};
use weir_core::names::FileType;
use weir_core::proto::peer::{self, Left, PeerOperation};
use weir_core::proto::{Child, FsError};
use weir_core::types::{Ino, Rank};

use crate::cluster::abilities::NameTables;
use crate::cluster::keyed::{Keyed, Token};
use crate::cluster::names::{InstanceNames, NameKey, NamesNeeds};
use crate::cluster::peers::debts::Debt;
use crate::node::Visit;

/// The renames of other servers that concern names of this one.
#[derive(Debug, Default)]
pub struct RenameSteps {
    /// Names that renames of two steps have locked and not changed yet.
    locked: RefCell<BTreeMap<NameKey, LockedName>>,
    /// Old names of files, each with the rename that is to take it and the new name. Their locks
    /// may be dropped.
    going: RefCell<BTreeMap<NameKey, (Token, NameKey)>>,
    /// Renames that were in `going`, whose old name another request has locked since.
    overtaken: RefCell<BTreeSet<Token>>,
    /// Numbers of the renames that this server leads.
    led: RefCell<BTreeSet<u64>>,
    /// Changes of names that have an action before or after them, and finished steps of renames of
    /// files, which their leaders may request again.
    changes: RefCell<BTreeMap<Token, NameChange>>,
    /// Changes whose second step is being done here.
    ending: RefCell<BTreeSet<Token>>,
    /// Renames that must not assign a name any more.
    called_off: RefCell<BTreeSet<Token>>,
    /// Renames of which a name is being changed.
    changing: Keyed<Token>,
}

fn token_of(locked: &LockedName) -> Token {
    Token {
        rank: locked.leader,
        number: locked.token,
    }
}

fn is_dir(child: Child) -> bool {
    child.kind == FileType::Dir
}

fn change_of(op: peer::Assign, done: bool) -> NameChange {
    NameChange {
        dir: op.dir,
        name: op.name,
        was: op.was,
        child: op.child,
        from: op.from,
        done,
    }
}

/// Returns true for a finished step of a rename of a file.
fn is_step(change: &NameChange) -> bool {
    change.done && change.from.is_none()
}

impl RenameSteps {
    /// Restores the state from the journal.
    pub(super) fn take_up(&self, state: &mut journal::Cluster) {
        let token = |(rank, number)| Token { rank, number };
        let locked = std::mem::take(&mut state.locked).into_iter();
        let locked = locked.map(|((dir, name), locked)| (NameKey::new(dir, name), locked));
        self.locked.replace(locked.collect());
        let changes = std::mem::take(&mut state.changes).into_iter();
        let changes = changes.map(|(whose, change)| (token(whose), change));
        self.changes.replace(changes.collect());
        let called_off = std::mem::take(&mut state.called_off).into_iter();
        self.called_off.replace(called_off.map(token).collect());
    }

    /// Visits the state that the journal keeps.
    pub(super) fn show_steps(&self, visit: Visit<'_>) {
        for (key, locked) in &*self.locked.borrow() {
            visit(&Item::NameLocked(key.dir, &key.name, locked.clone()));
        }
        for (token, change) in &*self.changes.borrow() {
            visit(&Item::NameChanging(
                token.rank,
                token.number,
                change.clone(),
            ));
        }
        for token in &*self.called_off.borrow() {
            visit(&Item::RenameCalledOff(token.rank, token.number));
        }
    }
}

impl<S: NamesNeeds> InstanceNames<S> {
    pub(in crate::cluster) async fn lock_name(
        &self,
        from: Rank,
        op: peer::LockName,
    ) -> Result<Option<Child>, FsError> {
        let token = Token {
            rank: from,
            number: op.token,
        };
        let key = NameKey::new(op.dir, op.name);
        let locked = self.state().name_locks.lock(key.clone(), token);
        let locked = async { locked.await.then_some(()).ok_or(FsError::Unreachable) };
        self.server.peers().in_time(locked).await?;
        if let Err(error) = self.check_home(&key).await {
            self.state().name_locks.unlock(&key, token);
            return Err(error);
        }
        let moves = &self.state().renames;
        let going_to = moves.going.borrow().get(&key).map(|(_, to)| to.clone());
        let asked = op.to.as_ref().filter(|_| !op.swaps);
        let asked = asked.map(|to| NameKey::new(to.dir, to.name.clone()));
        // A request with the same new name wants the old name gone, too.
        if asked.is_none() || asked != going_to {
            self.have_name(&key);
        }
        if op.to.is_some() {
            // A server that keeps the old name must not show it any more once the new one is there.
            self.recall_entry(&key).await;
        }
        // A new session of the leader's server has freed its locks. Nobody would find the record of a lock that is not
        // held.
        if !self.state().name_locks.has(&key, token) {
            return Err(FsError::Unreachable);
        }
        let found = self.server.node(|node| {
            // Programs of this node look at the tables, not at the locks.
            node.names()
                .set_renaming(key.dir, &key.name, op.to.is_some());
            node.names().find_child(key.dir, &key.name)
        });
        match (&found, op.to) {
            (Ok(Some(child)), to) if op.swaps || (to.is_some() && is_dir(*child)) => {
                let locked = LockedName {
                    leader: from,
                    token: op.token,
                    child: *child,
                    to,
                };
                self.server
                    .note(&Item::NameLocked(key.dir, &key.name, locked.clone()));
                moves.locked.borrow_mut().insert(key, locked);
            }
            (Ok(Some(_)), Some(to)) => {
                let going = (token, NameKey::new(to.dir, to.name));
                moves.going.borrow_mut().insert(key, going);
            }
            (Ok(_), _) => {}
            (Err(_), _) => drop(self.state().name_locks.unlock(&key, token)),
        }
        found
    }

    /// Notes that a request has locked a name and may rely on it: a rename whose lock of the name
    /// was dropped does not take it any more.
    pub(super) fn have_name(&self, key: &NameKey) {
        let moves = &self.state().renames;
        if let Some((token, _)) = moves.going.borrow_mut().remove(key) {
            moves.overtaken.borrow_mut().insert(token);
        }
    }

    /// Returns true if a rename is to take an old name.
    pub(super) fn is_going(&self, key: &NameKey) -> bool {
        self.state().renames.going.borrow().contains_key(key)
    }

    /// Forgets that a rename is to take an old name: it has done so, or never will.
    fn end_going(&self, key: &NameKey, token: Token) {
        let mut going = self.state().renames.going.borrow_mut();
        if going.get(key).is_some_and(|(by, _)| *by == token) {
            going.remove(key);
        }
    }

    /// Returns true if a rename has something left to do with an unlocked name of a directory.
    pub(super) fn has_loose_moves(&self, dir: Ino) -> bool {
        let moves = &self.state().renames;
        let loose = |name: &NameKey| name.dir == dir && !self.state().name_locks.is_held(name);
        let changes = moves.changes.borrow();
        let mut changes = changes.values().filter(|change| !change.done);
        moves.locked.borrow().keys().any(loose)
            || moves.going.borrow().keys().any(loose)
            || changes.any(|change| loose(&NameKey::new(change.dir, change.name.clone())))
    }

    /// The lock record of a rename for a name that it has not changed yet.
    fn locked_by(&self, key: &NameKey, token: Token) -> Option<LockedName> {
        let locked = self.state().renames.locked.borrow();
        let its = locked.get(key).filter(|locked| token_of(locked) == token);
        its.cloned()
    }

    /// Forgets that the rename is to change the name.
    fn forget_locked(&self, key: &NameKey, token: Token) {
        if self.locked_by(key, token).is_some() {
            let mut locked = self.state().renames.locked.borrow_mut();
            locked.remove(key);
            self.server.note(&Item::NameUnlocked(key.dir, &key.name));
        }
    }

    /// Gives a server the permit for moving directories.
    pub(in crate::cluster) async fn lock_dir_moves(
        &self,
        from: Rank,
        number: u64,
    ) -> Result<(), FsError> {
        let token = Token { rank: from, number };
        let locked = self.state().dir_moves.lock((), token);
        let locked = async { locked.await.then_some(()).ok_or(FsError::Unreachable) };
        self.server.peers().in_time(locked).await
    }

    /// Takes back the permit for moving directories.
    pub(in crate::cluster) fn unlock_dir_moves(&self, from: Rank, number: u64) {
        let token = Token { rank: from, number };
        self.state().dir_moves.unlock(&(), token);
    }

    /// Drops a rename's lock of a name. If the leader does not say how the rename ended, this server finds that out
    /// first.
    pub(in crate::cluster) fn unlock_name_of(&self, key: &NameKey, token: Token, left: Left) {
        match left {
            Left::Nothing => {
                self.end_change(token);
                self.forget_locked(key, token);
                self.end_going(key, token);
            }
            Left::Some | Left::Unknown => {
                self.end_locked(key, token, left == Left::Some);
                self.finish_soon(token);
            }
            Left::Later => {}
        }
        self.state().name_locks.unlock(key, token);
    }

    /// Frees the names and the permit that a server had locked, because it is lost or has begun a session. First finds
    /// out the outcome of the renames that it led.
    pub(in crate::cluster) fn drop_names_of(&self, rank: Rank) {
        let moves = &self.state().renames;
        let locked: Vec<(NameKey, Token)> = {
            let locked = moves.locked.borrow();
            let its = locked.iter().filter(|(_, locked)| locked.leader == rank);
            its.map(|(key, locked)| (key.clone(), token_of(locked)))
                .collect()
        };
        for (key, token) in locked {
            self.end_locked(&key, token, false);
        }
        let changes: Vec<Token> = {
            let changes = moves.changes.borrow();
            changes.keys().filter(|t| t.rank == rank).copied().collect()
        };
        for token in changes {
            self.finish_soon(token);
        }
        self.state().name_locks.drop_rank(rank);
        self.state().dir_moves.drop_rank(rank);
    }

    /// Continues the renames that were under way before a restart. Their names are locked from now
    /// on.
    pub(in crate::cluster) fn go_on_with_moves(&self) {
        let moves = &self.state().renames;
        let locked = moves.locked.borrow().clone();
        for (key, locked) in locked {
            let own = self.server.peers().token();
            self.state().name_locks.take_free(key.clone(), own);
            self.server
                .node(|node| node.names().set_renaming(key.dir, &key.name, true));
            self.find_out(key, locked, own, false);
        }
        let changes = moves.changes.borrow().clone();
        for (token, change) in changes {
            let key = NameKey::new(change.dir, change.name);
            let own = self.server.peers().token();
            if change.done {
                self.finish_soon(token);
                continue;
            }
            // One of two exchanged names is locked already.
            self.state().name_locks.take_free(key.clone(), own);
            let this = self.clone();
            self.server.peers().spawn(async move {
                let made = this.sticking(&key, this.make_change(token)).await;
                if let Err(error) = made {
                    tracing::warn!(?key, %error, "a change of a name failed");
                    this.end_change(token);
                }
                this.state().name_locks.unlock(&key, own);
                this.finish_soon(token);
            });
        }
    }

    /// Finds out the outcome for a locked name, which stays locked until then.
    fn end_locked(&self, key: &NameKey, token: Token, over: bool) {
        let own = self.server.peers().token();
        let Some(locked) = self.locked_by(key, token) else {
            return;
        };
        // If the lock is lent, the task that it is lent to finds out the outcome.
        if self.state().name_locks.lend(key, token, own) {
            self.find_out(key.clone(), locked, own, over);
        }
    }

    /// Like [`InstanceNames::end_locked`], for a name that `own` has locked.
    fn find_out(&self, key: NameKey, locked: LockedName, own: Token, over: bool) {
        let this = self.clone();
        self.server.peers().spawn(async move {
            let ended = this.ended(&key, &locked, over);
            if let Err(error) = this.sticking(&key, ended).await {
                tracing::error!(?key, %error, "the outcome of a rename cannot be found out");
            }
            this.state().name_locks.give_back(&key, own);
        });
    }

    /// Runs `act`. If it takes too long, requests stop waiting for the locked name.
    async fn sticking<T>(&self, key: &NameKey, act: impl Future<Output = T>) -> T {
        let late = Box::pin(
            self.server
                .peers()
                .until(self.server.peers().next_deadline()),
        );
        match select(Box::pin(act), late).await {
            Either::Left((done, _)) => done,
            Either::Right(((), act)) => {
                tracing::warn!(?key, "the outcome of a rename is not known yet");
                self.state().name_locks.stick(key);
                act.await
            }
        }
    }

    async fn ended(&self, key: &NameKey, locked: &LockedName, over: bool) -> Result<(), FsError> {
        let token = token_of(locked);
        let home = match &locked.to {
            Some(to) => to.home,
            None => self.server.rank(),
        };
        let end = peer::EndMove {
            leader: token.rank.0,
            token: token.number,
            over,
        };
        if let Some((child, then)) = self.at_last(home, end).await? {
            // The new one of two exchanged names is final already.
            return match locked.to {
                Some(_) => self.leave_name(key, token, child, then).await,
                None => Ok(()),
            };
        }
        // The leader may have said by now that there was nothing to do.
        if self.locked_by(key, token).is_some() {
            let stayed = peer::Stayed {
                ino: locked.child.ino,
                parent: key.dir,
                name: key.name.clone(),
                leader: token.rank.0,
                token: token.number,
                over,
            };
            let told = self.at_last(stayed.ino.rank(), stayed).await;
            self.forget_locked(key, token);
            // A directory that is gone has no location.
            return told.or_else(|error| match error {
                FsError::Stale => Ok(()),
                error => Err(error),
            });
        }
        Ok(())
    }

    /// Asks for an operation that may be done twice, and repeats it each time the server is
    /// restarted.
    async fn at_last<O>(&self, to: Rank, op: O) -> Result<O::Reply, FsError>
    where
        O: PeerOperation + Clone + 'static,
    {
        loop {
            if let Some(told) = self.server.surely_told(to, op.clone()).await {
                return told;
            }
        }
    }

    /// See [`peer::EndMove`].
    pub(in crate::cluster) async fn end_move(
        &self,
        op: peer::EndMove,
    ) -> Result<Option<(Child, Option<Child>)>, FsError> {
        let token = Token {
            rank: Rank(op.leader),
            number: op.token,
        };
        let moves = &self.state().renames;
        let _changed = moves
            .changing
            .hold(token, self.server.peers().token())
            .await;
        let made = self.make_change_held(token).await;
        if let Err(error) = made {
            tracing::warn!(?token, %error, "the first step of a rename failed");
            self.end_change(token);
        }
        let change = moves.changes.borrow().get(&token).cloned();
        if let Some((child, from)) = change.and_then(|change| change.child.zip(change.from)) {
            return Ok(Some((child, from.then)));
        }
        if !op.over {
            self.call_off(token);
        }
        Ok(None)
    }

    /// Refuses every later request of that rename.
    fn call_off(&self, token: Token) {
        let mut called_off = self.state().renames.called_off.borrow_mut();
        if called_off.insert(token) {
            self.server
                .note(&Item::RenameCalledOff(token.rank, token.number));
        }
    }

    fn is_called_off(&self, token: Token) -> bool {
        let called_off = self.state().renames.called_off.borrow();
        called_off.contains(&token)
    }

    /// See [`peer::Moved`].
    pub(in crate::cluster) fn moves_to(
        &self,
        leader: Rank,
        op: peer::Moved,
    ) -> Result<(), FsError> {
        let token = Token {
            rank: leader,
            number: op.token,
        };
        if self.is_called_off(token) {
            return Err(FsError::Unreachable);
        }
        self.note_moved(op.ino, op.parent, op.name)
    }

    /// See [`peer::Stayed`].
    pub(in crate::cluster) fn stayed(&self, op: peer::Stayed) -> Result<(), FsError> {
        if !op.over {
            self.call_off(Token {
                rank: Rank(op.leader),
                number: op.token,
            });
        }
        self.note_moved(op.ino, op.parent, op.name)
    }

    /// Forgets the renames of a server that was restarted: it leads none of them any more.
    pub(in crate::cluster) fn forget_called_off(&self, rank: Rank) {
        let moves = &self.state().renames;
        moves.overtaken.borrow_mut().retain(|t| t.rank != rank);
        moves.going.borrow_mut().retain(|_, (t, _)| t.rank != rank);
        let mut called_off = moves.called_off.borrow_mut();
        let before = called_off.len();
        called_off.retain(|token| token.rank != rank);
        if called_off.len() < before {
            self.server.note(&Item::CalledOffForgotten(rank));
        }
    }

    /// Runs `act`, a rename that this server leads.
    pub(super) async fn lead<T>(&self, token: Token, act: impl Future<Output = T>) -> T {
        let led = &self.state().renames.led;
        led.borrow_mut().insert(token.number);
        let done = act.await;
        led.borrow_mut().remove(&token.number);
        done
    }

    /// The number below which this server leads no rename.
    pub(in crate::cluster) fn oldest_rename(&self) -> u64 {
        let led = self.state().renames.led.borrow();
        led.first().copied().unwrap_or(u64::MAX)
    }

    /// Records that a step of a file's rename was done. A rename that this server leads needs no record: it ends with
    /// the server.
    fn keep_step(&self, token: Token, op: peer::Assign) {
        if token.rank != self.server.rank() {
            self.begin_change(token, change_of(op, true));
        }
    }

    /// Returns true if that step of a file's rename was done.
    fn has_step(&self, token: Token, op: &peer::Assign) -> bool {
        let changes = self.state().renames.changes.borrow();
        changes.get(&token).is_some_and(|step| {
            is_step(step) && (step.dir, &step.name, step.child) == (op.dir, &op.name, op.child)
        })
    }

    /// Forgets steps of renames below `number`: their leader says that they have ended.
    pub(in crate::cluster) fn forget_steps(&self, leader: Rank, number: u64) {
        let over: Vec<Token> = {
            let changes = self.state().renames.changes.borrow();
            let its = changes.iter().filter(|(token, step)| {
                token.rank == leader && token.number < number && is_step(step)
            });
            its.map(|(token, _)| *token).collect()
        };
        for token in over {
            self.end_change(token);
        }
    }

    pub(in crate::cluster) async fn assign_name(
        &self,
        leader: Rank,
        op: peer::Assign,
    ) -> Result<(), FsError> {
        let token = Token {
            rank: leader,
            number: op.token,
        };
        let key = NameKey::new(op.dir, op.name.clone());
        let moves = &self.state().renames;
        let _changing = moves
            .changing
            .hold(token, self.server.peers().token())
            .await;
        if op.from.is_some() && self.is_called_off(token) {
            return Err(FsError::Unreachable);
        }
        if op.from.is_none() && self.has_step(token, &op) {
            return Ok(());
        }
        let own = self.server.peers().token();
        if !self.state().name_locks.lend(&key, token, own) {
            // The leader seemed lost, and its lock was dropped. The old name's home may be told at
            // any moment that the rename does not happen.
            if op.from.is_some() {
                return Err(FsError::Unreachable);
            }
            if let Some(to) = op.to.clone() {
                return self.take_late(&key, op, to, token).await;
            }
            let _name = self.name_lock(&key).await?;
            return self.assign_locked(&key, op, token).await;
        }
        // This is done even if the leader is lost.
        let done = self.assign_locked(&key, op, token).await;
        let locked = self.locked_by(&key, token);
        if self.state().name_locks.is_lent(&key, own) {
            self.state().name_locks.give_back(&key, own);
        } else {
            self.finish_soon(token);
            match locked {
                Some(locked) => self.find_out(key, locked, own, false),
                None => self.state().name_locks.give_back(&key, own),
            }
        }
        done
    }

    /// Takes the old name of a file for a rename whose lock of it was dropped. The new name is locked meanwhile, as in
    /// any rename.
    async fn take_late(
        &self,
        key: &NameKey,
        op: peer::Assign,
        to: peer::Destination,
        token: Token,
    ) -> Result<(), FsError> {
        let new = NameKey::new(to.dir, to.name);
        let (own, was) = (self.server.peers().token(), op.was);
        let lock_new = || {
            let NameKey { dir, name } = new.clone();
            let lock = peer::LockName {
                dir,
                name,
                token: own.number,
                to: None,
                swaps: false,
            };
            self.server.call(to.home, lock)
        };
        let lock_both = async || {
            if new < *key {
                let named = lock_new().await;
                (self.hold_name(key).await, named)
            } else {
                (self.hold_name(key).await, lock_new().await)
            }
        };
        let (name, named) = loop {
            let (name, named) = self
                .server
                .peers()
                .by(self.server.peers().next_deadline(), lock_both())
                .await;
            if named != Err(FsError::Unreachable) {
                break (name, named);
            }
            // After a cut, this server may be reached before the new name's home; the leader waits.
            drop(name);
            self.server.peers().reached(to.home).await;
        };
        let moves = &self.state().renames;
        let is_others = moves.overtaken.borrow_mut().remove(&token);
        let done = match name {
            Ok(_) if named == Ok(was) && !is_others => self.assign_locked(key, op, token).await,
            _ => Err(FsError::Unreachable),
        };
        drop(name);
        let NameKey { dir, name } = new;
        let unlock = peer::UnlockName {
            dir,
            name,
            token: own.number,
            left: Left::Nothing,
        };
        self.server.peers().owe(to.home, Debt::Unlock(unlock)).await;
        done
    }

    async fn assign_locked(
        &self,
        key: &NameKey,
        op: peer::Assign,
        token: Token,
    ) -> Result<(), FsError> {
        if op.from.is_none() {
            self.change_name(key, op.was, op.child).await?;
            self.end_going(key, token);
            self.keep_step(token, op);
            return Ok(());
        }
        self.begin_change(token, change_of(op, false));
        let made = self.make_change_held(token).await;
        if made.is_err() {
            self.end_change(token);
        }
        made
    }

    /// Begins a change: from now on it is made, even if a server is killed.
    pub(super) fn begin_change(&self, token: Token, change: NameChange) {
        self.server.note(&Item::NameChanging(
            token.rank,
            token.number,
            change.clone(),
        ));
        let mut changes = self.state().renames.changes.borrow_mut();
        changes.insert(token, change);
    }

    /// Ends a change that has nothing left to do.
    pub(super) fn end_change(&self, token: Token) {
        let mut changes = self.state().renames.changes.borrow_mut();
        if changes.remove(&token).is_some() {
            self.server
                .note(&Item::NameChanged(token.rank, token.number));
        }
    }

    async fn make_change(&self, token: Token) -> Result<(), FsError> {
        let moves = &self.state().renames;
        let _changing = moves
            .changing
            .hold(token, self.server.peers().token())
            .await;
        self.make_change_held(token).await
    }

    /// Makes a change that has begun and is not made yet. The name is locked, by the caller or on
    /// its behalf.
    async fn make_change_held(&self, token: Token) -> Result<(), FsError> {
        let moves = &self.state().renames;
        let change = moves.changes.borrow().get(&token).cloned();
        let Some(mut change) = change.filter(|change| !change.done) else {
            return Ok(());
        };
        let key = NameKey::new(change.dir, change.name.clone());
        let then = change.from.as_ref().and_then(|from| from.then);
        if let Some(was) = change.was.filter(|was| is_dir(*was) && then.is_none()) {
            if self
                .server
                .node(|node| node.names().find_child(key.dir, &key.name))?
                == change.was
            {
                // Done here, so that the name of a buried directory goes, even if the leader is
                // lost.
                match self
                    .at_last(was.ino.rank(), peer::Bury { dir: was.ino })
                    .await
                {
                    Ok(()) | Err(FsError::Stale) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        self.change_name(&key, change.was, change.child).await?;
        // This goes into one journal record with the change.
        self.forget_locked(&key, token);
        if change.from.is_none() {
            self.end_change(token);
            return Ok(());
        }
        change.done = true;
        self.begin_change(token, change);
        Ok(())
    }

    /// Requests the second step of a rename whose leader does not say that it was done.
    fn finish_soon(&self, token: Token) {
        let moves = &self.state().renames;
        let is_open = |change: &NameChange| !is_step(change);
        let is_known = moves.changes.borrow().get(&token).is_some_and(is_open);
        if !is_known || !moves.ending.borrow_mut().insert(token) {
            return;
        }
        let this = self.clone();
        self.server.peers().spawn(async move {
            let moves = &this.state().renames;
            // Wait until the first step is done.
            drop(
                moves
                    .changing
                    .hold(token, this.server.peers().token())
                    .await,
            );
            let change = moves.changes.borrow().get(&token).cloned();
            let change = change.filter(|change| change.done);
            if let Some((was, from)) = change.and_then(|change| change.child.zip(change.from)) {
                let home = from.home;
                let leave = peer::Leave {
                    dir: from.dir,
                    name: from.name,
                    leader: token.rank.0,
                    token: token.number,
                    was,
                    then: from.then,
                };
                if let Err(error) = this.at_last(home, leave).await {
                    tracing::error!(?was, %error, "the second step of a rename failed");
                }
                this.end_change(token);
            }
            moves.ending.borrow_mut().remove(&token);
        });
    }

    /// See [`peer::Leave`].
    pub(in crate::cluster) async fn leave_old(&self, op: peer::Leave) -> Result<(), FsError> {
        let token = Token {
            rank: Rank(op.leader),
            number: op.token,
        };
        let key = NameKey::new(op.dir, op.name);
        self.leave_name(&key, token, op.was, op.then).await
    }

    /// Makes the old name refer to `then`, unless that was done.
    async fn leave_name(
        &self,
        key: &NameKey,
        token: Token,
        was: Child,
        then: Option<Child>,
    ) -> Result<(), FsError> {
        if self.locked_by(key, token).is_none() {
            return Ok(());
        }
        self.recall_entry(key).await;
        // Both homes may do this step.
        if self.locked_by(key, token).is_none() {
            return Ok(());
        }
        let found = self
            .server
            .node(|node| node.names().find_child(key.dir, &key.name))?;
        if found == Some(was) {
            self.set_name(key, was, then)?;
        }
        self.forget_locked(key, token);
        match found == Some(was) {
            true => Ok(()),
            // It must be: the name was locked all the time.
            false => Err(FsError::Io),
        }
    }

    /// Changes a name of this server from `was` to `child`. The caller has it locked.
    async fn change_name(
        &self,
        key: &NameKey,
        was: Option<Child>,
        child: Option<Child>,
    ) -> Result<(), FsError> {
        let NameKey { dir, name } = key;
        self.recall_entry(key).await;
        let found = self
            .server
            .node(|node| node.names().find_child(*dir, name))?;
        if found == child && (found.is_some() || was.is_some_and(is_dir)) {
            return Ok(()); // another task completed it
        }
        // A directory that was buried before this server was killed has taken its name along.
        let was = was.filter(|was| found.is_some() || !is_dir(*was));
        if found != was {
            // The name was changed while its lock was dropped; the outcome of that is unknown.
            return Err(FsError::Unreachable);
        }
        match (found, child) {
            (None, None) => Ok(()),
            (None, Some(child)) => self.enter(*dir, name, child).await,
            (Some(found), child) => self.set_name(key, found, child),
        }
    }

    /// Makes a name refer to `child` instead of `was`, whose new location is recorded already.
    fn set_name(&self, key: &NameKey, was: Child, child: Option<Child>) -> Result<(), FsError> {
        self.server.node(|node| {
            let own = is_dir(was) && was.ino.rank() == self.server.rank();
            let says = own.then(|| node.names().attr_of(was.ino)).transpose();
            match child {
                Some(child) => node.names().substitute(key.dir, &key.name, child)?,
                None => drop(node.names().withdraw(key.dir, &key.name)?),
            }
            match says {
                Ok(Some(attr)) => node.names().set_parent(was.ino, attr.parent),
                // A buried directory has no location.
                _ => Ok(()),
            }
        })
    }
}

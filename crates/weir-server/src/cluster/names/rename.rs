//! Renaming between servers.
//!
//! The asking server leads. It locks both names at their homes, in the order of their keys. To move
//! a directory to another parent, it also needs the one permit of rank 0, so that no two moves make
//! a loop together. Then it assigns the new name and takes the old one. Both stay locked until that
//! is done, so no server sees a mixed state.
//!
//! Once the new name may be there, the leader completes the rename, even if no client waits for it
//! any more: it asks an unreachable server again when that can be reached. If the leader's lock was
//! dropped meanwhile, a name is changed only if it is still as it was. The old name of a file is
//! taken only if no request has locked it since, because that request may rely on it, and only if
//! the new name is still the file's, because otherwise the file could lose its last name.
//!
//! A file may have two names. If the leader dies between the steps, the file has both, and both are
//! valid: links are counted before there is a name and until there is none. If a home was restarted
//! after a request, the leader repeats the request: the home knows if it has acted (`moves`).
//!
//! For a directory, and for exchanged names, the first step is done under the lock only, and both
//! homes ensure that the second one follows (`moves`). So a leader that does not know how a step
//! ended leaves it to them.

use std::cell::Cell;

use weir_core::names::FileType;
use weir_core::proto::peer::{self, Left};
use weir_core::proto::{self, Child, FsError, Served};
use weir_core::types::{Ino, Rank};

use crate::cluster::abilities::Waits;
use crate::cluster::keyed::Token;
use crate::cluster::names::history::RenameUnderWay;
use crate::cluster::names::placements::{NameHome, NameUse};
use crate::cluster::names::{InstanceNames, NameKey, NamesNeeds};
use crate::cluster::peers::debts::Debt;
use crate::cluster::peers::outcome::PendingOutcome;

const NOREPLACE: u32 = 1;
pub(super) const EXCHANGE: u32 = 2;

fn unlock_moves(token: u64) -> Debt {
    Debt::UnlockMoves(peer::UnlockMoves { token })
}

/// One of the two names, and its home. The home is resolved before the names are locked, and stays
/// valid until they are unlocked (`placements`).
#[derive(Clone)]
struct HomedName {
    home: NameHome,
    dir: Ino,
    name: Vec<u8>,
    /// True if the home refused to lock the name.
    refused: Cell<bool>,
}

impl HomedName {
    fn key(&self) -> (Ino, &[u8]) {
        (self.dir, &self.name)
    }

    fn destination(&self) -> peer::Destination {
        peer::Destination {
            home: self.home.rank,
            dir: self.dir,
            name: self.name.clone(),
        }
    }
}

impl<S: NamesNeeds> InstanceNames<S> {
    pub(in crate::cluster) fn rename_for_client(
        &self,
        op: proto::Rename,
    ) -> Served<Result<(), FsError>> {
        if let Some(renamed) = self.rename_here(&op) {
            return renamed;
        }
        self.later(|this| async move {
            let leader = this.clone();
            let act = |outcome| async move { leader.rename_to_the_end(op, outcome).await };
            this.server.peers().to_the_end(act).await
        })
    }

    /// Notes a rename of names that are all here, if it renames a directory or moves something to another one.
    pub(super) fn note_rename(
        &self,
        op: &proto::Rename,
        moved: impl Iterator<Item = Child>,
    ) -> Option<RenameUnderWay<'_>> {
        let log = &self.state().history;
        let is_dir = |child: &Child| child.kind == FileType::Dir;
        let moved: Vec<Child> = moved.filter(is_dir).collect();
        if op.parent == op.new_parent && moved.is_empty() {
            return None;
        }
        let under_way = log.begin();
        for dir in &moved {
            log.note_directory(dir.ino);
        }
        Some(under_way)
    }

    async fn rename_to_the_end(
        &self,
        op: proto::Rename,
        outcome: PendingOutcome,
    ) -> Result<(), FsError> {
        if op.flags > EXCHANGE {
            return Err(FsError::Invalid);
        }
        let (from, to) = (
            self.server.resolve(op.parent)?,
            self.server.resolve(op.new_parent)?,
        );
        if (from, &op.name) == (to, &op.new_name) {
            return match (self.look(from, &op.name).await?, op.flags) {
                (None, _) => Err(FsError::NotFound),
                (Some(_), NOREPLACE) => Err(FsError::Exists),
                (Some(_), _) => Ok(()),
            };
        }
        let from = self
            .find_homed(from, op.name, NameUse::Existing, None)
            .await?;
        let to = self.find_homed(to, op.new_name, NameUse::New, None).await?;
        let token = self.server.peers().token();
        let is_elsewhere = op.parent != op.new_parent;
        let _under_way = is_elsewhere.then(|| self.state().history.begin());
        let act = self.rename_homed(
            op.parent != op.new_parent,
            op.flags,
            from,
            to,
            token,
            &outcome,
        );
        self.lead(token, act).await
    }

    async fn rename_homed(
        &self,
        elsewhere: bool,
        flags: u32,
        mut from: HomedName,
        mut to: HomedName,
        token: Token,
        outcome: &PendingOutcome,
    ) -> Result<(), FsError> {
        // Only the locks make it certain if directories move to another parent, but the permit must be taken before the
        // locks. So a first look without locks decides, and a second look under them confirms it.
        let (mut asked, mut permit) = (false, None);
        loop {
            let number = token.number;
            let mut done = Ok(());
            if elsewhere && !asked {
                match self.any_dir(&from, &to).await {
                    Ok(false) => {}
                    Ok(true) => {
                        asked = true;
                        let got = self.lock_moves(token).await;
                        done = got.map(|session| permit = Some(session));
                    }
                    Err(error) => done = Err(error),
                }
            }
            if done.is_ok() {
                let renamed = self.rename_locked(&from, &to, flags, permit, token, outcome);
                done = renamed.await;
                if done == Err(FsError::WouldBlock) {
                    continue;
                }
            }
            if done == Err(FsError::Elsewhere) {
                let again = async {
                    self.find_home_again(&mut from, NameUse::Existing).await?;
                    self.find_home_again(&mut to, NameUse::New).await
                };
                done = again.await;
                if done.is_ok() {
                    continue;
                }
            }
            if asked {
                self.server.peers().owe(Rank(0), unlock_moves(number)).await;
            }
            return done;
        }
    }

    /// Takes the permit for moving directories, or confirms it; returns the number of the session
    /// in which it is held.
    async fn lock_moves(&self, token: Token) -> Result<u64, FsError> {
        let lock = peer::LockMoves {
            token: token.number,
        };
        let ((), session) = self.server.call_in(Rank(0), lock).await?;
        Ok(session)
    }

    async fn find_homed(
        &self,
        dir: Ino,
        name: Vec<u8>,
        name_use: NameUse,
        refused: Option<NameHome>,
    ) -> Result<HomedName, FsError> {
        let home = self.find_home(dir, &name, name_use, refused).await?;
        Ok(HomedName {
            home: home.ok_or(FsError::NotFound)?,
            dir,
            name,
            refused: Cell::new(false),
        })
    }

    /// Finds the home of a name anew if its home refused it. None of the names is locked.
    async fn find_home_again(
        &self,
        homed: &mut HomedName,
        name_use: NameUse,
    ) -> Result<(), FsError> {
        if homed.refused.get() {
            let refused = Some(homed.home);
            let name = homed.name.clone();
            *homed = self.find_homed(homed.dir, name, name_use, refused).await?;
            if refused == Some(homed.home) {
                self.pause_before_retry().await?;
            }
        }
        Ok(())
    }

    async fn look(&self, dir: Ino, name: &[u8]) -> Result<Option<Child>, FsError> {
        let find = peer::Find {
            dir,
            name: name.to_vec(),
        };
        match self.call_home(dir, name, NameUse::Existing, find).await {
            Err(FsError::NotFound) => Ok(None),
            found => found,
        }
    }

    async fn any_dir(&self, from: &HomedName, to: &HomedName) -> Result<bool, FsError> {
        let found = [
            self.look(from.dir, &from.name).await?,
            self.look(to.dir, &to.name).await?,
        ];
        Ok(found
            .into_iter()
            .flatten()
            .any(|child| child.kind == FileType::Dir))
    }

    /// Locks both names, renames, and unlocks. `WouldBlock` if the permit is needed.
    async fn rename_locked(
        &self,
        from: &HomedName,
        to: &HomedName,
        flags: u32,
        permit: Option<u64>,
        token: Token,
        outcome: &PendingOutcome,
    ) -> Result<(), FsError> {
        let mut order = [from, to];
        order.sort_by(|a, b| a.key().cmp(&b.key()));
        let lock = |homed: &HomedName| peer::LockName {
            dir: homed.dir,
            name: homed.name.clone(),
            token: token.number,
            to: std::ptr::eq(homed, from).then(|| to.destination()),
            swaps: flags == EXCHANGE,
        };
        let lock = async |homed: &HomedName| {
            let found = self.server.call(homed.home.rank, lock(homed)).await;
            homed.refused.set(found == Err(FsError::Elsewhere));
            found
        };
        let first = match lock(order[0]).await {
            Ok(found) => found,
            Err(error) => {
                // The home may grant the lock after this server has stopped waiting.
                self.unlock_homed(order[0], token, Left::Nothing).await;
                return Err(error);
            }
        };
        let second = match lock(order[1]).await {
            Ok(found) => found,
            Err(error) => {
                self.unlock_homed(order[1], token, Left::Nothing).await;
                self.unlock_homed(order[0], token, Left::Nothing).await;
                return Err(error);
            }
        };
        let from_is_first = std::ptr::eq(order[0], from);
        let (source, target) = if from_is_first {
            (first, second)
        } else {
            (second, first)
        };
        let left = Cell::new(Left::Nothing);
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
                    left: &left,
                    permit,
                    outcome: &self.when_late([from, to], &source, flags, token, outcome),
                };
                self.rename_found(what, flags == NOREPLACE).await
            }
        };
        self.unlock_homed(order[1], token, left.get()).await;
        self.unlock_homed(order[0], token, left.get()).await;
        done
    }

    /// Sets the action for a rename whose end is not known in time. The names of a file become free
    /// for others, because its links are counted. For the names of a directory, and for exchanged
    /// names, requests stop waiting.
    fn when_late(
        &self,
        names: [&HomedName; 2],
        source: &Child,
        flags: u32,
        token: Token,
        outcome: &PendingOutcome,
    ) -> PendingOutcome {
        let keys = names.map(|homed| NameKey::new(homed.dir, homed.name.clone()));
        let this = self.clone();
        if source.kind == FileType::Dir || flags == EXCHANGE {
            let number = token.number;
            return outcome.late(move || {
                for key in &keys {
                    this.state().name_locks.stick(key);
                }
                this.server.peers().owe_soon(Rank(0), unlock_moves(number));
            });
        }
        let [from, to] = names.map(Clone::clone);
        outcome.late(move || {
            let peers = this.server.peers().clone();
            let (this, from, to) = (this.clone(), from.clone(), to.clone());
            peers.spawn(async move {
                // The old name first: a request that finds the new name free may take it away again.
                this.unlock_homed(&from, token, Left::Later).await;
                this.unlock_homed(&to, token, Left::Later).await;
            });
        })
    }

    async fn rename_found(&self, what: Renaming<'_>, noreplace: bool) -> Result<(), FsError> {
        match what.target {
            Some(_) if noreplace => return Err(FsError::Exists),
            None if what.exchange => return Err(FsError::NotFound),
            _ => {}
        }
        let elsewhere = what.from.dir != what.to.dir;
        let dirs = [Some(what.source), what.target];
        let is_dir = |child: &Child| child.kind == FileType::Dir;
        if elsewhere && dirs.iter().flatten().any(is_dir) {
            if what.permit.is_none() {
                return Err(FsError::WouldBlock);
            }
            self.check_loops(&what).await?;
        }
        if let Some(target) = what.target {
            if target.ino == what.source.ino {
                return Ok(()); // two names of one file: both stay
            }
        }
        let mut moved = vec![what.source];
        moved.extend(what.target.filter(|_| what.exchange));
        moved.retain(is_dir);
        // A rename to another directory was counted before the names were locked.
        let log = &self.state().history;
        let _under_way = (!moved.is_empty()).then(|| log.begin());
        for dir in &moved {
            log.note_directory(dir.ino);
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
        let (was, child) = (what.target, Some(what.source));
        if let Err(error) = self.assign(what, what.to, was, child).await {
            self.server.peers().owe(ino.rank(), Debt::Link(ino)).await;
            return Err(error);
        }
        if let Some(target) = what.target {
            let ino = target.ino;
            self.note_replaced(what.to.dir, &what.to.name, ino);
            self.server.peers().owe(ino.rank(), Debt::Link(ino)).await;
        }
        // If another request has used the old name meanwhile, this fails, and the file keeps the names that it has
        // then.
        let was = Some(what.source);
        self.assign(what, what.from, was, None).await?;
        self.note_removal(what.from.dir, &what.from.name, ino);
        self.server.peers().owe(ino.rank(), Debt::Link(ino)).await;
        Ok(())
    }

    /// Replaces the target by a directory. The new location is recorded before the move, so no two
    /// moves make a loop, though the permit is given back before the end of the move is known.
    async fn replace_by_dir(&self, what: &Renaming<'_>) -> Result<(), FsError> {
        let is_file = |target: Child| target.kind != FileType::Dir;
        if what.target.is_some_and(is_file) {
            return Err(FsError::NotADirectory);
        }
        self.tell_moved(what, what.source, what.to).await?;
        self.do_two_steps(what, None).await
    }

    async fn exchange(&self, what: &Renaming<'_>) -> Result<(), FsError> {
        let Some(target) = what.target else {
            return Err(FsError::NotFound);
        };
        self.tell_moved(what, what.source, what.to).await?;
        if let Err(error) = self.tell_moved(what, target, what.from).await {
            self.tell_stayed(what.source, what.from, what.token).await;
            return Err(error);
        }
        self.do_two_steps(what, Some(target)).await
    }

    /// Makes the new name refer to the source, and then the old one to `then`.
    async fn do_two_steps(&self, what: &Renaming<'_>, then: Option<Child>) -> Result<(), FsError> {
        // Rank 0 may have been restarted and have granted the permit to another server. The next
        // holder of the permit sees the locations told before.
        if let Some(session) = what.permit {
            if self.lock_moves(what.token).await? != session {
                return Err(FsError::Unreachable);
            }
        }
        let (from, to) = (what.from, what.to);
        let assign = peer::Assign {
            dir: to.dir,
            name: to.name.clone(),
            token: what.token.number,
            was: what.target,
            from: Some(peer::Origin {
                home: from.home.rank,
                dir: from.dir,
                name: from.name.clone(),
                then,
            }),
            to: None,
            child: Some(what.source),
        };
        what.left.set(Left::Unknown);
        let placed = self
            .server
            .see_through(to.home.rank, assign, what.outcome)
            .await;
        let placed = placed.ok_or(FsError::Unreachable)?;
        what.left.set(Left::Some);
        if let Err(error) = placed {
            // If the step may still be done, the homes find out the locations.
            if error != FsError::Unreachable {
                self.tell_stayed(what.source, from, what.token).await;
                if let Some(target) = then {
                    self.tell_stayed(target, to, what.token).await;
                }
            }
            return Err(error);
        }
        let leave = peer::Leave {
            dir: from.dir,
            name: from.name.clone(),
            leader: what.token.rank.0,
            token: what.token.number,
            was: what.source,
            then,
        };
        loop {
            let left = self
                .server
                .see_through(from.home.rank, leave.clone(), what.outcome);
            if let Some(left) = left.await {
                if left.is_ok() {
                    what.left.set(Left::Nothing);
                }
                return left;
            }
        }
    }

    /// Tells an inode's home of its new name. The home sets the ctime, and records the location of a directory.
    async fn tell_moved(
        &self,
        what: &Renaming<'_>,
        child: Child,
        at: &HomedName,
    ) -> Result<(), FsError> {
        let moved = peer::Moved {
            ino: child.ino,
            parent: at.dir,
            name: at.name.clone(),
            token: what.token.number,
        };
        what.left.set(Left::Unknown);
        self.server.call(child.ino.rank(), moved).await?;
        what.left.set(Left::Some);
        Ok(())
    }

    /// Takes back [`Self::tell_moved`], before the permit is given back: the next holder would refuse
    /// moves because of a location that the directory never had.
    async fn tell_stayed(&self, child: Child, at: &HomedName, token: Token) {
        let stayed = peer::Stayed {
            ino: child.ino,
            parent: at.dir,
            name: at.name.clone(),
            leader: token.rank.0,
            token: token.number,
            over: true,
        };
        // The home of the name does it, too.
        if let Err(error) = self.server.call(child.ino.rank(), stayed).await {
            tracing::warn!(ino = ?child.ino, %error, "the location of a directory that stays");
        }
    }

    async fn unlock_homed(&self, homed: &HomedName, token: Token, left: Left) {
        let unlock = peer::UnlockName {
            dir: homed.dir,
            name: homed.name.clone(),
            token: token.number,
            left,
        };
        self.server
            .peers()
            .owe(homed.home.rank, Debt::Unlock(unlock))
            .await;
    }

    /// Changes a locked name of a file from `was` to `child`.
    async fn assign(
        &self,
        what: &Renaming<'_>,
        homed: &HomedName,
        was: Option<Child>,
        child: Option<Child>,
    ) -> Result<(), FsError> {
        let assign = peer::Assign {
            dir: homed.dir,
            name: homed.name.clone(),
            token: what.token.number,
            was,
            from: None,
            to: child.is_none().then(|| what.to.destination()),
            child,
        };
        loop {
            let told = self
                .server
                .see_through(homed.home.rank, assign.clone(), what.outcome);
            if let Some(told) = told.await {
                return told;
            }
        }
    }
}

/// A rename whose names are locked.
struct Renaming<'a> {
    from: &'a HomedName,
    to: &'a HomedName,
    source: Child,
    target: Option<Child>,
    exchange: bool,
    token: Token,
    /// The session in which the permit was granted, if it was needed.
    permit: Option<u64>,
    /// The outcome that the names' homes have to find out.
    left: &'a Cell<Left>,
    /// The channel that tells the waiting request the outcome.
    outcome: &'a PendingOutcome,
}

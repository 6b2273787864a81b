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
//! the file could lose its last.
//!
//! A file may have two names: if the leader dies in between it has both, and is lost under none,
//! for links are counted before there is a name and until there is none. A home that was started
//! anew after it had been asked is asked once more: it knows whether it acted (`moves`).
//!
//! Of a directory, and of names that are exchanged, the first step is done under the lock only, and
//! both homes see to it that the second one follows (`moves`). So a leader that does not know how a
//! step ended leaves it to them.

use std::cell::Cell;

use weir_core::names::FileType;
use weir_core::proto::peer::{self, Left};
use weir_core::proto::{self, Child, FsError};
use weir_core::types::{Ino, Rank};

use crate::cluster::keyed::Token;
use crate::cluster::names::placements::{Home, NameUse};
use crate::cluster::peers::debts::Debt;
use crate::cluster::peers::session::Outcome;
use crate::cluster::Cluster;
use crate::node::Platform;

const NOREPLACE: u32 = 1;
const EXCHANGE: u32 = 2;

fn unlock_moves(token: u64) -> Debt {
    Debt::UnlockMoves(peer::UnlockMoves { token })
}

/// One of the two names, and its home: what is resolved before the names are locked stays so until
/// they are unlocked (`placements`).
#[derive(Clone)]
struct Seat {
    home: Home,
    dir: Ino,
    name: Vec<u8>,
    /// That server refused to lock it.
    refused: Cell<bool>,
}

impl Seat {
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

impl<P: Platform> Cluster<P> {
    pub(in crate::cluster) async fn rename(&self, op: proto::Rename) -> Result<(), FsError> {
        if self.has_all_names() {
            return self.node(|node| node.rename_entry(&op));
        }
        let act = |this: Self, outcome| async move { this.rename_to_the_end(op, outcome).await };
        self.to_the_end(act).await
    }

    async fn rename_to_the_end(&self, op: proto::Rename, outcome: Outcome) -> Result<(), FsError> {
        if op.flags > EXCHANGE {
            return Err(FsError::Invalid);
        }
        let (from, to) = (self.resolve(op.parent)?, self.resolve(op.new_parent)?);
        if (from, &op.name) == (to, &op.new_name) {
            return match (self.look(from, &op.name).await?, op.flags) {
                (None, _) => Err(FsError::NotFound),
                (Some(_), NOREPLACE) => Err(FsError::Exists),
                (Some(_), _) => Ok(()),
            };
        }
        let from = self.seat((from, op.name), NameUse::Existing, None).await?;
        let to = self.seat((to, op.new_name), NameUse::New, None).await?;
        let token = self.token();
        let act = self.rename_seats(
            op.parent != op.new_parent,
            op.flags,
            (from, to),
            token,
            &outcome,
        );
        self.lead(token, act).await
    }

    async fn rename_seats(
        &self,
        elsewhere: bool,
        flags: u32,
        (mut from, mut to): (Seat, Seat),
        token: Token,
        outcome: &Outcome,
    ) -> Result<(), FsError> {
        // Whether directories move to another parent is known only under the locks; the
        // permit comes first, so it is taken on a look without them, and looked again.
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
                let how = (flags, permit);
                done = self.rename_locked(&from, &to, how, token, outcome).await;
                if done == Err(FsError::WouldBlock) {
                    continue;
                }
            }
            if done == Err(FsError::Elsewhere) {
                let again = async {
                    self.seat_again(&mut from, NameUse::Existing).await?;
                    self.seat_again(&mut to, NameUse::New).await
                };
                done = again.await;
                if done.is_ok() {
                    continue;
                }
            }
            if asked {
                self.owe(Rank(0), unlock_moves(number)).await;
            }
            return done;
        }
    }

    /// Takes the permit for moving directories, or has it still; the number of the session in
    /// which that is so.
    async fn lock_moves(&self, token: Token) -> Result<u64, FsError> {
        let lock = peer::LockMoves {
            token: token.number,
        };
        let ((), session) = self.call_in(Rank(0), lock).await?;
        Ok(session)
    }

    async fn seat(
        &self,
        (dir, name): (Ino, Vec<u8>),
        name_use: NameUse,
        refused: Option<Home>,
    ) -> Result<Seat, FsError> {
        let home = self.find_home((dir, &name), name_use, refused).await?;
        Ok(Seat {
            home: home.ok_or(FsError::NotFound)?,
            dir,
            name,
            refused: Cell::new(false),
        })
    }

    /// Finds the home of a name anew if its home refused it. None of the names is locked.
    async fn seat_again(&self, seat: &mut Seat, name_use: NameUse) -> Result<(), FsError> {
        if seat.refused.get() {
            let refused = Some(seat.home);
            let name = (seat.dir, seat.name.clone());
            *seat = self.seat(name, name_use, refused).await?;
            if refused == Some(seat.home) {
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
        match self.call_home((dir, name), NameUse::Existing, find).await {
            Err(FsError::NotFound) => Ok(None),
            found => found,
        }
    }

    async fn any_dir(&self, from: &Seat, to: &Seat) -> Result<bool, FsError> {
        let found = [
            self.look(from.dir, &from.name).await?,
            self.look(to.dir, &to.name).await?,
        ];
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
        (flags, permit): (u32, Option<u64>),
        token: Token,
        outcome: &Outcome,
    ) -> Result<(), FsError> {
        let mut order = [from, to];
        order.sort_by(|a, b| a.key().cmp(&b.key()));
        let lock = |seat: &Seat| peer::LockName {
            dir: seat.dir,
            name: seat.name.clone(),
            token: token.number,
            to: std::ptr::eq(seat, from).then(|| to.destination()),
            swaps: flags == EXCHANGE,
        };
        let lock = async |seat: &Seat| {
            let found = self.call(seat.home.rank, lock(seat)).await;
            seat.refused.set(found == Err(FsError::Elsewhere));
            found
        };
        let first = match lock(order[0]).await {
            Ok(found) => found,
            Err(error) => {
                // It may be locked when it is not waited for any more.
                self.unlock_seat(order[0], token, Left::Nothing).await;
                return Err(error);
            }
        };
        let second = match lock(order[1]).await {
            Ok(found) => found,
            Err(error) => {
                self.unlock_seat(order[1], token, Left::Nothing).await;
                self.unlock_seat(order[0], token, Left::Nothing).await;
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
                    outcome: &self.when_late([from, to], (&source, flags), token, outcome),
                };
                self.rename_found(what, flags == NOREPLACE).await
            }
        };
        self.unlock_seat(order[1], token, left.get()).await;
        self.unlock_seat(order[0], token, left.get()).await;
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
                this.unlock_seat(&from, token, Left::Later).await;
                this.unlock_seat(&to, token, Left::Later).await;
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
        if let Err(error) = self.assign(what, what.to, change).await {
            self.owe(ino.rank(), Debt::Link(ino)).await;
            return Err(error);
        }
        if let Some(target) = what.target {
            let ino = target.ino;
            self.owe(ino.rank(), Debt::Link(ino)).await;
        }
        // If that name is another's by now, the file keeps both that it has got.
        let taken = (Some(what.source), None);
        self.assign(what, what.from, taken).await?;
        self.owe(ino.rank(), Debt::Link(ino)).await;
        Ok(())
    }

    /// A directory says where it will be before it is there: so no two moves make a loop, though
    /// the permit is given back before the end of a move is known.
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
        self.tell_moved(what, target, what.from).await?;
        self.do_two_steps(what, Some(target)).await
    }

    /// Lets the new name name the source, and then the old one `then`.
    async fn do_two_steps(&self, what: &Renaming<'_>, then: Option<Child>) -> Result<(), FsError> {
        // Rank 0 may have been started anew, and another have the permit. Who gets it from now on
        // sees what was told.
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
        let placed = self.see_through(to.home.rank, assign, what.outcome).await;
        let placed = placed.ok_or(FsError::Unreachable)?;
        what.left.set(Left::Some);
        placed?;
        let leave = peer::Leave {
            dir: from.dir,
            name: from.name.clone(),
            leader: what.token.rank.0,
            token: what.token.number,
            was: what.source,
            then,
        };
        loop {
            let left = self.see_through(from.home.rank, leave.clone(), what.outcome);
            if let Some(left) = left.await {
                if left.is_ok() {
                    what.left.set(Left::Nothing);
                }
                return left;
            }
        }
    }

    /// The inode's home dates the change, and remembers where a directory is.
    async fn tell_moved(
        &self,
        what: &Renaming<'_>,
        child: Child,
        at: &Seat,
    ) -> Result<(), FsError> {
        let moved = peer::Moved {
            ino: child.ino,
            parent: at.dir,
            name: at.name.clone(),
            token: what.token.number,
        };
        what.left.set(Left::Unknown);
        self.call(child.ino.rank(), moved).await?;
        what.left.set(Left::Some);
        Ok(())
    }

    async fn unlock_seat(&self, seat: &Seat, token: Token, left: Left) {
        let unlock = peer::UnlockName {
            dir: seat.dir,
            name: seat.name.clone(),
            token: token.number,
            left,
        };
        self.owe(seat.home.rank, Debt::Unlock(unlock)).await;
    }

    /// Lets a locked name of a file, that named `was`, name `child`.
    async fn assign(
        &self,
        what: &Renaming<'_>,
        seat: &Seat,
        (was, child): (Option<Child>, Option<Child>),
    ) -> Result<(), FsError> {
        let assign = peer::Assign {
            dir: seat.dir,
            name: seat.name.clone(),
            token: what.token.number,
            was,
            from: None,
            to: child.is_none().then(|| what.to.destination()),
            child,
        };
        loop {
            let told = self.see_through(seat.home.rank, assign.clone(), what.outcome);
            if let Some(told) = told.await {
                return told;
            }
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
    token: Token,
    /// The session in which the permit was got, if it was needed.
    permit: Option<u64>,
    /// What the names' homes have to find out.
    left: &'a Cell<Left>,
    /// Who waits for it.
    outcome: &'a Outcome,
}

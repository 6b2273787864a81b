//! The journal of a simulated server: the real file of `weir-store` on the machine's tmpfs, which
//! is begun anew much sooner, so that runs of a few hundred changes see that.
//!
//! Between two tasks a server can be killed anywhere. Within one the moment that counts is that of
//! a commit: what was done to shared memory before it is there, and nobody has been told. A
//! [`Fuse`] kills there, by unwinding the task ([`Killed`]).

use std::cell::Cell;
use std::panic::AssertUnwindSafe;
use std::rc::Rc;

use weir_core::journal::{Head, Replayed};
use weir_core::types::Rank;
use weir_server::node::{Journal, Visit};
use weir_store::journal::JournalFile;

use crate::machine::Machine;

/// What a task is unwound with whose server is killed.
#[derive(Clone, Copy, Debug)]
pub struct Killed;

/// Kills a server at one of its next commits.
#[derive(Clone, Debug, Default)]
pub struct Fuse(Rc<Cell<Option<u32>>>);

impl Fuse {
    /// At a commit of soon: `burns` is counted down before each and after it.
    pub fn light(&self, burns: u32) {
        self.0.set(Some(burns.max(1)));
    }

    /// Nothing is killed.
    pub fn quench(&self) {
        self.0.set(None);
    }

    /// Whether it will kill.
    pub fn is_lit(&self) -> bool {
        self.0.get().is_some_and(|left| left > 0)
    }

    /// Whether it has killed.
    pub fn is_burnt(&self) -> bool {
        self.0.get() == Some(0)
    }

    fn burn(&self) {
        let Some(left) = self.0.get() else { return };
        self.0.set(Some(left.saturating_sub(1)));
        if left <= 1 {
            std::panic::resume_unwind(Box::new(Killed));
        }
    }
}

/// Runs something of a server; `None`: it was killed over it.
pub fn unless_killed<T>(act: impl FnOnce() -> T) -> Option<T> {
    // What a killed server leaves is dropped, but for what is shared memory.
    match std::panic::catch_unwind(AssertUnwindSafe(act)) {
        Ok(done) => Some(done),
        Err(why) if why.is::<Killed>() => None,
        Err(why) => std::panic::resume_unwind(why),
    }
}

/// A journal that is being written.
#[derive(Debug)]
pub struct Written {
    file: JournalFile,
    fuse: Fuse,
    /// It is begun anew after so many bytes.
    long: usize,
    /// Bytes that were appended since it was.
    appended: usize,
}

impl Written {
    /// Begins the journal of a server, with what there is already.
    pub fn begin(
        machine: &Machine,
        (rank, servers): (Rank, u16),
        long: usize,
        show: &dyn Fn(Visit<'_>),
    ) -> Written {
        let head = Head {
            rank,
            servers,
            instance: [0; 16],
            made_ns: 0,
        };
        let file = JournalFile::create(machine.dir(), head, &mut |out| {
            show(&mut |item| out.add(item));
        });
        Written {
            file: file.expect("room on tmpfs"),
            fuse: machine.fuse.clone(),
            long,
            appended: 0,
        }
    }

    /// What the server that was killed left.
    pub fn read(machine: &Machine) -> Replayed {
        let bytes = weir_store::journal::read(machine.dir()).expect("a file that can be read");
        let bytes = bytes.expect("a server leaves its journal");
        weir_core::journal::replay(&bytes).expect("a journal that is right")
    }
}

impl Journal for Written {
    fn append(&mut self, items: &[u8]) {
        self.fuse.burn();
        self.file.append(items).expect("room on tmpfs");
        self.fuse.burn();
        self.appended += items.len();
    }

    fn is_long(&self) -> bool {
        self.appended >= self.long
    }

    fn is_whole(&self) -> bool {
        self.file.is_whole()
    }

    fn begin_anew(&mut self) -> bool {
        self.file.begin_anew().is_ok()
    }

    fn add(&mut self, items: &[u8]) -> bool {
        self.file.add(items).is_ok()
    }

    fn take_over(&mut self) {
        self.file.take_over().expect("the journal's name");
        self.appended = 0;
    }

    fn tidy(&mut self) -> bool {
        self.file.free_some()
    }
}

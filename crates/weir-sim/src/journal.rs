//! The journal of a simulated server: the real file of `weir-store` on the machine's tmpfs. A new
//! journal is started much sooner than in production, so that short runs test that, too.
//!
//! Between two tasks a server can be killed anywhere. Within a task the critical moment is a
//! commit: shared memory has changed, and no client has been told. A [`KillSwitch`] kills the
//! server there, by unwinding the task ([`Killed`]).

use std::cell::Cell;
use std::panic::AssertUnwindSafe;
use std::path::Path;
use std::rc::Rc;

use weir_core::journal::{Head, Replayed};
use weir_server::node::{Journal, Visit};
use weir_store::journal::JournalFile;

/// The panic payload that unwinds a task of a killed server.
#[derive(Clone, Copy, Debug)]
pub struct Killed;

/// Kills a server at one of its next commits.
#[derive(Clone, Debug, Default)]
pub struct KillSwitch(Rc<Cell<Option<u32>>>);

impl KillSwitch {
    /// Kills at the commit at which `kill_after`, counted down before and after each commit, is 0.
    pub fn arm(&self, kill_after: u32) {
        self.0.set(Some(kill_after.max(1)));
    }

    /// Cancels the kill.
    pub fn disarm(&self) {
        self.0.set(None);
    }

    /// Returns true if a kill is pending.
    pub fn is_armed(&self) -> bool {
        self.0.get().is_some_and(|left| left > 0)
    }

    /// Returns true if the server was killed.
    pub fn has_killed(&self) -> bool {
        self.0.get() == Some(0)
    }

    fn count_down(&self) {
        let Some(left) = self.0.get() else { return };
        self.0.set(Some(left.saturating_sub(1)));
        if left <= 1 {
            std::panic::resume_unwind(Box::new(Killed));
        }
    }
}

/// Runs an action of a server; returns `None` if the server was killed in it.
pub fn unless_killed<T>(act: impl FnOnce() -> T) -> Option<T> {
    // The killed server's memory is dropped, except for shared memory.
    match std::panic::catch_unwind(AssertUnwindSafe(act)) {
        Ok(done) => Some(done),
        Err(why) if why.is::<Killed>() => None,
        Err(why) => std::panic::resume_unwind(why),
    }
}

/// A journal being written.
#[derive(Debug)]
pub struct SimJournal {
    file: JournalFile,
    kill_switch: KillSwitch,
    /// A new journal is started after this many bytes.
    long: usize,
    /// Bytes appended to the present journal.
    appended: usize,
}

impl SimJournal {
    /// Creates the journal of a server in its machine's directory, beginning with its present state.
    pub fn begin(
        dir: &Path,
        head: Head,
        long: usize,
        kill_switch: KillSwitch,
        show: &dyn Fn(Visit<'_>),
    ) -> SimJournal {
        let file = JournalFile::create(dir, head, &mut |out| {
            show(&mut |item| out.add(item));
        });
        SimJournal {
            file: file.expect("room on tmpfs"),
            kill_switch,
            long,
            appended: 0,
        }
    }

    /// Reads the state that a killed server left.
    pub fn read(dir: &Path) -> Replayed {
        let bytes = weir_store::journal::read(dir).expect("a file that can be read");
        let bytes = bytes.expect("a server leaves its journal");
        weir_core::journal::replay(&bytes).expect("a journal that is right")
    }
}

impl Journal for SimJournal {
    fn append(&mut self, items: &[u8]) {
        self.kill_switch.count_down();
        self.file.append(items).expect("room on tmpfs");
        self.kill_switch.count_down();
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

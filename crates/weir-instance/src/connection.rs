//! Talking to the server of an instance, and saying that a command uses one.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use weir_core::proto::{Status, Stop, Welcome};
use weir_server::control::Control;

use crate::directories::{self, Label};
use crate::errln;
use crate::lock::Lock;
use crate::report::Report;

/// A connection to the server of an instance.
pub struct Connection(Control);

impl Connection {
    /// To the instance in `run_dir`.
    pub fn to(run_dir: &Path) -> Result<Self> {
        let control = Control::connect(run_dir);
        control
            .map(Self)
            .with_context(|| format!("instance {}", run_dir.display()))
    }

    /// The server's description of itself.
    pub fn welcome(&self) -> &Welcome {
        self.0.welcome()
    }

    /// Asks one thing.
    pub fn call<O: weir_core::proto::Operation>(&mut self, what: O) -> Result<O::Reply> {
        Ok(self.0.call(what)?)
    }
}

/// The sign of a `weir run` that its command uses an instance: others see that it is used, and it
/// sees whether the instance was there to the end.
pub struct Use {
    connection: Connection,
    run_dir: PathBuf,
    born_ns: Option<u64>,
    lock: Option<(PathBuf, Lock)>,
}

/// How the files are called, before the process's number, by which each `weir run` says so.
const USE: &str = "use-";

impl Use {
    /// Begins to use the server in `run_dir`.
    pub fn begin(run_dir: &Path) -> Result<Self> {
        let connection = Connection::to(run_dir)?;
        let path = run_dir.join(format!("{USE}{}", std::process::id()));
        // Only for the message of a weir stop: where there is no room for it, there is none.
        let lock = Lock::try_acquire(&path).ok().flatten();
        Ok(Self {
            connection,
            run_dir: run_dir.to_owned(),
            born_ns: born_ns(run_dir),
            lock: lock.map(|lock| (path, lock)),
        })
    }

    /// True if the instance is still there, perhaps with a server that went on with it.
    pub fn is_served(&mut self) -> bool {
        if self.connection.call(Status {}).is_ok() {
            return true;
        }
        if directories::lives(&self.run_dir) {
            return born_ns(&self.run_dir) == self.born_ns;
        }
        // Of several servers, this node's was killed, and its agent lives: the instance goes on, with
        // that server again or without it. The command's calls said what was lost by that.
        let goes_on = directories::is_kept(&self.run_dir);
        if goes_on {
            errln!("weir: the server of this node was killed while the command ran");
        }
        goes_on
    }

    /// The processes of those of `run_dir` that have not ended.
    pub fn all(run_dir: &Path) -> Vec<u32> {
        let entries = std::fs::read_dir(run_dir).into_iter().flatten().flatten();
        let held = entries.filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let pid = name.strip_prefix(USE)?.parse().ok()?;
            Lock::is_held(&entry.path()).then_some(pid)
        });
        held.collect()
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        if let Some((path, _lock)) = self.lock.take() {
            let _ = std::fs::remove_file(path);
        }
    }
}

fn born_ns(run_dir: &Path) -> Option<u64> {
    Label::read(run_dir).map(|label| label.born_ns)
}

/// Stops the instance in `run_dir`.
pub fn stop(run_dir: &Path) -> Result<Report> {
    Connection::to(run_dir)?.call(Stop {})
}

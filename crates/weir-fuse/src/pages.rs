//! Files of which the kernel keeps pages, because a program has mapped them.
//!
//! The kernel does not report that a file is mapped; it requests a page without a process. Before
//! the mount returns the first page of a file, the server tells all programs of the node, so that
//! they read and write the file through the mount from then on. This ends with the last descriptor
//! of the file in the mount: a mapping keeps its file open.
//!
//! Pages do not change when other nodes write. The server wakes a separate thread
//! ([`Pages::follow`]) when another node has changed such a file. The thread makes the kernel write
//! back the node's stores and drop the pages, so that the next load reads them again.

use std::collections::HashMap;
use std::io;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use fuser::{INodeNo, Notifier};
use rustix::io::Errno;
use weir_client::process::mounted::Ino;
use weir_client::process::mounted::Tree;

/// The delay before another attempt to drop pages.
const AGAIN: Duration = Duration::from_secs(1);

/// The files that programs have open through the mount.
#[derive(Debug)]
pub struct Pages {
    tree: Tree,
    /// Held while the server is told, to keep the order.
    files: Mutex<HashMap<Ino, File>>,
    kernel: OnceLock<Notifier>,
}

#[derive(Debug, Default)]
struct File {
    /// The number of open descriptions, and of those for private mappings alone.
    open: usize,
    private: usize,
    /// The kernel keeps pages of the file.
    mapped: bool,
    /// The file's generation when its pages were last dropped; see [`Tree::generation`].
    generation: u64,
}

impl Pages {
    /// Creates the table of a mount without open files.
    pub fn new(tree: Tree) -> Pages {
        Pages {
            tree,
            files: Mutex::default(),
            kernel: OnceLock::new(),
        }
    }

    /// Sets the way of notifying the kernel.
    pub fn tell_kernel_by(&self, notifier: Notifier) {
        let _ = self.kernel.set(notifier);
    }

    fn files(&self) -> MutexGuard<'_, HashMap<Ino, File>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that a description of the file was opened.
    pub fn opened(&self, ino: Ino, is_private: bool) {
        let mut files = self.files();
        let file = files.entry(ino).or_default();
        file.open += 1;
        file.private += usize::from(is_private);
    }

    /// Prepares for a page of a private mapping. The page need not follow later writes, unless
    /// other descriptions are open, whose mappings would show them.
    pub fn keep_private(&self, ino: Ino) -> Result<(), Errno> {
        let is_shown = |file: &File| file.open > file.private;
        let is_shown = self.files().get(&ino).is_some_and(is_shown);
        match is_shown {
            true => self.keep(ino).map(drop),
            false => Ok(()),
        }
    }

    /// Prepares for a page of an open file. Returns true if the kernel already keeps pages of it.
    pub fn keep(&self, ino: Ino) -> Result<bool, Errno> {
        let mut files = self.files();
        let file = files.entry(ino).or_default();
        let was_mapped = file.mapped;
        if !was_mapped {
            self.tree.set_mapped(ino, true)?;
            file.mapped = true;
        }
        Ok(was_mapped)
    }

    /// Returns true if the kernel may have outdated pages of a file.
    pub fn may_be_old(&self, ino: Ino) -> bool {
        self.files().get(&ino).is_none_or(|file| file.private > 0)
    }

    /// Returns true if the kernel keeps pages of a file.
    pub fn are_kept(&self, ino: Ino) -> bool {
        self.files().get(&ino).is_some_and(|file| file.mapped)
    }

    /// Makes the kernel drop pages of files that other nodes change. `drop_pages` gets the file; it
    /// may wait for requests to be answered. Returns when the server cannot be reached any more.
    pub fn follow(&self, drop_pages: impl Fn(Ino) -> io::Result<()>) -> Result<(), Errno> {
        loop {
            // A later change of a file changes the word, so that the wait below returns at once.
            let seen = self.tree.news()?;
            let mut all_dropped = true;
            for (ino, dropped) in self.mapped() {
                let generation = match self.tree.generation(ino) {
                    Ok(generation) if generation == dropped => continue,
                    Ok(generation) => generation,
                    // A file that is gone does not change.
                    Err(Errno::NOENT | Errno::STALE) => continue,
                    // Its home cannot be reached: its last answer may be outdated.
                    Err(_) => dropped,
                };
                if let Err(error) = drop_pages(ino) {
                    tracing::warn!("pages of inode {:x} are not dropped: {error}", ino.0);
                    all_dropped = false;
                } else if generation == dropped {
                    all_dropped = false;
                } else if let Some(file) = self.files().get_mut(&ino) {
                    file.generation = generation;
                }
            }
            match all_dropped {
                true => self.tree.wait_for_news(seen)?,
                false if self.tree.is_served() => std::thread::sleep(AGAIN),
                false => return Err(Errno::SHUTDOWN),
            }
        }
    }

    /// The files of which the kernel keeps pages, each with its generation.
    fn mapped(&self) -> Vec<(Ino, u64)> {
        let files = self.files();
        let mapped = files.iter().filter(|(_, file)| file.mapped);
        mapped.map(|(ino, file)| (*ino, file.generation)).collect()
    }

    /// Records that a description of the file was closed.
    pub fn closed(&self, ino: Ino, is_private: bool) {
        let mut files = self.files();
        let Some(file) = files.get_mut(&ino) else {
            return;
        };
        file.open = file.open.saturating_sub(1);
        file.private = file.private.saturating_sub(usize::from(is_private));
        if file.open > 0 {
            return;
        }
        let was_mapped = file.mapped;
        files.remove(&ino);
        if was_mapped {
            // No program has the file, so the kernel waits for no request. Programs may soon write
            // past these pages; the mutex delays the next open until then.
            let number = self.tree.number(ino);
            if let (Some(kernel), Ok(number)) = (self.kernel.get(), number) {
                let _ = kernel.inval_inode(INodeNo(number), 0, 0);
            }
            if let Err(error) = self.tree.set_mapped(ino, false) {
                tracing::debug!("inode {:x} stays mapped: {error}", ino.0);
            }
        }
    }
}

//! Admission of other users, whose programs may then use the instance: for programs of root's that
//! become another user.
//!
//! The instance belongs to one user. That user's programs name the other users to be admitted, over
//! a control connection. The server then gives such a user permissions on its directories and files
//! by access control lists ([`weir_store::acl`]), and accepts connections of clients of that user,
//! but no control connections. The journal stays the server's alone.

use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use weir_core::node::landing::POOL;
use weir_core::node::region::{BELL, SPECIAL};
use weir_store::acl::{self, ALL, READ_WRITE, SEARCH};

use super::regions::{Instance, NAMES, OPEN, WORKING_DIRS};

use crate::frame::SOCKET;

/// The directories of a server's instance.
#[derive(Clone, Debug)]
pub struct InstanceDirs {
    run: PathBuf,
    shm: PathBuf,
    storage: Vec<PathBuf>,
}

impl InstanceDirs {
    /// The directories of an instance.
    pub fn of_instance(instance: &Instance) -> InstanceDirs {
        InstanceDirs {
            run: instance.run_dir().to_owned(),
            shm: instance.shm_dir().to_owned(),
            storage: instance.storage_dirs().to_vec(),
        }
    }

    /// Gives a user permissions on the present and future files of clients in the instance.
    pub fn admit(&self, uid: u32) -> Result<(), Errno> {
        // New files get the user in their lists from now on; the present ones follow.
        acl::admit(uid);
        for dir in self.storage.iter().chain([&self.shm, &self.run]) {
            let_through(dir, uid)?;
        }
        for name in [OPEN, NAMES, POOL, BELL] {
            give(&self.shm.join(name), uid, READ_WRITE)?;
        }
        for dir in [WORKING_DIRS, SPECIAL] {
            give(&self.shm.join(dir), uid, ALL)?;
        }
        for dir in self.storage.iter().chain([&self.shm]) {
            for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
                if entry.file_name().as_encoded_bytes().starts_with(b"slab-") {
                    give(&entry.path(), uid, READ_WRITE)?;
                }
            }
        }
        give(&self.run.join(SOCKET), uid, READ_WRITE)
    }
}

/// Lets a user search a directory and its parents, as far as they belong to the server's user.
fn let_through(dir: &Path, uid: u32) -> Result<(), Errno> {
    const OTHERS_SEARCH: u32 = 1;
    let own = rustix::process::geteuid().as_raw();
    for dir in dir.ancestors() {
        let Ok(meta) = dir.metadata() else {
            break;
        };
        if meta.uid() != own || meta.mode() & OTHERS_SEARCH != 0 {
            break;
        }
        give(dir, uid, SEARCH)?;
    }
    Ok(())
}

/// Gives permissions on a path in directories of the server's user. The path need not exist.
fn give(path: &Path, uid: u32, permissions: u16) -> Result<(), Errno> {
    match acl::grant_at(path.as_os_str().as_bytes(), uid, permissions) {
        Err(Errno::NOENT) => Ok(()),
        given => given,
    }
}

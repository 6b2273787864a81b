//! The namespace: tables of inodes and directory entries in shared memory, which a node's server
//! writes and its clients only read.
//!
//! One [`Shard`] (the server, one thread) is the only writer. Any number of
//! [`NamesView`]s read at the same time, without a lock and without a message: `stat` and `open` of
//! an existing file need no request.
//!
//! A reader can trust its answers, because:
//! - A new entry is written whole before it is linked into its bucket with a release
//!   store, and its inode before that. So a reader that finds a name finds its inode.
//! - A change that removes or moves something (unlink, rename, growing of the hash table) happens
//!   while a counter is odd: one of [`STRIPES`] counters for the entries of a bucket,
//!   one counter in each inode record for its attributes. A reader whose counter was
//!   odd, or changed under it, tries again (a sequence lock, as Boehm describes it in
//!   "Can seqlocks get along with programming language memory models?", MSPC 2012).
//! - The memory is another process's: every index is checked against its table, every
//!   walk is bounded. A reader that cannot get a settled answer in a bounded number of
//!   tries (the writer was preempted, or died) gets [`ViewError::Unsettled`]; the caller
//!   then asks the server, which also lends it the CPU.
//!
//! | file | subject |
//! | --- | --- |
//! | `layout` | the records, the file's layout, checking it |
//! | `attr` | the attributes of an inode |
//! | `policy` | how a file is shared between nodes |
//! | `hash`, `dentry` | names as words; the entry's format and the bucket walk |
//! | `seq` | the sequence lock |
//! | `view` | the reader |
//! | `arena`, `inodes`, `order`, `entries` | the writer's parts: memory for entries, inode slots, directory order, the hash table |
//! | `shard`, `rename`, `error` | the operations |
//! | `foreign` | the parts of operations, for a namespace of several servers |
//! | `trees` | the directories of elevated trees |
//! | `changes`, `restore` | the changes for the journal, and the namespace rebuilt from it |
//!
//! Left out: permission checks (an instance has one user), special files. Entries and inodes may
//! live on different servers (see [`crate::placement`]): the server then combines the parts in
//! `foreign`.

mod arena;
mod attr;
mod changes;
mod dentry;
mod entries;
mod error;
mod foreign;
mod hash;
mod inodes;
mod layout;
mod order;
mod policy;
mod rename;
mod restore;
mod seq;
mod shard;
mod steps;
mod trees;
mod view;

#[cfg(test)]
mod concurrency_tests;
#[cfg(test)]
pub(crate) mod memory;
#[cfg(test)]
mod model;
#[cfg(test)]
mod property_tests;
#[cfg(test)]
mod scale_tests;

pub use attr::{Attr, FileType, InodeLife, SetAttr};
pub use changes::TableCursor;
pub use error::NamesError;
pub use foreign::DirPart;
pub use hash::hash_of_bytes;
pub use layout::{
    layout, InodeRecord, Layout, NamesHeader, Section, Tables, TablesError, MAGIC, MIN_BUCKETS,
    STRIPES, VERSION,
};
pub use policy::{LaminateOn, Lamination, Policy, Visibility};
pub use rename::{EntryName, RenameMode, RenameOutcome};
pub use restore::RestoreError;
pub use shard::{Counts, DirEntry, Owner, Shard, TablesPrefix, UnlinkOutcome, FIRST_COOKIE};
pub use trees::NewTree;
pub use view::{NamesView, ViewError};

/// The longest name, in bytes.
pub const NAME_MAX: usize = 255;

/// The longest target of a symbolic link, in bytes (Linux: `PATH_MAX` without its NUL).
pub const SYMLINK_MAX: usize = 4095;

/// The most links an inode may have; directories count one for each child directory.
pub const LINK_MAX: u32 = i32::MAX as u32;

/// The root directory's slot.
pub const ROOT_INDEX: u32 = 1;

//! The paths of entries: the targets of links, and canonical paths.

use rustix::io::Errno;
use weir_core::names::FileType;
use weir_core::types::Ino;

use super::super::outcome::{done, ours};
use super::super::Outcome;
use super::{retry_ours_if_gone, PathLookup, ResolvedFile};
use crate::kernel::{Fd, AT_FDCWD};
use crate::operation;
use crate::path::walk::Names;
use crate::path::ResolvedPath;

impl PathLookup {
    /// readlinkat(2): the number of bytes put.
    pub fn readlinkat(&self, dirfd: Fd, path: &[u8], out: &mut [u8]) -> Outcome<usize> {
        let _call = operation::begin();
        if out.is_empty() {
            let _ = ours!(self.resolve(dirfd, path, false));
            return Some(Err(Errno::INVAL));
        }
        let magic = self.magic_link_target(dirfd, path);
        if let Some(ino) = magic.filter(|ino| *ino != Ino::NONE) {
            return Some(Ok(put(&done!(self.path_or_deleted(ino)), out)));
        }
        let target = self.with_existing(dirfd, path, false, true, |found| match found {
            ResolvedFile::Outside(path) => Ok(rustix::fs::readlink(path, Vec::new())?.into_bytes()),
            ResolvedFile::Inode(ino, FileType::Symlink) => {
                let mut target = [0; weir_core::names::SYMLINK_MAX];
                let length = self.inodes.view()?.target(ino, &mut target)?;
                Ok(target[..length].to_vec())
            }
            // An empty path is valid only for an open link.
            ResolvedFile::Inode(..) if path.is_empty() => Err(Errno::NOENT),
            ResolvedFile::Inode(..) => Err(Errno::INVAL),
        });
        Some(Ok(put(&ours!(target), out)))
    }

    /// One of the paths of an inode; like the kernel's links, also for an inode without a name.
    fn path_or_deleted(&self, ino: Ino) -> Result<Vec<u8>, Errno> {
        match self.inodes.path_of(ino) {
            Err(Errno::NOENT) => {
                let prefix = self
                    .server
                    .connection
                    .instance()
                    .map_or(&[][..], |i| i.roots.main.bytes());
                Ok([prefix, format!("/[{}] (deleted)", ino.0).as_bytes()].concat())
            }
            path => path,
        }
    }

    /// realpath(3): the canonical path of an existing file; returns its length in bytes.
    pub fn realpath(&self, path: &[u8], out: &mut [u8]) -> Outcome<usize> {
        let _call = operation::begin();
        if let Some(ino) = self.magic_link_target(AT_FDCWD, path) {
            return Some(
                self.inodes
                    .path_of(ino)
                    .and_then(|path| put_whole(&path, out)),
            );
        }
        let full = ours!(retry_ours_if_gone(|gone| {
            Some(match ours!(self.resolve(AT_FDCWD, path, true)) {
                ResolvedPath::Dir(dir) => {
                    *gone = Some(dir);
                    self.inodes.path_of(dir)
                }
                ResolvedPath::Outside(path) => match self.magic_link_target(AT_FDCWD, &path) {
                    Some(ino) => self.inodes.path_of(ino),
                    None => canonical_outside(&path),
                },
                ResolvedPath::Below { parent, name, .. } => {
                    let path = self.inodes.path_of(parent);
                    path.map(|path| [&path, &b"/"[..], name.bytes()].concat())
                }
                ResolvedPath::Name { found: None, .. } => Err(Errno::NOENT),
                ResolvedPath::Name {
                    found: Some((_, kind)),
                    slash: true,
                    ..
                } if kind != FileType::Dir => Err(Errno::NOTDIR),
                ResolvedPath::Name { parent, name, .. } => {
                    *gone = Some(parent);
                    let path = self.inodes.path_of(parent);
                    path.map(|path| [&path, &b"/"[..], name.bytes()].concat())
                }
            })
        }));
        // A program that names the kernel mount's directory may pass the answer to the kernel (mount,
        // bwrap), which knows no other path.
        let prefix = self
            .server
            .connection
            .instance()
            .map(|instance| &instance.roots.main);
        let by_mount =
            prefix.and_then(|prefix| Some((prefix.mount_in(path)?, prefix.strip(&full)?)));
        Some(match by_mount {
            Some((mount, below)) => put_whole(&[mount, below].concat(), out),
            None => put_whole(&full, out),
        })
    }
}

/// Copies as much as there is room for.
fn put(text: &[u8], out: &mut [u8]) -> usize {
    let n = text.len().min(out.len());
    out[..n].copy_from_slice(&text[..n]);
    n
}

/// Copies a path with a NUL; fails if there is no room for it.
fn put_whole(path: &[u8], out: &mut [u8]) -> Result<usize, Errno> {
    match path.len() < out.len() {
        true => Ok(put(path, out)),
        false => Err(Errno::NAMETOOLONG),
    }
}

/// The canonical form of a path of the kernel's.
fn canonical_outside(path: &[u8]) -> Result<Vec<u8>, Errno> {
    use std::os::unix::ffi::{OsStrExt, OsStringExt};
    let path = std::path::Path::new(std::ffi::OsStr::from_bytes(path));
    match std::fs::canonicalize(path) {
        Ok(full) => Ok(full.into_os_string().into_vec()),
        Err(error) => Err(error
            .raw_os_error()
            .map_or(Errno::IO, Errno::from_raw_os_error)),
    }
}

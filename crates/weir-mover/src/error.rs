//! The reason why a node was not moved.

use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

/// The reason why a file was not moved.
#[derive(Debug, thiserror::Error)]
pub enum MoveError {
    /// A system call failed.
    #[error("{step} {}: {source}", path.display())]
    Io {
        /// The step, as a participle: "reading".
        step: &'static str,
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The source was written, or replaced, while it was copied.
    #[error("{} was written while it was copied", .0.display())]
    SourceChanged(PathBuf),
    /// Somebody else changed or made the node that has the target's name.
    #[error("{} was changed by somebody else meanwhile; it was not overwritten", .0.display())]
    TargetChanged(PathBuf),
    /// The target has a node that neither this instance has put there, nor its job has replaced.
    #[error("{} is somebody else's: it was put there, or changed, since the job took its name; it was not overwritten (move it away, or set drain.replace_foreign)", .0.display())]
    Foreign(PathBuf),
    /// The target is neither a file nor a symbolic link nor a directory.
    #[error("{} is a device, a FIFO or a socket; it was not replaced", .0.display())]
    Special(PathBuf),
    /// Another process moves a file to the same name.
    #[error("another process writes {}", .0.display())]
    Busy(PathBuf),
    /// The bytes of the target differ from those that were written.
    #[error("{} reads back different from bytes {} to {}", path.display(), range.start, range.end)]
    Different {
        /// The file.
        path: PathBuf,
        /// The bytes.
        range: Range<u64>,
    },
    /// The target is a directory, and the source is not, or the other way around.
    #[error("{} is in the way: {}", path.display(), match is_directory { true => "a directory", false => "not a directory" })]
    OtherKind {
        /// The target.
        path: PathBuf,
        /// True if the target is the directory.
        is_directory: bool,
    },
    /// A program may still write it.
    #[error("a program has {} open for writing", .0.display())]
    Open(PathBuf),
    /// It was written again after its analysis, and before it was copied.
    #[error("{} was written again, and is analysed again before it is moved", .0.display())]
    NotAnalysed(PathBuf),
    /// Other nodes have bytes of it that are not visible yet.
    #[error("{} is not laminated, so bytes that other nodes wrote cannot be read; weir laminate does that", .0.display())]
    NotLaminated(PathBuf),
    /// A symbolic link would lead to a node that could not be moved.
    #[error("{} leads to a node that was not moved; the link stays as it was", .0.display())]
    LeadsToFailed(PathBuf),
    /// Another process could not move its file or piece; or another failure, in words.
    #[error("{0}")]
    Elsewhere(String),
    /// The move was stopped.
    #[error("stopped")]
    Stopped,
}

impl MoveError {
    /// The function that makes an error of a failed call.
    pub(crate) fn io(step: &'static str, path: &Path) -> impl FnOnce(io::Error) -> MoveError {
        let path = path.to_owned();
        move |source| MoveError::Io { step, path, source }
    }

    /// True if a directory could not be removed because it is not empty.
    pub(crate) fn is_directory_not_empty(&self) -> bool {
        matches!(self, MoveError::Io { source, .. } if source.kind() == io::ErrorKind::DirectoryNotEmpty)
    }

    /// True if a name, or the text of a link, is too long.
    pub(crate) fn is_of_long_name(&self) -> bool {
        matches!(self, MoveError::Io { source, .. } if source.kind() == io::ErrorKind::InvalidFilename)
    }

    /// The error number for a program.
    pub fn errno(&self) -> Errno {
        match self {
            MoveError::Io { source, .. } => Errno::from_io_error(source).unwrap_or(Errno::IO),
            // The program may try again when the other one has ended.
            MoveError::SourceChanged(_)
            | MoveError::TargetChanged(_)
            | MoveError::Busy(_)
            | MoveError::Open(_)
            | MoveError::NotAnalysed(_)
            | MoveError::NotLaminated(_) => Errno::BUSY,
            MoveError::Foreign(_) => Errno::EXIST,
            MoveError::Special(_) => Errno::INVAL,
            MoveError::OtherKind {
                is_directory: true, ..
            } => Errno::ISDIR,
            MoveError::OtherKind { .. } => Errno::NOTDIR,
            MoveError::Stopped => Errno::CANCELED,
            MoveError::Different { .. } | MoveError::LeadsToFailed(_) | MoveError::Elsewhere(_) => {
                Errno::IO
            }
        }
    }

    /// True if the target has no room for it.
    pub fn is_out_of_room(&self) -> bool {
        matches!(self, MoveError::Io { source, .. } if source.kind() == io::ErrorKind::StorageFull)
    }

    /// True if a call failed because its paths are on different file systems.
    pub(crate) fn crosses_file_systems(&self) -> bool {
        matches!(self, MoveError::Io { source, .. } if source.kind() == io::ErrorKind::CrossesDevices)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_has_an_error_number() {
        let path = || PathBuf::from("/x");
        let io = |source| MoveError::io("reading", &path())(source);
        let other_kind = |is_directory| MoveError::OtherKind {
            path: path(),
            is_directory,
        };
        let table = [
            (io(io::Error::from_raw_os_error(28)), Errno::NOSPC),
            (io(io::ErrorKind::UnexpectedEof.into()), Errno::IO),
            (MoveError::SourceChanged(path()), Errno::BUSY),
            (MoveError::TargetChanged(path()), Errno::BUSY),
            (MoveError::Foreign(path()), Errno::EXIST),
            (MoveError::Special(path()), Errno::INVAL),
            (MoveError::Busy(path()), Errno::BUSY),
            (
                MoveError::Different {
                    path: path(),
                    range: 0..1,
                },
                Errno::IO,
            ),
            (other_kind(true), Errno::ISDIR),
            (other_kind(false), Errno::NOTDIR),
            (MoveError::Open(path()), Errno::BUSY),
            (MoveError::NotAnalysed(path()), Errno::BUSY),
            (MoveError::NotLaminated(path()), Errno::BUSY),
            (MoveError::LeadsToFailed(path()), Errno::IO),
            (MoveError::Elsewhere("x".to_owned()), Errno::IO),
            (MoveError::Stopped, Errno::CANCELED),
        ];
        for (error, errno) in table {
            assert_eq!(error.errno(), errno, "{error}");
        }
    }
}

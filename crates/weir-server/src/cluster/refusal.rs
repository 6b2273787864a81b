//! Converts errors of the tables of names to errors of operations.

use weir_core::names::NamesError;
use weir_core::proto::FsError;

/// The error of an operation for an error of the tables of names.
pub(crate) fn refusal(error: NamesError) -> FsError {
    match error {
        NamesError::NotFound => FsError::NotFound,
        NamesError::Exists => FsError::Exists,
        NamesError::NotADirectory => FsError::NotADirectory,
        NamesError::IsADirectory => FsError::IsADirectory,
        NamesError::NotEmpty => FsError::NotEmpty,
        NamesError::NameTooLong => FsError::NameTooLong,
        NamesError::InvalidName | NamesError::WrongType => FsError::Invalid,
        NamesError::NoSpace => FsError::NoSpace,
        NamesError::TooManyLinks => FsError::TooManyLinks,
        NamesError::WouldLoop => FsError::WouldLoop,
        NamesError::LinkToDirectory => FsError::NotPermitted,
        NamesError::Stale(_) => FsError::Stale,
        NamesError::Busy(_) => FsError::Busy,
    }
}

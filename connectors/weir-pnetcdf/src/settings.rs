//! The settings of this process, from the environment, where `weir run` puts those of its configuration.

use std::ffi::OsString;
use std::path::PathBuf;

/// Bytes of a block of a pair of files that the processes of a node share.
pub const BLOCK_BYTES: u64 = 8 << 20;

/// How writes are logged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LogSharing {
    /// Writes are not logged.
    None,
    /// Each process has a pair of files.
    Process,
    /// The processes of a node share a pair.
    Node,
}

/// The settings of section `pnetcdf`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Settings {
    pub log: LogSharing,
    /// True if the writes of files that are not in weir are logged, too.
    pub all_files: bool,
    /// True if processes themselves move entries into files in weir; else PnetCDF does it.
    pub is_direct: bool,
    /// Bytes of elements that a process logs before they are moved into the file.
    pub budget: u64,
    /// Bytes of elements that a process moves in one request.
    pub buffer: u64,
    /// The directory of an instance's logs; `None`: there is no instance.
    pub directory: Option<PathBuf>,
}

impl Settings {
    /// Reads the environment.
    pub fn read() -> Settings {
        Settings::from_variables(|name| std::env::var_os(name))
    }

    /// A value that cannot be parsed counts as unset: `weir run` has refused it already.
    fn from_variables(variable: impl Fn(&str) -> Option<OsString>) -> Settings {
        let text = |name| variable(name).and_then(|value| value.into_string().ok());
        let bytes = |name, default| {
            let number = text(name).and_then(|text| text.parse().ok());
            number.filter(|number| *number > 0).unwrap_or(default)
        };
        let mount = variable("WEIR_INSTANCE").and_then(|_| variable("WEIR_AT"));
        let mount = mount.filter(|mount| !mount.is_empty());
        Settings {
            log: match text("WEIR_PNETCDF_LOG").as_deref() {
                Some("none") => LogSharing::None,
                Some("node") => LogSharing::Node,
                _ => LogSharing::Process,
            },
            all_files: text("WEIR_PNETCDF_FILES").as_deref() == Some("all"),
            is_direct: text("WEIR_PNETCDF_FLUSH").as_deref() != Some("pnetcdf"),
            budget: bytes("WEIR_PNETCDF_BUDGET", 256 << 20),
            buffer: bytes("WEIR_PNETCDF_BUFFER", 64 << 20),
            directory: mount.map(|mount| PathBuf::from(mount).join(".pnetcdf")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_understood_is_the_default() {
        let none = Settings::from_variables(|_| None);
        assert_eq!(
            (none.log, none.directory, none.budget),
            (LogSharing::Process, None, 256 << 20)
        );
        let set = Settings::from_variables(|name| {
            let value = match name {
                "WEIR_INSTANCE" => "/run",
                "WEIR_AT" => "/weir",
                "WEIR_PNETCDF_LOG" => "node",
                "WEIR_PNETCDF_BUDGET" => "0",
                _ => "4096",
            };
            Some(value.into())
        });
        assert_eq!(
            (set.log, set.budget, set.buffer),
            (LogSharing::Node, 256 << 20, 4096)
        );
        assert_eq!(set.directory, Some("/weir/.pnetcdf".into()));
    }
}

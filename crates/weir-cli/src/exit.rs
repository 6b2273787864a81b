//! The failures of a command of weir, and their exit codes.
//!
//! `weir run` keeps the codes of its command free, as env(1) and timeout(1) do: 125, 126 and
//! 127 are its own. The other subcommands use small codes. Both are in the manual page, which
//! is made from [`CODES`] and [`RUN_CODES`].

use std::path::PathBuf;

use weir_config::ConfigError;
use weir_launch::LaunchError;
use weir_mover::sources::SourcesRefused;

/// Something failed.
pub const FAILED: u8 = 1;
/// The command line or the configuration was refused.
pub const USAGE: u8 = 2;
/// `weir start`: an instance of that name runs already.
pub const RUNNING: u8 = 3;
/// There is no such instance.
pub const NO_INSTANCE: u8 = 4;
/// `weir stop`: programs use the instance.
pub const IN_USE: u8 = 6;
/// The instance is dead: its server was killed.
pub const DEAD: u8 = 5;
/// `weir stage`: not all was moved.
pub const NOT_MOVED: u8 = 7;
/// `weir drain`: not everything is safe yet.
pub const NOT_YET: u8 = 8;
/// `weir analyze`: some files were not analysed.
pub const NOT_ANALYSED: u8 = 9;
/// `weir run`: the command succeeded, but its data is not all where it was to be.
pub const RUN_NOT_SAFE: u8 = 122;
/// `weir run`: weir itself failed.
pub const RUN_FAILED: u8 = 125;
/// `weir run`: the command was found but cannot be executed.
pub const NOT_EXECUTABLE: u8 = 126;
/// `weir run`: the command was not found.
pub const NOT_FOUND: u8 = 127;

/// The exit codes of all subcommands but `run`.
pub const CODES: &[(u8, &str)] = &[
    (0, "all is well"),
    (FAILED, "something failed; standard error says what"),
    (USAGE, "the command line or the configuration was refused"),
    (RUNNING, "weir start: an instance of that name runs already"),
    (NO_INSTANCE, "there is no such instance"),
    (DEAD, "the instance is dead: its server was killed; weir start goes on with it, weir stop clears it"),
    (IN_USE, "weir stop: programs use the instance; --force stops it all the same"),
    (NOT_MOVED, "weir stage, weir drain, weir stop, weir recover: not all could be moved; what was is whole, and the same command goes on"),
    (NOT_YET, "weir drain: not everything is on the parallel file system yet"),
    (NOT_ANALYSED, "weir analyze: an analysis failed, or files were moved without one; all are moved all the same"),
];

/// The exit codes of `weir run`.
pub const RUN_CODES: &[(u8, &str)] = &[
    (RUN_NOT_SAFE, "the command ended with 0, or by a signal that weir run got, too, but not everything is in the directory of --drain-to; the instance stays, and standard error says which"),
    (RUN_FAILED, "weir itself failed, its command line or configuration was refused, or the instance was stopped or lost while the command ran and the command ended with 0"),
    (NOT_EXECUTABLE, "the command was found but cannot be executed"),
    (NOT_FOUND, "the command was not found"),
];

/// Why a command of weir did not succeed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The configuration was refused.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// `weir start` of what runs already.
    #[error("instance {name} runs already ({}); weir stop {name} ends it", run_dir.display())]
    AlreadyRunning {
        /// Its name.
        name: String,
        /// Its run directory.
        run_dir: PathBuf,
    },
    /// No instance runs there.
    #[error("no instance runs in {}", run_dir.display())]
    NoInstance {
        /// Where it was looked for.
        run_dir: PathBuf,
    },
    /// `weir stop` of what programs use.
    #[error("instance {name} is in use by {by}; weir stop --force {name} stops it all the same")]
    InUse {
        /// Its name.
        name: String,
        /// The programs.
        by: String,
    },
    /// Its server was killed.
    #[error("{why}")]
    Dead {
        /// Which, what it holds and what can be done.
        why: String,
    },
    /// The options exclude each other.
    #[error("{0}")]
    Refused(String),
    /// The command of `weir run` could not be started.
    #[error("{command}: {source}")]
    Command {
        /// The first word of the command.
        command: String,
        /// The error of the system.
        source: std::io::Error,
    },
    /// `weir stage` could not move everything; it has been said what.
    #[error("{0}")]
    NotMoved(String),
    /// `weir drain`: something is not safe yet.
    #[error("{0}")]
    NotYet(String),
    /// `weir analyze`: some files were not analysed.
    #[error("{0}")]
    NotAnalysed(String),
    /// Checks of `weir doctor` failed; they have been printed.
    #[error("this machine needs attention")]
    Unfit,
    /// Anything else.
    #[error("{0:#}")]
    Other(#[from] anyhow::Error),
}

impl From<LaunchError> for Failure {
    fn from(error: LaunchError) -> Self {
        match error {
            LaunchError::AlreadyRunning { name, run_dir } => Self::AlreadyRunning { name, run_dir },
            LaunchError::Dead { why } => Self::Dead { why },
            LaunchError::Other(error) => Self::Other(error),
        }
    }
}

impl From<SourcesRefused> for Failure {
    fn from(refused: SourcesRefused) -> Self {
        Self::Refused(refused.to_string())
    }
}

impl Failure {
    /// The exit code outside of `weir run`.
    pub fn code(&self) -> u8 {
        match self {
            Self::Config(_) | Self::Refused(_) => USAGE,
            Self::AlreadyRunning { .. } => RUNNING,
            Self::NoInstance { .. } => NO_INSTANCE,
            Self::Dead { .. } => DEAD,
            Self::InUse { .. } => IN_USE,
            Self::NotMoved(_) => NOT_MOVED,
            Self::NotYet(_) => NOT_YET,
            Self::NotAnalysed(_) => NOT_ANALYSED,
            Self::Command { .. } | Self::Unfit | Self::Other(_) => FAILED,
        }
    }

    /// The exit code of `weir run`.
    pub fn run_code(&self) -> u8 {
        match self {
            Self::Command { source, .. } if source.kind() == std::io::ErrorKind::NotFound => {
                NOT_FOUND
            }
            Self::Command { .. } => NOT_EXECUTABLE,
            _ => RUN_FAILED,
        }
    }
}

/// The "EXIT STATUS" of the manual and of the help texts.
pub fn table(codes: &[(u8, &str)]) -> String {
    let lines: Vec<String> = codes
        .iter()
        .map(|(code, what)| format!("  {code:>3}  {what}"))
        .collect();
    lines.join("\n")
}

//! Why an instance could not be started.

use std::path::PathBuf;

/// Why an instance could not be started.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// An instance of that name lives.
    #[error("instance {name} runs already ({})", run_dir.display())]
    AlreadyRunning {
        /// Its name.
        name: String,
        /// Its run directory.
        run_dir: PathBuf,
    },
    /// The server of an instance of that name was killed.
    #[error("{why}")]
    Dead {
        /// Which instance, what it holds and what can be done.
        why: String,
    },
    /// Anything else.
    #[error("{0:#}")]
    Other(#[from] anyhow::Error),
}

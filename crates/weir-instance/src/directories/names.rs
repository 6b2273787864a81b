//! The names of instances, and of files in their directories.

use anyhow::{ensure, Result};
use weir_config::Environment;

use super::job::batch_id;

/// The name of the server's socket in the run directory.
pub const SOCKET: &str = "server.sock";
/// The name of the lock by which an agent keeps a directory while its server does not live.
pub(super) const KEEP: &str = "keep";
/// The name of a server's journal in its memory directory.
pub(super) const JOURNAL: &str = "journal";
/// Directories on their way out are renamed to this and a number, so that a name is free at once.
pub(super) const DEAD_PREFIX: &str = ".weir-dead-";
pub(super) const NAME_MOST: usize = 64;

/// The effective user.
pub fn uid() -> u32 {
    nix::unistd::geteuid().as_raw()
}

/// The name `weir start` gives an instance that was not named: of the job, or of the user.
pub fn default_name(env: &Environment) -> String {
    batch_id(env).map_or_else(
        || format!("user-{}", uid()),
        |job| format!("job-{}", tame(job)),
    )
}

/// Replaces each character of a job's id that a name must not hold (`123[4].server`, flux's letters) by `-`.
pub(super) fn tame(text: &str) -> String {
    let kept = |c: char| {
        if c.is_ascii_alphanumeric() || ".-_".contains(c) {
            c
        } else {
            '-'
        }
    };
    text.chars().map(kept).take(NAME_MOST - 8).collect()
}

/// Refuses a name that no instance can have: it becomes part of paths.
pub fn check_name(name: &str) -> Result<()> {
    ensure!(
        !name.is_empty() && name.len() <= NAME_MOST && tame(name).starts_with(&name[..1])
            && name.chars().all(|c| c.is_ascii_alphanumeric() || ".-_".contains(c))
            && !name.starts_with('.'),
        "`{name}` cannot name an instance: use at most {NAME_MOST} letters, digits, `-`, `_` and `.`"
    );
    Ok(())
}

/// The name of the instance of a server that is called so: several servers of one machine are called
/// `NAME`, `NAME.1`, `NAME.2`.
pub(super) fn base_name(name: &str) -> &str {
    match name.rsplit_once('.') {
        Some((base, rank)) if rank.parse::<u16>().is_ok() => base,
        _ => name,
    }
}

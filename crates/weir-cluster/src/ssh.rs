//! A real sshd for each node, with keys and configuration of the cluster's own.
//!
//! It listens on port 22 of its node's namespace, so that programs that start ssh (also MPI launchers)
//! need no options. In each node the cluster's configuration is mounted over the machine's
//! `/etc/ssh/ssh_config`, and a shadow file over `/etc/shadow`: root may be locked there, which sshd
//! without PAM would refuse.

use std::fmt::Write as _;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{ensure, Context, Result};

use crate::{find_program, Node};

/// Without the post-quantum key exchange, which takes most of the time of a connection: here many nodes
/// share the cores of one machine.
const KEX: &str = "KexAlgorithms curve25519-sha256\n";

/// The time limit for an sshd to listen.
const START: Duration = Duration::from_secs(20);

/// Makes keys and configuration, before the nodes' first processes start.
pub fn prepare(cluster: &Path, nodes: &[Node]) -> Result<()> {
    let dir = cluster.join("ssh");
    std::fs::create_dir(&dir)?;
    for key in ["host_key", "user_key"] {
        let status = Command::new("ssh-keygen")
            .args(["-q", "-t", "ed25519", "-N", "", "-C", key, "-f"])
            .arg(dir.join(key))
            .stdin(Stdio::null())
            .status()
            .context("ssh-keygen")?;
        ensure!(status.success(), "ssh-keygen: {status}");
    }
    std::fs::copy(dir.join("user_key.pub"), dir.join("authorized_keys"))?;
    let host_key = std::fs::read_to_string(dir.join("host_key.pub"))?;
    let mut known = String::new();
    for node in nodes {
        write!(known, "{},{} {host_key}", node.host(), node.address())?;
    }
    std::fs::write(dir.join("known_hosts"), known)?;
    std::fs::write(dir.join("ssh_config"), client_config(&dir))?;
    std::fs::write(dir.join("sshd_config"), server_config(&dir))?;
    let shadow = std::fs::read_to_string("/etc/shadow").unwrap_or_default();
    let shadow = shadow.lines().map(unlocked).collect::<Vec<_>>().join("\n") + "\n";
    std::fs::write(dir.join("shadow"), shadow)?;
    let secret = std::fs::Permissions::from_mode(0o600);
    Ok(std::fs::set_permissions(dir.join("shadow"), secret)?)
}

/// A line of shadow(5): root may log in by key, and has no password.
fn unlocked(line: &str) -> String {
    match line
        .strip_prefix("root:")
        .and_then(|rest| rest.split_once(':'))
    {
        Some((_, rest)) => format!("root:*:{rest}"),
        None => line.to_owned(),
    }
}

fn client_config(dir: &Path) -> String {
    let dir = dir.display();
    format!(
        "IdentityFile {dir}/user_key\nIdentitiesOnly yes\nBatchMode yes\nLogLevel ERROR\n\
         GlobalKnownHostsFile {dir}/known_hosts\nUserKnownHostsFile /dev/null\n\
         StrictHostKeyChecking yes\n{KEX}"
    )
}

fn server_config(dir: &Path) -> String {
    let dir = dir.display();
    format!(
        "HostKey {dir}/host_key\nAuthorizedKeysFile {dir}/authorized_keys\nStrictModes no\n\
         PermitRootLogin prohibit-password\nPasswordAuthentication no\nUsePAM no\nUseDNS no\n\
         PidFile /run/sshd.pid\nMaxStartups 1000\nMaxSessions 1000\nPrintMotd no\n{KEX}"
    )
}

/// Starts the daemons and waits until all listen.
pub fn serve(cluster: &Path, nodes: &[Node]) -> Result<()> {
    let sshd = find_program("sshd").context("sshd")?;
    for node in nodes {
        let status = node
            .command(&sshd)
            .arg("-f")
            .arg(cluster.join("ssh/sshd_config"))
            .arg("-E")
            .arg(node.dir().join("sshd.log"))
            .stdin(Stdio::null())
            .status()
            .context("nsenter")?;
        ensure!(status.success(), "sshd of {}: {status}", node.host());
    }
    let start = Instant::now();
    for node in nodes {
        // sshd forks to the background first, and writes its number once it listens.
        let file = format!("/proc/{}/root/run/sshd.pid", node.pid().unwrap_or(0));
        while !Path::new(&file).exists() {
            ensure!(start.elapsed() < START, "sshd of {} is silent", node.host());
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_is_unlocked_and_nobody_else() {
        assert_eq!(unlocked("root:!:19000:0:::::"), "root:*:19000:0:::::");
        assert_eq!(unlocked("rooty:!:1"), "rooty:!:1");
    }
}

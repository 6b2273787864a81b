//! Agents that connect back to the first node's: for pbsdsh, whose programs have no standard input.
//!
//! The first node's agent writes an invitation, of mode 0600, where all nodes see it (the home
//! directory): where it listens, and the charge with the secret. Who connects proves to know the
//! secret, and so does who answers (`greet`).

use std::fs::File;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{ensure, Context, Result};
use serde::{Deserialize, Serialize};
use weir_config::{Environment, Loaded};
use weir_instance::errln;

use crate::address::fabric_listener;
use crate::greet::GreetingSecrets;
use crate::hosted_server::find_here;
use crate::hosted_server::OwnServers;
use crate::message::AgentAssignment;
use crate::server::to_line;

/// The longest invitation, bytes.
const INVITATION_MOST: u64 = 16 << 20;

/// The contents of the file.
#[derive(Debug, Serialize, Deserialize)]
struct Invitation {
    address: SocketAddr,
    charge: AgentAssignment,
}

/// An invitation that stands; dropped, the file is gone. Who comes later is turned away.
#[derive(Debug)]
pub struct Invited {
    file: PathBuf,
    open: Arc<()>,
}

impl Drop for Invited {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.file);
    }
}

/// Writes an invitation for the agents of all servers of `charge`; `came` is called with each that came and proved
/// who it is.
pub fn invite(
    file: &Path,
    charge: AgentAssignment,
    host: &str,
    came: impl Fn(u16, TcpStream) + Send + Sync + 'static,
) -> Result<Invited> {
    let config = Loaded::from_toml(&charge.settings, &Environment::default())?.config;
    let listener = fabric_listener(&config.fabric, host, false)?;
    let invitation = Invitation {
        address: listener.local_addr()?,
        charge,
    };
    let mut options = File::options();
    let mut out = options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(file)?;
    let invited = Invited {
        file: file.to_owned(),
        open: Arc::default(),
    };
    // The file must be complete first: the process that reads this one's standard error starts programs then.
    out.write_all(to_line(&invitation).as_bytes())?;
    let (charge, open) = (Arc::new(invitation.charge), Arc::downgrade(&invited.open));
    let came = Arc::new(came);
    let accept = move || {
        for stream in listener.incoming().flatten() {
            if open.strong_count() == 0 {
                return;
            }
            let (charge, came) = (Arc::clone(&charge), Arc::clone(&came));
            std::thread::spawn(move || match greet(&stream, &charge) {
                Ok(rank) => came(rank, stream),
                Err(e) => errln!("turned away a connection: {e:#}"),
            });
        }
    };
    std::thread::Builder::new()
        .name("weir-invite".into())
        .spawn(accept)?;
    Ok(invited)
}

/// The first node's side of the greeting; the rank of who came.
fn greet(stream: &TcpStream, charge: &AgentAssignment) -> Result<u16> {
    let awaited = |rank| charge.assigned.iter().any(|known| known.rank == rank);
    known(charge).let_in(stream, awaited)
}

fn known(charge: &AgentAssignment) -> GreetingSecrets<'_> {
    GreetingSecrets {
        instance: charge.instance,
        secret: &charge.secret,
    }
}

/// Follows the invitation in `file`: the charge of this node, and both ways of the connection.
pub fn join(file: &Path) -> Result<(AgentAssignment, TcpStream, TcpStream)> {
    let Invitation { address, charge } =
        read(file).with_context(|| format!("the invitation {}", file.display()))?;
    let server = find_here(&charge.assigned)?;
    let stream = known(&charge).come(address, server.rank)?;
    let charge = AgentAssignment {
        assigned: vec![server],
        own: OwnServers::First,
        ..charge
    };
    Ok((charge, stream.try_clone()?, stream))
}

fn read(file: &Path) -> Result<Invitation> {
    let mut options = File::options();
    let file = options
        .read(true)
        .custom_flags(libc::O_NOFOLLOW)
        .open(file)?;
    let meta = file.metadata()?;
    ensure!(
        meta.uid() == weir_instance::directories::uid() && meta.mode().trailing_zeros() >= 6,
        "it is not ours alone"
    );
    let mut text = String::new();
    file.take(INVITATION_MOST).read_to_string(&mut text)?;
    Ok(serde_json::from_str(&text)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hosted_server::HostedServer;
    use crate::reach::StartMethod;
    use std::sync::mpsc::channel;
    use weir_core::roster::{InstanceId, Secret};

    fn charge(secret: u8) -> AgentAssignment {
        AgentAssignment {
            version: String::new(),
            instance: InstanceId([1; 16]),
            secret: Secret::new([secret; 32]),
            name: "x".into(),
            job: weir_instance::directories::Job::default(),
            servers: 2,
            drain_to: None,
            task: crate::message::AgentTask::Start,
            settings: "[fabric]\naddress = \"127.0.0.0/8\"\n".into(),
            assigned: vec![HostedServer::new(1, "localhost".into())],
            own: OwnServers::ByName,
            reach: StartMethod::Nowhere,
            deadline_ms: 1,
            root: false,
            lifeline: true,
            heed_signals: false,
        }
    }

    #[test]
    fn who_knows_the_secret_is_let_in_and_nobody_else() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("invitation");
        let (came, heard) = channel();
        let invited = invite(&file, charge(7), "localhost", move |rank, _| {
            came.send(rank).unwrap();
        });
        let invited = invited.unwrap();
        assert_eq!(file.metadata().unwrap().mode() & 0o777, 0o600);
        // Somebody who found out where, but not the secret.
        let mut other = read(&file).unwrap();
        other.charge.secret = Secret::new([8; 32]);
        let forged = dir.path().join("forged");
        let mut options = File::options();
        let mut out = options
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&forged)
            .unwrap();
        out.write_all(to_line(&other).as_bytes()).unwrap();
        let refused = join(&forged).unwrap_err();
        assert!(refused.to_string().contains("turned us away"), "{refused}");
        assert!(heard.try_recv().is_err());

        let (charge, _, _) = join(&file).unwrap();
        assert_eq!(charge.assigned[0].rank, 1);
        assert_eq!(heard.recv(), Ok(1));
        drop(invited);
        assert!(!file.exists());
    }

    #[test]
    fn an_invitation_that_others_can_read_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("invitation");
        std::fs::write(&file, "{}").unwrap();
        let refused = read(&file).unwrap_err();
        assert!(refused.to_string().contains("not ours alone"), "{refused}");
    }
}

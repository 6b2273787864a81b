//! How two programs of one user, on two nodes, prove to each other that they know a secret.
//!
//! ```text
//!  who listens                                       who connects
//!   | --- 32 random bytes A ------------------------->|
//!   |<-- number (u16, little endian), 32 random bytes B,|
//!   |    MAC("agent", A, B, number) ------------------|
//!   | --- MAC("root", B, A, number) ----------------->|   then lines
//! ```
//!
//! Neither sends the secret. The MAC is BLAKE3, keyed with it, over the instance's id and what is
//! in parentheses. The lines that follow are not secret, and whoever could change them on the way
//! could disturb the servers as well.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{ensure, Context, Result};
use weir_core::roster::{InstanceId, Secret};

use crate::random::random;

/// How long a step of the greeting, or a connection, may take.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// The knowledge of both sides.
#[derive(Clone, Copy, Debug)]
pub struct GreetingSecrets<'a> {
    /// Which life of an instance it is about.
    pub instance: InstanceId,
    /// The secret.
    pub secret: &'a Secret,
}

impl GreetingSecrets<'_> {
    /// The listener's side; the number of who came, which `awaited` must know.
    pub fn let_in(&self, mut stream: &TcpStream, awaited: impl FnOnce(u16) -> bool) -> Result<u16> {
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let ours: [u8; 32] = random()?;
        stream.write_all(&ours)?;
        let (mut number, mut theirs, mut proof) = ([0; 2], [0; 32], [0; 32]);
        stream.read_exact(&mut number)?;
        stream.read_exact(&mut theirs)?;
        stream.read_exact(&mut proof)?;
        // Comparing hashes takes the same time wherever they differ.
        ensure!(
            self.mac("agent", &ours, &theirs, number) == blake3::Hash::from_bytes(proof),
            "it does not know the secret"
        );
        let came = u16::from_le_bytes(number);
        ensure!(awaited(came), "no number {came} is awaited");
        stream.write_all(self.mac("root", &theirs, &ours, number).as_bytes())?;
        stream.set_read_timeout(None)?;
        stream.set_write_timeout(None)?;
        Ok(came)
    }

    /// Connects as `number`.
    pub fn come(&self, address: SocketAddr, number: u16) -> Result<TcpStream> {
        let mut stream = TcpStream::connect_timeout(&address, PATIENCE)
            .with_context(|| format!("the first node's {address}"))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let (ours, number): ([u8; 32], _) = (random()?, number.to_le_bytes());
        let (mut theirs, mut proof) = ([0; 32], [0; 32]);
        stream.read_exact(&mut theirs)?;
        stream.write_all(&number)?;
        stream.write_all(&ours)?;
        stream.write_all(self.mac("agent", &theirs, &ours, number).as_bytes())?;
        stream
            .read_exact(&mut proof)
            .context("the first node turned us away")?;
        ensure!(
            self.mac("root", &ours, &theirs, number) == blake3::Hash::from_bytes(proof),
            "who answers at {address} does not know the secret"
        );
        stream.set_read_timeout(None)?;
        Ok(stream)
    }

    fn mac(&self, side: &str, first: &[u8], second: &[u8], number: [u8; 2]) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new_keyed(self.secret.expose());
        // Parts of fixed lengths after the side's zero: nothing can be taken for something else.
        let parts = [
            side.as_bytes(),
            &[0],
            &self.instance.0,
            first,
            second,
            &number,
        ];
        for part in parts {
            hasher.update(part);
        }
        hasher.finalize()
    }
}

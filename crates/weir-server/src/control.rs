//! Connections to a running server, for `weir status` and other tools.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use weir_core::proto::{self, FsError, Hello, Operation, Role, Welcome};

use crate::frame;

/// The time in which a server must answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// The reason why a request to a server failed.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// The server's socket does not exist, or was closed.
    #[error("the server does not answer")]
    Unreachable(#[from] std::io::Error),
    /// It speaks another version of the protocol.
    #[error("the server speaks version {0} of the protocol, this program version {ours}", ours = proto::VERSION)]
    Version(u32),
    /// Its answer could not be decoded.
    #[error("the server's answer cannot be understood")]
    Garbled,
    /// It refused the request.
    #[error("the server refused")]
    Refused(#[from] FsError),
}

/// A control connection.
#[derive(Debug)]
pub struct Control {
    socket: UnixStream,
    welcome: Welcome,
}

impl Control {
    /// Connects to the server of the instance with this run directory.
    pub fn connect(run_dir: &Path) -> Result<Control, ControlError> {
        let socket = UnixStream::connect(run_dir.join(frame::SOCKET))?;
        socket.set_read_timeout(Some(PATIENCE))?;
        socket.set_write_timeout(Some(PATIENCE))?;
        let hello = Hello {
            version: proto::VERSION,
            role: Role::Control,
        };
        let mut bytes = Vec::new();
        proto::encode(&hello, &mut bytes);
        let bytes = exchange(&socket, &bytes)?;
        let welcome: Welcome = postcard::from_bytes(&bytes).map_err(|_| ControlError::Garbled)?;
        if welcome.version != proto::VERSION {
            return Err(ControlError::Version(welcome.version));
        }
        Ok(Control { socket, welcome })
    }

    /// The server's welcome.
    pub fn welcome(&self) -> &Welcome {
        &self.welcome
    }

    /// Makes the server do `op`.
    pub fn call<O: Operation>(&mut self, op: O) -> Result<O::Reply, ControlError> {
        let mut bytes = Vec::new();
        proto::request(op, &mut bytes);
        let bytes = exchange(&self.socket, &bytes)?;
        Ok(proto::reply::<O>(&bytes)?)
    }
}

fn exchange(mut socket: &UnixStream, message: &[u8]) -> Result<Vec<u8>, ControlError> {
    socket.write_all(&frame::frame(message))?;
    let mut head = [0; 4];
    socket.read_exact(&mut head)?;
    let length = u32::from_le_bytes(head) as usize;
    if length > frame::MAX_REPLY {
        return Err(ControlError::Garbled);
    }
    let mut reply = vec![0; length];
    socket.read_exact(&mut reply)?;
    Ok(reply)
}

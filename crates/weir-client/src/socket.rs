//! The Unix socket to the server: frames, and the greeting.
//!
//! ```text
//! +-----------------+---------------------+
//! | length (u32 LE) | postcard, `length`  |
//! +-----------------+---------------------+
//! ```
//!
//! The client sends Hello, the server Welcome; then the socket is silent, and shows each side that
//! the other lives. With Welcome comes a descriptor of the placeholder directory, which has no
//! name. Raw system calls only; every wait has a limit.

use core::mem::MaybeUninit;
use core::time::Duration;

use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::{self, Errno};
use rustix::net::{
    self, sockopt, AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags,
    SocketAddrUnix, SocketFlags, SocketType,
};
use serde::de::DeserializeOwned;
use serde::Serialize;
use weir_core::proto::{self, Hello, Role, Welcome};

/// The time that a server may take to answer on the socket.
const PATIENCE: Duration = Duration::from_secs(20);
/// The longest frame that is accepted.
const MAX_FRAME: usize = 16 << 20;

/// The result of connecting to a server.
#[derive(Debug)]
pub struct Connected {
    /// The socket.
    pub socket: OwnedFd,
    /// The server's greeting.
    pub welcome: Welcome,
    /// The placeholder directory, opened with O_PATH.
    pub placeholder: OwnedFd,
}

/// Connects to the server of the instance with this run directory and greets it.
pub fn connect(run_dir: &[u8], role: Role) -> Result<Connected, Errno> {
    let socket = new_socket()?;
    for timeout in [sockopt::Timeout::Recv, sockopt::Timeout::Send] {
        sockopt::set_socket_timeout(&socket, timeout, Some(PATIENCE))?;
    }
    connect_to(&socket, run_dir, b"server.sock")?;
    let hello = Hello {
        version: proto::VERSION,
        role,
    };
    send(&socket, &hello)?;
    let (welcome, placeholder): (Welcome, _) = receive_with(&socket)?;
    if welcome.version != proto::VERSION {
        return Err(Errno::PROTONOSUPPORT);
    }
    if welcome.client == proto::NO_CLIENT {
        return Err(Errno::USERS);
    }
    if welcome.client == proto::NO_ROOM {
        return Err(Errno::NOSPC);
    }
    Ok(Connected {
        socket,
        welcome,
        // It comes unless there is no number left for it.
        placeholder: placeholder.ok_or(Errno::MFILE)?,
    })
}

/// Sends one request to a service of the instance that has a socket of this name in the run directory, and receives one
/// reply, for which it waits as long as it takes. ENOTCONN: nothing serves there.
pub fn ask<Q: Serialize, R: DeserializeOwned>(
    run_dir: &[u8],
    name: &[u8],
    request: &Q,
) -> Result<R, Errno> {
    let socket = new_socket()?;
    connect_to(&socket, run_dir, name).map_err(|error| match error {
        Errno::NOENT | Errno::CONNREFUSED => Errno::NOTCONN,
        error => error,
    })?;
    send(&socket, request)?;
    Ok(receive_with(&socket)?.0)
}

fn new_socket() -> Result<OwnedFd, Errno> {
    net::socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )
}

fn connect_to(socket: &OwnedFd, run_dir: &[u8], name: &[u8]) -> Result<(), Errno> {
    let path = [run_dir, b"/", name].concat();
    match SocketAddrUnix::new(path) {
        Ok(address) => io::retry_on_intr(|| net::connect(socket, &address)),
        // Longer than a socket address may be: use a descriptor of the directory.
        Err(Errno::NAMETOOLONG) => {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let dir = crate::kernel::into_number(rustix::fs::open(run_dir, flags, Mode::empty())?);
            let path = [format!("/proc/self/fd/{dir}/").as_bytes(), name].concat();
            let address = SocketAddrUnix::new(path)?;
            let connected = io::retry_on_intr(|| net::connect(socket, &address));
            let _ = crate::kernel::close(dir);
            connected
        }
        Err(error) => Err(error),
    }
}

/// Sends one message.
pub fn send<T: Serialize>(socket: impl AsFd, message: &T) -> Result<(), Errno> {
    let mut frame = vec![0; 4];
    proto::encode(message, &mut frame);
    let length = u32::try_from(frame.len() - 4).map_err(|_| Errno::MSGSIZE)?;
    frame[..4].copy_from_slice(&length.to_le_bytes());
    let mut rest = &frame[..];
    while !rest.is_empty() {
        let sent = io::retry_on_intr(|| net::send(&socket, rest, net::SendFlags::NOSIGNAL))?;
        rest = &rest[sent..];
    }
    Ok(())
}

/// Receives one message, and the descriptor that came with it; ECONNRESET if the other side has
/// gone.
pub fn receive_with<T: DeserializeOwned>(socket: impl AsFd) -> Result<(T, Option<OwnedFd>), Errno> {
    let mut length = [0; 4];
    let (got, gift) = receive_some_with(&socket, &mut length)?;
    receive_all(&socket, &mut length[got..])?;
    let length = u32::from_le_bytes(length) as usize;
    if length > MAX_FRAME {
        return Err(Errno::PROTO);
    }
    let mut frame = vec![0; length];
    receive_all(&socket, &mut frame)?;
    let message = postcard::from_bytes(&frame).map_err(|_| Errno::PROTO)?;
    Ok((message, gift))
}

/// Receives the first bytes of a message; a descriptor comes with the first one (unix(7)).
fn receive_some_with(
    socket: impl AsFd,
    buffer: &mut [u8],
) -> Result<(usize, Option<OwnedFd>), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut buffers = [io::IoSliceMut::new(buffer)];
    let received = io::retry_on_intr(|| {
        net::recvmsg(&socket, &mut buffers, &mut control, RecvFlags::CMSG_CLOEXEC)
    })?;
    if received.bytes == 0 {
        return Err(Errno::CONNRESET);
    }
    let gift = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut gifts) => gifts.next(),
        _ => None,
    });
    Ok((received.bytes, gift))
}

fn receive_all(socket: impl AsFd, mut buffer: &mut [u8]) -> Result<(), Errno> {
    while !buffer.is_empty() {
        let (got, _) = io::retry_on_intr(|| net::recv(&socket, &mut *buffer, RecvFlags::empty()))?;
        if got == 0 {
            return Err(Errno::CONNRESET);
        }
        buffer = &mut buffer[got..];
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_passes_and_a_closed_socket_is_told() {
        let (a, b) = net::socketpair(
            AddressFamily::UNIX,
            SocketType::STREAM,
            SocketFlags::CLOEXEC,
            None,
        )
        .unwrap();
        let hello = Hello {
            version: 7,
            role: Role::Control,
        };
        send(&a, &hello).unwrap();
        let receive = |socket| receive_with::<Hello>(socket).map(|(hello, _)| hello);
        assert_eq!(receive(&b), Ok(hello));
        io::write(&a, &u32::MAX.to_le_bytes()).unwrap();
        assert_eq!(receive(&b), Err(Errno::PROTO), "an absurd length");
        drop(a);
        assert_eq!(receive(&b), Err(Errno::CONNRESET));
    }
}

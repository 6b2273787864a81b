//! Sends from and receives into mapped memory, without a copy in between.
//!
//! Processes share the memory and it may change at any time, so no slice of it is ever made: the
//! kernel gets its addresses. Neither call waits, or raises a signal.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use crate::window::Window;

/// Buffers of one call; the kernel takes 1024 (`UIO_MAXIOV`).
pub const MOST_PIECES: usize = 512;

/// Sends `head`, then the bytes of at most [`MOST_PIECES`] windows, as far as the socket takes
/// them.
pub fn send(
    to: BorrowedFd<'_>,
    head: &[u8],
    windows: impl Iterator<Item = io::Result<Window>>,
) -> io::Result<usize> {
    let mut parts = Vec::with_capacity(16);
    parts.push(libc::iovec {
        // The kernel does not write there: it is asked to send.
        iov_base: head.as_ptr().cast_mut().cast(),
        iov_len: head.len(),
    });
    for window in windows.take(MOST_PIECES) {
        let window = window?;
        parts.push(libc::iovec {
            iov_base: window.base().cast(),
            iov_len: window.len(),
        });
    }
    // SAFETY: a msghdr of zeros is a valid one: no address, no control data, no buffers.
    let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
    message.msg_iov = parts.as_mut_ptr();
    message.msg_iovlen = parts.len();
    let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
    // SAFETY: the buffers are `head`, borrowed for the call, and windows, which are mapped
    // until the process ends; the kernel only reads them.
    let sent = unsafe { libc::sendmsg(to.as_raw_fd(), &raw const message, flags) };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

/// Receives up to `most` bytes to `at` of the window, in which that range must lie.
pub fn receive(from: BorrowedFd<'_>, window: Window, at: usize, most: usize) -> io::Result<usize> {
    assert!(at <= window.len() && most <= window.len() - at);
    // SAFETY: the range lies within the window (asserted), which is mapped writable until the
    // process ends, and to which no Rust reference exists.
    let took = unsafe {
        let to = window.base().add(at).cast();
        libc::recv(from.as_raw_fd(), to, most, libc::MSG_DONTWAIT)
    };
    usize::try_from(took).map_err(|_| io::Error::last_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::map::{create_sparse, Mapping};
    use crate::testdir::TestDir;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    #[test]
    fn what_is_sent_from_memory_is_received_into_memory() {
        let dir = TestDir::new("socket");
        let file = create_sparse(dir.fd(), "w", 1 << 16).unwrap();
        let whole = Mapping::new(&file, 1 << 16).unwrap();
        let whole = whole.leak_window();
        let bytes: Vec<u8> = (0..=255).collect();
        whole.write(100, &bytes);
        let (a, b) = UnixStream::pair().unwrap();
        let parts = [(110, 3), (100, 1), (355, 1)];
        let parts =
            parts.map(|(at, len)| whole.part(at, len).ok_or(io::ErrorKind::NotFound.into()));
        assert_eq!(send(a.as_fd(), b"head", parts.into_iter()).unwrap(), 9);
        assert_eq!(receive(b.as_fd(), whole, 4000, 100).unwrap(), 9);
        let mut came = [0; 10];
        whole.read(4000, &mut came);
        assert_eq!(&came, b"head\x0a\x0b\x0c\x00\xff\x00");
        let none = receive(b.as_fd(), whole, 0, 1).unwrap_err();
        assert_eq!(none.kind(), io::ErrorKind::WouldBlock);
        drop(b);
        let broken = send(a.as_fd(), b"x", std::iter::empty()).unwrap_err();
        assert_eq!(broken.kind(), io::ErrorKind::BrokenPipe);
    }
}

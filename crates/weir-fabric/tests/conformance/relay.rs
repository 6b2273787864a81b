//! A relay that breaks TCP connections.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};

/// Passes connections on to `behind`, and breaks each after a number of bytes that grows.
pub fn relay(behind: SocketAddr) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for (i, near) in listener.incoming().enumerate() {
            let Ok(near) = near else { return };
            let Ok(far) = TcpStream::connect(behind) else {
                return; // the server was killed
            };
            let bytes = 2000 + 3000 * i;
            for (from, to) in [
                (near.try_clone().unwrap(), far.try_clone().unwrap()),
                (far, near),
            ] {
                std::thread::spawn(move || pass_on(from, to, bytes));
            }
        }
    });
    address
}

fn pass_on(mut from: TcpStream, mut to: TcpStream, bytes: usize) {
    let (mut left, mut buffer) = (bytes, [0; 500]);
    while left > 0 {
        match from.read(&mut buffer) {
            Ok(n) if n > 0 && to.write_all(&buffer[..n]).is_ok() => {
                left = left.saturating_sub(n);
            }
            _ => break,
        }
    }
    let _ = to.shutdown(Shutdown::Both);
    let _ = from.shutdown(Shutdown::Both);
}

//! A link used by plain blocking TCP.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread::JoinHandle;

use crate::STEP;

/// Bytes of an echoed message.
pub const SMALL: usize = 64;

fn connection() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let near = TcpStream::connect(listener.local_addr().expect("an address")).expect("connected");
    let (far, _) = listener.accept().expect("accepted");
    near.set_nodelay(true).expect("an option of TCP");
    far.set_nodelay(true).expect("an option of TCP");
    (near, far)
}

/// A thread that sends back what it reads.
pub struct Echo {
    near: TcpStream,
    thread: Option<JoinHandle<()>>,
}

impl Echo {
    pub fn new() -> Echo {
        let (near, mut far) = connection();
        let thread = std::thread::spawn(move || {
            let mut bytes = [0; SMALL];
            while far.read_exact(&mut bytes).is_ok() {
                far.write_all(&bytes).expect("written");
            }
        });
        Echo {
            near,
            thread: Some(thread),
        }
    }

    /// Seconds for `count` round trips.
    pub fn trips(&mut self, count: u32) -> f64 {
        let mut bytes = [1; SMALL];
        crate::timed(|| {
            for _ in 0..count {
                self.near.write_all(&bytes).expect("written");
                self.near.read_exact(&mut bytes).expect("read");
            }
        })
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        let _ = self.near.shutdown(std::net::Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Seconds for `bytes` over `streams` connections at once, out of one buffer of `file` bytes into
/// buffers of `size`.
pub fn stream(streams: usize, bytes: usize, file: usize, size: usize) -> f64 {
    let ends: Vec<_> = (0..streams).map(|_| connection()).collect();
    let each = bytes / streams;
    let source = &vec![7; file];
    let mut buffers: Vec<_> = (0..streams).map(|_| vec![1; size]).collect();
    crate::timed(|| {
        std::thread::scope(|scope| {
            for (i, ((mut near, mut far), buffer)) in ends.into_iter().zip(&mut buffers).enumerate()
            {
                scope.spawn(move || {
                    let steps = source.chunks_exact(STEP.min(file)).cycle();
                    for step in steps.skip(i * file / STEP / 4).take(each / STEP.min(file)) {
                        far.write_all(step).expect("written");
                    }
                });
                scope.spawn(move || {
                    let mut done = 0;
                    while done < each {
                        let part = &mut buffer[done % size..];
                        let most = part.len().min(STEP);
                        done += near.read(&mut part[..most]).expect("read");
                    }
                });
            }
        });
    })
}

//! The links as plain blocking TCP uses them: what remote reads and requests are compared with.
//!
//! Streams do what iperf3 does: each connection has a thread at both ends, which sends or receives
//! 128 KiB a call, out of and into one buffer. A connection begins with the token of its step, so
//! that whoever else connects is not taken for a stream. Programs that work in lock-step meet over such
//! connections.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{anyhow, ensure, Context, Result};
use serde::{Deserialize, Serialize};

use crate::timing::{now_ns, timing_since, Prepared};

/// The bytes that one call sends or receives: iperf3's default.
pub const STEP: usize = 128 << 10;
/// Bytes of a small message.
pub const SMALL: usize = 64;
/// The most connections of one step.
const STREAMS_MOST: usize = 4096;
/// How long the other end may take to connect.
const PATIENCE: Duration = Duration::from_secs(20);

/// Bytes over plain TCP connections, as iperf3 moves them: 128 KiB a call, out of and into one buffer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Streams {
    /// The addresses to connect and send to, a connection each.
    pub to: Vec<SocketAddr>,
    /// The number of connections that come here.
    pub from: u32,
    /// Bytes of each connection.
    pub bytes: u64,
    /// The first bytes of each connection.
    pub token: [u8; 16],
}

/// The process that holds a barrier.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BarrierHolder {
    /// The address of the process that holds the barrier.
    pub address: SocketAddr,
    /// The first bytes of the connection.
    pub token: [u8; 16],
}

/// Listens on this node's address.
pub fn listen(address: IpAddr) -> Result<TcpListener> {
    TcpListener::bind((address, 0)).with_context(|| format!("listening on {address}"))
}

fn connect(to: SocketAddr, token: &[u8; 16]) -> Result<TcpStream> {
    let mut stream =
        TcpStream::connect_timeout(&to, PATIENCE).with_context(|| format!("connecting to {to}"))?;
    stream.write_all(token)?;
    Ok(stream)
}

/// The next connection that begins with `token`.
fn accept(listener: &TcpListener, token: &[u8; 16]) -> Result<TcpStream> {
    let begin = Instant::now();
    listener.set_nonblocking(true)?;
    loop {
        match listener.accept() {
            Ok((mut stream, _)) => {
                stream.set_nonblocking(false)?;
                stream.set_read_timeout(Some(PATIENCE))?;
                let mut theirs = [0; 16];
                let whole = stream.read_exact(&mut theirs);
                if whole.is_ok() && theirs == *token {
                    stream.set_read_timeout(None)?;
                    return Ok(stream);
                }
            }
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {
                ensure!(begin.elapsed() < PATIENCE, "nobody connected");
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(e) => return Err(e.into()),
        }
    }
}

/// Connects, and lets others connect.
pub fn streams<'a>(listener: Option<&TcpListener>, streams: &Streams) -> Result<Prepared<'a>> {
    let Streams {
        to,
        from,
        bytes,
        token,
    } = streams;
    let bytes = *bytes;
    ensure!(
        to.len() <= STREAMS_MOST && *from as usize <= STREAMS_MOST,
        "too many connections"
    );
    let sending = to.iter().map(|to| connect(*to, token));
    let sending: Vec<TcpStream> = sending.collect::<Result<_>>()?;
    let mut coming = Vec::new();
    for _ in 0..*from {
        let listener = listener.context("nothing listens")?;
        coming.push(accept(listener, token)?);
    }
    let moved = bytes * (sending.len() + coming.len()) as u64;
    Ok(Box::new(move || {
        let start_ns = now_ns();
        let spawn = |stream: TcpStream, act: fn(TcpStream, u64) -> std::io::Result<()>| {
            std::thread::spawn(move || act(stream, bytes))
        };
        let sending = sending.into_iter().map(|stream| spawn(stream, send_all));
        let coming = coming.into_iter().map(|stream| spawn(stream, receive_all));
        let threads: Vec<JoinHandle<_>> = sending.chain(coming).collect();
        for thread in threads {
            thread.join().map_err(|_| anyhow!("a stream panicked"))??;
        }
        Ok(timing_since(start_ns, moved, 1))
    }))
}

fn send_all(mut stream: TcpStream, mut bytes: u64) -> std::io::Result<()> {
    let buffer = vec![7; STEP];
    while bytes > 0 {
        let most = usize::try_from(bytes).unwrap_or(STEP).min(STEP);
        bytes -= stream.write(&buffer[..most])? as u64;
    }
    Ok(())
}

fn receive_all(mut stream: TcpStream, mut bytes: u64) -> std::io::Result<()> {
    let mut buffer = vec![1; STEP];
    while bytes > 0 {
        let most = usize::try_from(bytes).unwrap_or(STEP).min(STEP);
        match stream.read(&mut buffer[..most])? {
            0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
            read => bytes -= read as u64,
        }
    }
    Ok(())
}

/// Asks an echo, or is one, over a connection that sends small messages at once.
pub fn echo<'a>(
    listener: Option<&TcpListener>,
    to: Option<SocketAddr>,
    trips: u32,
    token: &[u8; 16],
) -> Result<Prepared<'a>> {
    let mut stream = match to {
        Some(to) => connect(to, token)?,
        None => accept(listener.context("nothing listens")?, token)?,
    };
    stream.set_nodelay(true)?;
    Ok(Box::new(move || {
        let mut bytes = [1; SMALL];
        let start_ns = now_ns();
        for _ in 0..trips {
            if to.is_some() {
                stream.write_all(&bytes)?;
                stream.read_exact(&mut bytes)?;
            } else {
                stream.read_exact(&mut bytes)?;
                stream.write_all(&bytes)?;
            }
        }
        let bytes = 2 * SMALL as u64 * u64::from(trips);
        Ok(timing_since(start_ns, bytes, u64::from(trips)))
    }))
}

/// Lets `from` connect and holds the barrier at which they meet.
pub fn barrier<'a>(
    listener: Option<&TcpListener>,
    from: u32,
    times: u32,
    token: &[u8; 16],
) -> Result<Prepared<'a>> {
    ensure!(from as usize <= STREAMS_MOST, "too many connections");
    let listener = listener.context("nothing listens")?;
    let mut all = Vec::new();
    for _ in 0..from {
        let stream = accept(listener, token)?;
        stream.set_nodelay(true)?;
        all.push(stream);
    }
    Ok(Box::new(move || {
        let mut byte = [1];
        let start_ns = now_ns();
        for _ in 0..times {
            for stream in &mut all {
                stream.read_exact(&mut byte)?;
            }
            for stream in &mut all {
                stream.write_all(&byte)?;
            }
        }
        Ok(timing_since(start_ns, 0, u64::from(times)))
    }))
}

/// The connection to a barrier.
pub struct AtBarrier(TcpStream);

impl AtBarrier {
    /// Connects to where the barrier is held.
    pub fn connect(meeting: &BarrierHolder) -> Result<AtBarrier> {
        let stream = connect(meeting.address, &meeting.token)?;
        stream.set_nodelay(true)?;
        Ok(AtBarrier(stream))
    }

    /// Waits for all others.
    pub fn wait(&mut self) -> std::io::Result<()> {
        let mut byte = [1];
        self.0.write_all(&byte)?;
        self.0.read_exact(&mut byte)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    fn step(to: Vec<SocketAddr>, from: u32, bytes: u64) -> Streams {
        Streams {
            to,
            from,
            bytes,
            token: [3; 16],
        }
    }

    #[test]
    fn a_stranger_is_not_taken_for_a_stream() {
        let listener = listen(Ipv4Addr::LOCALHOST.into()).unwrap();
        let address = listener.local_addr().unwrap();
        let mut stranger = TcpStream::connect(address).unwrap();
        stranger.write_all(&[9; 16]).unwrap();
        drop(TcpStream::connect(address).unwrap());
        let sender = std::thread::spawn(move || {
            streams(None, &step(vec![address, address], 0, 300_000)).unwrap()()
        });
        let taken = streams(Some(&listener), &step(Vec::new(), 2, 300_000)).unwrap()().unwrap();
        assert_eq!(taken.bytes, 600_000);
        assert_eq!(sender.join().unwrap().unwrap().bytes, 600_000);
    }

    #[test]
    fn an_end_that_goes_away_is_an_error() {
        let listener = listen(Ipv4Addr::LOCALHOST.into()).unwrap();
        let address = listener.local_addr().unwrap();
        let gone = std::thread::spawn(move || drop(connect(address, &[3; 16]).unwrap()));
        let take = streams(Some(&listener), &step(Vec::new(), 1, 1)).unwrap();
        gone.join().unwrap();
        assert!(take().is_err());
    }
}

//! Messages between processes of weir, each a line of JSON.

use std::io::{self, BufRead, Read, Write};

use serde::de::DeserializeOwned;
use serde::Serialize;

/// Sends a message as a line.
pub fn send(mut stream: impl Write, message: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    stream.write_all(&line)
}

/// Receives a message of at most so many bytes. UnexpectedEof: the other side has ended.
pub fn receive<R: DeserializeOwned>(stream: &mut impl BufRead, most_bytes: u64) -> io::Result<R> {
    let mut line = String::new();
    if stream.take(most_bytes).read_line(&mut line)? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(serde_json::from_str(&line)?)
}

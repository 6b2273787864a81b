//! Frames on the server's socket.
//!
//! ```text
//! +-----------------+---------------------+
//! | length (u32 LE) | postcard, `length`  |
//! +-----------------+---------------------+
//! ```

/// The longest frame that a server takes: requests are short, and the sender may be faulty.
pub const MAX_REQUEST: usize = 64 << 10;
/// The longest frame that a tool takes from a server.
pub const MAX_REPLY: usize = 16 << 20;
/// The name of the socket in the run directory.
pub const SOCKET: &str = "server.sock";

/// The error that a frame is too long.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a frame of {0} bytes")]
pub struct TooLong(pub usize);

/// Makes a frame of a message.
pub fn frame(message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).unwrap_or(u32::MAX);
    [&length.to_le_bytes(), message].concat()
}

/// Takes the first whole frame out of the received bytes.
pub fn take_frame(received: &mut Vec<u8>, max: usize) -> Result<Option<Vec<u8>>, TooLong> {
    let Some(head) = received.first_chunk::<4>() else {
        return Ok(None);
    };
    let length = u32::from_le_bytes(*head) as usize;
    if length > max {
        return Err(TooLong(length));
    }
    if received.len() < 4 + length {
        return Ok(None);
    }
    let rest = received.split_off(4 + length);
    let mut whole = std::mem::replace(received, rest);
    whole.drain(..4);
    Ok(Some(whole))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_come_out_whole_and_in_order() {
        let bytes = [frame(b"one"), frame(b""), frame(b"three")].concat();
        let mut received = Vec::new();
        let mut out = Vec::new();
        for byte in bytes {
            received.push(byte);
            out.extend(take_frame(&mut received, 10).unwrap());
        }
        assert_eq!(out, [b"one".to_vec(), vec![], b"three".to_vec()]);
        assert_eq!(take_frame(&mut frame(&[0; 11]), 10), Err(TooLong(11)));
    }
}

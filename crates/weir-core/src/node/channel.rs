//! A client's request channels: each has one request and its reply, in shared memory.
//!
//! ```text
//! IDLE -> (client writes the request) -> REQUEST -> (server) -> REPLY -> (client) -> IDLE
//! ```
//!
//! Each side fills its message and then changes `state`, and reads the other's message once `state` shows
//! it. A client that does not find its reply sets `client_sleeps` and sleeps on the futex of `state` as long
//! as that is [`REQUEST`]: the kernel looks at it again, behind a fence. The server changes `state` and then
//! looks at `client_sleeps`. So one of the two sees the other. Sleeping and waking are the callers'. One
//! thread of a client uses a channel at a time (a lock of its process).
//!
//! A client begins with one channel, which is enough for one thread. When a thread finds it taken,
//! the client asks for the others ([`WIDEN`]), which have no memory before.

use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// The channels of a client: the number of requests that it can have under way.
pub const CHANNELS: usize = ALL_CHANNELS as usize;
/// A bit of [`ClientHeader::asked`]: the client asks for the use of all its channels.
///
/// [`ClientHeader::asked`]: super::region::ClientHeader::asked
pub const WIDEN: u64 = 1 << 63;
/// A value of [`ClientHeader::channels`]: only the first channel has memory.
///
/// [`ClientHeader::channels`]: super::region::ClientHeader::channels
pub const FIRST_CHANNEL: u32 = 1;
/// All channels have memory.
pub const ALL_CHANNELS: u32 = 16;
/// There is no memory for more than the first channel.
pub const NO_MORE_CHANNELS: u32 = 0;
/// The longest request, bytes.
pub const REQUEST_BYTES: usize = 8 << 10;
/// The longest reply, bytes.
pub const REPLY_BYTES: usize = 64 << 10;

/// There is no request.
const IDLE: u32 = 0;
/// A request waits for the server: the value at which the client sleeps.
pub const REQUEST: u32 = 1;
/// A reply waits for the client.
const REPLY: u32 = 2;

/// The channel's words and bytes. Those of programs have the longest messages; a test may do with less.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Channel<
    const REQUEST_WORDS: usize = { REQUEST_BYTES / 8 },
    const REPLY_WORDS: usize = { REPLY_BYTES / 8 },
> {
    /// IDLE, REQUEST or REPLY; a futex.
    state: AtomicU32,
    /// 1 while the client sleeps on `state` (or is about to): it wants a wake.
    client_sleeps: AtomicU32,
    request_len: AtomicU32,
    reply_len: AtomicU32,
    /// The time for which the asking program's call has waited for servers before, ms (client).
    spent_ms: AtomicU32,
    spare: [AtomicU32; 11],
    request: [AtomicU64; REQUEST_WORDS],
    reply: [AtomicU64; REPLY_WORDS],
}

/// The message does not fit the channel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TooLong;

impl<const REQUEST_WORDS: usize, const REPLY_WORDS: usize> Channel<REQUEST_WORDS, REPLY_WORDS> {
    /// Returns true if there is neither a request nor a reply (client).
    pub fn is_idle(&self) -> bool {
        self.state.load(Ordering::Acquire) == IDLE
    }

    /// Puts a request in place (client; the channel is idle): its bytes, and the time for which its call
    /// has waited for servers before. The caller then rings.
    pub fn put_request(&self, bytes: &[u8], spent_ms: u32) -> Result<(), TooLong> {
        put(&self.request, &self.request_len, bytes)?;
        self.spent_ms.store(spent_ms, Ordering::Relaxed);
        self.state.store(REQUEST, Ordering::Release);
        Ok(())
    }

    /// Returns true if there is a request (server).
    pub fn has_request(&self) -> bool {
        self.state.load(Ordering::Acquire) == REQUEST
    }

    /// Appends the request's bytes to `out` (server; there is a request), and returns the time for which
    /// its call has waited before, ms. A length beyond the channel is cut to it.
    pub fn take_request(&self, out: &mut Vec<u8>) -> u32 {
        take(&self.request, &self.request_len, out);
        self.spent_ms.load(Ordering::Relaxed)
    }

    /// Puts a reply in place (server; there is a request); returns true if the client must be woken.
    pub fn put_reply(&self, bytes: &[u8]) -> Result<bool, TooLong> {
        put(&self.reply, &self.reply_len, bytes)?;
        self.state.store(REPLY, Ordering::SeqCst);
        Ok(self.client_sleeps.load(Ordering::SeqCst) != 0)
    }

    /// Returns true if there is a reply (client).
    pub fn has_reply(&self) -> bool {
        self.state.load(Ordering::Acquire) == REPLY
    }

    /// Says that the client is about to sleep on [`Channel::word`] until there is a reply.
    pub fn begin_sleep(&self) {
        self.client_sleeps.store(1, Ordering::SeqCst);
    }

    /// Says that the client sleeps no more.
    pub fn end_sleep(&self) {
        self.client_sleeps.store(0, Ordering::Relaxed);
    }

    /// Returns the futex on which the client sleeps, at the value [`REQUEST`].
    pub fn word(&self) -> &AtomicU32 {
        &self.state
    }

    /// Appends the reply's bytes to `out` (client; there is a reply). The channel is idle then.
    pub fn take_reply(&self, out: &mut Vec<u8>) {
        take(&self.reply, &self.reply_len, out);
        self.state.store(IDLE, Ordering::Release);
    }
}

impl<const REQUEST_WORDS: usize, const REPLY_WORDS: usize> Default
    for Channel<REQUEST_WORDS, REPLY_WORDS>
{
    fn default() -> Self {
        Channel {
            state: AtomicU32::new(IDLE),
            client_sleeps: AtomicU32::default(),
            request_len: AtomicU32::default(),
            reply_len: AtomicU32::default(),
            spent_ms: AtomicU32::default(),
            spare: Default::default(),
            request: core::array::from_fn(|_| AtomicU64::default()),
            reply: core::array::from_fn(|_| AtomicU64::default()),
        }
    }
}

#[allow(clippy::cast_possible_truncation)] // at most REPLY_BYTES, checked
fn put(words: &[AtomicU64], len: &AtomicU32, bytes: &[u8]) -> Result<(), TooLong> {
    if bytes.len() > words.len() * 8 {
        return Err(TooLong);
    }
    for (word, chunk) in words.iter().zip(bytes.chunks(8)) {
        let mut raw = [0; 8];
        raw[..chunk.len()].copy_from_slice(chunk);
        word.store(u64::from_le_bytes(raw), Ordering::Relaxed);
    }
    len.store(bytes.len() as u32, Ordering::Release);
    Ok(())
}

fn take(words: &[AtomicU64], len: &AtomicU32, out: &mut Vec<u8>) {
    let len = (len.load(Ordering::Acquire) as usize).min(words.len() * 8);
    let begin = out.len();
    for word in &words[..len.div_ceil(8)] {
        out.extend_from_slice(&word.load(Ordering::Relaxed).to_le_bytes());
    }
    out.truncate(begin + len);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_every_length_pass() {
        let words: Vec<AtomicU64> = (0..4).map(|_| AtomicU64::new(u64::MAX)).collect();
        let len = AtomicU32::new(0);
        for n in 0..=32u8 {
            let bytes: Vec<u8> = (0..n).collect();
            put(&words, &len, &bytes).unwrap();
            let mut out = vec![9];
            take(&words, &len, &mut out);
            assert_eq!(out[1..], bytes[..]);
        }
        assert_eq!(put(&words, &len, &[0; 33]), Err(TooLong));
        len.store(u32::MAX, Ordering::Relaxed);
        let mut out = Vec::new();
        take(&words, &len, &mut out);
        assert_eq!(out.len(), 32, "a hostile length is cut");
    }

    #[test]
    fn format_of_a_channel() {
        use crate::node::format::check_format;
        check_format!(Channel: state client_sleeps request_len reply_len spent_ms request reply);
    }
}

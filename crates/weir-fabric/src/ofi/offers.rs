//! Memory that this server offers to others: bodies and bulk too long for a packet, until their
//! calls have ended.
//!
//! A request's memory is released when its call ends here. A reply's memory is released when the
//! caller reports that it has read it or that the call has ended, when the caller has another
//! incarnation, or at the deadline of calls. A message that is sent again is offered once.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use weir_core::types::Rank;

use super::endpoint::Endpoint;
use super::packet::{OfferedMemory, PacketPart, INLINE_MOST};
use crate::{CallId, Message};

/// The parts of a message to be sent.
#[derive(Clone, Debug)]
pub struct MessageParts {
    pub body: PacketPart,
    pub bulk: PacketPart,
}

impl MessageParts {
    /// The keys of the offered parts.
    fn keys(&self) -> impl Iterator<Item = u64> + '_ {
        let parts = [&self.body, &self.bulk].into_iter();
        parts.filter_map(|part| match part {
            PacketPart::Offered(offered) => Some(offered.key),
            PacketPart::Inline(_) => None,
        })
    }

    fn offer_nothing(&self) -> bool {
        self.keys().next().is_none()
    }

    fn retract(&self, endpoint: &mut Endpoint) {
        for key in self.keys() {
            endpoint.retract(key);
        }
    }
}

/// A reply that a caller has not read yet.
#[derive(Debug)]
struct Reply {
    life: u64,
    parts: MessageParts,
    until: Duration,
}

/// The reply to a call of one life of a server.
#[derive(Clone, Copy, Debug)]
pub struct ReplyId {
    pub to: Rank,
    pub life: u64,
    pub call: CallId,
}

/// Everything that is offered now.
#[derive(Debug, Default)]
pub struct Offers {
    requests: HashMap<CallId, MessageParts>,
    replies: BTreeMap<(Rank, CallId), Reply>,
}

impl Offers {
    /// Returns true if no reply is offered.
    pub fn has_no_replies(&self) -> bool {
        self.replies.is_empty()
    }

    /// The parts of a request; `None` if memory cannot be offered.
    pub fn request(
        &mut self,
        endpoint: &mut Endpoint,
        call: CallId,
        message: Message,
    ) -> Option<MessageParts> {
        if let Some(parts) = self.requests.get(&call) {
            return Some(parts.clone());
        }
        let parts = split(endpoint, message)?;
        if !parts.offer_nothing() {
            self.requests.insert(call, parts.clone());
        }
        Some(parts)
    }

    /// Releases the memory of a call that has ended.
    pub fn ended(&mut self, endpoint: &mut Endpoint, call: CallId) {
        if let Some(parts) = self.requests.remove(&call) {
            parts.retract(endpoint);
        }
    }

    /// The parts of a reply; `None` if memory cannot be offered.
    pub fn reply(
        &mut self,
        endpoint: &mut Endpoint,
        id: ReplyId,
        message: Message,
        until: Duration,
    ) -> Option<MessageParts> {
        let ReplyId { to, life, call } = id;
        if let Some(reply) = self.replies.get_mut(&(to, call)) {
            if reply.life == life {
                reply.until = until;
                return Some(reply.parts.clone());
            }
        }
        self.retract_reply(endpoint, to, call);
        let parts = split(endpoint, message)?;
        if !parts.offer_nothing() {
            let reply = Reply {
                life,
                parts: parts.clone(),
                until,
            };
            self.replies.insert((to, call), reply);
        }
        Some(parts)
    }

    /// Releases a reply.
    pub fn retract_reply(&mut self, endpoint: &mut Endpoint, to: Rank, call: CallId) {
        if let Some(reply) = self.replies.remove(&(to, call)) {
            reply.parts.retract(endpoint);
        }
    }

    /// Releases the replies to a server's former incarnations and to calls below `ended_below`.
    pub fn end_replies(
        &mut self,
        endpoint: &mut Endpoint,
        from: Rank,
        life: u64,
        ended_below: CallId,
    ) {
        let all = (from, CallId(0))..=(from, CallId(u64::MAX));
        let over =
            |(of, reply): &(&(Rank, CallId), &Reply)| reply.life != life || of.1 < ended_below;
        let over = self.replies.range(all).filter(over);
        let over: Vec<CallId> = over.map(|((_, call), _)| *call).collect();
        for call in over {
            self.retract_reply(endpoint, from, call);
        }
    }

    /// Releases replies that no caller read before the deadline.
    pub fn expire_replies(&mut self, endpoint: &mut Endpoint, now: Duration) {
        let over = self.replies.iter().filter(|(_, reply)| reply.until <= now);
        let over: Vec<(Rank, CallId)> = over.map(|(of, _)| *of).collect();
        for (to, call) in over {
            self.retract_reply(endpoint, to, call);
        }
    }
}

/// Puts small parts in the packet, and offers the others.
fn split(endpoint: &mut Endpoint, message: Message) -> Option<MessageParts> {
    let Message { body, bulk } = message;
    let fits = body.len() + bulk.len() <= INLINE_MOST;
    let mut part = |bytes: Vec<u8>| {
        if fits || bytes.len() <= INLINE_MOST / 2 {
            return Some(PacketPart::Inline(bytes));
        }
        let (len, hash) = (bytes.len(), blake3::hash(&bytes));
        let place = endpoint.offer(bytes).inspect_err(|code| {
            let error = endpoint.library.error(*code);
            tracing::warn!(error, "memory cannot be offered to another server");
        });
        let place = place.ok()?;
        Some(PacketPart::Offered(OfferedMemory {
            len,
            key: place.key,
            address: place.address,
            hash,
        }))
    };
    match (part(body), part(bulk)) {
        (Some(body), Some(bulk)) => Some(MessageParts { body, bulk }),
        (Some(PacketPart::Offered(one)), None) | (None, Some(PacketPart::Offered(one))) => {
            endpoint.retract(one.key);
            None
        }
        _ => None,
    }
}

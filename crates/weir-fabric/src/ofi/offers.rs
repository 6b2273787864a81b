//! What this server offers to others: bodies and bulk that are too long for a packet, until
//! their calls have ended.
//!
//! A request's memory is given back when its call ends here. A reply's is when the asker says
//! that it has read it, that the call has ended, is found in another life, or at the deadline
//! of calls. What is sent again is offered once.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use weir_core::types::Rank;

use super::endpoint::Endpoint;
use super::packet::{Offered, Part, INLINE_MOST};
use crate::{CallId, Message};

/// The parts of a message as it is sent.
#[derive(Clone, Debug)]
pub struct Parts {
    pub body: Part,
    pub bulk: Part,
}

impl Parts {
    /// Of what is offered.
    fn keys(&self) -> impl Iterator<Item = u64> + '_ {
        let parts = [&self.body, &self.bulk].into_iter();
        parts.filter_map(|part| match part {
            Part::Offered(offered) => Some(offered.key),
            Part::Inline(_) => None,
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

/// A reply that an asker has not read yet.
#[derive(Debug)]
struct Reply {
    life: u64,
    parts: Parts,
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
    requests: HashMap<CallId, Parts>,
    replies: BTreeMap<(Rank, CallId), Reply>,
}

impl Offers {
    /// Whether there is no reply that an asker may read.
    pub fn has_no_replies(&self) -> bool {
        self.replies.is_empty()
    }

    /// The parts of a request; `None` where memory cannot be offered.
    pub fn request(
        &mut self,
        endpoint: &mut Endpoint,
        call: CallId,
        message: Message,
    ) -> Option<Parts> {
        if let Some(parts) = self.requests.get(&call) {
            return Some(parts.clone());
        }
        let parts = split(endpoint, message)?;
        if !parts.offer_nothing() {
            self.requests.insert(call, parts.clone());
        }
        Some(parts)
    }

    /// A call of ours has ended.
    pub fn ended(&mut self, endpoint: &mut Endpoint, call: CallId) {
        if let Some(parts) = self.requests.remove(&call) {
            parts.retract(endpoint);
        }
    }

    /// The parts of a reply to one in its present life; `None` where memory cannot be offered.
    pub fn reply(
        &mut self,
        endpoint: &mut Endpoint,
        id: ReplyId,
        message: Message,
        until: Duration,
    ) -> Option<Parts> {
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

    /// Nobody reads a reply any more.
    pub fn retract_reply(&mut self, endpoint: &mut Endpoint, to: Rank, call: CallId) {
        if let Some(reply) = self.replies.remove(&(to, call)) {
            reply.parts.retract(endpoint);
        }
    }

    /// One asks in a life, in which its calls below a number have ended.
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

    /// Takes back what nobody came for.
    pub fn expire_replies(&mut self, endpoint: &mut Endpoint, now: Duration) {
        let over = self.replies.iter().filter(|(_, reply)| reply.until <= now);
        let over: Vec<(Rank, CallId)> = over.map(|(of, _)| *of).collect();
        for (to, call) in over {
            self.retract_reply(endpoint, to, call);
        }
    }
}

/// What fits goes in the packet, the rest is offered.
fn split(endpoint: &mut Endpoint, message: Message) -> Option<Parts> {
    let Message { body, bulk } = message;
    let fits = body.len() + bulk.len() <= INLINE_MOST;
    let mut part = |bytes: Vec<u8>| {
        if fits || bytes.len() <= INLINE_MOST / 2 {
            return Some(Part::Inline(bytes));
        }
        let (len, hash) = (bytes.len(), blake3::hash(&bytes));
        let place = endpoint.offer(bytes).inspect_err(|code| {
            let error = endpoint.library.error(*code);
            tracing::warn!(error, "memory cannot be offered to another server");
        });
        let place = place.ok()?;
        Some(Part::Offered(Offered {
            len,
            key: place.key,
            address: place.address,
            hash,
        }))
    };
    match (part(body), part(bulk)) {
        (Some(body), Some(bulk)) => Some(Parts { body, bulk }),
        (Some(Part::Offered(one)), None) | (None, Some(Part::Offered(one))) => {
            endpoint.retract(one.key);
            None
        }
        _ => None,
    }
}

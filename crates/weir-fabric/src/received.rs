//! Calls received from one server. Each acts once, however often it is sent.
//!
//! A call is remembered until the caller reports that it has ended, which every request does.
//! Replies with bulk are not remembered: such calls only read, and are carried out again.

use std::collections::BTreeMap;

use crate::{CallId, Message};

/// The handling of a received call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Disposition {
    /// It is new: carry it out.
    New,
    /// It is being carried out: its reply will be sent.
    Pending,
    /// It was carried out: send this reply again.
    Answered(Message),
    /// It has ended at the caller: a late duplicate.
    Ended,
}

/// The calls of one incarnation of one server.
#[derive(Debug, Default)]
pub struct ReceivedCalls {
    /// The incarnation.
    pub incarnation: u64,
    /// It follows another incarnation.
    pub follows: bool,
    calls: BTreeMap<CallId, Option<Message>>,
    ended_below: CallIdFloor,
}

/// All calls below this id have ended.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
struct CallIdFloor(u64);

impl ReceivedCalls {
    /// Creates an empty record for an incarnation.
    pub fn new(incarnation: u64) -> ReceivedCalls {
        ReceivedCalls {
            incarnation,
            ..ReceivedCalls::default()
        }
    }

    /// Records a received call, and that all calls below `ended_below` have ended.
    pub fn receive(&mut self, call: CallId, ended_below: u64) -> Disposition {
        if ended_below > self.ended_below.0 {
            self.ended_below = CallIdFloor(ended_below);
            self.calls = self.calls.split_off(&CallId(ended_below));
        }
        if call.0 < self.ended_below.0 {
            return Disposition::Ended;
        }
        match self.calls.get(&call) {
            Some(Some(reply)) => Disposition::Answered(reply.clone()),
            Some(None) => Disposition::Pending,
            None => {
                self.calls.insert(call, None);
                Disposition::New
            }
        }
    }

    /// Records that a call was carried out.
    pub fn record_reply(&mut self, call: CallId, reply: &Message) {
        if reply.bulk.is_empty() {
            if let Some(slot) = self.calls.get_mut(&call) {
                *slot = Some(reply.clone());
            }
        } else {
            self.calls.remove(&call);
        }
    }

    /// The number of remembered calls.
    pub fn len(&self) -> usize {
        self.calls.len()
    }

    /// Returns true if no call is remembered.
    pub fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_acts_once_and_is_forgotten_when_it_has_ended() {
        let mut seen = ReceivedCalls::new(1);
        let reply = Message {
            body: vec![1],
            bulk: vec![],
        };
        assert_eq!(seen.receive(CallId(5), 5), Disposition::New);
        assert_eq!(seen.receive(CallId(5), 5), Disposition::Pending);
        seen.record_reply(CallId(5), &reply);
        assert_eq!(
            seen.receive(CallId(5), 5),
            Disposition::Answered(reply.clone())
        );
        assert_eq!(seen.receive(CallId(6), 6), Disposition::New);
        assert_eq!(seen.receive(CallId(5), 5), Disposition::Ended);
        assert_eq!(seen.len(), 1);
        let bytes = Message {
            body: vec![],
            bulk: vec![7],
        };
        seen.record_reply(CallId(6), &bytes);
        assert_eq!(
            seen.receive(CallId(6), 6),
            Disposition::New,
            "reading again is harmless"
        );
        seen.record_reply(CallId(5), &reply);
        assert_eq!(seen.len(), 1, "what has ended is not kept");
    }
}

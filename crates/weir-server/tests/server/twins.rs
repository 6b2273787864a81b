//! A journal in memory and the one that replaces it, while it is renewed.

use std::cell::RefCell;
use std::rc::Rc;

use weir_core::journal::frame::{end_word, frame_bytes, frame_words, END_AT, FRAME_HEAD_BYTES};
use weir_core::journal::{replay, Head, State, HEAD_BYTES};
use weir_core::types::Rank;
use weir_server::node::Journal;

/// The bytes of a journal, as in its file.
#[derive(Clone)]
pub struct Bytes {
    bytes: Vec<u8>,
    frames: u64,
}

impl Bytes {
    /// The journal of server `rank` of `servers`, without records.
    pub fn new((rank, servers): (Rank, u16)) -> Bytes {
        let head = Head {
            rank,
            servers,
            instance: [0; 16],
            made_ns: 1,
        };
        Bytes {
            bytes: head.encode().to_vec(),
            frames: 0,
        }
    }

    /// Appends a record.
    pub fn append(&mut self, payload: &[u8]) {
        let [first, second] = frame_words(self.frames, payload).unwrap();
        let at = self.bytes.len();
        self.bytes.resize(at + frame_bytes(payload.len()), 0);
        self.bytes[at..at + 8].copy_from_slice(&first.to_le_bytes());
        self.bytes[at + 8..at + 16].copy_from_slice(&second.to_le_bytes());
        let begin = at + FRAME_HEAD_BYTES;
        self.bytes[begin..begin + payload.len()].copy_from_slice(payload);
        self.frames += 1;
        self.bytes[END_AT..HEAD_BYTES].copy_from_slice(&end_word(self.frames).to_le_bytes());
    }

    /// The state that it describes.
    pub fn state(&self) -> State {
        let replayed = replay(&self.bytes).unwrap();
        assert_eq!(replayed.torn, None);
        replayed.state
    }
}

/// The old journal and the new one.
pub struct Twins {
    /// The journal that has the name.
    pub now: Bytes,
    next: Option<Bytes>,
    /// The number of times that a new journal has taken the name.
    pub renewals: u32,
    whose: (Rank, u16),
}

/// The pair, shared by a node and the test.
#[derive(Clone)]
pub struct Shared(pub Rc<RefCell<Twins>>);

impl Shared {
    /// The journal of this server, with the number of servers.
    pub fn new(whose: (Rank, u16), now: Bytes) -> Shared {
        Shared(Rc::new(RefCell::new(Twins {
            now,
            next: None,
            renewals: 0,
            whose,
        })))
    }
}

impl Journal for Shared {
    fn append(&mut self, items: &[u8]) {
        let mut twins = self.0.borrow_mut();
        twins.now.append(items);
        if let Some(next) = &mut twins.next {
            next.append(items);
        }
    }

    fn is_long(&self) -> bool {
        true
    }

    fn is_whole(&self) -> bool {
        true
    }

    fn begin_anew(&mut self) -> bool {
        let mut twins = self.0.borrow_mut();
        twins.next = Some(Bytes::new(twins.whose));
        true
    }

    fn add(&mut self, items: &[u8]) -> bool {
        self.0.borrow_mut().next.as_mut().unwrap().append(items);
        true
    }

    fn take_over(&mut self) {
        let mut twins = self.0.borrow_mut();
        let next = twins.next.take().unwrap();
        twins.now = next;
        twins.renewals += 1;
    }

    fn tidy(&mut self) -> bool {
        false
    }
}

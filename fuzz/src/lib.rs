//! Code shared by the fuzz targets.
//!
//! An input of several steps is a list of *parts*: a byte for the kind of the part, a byte for its
//! length, the bytes. Any input is such a list ([`parts`]). Seeds are made with [`Parts`], so that
//! mutations of them stay nearly valid.

#![forbid(unsafe_code)]

pub mod place;

use serde::de::DeserializeOwned;
use serde::Serialize;

/// Cuts an input into parts; the last may be short.
pub fn parts(mut rest: &[u8]) -> impl Iterator<Item = (u8, &[u8])> {
    std::iter::from_fn(move || {
        let [kind, length, bytes @ ..] = rest else {
            return None;
        };
        let (part, behind) = bytes.split_at(usize::from(*length).min(bytes.len()));
        rest = behind;
        Some((*kind, part))
    })
}

/// Makes an input of parts.
#[derive(Debug, Default)]
pub struct Parts(pub Vec<u8>);

impl Parts {
    /// Adds a part, which is at most 255 bytes long.
    #[must_use]
    pub fn with(mut self, kind: u8, part: &[u8]) -> Parts {
        let length = u8::try_from(part.len()).expect("parts of seeds are short");
        self.0.extend([kind, length]);
        self.0.extend(part);
        self
    }
}

/// The numbers of a part, 8 bytes each; 0 after its end.
pub fn words<const N: usize>(part: &[u8]) -> [u64; N] {
    let mut words = [0; N];
    for (word, bytes) in words.iter_mut().zip(part.chunks(8)) {
        let mut raw = [0; 8];
        raw[..bytes.len()].copy_from_slice(bytes);
        *word = u64::from_le_bytes(raw);
    }
    words
}

/// Decodes a postcard message. A decoded message must encode to bytes that decode to the same message.
pub fn round_trip<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(bytes: &[u8]) {
    let Ok(message) = postcard::from_bytes::<T>(bytes) else {
        return;
    };
    let said = postcard::to_stdvec(&message).expect("what was decoded can be encoded");
    let again = postcard::from_bytes::<T>(&said);
    assert_eq!(again.as_ref(), Ok(&message));
}

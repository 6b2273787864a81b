//! A server's journal as found after a crash: arbitrary bytes, and whole frames of arbitrary items.
#![no_main]

use weir_core::journal::frame::{end_word, frame_bytes, frame_words, END_AT, FRAME_HEAD_BYTES};
use weir_core::journal::{encode, replay, Head, Item, HEAD_BYTES};
use weir_core::types::Rank;
use weir_fuzz::parts;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let [kind, bytes @ ..] = data else { return };
    if kind % 2 == 0 {
        let _ = replay(bytes);
        return;
    }
    let head = Head {
        rank: Rank(0),
        servers: 1,
        instance: [0; 16],
        made_ns: 1,
    };
    let mut journal = head.encode().to_vec();
    let mut whole = Vec::new();
    encode(&Item::SnapshotEnd, &mut whole);
    // No frame is empty: zeros are the end.
    let parts = parts(bytes)
        .map(|(_, part)| part)
        .filter(|part| !part.is_empty() && !falls_apart(part));
    let payloads = std::iter::once(&whole[..]).chain(parts);
    let mut ends = Vec::new();
    for (sequence, payload) in (0..).zip(payloads) {
        let begin = journal.len();
        let words = frame_words(sequence, payload).expect("parts are short");
        journal.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        journal.extend(payload);
        journal.resize(begin + frame_bytes(payload.len()), 0);
        // It is whole also without the zeros behind it.
        ends.push(begin + FRAME_HEAD_BYTES + payload.len());
    }
    tell_end(&mut journal, ends.len());
    let Ok(replayed) = replay(&journal) else {
        return;
    };
    assert_eq!(replayed.frames, ends.len() as u64);
    // A writer that is killed anywhere leaves the state after some frame.
    let cut = HEAD_BYTES + usize::from(*kind) % (journal.len() - HEAD_BYTES + 1);
    let frames = ends.iter().filter(|end| **end <= cut).count();
    // A loss of frames after that is detected.
    assert_eq!(replay(&journal[..cut]).is_ok(), frames == ends.len());
    if cut >= ends[0] {
        journal.truncate(cut);
        tell_end(&mut journal, frames);
        let before = replay(&journal).expect("what is cut off was never there");
        assert_eq!(before.frames, frames as u64);
    }
});

fn tell_end(journal: &mut [u8], frames: usize) {
    let told = end_word(frames as u64).to_le_bytes();
    journal[END_AT..HEAD_BYTES].copy_from_slice(&told);
}

/// Returns true if a frame has runs of very many pieces. Two of them with different strides break into
/// as many fragments, which takes the server that writes them as long as the one that reads them: a
/// known cost, and not the subject of this target.
fn falls_apart(mut frame: &[u8]) -> bool {
    while let Ok((item, rest)) = postcard::take_from_bytes::<Item<'_>>(frame) {
        if let Item::IndexRuns(_, runs) = &item {
            if runs.iter().any(|run| run.count > 1000) {
                return true;
            }
        }
        if rest.is_empty() {
            break;
        }
        frame = rest;
    }
    false
}

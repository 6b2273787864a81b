//! The messages between agents, and the noise of shells and launchers around them.
#![no_main]

use weir_launch::message::{read_down, AgentLineReader};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let [kind, bytes @ ..] = data else { return };
    // Each line is a part of a message, noise or an error; the next one follows.
    let lines = bytes.split(|b| *b == b'\n').count();
    let mut ear = AgentLineReader::new(bytes);
    for _ in 0..lines {
        let end = match kind % 2 {
            0 => ear.hear().is_ok_and(|heard| heard.is_none()),
            _ => read_down(ear.source()).is_ok_and(|heard| heard.is_none()),
        };
        assert_eq!(end, end && ear.source().is_empty());
    }
});

//! What agents say to each other, and the noise of shells and launchers around it.
#![no_main]

use weir_cli::launch::message::{hear, read_down};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let [kind, bytes @ ..] = data else { return };
    let mut from = bytes;
    // Each line is an end, a message, noise or an error; then comes the next one.
    for _ in bytes.split(|b| *b == b'\n') {
        let end = match kind % 2 {
            0 => hear(&mut from).is_ok_and(|heard| heard.is_none()),
            _ => read_down(&mut from).is_ok_and(|heard| heard.is_none()),
        };
        assert_eq!(end, end && from.is_empty());
    }
});

//! The messages between servers: requests and replies.
#![no_main]

use weir_core::proto::peer::{self, Request};
use weir_fuzz::round_trip;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let [kind, bytes @ ..] = data else { return };
    match kind % 10 {
        0..=2 => round_trip::<Request>(bytes),
        3 => drop(peer::reply::<peer::Find>(bytes)),
        4 => drop(peer::reply::<peer::Make>(bytes)),
        5 => drop(peer::reply::<peer::List>(bytes)),
        6 => drop(peer::reply::<peer::Whereabouts>(bytes)),
        7 => drop(peer::reply::<peer::Put>(bytes)),
        8 => drop(peer::reply::<peer::Runs>(bytes)),
        _ => drop(peer::reply::<peer::DeadOwners>(bytes)),
    }
});

//! The messages between a client and its server: requests, replies, the greeting of a connection.
#![no_main]

use weir_core::proto::{self, Hello, Request, Welcome};
use weir_fuzz::round_trip;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let [kind, bytes @ ..] = data else { return };
    match kind % 12 {
        0 => round_trip::<Request>(bytes),
        1 => round_trip::<Hello>(bytes),
        2 => round_trip::<Welcome>(bytes),
        3 => drop(proto::reply::<proto::Create>(bytes)),
        4 => drop(proto::reply::<proto::Readdir>(bytes)),
        5 => drop(proto::reply::<proto::Locate>(bytes)),
        6 => drop(proto::reply::<proto::Segment>(bytes)),
        7 => drop(proto::reply::<proto::TestLock>(bytes)),
        8 => drop(proto::reply::<proto::GetAttr>(bytes)),
        9 => drop(proto::reply::<proto::Status>(bytes)),
        10 => drop(proto::reply::<proto::Readlink>(bytes)),
        _ => drop(proto::reply::<proto::Find>(bytes)),
    }
});

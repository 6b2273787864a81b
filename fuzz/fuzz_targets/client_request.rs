//! A client's requests to the only server of an instance: any bytes, in any order.
#![no_main]

use weir_core::proto::{self, Caller, Statfs};
use weir_fuzz::parts;
use weir_fuzz::place::with_one;
use weir_fuzz::place::world::Client;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    with_one(|world| {
        let client = Client::new(world);
        for (kind, request) in parts(data) {
            let from = match kind % 2 {
                0 => client.caller(),
                _ => Caller::Control,
            };
            let reply = world.serve(from, request);
            assert!(!reply.is_empty(), "every request has a reply");
            let fits = reply.len() <= weir_core::node::channel::REPLY_BYTES;
            assert!(fits, "a reply of {} bytes", reply.len());
        }
        let mut request = Vec::new();
        proto::request(Statfs {}, &mut request);
        let reply = world.serve(client.caller(), &request);
        assert!(proto::reply::<Statfs>(&reply).is_ok(), "it still serves");
    });
});

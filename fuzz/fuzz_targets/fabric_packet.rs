//! Packets of the libfabric transport: arbitrary ones from strangers, and, to reach the code behind the
//! MAC, arbitrary ones from a peer that knows the secret.
#![no_main]

use weir_core::roster::{InstanceId, Secret};
use weir_core::types::Rank;
use weir_fabric::ofi::packet::{open, seal, MacKey, PACKET_MOST};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let [kind, bytes @ ..] = data else { return };
    let key = MacKey::derive(&Secret::new([1; 32]));
    let mut packet = bytes.to_vec();
    if kind % 2 == 1 {
        packet.extend_from_slice(key.mac(bytes).as_bytes());
    }
    let instance = InstanceId([7; 16]);
    let Ok((head, word)) = open(&key, instance, Rank(1), 3, &packet) else {
        return;
    };
    assert!(head.from != Rank(1) && head.from.0 < 3 && head.to == Rank(1));
    if packet.len() <= PACKET_MOST {
        let again = seal(&key, &head, &word);
        assert_eq!(
            open(&key, instance, Rank(1), 3, &again),
            Ok((head, word)),
            "what was understood is said and understood again"
        );
    }
});

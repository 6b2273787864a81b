//! Packets survive; all else is refused.

use super::*;
use crate::frame::BODY_MOST;
use proptest::prelude::*;

const INSTANCE: InstanceId = InstanceId([7; 16]);

fn key(byte: u8) -> MacKey {
    MacKey::derive(&Secret::new([byte; 32]))
}

fn head() -> PacketHead {
    PacketHead {
        instance: INSTANCE,
        from: Rank(1),
        to: Rank(0),
        from_life: 5,
        to_life: 6,
        line: 7,
    }
}

fn part() -> impl Strategy<Value = PacketPart> {
    prop_oneof![
        proptest::collection::vec(any::<u8>(), 0..INLINE_MOST / 2).prop_map(PacketPart::Inline),
        (1..=BODY_MOST, any::<u64>(), any::<u64>(), any::<[u8; 32]>()).prop_map(
            |(len, key, address, hash)| PacketPart::Offered(OfferedMemory {
                len,
                key,
                address,
                hash: Hash::from_bytes(hash)
            })
        ),
    ]
}

fn word() -> impl Strategy<Value = PacketContent> {
    let numbers = any::<(u64, u64, u64)>();
    let bytes = || proptest::collection::vec(any::<u8>(), 0..300);
    prop_oneof![
        bytes().prop_map(PacketContent::Hello),
        Just(PacketContent::Welcome),
        Just(PacketContent::Redial),
        (any::<u64>(), any::<u64>(), part(), part()).prop_map(|(call, ended_below, body, bulk)| {
            PacketContent::Request {
                call: CallId(call),
                ended_below,
                body,
                bulk,
            }
        }),
        (any::<u64>(), part(), part()).prop_map(|(call, body, bulk)| PacketContent::Reply {
            call: CallId(call),
            body,
            bulk
        }),
        numbers.prop_map(|(number, sent, _)| PacketContent::Ping { number, sent }),
        numbers.prop_map(|(number, received, replied)| PacketContent::Pong {
            number,
            received,
            replied
        }),
        any::<u64>().prop_map(|call| PacketContent::Got(CallId(call))),
        (numbers, 0..=PIECE_MOST).prop_map(|((ticket, key, offset), len)| PacketContent::Pull {
            ticket,
            key,
            offset,
            len
        }),
        (numbers, bytes()).prop_map(|((ticket, offset, _), bytes)| PacketContent::Piece {
            ticket,
            offset,
            bytes
        }),
    ]
}

proptest! {
    #[test]
    fn packets_survive_and_changed_ones_are_refused(content in word(), at in any::<prop::sample::Index>(), bit in 0..8_u8) {
        let mut packet = seal(&key(1), &head(), &content);
        let (me, servers) = (Rank(0), 2);
        prop_assert_eq!(open(&key(1), INSTANCE, me, servers, &packet), Ok((head(), content)));
        prop_assert_eq!(open(&key(2), INSTANCE, me, servers, &packet), Err(Refused::Secret));
        let at = at.index(packet.len());
        packet[at] ^= 1 << bit;
        prop_assert!(open(&key(1), INSTANCE, me, servers, &packet).is_err());
    }

    #[test]
    fn garbage_is_refused_also_by_who_knows_the_secret(bytes in proptest::collection::vec(any::<u8>(), 0..400), kind in 0..12_u16) {
        let (me, servers) = (Rank(0), 2);
        prop_assert!(open(&key(1), INSTANCE, me, servers, &bytes).is_err());
        let mut packet = seal(&key(1), &head(), &PacketContent::Welcome);
        packet.truncate(HEAD_BYTES);
        packet[6..8].copy_from_slice(&kind.to_le_bytes());
        packet.extend(&bytes);
        let mac = blake3::keyed_hash(&key(1).0, &packet);
        packet.extend(mac.as_bytes());
        if let Ok((head, content)) = open(&key(1), INSTANCE, me, servers, &packet) {
            prop_assert_eq!(seal(&key(1), &head, &content), packet);
        }
    }
}

#[test]
fn who_is_meant_is_seen_before_the_secret() {
    let packet = |head: PacketHead| seal(&key(1), &head, &PacketContent::Welcome);
    let opened = |packet: Vec<u8>| open(&key(1), INSTANCE, Rank(0), 2, &packet).unwrap_err();
    let instance = PacketHead {
        instance: InstanceId([8; 16]),
        ..head()
    };
    assert_eq!(opened(packet(instance)), Refused::Instance);
    for (from, to) in [(1, 1), (2, 0), (0, 0)] {
        let (from, to) = (Rank(from), Rank(to));
        let rank = PacketHead { from, to, ..head() };
        assert_eq!(opened(packet(rank)), Refused::Rank);
    }
    let mut version = packet(head());
    version[4] += 1;
    assert_eq!(opened(version), Refused::Version);
    assert_eq!(opened(packet(head())[..80].to_vec()), Refused::Malformed);
}

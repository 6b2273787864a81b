//! The members of an instance: rosters and secrets, lists of hosts and hostfiles.
#![no_main]

use weir_core::roster::{is_host, InstanceId, Roster, MEMBERS_MOST};
use weir_fuzz::round_trip;
use weir_launch::hosts;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let [kind, bytes @ ..] = data else { return };
    if kind % 4 == 0 {
        return round_trip::<Roster>(bytes);
    }
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    match kind % 4 {
        1 => {
            if let Ok(roster) = serde_json::from_str::<Roster>(text) {
                let said = serde_json::to_string(&roster).expect("a roster has a text");
                let again = serde_json::from_str::<Roster>(&said).expect("which is one");
                assert_eq!(again, roster);
            }
            if let Ok(id) = text.parse::<InstanceId>() {
                assert_eq!(id.to_string().parse::<InstanceId>().ok(), Some(id));
            }
        }
        2 => check(hosts::expand(text)),
        _ => check(hosts::of_file(text)),
    }
});

fn check<E>(hosts: Result<Vec<String>, E>) {
    if let Ok(hosts) = hosts {
        assert!((1..=MEMBERS_MOST).contains(&hosts.len()));
        assert!(hosts.iter().all(|host| is_host(host)));
    }
}

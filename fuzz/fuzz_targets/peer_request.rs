//! Arbitrary requests and answers of other servers, against the logic of several servers.
#![no_main]

use futures_util::task::LocalSpawnExt;
use weir_core::proto::peer::{self, Status};
use weir_core::proto::Caller;
use weir_core::types::Rank;
use weir_fuzz::parts;
use weir_fuzz::place::{with_several, SERVERS};
use weir_server::cluster::enclose;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    with_several(|several| {
        let spawner = several.pool.spawner();
        let mut now_ns = 100;
        // A server does not send requests to itself: the fabric refuses a peer of its own rank.
        let others = SERVERS - 1;
        for (kind, bytes) in parts(data) {
            now_ns += 1;
            several.server.tick(now_ns);
            let (server, bytes) = (several.server.clone(), bytes.to_vec());
            if kind % 4 == 3 {
                several.replies.borrow_mut().push_back(bytes);
                continue;
            }
            let task = async move {
                match kind % 4 {
                    0 => drop(
                        server
                            .handle(
                                Rank(u16::from(kind / 4) % others + 1),
                                &enclose(0, 30_000, &bytes),
                            )
                            .await,
                    ),
                    _ => drop(server.serve(Caller::Control, &bytes).await),
                }
            };
            match kind % 4 {
                2 => several.server.catch_up(),
                _ => spawner.spawn_local(task).expect("the pool lives"),
            }
            several.pool.run_until_stalled();
        }
        // Even if requests wait for a locked name, this one is answered. It begins a new session,
        // because a peer that was not reached meanwhile was given up.
        several.replies.borrow_mut().clear();
        let begins = 1 << 63 | 1;
        let server = several.server.clone();
        let asked = async move {
            server
                .handle(Rank(1), &enclose(begins, 30_000, &peer::request(Status {})))
                .await
        };
        let answer = several.pool.run_until(asked);
        assert!(
            peer::reply::<Status>(&answer.body).is_ok(),
            "it still serves"
        );
    });
});

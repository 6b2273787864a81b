//! Servers without threads and with storage in a vector, taken from the server's own tests, in shared
//! regions that are mapped once and cleared for each input.

#[path = "../../crates/weir-server/tests/server/world.rs"]
pub mod world;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use futures_executor::LocalPool;
use futures_util::future::LocalBoxFuture;
use futures_util::task::LocalSpawnExt;
use weir_core::types::Rank;
use weir_fakes::storage::Contradictions;
use weir_fakes::NodeRegions;
use weir_server::cluster::{Answer, Cluster, Lost, Net};
use world::{table_sizes, ServerTables, TestPlatform, World};

/// The number of servers in the roster of the server under test.
pub const SERVERS: u16 = 3;

thread_local! {
    static REGIONS: NodeRegions = NodeRegions::new(table_sizes(100, 32, 32));
}

/// Runs `body` with the only server of an instance. Its clients write what they like.
pub fn with_one(body: impl FnOnce(&mut World)) {
    REGIONS.with(|regions| {
        let mut world = World::within(regions, 24);
        world.store.set_contradictions(Contradictions::Ignore);
        body(&mut world);
    });
}

/// One of several servers; the input determines the answers of the others.
pub struct Several {
    pub pool: LocalPool,
    pub server: Cluster<TestPlatform>,
    pub replies: Replies,
}

/// The next answers of the others; when there are none left, the others are lost.
pub type Replies = Rc<RefCell<VecDeque<Vec<u8>>>>;

/// Runs `body` with server 0 of [`SERVERS`].
pub fn with_several(body: impl FnOnce(&mut Several)) {
    REGIONS.with(|regions| {
        let tables = ServerTables::within(regions, Rank(0), SERVERS, 24);
        tables.store.set_contradictions(Contradictions::Ignore);
        let log = Rc::new(tables.store.clone());
        let replies = Replies::default();
        let net = Rc::new(Liars(Rc::clone(&replies)));
        let pool = LocalPool::new();
        let spawner = pool.spawner();
        let spawn = move |task| spawner.spawn_local(task).expect("the pool lives");
        let server = Cluster::new(Rank(0), SERVERS, tables.node, net, log, spawn);
        body(&mut Several {
            pool,
            server,
            replies,
        });
    });
}

/// The other servers.
struct Liars(Replies);

impl Net for Liars {
    fn call(&self, to: Rank, _: Vec<u8>) -> LocalBoxFuture<'static, Result<Answer, Lost>> {
        let said = self.0.borrow_mut().pop_front();
        Box::pin(async move {
            let body = said.ok_or(Lost(to))?;
            let bulk = body.clone();
            Ok(Answer { body, bulk })
        })
    }
}

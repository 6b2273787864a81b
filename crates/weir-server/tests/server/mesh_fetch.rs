//! Bytes of other nodes for clients: the allowed requests, the arrival of the bytes, and the behaviour
//! when slots or the pool are all taken.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use crate::mesh::Mesh;
use futures_util::task::LocalSpawnExt;
use weir_core::node::landing::{Failed, LANDINGS, LANDINGS_AHEAD};
use weir_core::proto::peer::LogRange;
use weir_core::proto::{
    self, Caller, ClientKind, Fetch, FsError, Landing, FETCH_BYTES, FETCH_PIECES,
};
use weir_core::types::{ClientId, Ino};
use weir_fakes::FakeClientMemory;
use weir_server::node::ClientMemory;

fn range(rank: u16, pos: u64, len: u64) -> LogRange {
    LogRange {
        rank,
        slab: 0,
        pos,
        len,
    }
}

/// Admits a client of server 0.
fn admit(mesh: &Mesh, id: u32) -> Arc<FakeClientMemory> {
    let memory = Arc::new(FakeClientMemory::new());
    let mut node = mesh.nodes[0].borrow_mut();
    node.admit(
        ClientId(id),
        100 + id,
        ClientKind::Program,
        Arc::clone(&memory),
    );
    memory
}

type Reply = Rc<Cell<Option<Result<Vec<Landing>, FsError>>>>;

/// Sends a request, and runs all tasks that can run; the reply may come later.
fn ask(mesh: &mut Mesh, id: u32, reads: Vec<Vec<LogRange>>) -> Reply {
    send(
        mesh,
        id,
        Fetch {
            ino: Ino::NONE,
            reads,
            ahead: false,
        },
    )
}

/// The landings that are granted for reads ahead.
fn ask_ahead(mesh: &mut Mesh, id: u32, reads: Vec<Vec<LogRange>>) -> Vec<Landing> {
    let reply = send(
        mesh,
        id,
        Fetch {
            ino: Ino::NONE,
            reads,
            ahead: true,
        },
    );
    reply.take().expect("nobody waits").unwrap()
}

fn send(mesh: &mut Mesh, id: u32, fetch: Fetch) -> Reply {
    let server = mesh.server(0);
    let mut request = Vec::new();
    proto::request(fetch, &mut request);
    let reply = Reply::default();
    let answer = Rc::clone(&reply);
    let asked = async move {
        let reply = server.serve(Caller::Client(ClientId(id)), &request).await;
        answer.set(Some(proto::reply::<Fetch>(&reply)));
    };
    mesh.pool.spawner().spawn_local(asked).unwrap();
    mesh.settle();
    reply
}

#[test]
fn pieces_arrive_one_behind_the_other() {
    let mut mesh = Mesh::new(3, 1);
    let pool = mesh.make_pool(0);
    let client = admit(&mesh, 1);
    for rank in [1_u8, 2] {
        let store = &mesh.stores[usize::from(rank)];
        for (i, byte) in (0..=255)
            .cycle()
            .zip(store.slabs.bytes.borrow_mut().iter_mut())
        {
            *byte = rank ^ i;
        }
    }
    let reads = vec![
        vec![range(1, 10, 3), range(1, 0, 2)],
        vec![range(2, 250, 20)],
    ];
    let landings = ask(&mut mesh, 1, reads).take().unwrap().unwrap();
    let mut came = Vec::new();
    for (landing, len) in landings.iter().zip([5, 20]) {
        let slot = &client.landings()[usize::from(landing.slot)];
        assert_eq!(slot.arrived(), Ok(u32::try_from(len).unwrap()));
        let mut bytes = vec![0; len];
        pool.read(usize::try_from(landing.at).unwrap(), &mut bytes);
        came.push(bytes);
    }
    assert_eq!(came[0], [11, 10, 13, 1, 0]);
    assert_eq!(came[1][..7], [248, 249, 254, 255, 252, 253, 2]);
    // Bytes that the other server does not have do not arrive, and the reply says so.
    let landings = ask(&mut mesh, 1, vec![vec![range(2, 1 << 40, 5)]]);
    let landing = landings.take().unwrap().unwrap()[0];
    let slot = &client.landings()[usize::from(landing.slot)];
    assert_eq!(slot.arrived(), Err(Failed));
}

#[test]
fn what_makes_no_sense_is_refused() {
    let mut mesh = Mesh::new(2, 1);
    mesh.make_pool(0);
    admit(&mesh, 1);
    let many = vec![vec![range(1, 0, 1); FETCH_PIECES / 2 + 1]; 2];
    for (id, reads, why) in [
        (1, vec![vec![]], FsError::Malformed),
        (1, vec![vec![range(0, 0, 1)]], FsError::Malformed),
        (1, vec![vec![range(2, 0, 1)]], FsError::Malformed),
        (1, vec![vec![range(1, 0, 0)]], FsError::Malformed),
        (
            1,
            vec![vec![range(1, 0, 1), range(0, 0, 1)]],
            FsError::Malformed,
        ),
        (1, vec![vec![range(1, 0, FETCH_BYTES + 1)]], FsError::TooBig),
        (
            1,
            vec![vec![range(1, 0, u64::MAX), range(1, 0, u64::MAX)]],
            FsError::TooBig,
        ),
        (1, many, FsError::TooBig),
        (7, vec![vec![range(1, 0, 1)]], FsError::NotPermitted),
    ] {
        assert_eq!(ask(&mut mesh, id, reads).take(), Some(Err(why)));
    }
    assert_eq!(mesh.server(0).pool_use().0, 0);
}

#[test]
fn who_finds_no_place_waits_until_one_is_given_back_or_its_holder_is_gone() {
    let mut mesh = Mesh::new(2, 1);
    mesh.make_pool(0);
    let read = || vec![range(1, 0, 100)];
    // All slots of one client.
    let first = admit(&mesh, 0);
    let landings = ask(&mut mesh, 0, vec![read(); LANDINGS + 5]).take();
    assert_eq!(landings.unwrap().unwrap().len(), LANDINGS);
    let waits = ask(&mut mesh, 0, vec![read()]);
    mesh.server(0).look_for_room();
    mesh.settle();
    assert!(waits.take().is_none() && mesh.server(0).awaits_room());
    // The serials of a fresh server's lendings are 1, 2...
    first.landings()[17].release(18);
    mesh.server(0).look_for_room();
    mesh.settle();
    assert_eq!(waits.take().unwrap().unwrap()[0].slot, 17);
    // All of the pool.
    let (used, all) = mesh.server(0).pool_use();
    let clients = u32::try_from(all / used).unwrap();
    for id in 1..clients {
        admit(&mesh, id);
        let landings = ask(&mut mesh, id, vec![read(); LANDINGS]).take();
        assert_eq!(landings.unwrap().unwrap().len(), LANDINGS);
    }
    assert_eq!(mesh.server(0).pool_use(), (all, all));
    admit(&mesh, clients);
    let waits = ask(&mut mesh, clients, vec![read(); 3]);
    mesh.server(0).look_for_room();
    mesh.settle();
    assert!(waits.take().is_none());
    mesh.nodes[0].borrow_mut().gone(ClientId(1), 200);
    mesh.server(0).look_for_room();
    mesh.settle();
    assert_eq!(waits.take().unwrap().unwrap().len(), 3);
}

#[test]
fn what_lies_ahead_is_refused_above_three_quarters_and_gives_way_to_who_waits() {
    let mut mesh = Mesh::new(2, 1);
    mesh.make_pool(0);
    let large = || vec![range(1, 0, FETCH_BYTES)];
    // Half of a client's slots, and three quarters of the pool.
    let most = |mesh: &Mesh| mesh.server(0).pool_use().1 / 4 * 3;
    let mut clients = Vec::new();
    for id in 0.. {
        let client = admit(&mesh, id);
        let landings = ask_ahead(&mut mesh, id, vec![large(); LANDINGS]);
        assert!(landings.len() <= LANDINGS_AHEAD);
        let full = mesh.server(0).pool_use().0 == most(&mesh);
        assert!(full || landings.len() == LANDINGS_AHEAD);
        clients.push((client, landings));
        if full {
            break;
        }
    }
    let last = u32::try_from(clients.len()).unwrap();
    admit(&mesh, last);
    assert_eq!(ask_ahead(&mut mesh, last, vec![large()]), []);
    // One is in use and stays; the others make room.
    let (user, its) = &clients[0];
    let (used, other) = (its[0], its[1]);
    let slot = |landing: Landing| &user.landings()[usize::from(landing.slot)];
    assert!(slot(used).claim(used.serial));
    for id in last.. {
        if id > last {
            admit(&mesh, id);
        }
        let granted = ask(&mut mesh, id, vec![large(); LANDINGS]).take();
        let Some(Ok(granted)) = granted else { break };
        assert!(granted.iter().all(|landing| landing.at != used.at));
        if granted.len() < LANDINGS {
            break;
        }
    }
    let (in_use, all) = mesh.server(0).pool_use();
    assert_eq!(in_use, all);
    assert!(!slot(other).claim(other.serial), "taken back");
    slot(used).release(used.serial);
}

/// The bytes of a laminated file that arrived are kept for its next reader, and for no other file.
#[test]
fn bytes_of_laminated_files_move_once() {
    let mut mesh = Mesh::new(2, 1);
    let pool = mesh.make_pool(0);
    let make = |mesh: &mut Mesh, name: &str, mode: u32| {
        let ino = mesh.file_here(name);
        let set = proto::SetAttr {
            mode: Some(mode),
            ..proto::SetAttr::nothing(ino)
        };
        mesh.call(0, set).unwrap();
        ino
    };
    // Names with different homes.
    for name in ["a", "b", "c", "d"] {
        let laminated = make(&mut mesh, name, 0o444);
        let clients = [1, 2, 3].map(|id| (id, admit(&mesh, id)));
        let byte = name.as_bytes()[0];
        mesh.stores[1].slabs.bytes.borrow_mut()[..300].fill(byte);
        let read = |mesh: &mut Mesh, ino, (id, client): &(u32, Arc<FakeClientMemory>), pos, len| {
            let reads = vec![vec![range(1, pos, len)]];
            let ahead = false;
            let sent = mesh.sent.get();
            let landing = send(mesh, *id, Fetch { ino, reads, ahead });
            let landing = landing.take().unwrap().unwrap()[0];
            let slot = &client.landings()[usize::from(landing.slot)];
            assert_eq!(slot.arrived(), Ok(u32::try_from(len).unwrap()));
            let mut bytes = vec![0; usize::try_from(len).unwrap()];
            pool.read(usize::try_from(landing.at).unwrap(), &mut bytes);
            slot.release(landing.serial);
            (mesh.sent.get() - sent, bytes)
        };
        let before = mesh.server(0).kept().1;
        assert_eq!(
            read(&mut mesh, laminated, &clients[0], 0, 300),
            (1, vec![byte; 300])
        );
        assert_eq!(
            read(&mut mesh, laminated, &clients[1], 0, 300),
            (0, vec![byte; 300])
        );
        assert_eq!(
            read(&mut mesh, laminated, &clients[0], 100, 50),
            (0, vec![byte; 50])
        );
        assert_eq!(mesh.server(0).kept().1 - before, 2);
        // The log is reused for another file, which may change.
        mesh.stores[1].slabs.bytes.borrow_mut()[..300].fill(1);
        let other = make(&mut mesh, &format!("{name}2"), 0o644);
        assert_eq!(
            read(&mut mesh, other, &clients[2], 0, 300),
            (1, vec![1; 300])
        );
        assert_eq!(
            read(&mut mesh, other, &clients[2], 0, 300),
            (1, vec![1; 300])
        );
        for (id, _) in clients {
            mesh.nodes[0].borrow_mut().gone(ClientId(id), 200);
        }
    }
}

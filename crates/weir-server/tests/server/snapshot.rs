//! A journal that is renewed in steps, between operations that go on: a server that is killed after any
//! step finds everything in the old one, and after the last step in the new one.

use crate::twins::{Bytes, Shared};
use crate::world::{Client, World};
use proptest::prelude::*;
use weir_core::journal::{encode, Item, State};
use weir_core::proto::{self, Caller, FsError};
use weir_core::types::{Ino, Rank};
use weir_core::xattr::SetFlags;

const ALONE: (Rank, u16) = (Rank(0), 1);

/// The items in a journal, in one order.
fn said(journal: &Bytes, with_extents: bool) -> Vec<String> {
    lines(&journal.state(), with_extents)
}

/// The node's state, taken at once.
fn snapshot(world: &World) -> Bytes {
    let mut bytes = Bytes::new(ALONE);
    let mut items = Vec::new();
    world
        .node()
        .for_each_item(&mut |item| encode(item, &mut items));
    encode(&Item::SnapshotEnd, &mut items);
    bytes.append(&items);
    bytes
}

/// The items of a journal; without extents, only those that do not wait for writers to end.
fn lines(state: &State, with_extents: bool) -> Vec<String> {
    // Without `..`, so that new state does not compile before it is compared.
    let State {
        rank: _,
        inodes,
        ended,
        targets,
        xattrs,
        entries,
        extents,
        clients,
        segments,
        admitted,
        cells,
        published_log: _, // of several servers
        cluster: _,       // see `mesh_renew`
        whole: _,
    } = state;
    let mut lines = Vec::new();
    lines.extend(inodes.iter().map(|image| format!("{image:?}")));
    lines.extend(ended.iter().map(|life| format!("ended {life:?}")));
    lines.extend(targets.iter().map(|target| format!("{target:?}")));
    lines.extend(entries.iter().map(|entry| format!("{entry:?}")));
    let xattr = &mut |item: &Item<'_>| lines.push(format!("{item:?}"));
    xattrs.show_some(None, usize::MAX, xattr);
    for (ino, index) in extents.iter().filter(|_| with_extents) {
        index.for_each_run(&mut |run| lines.push(format!("{ino:?} {run:?}")));
    }
    lines.extend(clients.iter().map(|client| format!("{client:?}")));
    lines.extend(segments.iter().map(|lent| format!("{lent:?}")));
    lines.extend(admitted.iter().map(|uid| format!("admitted {uid}")));
    lines.extend(cells.iter().map(|cell| format!("{cell:?}")));
    lines.sort();
    lines
}

#[derive(Clone, Debug)]
enum Step {
    Create(u8),
    Unlink(u8),
    Rename(u8, u8),
    Link(u8, u8),
    Mkdir(u8),
    Rmdir(u8),
    Symlink(u8),
    Write(u8, u16, u16),
    Detach(u8),
    Truncate(u8, u16),
    SetXattr(u8, u8, u16),
    RemoveXattr(u8, u8),
    /// Steps of the snapshot.
    Renew(u8),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let name = || 0..40_u8;
    let step = prop_oneof![
        6 => name().prop_map(Step::Create),
        3 => name().prop_map(Step::Unlink),
        2 => (name(), name()).prop_map(|(a, b)| Step::Rename(a, b)),
        1 => (name(), name()).prop_map(|(a, b)| Step::Link(a, b)),
        1 => name().prop_map(Step::Mkdir),
        1 => name().prop_map(Step::Rmdir),
        1 => name().prop_map(Step::Symlink),
        6 => (name(), 0..4000_u16, 1..2000_u16).prop_map(|(n, at, len)| Step::Write(n, at, len)),
        1 => name().prop_map(Step::Detach),
        2 => (name(), 0..4000_u16).prop_map(|(n, size)| Step::Truncate(n, size)),
        4 => (name(), 0..4_u8, 0..900_u16).prop_map(|(n, x, len)| Step::SetXattr(n, x, len)),
        2 => (name(), 0..4_u8).prop_map(|(n, x)| Step::RemoveXattr(n, x)),
        5 => (1..4_u8).prop_map(Step::Renew),
    ];
    proptest::collection::vec(step, 1..160)
}

fn named(name: u8) -> Vec<u8> {
    format!("n{name}").into_bytes()
}

fn find(world: &mut World, name: u8) -> Option<Ino> {
    let components = vec![named(name)];
    let found = world.call(Caller::Control, proto::Lookup { components });
    found.ok().map(|entry| entry.ino)
}

fn set_xattr(world: &mut World, n: u8, attribute: u8, len: u16) -> Result<(), FsError> {
    let Some(ino) = find(world, n) else {
        return Ok(());
    };
    let op = proto::SetXattr {
        ino,
        name: named(attribute),
        part: vec![attribute; usize::from(len)],
        before: 0,
        after: 0,
        call: 0,
        flags: SetFlags {
            create: false,
            replace: false,
        },
    };
    world.call(Caller::Control, op)
}

fn remove_xattr(world: &mut World, n: u8, attribute: u8) -> Result<(), FsError> {
    let Some(ino) = find(world, n) else {
        return Ok(());
    };
    let name = named(attribute);
    world.call(Caller::Control, proto::RemoveXattr { ino, name })
}

fn act(world: &mut World, client: &mut Client, step: &Step) {
    let parent = world.root();
    let control = Caller::Control;
    // An operation that cannot be done changes nothing, which is checked, too.
    let _: Result<(), FsError> = match *step {
        Step::Create(n) => world.create(&named(n)).map(drop),
        Step::Unlink(n) => world.call(
            control,
            proto::Unlink {
                parent,
                name: named(n),
            },
        ),
        Step::Rename(from, to) => {
            let op = proto::Rename {
                parent,
                name: named(from),
                new_parent: parent,
                new_name: named(to),
                flags: 0,
            };
            world.call(control, op)
        }
        Step::Link(from, to) => match find(world, from) {
            Some(ino) => world.call(
                control,
                proto::Link {
                    ino,
                    parent,
                    name: named(to),
                },
            ),
            None => Ok(()),
        },
        Step::Mkdir(n) => {
            let op = proto::Mkdir {
                parent,
                name: named(n),
                mode: 0o755,
                uid: 0,
                gid: 0,
            };
            world.call(control, op).map(drop)
        }
        Step::Rmdir(n) => world.call(
            control,
            proto::Rmdir {
                parent,
                name: named(n),
            },
        ),
        Step::Symlink(n) => {
            let op = proto::Symlink {
                parent,
                name: named(n),
                target: vec![b'x'; 1 + usize::from(n)],
                uid: 0,
                gid: 0,
            };
            world.call(control, op).map(drop)
        }
        Step::Write(n, at, len) => match find(world, n) {
            Some(ino) => {
                let bytes = vec![n; usize::from(len)];
                client.write(world, ino, u64::from(at), &bytes, None).1
            }
            None => Ok(()),
        },
        Step::Detach(n) => {
            if let Some(ino) = find(world, n).filter(|ino| client.is_attached(*ino)) {
                client.detach(ino);
            }
            Ok(())
        }
        Step::Truncate(n, size) => match find(world, n) {
            Some(ino) => world.call(
                control,
                proto::Truncate {
                    ino,
                    size: u64::from(size),
                },
            ),
            None => Ok(()),
        },
        Step::SetXattr(n, attribute, len) => set_xattr(world, n, attribute, len),
        Step::RemoveXattr(n, attribute) => remove_xattr(world, n, attribute),
        Step::Renew(times) => {
            for _ in 0..times {
                world.node().renew_journal(&|_, _| None);
            }
            Ok(())
        }
    };
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn a_journal_that_is_renewed_in_steps_says_what_is(steps in steps()) {
        let mut world = World::sized(8, 100, 32, 32);
        let mut client = Client::new(&mut world);
        let twins = Shared::new(ALONE, snapshot(&world));
        world.node().keep_journal(Box::new(twins.clone()));
        for step in &steps {
            act(&mut world, &mut client, step);
            // A server that is killed now finds all acknowledged changes in the journal that has the
            // name.
            let now = twins.0.borrow().now.clone();
            prop_assert_eq!(said(&now, false), lines_now(&world));
        }
        let open: Vec<Ino> = client.files();
        for ino in open {
            client.detach(ino);
        }
        if let Caller::Client(id) = client.caller() {
            world.now_ns += 1;
            world.poll_client(id, world.now_ns);
        }
        let before = twins.0.borrow().renewals;
        while twins.0.borrow().renewals < before + 2 {
            let now = twins.0.borrow().now.clone();
            prop_assert_eq!(said(&now, true), said(&snapshot(&world), true));
            world.node().renew_journal(&|_, _| None);
        }
    }
}

fn lines_now(world: &World) -> Vec<String> {
    said(&snapshot(world), false)
}

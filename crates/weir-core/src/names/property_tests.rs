//! Random sequences of operations: after each, the shard and a reader's view of its tables are the
//! model's tree; readers of garbage terminate.

use super::concurrency_tests::entry;
use super::memory::Memory;
use super::model::{Model, Node};
use super::{
    FileType, NamesError, NamesView, Owner, RenameMode, SetAttr, Shard, Tables, UnlinkOutcome,
    NAME_MAX,
};
use crate::types::{Ino, Rank};
use proptest::prelude::*;
use proptest::sample::select;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::atomic::Ordering::Relaxed;

/// Few, so that the tables get full and slots are used again.
const MAX_INODES: u32 = 14;
const OWNER: Owner = Owner { uid: 10, gid: 20 };

/// An operation; it gives inodes by their position in the list of all that ever were.
#[derive(Clone, Debug)]
enum Op {
    Create(usize, Vec<u8>),
    Mkdir(usize, Vec<u8>, u32),
    Symlink(usize, Vec<u8>, usize),
    Link(usize, usize, Vec<u8>),
    Unlink(usize, Vec<u8>),
    Rmdir(usize, Vec<u8>),
    Rename(usize, Vec<u8>, usize, Vec<u8>, RenameMode),
    Release(usize),
    SetAttr(usize, SetAttr),
}

fn name() -> impl Strategy<Value = Vec<u8>> {
    let usual = select(vec!["a", "b", "c", "dd", "a-name-of-27-characters-yes"]);
    prop_oneof![
        20 => usual.prop_map(|name| name.as_bytes().to_vec()),
        1 => (1..260_usize).prop_map(|len| vec![b'x'; len]),
        1 => select(vec!["", ".", "..", "a/b", "\0"]).prop_map(|n| n.as_bytes().to_vec()),
    ]
}

fn set_attr() -> impl Strategy<Value = SetAttr> {
    let mode = proptest::option::of(select(vec![0o644, 0o2755, 0o1777]));
    let size = proptest::option::weighted(0.3, 0..1_u64 << 40);
    (mode, size, proptest::option::of(any::<u32>()), any::<i64>()).prop_map(
        |(mode, size, gid, mtime_ns)| SetAttr {
            mode,
            size,
            gid,
            mtime_ns: Some(mtime_ns),
            ..SetAttr::default()
        },
    )
}

fn op() -> impl Strategy<Value = Op> {
    let i = || 0..12_usize;
    let mode = select(vec![
        RenameMode::Replace,
        RenameMode::NoReplace,
        RenameMode::Exchange,
    ]);
    prop_oneof![
        3 => (i(), name()).prop_map(|(d, n)| Op::Create(d, n)),
        3 => (i(), name(), 0..0o4000_u32).prop_map(|(d, n, m)| Op::Mkdir(d, n, m)),
        1 => (i(), name(), 0..5000_usize).prop_map(|(d, n, t)| Op::Symlink(d, n, t)),
        2 => (i(), i(), name()).prop_map(|(f, d, n)| Op::Link(f, d, n)),
        2 => (i(), name()).prop_map(|(d, n)| Op::Unlink(d, n)),
        3 => (i(), name()).prop_map(|(d, n)| Op::Rmdir(d, n)),
        6 => (i(), name(), i(), name(), mode)
            .prop_map(|(d, n, e, m, how)| Op::Rename(d, n, e, m, how)),
        3 => i().prop_map(Op::Release),
        1 => (i(), set_attr()).prop_map(|(f, set)| Op::SetAttr(f, set)),
    ]
}

struct Pair<'a> {
    shard: Shard<'a>,
    model: Model,
    known: Vec<Ino>,
    now_ns: i64,
}

fn gone((ino, nlink): (Ino, u32)) -> UnlinkOutcome {
    UnlinkOutcome { ino, nlink }
}

impl<'a> Pair<'a> {
    fn new(tables: Tables<'a>) -> Self {
        let shard = Shard::new(tables, 0o755, OWNER, 0).unwrap();
        let root = shard.root();
        let node = Node::new(FileType::Dir, 0o755, OWNER, 0);
        Pair {
            shard,
            model: Model::new(root, node),
            known: vec![root],
            now_ns: 0,
        }
    }

    /// The newest inodes have the small numbers, the root comes up often.
    fn ino(&self, pick: usize) -> Ino {
        let newest = self.known.len() - 1;
        self.known[newest.saturating_sub(pick % 11)]
    }

    fn made(
        &mut self,
        got: Result<Ino, NamesError>,
        dir: Ino,
        name: &[u8],
        node: Node,
    ) -> Result<(), TestCaseError> {
        if got == Err(NamesError::NoSpace) {
            prop_assert_eq!(self.model.nodes.len(), MAX_INODES as usize);
            return Ok(());
        }
        let ino = got.unwrap_or(Ino::NONE);
        let want = self.model.make(dir, name, node, ino);
        prop_assert_eq!(got.map(|_| ()), want);
        self.known.extend(got);
        Ok(())
    }

    fn apply(&mut self, op: &Op) -> Result<(), TestCaseError> {
        self.now_ns += 1;
        let now = self.now_ns;
        match op {
            Op::Create(d, name) => {
                let dir = self.ino(*d);
                let got = self.shard.create(dir, name, 0o640, OWNER, now);
                let node = Node::new(FileType::File, 0o640, OWNER, now);
                self.made(got, dir, name, node)?;
            }
            Op::Mkdir(d, name, mode) => {
                let dir = self.ino(*d);
                let got = self.shard.mkdir(dir, name, *mode, OWNER, now);
                let node = Node::new(FileType::Dir, *mode, OWNER, now);
                self.made(got, dir, name, node)?;
            }
            Op::Symlink(d, name, len) => self.symlink(self.ino(*d), name, *len)?,
            Op::Link(f, d, name) => {
                let (file, dir) = (self.ino(*f), self.ino(*d));
                let got = self.shard.link(file, dir, name, now);
                prop_assert_eq!(got, self.model.link(file, dir, name, now));
            }
            Op::Unlink(d, name) => {
                let dir = self.ino(*d);
                let got = self.shard.unlink(dir, name, now);
                prop_assert_eq!(got, self.model.unlink(dir, name, now).map(gone));
            }
            Op::Rmdir(d, name) => {
                let dir = self.ino(*d);
                let got = self.shard.rmdir(dir, name, now);
                prop_assert_eq!(got, self.model.rmdir(dir, name, now).map(gone));
            }
            Op::Rename(d, n, e, m, how) => {
                let (from, to) = (entry(self.ino(*d), n), entry(self.ino(*e), m));
                let got = self.shard.rename(from, to, *how, now);
                let want = self.model.rename(from, to, *how, now);
                prop_assert_eq!(got.map(|done| done.replaced), want.map(|r| r.map(gone)));
            }
            Op::Release(f) => {
                let ino = self.ino(*f);
                prop_assert_eq!(self.shard.release(ino), self.model.release(ino));
            }
            Op::SetAttr(f, set) => {
                let ino = self.ino(*f);
                let got = self.shard.setattr(ino, set).map(|_| ());
                prop_assert_eq!(got, self.model.setattr(ino, set));
            }
        }
        Ok(())
    }

    fn symlink(&mut self, dir: Ino, name: &[u8], len: usize) -> Result<(), TestCaseError> {
        let target: Vec<u8> = (b'a'..=b'z').cycle().take(len).collect();
        let got = self.shard.symlink(dir, name, &target, OWNER, self.now_ns);
        if len == 0 || len > super::SYMLINK_MAX {
            prop_assert!(got.is_err());
            return Ok(());
        }
        let mut node = Node::new(FileType::Symlink, 0o777, OWNER, self.now_ns);
        node.size = len as u64;
        node.target = target;
        self.made(got, dir, name, node)
    }

    /// Everything, seen by the shard and by a reader, is as in the model.
    fn compare(&self) -> Result<(), TestCaseError> {
        for ino in &self.known {
            if !self.model.nodes.contains_key(ino) {
                prop_assert_eq!(self.shard.attr(*ino), Err(NamesError::Stale(*ino)));
                prop_assert_eq!(self.shard.view().attr(*ino), Ok(None));
            }
        }
        for (ino, node) in &self.model.nodes {
            self.compare_attr(*ino, node)?;
            if node.kind == FileType::Dir {
                self.compare_dir(*ino, node)?;
            }
        }
        let counts = self.shard.counts();
        let entries: usize = self.model.nodes.values().map(|n| n.entries.len()).sum();
        prop_assert_eq!(counts.entries, entries as u64);
        let inodes = counts.files + counts.dirs + counts.symlinks;
        prop_assert_eq!(inodes, self.model.nodes.len() as u64);
        Ok(())
    }

    fn compare_attr(&self, ino: Ino, node: &Node) -> Result<(), TestCaseError> {
        let view = self.shard.view();
        let attr = self.shard.attr(ino).unwrap();
        prop_assert_eq!(view.attr(ino), Ok(Some(attr)));
        prop_assert_eq!(attr.file_type(), node.kind);
        prop_assert_eq!((attr.mode & 0o7777, attr.nlink), (node.mode, node.nlink));
        let (uid, gid) = (node.owner.uid, node.owner.gid);
        prop_assert_eq!((attr.uid, attr.gid, attr.size), (uid, gid, node.size));
        let times = (node.mtime_ns, node.ctime_ns);
        prop_assert_eq!((attr.mtime_ns, attr.ctime_ns), times);
        let mut name = [0; NAME_MAX];
        let place = view.parent_and_name(ino, &mut name).unwrap();
        if let Some((parent, len)) = place {
            let there = self.model.nodes[&parent].entries.get(&name[..len]);
            prop_assert_eq!(there, Some(&ino));
        }
        match node.kind {
            FileType::Dir => {
                prop_assert_eq!(attr.parent, node.parent);
                prop_assert_eq!(place.is_some(), node.nlink > 0 && ino != self.model.root);
            }
            // The only name of a file that never had another is known.
            FileType::File | FileType::Fifo | FileType::Socket => {
                prop_assert!(place.is_none() || node.nlink > 0);
            }
            FileType::Symlink => {
                let mut buf = [0; 4096];
                let len = view.symlink_target(ino, &mut buf).unwrap().unwrap();
                prop_assert_eq!(&buf[..len], &node.target[..]);
                prop_assert_eq!(self.shard.symlink_target(ino).unwrap(), &node.target[..]);
            }
        }
        Ok(())
    }

    fn compare_dir(&self, dir: Ino, node: &Node) -> Result<(), TestCaseError> {
        let mut listed = BTreeMap::new();
        let mut cookie = 0;
        // In small steps, so that cookies are used.
        while 0 < self
            .shard
            .readdir(dir, cookie, 2, |entry| {
                assert!(entry.cookie > cookie);
                cookie = entry.cookie;
                let kind = self.model.nodes[&entry.ino].kind;
                assert_eq!(entry.file_type, kind);
                assert_eq!(listed.insert(entry.name.to_vec(), entry.ino), None);
                ControlFlow::Continue(())
            })
            .unwrap()
        {}
        prop_assert_eq!(&listed, &node.entries);
        for name in [&b"a"[..], b"b", b"c", b"dd", b"a-name-of-27-characters-yes"] {
            let want = self.model.lookup(dir, name).ok();
            let got = self.shard.view().lookup(dir, name).unwrap();
            prop_assert_eq!(got.map(|(ino, _)| ino), want);
            prop_assert_eq!(self.shard.lookup(dir, name).ok(), got);
        }
        let mut buf = [0; 4096];
        let path = self.shard.view().path_of(dir, &mut buf).unwrap();
        let root = self.model.root;
        let model = self.model_path(dir).map(|path| (root, path));
        prop_assert_eq!(path.map(|(root, path)| (root, path.to_vec())), model);
        Ok(())
    }

    fn model_path(&self, mut dir: Ino) -> Option<Vec<u8>> {
        let mut path = Vec::new();
        while dir != self.model.root {
            let parent = self.model.nodes.get(&dir)?.parent;
            let entries = &self.model.nodes.get(&parent)?.entries;
            let (name, _) = entries.iter().find(|(_, ino)| **ino == dir)?;
            path.splice(0..0, name.iter().copied());
            path.insert(0, b'/');
            dir = parent;
        }
        if path.is_empty() {
            path.push(b'/');
        }
        Some(path)
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn the_shard_is_the_model(ops in prop::collection::vec(op(), 1..80)) {
        let memory = Memory::new(MAX_INODES);
        let mut pair = Pair::new(memory.format(Rank(2)));
        for op in &ops {
            pair.apply(op)?;
            pair.compare()?;
        }
    }

    /// Overwrites words of the tables with anything: readers neither panic nor loop for ever, and
    /// give no more bytes than there is room for.
    #[test]
    fn readers_survive_garbage(
        ops in prop::collection::vec(op(), 10..40),
        hits in prop::collection::vec((0..6_usize, any::<prop::sample::Index>(), garbage()), 1..60),
    ) {
        let memory = Memory::new(MAX_INODES);
        let mut pair = Pair::new(memory.format(Rank(0)));
        for op in &ops {
            pair.apply(op)?;
        }
        let view = pair.shard.view();
        for (what, index, value) in &hits {
            spoil(&memory, *what, index.index(400), *value);
            read_everything(view, &pair.known)?;
        }
    }
}

fn garbage() -> impl Strategy<Value = u64> {
    prop_oneof![
        any::<u64>(),
        0..5000_u64,
        Just(u64::MAX),
        (0..300_u64, 0..64_u64).prop_map(|(a, b)| a << b),
    ]
}

fn spoil(memory: &Memory, what: usize, index: usize, value: u64) {
    let low = (value & 0xFFFF_FFFF) as u32;
    let record = &memory.inodes[index % 15];
    match what {
        0 => memory.header.bucket_count.0.store(low, Relaxed),
        1 => memory
            .header
            .stripes
            .iter()
            .for_each(|s| s.store(value & !1, Relaxed)),
        2 => memory
            .buckets
            .iter()
            .step_by(1 + index)
            .for_each(|b| b.store(low, Relaxed)),
        3 => memory.arena[4096 + index].store(value, Relaxed),
        4 => memory.arena[4098 + index / 6 * 6].store(u64::from(low), Relaxed),
        _ => match index % 6 {
            0 => record.entry.store(low, Relaxed),
            1 => record.parent.store(value, Relaxed),
            2 => record.size.store(value, Relaxed),
            3 => record.aux.store(low, Relaxed),
            4 => record.mode.store(low, Relaxed),
            _ => record.seq.store(value, Relaxed),
        },
    }
}

/// The answers may be anything.
fn read_everything(view: NamesView<'_>, known: &[Ino]) -> Result<(), TestCaseError> {
    let mut buf = [0; 4096];
    let mut name = [0; NAME_MAX];
    for ino in known.iter().copied().chain([Ino::NONE, Ino(u64::MAX)]) {
        for name in [&b"a"[..], b"b", &[b'x'; 255]] {
            let _any_inode = view.lookup(ino, name);
        }
        for name in [&[b'x'; 4000][..], b""] {
            prop_assert_eq!(view.lookup(ino, name), Ok(None), "no name");
        }
        let attr = view.attr(ino);
        prop_assert!(ino != Ino::NONE || attr == Ok(None), "{:?}", attr);
        let _any_number = view.index_generation(ino);
        if let Ok(Some((_, length))) = view.parent_and_name(ino, &mut name) {
            prop_assert!(length <= NAME_MAX);
        }
        for room in [buf.len(), 3] {
            if let Ok(Some(length)) = view.symlink_target(ino, &mut buf[..room]) {
                prop_assert!(length <= room);
            }
        }
        for room in [buf.len(), 5] {
            if let Ok(Some((_, path))) = view.path_of(ino, &mut buf[..room]) {
                prop_assert!(path.len() <= room && path.starts_with(b"/"));
            }
        }
    }
    Ok(())
}

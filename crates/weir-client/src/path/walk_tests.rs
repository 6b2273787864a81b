//! Walks over a namespace of a few vectors.

use std::collections::HashMap;

use weir_core::types::Rank;

use super::*;
use crate::path::Prefix;

struct Table {
    entries: HashMap<(Ino, Vec<u8>), Ino>,
    inodes: Vec<(FileType, Ino, u32, Vec<u8>)>,
}

fn ino(index: usize) -> Ino {
    Ino::new(Rank(0), 0, u32::try_from(index).unwrap() + 1)
}

fn index(ino: Ino) -> usize {
    ino.index() as usize - 1
}

impl Table {
    fn new() -> Table {
        Table {
            entries: HashMap::new(),
            inodes: vec![(FileType::Dir, ino(0), 0o755, vec![])],
        }
    }

    fn add(&mut self, parent: Ino, name: &str, kind: FileType, target: &str) -> Ino {
        let new = ino(self.inodes.len());
        self.inodes
            .push((kind, parent, 0o755, target.as_bytes().to_vec()));
        self.entries.insert((parent, name.as_bytes().to_vec()), new);
        new
    }
}

impl Names for Table {
    fn root(&self) -> Ino {
        ino(0)
    }

    fn lookup(&self, dir: Ino, name: &[u8]) -> Result<Option<(Ino, FileType)>, Errno> {
        let found = self.entries.get(&(dir, name.to_vec()));
        Ok(found.map(|found| (*found, self.inodes[index(*found)].0)))
    }

    fn attr(&self, ino: Ino) -> Result<Option<Attr>, Errno> {
        let (kind, parent, mode, target) = &self.inodes[index(ino)];
        Ok(Some(Attr {
            ino,
            mode: kind.mode_bits() | mode,
            nlink: 1,
            uid: 1000,
            gid: 1000,
            size: target.len() as u64,
            allocated: 0,
            atime_ns: 0,
            mtime_ns: 0,
            ctime_ns: 0,
            btime_ns: 0,
            index_generation: 0,
            block: 0,
            parent: *parent,
            home: ino,
            fresh: true,
            ask: false,
            mapped: false,
            evicted: false,
            policy: weir_core::names::Policy::default(),
            lamination: weir_core::names::Lamination::No,
        }))
    }

    fn target(&self, ino: Ino, out: &mut [u8; SYMLINK_MAX]) -> Result<usize, Errno> {
        let target = &self.inodes[index(ino)].3;
        out[..target.len()].copy_from_slice(target);
        Ok(target.len())
    }
}

/// `/weir` with d/, d/e/, d/e/f (file), and links.
fn table() -> Table {
    let mut t = Table::new();
    let root = t.root();
    let d = t.add(root, "d", FileType::Dir, "");
    let e = t.add(d, "e", FileType::Dir, "");
    t.add(e, "f", FileType::File, "");
    t.add(d, "up", FileType::Symlink, "../d/e");
    t.add(root, "abs", FileType::Symlink, "/weir/d");
    t.add(root, "out", FileType::Symlink, "/etc");
    t.add(root, "far", FileType::Symlink, "../tmp/x");
    t.add(root, "back", FileType::Symlink, "../weir/d/e/f");
    t.add(root, "self", FileType::Symlink, "self");
    t.add(root, "dangling", FileType::Symlink, "d/new");
    t
}

fn walk_as(t: &Table, path: &str, follow: bool, uid: u32) -> Result<ResolvedPath, Errno> {
    let roots = Roots::of_mount(Prefix::new(b"/weir").unwrap());
    let who = Credentials {
        uid,
        ..Credentials::default()
    };
    let walk = Walk {
        to_the_end: true,
        names: t,
        roots: &roots,
        credentials: &who,
    };
    walk.walk(t.root(), path.as_bytes(), follow)
}

/// `dir N`, `N/name -> M` or `N/name`, `out PATH`, or the errno.
fn describe(resolved: Result<ResolvedPath, Errno>) -> String {
    match resolved {
        Ok(ResolvedPath::Dir(dir)) => format!("dir {}", index(dir)),
        Ok(ResolvedPath::Below { path, .. }) => {
            format!("below {}", String::from_utf8(path).unwrap())
        }
        Ok(ResolvedPath::Outside(path)) => format!("out {}", String::from_utf8(path).unwrap()),
        Ok(ResolvedPath::Name {
            parent,
            name,
            found,
            slash,
        }) => {
            let name = core::str::from_utf8(name.bytes()).unwrap();
            let slash = if slash { "/" } else { "" };
            let found = found.map_or(String::new(), |(ino, _)| format!(" -> {}", index(ino)));
            format!("{}/{name}{slash}{found}", index(parent))
        }
        Err(Errno::NOTDIR) => "NOTDIR".into(),
        Err(Errno::NOENT) => "NOENT".into(),
        Err(Errno::LOOP) => "LOOP".into(),
        Err(Errno::ACCESS) => "ACCESS".into(),
        Err(Errno::NAMETOOLONG) => "NAMETOOLONG".into(),
        Err(error) => error.to_string(),
    }
}

#[test]
fn names_dots_and_slashes() {
    let t = table();
    for (path, want) in [
        ("", "dir 0"),
        ("/", "dir 0"),
        ("/.", "dir 0"),
        ("d", "0/d -> 1"),
        ("/d//e/f", "2/f -> 3"),
        ("/d/e/", "1/e/ -> 2"),
        ("/d/e/..", "dir 1"),
        ("/d/e/../.", "dir 1"),
        ("/d/e/f/", "NOTDIR"),
        ("/d/e/f/x", "NOTDIR"),
        ("/d/e/f/..", "NOTDIR"),
        ("/d/e/f/.", "NOTDIR"),
        ("/d/new", "1/new"),
        ("/d/new/", "1/new/"),
        ("/d/new/x", "NOENT"),
    ] {
        assert_eq!(describe(walk_as(&t, path, true, 0)), want, "{path}");
    }
}

#[test]
fn links_lead_on_back_and_out() {
    let t = table();
    for (path, want) in [
        ("/d/up", "1/e -> 2"),
        ("/d/up/f", "2/f -> 3"),
        ("/abs/e/f", "2/f -> 3"),
        ("/out", "out /etc"),
        ("/out/passwd", "out /etc/passwd"),
        ("/far", "out /tmp/x"),
        ("/back", "2/f -> 3"),
        ("/self", "LOOP"),
        ("/dangling", "1/new"),
        ("/..", "out /"),
        ("/d/../../usr/./bin", "out /usr/./bin"),
        ("/../weir/d", "0/d -> 1"),
    ] {
        assert_eq!(describe(walk_as(&t, path, true, 0)), want, "{path}");
    }
    assert_eq!(describe(walk_as(&t, "/self", false, 0)), "0/self -> 9");
    assert_eq!(describe(walk_as(&t, "/d/up/", false, 0)), "1/e/ -> 2");
    assert_eq!(describe(walk_as(&t, "/d/up", false, 0)), "1/up -> 4");
}

#[test]
fn lengths_are_limited() {
    let t = table();
    let long = "n".repeat(256);
    assert_eq!(describe(walk_as(&t, &long, true, 0)), "NAMETOOLONG");
    assert_eq!(
        describe(walk_as(&t, &long[1..], true, 0)),
        format!("0/{}", &long[1..])
    );
    let path = "d/../".repeat(820);
    assert_eq!(describe(walk_as(&t, &path, true, 0)), "NAMETOOLONG");
    assert_eq!(describe(walk_as(&t, &path[..4095], true, 0)), "dir 0");
}

#[test]
fn directories_must_be_searchable() {
    let mut t = table();
    t.inodes[1].2 = 0o600;
    assert_eq!(describe(walk_as(&t, "/d/e", true, 1000)), "ACCESS");
    assert_eq!(describe(walk_as(&t, "/d", true, 1000)), "0/d -> 1");
    assert_eq!(describe(walk_as(&t, "/d/e", true, 0)), "1/e -> 2");
    t.inodes[1].2 = 0o100;
    assert_eq!(describe(walk_as(&t, "/d/e", true, 1000)), "1/e -> 2");
    assert_eq!(describe(walk_as(&t, "/d/e", true, 1001)), "ACCESS");
}

//! Paths as programs give them: the test for paths of weir, and their resolution.
#![no_main]

use rustix::io::Errno;
use weir_client::path::{
    BelowEntry, Credentials, ElevatedTree, Name, Names, Prefix, ResolvedPath, Roots, Walk,
};
use weir_core::names::{Attr, FileType, Lamination, Policy, SYMLINK_MAX};
use weir_core::types::{Ino, Rank};

/// A namespace in which `d*` is a directory, `l*` a link to the input's last line, `n*` a free name and
/// every other name a file; of those that only a covered directory has, `bd*` is a directory, `bl*` a link
/// and `bf*` a file.
struct Table<'a>(&'a [u8]);

const ROOT: Ino = Ino(1);

fn ino(kind: u32) -> Ino {
    Ino::new(Rank(0), 0, kind)
}

impl Names for Table<'_> {
    fn root(&self) -> Ino {
        ROOT
    }

    fn lookup(&self, _: Ino, name: &[u8]) -> Result<Option<(Ino, FileType)>, Errno> {
        Ok(match name.first() {
            Some(b'd') => Some((ino(2), FileType::Dir)),
            Some(b'l') => Some((ino(3), FileType::Symlink)),
            Some(b'n' | b'b') => None,
            _ => Some((ino(4), FileType::File)),
        })
    }

    fn attr(&self, ino: Ino) -> Result<Option<Attr>, Errno> {
        let kind = match ino.index() {
            1 | 2 => FileType::Dir,
            3 => FileType::Symlink,
            _ => FileType::File,
        };
        Ok(Some(Attr {
            ino,
            mode: kind.mode_bits() | 0o755,
            nlink: 1,
            uid: 0,
            gid: 0,
            size: 0,
            allocated: 0,
            atime_ns: 0,
            mtime_ns: 0,
            ctime_ns: 0,
            btime_ns: 0,
            index_generation: 0,
            block: 0,
            parent: ROOT,
            home: ino,
            fresh: true,
            ask: false,
            mapped: false,
            evicted: false,
            policy: Policy::default(),
            lamination: Lamination::No,
        }))
    }

    fn target(&self, _: Ino, out: &mut [u8; SYMLINK_MAX]) -> Result<usize, Errno> {
        let length = self.0.len().min(SYMLINK_MAX);
        out[..length].copy_from_slice(&self.0[..length]);
        Ok(length)
    }

    fn lookup_below(&self, _: Ino, name: &[u8]) -> Result<Option<BelowEntry>, Errno> {
        let path = [b"/below/", name].concat();
        Ok(match name {
            [b'b', b'd', ..] => Some(BelowEntry::Directory(ino(2))),
            [b'b', b'l', ..] => Some(BelowEntry::Link {
                path,
                target: self.0.to_vec(),
            }),
            [b'b', b'f', ..] => Some(BelowEntry::File(path)),
            _ => None,
        })
    }
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let mut fields = data.splitn(3, |b| *b == b'\n');
    let (prefix, path) = (fields.next().unwrap_or(b""), fields.next().unwrap_or(b""));
    let target = fields.next().unwrap_or(b"");
    let _ = Prefix::new(prefix);
    let prefix = Prefix::new(prefix)
        .or_else(|| Prefix::new(b"/weir"))
        .expect("an absolute path");
    if let Some(rest) = prefix.strip(path) {
        assert!(
            path.ends_with(rest),
            "what is behind the prefix is of the path"
        );
    }
    let roots = Roots {
        main: prefix,
        elevated: Prefix::new(target)
            .map(|target| ElevatedTree {
                rule: weir_core::elevate_rule::ElevateRule::default(),
                root: Ino(7),
                target,
            })
            .into_iter()
            .collect(),
    };
    let walk = Walk {
        names: &Table(target),
        roots: &roots,
        credentials: &Credentials {
            uid: 1000,
            gid: 1000,
            groups: vec![],
        },
        to_the_end: true,
    };
    for follow in [false, true] {
        match walk.walk(ROOT, path, follow) {
            Ok(ResolvedPath::Name { name, .. }) => {
                assert!(!name.bytes().contains(&b'/') && !name.bytes().is_empty());
                assert!(Name::new(name.bytes()).is_ok());
            }
            Ok(ResolvedPath::Below { name, path, .. }) => {
                assert!(path.ends_with(name.bytes()), "the path is that of the name");
            }
            Ok(ResolvedPath::Outside(path)) => assert!(path.starts_with(b"/")),
            Ok(ResolvedPath::Dir(_)) | Err(_) => {}
        }
    }
});

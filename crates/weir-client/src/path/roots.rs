//! The directories, as the kernel names them, at which weir's trees begin: the mount prefix, and
//! elevated directories.

use weir_core::elevate_rule::ElevateRule;
use weir_core::types::Ino;

use super::prefix::Prefix;

/// The tree over an elevated directory of the parallel file system.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ElevatedTree {
    /// The root directory.
    pub root: Ino,
    /// The elevated directory, by its canonical path, that of its user, and those of other mounts of its file system.
    pub target: Prefix,
    /// Which of its files are taken, and how.
    pub rule: ElevateRule,
}

/// The trees of an instance.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Roots {
    /// The mount prefix.
    pub main: Prefix,
    /// The others.
    pub elevated: Box<[ElevatedTree]>,
}

/// The tree that a path leads into.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TreeOf {
    /// The one at the mount prefix.
    Main,
    /// The elevated one with this root.
    Elevated(Ino),
}

impl TreeOf {
    /// Its root directory, if `main` is that of the tree at the mount prefix.
    pub fn root(self, main: Ino) -> Ino {
        match self {
            TreeOf::Main => main,
            TreeOf::Elevated(root) => root,
        }
    }
}

impl Roots {
    /// Only the tree at the mount prefix.
    pub fn of_mount(main: Prefix) -> Roots {
        Roots {
            main,
            elevated: Box::default(),
        }
    }

    /// The tree that an absolute path leads into, and the rest behind its root; `None`: the path is the
    /// kernel's. As [`Prefix::strip`].
    #[inline]
    pub fn strip<'p>(&self, path: &'p [u8]) -> Option<(TreeOf, &'p [u8])> {
        if let Some(rest) = self.main.strip(path) {
            return Some((TreeOf::Main, rest));
        }
        if self.elevated.is_empty() {
            return None;
        }
        self.strip_elevated(path)
    }

    fn strip_elevated<'p>(&self, path: &'p [u8]) -> Option<(TreeOf, &'p [u8])> {
        self.elevated.iter().find_map(|tree| {
            let rest = tree.target.strip(path)?;
            Some((TreeOf::Elevated(tree.root), rest))
        })
    }

    /// The prefix of the tree with this root, which is not another directory of a tree.
    pub fn prefix_of(&self, root: Ino) -> &Prefix {
        let tree = self.elevated.iter().find(|tree| tree.root == root);
        tree.map_or(&self.main, |tree| &tree.target)
    }

    /// True if a directory is the root of an elevated tree.
    pub fn is_elevated_root(&self, dir: Ino) -> bool {
        self.elevated.iter().any(|tree| tree.root == dir)
    }

    /// True if one of the trees begins below a directory of the kernel's, or if that lies in an elevated
    /// one: then a path from there may lead into a tree.
    pub fn may_be_reached_from(&self, dir: &[u8]) -> bool {
        self.prefixes().any(|prefix| is_above(dir, prefix.bytes()))
            || self.strip_elevated(dir).is_some()
    }

    /// All prefixes.
    pub fn prefixes(&self) -> impl Iterator<Item = &Prefix> {
        let elevated = self.elevated.iter().map(|tree| &tree.target);
        core::iter::once(&self.main).chain(elevated)
    }
}

/// True if `path` lies below the directory `dir`.
fn is_above(dir: &[u8], path: &[u8]) -> bool {
    let dir = dir.strip_suffix(b"/").unwrap_or(dir);
    path.strip_prefix(dir)
        .is_some_and(|rest| rest.first() == Some(&b'/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn roots() -> Roots {
        let prefix = |path: &[u8]| Prefix::new(path).unwrap();
        let tree = |root, path, alias: &[u8]| ElevatedTree {
            root: Ino(root),
            target: prefix(path).with_mounts([alias.to_vec()]),
            rule: ElevateRule::default(),
        };
        Roots {
            main: prefix(b"/weir"),
            elevated: [
                tree(6, b"/pfs/run42", b"/home/u/run"),
                tree(7, b"/scratch/x", b"/scratch/x"),
            ]
            .into(),
        }
    }

    #[test]
    fn a_path_leads_into_one_tree() {
        let roots = roots();
        for (path, tree, rest) in [
            ("/weir/a", TreeOf::Main, "/a"),
            ("/pfs/run42", TreeOf::Elevated(Ino(6)), ""),
            ("/pfs/./run42/b", TreeOf::Elevated(Ino(6)), "/b"),
            ("/home/u/run/b", TreeOf::Elevated(Ino(6)), "/b"),
            ("//scratch/x/", TreeOf::Elevated(Ino(7)), "/"),
        ] {
            assert_eq!(
                roots.strip(path.as_bytes()),
                Some((tree, rest.as_bytes())),
                "{path}"
            );
        }
        for path in ["/pfs/run4", "/pfs/run421", "/home/u", "/", "", "weir"] {
            assert_eq!(roots.strip(path.as_bytes()), None, "{path}");
        }
        assert_eq!(roots.prefix_of(Ino(7)).bytes(), b"/scratch/x");
        assert_eq!(roots.prefix_of(Ino(1)).bytes(), b"/weir");
    }

    #[test]
    fn relative_paths_may_lead_into_a_tree_from_above_it_or_within() {
        for (dir, may) in [
            ("/", true),
            ("/pfs", true),
            ("/pfs/run42/sub", true),
            ("/home/u", false),
            ("/pfs2", false),
            ("/weird", false),
        ] {
            assert_eq!(roots().may_be_reached_from(dir.as_bytes()), may, "{dir}");
        }
    }
}

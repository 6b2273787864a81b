//! Whether this machine lets a kernel mount be made, and what a test wants of it.

use std::fs::File;

use crate::needs::Need;

/// What a test wants of the kernel mount beneath the interposer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelMount {
    /// Nothing: it holds with one and without.
    Either,
    /// There must be one: the test is skipped where the machine allows none.
    Needed,
    /// There must be none.
    Never,
}

impl KernelMount {
    /// Options of `weir run`. Where one is needed, the server need not succeed in it: the test fails then.
    pub fn options(self) -> &'static [&'static str] {
        match self {
            Self::Either | Self::Needed => &[],
            Self::Never => &["--set", "mount.kernel=never"],
        }
    }

    /// True if the test cannot run without one.
    pub fn is_needed(self) -> bool {
        self == Self::Needed
    }
}

const HELPER: Need = Need {
    what: "fusermount3",
    package: "fuse3",
};

/// Why this machine allows no kernel mount; `None`: it does.
pub fn why_none() -> Option<String> {
    if let Err(error) = File::options().read(true).write(true).open("/dev/fuse") {
        return Some(format!("/dev/fuse: {error}"));
    }
    if !rustix::process::geteuid().is_root() && HELPER.find().is_none() {
        return Some(format!("not root, and no fusermount3 ({})", HELPER.package));
    }
    None
}

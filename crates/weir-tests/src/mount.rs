//! The kernel mount: the requirements of a test, and the check whether this machine allows one.

/// A test's requirement for the kernel mount beneath the interposer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelMount {
    /// None: the test passes with a mount and without.
    Either,
    /// A mount is required: the test is skipped if the machine allows none.
    Needed,
    /// No mount is allowed.
    Never,
}

impl KernelMount {
    /// Options of `weir run`. If a mount is required, the server may still fail to make it: the test
    /// fails then.
    pub fn options(self) -> &'static [&'static str] {
        match self {
            Self::Either | Self::Needed => &[],
            Self::Never => &["--set", "mount.kernel=never"],
        }
    }

    /// True if the test cannot run without a mount.
    pub fn is_needed(self) -> bool {
        self == Self::Needed
    }
}

/// The reason why this machine allows no kernel mount; `None`: it allows one.
pub fn why_none() -> Option<String> {
    weir_faultfs::why_no_mount()
}

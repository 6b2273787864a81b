//! Tests that this machine cannot run.
//!
//! libtest counts a test that only returns as passed, and hides its output. So such a test reports here
//! that it is skipped, in a line that libtest does not capture. Where all tests must run, it fails
//! instead: in CI (`CI` is set, as .ci/run does), which is root and has the packages of `make setup`;
//! and everywhere with `WEIR_TEST_NEED_CLUSTER=1`. CI tolerates only missing features that cannot be
//! installed: a kernel or a container that refuses namespaces, mounts or FUSE.

use std::io::Write;

/// Set where no test may be skipped, for any reason.
const NEED: &str = "WEIR_TEST_NEED_CLUSTER";

/// The kind of thing that a machine lacks for a test.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lack {
    /// Rights or packages, which CI has.
    Setup,
    /// A feature that the kernel or the container refuses, which nobody can install.
    Kernel,
}

impl Lack {
    /// True if a test that lacks this must fail, not be skipped.
    pub fn is_failure(self) -> bool {
        let is_ci = self == Lack::Setup && std::env::var_os("CI").is_some();
        is_ci || std::env::var_os(NEED).is_some()
    }
}

/// Reports that the test `what` is skipped, because rights or packages are missing; fails it in CI.
pub fn skip(what: &str, lacks: &str) {
    say_or_fail(what, lacks, Lack::Setup.is_failure());
}

/// The same for features that the kernel or the container refuses, which CI tolerates.
pub fn skip_for_kernel(what: &str, refused: &str) {
    say_or_fail(what, refused, Lack::Kernel.is_failure());
}

fn say_or_fail(what: &str, lacks: &str, is_needed: bool) {
    assert!(!is_needed, "{what}: this machine lacks {lacks}");
    // Not by eprintln!, whose output libtest captures for tests that pass.
    let _ = writeln!(std::io::stderr(), "SKIP {what}: this machine lacks {lacks}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_goes_on_where_it_may_be_skipped() {
        say_or_fail("a test", "nothing", false);
    }

    #[test]
    #[should_panic(expected = "a test: this machine lacks a wheel")]
    fn a_test_fails_where_it_may_not() {
        say_or_fail("a test", "a wheel", true);
    }
}

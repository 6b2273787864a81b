//! The trials of the test programs that have a list of checks and no `#[test]` functions.

use std::time::Duration;

use anyhow::Result;
use libtest_mimic::{Arguments, Failed, Trial};
use weir_cluster::skip::Lack;

use crate::launch::Target;
use crate::needs::{missing, Need};
use crate::number;

/// The target of all trials; why there is none, which fails each of them.
pub fn target(arguments: &Arguments) -> Result<Target, String> {
    if arguments.list {
        return Err(String::new());
    }
    Target::from_environment().map_err(|error| format!("{error:#}"))
}

/// A trial on the target. If packages are missing it fails with their names, or is skipped where
/// `WEIR_TEST_ALLOW_MISSING` says so, though not in CI.
pub fn on_target(
    name: &str,
    needs: &[Need],
    target: &Result<Target, String>,
    run: impl FnOnce(Target) -> Result<()> + Send + 'static,
) -> Trial {
    let packages = missing(needs).join(" ");
    let target = target.clone();
    let allow_missing = std::env::var("WEIR_TEST_ALLOW_MISSING").is_ok_and(|value| value == "1");
    if allow_missing && !packages.is_empty() {
        let why = format!("missing on this machine: {packages}");
        return skipped(name, Lack::Setup, &why);
    }
    Trial::test(name, move || {
        if !packages.is_empty() {
            return Err(Failed::from(format!(
                "missing on this machine: apt-get install {packages}"
            )));
        }
        let outcome = target.map_err(anyhow::Error::msg).and_then(run);
        outcome.map_err(|error| Failed::from(format!("{error:#}")))
    })
}

/// A trial that cannot run on this machine: it is skipped, or fails where it must not be ([`mod@weir_cluster::skip`]).
pub fn skipped(name: &str, lack: Lack, why: &str) -> Trial {
    if lack.is_failure() {
        let why = format!("it must not be skipped here: {why}");
        return Trial::test(name, move || Err(Failed::from(why)));
    }
    eprintln!("SKIP {name}: {why}");
    Trial::test(name, || Ok(()))
        .with_kind("SKIP")
        .with_ignored_flag(true)
}

/// The time limit of a trial: `WEIR_TEST_LIMIT_S`, else `default_s`, in seconds.
pub fn limit(default_s: u64) -> Result<Duration> {
    let limit_s = number("WEIR_TEST_LIMIT_S")?.unwrap_or(default_s);
    Ok(Duration::from_secs(limit_s))
}

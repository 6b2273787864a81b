//! `weir doctor`: what this machine gives weir, what is wrong with it, and what to do.
//!
//! A finding is `ok`, `warn` (works, but slower or smaller than it could) or `fail` (weir will
//! not work, or not for long); everything but `ok` comes with a remedy. Checks look at what
//! the kernel says and, where that proves little, try the thing itself.
//!
//! Left out: anything that needs an instance to run; of those that do, whether they could go on
//! after their server was killed.

mod instances;
mod libfabric;
mod limits;
mod nodes;
mod preload;
mod system;

use serde::Serialize;
use weir_config::{Environment, Loaded, Machine};

use crate::args::FormatArgs;
use crate::exit::Failure;

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// As it should be.
    Ok,
    /// Slower or smaller than it could be.
    Warn,
    /// Weir does not work with this.
    Fail,
}

/// What one check found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What was checked; a few words.
    pub check: &'static str,
    /// How bad it is.
    pub level: Level,
    /// What is there.
    pub found: String,
    /// What to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

impl Finding {
    fn ok(check: &'static str, found: impl Into<String>) -> Self {
        Self {
            check,
            level: Level::Ok,
            found: found.into(),
            remedy: None,
        }
    }

    fn warn(check: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self {
            level: Level::Warn,
            remedy: Some(remedy.into()),
            ..Self::ok(check, found)
        }
    }

    fn fail(check: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self {
            level: Level::Fail,
            ..Self::warn(check, found, remedy)
        }
    }
}

/// What the checks look at.
struct Patient<'a> {
    loaded: &'a Loaded,
    env: &'a Environment,
    machine: Machine,
}

fn examine(patient: &Patient<'_>) -> Vec<Finding> {
    let mut findings = system::check(patient);
    findings.extend(limits::check(patient));
    findings.extend(preload::check(patient));
    findings.extend(nodes::check(patient));
    findings.push(libfabric::check(patient));
    findings.extend(instances::check(patient));
    findings
}

/// Prints the findings; fails if one of them does.
pub fn run(args: &FormatArgs, loaded: &Loaded, env: &Environment) -> Result<(), Failure> {
    let patient = Patient {
        loaded,
        env,
        machine: Machine::look(&loaded.config),
    };
    let findings = examine(&patient);
    if args.json {
        outln!(
            "{}",
            serde_json::to_string_pretty(&findings).expect("plain data")
        );
    } else {
        findings.iter().for_each(print);
    }
    let worst = findings.iter().map(|finding| finding.level).max();
    if worst == Some(Level::Fail) {
        Err(Failure::Unfit)
    } else {
        Ok(())
    }
}

fn print(finding: &Finding) {
    let level = match finding.level {
        Level::Ok => "ok",
        Level::Warn => "warn",
        Level::Fail => "FAIL",
    };
    outln!("{level:<4}  {:<18}  {}", finding.check, finding.found);
    if let Some(remedy) = &finding.remedy {
        outln!("      {:<18}  -> {remedy}", "");
    }
}

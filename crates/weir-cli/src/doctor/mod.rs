//! `weir doctor`: what this machine gives weir, what is wrong with it, and what to do.
//!
//! A finding is `ok`, `warn` (works, but slower or smaller than it could) or `fail` (weir will
//! not work, or not for long); everything but `ok` comes with a remedy. Checks look at what
//! the kernel says and, where that proves little, try the thing itself.
//!
//! With `--bundle` the findings go into a file for a bug report, with all else that one needs
//! (`bundle.rs`).
//!
//! Left out: checks that would start an instance. Of those that run, the doctor says whether they
//! could go on after their server was killed.

mod bundle;
mod connectors;
mod finding;
mod instances;
mod libfabric;
mod limits;
mod nodes;
mod preload;
mod program;
mod system;

use std::fmt::Write as _;
use std::path::Path;

use weir_config::{Environment, Loaded, Machine};

use crate::args::DoctorArgs;
use crate::exit::Failure;
use finding::{Finding, Level, MachineReport};

fn examine(examined: &MachineReport<'_>, program: Option<&Path>) -> Vec<Finding> {
    let mut findings = system::check(examined);
    findings.extend(limits::check(examined));
    findings.extend(preload::check(examined));
    findings.extend(program.map(program::check));
    findings.extend(connectors::check(examined, program));
    findings.extend(nodes::check(examined));
    findings.push(libfabric::check(examined));
    findings.extend(instances::check(examined));
    findings
}

/// Prints the findings, and fails if one of them does; with `--bundle` writes them to its file.
pub fn run(args: &DoctorArgs, loaded: &Loaded, env: &Environment) -> Result<(), Failure> {
    let examined = MachineReport {
        loaded,
        env,
        machine: Machine::look(&loaded.config),
    };
    let findings = examine(&examined, args.program.as_deref());
    if let Some(path) = &args.bundle {
        return Ok(bundle::write(path, &examined, &findings)?);
    }
    if args.format.json {
        outln!(
            "{}",
            serde_json::to_string_pretty(&findings).expect("plain data")
        );
    } else {
        for finding in &findings {
            out!("{}", line(finding));
        }
    }
    let worst = findings.iter().map(|finding| finding.level).max();
    if worst == Some(Level::Fail) {
        Err(Failure::Unfit)
    } else {
        Ok(())
    }
}

/// A finding for people: a line, and one more for its remedy.
fn line(finding: &Finding) -> String {
    let level = match finding.level {
        Level::Ok => "ok",
        Level::Warn => "warn",
        Level::Fail => "FAIL",
    };
    let mut text = format!("{level:<4}  {:<18}  {}\n", finding.check, finding.found);
    if let Some(remedy) = &finding.remedy {
        let _ = writeln!(text, "      {:<18}  -> {remedy}", "");
    }
    text
}

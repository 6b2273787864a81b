//! `weir doctor`: what this machine gives weir, what is wrong with it, and what to do.
//!
//! A finding is `ok`, `warn` (works, but slower or smaller than it could) or `fail` (weir will
//! not work, or not for long); everything but `ok` comes with a remedy. Checks look at what
//! the kernel says and, where that proves little, try the thing itself.
//!
//! Left out: anything that needs an instance to run; of those that do, whether they could go on
//! after their server was killed.

mod finding;
mod instances;
mod libfabric;
mod limits;
mod nodes;
mod preload;
mod system;

use weir_config::{Environment, Loaded, Machine};

use crate::args::FormatArgs;
use crate::exit::Failure;
use finding::{Finding, Level, MachineReport};

fn examine(examined: &MachineReport<'_>) -> Vec<Finding> {
    let mut findings = system::check(examined);
    findings.extend(limits::check(examined));
    findings.extend(preload::check(examined));
    findings.extend(nodes::check(examined));
    findings.push(libfabric::check(examined));
    findings.extend(instances::check(examined));
    findings
}

/// Prints the findings; fails if one of them does.
pub fn run(args: &FormatArgs, loaded: &Loaded, env: &Environment) -> Result<(), Failure> {
    let examined = MachineReport {
        loaded,
        env,
        machine: Machine::look(&loaded.config),
    };
    let findings = examine(&examined);
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

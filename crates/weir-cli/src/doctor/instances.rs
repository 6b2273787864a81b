//! Instances of this node: whether each that runs could go on if its server were killed, and those
//! whose server was.

use std::path::Path;

use weir_core::proto::Status;
use weir_instance::connection::Connection;
use weir_instance::directories;

use super::finding::{Finding, MachineReport};
use crate::{locate, report};

const CHECK: &str = "instances";

/// One finding for each that has one, or that there are none that do.
pub fn check(examined: &MachineReport<'_>) -> Vec<Finding> {
    let live = locate::live(&examined.loaded.config, examined.env);
    let mut wrong: Vec<Finding> = live.iter().filter_map(|run_dir| look(run_dir)).collect();
    let dead = directories::all(&examined.loaded.config, examined.env);
    wrong.extend(
        dead.iter()
            .map(|one| Finding::warn(CHECK, one.state(), one.advice())),
    );
    if wrong.is_empty() {
        let found = format!("{} run, with nothing to say of them", live.len());
        return vec![Finding::ok(CHECK, found)];
    }
    wrong
}

fn look(run_dir: &Path) -> Option<Finding> {
    let name = run_dir.file_name().unwrap_or_default().to_string_lossy();
    // One that ends just now, or is starting, is none that can be looked at.
    let report = Connection::to(run_dir)
        .and_then(|mut server| server.call(Status {}))
        .ok()?;
    if report.recoverable {
        return None;
    }
    let remedy = "leave more room where memory is kept: a smaller memory.budget, or another \
                  memory.directory";
    let found = format!("the journal of {name} was {}", report::NO_JOURNAL);
    Some(Finding::warn(CHECK, found, remedy))
}

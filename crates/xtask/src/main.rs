//! Chores of the repository that are too much for a line of make: `cargo xtask tidy`,
//! `cargo xtask cluster` for test clusters, and `cargo xtask simulate`.

use std::process::ExitCode;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.first().map(String::as_str) {
        Some("tidy") => tidy(),
        Some("cluster") => xtask::cluster::run(&words[1..]).unwrap_or_else(|e| {
            eprintln!("cluster: {e:#}");
            ExitCode::from(2)
        }),
        Some("simulate") => xtask::simulate::run(&words[1..]).unwrap_or_else(|e| {
            eprintln!("simulate: {e:#}");
            ExitCode::from(2)
        }),
        _ => {
            let (cluster, simulate) = (xtask::cluster::USAGE, xtask::simulate::USAGE);
            eprintln!("usage: cargo xtask tidy\n{cluster}\n{simulate}");
            ExitCode::from(2)
        }
    }
}

fn tidy() -> ExitCode {
    match xtask::tidy(&xtask::workspace_root()) {
        Ok(untidy) => {
            for warning in &untidy.warnings {
                eprintln!("warning: {warning}");
            }
            for error in &untidy.errors {
                eprintln!("error: {error}");
            }
            println!(
                "tidy: {} files, {} errors, {} warnings",
                untidy.files,
                untidy.errors.len(),
                untidy.warnings.len()
            );
            ExitCode::from(u8::from(!untidy.errors.is_empty()))
        }
        Err(e) => {
            eprintln!("tidy: {e:#}");
            ExitCode::from(2)
        }
    }
}

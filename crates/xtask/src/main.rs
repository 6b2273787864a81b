//! Chores of the repository that are too much for a line of make: `cargo xtask tidy`,
//! `cargo xtask cluster` for test clusters, and `cargo xtask simulate`.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;

/// Chores of weir's repository.
#[derive(Parser)]
#[command(name = "xtask", bin_name = "cargo xtask")]
enum Chore {
    /// Checks what the compiler, rustfmt and clippy do not look at.
    Tidy(Tidy),
    /// Several nodes on one machine, for hands.
    #[command(subcommand)]
    Cluster(xtask::cluster::ClusterChore),
    /// Runs seeds of the simulation of several servers.
    Simulate(xtask::simulate::SimulateArgs),
}

/// How to check.
#[derive(clap::Args)]
struct Tidy {
    /// Lowers the numbers of known faults (crates/xtask/tidy.toml) to what is left of them.
    #[arg(long)]
    lower: bool,
}

fn main() -> ExitCode {
    let (name, done) = match Chore::parse() {
        Chore::Tidy(Tidy { lower: false }) => return tidy(),
        Chore::Tidy(Tidy { lower: true }) => ("tidy", lower()),
        Chore::Cluster(chore) => ("cluster", xtask::cluster::run(chore)),
        Chore::Simulate(wish) => ("simulate", xtask::simulate::run(&wish)),
    };
    done.unwrap_or_else(|e| {
        eprintln!("{name}: {e:#}");
        ExitCode::from(2)
    })
}

fn lower() -> anyhow::Result<ExitCode> {
    xtask::tidy::lower(&xtask::workspace_root())?;
    Ok(ExitCode::SUCCESS)
}

fn tidy() -> ExitCode {
    match xtask::tidy::check(&xtask::workspace_root()) {
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

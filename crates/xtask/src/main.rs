//! Chores of the repository that are too much for a line of make: `cargo xtask tidy` and
//! `cargo xtask check`, `cargo xtask cluster` for test clusters, and `cargo xtask simulate`.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;

/// Chores of weir's repository.
#[derive(Parser)]
#[command(name = "xtask", bin_name = "cargo xtask")]
enum Chore {
    /// Checks what the compiler, rustfmt and clippy do not look at.
    Tidy(Tidy),
    /// Checks the changes since main: formatting, lints, tidy, and their unit tests.
    Check,
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
        Chore::Tidy(Tidy { lower: false }) => ("tidy", tidy()),
        Chore::Check => ("check", xtask::check::run(&xtask::workspace_root())),
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

fn tidy() -> anyhow::Result<ExitCode> {
    let is_tidy = xtask::tidy::print(&xtask::workspace_root())?;
    Ok(ExitCode::from(u8::from(!is_tidy)))
}

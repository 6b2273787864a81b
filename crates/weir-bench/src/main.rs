//! `weir-bench`: the benchmark as a program of its own. `weir bench` mounts the same library.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;
use weir_bench::BenchArgs;

/// Measures directories: bandwidth, metadata rates, and the machine's own limits beside them.
#[derive(Parser)]
#[command(name = "weir-bench", version, about)]
struct Command {
    #[command(flatten)]
    args: BenchArgs,
}

fn main() -> anyhow::Result<ExitCode> {
    weir_bench::run(&Command::parse().args).map(ExitCode::from)
}

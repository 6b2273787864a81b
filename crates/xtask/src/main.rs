//! Chores of the repository that are too much for a line of make: `cargo xtask tidy`.

use std::process::ExitCode;

fn main() -> ExitCode {
    if std::env::args().nth(1).as_deref() == Some("tidy") {
        return tidy();
    }
    eprintln!("usage: cargo xtask tidy");
    ExitCode::from(2)
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

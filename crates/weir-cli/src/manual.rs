//! The man pages, made from the command line's declaration and from that of the settings.

use std::path::Path;

use anyhow::{Context, Result};
use clap::CommandFactory;

use crate::args::Cli;

/// Writes weir(1), weir-run(1) and so on, and weir.toml(5).
pub fn write(directory: &Path) -> Result<()> {
    std::fs::create_dir_all(directory)?;
    // Hidden subcommands have no page.
    clap_mangen::generate_to(Cli::command(), directory)
        .with_context(|| format!("writing to {}", directory.display()))?;
    std::fs::write(directory.join("weir.toml.5"), weir_config::manual_page())?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_page_is_made() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path()).unwrap();
        for page in [
            "weir.1",
            "weir-run.1",
            "weir-start.1",
            "weir-doctor.1",
            "weir.toml.5",
        ] {
            let text = std::fs::read_to_string(dir.path().join(page)).unwrap();
            assert!(text.contains(".SH NAME"), "{page}");
        }
        assert!(!dir.path().join("weir-server.1").exists());
    }
}

//! Checks of the injection: the client library, and what else is or will be preloaded.

use std::path::{Path, PathBuf};
use std::process::Command;

use nix::sys::statvfs::{statvfs, FsFlags};
use weir_config::Environment;

use super::finding::{Finding, MachineReport};
use crate::inject;

/// Libraries that are known not to get along with an interposer of file calls: part of the file
/// name, what it is, whether it breaks weir, what to do.
#[rustfmt::skip] // A table reads best as one.
const KNOWN: &[(&str, &str, bool, &str)] = &[
    ("libasan", "AddressSanitizer must come first itself", true,
        "run without it, or link it statically (-static-libasan)"),
    ("unifyfs", "another burst-buffer file system", true, UNSET),
    ("gkfs", "another burst-buffer file system", true, UNSET),
    ("libcruise", "another file-system interposer", true, UNSET),
    ("libplfs", "another file-system interposer", true, UNSET),
    ("darshan", "counts the calls that weir answers only in part", false,
        "its numbers leave out weir; weir's report has them"),
    ("tcmalloc", "an allocator that breaks when it comes first", false, KEEP_ORDER),
    ("jemalloc", "an allocator", false, KEEP_ORDER),
];
const UNSET: &str = "unset it from LD_PRELOAD";
const KEEP_ORDER: &str = "weir run puts itself before it; do not change the order inside the job";

pub(super) fn check(examined: &MachineReport<'_>) -> Vec<Finding> {
    let mut findings = library(examined.env);
    let inherited = examined.env.get("LD_PRELOAD").unwrap_or_default();
    findings.extend(preloaded("LD_PRELOAD", inherited));
    let system = std::fs::read_to_string("/etc/ld.so.preload").unwrap_or_default();
    findings.extend(preloaded("/etc/ld.so.preload", &system));
    findings
}

fn library(env: &Environment) -> Vec<Finding> {
    let check = "client library";
    let program = std::env::current_exe().unwrap_or_default();
    let library = match inject::find_library(env, &program) {
        Ok(library) => library,
        Err(e) => {
            return vec![Finding::fail(
                check,
                format!("{e:#}"),
                "build or install it: make",
            )]
        }
    };
    let found = library.display().to_string();
    let no_exec = statvfs(&library).is_ok_and(|fs| fs.flags().contains(FsFlags::ST_NOEXEC));
    if no_exec {
        let found = format!("{found} is on a file system mounted noexec");
        return vec![Finding::fail(
            check,
            found,
            "install weir elsewhere, or name a copy in WEIR_PRELOAD",
        )];
    }
    match load(std::slice::from_ref(&library)) {
        Ok(()) => vec![Finding::ok(check, found)],
        Err(why) => vec![Finding::fail(
            check,
            format!("{found}: {why}"),
            "build it for this system: make",
        )],
    }
}

/// Preloads libraries into a program that does nothing. The loader warns and goes on where it
/// cannot (ld.so(8)), so what it says decides.
pub(super) fn load(libraries: &[PathBuf]) -> Result<(), String> {
    let list = inject::preload_list(libraries, None).map_err(|e| format!("{e:#}"))?;
    let output = Command::new("true")
        .env("LD_PRELOAD", list)
        .env("WEIR_INSTANCE", "")
        .output()
        .map_err(|e| e.to_string())?;
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.success() && !said.contains("cannot be preloaded") {
        Ok(())
    } else {
        Err(said
            .lines()
            .next()
            .unwrap_or("a program with it fails")
            .to_owned())
    }
}

fn preloaded(place: &str, list: &str) -> Vec<Finding> {
    let check = "preload conflicts";
    let items = list
        .split([' ', ':', '\n', '\t'])
        .filter(|item| !item.is_empty());
    let found = |item: &str, what: &str| format!("{place} has {item}: {what}");
    items
        .filter_map(|item| {
            let name = Path::new(item)
                .file_name()?
                .to_string_lossy()
                .to_lowercase();
            let (_, what, breaks, remedy) = KNOWN.iter().find(|(part, ..)| name.contains(part))?;
            Some(if *breaks {
                Finding::fail(check, found(item, what), *remedy)
            } else {
                Finding::warn(check, found(item, what), *remedy)
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::Level;

    #[test]
    fn conflicts_are_known_by_file_name() {
        let levels = |list| -> Vec<Level> {
            preloaded("LD_PRELOAD", list)
                .iter()
                .map(|finding| finding.level)
                .collect()
        };
        assert_eq!(levels("/usr/lib/libfoo.so"), []);
        assert_eq!(
            levels("/x/libtcmalloc.so.4:/y/libunifyfs_gotcha.so"),
            [Level::Warn, Level::Fail]
        );
        assert_eq!(levels("/opt/darshan/lib/libdarshan.so"), [Level::Warn]);
    }

    #[test]
    fn a_library_that_cannot_be_loaded_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let library = dir.path().join(inject::LIBRARY);
        std::fs::write(&library, "not a library").unwrap();
        assert!(load(&[library])
            .unwrap_err()
            .contains("cannot be preloaded"));
    }
}

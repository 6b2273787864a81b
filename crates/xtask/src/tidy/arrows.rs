//! Which crate may depend on which. A new crate needs a row here, and a place in the design.

use anyhow::{Context, Result};

/// The crates of ours on which a crate may depend; `None` for the tops, which may depend on any.
#[rustfmt::skip] // A table reads best as one.
const ARROWS: &[(&str, Option<&[&str]>)] = &[
    ("weir-core", Some(&[])),
    ("weir-config", Some(&[])),
    ("weir-store", Some(&["weir-core"])),
    ("weir-fabric", Some(&["weir-core"])),
    ("weir-server", Some(&["weir-core", "weir-store", "weir-fabric", "weir-config"])),
    ("weir-client", Some(&["weir-core", "weir-store"])),
    ("weir-preload", Some(&["weir-client", "weir-capi", "weir-connect", "weir-core", "weir-store"])),
    ("weir-capi", Some(&["weir-client"])),
    ("weir-fuse", Some(&["weir-client"])),
    ("weir-mover", Some(&["weir-client"])),
    ("weir-instance", Some(&["weir-core", "weir-config", "weir-server", "weir-fuse"])),
    ("weir-launch", Some(&["weir-core", "weir-config", "weir-fabric", "weir-instance"])),
    ("weir-bench", Some(&[])),
    ("weir-cli", None),
    ("weir-tests", None),
    ("weir-cluster", Some(&[])),
    ("weir-faultfs", Some(&[])),
    ("weir-fakes", Some(&["weir-core", "weir-store", "weir-fabric", "weir-server"])),
    (
        "weir-sim",
        Some(&["weir-core", "weir-store", "weir-fabric", "weir-server", "weir-client", "weir-fakes"]),
    ),
    ("weir-scale", Some(&["weir-core"])),
    // A connector is in a process of the user's, beside the interposer.
    ("weir-arrays", Some(&[])),
    ("weir-arraylog", Some(&["weir-arrays"])),
    ("weir-connect", Some(&[])),
    ("weir-mpiio", Some(&["weir-connect"])),
    ("weir-pnetcdf", Some(&["weir-arraylog", "weir-arrays", "weir-connect"])),
    ("weir-hdf5", Some(&["weir-connect"])),
    ("xtask", Some(&["weir-cluster"])),
];

/// Is the package one of this workspace?
fn is_ours(name: &str) -> bool {
    name.starts_with("weir-") || name == "xtask"
}

/// Checks the text of one Cargo.toml. Dependencies of tests alone (`[dev-dependencies]`) may
/// point anywhere: they are in nothing that is shipped.
pub fn check(manifest: &str) -> Result<Vec<String>> {
    let manifest: toml::Table = manifest.parse()?;
    let name = manifest["package"]["name"]
        .as_str()
        .context("package.name")?;
    let Some((_, allowed)) = ARROWS.iter().find(|(krate, _)| *krate == name) else {
        return Ok(vec![format!(
            "{name} has no row in crates/xtask/src/tidy/arrows.rs"
        )]);
    };
    let Some(allowed) = allowed else {
        return Ok(Vec::new());
    };
    let tables = ["dependencies", "build-dependencies"];
    let named = tables
        .iter()
        .filter_map(|table| manifest.get(*table)?.as_table())
        .flat_map(toml::Table::keys);
    Ok(named
        .filter(|dependency| is_ours(dependency) && !allowed.contains(&dependency.as_str()))
        .map(|dependency| format!("{name} must not depend on {dependency}"))
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest(name: &str, dependency: &str) -> String {
        format!(
            "[package]\nname = \"{name}\"\n[dependencies]\nserde = \"1\"\n{dependency} = {{}}\n"
        )
    }

    #[test]
    fn arrows_go_one_way() {
        assert_eq!(
            check(&manifest("weir-store", "weir-core")).unwrap(),
            [""; 0]
        );
        assert_eq!(
            check(&manifest("weir-core", "weir-store")).unwrap(),
            ["weir-core must not depend on weir-store"]
        );
        assert_eq!(
            check(&manifest("weir-cli", "weir-server")).unwrap(),
            [""; 0]
        );
        assert_eq!(
            check(&manifest("weir-client", "weir-server"))
                .unwrap()
                .len(),
            1
        );
    }

    #[test]
    fn a_new_crate_needs_a_row() {
        assert_eq!(check(&manifest("weir-new", "weir-core")).unwrap().len(), 1);
    }

    #[test]
    fn tests_may_depend_on_anything() {
        let text = "[package]\nname = \"weir-core\"\n[dev-dependencies]\nweir-server = {}\n";
        assert_eq!(check(text).unwrap(), [""; 0]);
    }
}

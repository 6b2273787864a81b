//! The manual of `weir.toml`, generated from the declaration of the settings.
//!
//! One content in two forms: docs/CONFIGURATION.md and the page weir.toml(5). A test checks that
//! the committed file is current.

use std::fmt::Write as _;

use roff::{bold, roman, Roff};

use crate::environment::INTERNAL_VARIABLES;
use crate::rules::{RuleKey, DIRECTORY, RULE_TABLES};
use crate::settings::SECTIONS;

const LAYERS: &str = "Settings are laid over each other: the defaults, one file, environment \
variables, the command line (--set section.key=value, or an option of its own); a later layer \
overrules the ones before it. The file is the one named by --config or WEIR_CONFIG, else weir.toml \
in the current directory, else weir/weir.toml in $XDG_CONFIG_HOME (by default ~/.config). Keys and \
values that are not understood are refused with their place and the nearest valid name; an unknown \
WEIR_ variable is warned of. `weir config` prints what is in force and where each value came from.";

const SIZES: &str = "Sizes: 1500000, 64K, 512M, 1.5G, 2GiB count in units of 1024; 64KB, 2GB in \
units of 1000. Paths are absolute; $NAME, ${NAME} and ${NAME:-default} are replaced from the \
environment.";

/// The lines of a doc comment as one paragraph.
fn paragraph(doc: &str) -> String {
    let lines: Vec<&str> = doc.lines().map(str::trim).collect();
    lines.join(" ")
}

fn default_of(key: &RuleKey) -> String {
    match key.name {
        DIRECTORY => "required".to_owned(),
        _ => format!("default: `{}`", key.default),
    }
}

/// docs/CONFIGURATION.md.
pub fn markdown() -> String {
    let mut out = String::from(
        "# Configuration\n\n<!-- Made from crates/weir-config/src/settings.rs and rules.rs; do not edit. \
         `make docs` writes it. -->\n\n",
    );
    let _ = writeln!(out, "{LAYERS}\n\n{SIZES}\n");
    for section in SECTIONS {
        let _ = writeln!(out, "## [{}]\n\n{}\n", section.name, paragraph(section.doc));
        for key in section.keys {
            let _ = writeln!(
                out,
                "### {}\n\n{}\n\n- value: {}\n- default: `{}`\n- variable: `{}`\n",
                key.name,
                paragraph(key.doc),
                key.shape,
                key.default,
                key.variable()
            );
        }
    }
    for table in RULE_TABLES {
        let _ = writeln!(out, "## [[{}]]\n\n{}\n", table.name, paragraph(table.doc));
        for key in table.keys {
            let _ = writeln!(
                out,
                "### {}\n\n{}\n\n- value: {}\n- {}\n",
                key.name,
                paragraph(key.doc),
                key.shape,
                default_of(key)
            );
        }
    }
    out.push_str("## Other variables\n\nThese are no settings:\n\n");
    for (name, doc) in INTERNAL_VARIABLES {
        let _ = writeln!(out, "- `{name}`: {doc}");
    }
    out
}

/// weir.toml(5), in roff.
pub fn manual_page() -> String {
    let mut page = Roff::new();
    page.control("TH", ["weir.toml", "5", "", "weir", "File formats"]);
    page.control("SH", ["NAME"]);
    page.text([roman("weir.toml - settings of the weir file system")]);
    page.control("SH", ["DESCRIPTION"]);
    page.text([roman(LAYERS)]);
    page.control("PP", []);
    page.text([roman(SIZES)]);
    for section in SECTIONS {
        page.control("SH", [format!("[{}]", section.name).as_str()]);
        page.text([roman(paragraph(section.doc))]);
        for key in section.keys {
            page.control("TP", []);
            page.text([bold(key.name), roman(format!(" = {}", key.shape))]);
            page.text([roman(paragraph(key.doc))]);
            let facts = format!("Default: {}. Variable: {}.", key.default, key.variable());
            page.text([roman(facts)]);
        }
    }
    for table in RULE_TABLES {
        page.control("SH", [format!("[[{}]]", table.name).as_str()]);
        page.text([roman(paragraph(table.doc))]);
        for key in table.keys {
            page.control("TP", []);
            page.text([bold(key.name), roman(format!(" = {}", key.shape))]);
            page.text([roman(paragraph(key.doc))]);
            page.text([roman(format!("{}.", default_of(key)))]);
        }
    }
    page.control("SH", ["ENVIRONMENT"]);
    for (name, doc) in INTERNAL_VARIABLES {
        page.control("TP", []);
        page.text([bold(*name)]);
        page.text([roman(*doc)]);
    }
    page.control("SH", ["SEE ALSO"]);
    page.text([bold("weir"), roman("(1)")]);
    page.render()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::all_keys;

    #[test]
    fn both_forms_name_every_key() {
        let (markdown, page) = (markdown(), manual_page());
        for key in RULE_TABLES.iter().flat_map(|table| table.keys) {
            assert!(markdown.contains(&paragraph(key.doc)), "{key:?}");
            assert!(page.contains(key.name), "{key:?}");
        }
        for key in all_keys() {
            assert!(markdown.contains(&key.variable()), "{key:?}");
            assert!(page.contains(&key.variable()), "{key:?}");
        }
    }

    /// `WEIR_TEST_BLESS=1` writes the file instead (`make docs`).
    #[test]
    fn the_committed_page_is_current() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/CONFIGURATION.md");
        if std::env::var_os("WEIR_TEST_BLESS").is_some() {
            std::fs::write(path, markdown()).unwrap();
        }
        let committed = std::fs::read_to_string(path).unwrap_or_default();
        assert!(
            committed == markdown(),
            "docs/CONFIGURATION.md is stale: run `make docs`"
        );
    }
}

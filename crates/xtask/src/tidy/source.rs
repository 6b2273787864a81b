//! Checks of one Rust source.

use std::path::Path;

use super::Untidy;

/// A longer file has probably got a second subject.
const LONG_LINES: usize = 500;
/// A longer file is split.
const TOO_LONG_LINES: usize = 1000;

/// Crates whose programs may end if they cannot print: they hold no data of users.
const MAY_PRINT: [&str; 8] = [
    "weir-bench",
    "weir-cluster",
    "weir-fakes",
    "weir-faultfs",
    "weir-scale",
    "weir-sim",
    "weir-tests",
    "xtask",
];

/// By which a crate does without `unsafe`.
pub const FORBIDS_UNSAFE: &str = "#![forbid(unsafe_code)]";

/// True if a source has unsafe blocks, functions or implementations.
pub fn has_unsafe(text: &str) -> bool {
    let openings = ["{", "fn ", "impl", "extern"].map(|next| format!("{} {next}", "unsafe"));
    let is_code = |line: &&str| !line.trim_start().starts_with("//");
    let mut code = text.lines().filter(is_code);
    code.any(|line| openings.iter().any(|opening| line.contains(opening)))
}

/// Checks the source called `path` (relative to the workspace) with the given text.
pub fn check(path: &Path, text: &str) -> Untidy {
    let mut untidy = Untidy::default();
    let at = |line: usize, what: &str| format!("{}:{line}: {what}", path.display());
    if !text.starts_with("//!") {
        untidy.errors.push(at(1, "does not open with `//!`"));
    }
    if path.ends_with("weir-core/src/lib.rs") && !text.contains(FORBIDS_UNSAFE) {
        untidy.errors.push(at(1, "weir-core forbids unsafe_code"));
    }
    let lines: Vec<&str> = text.lines().collect();
    let is_product = is_of_product(path);
    let is_test = |pair: &[&str]| pair[0] == "#[cfg(test)]" && pair[1].ends_with('{');
    let tests_begin = lines.windows(2).position(is_test);
    let tests_begin = tests_begin.unwrap_or(lines.len());
    for (index, line) in lines.iter().enumerate() {
        if !line.is_ascii() {
            untidy.errors.push(at(index + 1, "is not ASCII"));
        }
        if is_product && index < tests_begin && prints_or_panics(line) {
            untidy.errors.push(at(
                index + 1,
                "prints by a macro that panics where nothing can be written: errln!, outln!, complain!",
            ));
        }
        if silences_a_lint(line) && !has_reason(&lines, index) {
            untidy
                .errors
                .push(at(index + 1, "silences a lint without a reason"));
        }
    }
    match lines.len() {
        0..=LONG_LINES => {}
        n @ ..=TOO_LONG_LINES => untidy.warnings.push(at(n, "is getting long")),
        n => untidy.errors.push(at(n, "is too long: split it")),
    }
    untidy
}

/// True for sources of what users run beside their programs, or in them.
fn is_of_product(path: &Path) -> bool {
    let mut parts = path.iter().filter_map(|part| part.to_str());
    let place = [parts.next(), parts.next(), parts.next()];
    let [Some(group), Some(name), Some("src")] = place else {
        return false;
    };
    group == "connectors" || group == "crates" && !MAY_PRINT.contains(&name)
}

/// True if a line calls a macro of std that panics if it cannot print.
fn prints_or_panics(line: &str) -> bool {
    let is_code = !line.trim_start().starts_with("//");
    let mut words = line.split(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != '!');
    is_code && words.any(|word| ["print!", "println!", "eprint!", "eprintln!"].contains(&word))
}

fn silences_a_lint(line: &str) -> bool {
    let line = line.trim_start();
    ["allow", "expect"].iter().any(|word| {
        [format!("#[{word}("), format!("#![{word}(")]
            .iter()
            .any(|opening| line.starts_with(opening))
            || (line.starts_with("#[cfg_attr") && line.contains(&format!("{word}(")))
    })
}

/// A `reason = ` within the attribute, or a comment at its end or on the line before.
fn has_reason(lines: &[&str], start: usize) -> bool {
    let end = (start..lines.len())
        .find(|i| lines[*i].contains(")]"))
        .unwrap_or(start);
    let attribute = &lines[start..=end];
    let before = start.checked_sub(1).map_or("", |i| lines[i].trim_start());
    let is_comment = before.starts_with("// ");
    is_comment
        || attribute
            .iter()
            .any(|line| line.contains("reason = ") || line.contains("// "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn errors(text: &str) -> Vec<String> {
        check(Path::new("a.rs"), text).errors
    }

    #[test]
    fn sources_open_with_what_they_are() {
        assert_eq!(errors("//! A thing.\n"), [""; 0]);
        assert_eq!(errors("use std;\n"), ["a.rs:1: does not open with `//!`"]);
    }

    #[test]
    fn sources_are_ascii() {
        assert_eq!(
            errors("//! A thing.\n// caf\u{e9}\n"),
            ["a.rs:2: is not ASCII"]
        );
    }

    #[test]
    fn silenced_lints_carry_a_reason() {
        let silenced = |lines: &str| errors(&format!("//! A thing.\n{lines}\nfn f() {{}}\n")).len();
        assert_eq!(silenced("#[allow(dead_code)]"), 1);
        assert_eq!(silenced("#![expect(dead_code)]"), 1);
        assert_eq!(silenced("#[allow(dead_code, reason = \"used by C\")]"), 0);
        assert_eq!(
            silenced("#[allow(\n    dead_code,\n    reason = \"used by C\"\n)]"),
            0
        );
        assert_eq!(silenced("// Used by C.\n#[allow(dead_code)]"), 0);
        assert_eq!(
            silenced("/// Documentation is no reason.\n#[allow(dead_code)]"),
            1
        );
        assert_eq!(silenced("#[allow(dead_code)] // used by C"), 0);
    }

    #[test]
    fn products_do_not_end_where_nothing_can_be_printed() {
        let text = "//! A thing.\nfn f() {\n    eprintln!(\"a\");\n}\n#[cfg(test)]\nmod tests {\n    println!();\n}\n";
        let errors_in = |path: &str| check(Path::new(path), text).errors.len();
        assert_eq!(errors_in("crates/weir-cli/src/a.rs"), 1);
        assert_eq!(errors_in("connectors/weir-mpiio/src/a.rs"), 1);
        for path in [
            "crates/xtask/src/a.rs",
            "crates/weir-cli/tests/a.rs",
            "fuzz/a.rs",
        ] {
            assert_eq!(errors_in(path), 0, "{path}");
        }
        for line in ["// eprintln!(1)", "errln!(1)", "outln!(1)"] {
            assert!(!prints_or_panics(line), "{line}");
        }
    }

    #[test]
    fn long_files_are_told() {
        let text = |lines: usize| format!("//! A thing.{}", "\n//".repeat(lines - 1));
        assert!(check(Path::new("a.rs"), &text(500)).warnings.is_empty());
        assert_eq!(check(Path::new("a.rs"), &text(501)).warnings.len(), 1);
        assert_eq!(check(Path::new("a.rs"), &text(1001)).errors.len(), 1);
    }

    #[test]
    fn unsafe_code_is_found() {
        let unsafe_ = "unsafe";
        assert!(has_unsafe(&format!("let x = {unsafe_} {{ 1 }};")));
        assert!(has_unsafe(&format!("pub {unsafe_} fn f() {{}}")));
        assert!(!has_unsafe(&format!("// {unsafe_} {{ }} is in a comment")));
        assert!(!has_unsafe(&format!("#![forbid({unsafe_}_code)]")));
    }

    #[test]
    fn core_forbids_unsafe_code() {
        let path = Path::new("crates/weir-core/src/lib.rs");
        assert_eq!(check(path, "//! Core.\n").errors.len(), 1);
        assert_eq!(
            check(path, "//! Core.\n#![forbid(unsafe_code)]\n").errors,
            [""; 0]
        );
    }
}

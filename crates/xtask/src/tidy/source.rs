//! Checks of one Rust source.

use std::path::Path;

use super::Untidy;

/// A longer file has probably got a second subject.
const LONG_LINES: usize = 500;
/// A longer file is split.
const TOO_LONG_LINES: usize = 1000;

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
    for (index, line) in lines.iter().enumerate() {
        if !line.is_ascii() {
            untidy.errors.push(at(index + 1, "is not ASCII"));
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

//! weir.h says what the library has: its functions, and its structures to the byte; and it is C
//! and C++ of old standards, without a warning.

use std::fmt::Write as _;
use std::mem::{offset_of, size_of};
use std::path::{Path, PathBuf};
use std::process::Command;

use weir::functions::NAMES;
use weir::types::{FileDrain, Io, Location, Stat, TransferEntry, TransferResult};

fn include_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("include")
}

fn header() -> String {
    std::fs::read_to_string(include_dir().join("weir.h")).unwrap()
}

/// The names of functions that a header declares: each declaration begins its line.
fn declared(header: &str) -> Vec<&str> {
    let declarations = header.lines().filter_map(|line| {
        let rest = line
            .strip_prefix("int ")
            .or_else(|| line.strip_prefix("const char *"))?;
        Some(rest.split_once('(')?.0)
    });
    declarations.collect()
}

#[test]
fn the_header_declares_what_the_library_has() {
    assert_eq!(declared(&header()), NAMES);
}

#[test]
fn the_manual_page_tells_of_every_function() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("weir.h.3");
    let page = std::fs::read_to_string(page).unwrap();
    for name in NAMES {
        assert!(
            page.contains(&format!(".BI \"int {name}"))
                || page.contains(&format!(".BI \"const char *{name}")),
            "{name}"
        );
    }
}

macro_rules! layout {
    ($out:ident, $c:literal, $rust:ty: $($field:ident)+) => {
        let _ = writeln!($out, "ASSERT(sizeof(struct {}) == {}, \"size\");", $c, size_of::<$rust>());
        $(
            let _ = writeln!(
                $out,
                "ASSERT(offsetof(struct {}, {}) == {}, \"{}\");",
                $c, stringify!($field), offset_of!($rust, $field), stringify!($field)
            );
        )+
    };
}

/// A program that uses every function, and asserts the layout of every structure.
fn program() -> String {
    let mut text = String::from(
        "#include <weir.h>\n#ifdef __cplusplus\n#define ASSERT static_assert\n#else\n\
         #define ASSERT _Static_assert\n#endif\n",
    );
    layout!(text, "weir_stat", Stat: size stored_bytes inode mtime_s mtime_ns mode uid gid links
        visibility lamination home here servers reserved);
    layout!(text, "weir_location", Location: rank reserved memory_bytes file_bytes);
    layout!(text, "weir_io", Io: path fd reserved offset buffer length result);
    layout!(text, "weir_transfer", TransferEntry: source destination mode reserved);
    layout!(text, "weir_transfer_result", TransferResult: state error bytes size seconds reserved);
    layout!(text, "weir_drain_state", FileDrain: step reserved size age_ms more reason);
    let _ = writeln!(text, "ASSERT(WEIR_ABI == {}, \"WEIR_ABI\");", weir::ABI);
    text.push_str("typedef void (*anything)(void);\nanything functions[] = {\n");
    for name in NAMES {
        let _ = writeln!(text, "(anything)&{name},");
    }
    text.push_str("};\nint main(void) { return functions[0] == 0; }\n");
    text
}

fn compiles(compiler: &str, standard: &str, file: &str, text: &str) {
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join(file);
    std::fs::write(&source, text).unwrap();
    let done = Command::new(compiler)
        .args([standard, "-pedantic", "-Wall", "-Wextra", "-Werror"])
        .args(["-fsyntax-only", "-I"])
        .arg(include_dir())
        .arg(&source)
        .output()
        .unwrap_or_else(|error| panic!("{compiler} (apt-get install gcc g++): {error}"));
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{compiler} {standard}: {said}");
}

#[test]
fn the_header_is_c_and_cxx_without_a_warning() {
    let alone = "#include <weir.h>\n#include <weir.h>\nint main(void) { return 0; }\n";
    compiles("gcc", "-std=c99", "a.c", alone);
    compiles("g++", "-std=c++98", "a.cpp", &alone.replace("(void)", "()"));
    compiles("gcc", "-std=c11", "a.c", &program());
    compiles("g++", "-std=c++11", "a.cpp", &program());
}

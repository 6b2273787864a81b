//! Runs a test that measures the memory of its process, or looks at its threads, in a process of its own.

use std::process::Command;

/// The test that this process was started for.
const ALONE: &str = "WEIR_TEST_ALONE";

/// True in a process that runs the test `name` (module and function) alone. In another process it starts
/// such a process, shows its output, and fails if the test fails there.
#[must_use]
pub fn is_alone(name: &str) -> bool {
    if std::env::var_os(ALONE).is_some_and(|alone| alone == name) {
        return true;
    }
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture"])
        .env(ALONE, name)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&child.stdout);
    println!("{said}{}", String::from_utf8_lossy(&child.stderr));
    assert!(child.status.success(), "{name}: {}", child.status);
    // A name of no test would select none.
    assert!(said.contains("test result: ok. 1 passed"), "{name}");
    false
}

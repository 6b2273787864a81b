//! The program as users run it: quick runs on temporary directories, their reports, and its refusals.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

/// A directory of one test, removed on drop.
struct Temporary(PathBuf);

impl Temporary {
    fn new(name: &str) -> Self {
        let path =
            std::env::temp_dir().join(format!("weir-bench-test-{name}-{}", std::process::id()));
        fs::create_dir(&path).unwrap();
        Temporary(path)
    }

    fn is_empty(&self) -> bool {
        fs::read_dir(&self.0).unwrap().next().is_none()
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).unwrap();
    }
}

fn bench() -> Command {
    Command::new(env!("CARGO_BIN_EXE_weir-bench"))
}

fn target(name: &str, dir: &Path) -> String {
    format!("{name}={}", dir.display())
}

fn text(output: &Output) -> String {
    let both = [&output.stdout[..], &output.stderr[..]].concat();
    String::from_utf8(both).unwrap()
}

/// Every series has samples, all of them with positive rates.
fn check_rates(report: &Value, results: usize) {
    let all = report["results"].as_array().unwrap();
    assert_eq!(all.len(), results, "{all:#?}");
    for metric in all {
        let series = metric["series"].as_array().unwrap();
        assert!(!series.is_empty(), "{metric}");
        for one in series {
            assert!(one["rate"]["median"].as_f64().unwrap() > 0.0, "{one}");
            assert!(!one["samples"].as_array().unwrap().is_empty(), "{one}");
        }
    }
}

#[test]
fn all_patterns_and_operations_are_measured_verified_and_reported() {
    let dirs = [
        Temporary::new("all-a"),
        Temporary::new("all-b"),
        Temporary::new("all-out"),
    ];
    let (json, svg) = (dirs[2].0.join("report.json"), dirs[2].0.join("plot.svg"));
    let output = bench()
        .args([
            "-q", "-n", "2", "-t", "4k,47008", "-r", "2", "--verify", "--files", "20",
        ])
        .args(["--pattern", "segmented,strided,nn,random"])
        .args([
            "--target",
            &target("a", &dirs[0].0),
            "--target",
            &target("b", &dirs[1].0),
        ])
        .args(["--quick", "--baseline", "a", "--device"])
        .args([
            &dirs[0].0,
            Path::new("--json"),
            &json,
            Path::new("--svg"),
            &svg,
        ])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", text(&output));
    let report: Value = serde_json::from_slice(&fs::read(&json).unwrap()).unwrap();
    // 2 sizes x 4 patterns x 3 operations, 2 x 4 metadata, 2 x 2 copy limits, 2 of the device.
    check_rates(&report, 24 + 8 + 4 + 2);
    assert_eq!(report["verified"], true);
    // 2 sizes x 4 patterns x 2 targets x 2 rounds x 2 (by the same and by another), 2 x 16 MiB each.
    let each = 2 * (16 << 20) + 2 * (16 << 20) / 47008 * 47008;
    assert!(report["verified_bytes"].as_u64().unwrap() > 4 * 2 * 2 * 2 * each / 10 * 9);
    assert!(fs::read_to_string(&svg).unwrap().starts_with("<svg"));
    assert!(
        dirs[0].is_empty() && dirs[1].is_empty(),
        "files are left behind"
    );
}

#[test]
fn the_suite_judges_every_promise_and_strict_makes_failure_an_exit_code() {
    let (dir, other) = (Temporary::new("suite-a"), Temporary::new("suite-b"));
    let json = other.0.join("report.json");
    // Both are the same file system, so the first cannot be several times faster than the second.
    let output = bench()
        .args([
            "-q", "--suite", "--strict", "--quick", "-b", "3m", "--files", "50", "-n", "2",
        ])
        .args([
            "--target",
            &target("subject", &dir.0),
            "--target",
            &target("base", &other.0),
        ])
        .args(["--baseline", "base", "--json"])
        .arg(&json)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(4), "{}", text(&output));
    let report: Value = serde_json::from_slice(&fs::read(&json).unwrap()).unwrap();
    let rows = report["suite"].as_array().unwrap();
    assert_eq!(rows.len(), 18 + 8);
    assert!(rows
        .iter()
        .any(|r| r["met"] == false && r["ratio"]["median"].is_number()));
    let device = rows.iter().find(|r| r["against"] == "device").unwrap();
    assert_eq!(
        (&device["met"], &device["ratio"]),
        (&Value::Bool(false), &Value::Null)
    );
    assert!(text(&output).contains("NOT MEASURED"));
}

#[test]
fn bad_input_is_refused_in_a_sentence() {
    let dir = Temporary::new("bad");
    let cases: [(&[&str], i32, &str); 5] = [
        (&["/no/such/directory"], 1, "No such file"),
        (&["/etc/hostname"], 1, "not a directory"),
        (&[], 1, "nothing to measure"),
        (&["-t", "1x"], 2, "unknown suffix"),
        (&["-b", "1g", "-n", "4096"], 1, "free"),
    ];
    for (args, code, words) in cases {
        let mut command = bench();
        command.args(args);
        if args.first().is_some_and(|a| a.starts_with('-')) {
            command.arg(&dir.0);
        }
        let output = command.output().unwrap();
        assert_eq!(
            output.status.code(),
            Some(code),
            "{args:?}: {}",
            text(&output)
        );
        assert!(text(&output).contains(words), "{args:?}: {}", text(&output));
    }
    assert!(dir.is_empty());
}

/// A benchmark that writes 64 MiB in small pieces, so that it can be met at it.
fn start_slow(dir: &Path) -> std::process::Child {
    bench()
        .args([
            "-q",
            "-n",
            "1",
            "-t",
            "64",
            "-b",
            "64m",
            "-r",
            "1",
            "--no-limits",
            "--verify",
        ])
        .args(["--ops", "write", "--pattern", "segmented"])
        .arg(dir)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// The path of the file that a running benchmark writes in `dir`, once it has bytes: before that the
/// benchmark only prepares. `None`: the benchmark has ended.
fn wait_for_bytes(child: &mut std::process::Child, dir: &Path) -> Option<PathBuf> {
    loop {
        let runs = fs::read_dir(dir).unwrap().flatten();
        let found = runs
            .map(|run| run.path().join("case-1/data"))
            .find(|path| path.metadata().is_ok_and(|data| data.len() > 0));
        if found.is_some() || child.try_wait().unwrap().is_some() {
            return found;
        }
        std::thread::yield_now();
    }
}

fn signal(child: &std::process::Child, signal: &str) {
    let status = Command::new("kill")
        .args([signal, &child.id().to_string()])
        .status()
        .unwrap();
    assert!(status.success());
}

#[test]
fn a_byte_changed_behind_its_back_is_wrong_data_and_an_exit_code() {
    let dir = Temporary::new("corrupt");
    // The coordinator is stopped while its worker writes, so that what verifies starts after the change.
    // Should this test be too slow once, nothing was changed in time, and it tries again.
    let met = (0..5).any(|_| {
        let mut child = start_slow(&dir.0);
        let Some(path) = wait_for_bytes(&mut child, &dir.0) else {
            return false;
        };
        // Its worker has been told to write, and goes on.
        signal(&child, "-STOP");
        if let Ok(file) = fs::File::options().write(true).open(&path) {
            while file.metadata().unwrap().len() < 64 << 20 {
                std::thread::yield_now();
            }
            file.write_all_at(b"WRONG", 4096).unwrap();
        }
        signal(&child, "-CONT");
        let output = child.wait_with_output().unwrap();
        let words = text(&output);
        assert!(
            output.status.success() || words.contains("wrong data at offset 40"),
            "{words}"
        );
        assert!(dir.is_empty());
        output.status.code() == Some(3)
    });
    assert!(met, "no run met the change");
}

#[test]
fn an_interrupted_run_removes_its_files() {
    let dir = Temporary::new("interrupt");
    let mut child = start_slow(&dir.0);
    wait_for_bytes(&mut child, &dir.0).expect("it runs for longer");
    signal(&child, "-INT");
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", text(&output));
    assert!(text(&output).contains("interrupted"));
    assert!(dir.is_empty());
}

/// A preloaded file system replaces the C library's symbols, so the calls that are measured must go through them.
#[test]
fn the_measured_calls_are_bound_to_the_c_librarys_symbols() {
    let output = bench()
        .arg("--help")
        .env("LD_DEBUG", "bindings")
        .output()
        .unwrap();
    let words = text(&output);
    for call in [
        "open", "close", "pwrite", "pread", "fsync", "stat", "unlink", "mkdir",
    ] {
        let bound = words.contains(&format!("normal symbol `{call}'"))
            || words.contains(&format!("normal symbol `{call}64'"));
        assert!(bound, "`{call}` is not a symbol of the C library");
    }
}

#[test]
fn single_calls_are_timed_in_both_targets_and_divided() {
    let dirs = [Temporary::new("calls-a"), Temporary::new("calls-b")];
    let out = Temporary::new("calls-out");
    let json = out.0.join("report.json");
    let output = bench()
        .args(["-q", "--quick", "--calls=fstat,fork-exec"])
        .args(["--target", &target("a", &dirs[0].0)])
        .args(["--target", &target("b", &dirs[1].0)])
        .arg("--json")
        .arg(&json)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", text(&output));
    let table = text(&output);
    assert!(table.contains("a / b"), "{table}");
    assert!(table.contains("fork+exec of /bin/true"), "{table}");
    let report: Value = serde_json::from_slice(&fs::read(&json).unwrap()).unwrap();
    check_rates(&report, 2);
    assert!(report["results"][0]["unit"] == "calls/s", "{report:#}");
    assert!(dirs.iter().all(Temporary::is_empty));
}

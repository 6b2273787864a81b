//! The command line without an instance: usage, settings, doctor, manual.

mod common;

use common::{Done, Room};

#[test]
fn a_part_of_the_storage_is_at_most_all_of_it() {
    let room = Room::new();
    let set = |percent: &str| format!("drain.evict_percent={percent}");
    room.ok(&["config", "--set", &set("100")]);
    for percent in ["101", "200", "-1", "1e2"] {
        let words = "whole number";
        room.says(2, words, &["config", "--set", &set(percent)]);
    }
}

#[test]
fn refused_usage_has_its_code_and_run_its_own() {
    let room = Room::new();
    room.ends(0, &["--help"]);
    room.ends(0, &["--version"]);
    room.ends(2, &["frobnicate"]);
    room.ends(2, &["start", "--frobnicate"]);
    room.ends(125, &["run", "--frobnicate"]);
    room.ends(125, &["run"]);
}

#[test]
fn a_refused_setting_stops_everything_and_says_where() {
    let room = Room::new();
    room.write("weir.toml", "[memory]\nbugdet = \"1G\"\n");
    for (arguments, code) in [
        (&["config"][..], 2),
        (&["start"], 2),
        (&["run", "true"], 125),
    ] {
        let done = room.run(arguments);
        assert_eq!(done.code, Some(code), "{done:?}");
        assert!(done.err.contains("weir.toml:2"), "{done:?}");
        assert!(done.err.contains("did you mean `budget`?"), "{done:?}");
    }
}

#[test]
fn config_says_where_values_come_from() {
    let room = Room::new();
    let file = room.write("other.toml", "[log]\nlevel = \"debug\"\n");
    let file = file.to_str().unwrap();
    let out = room.ok(&["config", "--config", file, "--set", "run.keep=true"]);
    let origin = |key: &str| {
        let line = out.lines().find(|line| line.starts_with(key)).unwrap();
        line.split_once('#').unwrap().1.trim().to_owned()
    };
    assert_eq!(origin("level"), format!("{file}:2"));
    assert_eq!(origin("keep"), "command line");
    assert_eq!(origin("warm ="), "environment WEIR_MEMORY_WARM");
    assert_eq!(origin("prefix"), "default");

    let json = room.ok(&["config", "--json", "--set", "run.keep=true"]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["run.keep"]["value"], true);
    assert_eq!(json["run.keep"]["origin"]["from"], "command-line");
}

#[test]
fn a_stale_variable_warns_and_does_not_stop() {
    let room = Room::new();
    let output = room
        .weir(&["config"])
        .env("WEIR_MEMORY_BUGDET", "1")
        .output()
        .unwrap();
    assert!(output.status.success());
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(err.contains("did you mean `WEIR_MEMORY_BUDGET`?"), "{err}");
}

#[test]
fn doctor_judges_and_gives_remedies() {
    let room = Room::new();
    let done = room.run(&["doctor", "--json"]);
    let findings: serde_json::Value = serde_json::from_str(&done.out).unwrap();
    let findings = findings.as_array().unwrap();
    let failed = |finding: &&serde_json::Value| finding["level"] == "fail";
    assert_eq!(
        done.code,
        Some(i32::from(findings.iter().any(|f| failed(&f))))
    );
    for finding in findings {
        let fine = finding["level"] == "ok";
        assert_eq!(fine, finding.get("remedy").is_none(), "{finding}");
    }

    let missing = room.path().join("none").display().to_string();
    let broken = room
        .weir(&["doctor", "--set", &format!("memory.directory={missing}")])
        .env("WEIR_PRELOAD", "/nowhere.so")
        .output()
        .unwrap();
    let out = String::from_utf8_lossy(&broken.stdout);
    assert_eq!(broken.status.code(), Some(1));
    assert!(out.contains("FAIL  memory directory"), "{out}");
    assert!(out.contains("FAIL  client library"), "{out}");
}

#[test]
fn doctor_fails_a_file_size_limit() {
    let room = Room::new();
    let script = format!(
        "ulimit -f 100; exec '{}' doctor",
        env!("CARGO_BIN_EXE_weir")
    );
    let output = std::process::Command::new("sh")
        .args(["-c", &script])
        .env("TMPDIR", room.path())
        .output()
        .unwrap();
    let out = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(1));
    assert!(out.contains("FAIL  file size limit"), "{out}");
    assert!(out.contains("ulimit -f unlimited"), "{out}");
}

#[test]
fn a_bundle_has_what_a_bug_report_needs_and_no_secret() {
    use std::os::unix::fs::PermissionsExt;
    let room = Room::new();
    room.ok(&["start", "--servers", "2", "--no-storage", "sick"]);
    let run_dir = room
        .path()
        .join(format!("weir-{}/sick", nix::unistd::geteuid()));
    let secret = std::fs::read_to_string(run_dir.join("secret")).unwrap();
    let file = room.path().join("bundle.txt");
    let written = room
        .weir(&["doctor", "--bundle", file.to_str().unwrap()])
        .env("WEIR_LOG_LEVEL", "debug")
        .env("API_TOKEN", "not-for-others")
        .env("SLURM_JOB_ID", "not-for-others")
        .output()
        .unwrap();
    let said = Done::from_output(&written).ok();
    let text = std::fs::read_to_string(&file).unwrap();
    for part in [
        "==== versions\nweir ",
        "==== weir doctor\n",
        "memory directory",
        "==== weir config\n",
        "level = \"debug\"",
        "WEIR_LOG_LEVEL=debug\n",
        "SLURM_JOB_ID is set\n",
        "==== /proc/self/limits\n",
        "==== mounts of weir's directories\n",
        "\"restarts\": 0",
        "roster.json\n",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    for log in ["sick/server.log", "sick.1/server.log", "sick/agent.log"] {
        assert!(text.contains(log) && said.contains(log), "{log}: {said}");
    }
    assert!(secret.trim().len() >= 16 && !text.contains(secret.trim()));
    assert!(!text.contains("not-for-others"), "{text}");
    assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);

    // An existing file stays as it is.
    let again = room.run(&["doctor", "--bundle", file.to_str().unwrap()]);
    assert_eq!(again.code, Some(1));
    assert_eq!(std::fs::read_to_string(&file).unwrap(), text);

    // So is the log of an instance that a kill ended: it is the one that a report is about.
    room.ok(&["stop", "sick"]);
    room.ok(&["start", "--no-storage", "killed"]);
    room.kill_server("killed");
    let dead = room.path().join("dead.txt");
    room.ok(&["doctor", "--bundle", dead.to_str().unwrap()]);
    let text = std::fs::read_to_string(&dead).unwrap();
    assert!(text.contains("==== dead instance killed\n"), "{text}");
    assert!(text.contains("killed/server.log"), "{text}");
    room.ok(&["stop", "killed"]);
}

#[test]
fn man_pages_have_the_exit_codes() {
    let room = Room::new();
    let dir = room.path().join("man");
    room.ok(&["man", dir.to_str().unwrap()]);
    let page = std::fs::read_to_string(dir.join("weir.1")).unwrap();
    for code in ["125", "126", "127"] {
        assert!(page.contains(code), "{code}");
    }
}

#[test]
fn nothing_runs_at_first() {
    let room = Room::new();
    assert_eq!(room.ok(&["status"]), "");
    room.ends(4, &["status", "nobody"]);
    room.ends(4, &["stop"]);
    room.ends(4, &["ls"]);
    let run = room.run(&["run", "--instance", "nobody", "true"]);
    assert_eq!(run.code, Some(125));
    assert!(run.err.contains("no instance runs in"), "{run:?}");
}

/// Options that nothing would come of, of a run that uses an instance that is there already.
#[test]
fn options_that_describe_an_instance_are_refused_where_one_is_used() {
    let room = Room::new();
    room.ok(&["start", "x"]);
    let run_dir = format!(
        "{}/weir-{}/x",
        room.path().display(),
        nix::unistd::geteuid()
    );
    let storage = room.path().display().to_string();
    let refused: &[(&[&str], &str)] = &[
        (&["--memory", "64M"], "--memory would"),
        (&["--mount", "/burst"], "--mount would"),
        (&["--storage", &storage], "--storage would"),
        (&["--no-storage"], "--no-storage would"),
        (&["--hosts", "a,b"], "--hosts would"),
        (&["--hostfile", "hosts"], "--hostfile would"),
        (&["--servers", "2"], "--servers would"),
        (&["--set", "memory.warm=1M"], "--set memory.warm would"),
        (
            &["--memory", "1M", "--no-storage"],
            "--memory, --no-storage would",
        ),
        (&["--keep"], "--keep would"),
        (&["--report", "json"], "--report would"),
    ];
    for (options, why) in refused {
        let words = [&["run"], *options, &["touch", "ran"]].concat();
        let mut named = room.weir(&words);
        Done::from_output(&named.env("WEIR_INSTANCE", &run_dir).output().unwrap())
            .ended(125)
            .complains(why);
        // In a command of another run, which has its instance in the environment.
        let weir = env!("CARGO_BIN_EXE_weir");
        let nested = [
            &["run", "-i", "x", weir, "run"],
            *options,
            &["touch", "ran"],
        ]
        .concat();
        room.says(125, why, &nested);
    }
    assert!(!room.path().join("ran").exists());
    room.says(
        125,
        "--instance x",
        &["run", "-i", "x", "--set", "memory.budget=1M", "true"],
    );
    // What says nothing of an instance is as good as ever.
    room.ok(&["run", "-i", "x", "--report", "none", "true"]);
    // Set to nothing, the variable names none.
    let script = format!(
        "WEIR_INSTANCE= {} run --memory 64M true",
        env!("CARGO_BIN_EXE_weir")
    );
    room.ok(&["run", "-i", "x", "sh", "-c", &script]);
    room.ok(&["stop", "x"]);
}

#[test]
fn a_setting_of_the_command_line_is_for_a_new_instance() {
    let room = Room::new();
    let user = format!("user-{}", nix::unistd::geteuid());
    room.ok(&["start"]);
    let script = ["sh", "-c", "echo $WEIR_INSTANCE"];
    let set = ["run", "--set", "memory.warm=1M"];
    let own = room.ok(&[&set[..], &script].concat());
    assert!(!own.trim_end().ends_with(&user), "{own}");
    room.ends(125, &["run", "--keep", "true"]);
    room.ok(&["stop"]);
    room.says(125, "--rank 1", &["run", "--rank", "1", "true"]);
}

#[test]
fn a_low_limit_of_address_space_is_named() {
    let room = Room::new();
    let weir = env!("CARGO_BIN_EXE_weir");
    let limited = |limit: &str, rest: &str| {
        let script = format!("ulimit -v {limit} && exec '{weir}' {rest}");
        let mut command = room.weir(&[]);
        // The same environment, but a shell that sets the limit before.
        let mut shell = std::process::Command::new("sh");
        shell.args(["-c", &script]).current_dir(room.path());
        for (name, value) in command.env("UNUSED", "").get_envs() {
            shell.env(name, value.unwrap());
        }
        Done::from_output(&shell.output().unwrap())
    };
    let tables = "--set server.max_files=4000000";
    let done = limited("900000", &format!("run {tables} true"));
    assert_eq!(done.code, Some(125), "{done:?}");
    assert!(done.err.contains("(ulimit -v) is 879 MiB"), "{done:?}");
    room.ok(&["start", "x"]);
    limited("500000", "run -i x true")
        .ended(0)
        .complains("may fail with ENOMEM")
        .complains("ulimit -v unlimited");
    room.ok(&["stop", "x"]);
}

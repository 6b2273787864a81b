//! Runs of real programs whose data goes to a parallel file system that fails or hangs (`weir-faultfs`).
//! Skipped, with a message, where the machine allows no mount.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{kill_process, kill_process_group, Pid, Signal};
use weir_cluster::guard::{wait_until, HANG};
use weir_faultfs::{why_no_mount, FaultEffect, FaultFs, FaultRule, FsOperation};
use weir_tests::launch::weir_binary;

/// A file system, and a directory beside it by which a test and a program talk.
struct Scene {
    fs: FaultFs,
    dir: tempfile::TempDir,
}

/// A process group that does not outlive the test.
struct ProcessGroup(Option<Child>);

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        if let Some(child) = &self.0 {
            let pid = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
            let _ = kill_process_group(pid, Signal::KILL);
        }
    }
}

impl ProcessGroup {
    fn has_ended(&mut self) -> bool {
        let child = self.0.as_mut().unwrap();
        child.try_wait().unwrap().is_some()
    }

    /// Waits for its end.
    fn output(mut self) -> Output {
        wait_until("the end of weir run", || self.has_ended());
        self.0.take().unwrap().wait_with_output().unwrap()
    }
}

/// A command of weir with a small instance.
fn weir(words: &[&str]) -> Command {
    let mut command = Command::new(weir_binary().unwrap());
    command
        .args(words)
        .env_remove("WEIR_INSTANCE")
        .env("WEIR_MEMORY_BUDGET", "64M")
        .env("WEIR_FILE_BUDGET", "64M")
        .env("WEIR_MEMORY_WARM", "0")
        .env("WEIR_DRAIN_INTERVAL_S", "0")
        .stdin(Stdio::null());
    command
}

/// The output of seq.
fn lines(last: u32) -> String {
    let lines: Vec<String> = (1..=last).map(|line| format!("{line}\n")).collect();
    lines.concat()
}

impl Scene {
    fn new(what: &str) -> Option<Scene> {
        if let Some(why) = why_no_mount() {
            weir_cluster::skip_for_kernel(what, &why);
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        for name in ["below", "mount", "talk"] {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        let fs = FaultFs::mount(&dir.path().join("below"), &dir.path().join("mount")).unwrap();
        Some(Scene { fs, dir })
    }

    /// Starts `weir run --drain-to` with a script, whose first argument is the directory for talk, and the
    /// second one the weir command.
    fn run(&self, options: &[&str], script: &str) -> ProcessGroup {
        let mut command = weir(&["run"]);
        command
            .args(options)
            .arg("--drain-to")
            .arg(self.target())
            .args(["--", "sh", "-ec", script, "sh"])
            .arg(self.talk(""))
            .arg(weir_binary().unwrap())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0);
        ProcessGroup(Some(command.spawn().unwrap()))
    }

    fn target(&self) -> PathBuf {
        self.fs.path().join("out")
    }

    fn talk(&self, name: &str) -> PathBuf {
        self.dir.path().join("talk").join(name)
    }

    /// A file of the target, past the mount.
    fn moved(&self, name: &str) -> Option<String> {
        fs::read_to_string(self.dir.path().join("below/out").join(name)).ok()
    }

    /// Waits until the script has made a file.
    #[track_caller]
    fn wait_for(&self, name: &str, run: &mut ProcessGroup) {
        let path = self.talk(name);
        wait_until(name, || path.exists() || run.has_ended());
        if !path.exists() {
            let output = run.0.take().unwrap().wait_with_output().unwrap();
            panic!("it ended before {name}: {}", messages_of(&output));
        }
    }

    fn say(&self, name: &str) {
        fs::write(self.talk(name), b"").unwrap();
    }
}

fn messages_of(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Of a script: waits for a file of the test.
const AWAIT: &str = "await() { until [ -e \"$1\" ]; do sleep 0.05; done; }\n";

#[test]
fn a_call_that_hangs_disturbs_neither_the_program_nor_the_status() {
    let Some(scene) = Scene::new("a drain to a PFS that hangs") else {
        return;
    };
    let hang = FaultRule::new(&[FsOperation::Write], FaultEffect::Hang);
    let rule = scene.fs.inject(hang.at("out/.hung.weir-part"));
    let script = "
        cd /weir
        seq 10000 > hung
        await $1/hangs
        until $2 drain --status --json | tee $1/status | grep -q 'slow_calls\":\\[{'; do sleep 0.1; done
        $2 drain --status > $1/words || true
        if $2 drain --wait --timeout 1s /weir/hung > $1/wait; then exit 9; else echo $? > $1/code; fi
        seq 20000 > other
        cp other $1/other
        touch $1/went
        await $1/back
        $2 drain --wait --timeout 60s
        touch $1/safe
        await $1/end";
    let mut run = scene.run(&[], &format!("{AWAIT}{script}"));
    let hangs = scene.fs.wait_for_hanging(1, HANG);
    scene.say("hangs");
    scene.wait_for("went", &mut run);
    assert!(hangs && scene.fs.hanging() == 1);
    assert_eq!(scene.moved("hung"), None);
    scene.fs.lift(rule);
    scene.say("back");
    scene.wait_for("safe", &mut run);
    // Before the run ends.
    assert_eq!(scene.moved("hung"), Some(lines(10_000)));
    assert_eq!(scene.moved("other"), Some(lines(20_000)));
    scene.say("end");
    let output = run.output();
    assert!(output.status.success(), "{}", messages_of(&output));
    let read = |name| fs::read_to_string(scene.talk(name)).unwrap();
    assert_eq!(read("other"), lines(20_000));
    assert_eq!(read("code"), "8\n");
    assert!(
        read("words").contains("has not returned for"),
        "{}",
        read("words")
    );
    let status: serde_json::Value = serde_json::from_str(&read("status")).unwrap();
    let slow = &status[0]["slow_calls"][0];
    assert_eq!(slow["step"], "writing");
    let part = scene.target().join(".hung.weir-part");
    assert_eq!(slow["path"], part.to_str().unwrap());
}

/// The run directory that weir run names when an instance stays.
fn instance_of(told: &str) -> &str {
    let after = told.split("weir stage out -i ").nth(1).expect("it stays");
    after.split_whitespace().next().unwrap()
}

#[test]
fn the_end_of_a_run_waits_for_a_call_that_hangs_for_a_limited_time() {
    let Some(scene) = Scene::new("the end of a drain to a PFS that hangs") else {
        return;
    };
    for (step, path) in [
        (FsOperation::Write, "out/.file.weir-part"),
        (FsOperation::Sync, "out/.file.weir-part"),
        (FsOperation::SyncDirectory, "out"),
    ] {
        let rule = FaultRule::new(&[step], FaultEffect::Hang).at(path);
        let rule = scene.fs.inject(rule);
        let run = scene.run(&["--set", "drain.stuck_s=2"], "seq 1000 > /weir/file");
        let output = run.output();
        let hanging = scene.fs.hanging();
        // The process that drains ends when it is back, and its instance can then be stopped.
        scene.fs.lift(rule);
        let told = messages_of(&output);
        assert_eq!(output.status.code(), Some(122), "{step:?}: {told}");
        assert!(hanging > 0, "{step:?}: {told}");
        assert!(told.contains("has not returned for"), "{step:?}: {told}");
        let instance = instance_of(&told);
        // Its part is locked until then.
        wait_until("a stage that moves the file", || {
            let mut stage = weir(&["stage", "out", "-i", instance, "/weir/"]);
            stage.arg(scene.target()).status().unwrap().success()
        });
        assert_eq!(scene.moved("file"), Some(lines(1000)), "{step:?}");
        wait_until("the end of the instance", || {
            let stopped = weir(&["stop", instance]).output().unwrap();
            stopped.status.success() || !Path::new(instance).exists()
        });
        assert!(!Path::new(instance).exists(), "{step:?}");
        fs::remove_dir_all(scene.dir.path().join("below/out")).unwrap();
    }
}

#[test]
fn a_file_whose_calls_hang_holds_up_no_other_one() {
    let Some(scene) = Scene::new("a drain to a PFS of which a part hangs") else {
        return;
    };
    let hang = |name: &str, step| {
        let rule = FaultRule::new(&[step], FaultEffect::Hang).at(&format!("out/{name}"));
        scene.fs.inject(rule)
    };
    let rules = [
        hang(".first.weir-part", FsOperation::Write),
        hang(".second.weir-part", FsOperation::Sync),
        hang("d/third", FsOperation::Rename),
    ];
    // Each hung file is handed over by another process.
    let script = "
        cd /weir
        # Linux holds up all calls in the directory of a rename.
        mkdir d
        for name in first second d/third; do
            seq 1000 > $name
            name=${name#d/}
            await $1/$name-hangs
            seq 2000 > after-$name
            await $1/after-$name-moved
        done
        $2 drain --status --json > $1/status || true
        if $2 drain --wait --timeout 20s > $1/wait 2>&1; then exit 9; else echo $? > $1/code; fi
        touch $1/asked
        await $1/back
        # The calls may be returning just now.
        until $2 drain --wait --timeout 60s; do sleep 0.1; done
        touch $1/safe
        rm after-first
        await $1/end
        seq 3000 > last";
    let mut run = scene.run(&["--set", "drain.stuck_s=2"], &format!("{AWAIT}{script}"));
    let paths = ["first", "second", "d/third"];
    for (number, path) in (1..).zip(paths) {
        let name = path.trim_start_matches("d/");
        assert!(scene.fs.wait_for_hanging(number, HANG), "{name}");
        scene.say(&format!("{name}-hangs"));
        let after = format!("after-{name}");
        wait_until(&after, || {
            scene.moved(&after) == Some(lines(2000)) || run.has_ended()
        });
        assert!(scene.fs.hanging() >= number && scene.moved(path).is_none());
        scene.say(&format!("{after}-moved"));
    }
    scene.wait_for("asked", &mut run);
    for rule in rules {
        scene.fs.lift(rule);
    }
    scene.say("back");
    scene.wait_for("safe", &mut run);
    for name in paths {
        assert_eq!(scene.moved(name), Some(lines(1000)), "{name}");
    }
    scene.say("end");
    let output = run.output();
    assert!(output.status.success(), "{}", messages_of(&output));
    assert_eq!(scene.moved("last"), Some(lines(3000)));
    assert_eq!(scene.moved("after-first"), None);
    let read = |name| fs::read_to_string(scene.talk(name)).unwrap();
    // Not all is safe, and some of it failed.
    assert_eq!(read("code"), "7\n", "{}", read("wait"));
    let status: serde_json::Value = serde_json::from_str(&read("status")).unwrap();
    let slow = status[0]["slow_calls"].as_array().unwrap();
    assert!(slow.len() >= 3, "{status}");
}

#[test]
fn the_end_of_a_run_moves_all_but_the_file_whose_call_hangs() {
    let Some(scene) = Scene::new("the end of a drain to a PFS of which a part hangs") else {
        return;
    };
    let hang = FaultRule::new(&[FsOperation::Write], FaultEffect::Hang);
    let rule = scene.fs.inject(hang.at("out/.b.weir-part"));
    let script = "cd /weir; for name in a b c d e f; do seq 1000 > $name; done";
    for while_running in ["false", "true"] {
        let while_running = format!("drain.while_running={while_running}");
        let options = ["--set", "drain.stuck_s=2", "--set", &while_running];
        let output = scene.run(&options, script).output();
        let told = messages_of(&output);
        assert_eq!(output.status.code(), Some(122), "{told}");
        assert!(told.contains("has not returned for"), "{told}");
        assert!(told.contains("moves the other files"), "{told}");
        for name in ["a", "c", "d", "e", "f"] {
            assert_eq!(scene.moved(name), Some(lines(1000)), "{name}: {told}");
        }
        assert_eq!(scene.moved("b"), None);
        let instance = instance_of(&told);
        wait_until("the end of the instance", || {
            let stopped = weir(&["stop", "--force", instance]).output().unwrap();
            stopped.status.success() || !Path::new(instance).exists()
        });
        fs::remove_dir_all(scene.dir.path().join("below/out")).unwrap();
    }
    scene.fs.lift(rule);
}

#[test]
fn a_drain_begins_anew_beside_a_call_that_hangs() {
    let Some(scene) = Scene::new("a drain to a PFS of which a part hangs, and a killed server")
    else {
        return;
    };
    let hang = FaultRule::new(&[FsOperation::Write], FaultEffect::Hang);
    let rule = scene.fs.inject(hang.at("out/.hung.weir-part"));
    let script = "
        seq 1000 > /weir/hung
        await $1/hangs
        kill -KILL $($2 status | sed -n 's/^ *server 0 .*process \\([0-9]*\\),.*/\\1/p')
        until $2 status | grep -q 'started again'; do sleep 0.05; done
        # This shell was a client of the killed server.
        exec sh -ec '
            seq 2000 > /weir/other
            touch $1/went
            until [ -e $1/back ]; do sleep 0.05; done
            until $2 drain --wait --timeout 60s; do sleep 0.1; done' sh $1 $2";
    let mut run = scene.run(
        &["--servers", "2", "--set", "drain.stuck_s=2"],
        &format!("{AWAIT}{script}"),
    );
    assert!(scene.fs.wait_for_hanging(1, HANG));
    scene.say("hangs");
    scene.wait_for("went", &mut run);
    wait_until("the other file", || {
        scene.moved("other") == Some(lines(2000)) || run.has_ended()
    });
    assert_eq!(scene.moved("hung"), None);
    scene.fs.lift(rule);
    scene.say("back");
    let output = run.output();
    assert!(output.status.success(), "{}", messages_of(&output));
    assert_eq!(scene.moved("hung"), Some(lines(1000)));
}

#[test]
fn signals_end_a_drain_whose_calls_hang() {
    let Some(scene) = Scene::new("signals to a drain to a PFS that hangs") else {
        return;
    };
    let hang = FaultRule::new(&[FsOperation::Write], FaultEffect::Hang);
    let rule = scene.fs.inject(hang);
    let script = "seq 1000 > /weir/file; echo $WEIR_INSTANCE > $1/name; mv $1/name $1/instance";
    let mut run = scene.run(&[], script);
    scene.wait_for("instance", &mut run);
    let instance = fs::read_to_string(scene.talk("instance")).unwrap();
    let status = ["drain", "--status", "--json", "-i", instance.trim()];
    wait_until("the end of the command", || {
        let status = weir(&status).output().unwrap();
        String::from_utf8_lossy(&status.stdout).contains("\"step\":\"finishing\"")
    });
    let hangs = scene.fs.wait_for_hanging(1, HANG);
    let child = run.0.as_ref().unwrap().id();
    let child = Pid::from_raw(i32::try_from(child).unwrap()).unwrap();
    // The first one ends the drain in order, which hangs; one that comes later ends it at once.
    wait_until("the end of weir run", || {
        kill_process(child, Signal::TERM).unwrap();
        std::thread::sleep(Duration::from_millis(200));
        run.has_ended()
    });
    let output = run.output();
    scene.fs.lift(rule);
    assert!(hangs);
    assert_eq!(output.status.code(), Some(122), "{}", messages_of(&output));
    assert_eq!(instance_of(&messages_of(&output)), instance.trim());
    wait_until("the end of the instance", || {
        let stopped = weir(&["stop", instance.trim()]).output().unwrap();
        stopped.status.success() || !Path::new(instance.trim()).exists()
    });
}

#[test]
fn a_full_file_system_leaves_the_rest_in_the_instance() {
    let Some(scene) = Scene::new("a drain to a full PFS") else {
        return;
    };
    let full = FaultRule::new(&[FsOperation::Write], FaultEffect::Fail(Errno::NOSPC));
    let rule = scene.fs.inject(full.after(3));
    let script = "cd /weir; for n in 1 2 3 4 5 6; do seq 1000 > $n; done
        until $2 drain --status --json | grep -q '\"failed_files\":[1-9]'; do sleep 0.1; done
        seq 5 > late";
    let run = scene.run(&[], script);
    let output = run.output();
    let told = messages_of(&output);
    assert_eq!(output.status.code(), Some(122), "{told}");
    assert!(told.contains("No space left on device"), "{told}");
    scene.fs.lift(rule);
    let whole = lines(1000);
    let moved = (1..=6).filter_map(|name| scene.moved(&name.to_string()));
    let moved: Vec<String> = moved.collect();
    assert_eq!(moved, vec![whole.clone(); 3]);
    let instance = instance_of(&told);
    let mut stop = weir(&["stop", instance, "--drain-to"]);
    let stopped = stop.arg(scene.target()).output().unwrap();
    assert!(stopped.status.success(), "{stopped:?}");
    for name in 1..=6 {
        assert_eq!(scene.moved(&name.to_string()), Some(whole.clone()));
    }
    assert_eq!(scene.moved("late").as_deref(), Some("1\n2\n3\n4\n5\n"));
}

#[test]
fn a_drain_stops_before_its_job_ends_and_has_moved_the_first_files() {
    let Some(scene) = Scene::new("a drain that has little time") else {
        return;
    };
    // Sixteen seconds, of which there are three.
    scene.fs.set_write_rate(Some(1 << 20));
    let script = "
        trap 'exit 0' TERM
        cd /weir
        for n in $(seq 16); do head -c 1048576 /dev/zero > $n; done
        seq 10000 > restart
        echo $WEIR_INSTANCE > $1/name
        mv $1/name $1/instance
        until [ -e $1/ends ]; do sleep 0.05; done";
    for command_ends_first in [false, true] {
        let settings = [
            "drain.warning_s=4",
            "drain.first=/weir/restart*",
            "drain.while_running=false",
        ];
        let options = settings.map(|setting| ["--set", setting]).concat();
        let mut run = scene.run(&options, script);
        scene.wait_for("instance", &mut run);
        let instance = fs::read_to_string(scene.talk("instance")).unwrap();
        let instance = instance.trim();
        if command_ends_first {
            scene.say("ends");
            wait_until("the first file", || scene.moved("restart").is_some());
        }
        let child = run.0.as_ref().unwrap().id();
        let child = Pid::from_raw(i32::try_from(child).unwrap()).unwrap();
        kill_process(child, Signal::TERM).unwrap();
        let output = run.output();
        let told = messages_of(&output);
        assert_eq!(output.status.code(), Some(122), "{told}");
        assert!(told.contains("the job ends soon"), "{told}");
        assert_eq!(scene.moved("restart"), Some(lines(10_000)), "{told}");
        let is_there = |number: &u32| scene.moved(&number.to_string()).is_some();
        let missing = (1..=16).filter(|number| !is_there(number));
        let missing: Vec<u32> = missing.collect();
        assert!(!missing.is_empty(), "{told}");
        let named = |number: &u32| told.contains(&format!("weir: /weir/{number}: not safe\n"));
        let named = (1..=16).filter(named).count();
        assert!(named == missing.len(), "{missing:?}: {told}");
        assert_eq!(instance_of(&told), instance);
        scene.fs.set_write_rate(None);
        let mut stop = weir(&["stop", instance, "--drain-to"]);
        let stopped = stop.arg(scene.target()).output().unwrap();
        assert!(stopped.status.success(), "{stopped:?}");
        assert!((1..=16).all(|number| is_there(&number)));
        scene.fs.set_write_rate(Some(1 << 20));
        fs::remove_dir_all(scene.dir.path().join("below/out")).unwrap();
        fs::remove_file(scene.talk("instance")).unwrap();
    }
}

//! Bricks that are killed, or hang, under a drain, and processes that are killed.

use serde_json::Value;

use super::room::{output_text, said, wait_until, Room, Running};
use super::volume::{Layout, BRICKS};

/// Writes 12 files of 4.8 MB, under temporary names first, and a directory of two that is renamed: at 10 MB/s they
/// take six seconds.
const WRITE: &str = "
    mkdir -p $1/data $1/own $1/step.tmp
    cd $1
    for n in $(seq 12); do seq $n 700000 > data/new; mv data/new data/file.$n; done
    for n in 1 2; do seq $n > step.tmp/$n; done
    mv step.tmp step
    ln -s step latest
    ";
/// Replaces a part of these files.
const CHANGE: &str = "
    for n in $(seq 2 2 12); do seq $n 300 > data/new; mv data/new data/file.$n; done
    ";
/// The number of its files in `data`.
const FILES: usize = 12;
/// Its link rate.
const RATE: &str = "80mbit";
/// Then, while bricks are away and until the test says `back`, writes and reads small files, in the instance and in a
/// directory of the job's own, and notes each turn. The directory itself lies beside what the volume
/// has, so that a change of its name would ask for that.
const PROBE: &str = "
    until [ -e $2/back ]; do
        begin=$(date +%s%N)
        for dir in /weir own; do echo $begin > $dir/probe; read -r line < $dir/probe; test $line = $begin; done
        echo turn >> $2/turns
        sleep 0.05
    done
    rm -f own/probe
    ";

/// Calls that are made while the volume is away.
struct Outage<'r> {
    room: &'r Room,
    instance: String,
}

impl<'r> Outage<'r> {
    /// Waits until a part of the files is moved.
    #[track_caller]
    fn wait_for_half(room: &'r Room, run: &mut Running) -> Outage<'r> {
        room.wait_for("written", run);
        wait_until("the first moved file", || moved_files(room) > 0);
        Outage::find_instance(room)
    }

    fn find_instance(room: &'r Room) -> Outage<'r> {
        let instance = room.read("instance").trim().to_owned();
        Outage { room, instance }
    }

    /// Has the program go on.
    fn begin(&self) {
        self.room.say("away");
    }

    /// The number of turns that the program has made.
    fn turns(&self) -> usize {
        self.room.read("turns").lines().count()
    }

    /// The state of the drain, which answers while the volume is away.
    #[track_caller]
    fn status(&self) -> Value {
        let words = ["drain", "--status", "--json", "-i", &self.instance];
        let output = self.room.weir(&words).output().unwrap();
        let status: Value = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|error| panic!("{error}: {}", output_text(&output)));
        status[0].clone()
    }

    /// Checks that programs go on, and that the server answers, before the volume is back.
    #[track_caller]
    fn check_that_nothing_waits(&self) {
        let turns = self.turns();
        wait_until("turns of the program", || self.turns() > turns + 20);
        said(&mut self.room.weir(&["status", &self.instance]));
    }
}

/// The number of files of `data` that have their names on the volume.
fn moved_files(room: &Room) -> usize {
    let data = room.gluster.outside(&room.target("run/data"));
    let names = (1..=FILES).map(|n| data.join(format!("file.{n}")));
    names.filter(|path| path.exists()).count()
}

/// Starts a program that writes over a slow link, and then goes on with `script`. What it leaves is in `plain`, too,
/// which `change` has changed.
fn start(room: &Room, change: &str, script: &str) -> Running {
    room.run_plain(&room.beside("plain"), &format!("{WRITE}{change}"));
    let target = room.target("run");
    std::fs::create_dir(room.gluster.outside(&target)).unwrap();
    room.gluster.limit_rate(RATE);
    let options = ["--elevate", target.to_str().unwrap()];
    let begin = "echo $WEIR_INSTANCE > $2/name; mv $2/name $2/instance; touch $2/written";
    room.start(&options, &target, &format!("{WRITE}{begin}\n{script}"))
}

/// The same with a program that works on while bricks are away.
fn start_probe(room: &Room, script: &str) -> Running {
    start(
        room,
        CHANGE,
        &format!("await $2/away\n{CHANGE}{PROBE}{script}"),
    )
}

fn drain_survives_killed_bricks(killed: &[usize]) {
    let Some(room) = Room::new("bricks of GlusterFS that are killed", Layout::Distributed) else {
        return;
    };
    let script = "$3 drain --wait --timeout 50s; touch $2/safe; await $2/end";
    let mut run = start_probe(&room, script);
    let outage = Outage::wait_for_half(&room, &mut run);
    for &index in killed {
        room.gluster.kill_brick(index);
    }
    outage.begin();
    let mut status = outage.status();
    wait_until("a file that could not be moved", || {
        status = outage.status();
        status["failed_files"].as_u64() > Some(0)
    });
    outage.check_that_nothing_waits();
    let reasons = status["pending"].to_string();
    assert!(reasons.contains("not connected"), "{status}");
    room.gluster.restart_bricks();
    room.say("back");
    room.wait_for("safe", &mut run);
    // Before the run ends.
    room.assert_same("run", "plain");
    room.say("end");
    let output = run.output();
    assert!(output.status.success(), "{}", output_text(&output));
    room.assert_same("run", "plain");
}

#[test]
fn a_drain_goes_on_when_killed_bricks_are_back() {
    drain_survives_killed_bricks(&[0, 1]);
}

#[test]
fn a_drain_goes_on_when_the_half_of_the_names_is_back() {
    drain_survives_killed_bricks(&[1]);
}

/// Of a name whose brick is away the mount says that it does not exist.
#[test]
fn names_are_removed_when_the_brick_that_has_them_is_back() {
    let Some(room) = Room::new("removals from GlusterFS", Layout::Distributed) else {
        return;
    };
    let target = room.target("run");
    let before = "mkdir $1; for n in $(seq 12); do echo $n > $1/old.$n; done";
    room.run_plain(&target, before);
    let script = "
        cd $1
        mkdir made
        for n in $(seq 12); do echo $n > made/new.$n; done
        $3 drain --wait --timeout 50s
        $3 drain --pause
        rm old.* made/*
        echo $WEIR_INSTANCE > $2/instance
        touch $2/written
        await $2/away
        $3 drain --resume
        touch $2/resumed
        await $2/back
        $3 drain --wait --timeout 50s";
    let options = ["--elevate", target.to_str().unwrap()];
    let mut run = room.start(&options, &target, script);
    room.wait_for("written", &mut run);
    let outage = Outage::find_instance(&room);
    room.gluster.kill_brick(1);
    outage.begin();
    room.wait_for("resumed", &mut run);
    wait_until("a name that could not be removed", || {
        outage.status()["pending"]
            .to_string()
            .contains("not connected")
    });
    room.gluster.restart_bricks();
    room.say("back");
    let output = run.output();
    assert!(output.status.success(), "{}", output_text(&output));
    let left = room.listing(&target);
    assert_eq!(left, "/ 755\nmade/ 755\n", "{}", output_text(&output));
}

#[test]
fn bricks_that_hang_hold_up_the_drain_alone() {
    let Some(room) = Room::new("bricks of GlusterFS that hang", Layout::Distributed) else {
        return;
    };
    let mut run = start_probe(&room, "$3 drain --wait --timeout 50s");
    let outage = Outage::wait_for_half(&room, &mut run);
    for index in 0..BRICKS {
        room.gluster.pause_brick(index);
    }
    outage.begin();
    wait_until("a call that has not returned", || {
        let status = outage.status();
        status["slow_calls"]
            .as_array()
            .is_some_and(|calls| !calls.is_empty())
    });
    outage.check_that_nothing_waits();
    for index in 0..BRICKS {
        room.gluster.resume_brick(index);
    }
    room.say("back");
    let output = run.output();
    assert!(output.status.success(), "{}", output_text(&output));
    room.assert_same("run", "plain");
}

#[test]
fn what_bricks_that_are_away_did_not_take_stays_in_the_instance() {
    let Some(room) = Room::new("the end of a drain to killed bricks", Layout::Distributed) else {
        return;
    };
    let mut run = start_probe(&room, "");
    let outage = Outage::wait_for_half(&room, &mut run);
    for index in 0..BRICKS {
        room.gluster.kill_brick(index);
    }
    outage.begin();
    room.say("back");
    let output = run.output();
    assert_eq!(output.status.code(), Some(122), "{}", output_text(&output));
    assert!(
        output_text(&output).contains("not connected"),
        "{}",
        output_text(&output)
    );
    room.gluster.restart_bricks();
    let stop = ["stop", &outage.instance];
    said(&mut room.weir(&stop));
    room.assert_same("run", "plain");
}

#[test]
fn what_killed_processes_had_not_moved_is_recovered() {
    let Some(room) = Room::new("recovery to GlusterFS", Layout::Distributed) else {
        return;
    };
    let mut run = start(&room, "", "echo $$ > $2/pid; exec sleep 1000");
    drop(Outage::wait_for_half(&room, &mut run));
    let kill = "
        for process in /proc/[0-9]*; do
            case $(readlink $process/exe) in
            */weir) kill -9 ${process#/proc/} ;;
            esac
        done
        kill -9 $(cat $1) 2> /dev/null || true";
    let mut shell = room.gluster.client().command("sh");
    shell.args(["-c", kill, "sh"]).arg(room.beside("talk/pid"));
    shell.status().unwrap();
    let output = run.output();
    assert!(!output.status.success(), "{}", output_text(&output));
    assert!(
        moved_files(&room) < FILES,
        "nothing was left to be recovered"
    );
    said(&mut room.weir(&["recover"]));
    room.assert_same("run", "plain");
}

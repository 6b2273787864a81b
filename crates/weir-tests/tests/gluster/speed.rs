//! The tables of the elevator's benchmarks on this file system. Ignored, since they are for people:
//!
//! ```text
//! make build; WEIR_TEST_BINARY=$PWD/target/release/weir cargo test --release -p weir-tests --test gluster -- --ignored --nocapture
//! ```

use std::path::Path;
use std::process::Command;

use weir_tests::launch::weir_binary;

use super::room::Room;
use super::volume::Layout;

/// Of the network between the mount and its bricks, as in tc(8).
const RATE: &str = "1600mbit";
const SMALL_FILES: &str = "2000";

#[test]
#[ignore = "a measurement"]
fn checkpoints_and_small_files() {
    let Some(room) = Room::new("the speed of GlusterFS", Layout::Distributed) else {
        return;
    };
    room.gluster.limit_rate(RATE);
    let target = room.target("bench");
    std::fs::create_dir(room.gluster.outside(&target)).unwrap();
    let elevate = ["bench", "--elevate", path(&target), "--quiet"];
    let plan = ["-n", "4", "-b", "64m", "--checkpoints", "4", "-r", "3"];
    run_shown(room.weir(&[&elevate[..], &plan].concat()));
    let tool = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tools/stage-times");
    let weir = weir_binary().unwrap();
    let files = room.target("files");
    let mut stage = room.weir(&["run", "--report", "none", "--"]);
    stage.arg(tool).args([&weir, &files]).arg(SMALL_FILES);
    run_shown(stage);
}

fn path(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Runs a command, whose output goes to the test's.
#[track_caller]
fn run_shown(mut command: Command) {
    assert!(command.status().unwrap().success());
}

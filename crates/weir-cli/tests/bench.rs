//! The command line of `weir bench --elevate`; tests/real/shell/elevate.sh measures with it.

mod common;

use common::Room;

#[test]
fn what_cannot_be_measured_is_said() {
    let room = Room::new();
    room.says(1, "nowhere", &["bench", "--elevate", "nowhere", "--quick"]);
    room.says(2, "checkpoints", &["bench", "--checkpoints", "3", "/tmp"]);
    let few = ["bench", "--elevate", ".", "--checkpoints", "1"];
    room.says(2, "2..=1000", &few);
}

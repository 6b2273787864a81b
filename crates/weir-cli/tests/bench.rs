//! The command lines of `weir bench --elevate` and `--connectors`; tests/real/shell/elevate.sh and connectors_bench.sh measure with
//! them.

mod common;

use common::Room;

#[test]
fn what_cannot_be_measured_is_said() {
    let room = Room::new();
    room.says(1, "nowhere", &["bench", "--elevate", "nowhere", "--quick"]);
    room.says(2, "checkpoints", &["bench", "--checkpoints", "3", "/tmp"]);
    let few = ["bench", "--elevate", ".", "--checkpoints", "1"];
    room.says(2, "2..=1000", &few);
    let unknown = ["bench", "--connectors=mpi"];
    room.says(2, "mpiio, hdf5, pnetcdf, pfs, overhead", &unknown);
    let both = ["bench", "--connectors", "--elevate", "."];
    room.says(2, "cannot be used with", &both);
    let alone = ["bench", "--mpicc", "cc"];
    room.says(2, "--connectors", &alone);
    let of_a_directory = ["bench", "--pfs", ".", "/tmp"];
    room.says(2, "cannot be used with", &of_a_directory);
    let nowhere = ["bench", "--connectors=pfs", "--pfs", "nowhere"];
    room.says(1, "nowhere", &nowhere);
}

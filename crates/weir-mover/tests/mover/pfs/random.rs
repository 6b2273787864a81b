//! Stages and rounds under faults that are drawn: the target has whole versions only, and the move that
//! nothing disturbs finishes.

use std::fs;

use proptest::prelude::*;
use rustix::io::Errno;
use weir_faultfs::{FaultEffect, FaultRule, FsOperation};

use super::scene::{finish, round, Scene};
use crate::parts::parts;

fn fault() -> impl Strategy<Value = FaultRule> {
    let steps = proptest::sample::select(vec![
        FsOperation::LookUp,
        FsOperation::GetAttributes,
        FsOperation::Create,
        FsOperation::Open,
        FsOperation::Read,
        FsOperation::SetSize,
        FsOperation::Write,
        FsOperation::SetMode,
        FsOperation::SetTimes,
        FsOperation::Sync,
        FsOperation::Rename,
        FsOperation::Unlink,
        FsOperation::RemoveDirectory,
        FsOperation::MakeDirectory,
        FsOperation::Symlink,
        FsOperation::Link,
        FsOperation::SyncDirectory,
    ]);
    let errnos = [Errno::IO, Errno::NOSPC, Errno::STALE, Errno::ACCESS];
    let errnos = proptest::sample::select(errnos.to_vec());
    let times = prop_oneof![1..4_u64, Just(u64::MAX)];
    (steps, errnos, 0..12_u64, times, any::<bool>()).prop_map(
        |(step, errno, after, times, is_done)| {
            // A drain does not know that it made a directory if it was told otherwise, and a part that nobody
            // knows of stays until its file is moved again.
            let is_unknown = [FsOperation::MakeDirectory, FsOperation::Create].contains(&step);
            let effect = match is_done && !is_unknown {
                true => FaultEffect::FailDone(errno),
                false => FaultEffect::Fail(errno),
            };
            FaultRule::new(&[step], effect).after(after).times(times)
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn moves_under_any_faults_leave_whole_files(
        faults in proptest::collection::vec(proptest::collection::vec(fault(), 0..4), 1..5),
        is_drain in any::<bool>(),
    ) {
        let Some(mut scene) = Scene::new("moves under faults") else {
            return Ok(());
        };
        let mut drain = scene.drain();
        let keeps_parts = faults.iter().flatten().any(|fault| fault.hits(FsOperation::Unlink));
        for (version, faults) in (1..).zip(faults) {
            scene.write(version);
            // A stage does not remove names.
            if is_drain {
                let _ = fs::remove_dir_all(scene.source(&format!("new{}", version - 1)));
            }
            for fault in faults {
                scene.fs.inject(fault);
            }
            for _ in 0..2 {
                match is_drain {
                    true => drop(round(&mut drain)),
                    false => drop(scene.stage()),
                }
                scene.check_whole("a move under faults");
            }
            scene.fs.lift_all();
        }
        // A stage knows nothing of those before. If one could not remove a part, that stays until its file is moved
        // again: this one may be on the target as it is, if the move only failed to compare the two.
        if !is_drain && keeps_parts {
            for part in parts(&scene.below("")) {
                fs::remove_file(part).unwrap();
            }
        }
        let summary = match is_drain {
            true => finish(&mut drain),
            false => scene.stage(),
        };
        prop_assert_eq!(summary.failed, []);
        scene.check_whole("the last move");
        // If several calls in a row fail, a drain does not know that a file has got its name by it: it stays
        // though the program has removed it.
        for version in 1..6 {
            let name = format!("new{version}");
            if is_drain && !scene.source(&name).exists() {
                let _ = fs::remove_dir_all(scene.below(&name));
            }
        }
        scene.check_equal("the last move");
    }
}

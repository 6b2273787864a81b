//! Rate, sizes and order of requests, room, and requests that hang.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use weir_faultfs::{FaultEffect, FaultRule, FsOperation, RecordedRequest, MAX_WRITE_BYTES};
use weir_mover::publish::is_part;
use weir_mover::{StageOptions, StageProgress};

use super::scene::{finish, reasons, round, Scene, LIMIT};
use crate::parts::count_parts;

const THREADS: usize = 3;

fn options() -> StageOptions {
    StageOptions {
        threads: THREADS,
        ..StageOptions::default()
    }
}

fn is_done(request: &RecordedRequest) -> bool {
    request.reply == Some(Ok(()))
}

#[test]
fn a_large_file_is_written_by_whole_requests_without_gaps() {
    let Some(scene) = Scene::new("requests of a stage") else {
        return;
    };
    let whole = u64::from(MAX_WRITE_BYTES);
    // Two pieces, which two threads copy, and a rest.
    let size = (70 << 20) + 12345;
    fs::write(scene.source("large"), vec![1; size]).unwrap();
    let summary = scene.stage_with(options(), &StageProgress::default());
    assert_eq!((summary.files, summary.failed), (1, vec![]));
    scene.check_equal("a large file");
    let mut writes = scene.fs.requests_of(FsOperation::Write);
    assert!(writes
        .iter()
        .all(|write| write.path == Path::new(".large.weir-part")));
    writes.sort_by_key(|write| write.offset);
    let mut end = 0;
    for write in &writes {
        assert_eq!(write.offset, end);
        end += write.bytes;
    }
    assert_eq!(end, size as u64);
    let (last, others) = writes.split_last().unwrap();
    assert!(others.iter().all(|write| write.bytes == whole));
    assert_eq!(last.bytes, 12345);
    for once in [
        FsOperation::Create,
        FsOperation::SetSize,
        FsOperation::Sync,
        FsOperation::Rename,
    ] {
        assert_eq!(scene.fs.requests_of(once).len(), 1, "{once:?}");
    }
}

/// A layout of Lustre without a pool: magic number, pattern, object, size and count of stripes.
fn lustre_layout(stripe: u32) -> Vec<u8> {
    let mut layout = vec![0; 32];
    layout[..4].copy_from_slice(&0x0BD1_0BD0_u32.to_le_bytes());
    layout[24..28].copy_from_slice(&stripe.to_le_bytes());
    layout[28..30].copy_from_slice(&4_u16.to_le_bytes());
    layout
}

/// The file system tells its stripes: no write crosses the end of one, whoever copies the file.
#[test]
fn writes_end_at_the_stripes_that_the_file_system_tells() {
    let stripe: u64 = 5 << 19;
    for is_drain in [false, true] {
        let Some(scene) = Scene::new("stripes") else {
            return;
        };
        let layout = lustre_layout(u32::try_from(stripe).unwrap());
        scene.fs.set_layout(Some(layout));
        fs::write(scene.source("large"), vec![1; (70 << 20) + 12345]).unwrap();
        match is_drain {
            false => assert!(scene
                .stage_with(options(), &StageProgress::default())
                .is_complete()),
            true => assert!(finish(&mut scene.drain()).is_complete()),
        }
        scene.check_equal("a file in stripes");
        let writes = scene.fs.requests_of(FsOperation::Write);
        assert!(writes.len() > 70);
        for write in writes {
            let last = write.offset + write.bytes - 1;
            assert_eq!(write.offset / stripe, last / stripe, "{write:?}");
        }
    }
}

/// The target of a million small files answers so many requests for each. `LookUp` is left out: the kernel decides how often
/// it asks for the names of a path.
#[test]
fn a_small_file_costs_one_request_of_each_kind() {
    let Some(scene) = Scene::new("requests of small files") else {
        return;
    };
    fs::create_dir(scene.source("new")).unwrap();
    for name in ["new/a", "new/b", "new/c"] {
        fs::write(scene.source(name), vec![1; 4096]).unwrap();
        fs::set_permissions(scene.source(name), fs::Permissions::from_mode(0o600)).unwrap();
    }
    let summary = scene.stage_with(options(), &StageProgress::default());
    assert_eq!((summary.files, summary.failed), (3, vec![]));
    scene.check_equal("small files");
    let (part, file) = (Path::new("new/.b.weir-part"), Path::new("new/b"));
    let requests = scene.fs.requests();
    let mut counts = BTreeMap::new();
    for request in &requests {
        let is_of_file = [part, file].contains(&&*request.path);
        if is_of_file && request.operation != FsOperation::LookUp {
            *counts
                .entry(format!("{:?}", request.operation))
                .or_insert(0) += 1;
        }
    }
    // The kernel asks for that attribute before it writes; each close is a flush and a release.
    let is_ours = |operation: &String| !["GetXattr", "Flush", "Release"].contains(&&**operation);
    counts.retain(|operation, _| is_ours(operation));
    let expected = ["Create", "Write", "SetTimes", "Sync", "Rename"];
    let mut expected: BTreeMap<String, i32> = expected
        .iter()
        .map(|operation| ((*operation).to_owned(), 1))
        .collect();
    // Once before the rename and once after it: another mover may have taken the part.
    expected.insert("GetAttributes".to_owned(), 2);
    assert_eq!(counts, expected, "{requests:#?}");
}

#[test]
fn holes_are_not_written() {
    let Some(scene) = Scene::new("holes of a stage") else {
        return;
    };
    let file = File::create(scene.source("sparse")).unwrap();
    file.set_len(300 << 20).unwrap();
    for at in [0, 100 << 20] {
        file.write_all_at(&[1; 4096], at).unwrap();
    }
    assert!(scene.stage().is_complete());
    let writes = scene.fs.requests_of(FsOperation::Write);
    // Threads write them in any order.
    let ranges: BTreeSet<_> = writes
        .iter()
        .map(|write| (write.offset, write.bytes))
        .collect();
    assert_eq!(ranges, BTreeSet::from([(0, 4096), (100 << 20, 4096)]));
    assert_eq!(writes.len(), 2);
}

#[test]
fn what_is_verified_is_read_from_the_file_system() {
    let Some(mut scene) = Scene::new("verified stages") else {
        return;
    };
    scene.write(1);
    let options = StageOptions {
        verify: true,
        ..options()
    };
    let summary = scene.stage_with(options, &StageProgress::default());
    assert!(summary.is_complete());
    let bytes_of = |operation| -> u64 {
        let requests = scene.fs.requests_of(operation);
        requests.iter().map(|request| request.bytes).sum()
    };
    assert!(bytes_of(FsOperation::Read) >= bytes_of(FsOperation::Write));
}

#[test]
fn a_limited_rate_is_followed_with_one_request_for_each_thread() {
    let Some(scene) = Scene::new("a slow PFS") else {
        return;
    };
    let (size, rate) = (24_u32 << 20, 48_u32 << 20);
    for name in ["a", "b", "c"] {
        fs::write(scene.source(name), vec![1; 8 << 20]).unwrap();
    }
    scene.fs.set_write_rate(Some(rate.into()));
    let progress = StageProgress::default();
    let is_over = AtomicBool::new(false);
    let begun = Instant::now();
    let (summary, most) = std::thread::scope(|scope| {
        let watch = scope.spawn(|| {
            let most = std::cell::Cell::new(0);
            let watched = scene.fs.wait_for_requests(LIMIT, |requests| {
                let writes = requests
                    .iter()
                    .filter(|request| request.operation == FsOperation::Write);
                let (done, waiting): (Vec<_>, Vec<_>) = writes.partition(|write| is_done(write));
                most.set(waiting.len().max(most.get()));
                let written: u64 = done.iter().map(|write| write.bytes).sum();
                // A byte that is told to be moved is on the file system.
                assert!(progress.bytes_done.load(Ordering::Relaxed) <= written);
                is_over.load(Ordering::Relaxed)
            });
            assert!(watched);
            most.get()
        });
        let summary = scene.stage_with(options(), &progress);
        is_over.store(true, Ordering::Relaxed);
        // The next request ends the watch.
        fs::metadata(scene.fs.path()).unwrap();
        (summary, watch.join().unwrap())
    });
    assert!(summary.is_complete());
    assert!((1..=THREADS).contains(&most), "{most} writes at once");
    // Only a lower bound, since the machine may be slow.
    let shortest = Duration::from_secs_f64(f64::from(size) / f64::from(rate));
    assert!(begun.elapsed() >= shortest, "{:?}", begun.elapsed());
}

#[test]
fn a_file_system_that_is_full_half_way_takes_the_rest_once_there_is_room() {
    let Some(scene) = Scene::new("a full PFS") else {
        return;
    };
    for number in 0..20 {
        fs::write(scene.source(&number.to_string()), vec![number; 300_000]).unwrap();
    }
    let full = FaultRule::new(&[FsOperation::Write], FaultEffect::Fail(Errno::NOSPC));
    let rule = scene.fs.inject(full.after(10));
    let first = scene.stage();
    assert_eq!((first.files, first.failed.len()), (10, 10));
    let is_told = |reason: &String| reason.contains("No space left on device");
    assert!(first.failed.iter().all(|failed| is_told(&failed.reason)));
    assert_eq!(count_parts(&scene.below("")), 0, "parts take no room");
    scene.fs.lift(rule);
    let second = scene.stage();
    assert_eq!((second.files, second.unchanged), (10, 10));
    scene.check_equal("a stage with room");
}

/// While the file system is away, the program goes on, and changes names.
#[test]
fn a_file_system_that_is_gone_and_comes_back_gets_all() {
    let Some(mut scene) = Scene::new("a PFS that is gone") else {
        return;
    };
    let mut drain = scene.drain();
    scene.write(1);
    for _ in 0..3 {
        round(&mut drain);
    }
    let all = [
        FsOperation::LookUp,
        FsOperation::GetAttributes,
        FsOperation::Create,
        FsOperation::MakeDirectory,
        FsOperation::Rename,
        FsOperation::Unlink,
    ];
    let gone = FaultEffect::Fail(Errno::NOTCONN);
    scene.fs.inject(FaultRule::new(&all, gone));
    for version in 2..6 {
        scene.write(version);
        fs::remove_dir_all(scene.source(&format!("new{}", version - 1))).unwrap();
        let told = reasons(&round(&mut drain));
        assert!(!told.is_empty());
        let is_told = |reason: &String| reason.contains("endpoint is not connected");
        assert!(told.iter().all(is_told), "{told:?}");
        scene.check_whole("while it is gone");
    }
    scene.fs.lift_all();
    for _ in 0..4 {
        round(&mut drain);
        scene.check_whole("when it is back");
    }
    let last = round(&mut drain);
    assert_eq!((last.pending, last.names_due), (vec![], vec![]));
    assert!(finish(&mut drain).is_complete());
    scene.check_equal("when it is back");
}

#[test]
fn a_request_that_hangs_holds_up_its_file_only_and_all_is_moved_when_it_is_back() {
    for step in [
        FsOperation::Create,
        FsOperation::SetSize,
        FsOperation::Write,
        FsOperation::SetTimes,
        FsOperation::Sync,
        FsOperation::Rename,
    ] {
        let Some(mut scene) = Scene::new("a PFS that hangs") else {
            return;
        };
        scene.write(1);
        let mut drain = scene.drain();
        let hang = FaultRule::new(&[step], FaultEffect::Hang);
        let rule = scene.fs.inject(hang.at(".large.weir-part"));
        // The kernel changes the names of a directory one at a time.
        let holds_directory = [FsOperation::Create, FsOperation::Rename].contains(&step);
        let first = std::thread::scope(|scope| {
            let first = scope.spawn(|| round(&mut drain));
            let hangs = scene.fs.wait_for_hanging(1, LIMIT);
            // The thread that it holds up has a batch of its own.
            let others = holds_directory
                || scene.fs.wait_for_requests(LIMIT, |requests| {
                    let is_named = |request: &RecordedRequest| {
                        let new_path = request.new_path.as_deref();
                        new_path == Some(Path::new("kept/file")) && is_done(request)
                    };
                    requests.iter().any(is_named)
                });
            let is_there = scene.below("large").exists();
            let is_finished = first.is_finished();
            // Before anything fails: the scope waits for the round.
            scene.fs.lift(rule);
            assert!(hangs && others, "{step:?}");
            assert!(!is_there && !is_finished, "{step:?}");
            first.join().unwrap()
        });
        scene.check_whole(&format!("{step:?}"));
        assert_eq!(first.pending, [], "{step:?}");
        assert!(finish(&mut drain).is_complete());
        scene.check_equal(&format!("{step:?}"));
    }
}

/// The place of the first request behind `from` that is so.
fn place(
    requests: &[RecordedRequest],
    from: usize,
    is_so: impl Fn(&RecordedRequest) -> bool,
) -> Option<usize> {
    let behind = requests.iter().enumerate().skip(from);
    behind
        .filter(|(_, request)| is_done(request) && is_so(request))
        .map(|(place, _)| place)
        .next()
}

/// Checks that each file was synced before it got its name, and each directory after its names were
/// changed.
fn check_synced(requests: &[RecordedRequest], what: &str) {
    let mut named = 0;
    for (number, request) in requests.iter().enumerate() {
        let is_of_part = |path: &Path| path.file_name().is_some_and(is_part);
        let changed = match request.operation {
            FsOperation::Rename => request.new_path.clone().unwrap(),
            FsOperation::MakeDirectory | FsOperation::RemoveDirectory => request.path.clone(),
            FsOperation::Unlink if !is_of_part(&request.path) => request.path.clone(),
            _ => continue,
        };
        let synced = place(requests, number, |later| {
            later.operation == FsOperation::SyncDirectory && Some(&*later.path) == changed.parent()
        });
        let removed = place(requests, number, |later| {
            later.operation == FsOperation::RemoveDirectory
                && Some(&*later.path) == changed.parent()
        });
        assert!(
            synced.or(removed).is_some(),
            "{what}: {} is not on storage",
            changed.display()
        );
        let created = requests
            .iter()
            .any(|other| other.operation == FsOperation::Create && other.path == request.path);
        if request.operation == FsOperation::Rename && created {
            let of_part = |operation| {
                move |other: &RecordedRequest| {
                    other.operation == operation && other.path == request.path
                }
            };
            let synced = place(requests, 0, of_part(FsOperation::Sync));
            let synced = synced.expect("the file is not on storage");
            assert!(synced < number, "{what}");
            assert_eq!(place(requests, synced, of_part(FsOperation::Write)), None);
            named += 1;
        }
    }
    assert!(named > 0, "{what}");
}

#[test]
fn what_is_called_safe_is_on_storage() {
    let Some(mut scene) = Scene::new("syncs of moves") else {
        return;
    };
    scene.write(1);
    assert!(scene.stage().is_complete());
    check_synced(&scene.fs.requests(), "a stage");

    let Some(mut scene) = Scene::new("syncs of moves") else {
        return;
    };
    let mut drain = scene.drain();
    for version in 1..4 {
        scene.write(version);
        fs::create_dir_all(scene.source(&format!("new{version}/deep/er/empty"))).unwrap();
        let _ = fs::remove_dir_all(scene.source(&format!("new{}", version - 1)));
        scene.fs.forget_requests();
        // Names that could not be synced are not forgotten.
        let fails = FaultEffect::Fail(Errno::IO);
        let rule = FaultRule::new(&[FsOperation::SyncDirectory], fails);
        let rule = scene.fs.inject(rule);
        for _ in 0..3 {
            assert!(round(&mut drain).has_failed());
        }
        scene.fs.lift(rule);
        for _ in 0..3 {
            round(&mut drain);
        }
        let last = round(&mut drain);
        assert_eq!((last.pending, last.names_due), (vec![], vec![]));
        check_synced(&scene.fs.requests(), "a drain");
    }
}

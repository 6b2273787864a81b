//! Each error in each step of a stage and of a drain: the target has whole versions only, the error is
//! told with the path and the reason, and once it is over everything is moved.

use std::fs;
use std::io;

use rustix::io::Errno;
use weir_faultfs::{FaultEffect, FaultRule, FsOperation};

use super::scene::{finish, reasons, round, Scene};

/// The errors of a parallel file system that is broken, full, gone or read-only.
const ERRNOS: [Errno; 6] = [
    Errno::IO,
    Errno::NOSPC,
    Errno::DQUOT,
    Errno::STALE,
    Errno::ACCESS,
    Errno::ROFS,
];

/// The steps of a move that change the target, or look at it.
const STEPS: [FsOperation; 16] = [
    FsOperation::LookUp,
    FsOperation::GetAttributes,
    FsOperation::Create,
    FsOperation::Open,
    FsOperation::SetSize,
    FsOperation::Write,
    FsOperation::SetXattr,
    FsOperation::SetMode,
    FsOperation::SetTimes,
    FsOperation::Sync,
    FsOperation::Rename,
    FsOperation::Unlink,
    FsOperation::MakeDirectory,
    FsOperation::Symlink,
    FsOperation::Link,
    FsOperation::SyncDirectory,
];

/// A part of the name of a fault of one request.
const ONCE: &str = "the second";
/// The end of the name of a fault of requests that are done all the same.
const IS_DONE: &str = "is done";

/// Faults of a step: of each request of it, or of one, which may be done all the same.
fn faults(step: FsOperation, errno: Errno) -> Vec<(&'static str, FaultRule)> {
    let fails = FaultRule::new(&[step], FaultEffect::Fail(errno));
    let is_done = FaultRule::new(&[step], FaultEffect::FailDone(errno));
    let mut faults = vec![
        ("each", fails.clone()),
        ("the second", fails.after(1).times(1)),
    ];
    // Of a reply that was lost the kernel or a client of a file system tells one of these.
    if [Errno::IO, Errno::STALE].contains(&errno) {
        faults.push(("each is done", is_done.clone()));
        faults.push(("the second is done", is_done.after(1).times(1)));
    }
    faults
}

/// True if an error of a step is no reason to call a file unsafe: nothing depends on the step, or the move
/// finds a way around it.
fn is_tolerated(step: FsOperation, errno: Errno, is_once: bool) -> bool {
    match step {
        // The kernel looks again; a call that has written a part of its bytes goes on behind them; a file may
        // have its name already when it is looked at for the last time.
        FsOperation::LookUp | FsOperation::Write | FsOperation::GetAttributes if is_once => true,
        // The file system has no such attribute.
        FsOperation::SetXattr => [Errno::NOSPC, Errno::DQUOT].contains(&errno),
        // A directory may be changed by users who may not open it.
        FsOperation::SyncDirectory => errno == Errno::ACCESS,
        // The mover copies a file again if it cannot compare it.
        FsOperation::Open => true,
        // The kernel repeats a call; it may then find what the first one did.
        _ => errno == Errno::STALE,
    }
}

fn text_of(errno: Errno) -> String {
    io::Error::from_raw_os_error(errno.raw_os_error()).to_string()
}

/// Checks that an error was told, with a path of the target.
#[track_caller]
fn check_told(scene: &Scene, what: &str, (step, errno): (FsOperation, Errno), reasons: &[String]) {
    let path = scene.fs.path().to_str().unwrap();
    assert!(
        reasons.iter().all(|reason| reason.contains(path)),
        "{what}: {reasons:?}"
    );
    let requests = scene.fs.requests_of(step);
    let failed = requests.iter();
    let failed = failed.filter(|request| request.reply == Some(Err(errno)));
    let failed: Vec<_> = failed.map(|request| &request.path).collect();
    // It is found to be done though the reply was lost.
    let is_done = what.ends_with(IS_DONE) && step == FsOperation::Rename;
    if failed.is_empty() || is_done {
        assert_eq!(reasons, [""; 0], "{what}");
    } else if !is_tolerated(step, errno, what.contains(ONCE)) {
        let is_told = reasons
            .iter()
            .any(|reason| reason.contains(&text_of(errno)));
        assert!(is_told, "{what}: of {failed:?}: {reasons:?}");
    }
}

/// Calls `act` for each step, error and fault, with a scene, before the fault is injected.
fn with_each_fault(test: &str, act: impl Fn(&mut Scene, &str, (FsOperation, Errno), FaultRule)) {
    for step in STEPS {
        for errno in ERRNOS {
            for (name, fault) in faults(step, errno) {
                let Some(mut scene) = Scene::new(test) else {
                    return;
                };
                let what = format!("{step:?}, {}, {name}", text_of(errno));
                act(&mut scene, &what, (step, errno), fault);
            }
        }
    }
}

#[test]
fn each_error_of_a_stage_leaves_whole_files_and_is_told() {
    with_each_fault("stages to a broken PFS", |scene, what, error, fault| {
        scene.write(1);
        assert!(scene.stage().is_complete());
        scene.check_equal(what);
        scene.write(2);
        fs::write(scene.below(".large.weir-part"), b"of a dead process").unwrap();
        scene.fs.forget_requests();
        scene.fs.inject(fault);
        let failed = scene.stage().failed;
        scene.check_whole(what);
        let reasons: Vec<String> = failed.into_iter().map(|one| one.reason).collect();
        check_told(scene, what, error, &reasons);
        scene.fs.lift_all();
        assert_eq!(scene.stage().failed, [], "{what}");
        // The mover leaves files of the target that the source does not have.
        fs::remove_dir_all(scene.below("new1")).unwrap();
        fs::remove_dir_all(scene.source("new1")).unwrap();
        scene.check_equal(what);
    });
}

#[test]
fn each_error_of_a_drain_leaves_whole_files_and_is_told() {
    with_each_fault("drains to a broken PFS", |scene, what, error, fault| {
        let mut drain = scene.drain();
        scene.write(1);
        for _ in 0..3 {
            assert_eq!(reasons(&round(&mut drain)), [""; 0], "{what}");
        }
        scene.write(2);
        fs::remove_dir_all(scene.source("new1")).unwrap();
        fs::write(scene.below(".large.weir-part"), b"of a dead process").unwrap();
        scene.fs.forget_requests();
        scene.fs.inject(fault);
        let mut told = Vec::new();
        for _ in 0..3 {
            told.extend(reasons(&round(&mut drain)));
            scene.check_whole(what);
        }
        check_told(scene, what, error, &told);
        scene.fs.lift_all();
        for _ in 0..3 {
            round(&mut drain);
            scene.check_whole(what);
        }
        let last = round(&mut drain);
        assert_eq!((last.pending, last.names_due), (vec![], vec![]), "{what}");
        // The second version goes as the first one did.
        scene.write(3);
        fs::remove_dir_all(scene.source("new2")).unwrap();
        assert_eq!(finish(&mut drain).failed, [], "{what}");
        if what.ends_with(IS_DONE) && error.0 == FsOperation::MakeDirectory {
            // The drain does not know that it made them, so that they stay. They are empty.
            let _ = fs::remove_dir(scene.below("new2/deep"));
            let _ = fs::remove_dir(scene.below("new2"));
        }
        scene.check_equal(what);
    });
}

/// The file is the drain's then: it is removed when the program removes it.
#[test]
fn a_file_that_has_its_name_is_moved_though_it_cannot_be_looked_at() {
    let Some(scene) = Scene::new("a file that cannot be looked at") else {
        return;
    };
    fs::write(scene.source("file"), b"content").unwrap();
    let fails = FaultRule::new(&[FsOperation::GetAttributes], FaultEffect::Fail(Errno::IO));
    scene.fs.inject(fails.at("file").times(1));
    let mut drain = scene.drain();
    let first = round(&mut drain);
    assert_eq!((first.files, first.pending), (1, vec![]));
    let requests = scene.fs.requests_of(FsOperation::GetAttributes);
    let failed = |request: &weir_faultfs::RecordedRequest| request.reply == Some(Err(Errno::IO));
    assert!(requests.iter().any(failed));
    fs::remove_file(scene.source("file")).unwrap();
    assert_eq!(finish(&mut drain).failed, []);
    assert!(!scene.below("file").exists());
}

/// GlusterFS says so of the files of a server that is away.
#[test]
fn a_name_that_cannot_be_made_is_not_gone_though_it_is_not_found() {
    let Some(scene) = Scene::new("a name that is not found") else {
        return;
    };
    fs::write(scene.source("file"), b"content").unwrap();
    let mut drain = scene.drain();
    while !scene.below("file").exists() {
        round(&mut drain);
    }
    let lost = FaultRule::new(&[FsOperation::LookUp], FaultEffect::Fail(Errno::NOENT));
    scene.fs.inject(lost.at("file"));
    let refused = FaultRule::new(&[FsOperation::Create], FaultEffect::Fail(Errno::NOTCONN));
    scene.fs.inject(refused.at(".file.weir-part"));
    fs::remove_file(scene.source("file")).unwrap();
    let mut told = Vec::new();
    for _ in 0..5 {
        told.extend(reasons(&round(&mut drain)));
    }
    let is_told = told
        .iter()
        .any(|told| told.contains(&text_of(Errno::NOTCONN)));
    assert!(is_told, "{told:?}");
    scene.fs.lift_all();
    assert_eq!(finish(&mut drain).failed, []);
    scene.check_equal("it is removed then");
}

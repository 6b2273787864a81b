//! Moves between two directories, with faults and deaths at every step. An instance as the source or the
//! target is in the tests of the command.

use std::fs;
use std::os::unix::fs::{symlink, FileExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use crate::faults::FaultyTree;
use crate::parts::count_parts;
use crate::scratch::temporary_directory;
use rustix::fs::{getxattr, setxattr, XattrFlags};
use rustix::io::Errno;
use weir_mover::copy::FileCopy;
use weir_mover::error::MoveError;
use weir_mover::publish::part_of;
use weir_mover::sources::{pair, SourcesRefused};
use weir_mover::tree::FileTree;
use weir_mover::{stage, DirectoryTree, StageOptions, StagePair, StageProgress, StageSummary};

/// Two directories, and the move of one to the other.
struct Scene {
    dir: tempfile::TempDir,
}

impl Scene {
    fn new() -> Scene {
        let dir = temporary_directory();
        fs::create_dir(dir.path().join("source")).unwrap();
        fs::create_dir(dir.path().join("target")).unwrap();
        Scene { dir }
    }

    fn source(&self, name: &str) -> PathBuf {
        self.dir.path().join("source").join(name)
    }

    fn target(&self, name: &str) -> PathBuf {
        self.dir.path().join("target").join(name)
    }

    fn write(&self, name: &str, content: &[u8]) {
        fs::write(self.source(name), content).unwrap();
    }

    fn pairs(&self) -> Vec<StagePair> {
        vec![StagePair {
            source: self.source(""),
            target: self.target(""),
        }]
    }

    fn stage_to<T: FileTree>(&self, to: &T, verify: bool) -> StageSummary {
        let options = StageOptions {
            threads: 3,
            verify,
            ..StageOptions::default()
        };
        let progress = StageProgress::default();
        stage(&DirectoryTree, to, &self.pairs(), options, &progress)
    }

    fn stage(&self) -> StageSummary {
        self.stage_to(&DirectoryTree, false)
    }

    /// The number of parts in the target.
    fn parts(&self) -> usize {
        count_parts(&self.target(""))
    }
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
}

fn mode_of(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o7777
}

fn set_time(path: &Path, time: SystemTime) {
    let file = fs::File::options().write(true).open(path).unwrap();
    file.set_modified(time).unwrap();
}

#[test]
fn everything_is_kept() {
    let scene = Scene::new();
    fs::create_dir(scene.source("d")).unwrap();
    scene.write("d/file", b"abc");
    scene.write("empty", b"");
    fs::hard_link(scene.source("d/file"), scene.source("again")).unwrap();
    symlink("d/file", scene.source("link")).unwrap();
    symlink("nowhere", scene.source("broken")).unwrap();
    let long = "n".repeat(255);
    scene.write(&long, b"long name");
    let sparse = fs::File::create(scene.source("sparse")).unwrap();
    sparse.set_len(300 << 20).unwrap();
    // The second of several pieces has data in its middle.
    sparse.write_all_at(b"x", 100 << 20).unwrap();
    set_mode(&scene.source("d/file"), 0o4751);
    set_mode(&scene.source("d"), 0o511);
    let summary = scene.stage();
    assert_eq!(summary.failed, []);
    assert_eq!((summary.files, summary.hard_links), (4, 1));
    assert_eq!((summary.directories, summary.symlinks), (2, 2));
    for name in ["d", "d/file", "again", "empty", "sparse", &long] {
        let (one, other) = (scene.source(name), scene.target(name));
        let (one, other) = (fs::metadata(one).unwrap(), fs::metadata(other).unwrap());
        assert_eq!(one.mode(), other.mode(), "{name}");
        assert_eq!(one.modified().unwrap(), other.modified().unwrap(), "{name}");
        assert_eq!(one.len(), other.len(), "{name}");
    }
    let inode = |name| fs::metadata(scene.target(name)).unwrap().ino();
    assert_eq!(inode("d/file"), inode("again"));
    assert_eq!(
        fs::read_link(scene.target("broken")).unwrap(),
        Path::new("nowhere")
    );
    let copied = fs::File::open(scene.target("sparse")).unwrap();
    assert!(
        copied.metadata().unwrap().blocks() < 1024,
        "holes stay holes"
    );
    let mut byte = [0];
    copied.read_exact_at(&mut byte, 100 << 20).unwrap();
    assert_eq!(&byte, b"x");
    assert_eq!(scene.parts(), 0);
    let again = scene.stage_to(&DirectoryTree, true);
    assert_eq!(
        (again.files, again.unchanged, again.failed.len()),
        (0, 4, 0)
    );
}

#[test]
fn permissions_that_changed_alone_are_kept() {
    let scene = Scene::new();
    scene.write("file", b"abc");
    set_mode(&scene.source("file"), 0o644);
    assert_eq!(scene.stage().files, 1);
    set_mode(&scene.source("file"), 0o4500);
    let again = scene.stage();
    assert_eq!((again.files, again.unchanged), (0, 1));
    assert_eq!(mode_of(&scene.target("file")), 0o4500);
}

#[test]
fn a_fifo_is_named_and_not_opened() {
    let scene = Scene::new();
    nix::unistd::mkfifo(&scene.source("fifo"), nix::sys::stat::Mode::S_IRUSR).unwrap();
    assert_eq!(scene.stage().skipped, [scene.source("fifo")]);
}

/// A stage run by root to /dev must not take it apart.
#[test]
fn a_device_a_fifo_or_a_socket_of_the_target_is_not_replaced() {
    let scene = Scene::new();
    scene.write("fifo", b"new");
    symlink("anywhere", scene.source("socket")).unwrap();
    nix::unistd::mkfifo(&scene.target("fifo"), nix::sys::stat::Mode::S_IRUSR).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(scene.target("socket")).unwrap();
    let summary = scene.stage();
    assert_eq!((summary.files, summary.symlinks), (0, 0));
    let failed: Vec<_> = summary.failed.iter().map(|failed| &failed.target).collect();
    assert_eq!(failed, [&scene.target("fifo"), &scene.target("socket")]);
    let kind = |name| {
        fs::symlink_metadata(scene.target(name))
            .unwrap()
            .file_type()
    };
    assert!(kind("fifo").is_fifo() && kind("socket").is_socket());
}

#[test]
fn verify_finds_bytes_that_differ_behind_the_same_size_and_time() {
    let scene = Scene::new();
    scene.write("file", b"right");
    fs::write(scene.target("file"), b"wrong").unwrap();
    for path in [scene.source("file"), scene.target("file")] {
        set_time(
            &path,
            SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000),
        );
    }
    assert_eq!(scene.stage().unchanged, 1);
    assert_eq!(scene.stage_to(&DirectoryTree, true).files, 1);
    assert_eq!(fs::read(scene.target("file")).unwrap(), b"right");
}

#[test]
fn a_part_of_a_dead_process_is_replaced_and_one_of_a_living_is_not() {
    let scene = Scene::new();
    scene.write("file", b"new");
    let part = part_of(&scene.target("file"));
    fs::write(&part, b"left by a process that died").unwrap();
    assert_eq!(scene.stage().failed, []);
    assert_eq!(fs::read(scene.target("file")).unwrap(), b"new");
    fs::remove_file(scene.target("file")).unwrap();
    // Another process has an open file description of its own, as this one has here.
    let living = fs::File::create(&part).unwrap();
    living.try_lock().unwrap();
    let summary = scene.stage();
    assert!(summary.failed[0].reason.contains("another process writes"));
    assert!(!scene.target("file").exists());
    drop(living);
    assert_eq!(scene.stage().files, 1);
}

#[test]
fn a_directory_in_the_way_of_a_file_stays() {
    let scene = Scene::new();
    scene.write("file", b"new");
    scene.write("other", b"other");
    fs::create_dir(scene.target("file")).unwrap();
    let summary = scene.stage();
    assert_eq!(summary.failed.len(), 1);
    assert!(summary.failed[0]
        .reason
        .ends_with("is in the way: a directory"));
    assert_eq!(fs::read(scene.target("other")).unwrap(), b"other");
}

/// A copy of a file that has all bytes and is not published.
fn copied(source: &Path, target: &Path) -> FileCopy<'static, DirectoryTree, DirectoryTree> {
    let replaced = DirectoryTree.look_up(target).unwrap();
    let copy = FileCopy::begin(&DirectoryTree, &DirectoryTree, source, target, replaced).unwrap();
    copy.copy(0..copy.size(), &mut Vec::new(), &|_| true)
        .unwrap();
    copy
}

#[test]
fn what_somebody_else_wrote_meanwhile_is_not_overwritten() {
    let scene = Scene::new();
    scene.write("file", b"ours");
    let target = scene.target("file");
    for before in [None, Some(b"old".as_slice())] {
        if let Some(old) = before {
            fs::write(&target, old).unwrap();
        }
        let source = scene.source("file");
        let copy = copied(&source, &target);
        fs::write(&target, b"theirs").unwrap();
        let refused = copy.publish(false, &mut Vec::new()).unwrap_err();
        assert!(matches!(refused, MoveError::TargetChanged(_)), "{refused}");
        assert_eq!(fs::read(&target).unwrap(), b"theirs");
        assert_eq!(scene.parts(), 0);
        fs::remove_file(&target).unwrap();
    }
}

/// The stage has made the directory, and does not look for the names in it.
#[test]
fn what_somebody_else_put_into_a_new_directory_is_found() {
    let scene = Scene::new();
    for name in ["new", "new/inner"] {
        fs::create_dir(scene.source(name)).unwrap();
    }
    for name in ["new/same", "new/other", "new/directory", "new/inner/file"] {
        scene.write(name, b"ours");
    }
    let (source, target) = (scene.source("new"), scene.target("new"));
    let to = FaultyTree::without_links(Errno::PERM).checked(Box::new(move || {
        let is_new = target.exists() && !target.join("directory").exists();
        if is_new {
            fs::create_dir_all(target.join("directory")).unwrap();
            fs::create_dir_all(target.join("inner")).unwrap();
            fs::write(target.join("other"), b"theirs").unwrap();
            fs::write(target.join("same"), b"ours").unwrap();
            let times = fs::metadata(source.join("same"))
                .unwrap()
                .modified()
                .unwrap();
            set_time(&target.join("same"), times);
        }
    }));
    let summary = scene.stage_to(&to, false);
    assert_eq!((summary.files, summary.unchanged), (2, 1));
    let failed: Vec<_> = summary.failed.iter().map(|failed| &failed.target).collect();
    assert_eq!(failed, [&scene.target("new/directory")]);
    for name in ["new/same", "new/other", "new/inner/file"] {
        assert_eq!(fs::read(scene.target(name)).unwrap(), b"ours", "{name}");
    }
    assert_eq!(scene.parts(), 0);
}

/// Another drain of the same tree may be faster. rename(2) of one name of a file to another one of it does nothing.
#[test]
fn a_name_that_somebody_else_has_made_meanwhile_leaves_no_part() {
    for has_old in [false, true] {
        let scene = Scene::new();
        scene.write("a", b"content");
        fs::hard_link(scene.source("a"), scene.source("b")).unwrap();
        std::os::unix::fs::symlink("a", scene.source("l")).unwrap();
        if has_old {
            fs::write(scene.target("b"), b"old").unwrap();
            std::os::unix::fs::symlink("old", scene.target("l")).unwrap();
        }
        let at = |name: &str| (part_of(&scene.target(name)), scene.target(name));
        let (first, link, symlink) = (scene.target("a"), at("b"), at("l"));
        let is_there = |path: &Path| path.symlink_metadata().is_ok();
        let to = FaultyTree::failing_once(i64::MAX, Errno::IO).checked(Box::new(move || {
            // At once behind the part.
            if is_there(&link.0) {
                let _ = fs::remove_file(&link.1);
                fs::hard_link(&first, &link.1).unwrap();
            }
            if is_there(&symlink.0) {
                let _ = fs::remove_file(&symlink.1);
                std::os::unix::fs::symlink("a", &symlink.1).unwrap();
            }
        }));
        let summary = scene.stage_to(&to, false);
        // The stage may replace the old node alone, and somebody else has replaced that before.
        let failed = if has_old { 2 } else { 0 };
        assert_eq!(summary.failed.len(), failed, "{:?}", summary.failed);
        assert_eq!(scene.parts(), 0, "an old one: {has_old}");
        assert_eq!(fs::read(scene.target("b")).unwrap(), b"content");
        assert_eq!(fs::read_link(scene.target("l")).unwrap(), Path::new("a"));
    }
}

#[test]
fn a_file_that_is_written_meanwhile_is_not_published_torn() {
    let scene = Scene::new();
    scene.write("file", b"first");
    let (source, target) = (scene.source("file"), scene.target("file"));
    let copy = copied(&source, &target);
    scene.write("file", b"second");
    let refused = copy.publish(false, &mut Vec::new()).unwrap_err();
    assert!(matches!(refused, MoveError::SourceChanged(_)), "{refused}");
    assert!(!target.exists());
}

#[test]
fn a_version_of_the_same_size_and_time_is_told_by_its_bytes() {
    let scene = Scene::new();
    scene.write("file", b"1");
    let now = SystemTime::now();
    set_time(&scene.source("file"), now);
    assert_eq!(scene.stage().files, 1);
    scene.write("file", b"2");
    set_time(&scene.source("file"), now);
    assert_eq!(scene.stage().files, 1);
    assert_eq!(fs::read(scene.target("file")).unwrap(), b"2");
    assert_eq!(scene.stage().unchanged, 1);
}

#[test]
fn a_target_that_keeps_seconds_has_the_file_already() {
    let scene = Scene::new();
    let old = SystemTime::UNIX_EPOCH + Duration::new(1_700_000_000, 123_456_789);
    for (name, nanoseconds) in [("second", 0), ("micro", 123_456_000), ("other", 500)] {
        scene.write(name, b"content");
        fs::write(scene.target(name), b"content").unwrap();
        set_time(&scene.source(name), old);
        let kept = SystemTime::UNIX_EPOCH + Duration::new(1_700_000_000, nanoseconds);
        set_time(&scene.target(name), kept);
    }
    let summary = scene.stage();
    assert_eq!((summary.files, summary.unchanged), (1, 2), "{summary:?}");
}

#[test]
fn a_link_to_a_directory_in_the_target_leads_into_it() {
    let scene = Scene::new();
    fs::create_dir_all(scene.source("d/e")).unwrap();
    scene.write("d/e/file", b"content");
    fs::create_dir_all(scene.target("elsewhere/d")).unwrap();
    fs::create_dir(scene.target("elsewhere/e")).unwrap();
    symlink("elsewhere/d", scene.target("d")).unwrap();
    symlink("../e", scene.target("elsewhere/d/e")).unwrap();
    let summary = scene.stage();
    assert_eq!(summary.failed, []);
    let content = fs::read(scene.target("elsewhere/e/file")).unwrap();
    assert_eq!(content, b"content");
    assert!(scene.target("d").is_symlink());
    // A link to nothing is in the way, and stays.
    fs::remove_file(scene.target("d")).unwrap();
    symlink("nothing", scene.target("d")).unwrap();
    let summary = scene.stage();
    assert!(summary.failed[0].reason.contains("is in the way"));
    assert!(scene.target("d").is_symlink());
}

#[test]
fn a_directory_that_was_there_keeps_its_mode_if_it_takes_only_the_contents() {
    let scene = Scene::new();
    fs::create_dir(scene.source("d")).unwrap();
    set_mode(&scene.source("d"), 0o750);
    set_mode(&scene.source(""), 0o711);
    fs::create_dir(scene.target("d")).unwrap();
    set_mode(&scene.target(""), 0o2775);
    let stage_as = |source: PathBuf, target: PathBuf| {
        let options = StageOptions {
            threads: 2,
            ..StageOptions::default()
        };
        let pairs = [StagePair { source, target }];
        let progress = StageProgress::default();
        let summary = stage(&DirectoryTree, &DirectoryTree, &pairs, options, &progress);
        assert_eq!(summary.failed, []);
    };
    stage_as(scene.source(""), scene.target(""));
    assert_eq!(mode_of(&scene.target("")), 0o2775);
    assert_eq!(mode_of(&scene.target("d")), 0o750);
    set_mode(&scene.source("d"), 0o700);
    stage_as(scene.source("d"), scene.target("d"));
    assert_eq!(mode_of(&scene.target("d")), 0o700);
}

/// A user who is not root.
const NOBODY: u32 = 65534;

/// Runs a stage as a user who is not root, if this is root: else modes would mean nothing.
fn as_a_user(scene: &Scene, change: impl FnOnce() + Send) {
    if !nix::unistd::geteuid().is_root() {
        return change();
    }
    for path in [
        scene.dir.path().to_owned(),
        scene.source(""),
        scene.target(""),
    ] {
        std::os::unix::fs::chown(&path, Some(NOBODY), Some(NOBODY)).unwrap();
    }
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Of this thread and those that it starts.
            let nobody = rustix::process::Uid::from_raw(NOBODY);
            rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
            change();
        });
    });
}

#[test]
fn modes_that_keep_their_owner_out_are_moved_again_and_again() {
    let scene = Scene::new();
    as_a_user(&scene, || {
        fs::create_dir(scene.source("d")).unwrap();
        scene.write("d/file", b"1");
        set_mode(&scene.source("d/file"), 0o400);
        set_mode(&scene.source("d"), 0o500);
        for version in ["1", "22"] {
            set_mode(&scene.source("d/file"), 0o600);
            fs::write(scene.source("d/file"), version).unwrap();
            set_mode(&scene.source("d/file"), 0o400);
            if version == "22" {
                // A mover died after it had given its part the attributes: the part is still there.
                set_mode(&scene.target("d"), 0o700);
                let part = part_of(&scene.target("d/file"));
                fs::write(&part, b"left").unwrap();
                set_mode(&part, 0o400);
                set_mode(&scene.target("d"), 0o500);
            }
            let summary = scene.stage();
            assert_eq!(summary.failed, []);
            assert_eq!(summary.files, 1);
            let content = fs::read_to_string(scene.target("d/file")).unwrap();
            assert_eq!(content, version);
            let modes = ["d", "d/file"].map(|name| mode_of(&scene.target(name)));
            assert_eq!(modes, [0o500, 0o400]);
        }
        assert_eq!(scene.parts(), 0);
        set_mode(&scene.source("d"), 0o700);
        set_mode(&scene.target("d"), 0o700);
    });
}

#[test]
fn further_names_become_files_where_there_are_no_links() {
    let scene = Scene::new();
    scene.write("a", b"content");
    for name in ["b", "c"] {
        fs::hard_link(scene.source("a"), scene.source(name)).unwrap();
    }
    for errno in [Errno::PERM, Errno::XDEV, Errno::MLINK, Errno::NOTSUP] {
        let linkless = FaultyTree::without_links(errno);
        let summary = scene.stage_to(&linkless, false);
        assert_eq!(summary.failed, []);
        assert_eq!((summary.files, summary.hard_links), (3, 0), "{errno}");
        assert_eq!(summary.hard_links_not_kept, 2);
        let again = scene.stage_to(&linkless, false);
        assert_eq!((again.files, again.unchanged), (0, 3));
        for name in ["a", "b", "c"] {
            assert_eq!(fs::read(scene.target(name)).unwrap(), b"content");
            fs::remove_file(scene.target(name)).unwrap();
        }
        assert_eq!(scene.parts(), 0);
    }
}

#[test]
fn what_interrupted_moves_left_in_the_source_is_named_and_directories_are_no_parts() {
    let scene = Scene::new();
    let part = part_of(&scene.source("file"));
    fs::write(&part, b"left").unwrap();
    fs::create_dir(scene.source(".d.weir-part")).unwrap();
    scene.write(".d.weir-part/file", b"content");
    let summary = scene.stage();
    assert_eq!(summary.skipped, [part]);
    let content = fs::read(scene.target(".d.weir-part/file")).unwrap();
    assert_eq!(content, b"content");
}

#[test]
fn a_part_whose_name_another_mover_took_is_not_published() {
    let scene = Scene::new();
    scene.write("file", b"ours");
    let (source, target) = (scene.source("file"), scene.target("file"));
    let copy = copied(&source, &target);
    // As it does on a file system without locks, where each takes the other one for dead.
    fs::remove_file(part_of(&target)).unwrap();
    fs::write(part_of(&target), b"half of theirs").unwrap();
    let refused = copy.publish(false, &mut Vec::new()).unwrap_err();
    assert!(matches!(refused, MoveError::Busy(_)), "{refused}");
    assert!(!target.exists());
    assert_eq!(fs::read(part_of(&target)).unwrap(), b"half of theirs");
}

/// The content of the files in the test of deaths: old and new versions.
fn old_and_new(scene: &Scene) {
    for name in ["a", "b", "d/c"] {
        fs::create_dir_all(scene.target("d")).unwrap();
        fs::create_dir_all(scene.source("d")).unwrap();
        fs::write(scene.target(name), format!("old {name}")).unwrap();
        scene.write(name, format!("the new {name}").as_bytes());
    }
    scene.write("only-new", b"the new only-new");
    fs::hard_link(scene.source("a"), scene.source("linked")).unwrap();
    symlink("b", scene.target("latest")).unwrap();
    symlink("a", scene.source("latest")).unwrap();
}

/// Checks that each name is of a complete version.
fn check_whole(scene: &Scene, at: i64) {
    for name in ["a", "b", "d/c", "only-new", "linked"] {
        let of = if name == "linked" { "a" } else { name };
        match fs::read_to_string(scene.target(name)) {
            Ok(found) => assert!(
                found == format!("old {of}") || found == format!("the new {of}"),
                "{name} at {at}: {found:?}"
            ),
            Err(_) => assert!(
                ["only-new", "linked"].contains(&name),
                "{name} at {at} is gone"
            ),
        }
    }
    let latest = fs::read_link(scene.target("latest")).unwrap();
    if latest == Path::new("a") {
        let found = fs::read_to_string(scene.target("a")).unwrap();
        assert_eq!(
            found, "the new a",
            "at {at}: the link is changed after the file"
        );
    }
    assert!(
        [Path::new("a"), Path::new("b")].contains(&latest.as_path()),
        "at {at}"
    );
}

#[test]
fn a_death_at_any_change_leaves_whole_files_and_the_next_move_finishes() {
    let mut at = 0;
    loop {
        let scene = Scene::new();
        old_and_new(&scene);
        let dying = FaultyTree::dying_after(at);
        let summary = scene.stage_to(&dying, false);
        check_whole(&scene, at);
        let has_died = dying.has_failed();
        assert_eq!(
            has_died,
            !summary.is_complete(),
            "at {at}: {:?}",
            summary.failed
        );
        let again = scene.stage();
        assert_eq!(again.failed, [], "at {at}");
        assert_eq!(scene.parts(), 0, "at {at}");
        for name in ["a", "b", "d/c", "only-new"] {
            let found = fs::read_to_string(scene.target(name)).unwrap();
            assert_eq!(found, format!("the new {name}"), "at {at}");
        }
        assert_eq!(
            fs::read_link(scene.target("latest")).unwrap(),
            Path::new("a")
        );
        if !has_died {
            break;
        }
        at += 1;
    }
    assert!(at > 20, "{at} changes");
}

#[test]
fn an_error_of_one_change_is_told_and_the_other_files_are_moved() {
    for errno in [
        Errno::IO,
        Errno::NOSPC,
        Errno::DQUOT,
        Errno::STALE,
        Errno::ROFS,
    ] {
        let mut at = 0;
        loop {
            let scene = Scene::new();
            old_and_new(&scene);
            let faulty = FaultyTree::failing_once(at, errno);
            let summary = scene.stage_to(&faulty, true);
            check_whole(&scene, at);
            if !faulty.has_failed() {
                assert!(summary.is_complete());
                break;
            }
            let failed: Vec<&Path> = summary
                .failed
                .iter()
                .map(|failed| &*failed.target)
                .collect();
            let (a, latest) = (scene.target("a"), scene.target("latest"));
            match &failed[..] {
                [_] => {}
                // The link that leads to a file stays as it was if that is not there.
                [file, link] => assert_eq!((*file, *link), (&*a, &*latest), "at {at}"),
                more => panic!("at {at}: {more:?}"),
            }
            if failed.contains(&&*a) {
                assert_eq!(fs::read_link(latest).unwrap(), Path::new("b"), "at {at}");
            }
            // The other name of a file is not linked to an old version.
            if let Ok(linked) = fs::read_to_string(scene.target("linked")) {
                assert_eq!(linked, "the new a", "at {at}");
            }
            at += 1;
        }
    }
}

#[test]
fn sources_are_paired_as_by_rsync() {
    let scene = Scene::new();
    fs::create_dir(scene.source("d")).unwrap();
    scene.write("a1", b"");
    scene.write("a2", b"");
    scene.write(".a3", b"");
    let pairs = |sources: &[&str], target: &str| {
        let sources: Vec<PathBuf> = sources.iter().map(|name| scene.source(name)).collect();
        let paired = pair(
            &DirectoryTree,
            &sources,
            &DirectoryTree,
            &scene.target(target),
        );
        paired.map(|pairs| {
            let shown = pairs.iter().map(|pair| {
                let below = |path: &Path| {
                    let path = path.strip_prefix(scene.dir.path()).unwrap();
                    path.to_str().unwrap().to_owned()
                };
                format!("{} {}", below(&pair.source), below(&pair.target))
            });
            shown.collect::<Vec<_>>()
        })
    };
    assert_eq!(pairs(&["a1"], "x").unwrap(), ["source/a1 target/x"]);
    assert_eq!(pairs(&["a1"], "").unwrap(), ["source/a1 target/a1"]);
    assert_eq!(pairs(&["a1"], "new/").unwrap(), ["source/a1 target/new/a1"]);
    assert_eq!(pairs(&["d"], "").unwrap(), ["source/d target/d"]);
    assert_eq!(pairs(&["d"], "x").unwrap(), ["source/d target/x/d"]);
    assert_eq!(pairs(&["d/"], "x").unwrap(), ["source/d target/x"]);
    assert_eq!(pairs(&["d/."], "x").unwrap(), ["source/d target/x"]);
    let many = pairs(&["a*"], "").unwrap();
    assert_eq!(many, ["source/a1 target/a1", "source/a2 target/a2"]);
    let refused = |sources: &[&str], target| pairs(sources, target).unwrap_err();
    assert!(matches!(
        refused(&["none"], ""),
        SourcesRefused::NoSource(_)
    ));
    assert!(matches!(refused(&["n*"], ""), SourcesRefused::NoMatch(_)));
    assert!(matches!(
        refused(&["a[1"], ""),
        SourcesRefused::Pattern { .. }
    ));
    assert!(matches!(
        refused(&["a*"], "x"),
        SourcesRefused::NotDirectory(_)
    ));
    let same = refused(&["a1", "d/../a1"], "");
    assert!(matches!(same, SourcesRefused::SameTarget { .. }), "{same}");
}

/// Names are bytes, and a summary is text.
#[test]
fn a_name_that_is_no_text_is_moved_and_reported() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    let scene = Scene::new();
    let name = |start: &[u8]| PathBuf::from(OsStr::from_bytes(&[start, b"\xff"].concat()));
    fs::write(scene.source("").join(name(b"file")), b"content").unwrap();
    let fifo = scene.source("").join(name(b"fifo"));
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let summary = scene.stage();
    assert!(summary.is_complete(), "{:?}", summary.failed);
    let moved = fs::read(scene.target("").join(name(b"file"))).unwrap();
    assert_eq!(moved, b"content");
    let json = serde_json::to_string(&summary).unwrap();
    assert!(json.contains("fifo\u{fffd}"), "{json}");
}

#[test]
fn extended_attributes_are_kept() {
    let scene = Scene::new();
    scene.write("file", b"content");
    let flags = XattrFlags::empty();
    let values = [("user.empty", &b""[..]), ("user.long", &[7; 300])];
    for (name, value) in values {
        if setxattr(scene.source("file"), name, value, flags) == Err(Errno::NOTSUP) {
            let lacks = "a file system with those of users";
            return weir_cluster::skip_for_kernel("extended attributes", lacks);
        }
    }
    assert!(scene.stage_to(&DirectoryTree, false).is_complete());
    for (name, value) in values {
        let mut kept = [0; 400];
        let length = getxattr(scene.target("file"), name, &mut kept);
        assert_eq!(length.map(|length| &kept[..length]), Ok(value), "{name}");
    }
    // Those of others stay, also if the file is there already.
    setxattr(scene.target("file"), "user.sum", b"1", flags).unwrap();
    setxattr(scene.source("file"), "user.empty", b"2", flags).unwrap();
    let again = scene.stage_to(&DirectoryTree, false);
    assert_eq!((again.files, again.unchanged), (0, 1));
    for (name, value) in [("user.sum", b"1"), ("user.empty", b"2")] {
        let mut kept = [0; 9];
        let length = getxattr(scene.target("file"), name, &mut kept);
        assert_eq!(
            length.map(|length| &kept[..length]),
            Ok(&value[..]),
            "{name}"
        );
    }
}

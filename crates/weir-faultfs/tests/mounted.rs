//! The mounted file system: it is as the directory below, and faults come as they were ordered.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{symlink, FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, UNIX_EPOCH};

use rustix::fs::{FallocateFlags, FlockOperation, RenameFlags, SeekFrom, XattrFlags, CWD};
use rustix::io::Errno;
use weir_cluster::guard::{wait_until, HANG};
use weir_faultfs::{why_no_mount, FaultEffect, FaultFs, FaultRule, FsOperation, MAX_WRITE_BYTES};

/// A mount, and the directory below it.
struct Scene {
    fs: FaultFs,
    dir: tempfile::TempDir,
}

impl Scene {
    /// `None`: this machine allows no mount, which is said.
    fn new(what: &str) -> Option<Scene> {
        if let Some(why) = why_no_mount() {
            weir_cluster::skip_for_kernel(what, &why);
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        let (below, mount) = (dir.path().join("below"), dir.path().join("mount"));
        fs::create_dir(&below).unwrap();
        fs::create_dir(&mount).unwrap();
        let fs = FaultFs::mount(&below, &mount).unwrap();
        Some(Scene { fs, dir })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.fs.path().join(name)
    }

    fn below(&self, name: &str) -> PathBuf {
        self.dir.path().join("below").join(name)
    }

    /// Each request of an operation fails from now on.
    fn fail(&self, operation: FsOperation, errno: Errno) {
        self.fs
            .inject(FaultRule::new(&[operation], FaultEffect::Fail(errno)));
    }
}

fn errno(error: &io::Error) -> Option<Errno> {
    error.raw_os_error().map(Errno::from_raw_os_error)
}

fn is_mounted(at: &Path) -> bool {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    mounts.contains(at.to_str().unwrap())
}

#[test]
fn all_is_as_below() {
    let Some(scene) = Scene::new("a file system for tests") else {
        return;
    };
    fs::create_dir_all(scene.path("d/e")).unwrap();
    fs::write(scene.path("d/file"), b"content").unwrap();
    assert_eq!(fs::read(scene.below("d/file")).unwrap(), b"content");
    let mut options = OpenOptions::new();
    let mut file = options.append(true).open(scene.path("d/file")).unwrap();
    file.write_all(b" and more").unwrap();
    file.sync_all().unwrap();
    assert_eq!(fs::read(scene.path("d/file")).unwrap(), b"content and more");

    symlink("d/file", scene.path("link")).unwrap();
    assert_eq!(
        fs::read_link(scene.path("link")).unwrap(),
        Path::new("d/file")
    );
    fs::hard_link(scene.path("d/file"), scene.path("again")).unwrap();
    let metadata = |name: &str| fs::metadata(scene.path(name)).unwrap();
    assert_eq!(metadata("again").ino(), metadata("d/file").ino());
    assert_eq!(metadata("again").nlink(), 2);
    assert_eq!(metadata("link").len(), 16);

    let time = UNIX_EPOCH + Duration::new(1_000_000_000, 123_456_789);
    options
        .open(scene.path("again"))
        .unwrap()
        .set_modified(time)
        .unwrap();
    fs::set_permissions(scene.path("again"), PermissionsExt::from_mode(0o4751)).unwrap();
    assert_eq!(metadata("again").modified().unwrap(), time);
    assert_eq!(metadata("again").mode() & 0o7777, 0o4751);
    let (name, value) = ("user.a", b"value".as_slice());
    rustix::fs::setxattr(scene.path("again"), name, value, XattrFlags::CREATE).unwrap();
    let again = rustix::fs::setxattr(scene.path("again"), name, value, XattrFlags::CREATE);
    assert_eq!(again, Err(Errno::EXIST));
    let mut read = [0; 5];
    rustix::fs::getxattr(scene.path("again"), name, &mut read).unwrap();
    assert_eq!(read, *value);
    assert_eq!(
        rustix::fs::getxattr(scene.path("again"), name, &mut [0; 2]),
        Err(Errno::RANGE)
    );
    rustix::fs::removexattr(scene.path("again"), name).unwrap();
    let names = rustix::fs::listxattr(scene.path("again"), &mut [0; 100]).unwrap();
    assert_eq!(names, 0);

    let rename = |old, new, flags| {
        rustix::fs::renameat_with(CWD, scene.path(old), CWD, scene.path(new), flags)
    };
    assert_eq!(
        rename("again", "link", RenameFlags::NOREPLACE),
        Err(Errno::EXIST)
    );
    rename("again", "d/e/again", RenameFlags::NOREPLACE).unwrap();
    rename("d/e", "d/f", RenameFlags::empty()).unwrap();
    let mut names: Vec<_> = fs::read_dir(scene.path("d"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    names.sort();
    assert_eq!(names, ["f", "file"]);
    File::open(scene.path("d")).unwrap().sync_all().unwrap();
    fs::remove_file(scene.path("d/f/again")).unwrap();
    fs::remove_dir(scene.path("d/f")).unwrap();
    assert!(!scene.below("d/f").exists());
    let space = rustix::fs::statvfs(scene.path("d")).unwrap();
    assert_eq!(
        space.f_blocks,
        rustix::fs::statvfs(scene.below("d")).unwrap().f_blocks
    );
}

#[test]
fn holes_locks_and_what_has_no_name_are_as_below() {
    let Some(scene) = Scene::new("a file system for tests") else {
        return;
    };
    let file = File::create_new(scene.path("sparse")).unwrap();
    file.set_len(8 << 20).unwrap();
    file.write_all_at(b"x", 4 << 20).unwrap();
    let data = rustix::fs::seek(&file, SeekFrom::Data(0)).unwrap();
    assert_eq!(data, 4 << 20);
    assert!(rustix::fs::seek(&file, SeekFrom::Hole(data)).unwrap() > data);
    assert_eq!(
        rustix::fs::seek(&file, SeekFrom::Data(7 << 20)),
        Err(Errno::NXIO)
    );
    rustix::fs::fallocate(&file, FallocateFlags::KEEP_SIZE, 0, 1 << 20).unwrap();
    assert!(file.metadata().unwrap().blocks() >= 2048);

    let other = File::open(scene.path("sparse")).unwrap();
    rustix::fs::flock(&file, FlockOperation::LockExclusive).unwrap();
    let locked = rustix::fs::flock(&other, FlockOperation::NonBlockingLockExclusive);
    assert_eq!(locked, Err(Errno::WOULDBLOCK));

    fs::remove_file(scene.path("sparse")).unwrap();
    assert_eq!(file.metadata().unwrap().nlink(), 0);
    let mut byte = [0];
    other.read_exact_at(&mut byte, 4 << 20).unwrap();
    assert_eq!(&byte, b"x");
}

#[test]
fn requests_are_recorded_in_order_and_whole() {
    let Some(scene) = Scene::new("a file system for tests") else {
        return;
    };
    let file = File::create(scene.path("file")).unwrap();
    let bytes = vec![7; 5 << 20];
    file.write_all_at(&bytes, 0).unwrap();
    let writes = scene.fs.requests_of(FsOperation::Write);
    let ranges: Vec<_> = writes
        .iter()
        .map(|write| (write.offset, write.bytes))
        .collect();
    let whole = u64::from(MAX_WRITE_BYTES);
    let expected: Vec<_> = (0..5).map(|number| (number * whole, whole)).collect();
    assert_eq!(ranges, expected);
    assert!(writes.iter().all(|write| write.path == Path::new("file")));

    scene.fs.forget_requests();
    fs::rename(scene.path("file"), scene.path("other")).unwrap();
    file.sync_all().unwrap();
    let found = fs::metadata(scene.path("file")).unwrap_err();
    assert_eq!(found.kind(), io::ErrorKind::NotFound);
    let renames = scene.fs.requests_of(FsOperation::Rename);
    assert_eq!(renames.len(), 1);
    assert_eq!(renames[0].new_path.as_deref(), Some(Path::new("other")));
    assert_eq!(
        scene.fs.requests_of(FsOperation::Sync)[0].path,
        Path::new("other")
    );
    let looks = scene.fs.requests_of(FsOperation::LookUp);
    assert_eq!(looks.last().unwrap().reply, Some(Err(Errno::NOENT)));
}

#[test]
fn each_error_comes_where_it_was_ordered() {
    let Some(scene) = Scene::new("a file system for tests") else {
        return;
    };
    let errnos = [
        Errno::IO,
        Errno::NOSPC,
        Errno::DQUOT,
        Errno::STALE,
        Errno::ACCESS,
        Errno::ROFS,
    ];
    for wanted in errnos {
        let name = format!("of {}", wanted.raw_os_error());
        let mut file = File::create(scene.path(&name)).unwrap();
        scene.fail(FsOperation::Write, wanted);
        assert_eq!(errno(&file.write_all(b"x").unwrap_err()), Some(wanted));
        scene.fs.lift_all();
        file.write_all(b"x").unwrap();
        scene.fail(FsOperation::Sync, wanted);
        assert_eq!(errno(&file.sync_all().unwrap_err()), Some(wanted));
        scene.fail(FsOperation::MakeDirectory, wanted);
        let made = fs::create_dir(scene.path("dir")).unwrap_err();
        assert_eq!(errno(&made), Some(wanted));
        scene.fail(FsOperation::Rename, wanted);
        let renamed = fs::rename(scene.path(&name), scene.path("new")).unwrap_err();
        assert_eq!(errno(&renamed), Some(wanted));
        scene.fs.lift_all();
        assert_eq!(fs::read(scene.below(&name)).unwrap(), b"x");
        assert!(!scene.below("new").exists() && !scene.below("dir").exists());
    }
}

#[test]
fn a_request_whose_reply_is_lost_is_done() {
    let Some(scene) = Scene::new("a file system for tests") else {
        return;
    };
    fs::write(scene.path("old"), b"x").unwrap();
    let lost = FaultEffect::FailDone(Errno::IO);
    scene
        .fs
        .inject(FaultRule::new(&[FsOperation::Rename], lost).times(1));
    let renamed = fs::rename(scene.path("old"), scene.path("new")).unwrap_err();
    assert_eq!(errno(&renamed), Some(Errno::IO));
    assert_eq!(fs::read(scene.path("new")).unwrap(), b"x");
    fs::rename(scene.path("new"), scene.path("old")).unwrap();
}

#[test]
fn a_request_that_hangs_holds_up_no_other_and_comes_back() {
    let Some(scene) = Scene::new("a file system for tests") else {
        return;
    };
    let hang = FaultRule::new(&[FsOperation::Write], FaultEffect::Hang).at("hung");
    let rule = scene.fs.inject(hang);
    let is_back = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let write = scope.spawn(|| {
            let written = fs::write(scene.path("hung"), b"x");
            is_back.store(true, Ordering::Relaxed);
            written
        });
        assert!(scene.fs.wait_for_hanging(1, HANG));
        fs::write(scene.path("other"), b"y").unwrap();
        assert_eq!(fs::read(scene.path("other")).unwrap(), b"y");
        assert!(!is_back.load(Ordering::Relaxed));
        assert_eq!(fs::read(scene.below("hung")).unwrap(), b"");
        scene.fs.lift(rule);
        write.join().unwrap().unwrap();
    });
    assert_eq!(scene.fs.hanging(), 0);
    assert_eq!(fs::read(scene.below("hung")).unwrap(), b"x");
}

#[test]
fn dropped_it_lets_requests_go_and_is_unmounted_though_a_file_is_open() {
    let Some(Scene { fs, dir }) = Scene::new("a file system for tests") else {
        return;
    };
    let path = fs.path().to_owned();
    fs.inject(FaultRule::new(&[FsOperation::Write], FaultEffect::Hang));
    let mut file = File::create(path.join("file")).unwrap();
    let write = std::thread::spawn(move || file.write_all(b"x"));
    assert!(fs.wait_for_hanging(1, HANG));
    assert!(is_mounted(&path));
    drop(fs);
    assert!(!is_mounted(&path));
    assert_eq!(errno(&write.join().unwrap().unwrap_err()), Some(Errno::IO));
    assert_eq!(fs::read(dir.path().join("below/file")).unwrap(), b"");
}

#[test]
fn writes_keep_to_the_rate_and_requests_take_their_time() {
    let Some(scene) = Scene::new("a file system for tests") else {
        return;
    };
    // Four writers together: only a lower bound, since the machine may be slow.
    scene.fs.set_write_rate(Some(16 << 20));
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for name in ["a", "b", "c", "d"] {
            let path = scene.path(name);
            scope.spawn(move || fs::write(path, vec![1; 2 << 20]).unwrap());
        }
    });
    assert!(begun.elapsed() >= Duration::from_millis(500));
    scene.fs.set_write_rate(None);
    scene.fs.set_latency(Duration::from_millis(50));
    let begun = Instant::now();
    fs::metadata(scene.path("a")).unwrap();
    assert!(begun.elapsed() >= Duration::from_millis(50));
}

/// A process that does not outlive the test.
struct KilledProcess(Child);

impl Drop for KilledProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
    }
}

#[test]
fn a_process_that_is_killed_leaves_no_request_waiting() {
    const CHILD: &str = "WEIR_FAULTFS_CHILD";
    if let Some(dir) = std::env::var_os(CHILD) {
        // The process that is killed: a thread of it waits for a request that hangs.
        let dir = PathBuf::from(dir);
        let fs = FaultFs::mount(&dir.join("below"), &dir.join("mount")).unwrap();
        fs.inject(FaultRule::new(&[FsOperation::Write], FaultEffect::Hang));
        let path = fs.path().join("file");
        std::thread::spawn(move || std::fs::write(path, b"x"));
        assert!(fs.wait_for_hanging(1, HANG));
        std::fs::write(dir.join("hangs"), b"").unwrap();
        loop {
            std::thread::park();
        }
    }
    let Some(Scene { fs, dir }) = Scene::new("a killed process of a file system") else {
        return;
    };
    drop(fs);
    let test = "a_process_that_is_killed_leaves_no_request_waiting";
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test])
        .env(CHILD, dir.path())
        .stdout(Stdio::null())
        .spawn();
    let mut child = KilledProcess(child.unwrap());
    let hangs = dir.path().join("hangs");
    wait_until("it hangs", || {
        hangs.exists() || child.0.try_wait().unwrap().is_some()
    });
    assert!(hangs.exists());
    child.0.kill().unwrap();
    wait_until("it is gone", || child.0.try_wait().unwrap().is_some());
    let mount = dir.path().join("mount");
    let found = fs::metadata(&mount).unwrap_err();
    assert_eq!(errno(&found), Some(Errno::NOTCONN));
    nix::mount::umount2(&mount, nix::mount::MntFlags::MNT_DETACH).unwrap();
}

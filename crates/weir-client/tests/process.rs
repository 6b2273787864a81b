//! A process, its forked children and a real server: what calls do, end to end.
//!
//! The state of a process is one per process, so all scenes are played in one test, one
//! after the other, each in a directory of its own. Children are forked; a child says by
//! its exit code whether it found what it should.

mod common;

use std::io::{IoSlice, IoSliceMut};

use common::Served;
use rustix::io::Errno;
use weir_client::process::{process, Mapping, Process};
use weir_client::types::{LockRange, Time, UTIME_OMIT};

const CWD: i32 = -100;
const O_RDONLY: i32 = 0;
const O_WRONLY: i32 = 1;
const O_RDWR: i32 = 2;
const O_CREAT: i32 = 0o100;
const O_EXCL: i32 = 0o200;
const O_TRUNC: i32 = 0o1000;
const O_APPEND: i32 = 0o2000;
const O_DIRECTORY: i32 = libc::O_DIRECTORY;
const O_NOFOLLOW: i32 = libc::O_NOFOLLOW;

fn p() -> &'static Process {
    process()
}

fn open(path: &str, flags: i32) -> Result<i32, Errno> {
    p().opening
        .openat(CWD, path.as_bytes(), flags, 0o644)
        .expect("weir's")
}

fn create(path: &str) -> i32 {
    open(path, O_RDWR | O_CREAT | O_EXCL).unwrap()
}

fn close(fd: i32) {
    p().descriptors.close(fd).unwrap().unwrap();
}

fn write(fd: i32, bytes: &[u8]) {
    assert_eq!(p().io.write(fd, bytes), Some(Ok(bytes.len())));
}

fn read_all(path: &str) -> Vec<u8> {
    let fd = open(path, O_RDONLY).unwrap();
    let mut all = Vec::new();
    let mut buffer = [0; 1000];
    loop {
        match p().io.read(fd, &mut buffer).unwrap().unwrap() {
            0 => break,
            n => all.extend_from_slice(&buffer[..n]),
        }
    }
    close(fd);
    all
}

fn size(path: &str) -> u64 {
    p().attributes
        .fstatat(CWD, path.as_bytes(), 0)
        .unwrap()
        .unwrap()
        .size
}

fn mkdir(path: &str) {
    p().names
        .mkdirat(CWD, path.as_bytes(), 0o755)
        .unwrap()
        .unwrap();
}

fn list(path: &str, buffer: usize) -> Vec<String> {
    let fd = open(path, O_RDONLY | O_DIRECTORY).unwrap();
    let mut out = vec![0; buffer];
    let mut names = Vec::new();
    loop {
        let n = p().listing.getdents64(fd, &mut out).unwrap().unwrap();
        if n == 0 {
            break;
        }
        let mut at = 0;
        while at < n {
            let length = usize::from(u16::from_ne_bytes([out[at + 16], out[at + 17]]));
            let name = &out[at + 19..at + length];
            let end = name.iter().position(|b| *b == 0).unwrap();
            names.push(String::from_utf8(name[..end].to_vec()).unwrap());
            at += length;
        }
    }
    close(fd);
    names
}

/// Forks; the child runs `work` and ends with 0 if that did not panic.
fn in_child(work: impl FnOnce()) -> libc::pid_t {
    p().forks.before_fork();
    // SAFETY: the child runs only `work` and leaves by `_exit`; glibc makes its
    // allocator usable in it.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        p().forks.after_fork_child();
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        // SAFETY: ends this process at once.
        unsafe { libc::_exit(i32::from(done.is_err())) }
    }
    p().forks.after_fork_parent();
    pid
}

fn join(pid: libc::pid_t) {
    let mut status = -1;
    // SAFETY: waits for a child of ours; `status` is valid.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    assert_eq!(status, 0, "the child's checks failed");
}

fn paths_of_others_are_the_kernels() {
    assert_eq!(p().opening.openat(CWD, b"/etc/passwd", O_RDONLY, 0), None);
    assert_eq!(p().opening.openat(CWD, b"/weirdo", O_RDONLY, 0), None);
    assert_eq!(p().attributes.fstatat(CWD, b"Cargo.toml", 0), None);
    assert_eq!(p().descriptors.close(0), None);
    assert_eq!(open("/weir/none", O_RDONLY), Err(Errno::NOENT));
    let outside = open("/weir/../etc/passwd", O_RDONLY).unwrap();
    assert!(!p().descriptors.is_ours(outside));
    assert!(p().descriptors.close(outside).is_none());
    // SAFETY: a descriptor of this test's own.
    unsafe { libc::close(outside) };
}

fn what_was_written_is_read() {
    let fd = create("/weir/a");
    write(fd, b"hello ");
    write(fd, b"world");
    assert_eq!(size("/weir/a"), 11);
    assert_eq!(p().io.lseek(fd, -5, 2), Some(Ok(6)));
    let mut buffer = [0; 16];
    assert_eq!(p().io.read(fd, &mut buffer), Some(Ok(5)));
    assert_eq!(&buffer[..5], b"world");
    assert_eq!(p().io.pwrite(fd, b"J", 0), Some(Ok(1)));
    assert_eq!(p().io.pread(fd, &mut buffer, 0), Some(Ok(11)));
    assert_eq!(&buffer[..11], b"Jello world");
    assert_eq!(p().io.pread(fd, &mut buffer, -1), Some(Err(Errno::INVAL)));
    assert_eq!(p().io.pwrite(fd, b"", 5), Some(Ok(0)));
    close(fd);
    assert_eq!(read_all("/weir/a"), b"Jello world");
    assert_eq!(read_all("//weir/./a"), b"Jello world");
    let fd = open("/weir/a", O_WRONLY | O_TRUNC).unwrap();
    assert_eq!(size("/weir/a"), 0);
    assert_eq!(p().io.read(fd, &mut buffer), Some(Err(Errno::BADF)));
    close(fd);
    let fd = open("/weir/a", O_RDONLY).unwrap();
    assert_eq!(p().io.write(fd, b"x"), Some(Err(Errno::BADF)));
    close(fd);
    assert_eq!(
        p().io.write(fd, b"x"),
        None,
        "closed: the kernel says EBADF"
    );
}

fn open_flags() {
    mkdir("/weir/of");
    close(create("/weir/of/f"));
    let again = O_RDWR | O_CREAT | O_EXCL;
    assert_eq!(open("/weir/of/f", again), Err(Errno::EXIST));
    assert_eq!(open("/weir/of", O_WRONLY), Err(Errno::ISDIR));
    assert_eq!(open("/weir/of", O_RDWR | O_CREAT), Err(Errno::ISDIR));
    assert_eq!(open("/weir/of/f", O_DIRECTORY), Err(Errno::NOTDIR));
    assert_eq!(open("/weir/of/f/", O_RDONLY), Err(Errno::NOTDIR));
    assert_eq!(open("/weir/of/x/y", again), Err(Errno::NOENT));
    p().names
        .symlinkat(b"f", CWD, b"/weir/of/l")
        .unwrap()
        .unwrap();
    assert_eq!(open("/weir/of/l", O_NOFOLLOW), Err(Errno::LOOP));
    close(open("/weir/of/l", O_RDONLY).unwrap());
    assert_eq!(open("/weir/of/l", again), Err(Errno::EXIST));
    p().names
        .symlinkat(b"new", CWD, b"/weir/of/d")
        .unwrap()
        .unwrap();
    close(open("/weir/of/d", O_RDWR | O_CREAT).unwrap());
    assert_eq!(size("/weir/of/new"), 0);
    assert_eq!(
        open("/weir/of", libc::O_TMPFILE | O_RDONLY),
        Err(Errno::INVAL)
    );
    close(open("/weir/of", libc::O_TMPFILE | O_RDWR).unwrap());
    let fd = open("/weir/of", O_RDONLY).unwrap();
    let relative = p().opening.openat(fd, b"f", O_RDONLY, 0).unwrap().unwrap();
    assert_eq!(p().io.read(fd, &mut [0; 4]), Some(Err(Errno::ISDIR)));
    close(relative);
    close(fd);
}

fn descriptors_share_their_offset() {
    let fd = create("/weir/dup");
    let copy = p().descriptors.dup(fd).unwrap().unwrap();
    write(fd, b"ab");
    write(copy, b"cd");
    assert_eq!(p().io.lseek(fd, 0, 1), Some(Ok(4)));
    // SAFETY: makes a descriptor of the kernel's to be replaced.
    let other = unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_RDONLY) };
    assert_eq!(p().descriptors.dup2(fd, other), Some(Ok(other)));
    assert!(p().descriptors.is_ours(other));
    close(fd);
    write(other, b"ef");
    // SAFETY: a C string; the descriptor is the kernel's.
    let null = unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_RDONLY) };
    assert_eq!(p().descriptors.dup2(null, other), Some(Ok(other)));
    assert!(!p().descriptors.is_ours(other));
    assert_eq!(p().descriptors.dup3(copy, copy, 0), Some(Err(Errno::INVAL)));
    let high = p()
        .descriptors
        .fcntl(copy, libc::F_DUPFD_CLOEXEC, 200)
        .unwrap()
        .unwrap();
    assert!(high >= 200);
    assert_eq!(p().descriptors.fcntl(high, libc::F_GETFD, 0), Some(Ok(1)));
    assert_eq!(
        p().descriptors
            .fcntl(copy, libc::F_SETFL, i64::from(O_APPEND)),
        Some(Ok(0))
    );
    let flags = p()
        .descriptors
        .fcntl(high, libc::F_GETFL, 0)
        .unwrap()
        .unwrap();
    assert_eq!(flags & (O_APPEND | 3), O_APPEND | O_RDWR);
    close(high);
    close(copy);
    assert_eq!(read_all("/weir/dup"), b"abcdef");
}

fn vectors_and_appends() {
    let fd = open("/weir/v", O_RDWR | O_CREAT | O_APPEND).unwrap();
    let pieces = [
        IoSlice::new(b"one"),
        IoSlice::new(b""),
        IoSlice::new(b"two"),
    ];
    assert_eq!(p().io.writev(fd, &pieces), Some(Ok(6)));
    assert_eq!(p().io.pwrite(fd, b"!", 0), Some(Ok(1)), "O_APPEND wins");
    let (mut a, mut b) = ([0; 4], [0; 10]);
    let mut into = [IoSliceMut::new(&mut a), IoSliceMut::new(&mut b)];
    assert_eq!(p().io.preadv(fd, &mut into, 1), Some(Ok(6)));
    assert_eq!((&a[..], &b[..2]), (&b"netw"[..], &b"o!"[..]));
    close(fd);
    let fd = open("/weir/v", O_RDWR).unwrap();
    assert_eq!(p().io.pwritev(fd, &pieces, 100), Some(Ok(6)));
    assert_eq!(size("/weir/v"), 106);
    assert_eq!(
        p().io.pwritev2(fd, &pieces, -1, 1 << 20),
        Some(Err(Errno::OPNOTSUPP))
    );
    close(fd);
}

fn sizes_and_holes() {
    let fd = create("/weir/s");
    assert_eq!(p().io.ftruncate(fd, 10 << 20), Some(Ok(())));
    assert_eq!(p().io.pwrite(fd, &[7; 4096], 4 << 20), Some(Ok(4096)));
    assert_eq!(size("/weir/s"), 10 << 20);
    assert_eq!(p().io.lseek(fd, 0, libc::SEEK_DATA), Some(Ok(4 << 20)));
    assert_eq!(
        p().io.lseek(fd, 4 << 20, libc::SEEK_HOLE),
        Some(Ok((4 << 20) + 4096))
    );
    assert_eq!(
        p().io.lseek(fd, 5 << 20, libc::SEEK_DATA),
        Some(Err(Errno::NXIO))
    );
    let blocks = p().attributes.fstat(fd).unwrap().unwrap().blocks;
    assert_eq!(blocks, 8);
    assert_eq!(p().io.fallocate(fd, 3, 4 << 20, 1024), Some(Ok(())));
    let mut byte = [9];
    assert_eq!(p().io.pread(fd, &mut byte, (4 << 20) + 1023), Some(Ok(1)));
    assert_eq!(byte, [0]);
    assert_eq!(p().io.pread(fd, &mut byte, (4 << 20) + 1024), Some(Ok(1)));
    assert_eq!(byte, [7]);
    assert_eq!(p().opening.truncate(b"/weir/s", 5), Some(Ok(())));
    assert_eq!(p().attributes.fstat(fd).unwrap().unwrap().size, 5);
    assert_eq!(p().io.pread(fd, &mut byte, 5), Some(Ok(0)));
    assert_eq!(p().io.ftruncate(fd, -1), Some(Err(Errno::INVAL)));
    assert_eq!(p().io.fsync(fd), Some(Ok(())));
    close(fd);
}

fn names_and_links() {
    mkdir("/weir/n");
    mkdir("/weir/n/d");
    let fd = create("/weir/n/f");
    write(fd, b"kept");
    assert_eq!(
        p().names.linkat(CWD, b"/weir/n/f", CWD, b"/weir/n/g", 0),
        Some(Ok(()))
    );
    assert_eq!(p().attributes.fstat(fd).unwrap().unwrap().nlink, 2);
    assert_eq!(
        p().names.unlinkat(CWD, b"/weir/n", libc::AT_REMOVEDIR),
        Some(Err(Errno::NOTEMPTY))
    );
    assert_eq!(
        p().names.unlinkat(CWD, b"/weir/n/d", 0),
        Some(Err(Errno::ISDIR))
    );
    let rename = |a: &str, b: &str, flags| {
        p().names
            .renameat2(CWD, a.as_bytes(), CWD, b.as_bytes(), flags)
    };
    assert_eq!(rename("/weir/n/g", "/weir/n/d/h", 0), Some(Ok(())));
    assert_eq!(
        rename("/weir/n/f", "/weir/n/d/h", 1),
        Some(Err(Errno::EXIST))
    );
    assert_eq!(rename("/weir/n/f", "/tmp/f", 0), Some(Err(Errno::XDEV)));
    assert_eq!(rename("/weir/n", "/weir/n/d/x", 0), Some(Err(Errno::INVAL)));
    assert_eq!(p().names.unlinkat(CWD, b"/weir/n/f", 0), Some(Ok(())));
    assert_eq!(p().names.unlinkat(CWD, b"/weir/n/d/h", 0), Some(Ok(())));
    // Without a name it lives on, open.
    assert_eq!(p().attributes.fstat(fd).unwrap().unwrap().nlink, 0);
    let mut four = [0; 4];
    assert_eq!(p().io.pread(fd, &mut four, 0), Some(Ok(4)));
    assert_eq!(&four, b"kept");
    close(fd);
    p().names
        .symlinkat(b"d/../d", CWD, b"/weir/n/l")
        .unwrap()
        .unwrap();
    let mut target = [0; 64];
    assert_eq!(
        p().paths.readlinkat(CWD, b"/weir/n/l", &mut target),
        Some(Ok(6))
    );
    assert_eq!(
        p().paths.readlinkat(CWD, b"/weir/n/d", &mut target),
        Some(Err(Errno::INVAL))
    );
    let n = p()
        .paths
        .realpath(b"/weir/n/l/.", &mut target)
        .unwrap()
        .unwrap();
    assert_eq!(&target[..n], b"/weir/n/d");
    assert_eq!(
        p().names.unlinkat(CWD, b"/weir/n/d", libc::AT_REMOVEDIR),
        Some(Ok(()))
    );
}

fn listings_are_whole_in_buffers_of_any_size() {
    mkdir("/weir/many");
    let mut expected: Vec<String> = (0..1500).map(|i| format!("file-{i}")).collect();
    for name in &expected {
        close(create(&format!("/weir/many/{name}")));
    }
    expected.extend([".".into(), "..".into()]);
    expected.sort();
    for buffer in [64, 300, 4096, 1 << 20] {
        let mut names = list("/weir/many", buffer);
        names.sort();
        assert_eq!(names, expected, "buffer of {buffer}");
    }
    let fd = open("/weir/many", O_RDONLY).unwrap();
    assert_eq!(
        p().listing.getdents64(fd, &mut [0; 8]),
        Some(Err(Errno::INVAL))
    );
    close(fd);
}

fn attributes_change() {
    let fd = create("/weir/at");
    assert_eq!(p().attributes.fchmod(fd, 0o4751), Some(Ok(())));
    let times = [Time { sec: 5, nsec: 6 }, Time { sec: -7, nsec: 8 }];
    assert_eq!(p().attributes.futimens(fd, Some(times)), Some(Ok(())));
    let stat = p().attributes.fstat(fd).unwrap().unwrap();
    assert_eq!(
        (stat.mode, stat.atime, stat.mtime),
        (0o104_751, times[0], times[1])
    );
    let omit = Time {
        sec: 0,
        nsec: UTIME_OMIT,
    };
    let only = [Time { sec: 9, nsec: 0 }, omit];
    assert_eq!(
        p().attributes.utimensat(CWD, b"/weir/at", Some(only), 0),
        Some(Ok(()))
    );
    let stat = p().attributes.fstat(fd).unwrap().unwrap();
    assert_eq!((stat.atime, stat.mtime), (only[0], times[1]));
    write(fd, b"x");
    let later = p().attributes.fstat(fd).unwrap().unwrap();
    assert!(later.mtime.sec > 1_000_000_000, "a write sets the time");
    assert_eq!(
        p().attributes.faccessat(CWD, b"/weir/at", 0, 0),
        Some(Ok(()))
    );
    assert_eq!(
        p().attributes
            .getxattr(b"/weir/at", true, b"trusted.x", &mut []),
        Some(Err(Errno::OPNOTSUPP))
    );
    assert_eq!(p().attributes.fstatfs(fd).unwrap().unwrap().namelen, 255);
    close(fd);
}

fn the_current_directory_is_kept() {
    mkdir("/weir/cwd");
    let before = std::env::current_dir().unwrap();
    assert_eq!(p().current_dir.chdir(b"/weir/cwd"), Some(Ok(())));
    close(create_at("here"));
    assert_eq!(p().current_dir.getcwd(), Some(Ok(b"/weir/cwd".to_vec())));
    assert_eq!(size("here"), 0);
    assert_eq!(size("../cwd/here"), 0);
    // A child has it too.
    join(in_child(|| {
        assert_eq!(size("here"), 0);
        assert_eq!(p().current_dir.chdir(b".."), Some(Ok(())));
        assert_eq!(size("cwd/here"), 0);
    }));
    assert_eq!(size("here"), 0);
    let back = before.to_str().unwrap();
    assert_eq!(p().current_dir.chdir(back.as_bytes()), Some(Ok(())));
    assert_eq!(p().current_dir.getcwd(), None);
    assert_eq!(std::env::current_dir().unwrap(), before);
}

fn create_at(path: &str) -> i32 {
    p().opening
        .openat(CWD, path.as_bytes(), O_RDWR | O_CREAT, 0o600)
        .unwrap()
        .unwrap()
}

fn children_share_descriptions_and_see_writes() {
    let fd = create("/weir/fork");
    write(fd, b"parent.");
    join(in_child(|| {
        write(fd, b"child.");
        assert_eq!(p().io.lseek(fd, 0, 1), Some(Ok(13)));
        let mut seen = [0; 13];
        assert_eq!(p().io.pread(fd, &mut seen, 0), Some(Ok(13)));
        assert_eq!(&seen, b"parent.child.");
        close(create("/weir/by-child"));
    }));
    write(fd, b"again.");
    close(fd);
    assert_eq!(read_all("/weir/fork"), b"parent.child.again.");
    assert_eq!(size("/weir/by-child"), 0);
}

fn writers_through_one_offset_never_overlap() {
    const EACH: usize = 2000;
    let fd = create("/weir/shared");
    let children: Vec<_> = (0..3u8)
        .map(|child| {
            in_child(move || {
                for _ in 0..EACH {
                    write(fd, &[child; 7]);
                }
            })
        })
        .collect();
    children.into_iter().for_each(join);
    close(fd);
    let bytes = read_all("/weir/shared");
    assert_eq!(bytes.len(), 3 * EACH * 7);
    let mut counts = [0; 3];
    for piece in bytes.chunks(7) {
        assert!(piece.iter().all(|b| *b == piece[0]), "torn");
        counts[usize::from(piece[0])] += 1;
    }
    assert_eq!(counts, [EACH; 3]);
}

fn creating_meets_no_file_that_goes() {
    const TIMES: usize = 400_000;
    let path = "/weir/comes-and-goes";
    let makes = in_child(move || {
        for _ in 0..TIMES {
            close(open(path, O_RDWR | O_CREAT).unwrap());
        }
    });
    let removes = in_child(move || {
        for _ in 0..TIMES {
            let gone = p().names.unlinkat(CWD, path.as_bytes(), 0).unwrap();
            assert!(matches!(gone, Ok(()) | Err(Errno::NOENT)), "{gone:?}");
        }
    });
    join(makes);
    join(removes);
}

fn locks_keep_others_out_until_given_back() {
    const F_SETLK: i32 = 6;
    const F_SETLKW: i32 = 7;
    let range = |kind| LockRange {
        kind,
        len: 10,
        ..LockRange::default()
    };
    let fd = create("/weir/lock");
    assert_eq!(p().io.flock(fd, libc::LOCK_EX), Some(Ok(())));
    assert_eq!(p().io.fcntl_lock(fd, F_SETLK, &mut range(1)), Some(Ok(())));
    let child = in_child(|| {
        let own = open("/weir/lock", O_RDWR).unwrap();
        let try_it = p().io.flock(own, libc::LOCK_EX | libc::LOCK_NB);
        assert_eq!(try_it, Some(Err(Errno::AGAIN)));
        let mut held = range(1);
        assert_eq!(p().io.fcntl_lock(own, 5, &mut held), Some(Ok(())));
        assert_eq!((held.kind, held.len), (1, 10));
        assert_eq!(
            held.pid,
            rustix::process::getppid().unwrap().as_raw_nonzero().get()
        );
        // Says that it is about to wait, by a file, and waits.
        close(create("/weir/waiting"));
        assert_eq!(p().io.flock(own, libc::LOCK_EX), Some(Ok(())));
        assert_eq!(
            p().io.fcntl_lock(own, F_SETLKW, &mut range(1)),
            Some(Ok(()))
        );
    });
    while p().attributes.faccessat(CWD, b"/weir/waiting", 0, 0) != Some(Ok(())) {
        std::thread::yield_now();
    }
    // Longer than a nap of the waiter.
    std::thread::sleep(std::time::Duration::from_millis(250));
    assert_eq!(p().io.flock(fd, libc::LOCK_UN), Some(Ok(())));
    assert_eq!(p().io.fcntl_lock(fd, F_SETLK, &mut range(2)), Some(Ok(())));
    join(child);
    close(fd);
}

fn our_own_descriptors_survive_a_program_that_closes_everything() {
    let fd = create("/weir/survive");
    assert_eq!(p().descriptors.close_range(3, u32::MAX, 4), None);
    join(in_child(move || {
        assert_eq!(p().attributes.fstat(fd).unwrap().unwrap().size, 0);
        close(create("/weir/child-session"));
        assert_eq!(p().descriptors.close_range(3, u32::MAX, 0), Some(Ok(())));
        assert!(!p().descriptors.is_ours(fd));
        close(create("/weir/after-closing"));
    }));
    write(fd, b"alive");
    close(fd);
    assert_eq!(size("/weir/after-closing"), 0);
}

fn copies_and_mappings() {
    let from = create("/weir/copy");
    let data: Vec<u8> = (0..3_000_000u32).map(|i| (i % 251) as u8).collect();
    assert_eq!(p().io.write(from, &data), Some(Ok(data.len())));
    let to = create("/weir/copied");
    let mut at = 0;
    assert_eq!(
        p().io.sendfile(to, from, Some(&mut at), usize::MAX),
        Some(Ok(data.len()))
    );
    assert_eq!(at, 3_000_000);
    assert!(read_all("/weir/copied") == data);
    assert_eq!(
        p().mappings.mmap(from, 4096, true, true),
        Some(Err(Errno::NODEV))
    );
    assert_eq!(
        p().mappings.mmap(from, 4096, false, true),
        Some(Ok(Mapping::Copy))
    );
    let bytes_of = |copy| {
        // SAFETY: `copy` is a memfd of this test's own, which is closed here.
        let file = unsafe { <std::fs::File as std::os::fd::FromRawFd>::from_raw_fd(copy) };
        let mut bytes = vec![0; usize::try_from(file.metadata().unwrap().len()).unwrap()];
        std::os::unix::fs::FileExt::read_exact_at(&file, &mut bytes, 0).unwrap();
        bytes
    };
    let part = |offset, length| {
        bytes_of(
            p().mappings
                .copy_to_map(from, offset, length)
                .unwrap()
                .unwrap(),
        )
    };
    assert_eq!(part(2_999_000, 4096), data[2_999_000..], "to the end");
    assert_eq!(part(5, 40_960), data[5..40_965]);
    assert_eq!(part(5, 40_000), data[5..40_965], "whole pages");
    assert_eq!(part(3_000_000, 4096), [], "behind it");
    assert!(bytes_of(p().mappings.materialize(from).unwrap().unwrap()) == data);
    close(from);
    close(to);
}

fn a_descriptors_path_is_told() {
    let fd = create("/weir/told");
    let link = format!("/proc/self/fd/{fd}");
    let mut out = [0; 64];
    let n = p()
        .paths
        .readlinkat(CWD, link.as_bytes(), &mut out)
        .unwrap()
        .unwrap();
    assert_eq!(&out[..n], b"/weir/told");
    write(fd, b"abc");
    assert_eq!(read_all(&link), b"abc");
    assert_eq!(read_all(&format!("/dev/fd/{fd}")), b"abc");
    close(fd);
}

fn more_than_memory_goes_to_files() {
    let fd = create("/weir/big");
    let block = vec![5u8; 1 << 20];
    for i in 0..48 {
        assert_eq!(p().io.pwrite(fd, &block, i << 20), Some(Ok(1 << 20)), "{i}");
    }
    let mut back = vec![0; 1 << 20];
    for i in 0..48 {
        assert_eq!(p().io.pread(fd, &mut back, i << 20), Some(Ok(1 << 20)));
        assert!(back == block, "{i}");
    }
    assert_eq!(p().io.fsync(fd), Some(Ok(())));
    close(fd);
    p().names.unlinkat(CWD, b"/weir/big", 0).unwrap().unwrap();
}

#[test]
fn a_process_and_its_children() {
    let served = Served::start(|_| ());
    served.name_in_environment();
    p().init();

    paths_of_others_are_the_kernels();
    what_was_written_is_read();
    open_flags();
    descriptors_share_their_offset();
    vectors_and_appends();
    sizes_and_holes();
    names_and_links();
    listings_are_whole_in_buffers_of_any_size();
    attributes_change();
    the_current_directory_is_kept();
    children_share_descriptions_and_see_writes();
    writers_through_one_offset_never_overlap();
    creating_meets_no_file_that_goes();
    locks_keep_others_out_until_given_back();
    our_own_descriptors_survive_a_program_that_closes_everything();
    copies_and_mappings();
    a_descriptors_path_is_told();
    more_than_memory_goes_to_files();

    let status = served.stop();
    assert_eq!(status.rejected, [], "the server believed all that we said");
    // A dead server is told at once, and never waited for.
    assert_eq!(
        p().names.mkdirat(CWD, b"/weir/late", 0o755),
        Some(Err(Errno::SHUTDOWN))
    );
}

//! weir as a library of a process that the interposer is not in, with a real server: attaching,
//! forks, threads, and what must be refused.
//!
//! The state is one per process, so all scenes are played in one test, one after the other.

mod common;

use std::sync::atomic::{AtomicBool, Ordering};

use common::Served;
use rustix::io::Errno;
use weir_client::library::{
    attach, current, detach, read_list, write_list, Lamination, Piece, Visibility, Whence,
};
use weir_client::process::Process;
use weir_server::Options;

const O_RDONLY: i32 = 0;
const O_RDWR: i32 = 2;
const O_CREAT: i32 = 0o100;

fn p() -> &'static Process {
    current().unwrap()
}

fn run_dir(options: &Options) -> &[u8] {
    options.run_dir.as_os_str().as_encoded_bytes()
}

fn piece<B>(whence: Whence<'_>, offset: u64, bytes: B) -> Piece<'_, B> {
    Piece {
        whence,
        offset,
        bytes,
        done: Ok(0),
    }
}

fn put(path: &str, bytes: &[u8]) {
    let fd = p()
        .library
        .open_at(path.as_bytes(), O_RDWR | O_CREAT, 0o644)
        .unwrap();
    assert_eq!(p().io.pwrite(fd, bytes, 0), Some(Ok(bytes.len())));
    p().descriptors.close(fd).unwrap().unwrap();
}

/// True if the child of a fork that nothing announced ends with 0.
fn in_child(work: impl FnOnce() -> bool) {
    // SAFETY: the child runs only `work` and leaves by `_exit`; glibc makes its allocator
    // usable in it.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        // SAFETY: ends this process at once.
        unsafe { libc::_exit(i32::from(!done.unwrap_or(false))) }
    }
    let mut status = -1;
    // SAFETY: waits for a child of ours; `status` is valid.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    assert_eq!(status, 0, "the child's checks failed");
}

fn who_is_not_attached_is_told(options: &Options) {
    assert_eq!(current().err(), Some(Errno::NOTCONN));
    assert_eq!(detach(), Err(Errno::NOTCONN));
    assert_eq!(read_list(&mut []), Err(Errno::NOTCONN));
    assert_eq!(attach(None), Err(Errno::NOENT));
    assert_eq!(attach(Some(b"")), Err(Errno::NOENT));
    assert_eq!(attach(Some(b"/nowhere")), Err(Errno::NOENT));
    let parent = options.run_dir.parent().unwrap();
    let parent = parent.as_os_str().as_encoded_bytes();
    assert_eq!(attach(Some(parent)), Err(Errno::NOENT));
    assert_eq!(current().err(), Some(Errno::NOTCONN));
}

fn each_attach_wants_its_detach(options: &Options) {
    attach(Some(run_dir(options))).unwrap();
    let first = p();
    // By another name of the same directory, and by the environment.
    attach(Some(&[run_dir(options), b"/."].concat())).unwrap();
    std::env::set_var("WEIR_INSTANCE", &options.run_dir);
    attach(None).unwrap();
    assert_eq!(attach(Some(b"/tmp")), Err(Errno::BUSY));
    let fd = p()
        .library
        .open_at(b"/weir/a", O_RDWR | O_CREAT, 0o644)
        .unwrap();
    detach().unwrap();
    detach().unwrap();
    assert!(p().descriptors.is_ours(fd), "somebody is attached still");
    detach().unwrap();
    assert_eq!(detach(), Err(Errno::NOTCONN));
    attach(None).unwrap();
    assert!(core::ptr::eq(first, p()), "one client a process");
    assert!(!p().descriptors.is_ours(fd), "the last one closed it");
}

fn files_are_asked_about_laminated_and_synced() {
    put("/weir/f", b"text");
    let about = p().library.file_info(b"/weir/f").unwrap();
    assert_eq!((about.stat.size, about.servers), (4, 1));
    assert_eq!(about.attr.lamination, Lamination::No);
    assert_eq!(p().library.sync_at(b"/weir/f"), Ok(()));
    let raw = Visibility::ReadAfterWrite;
    assert_eq!(p().library.set_visibility_at(b"/weir/f", raw), Ok(()));
    let policy = p().library.file_info(b"/weir/f").unwrap().attr.policy;
    assert_eq!(policy.visibility, raw);
    let layout = p().library.layout_at(b"/weir/f").unwrap();
    let servers: Vec<_> = layout.servers().collect();
    assert_eq!((servers.len(), servers[0].1.memory_bytes), (1, 4));
    let fd = p().library.open_at(b"/weir/f", O_RDWR, 0).unwrap();
    assert_eq!(p().library.laminate_at(b"/weir/f"), Err(Errno::BUSY));
    let due = p().library.file_info(b"/weir/f").unwrap().attr.lamination;
    assert_eq!(due, Lamination::Due);
    p().descriptors.close(fd).unwrap().unwrap();
    assert_eq!(p().library.laminate_at(b"/weir/f"), Ok(()));
    assert_eq!(p().library.laminate_at(b"/weir/f"), Ok(()), "it is");
    assert_eq!(p().library.open_at(b"/weir/f", O_RDWR, 0), Err(Errno::ROFS));
    assert_eq!(
        p().library.set_visibility_at(b"/weir/f", raw),
        Err(Errno::ROFS)
    );
}

fn what_is_not_a_file_of_weir_is_refused() {
    let long = [b"/weir/".to_vec(), vec![b'x'; 5000]].concat();
    std::os::unix::fs::symlink("/etc/passwd", "/dev/shm/weir-library-link").unwrap();
    p().names
        .symlinkat(b"/dev/shm/weir-library-link", -100, b"/weir/out")
        .unwrap()
        .unwrap();
    let outside: [&[u8]; 5] = [
        b"/etc/passwd",
        b"/weirdo",
        b"/weir/../etc/passwd",
        b"Cargo.toml",
        b"/weir/out",
    ];
    for path in outside {
        assert_eq!(p().library.laminate_at(path), Err(Errno::XDEV));
        assert_eq!(p().library.sync_at(path), Err(Errno::XDEV));
        assert_eq!(p().library.file_info(path).err(), Some(Errno::XDEV));
        assert_eq!(p().library.open_at(path, O_RDONLY, 0), Err(Errno::XDEV));
    }
    std::fs::remove_file("/dev/shm/weir-library-link").unwrap();
    let create = O_RDWR | O_CREAT;
    let made = p().library.open_at(b"/weir/out", create, 0o600);
    assert_eq!(made, Err(Errno::XDEV));
    assert!(!std::path::Path::new("/dev/shm/weir-library-link").exists());
    assert_eq!(p().library.laminate_at(&long), Err(Errno::NAMETOOLONG));
    assert_eq!(p().library.laminate_at(b"/weir/none"), Err(Errno::NOENT));
    assert_eq!(p().library.laminate_at(b"/weir"), Err(Errno::ISDIR));
    assert_eq!(p().library.layout_at(b"/weir").err(), Some(Errno::ISDIR));
    assert_eq!(p().library.sync_at(b""), Err(Errno::XDEV));
    let path_only = libc::O_PATH;
    assert_eq!(
        p().library.open_at(b"/weir/f", path_only, 0),
        Err(Errno::INVAL)
    );
}

fn lists_name_files_by_descriptor_and_path() {
    let fd = p()
        .library
        .open_at(b"/weir/l", O_RDWR | O_CREAT, 0o644)
        .unwrap();
    put("/weir/m", &[b'm'; 100]);
    let mut writes = [
        piece(Whence::Fd(fd), 10, &b"0123456789"[..]),
        piece(Whence::Path(b"/weir/m"), 50, &b"M"[..]),
        piece(Whence::Fd(fd), 15, &b"x"[..]),
    ];
    assert_eq!(write_list(&mut writes), Ok(()));
    let done: Vec<_> = writes.iter().map(|write| write.done).collect();
    assert_eq!(done, [Ok(10), Ok(1), Ok(1)]);
    let mut room = [[b'-'; 4]; 5];
    let mut rooms = room.iter_mut();
    let mut next = || &mut rooms.next().unwrap()[..];
    let mut reads = [
        piece(Whence::Path(b"/weir/m"), 49, next()),
        piece(Whence::Fd(fd), 14, next()),
        piece(Whence::Path(b"/weir/none"), 0, next()),
        piece(Whence::Fd(fd), 18, next()),
        piece(Whence::Fd(0), 0, next()),
    ];
    assert_eq!(read_list(&mut reads), Err(Errno::NOENT));
    let done: Vec<_> = reads.iter().map(|read| read.done).collect();
    let badf = Err(Errno::BADF);
    assert_eq!(done, [Ok(4), Ok(4), Err(Errno::NOENT), Ok(2), badf]);
    assert_eq!(&room[..2], [*b"mMmm", *b"4x67"]);
    assert_eq!((room[2], &room[3]), ([b'-'; 4], b"89--"));
    let mut beyond = [piece(Whence::Fd(fd), u64::MAX, &b"x"[..])];
    assert_eq!(write_list(&mut beyond), Err(Errno::INVAL));
    p().descriptors.close(fd).unwrap().unwrap();
    let mut closed = [piece(Whence::Fd(fd), 0, &b"x"[..])];
    assert_eq!(write_list(&mut closed), badf.map(|_: usize| ()));
}

/// Ends threads, also where a check failed.
struct StopAtEnd<'a>(&'a AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Whatever the parent's threads are doing, a child finds itself not attached, and can attach.
fn a_child_attaches_anew() {
    let fd = p()
        .library
        .open_at(b"/weir/p", O_RDWR | O_CREAT, 0o644)
        .unwrap();
    assert_eq!(p().io.pwrite(fd, b"parent", 0), Some(Ok(6)));
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stop = StopAtEnd(&stop);
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    attach(None).unwrap();
                    put("/weir/t", b"t");
                    detach().unwrap();
                }
            });
        }
        for _ in 0..20 {
            in_child(|| {
                let was = current().err() == Some(Errno::NOTCONN);
                attach(None).unwrap();
                let void = !p().descriptors.is_ours(fd);
                put("/weir/c", b"child");
                let mut got = [0; 6];
                let read = piece(Whence::Path(b"/weir/p"), 0, &mut got[..]);
                let read = read_list(&mut [read]);
                was && void && read == Ok(()) && &got == b"parent" && detach() == Ok(())
            });
        }
    });
    assert_eq!(
        p().io.pwrite(fd, b"P", 0),
        Some(Ok(1)),
        "still the parent's"
    );
    p().descriptors.close(fd).unwrap().unwrap();
    assert_eq!(p().library.file_info(b"/weir/c").unwrap().stat.size, 5);
}

#[test]
fn a_library_in_a_process() {
    let served = Served::start(|_| ());
    let options = &served.options;
    std::env::remove_var("WEIR_INSTANCE");

    who_is_not_attached_is_told(options);
    each_attach_wants_its_detach(options);
    files_are_asked_about_laminated_and_synced();
    what_is_not_a_file_of_weir_is_refused();
    lists_name_files_by_descriptor_and_path();
    a_child_attaches_anew();

    let status = served.stop();
    assert_eq!(status.rejected, [], "the server believed all that we said");
    // A dead server is told at once, and never waited for.
    assert_eq!(p().library.sync_at(b"/weir/f"), Err(Errno::SHUTDOWN));
    assert!(attach(None).is_err());
    detach().unwrap();
}

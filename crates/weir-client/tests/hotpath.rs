//! The hot path neither allocates nor asks the server: counted by an allocator and by the
//! client's own counter of requests.
//!
//! One process and one thread, so that nothing else is counted; the server is a thread of
//! the same process, whose allocations are its own. (That the kernel is not asked either
//! shows `shell/hotpath.sh` of the real programs, under strace.)

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use common::Served;
use weir_client::process::{process, Process};
use weir_core::proto::Status;
use weir_server::control::Control;

const CWD: i32 = -100;
const CREATE: i32 = libc::O_RDWR | libc::O_CREAT | libc::O_TRUNC;
const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: the system's allocator does the work; counting touches only a thread's own cell,
// which needs no allocation.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: `layout` has a size, by the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: `at` and `layout` are a block of `System`'s, by the caller.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: `at` and `layout` are a block of `System`'s, and `size` is not 0, by the caller.
        unsafe { System.realloc(at, layout, size) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

fn p() -> &'static Process {
    process()
}

/// Allocations of this thread and requests to the server while `work` ran.
fn counted(control: &mut Control, work: impl FnOnce()) -> (u64, u64) {
    let requests = |control: &mut Control| {
        let status = control.call(Status {}).unwrap();
        let asked = status.requests.iter();
        let by_tools = ["status"];
        asked
            .filter(|(name, _)| !by_tools.contains(&name.as_str()))
            .map(|(_, count)| count)
            .sum::<u64>()
    };
    let before = requests(control);
    let allocated = ALLOCATIONS.get();
    work();
    let allocated = ALLOCATIONS.get() - allocated;
    (allocated, requests(control) - before)
}

/// A loop, how often it is run, and how many allocations and requests that may take.
struct Scene {
    name: &'static str,
    step: fn(i32, u64, &mut [u8]),
    bytes: usize,
    count: u64,
    most: (u64, u64),
}

fn append(fd: i32, _: u64, bytes: &mut [u8]) {
    assert_eq!(p().io.write(fd, bytes), Some(Ok(bytes.len())));
}

fn at(fd: i32, bytes: &[u8], offset: u64) {
    let offset = i64::try_from(offset).unwrap();
    assert_eq!(p().io.pwrite(fd, bytes, offset), Some(Ok(bytes.len())));
}

fn contiguous(fd: i32, i: u64, bytes: &mut [u8]) {
    at(fd, bytes, i * bytes.len() as u64);
}

fn strided(fd: i32, i: u64, bytes: &mut [u8]) {
    at(fd, bytes, i * 4 * bytes.len() as u64);
}

fn over(fd: i32, i: u64, bytes: &mut [u8]) {
    at(fd, bytes, i % 8 * bytes.len() as u64);
}

fn back(fd: i32, i: u64, bytes: &mut [u8]) {
    let offset = i64::try_from(i % 8 * bytes.len() as u64).unwrap();
    assert_eq!(p().io.pread(fd, bytes, offset), Some(Ok(bytes.len())));
}

fn look(fd: i32, _: u64, _: &mut [u8]) {
    assert!(p().attributes.fstat(fd).unwrap().is_ok());
    assert!(p().io.lseek(fd, 0, libc::SEEK_CUR).unwrap().is_ok());
}

/// A request for each segment, of which the first are small, and each time one allocation
/// or two of the message.
const SCENES: &[Scene] = &[
    Scene {
        name: "write 64 B",
        step: append,
        bytes: 64,
        count: 100_000,
        most: (20, 10),
    },
    Scene {
        name: "write 1 KiB",
        step: append,
        bytes: KIB,
        count: 50_000,
        most: (60, 30),
    },
    Scene {
        name: "write 1 MiB",
        step: append,
        bytes: MIB,
        count: 64,
        most: (60, 30),
    },
    Scene {
        name: "pwrite 64 B",
        step: contiguous,
        bytes: 64,
        count: 100_000,
        most: (20, 10),
    },
    Scene {
        name: "pwrite 1 KiB, strided",
        step: strided,
        bytes: KIB,
        count: 50_000,
        most: (60, 30),
    },
    Scene {
        name: "pwrite 47,008 B, strided",
        step: strided,
        bytes: 47_008,
        count: 1000,
        most: (60, 30),
    },
    Scene {
        name: "pwrite over what was written",
        step: over,
        bytes: 4 * KIB,
        count: 100_000,
        most: (10, 5),
    },
    Scene {
        name: "pread of what was written",
        step: back,
        bytes: 4 * KIB,
        count: 100_000,
        most: (10, 5),
    },
    Scene {
        name: "fstat and lseek",
        step: look,
        bytes: 1,
        count: 100_000,
        most: (0, 0),
    },
];

fn play(control: &mut Control, scene: &Scene) {
    let path = b"/weir/scene";
    let fd = p()
        .opening
        .openat(CWD, path, CREATE, 0o644)
        .unwrap()
        .unwrap();
    let mut bytes = vec![b'w'; scene.bytes];
    // The first write of a file begins its record, the first read asks where bytes are.
    for i in 0..8 {
        contiguous(fd, i, &mut bytes);
    }
    (scene.step)(fd, 0, &mut bytes);
    let (allocated, asked) = counted(control, || {
        for i in 0..scene.count {
            (scene.step)(fd, i, &mut bytes);
        }
    });
    let Scene {
        name, count, most, ..
    } = scene;
    println!("{name}: {count} calls, {allocated} allocations, {asked} requests");
    assert!(allocated <= most.0, "{name}: {allocated} allocations");
    assert!(asked <= most.1, "{name}: {asked} requests");
    p().descriptors.close(fd).unwrap().unwrap();
    p().names.unlinkat(CWD, path, 0).unwrap().unwrap();
}

fn main() {
    let served = Served::start(|options| {
        options.memory_budget_bytes = 512 << 20;
        options.warm_bytes = 64 << 20;
    });
    served.name_in_environment();
    p().init();
    let mut control = served.control();
    for scene in SCENES {
        play(&mut control, scene);
    }
    served.stop();
    println!("{} passed, 0 failed", SCENES.len());
}

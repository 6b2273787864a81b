//! An idle server sleeps. Alone in its process, because the test measures its CPU time.

use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use crate::alone::is_alone;
use weir_core::proto;
use weir_server::control::Control;
use weir_server::{serve, Options};

/// CPU time of all threads of this process except the calling one, in ns.
fn cpu_ns() -> u64 {
    let of = |id| {
        let spent = rustix::time::clock_gettime(id);
        spent.tv_sec.cast_unsigned() * 1_000_000_000 + spent.tv_nsec.cast_unsigned()
    };
    let all = of(rustix::time::ClockId::ProcessCPUTime);
    all - of(rustix::time::ClockId::ThreadCPUTime)
}

#[test]
fn an_idle_server_uses_no_cpu() {
    if !is_alone("idle::an_idle_server_uses_no_cpu") {
        return;
    }
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let options = Options {
        run_dir: dir.path().join("run"),
        shm_dir: dir.path().join("shm"),
        storage: Vec::new(),
        memory_budget_bytes: 64 << 20,
        warm_bytes: 64 << 20,
        warmers: 2,
        max_files: 1000,
        max_clients: 8,
        spin_us: 1000,
        prefix: "/weir".into(),
        sharing: weir_server::rules::Sharing::default(),
        audit: false,
        io_uring: false,
        watch_pid: None,
    };
    let (told, ready) = channel();
    let server = std::thread::spawn({
        let options = options.clone();
        move || serve(&options, || told.send(()).unwrap())
    });
    ready.recv().unwrap();
    let mut control = Control::connect(&options.run_dir).unwrap();
    let begin = Instant::now();
    while control.call(proto::Status {}).unwrap().tiers[0].warm_bytes < 64 << 20 {
        assert!(
            begin.elapsed() < Duration::from_secs(60),
            "the pool does not become warm"
        );
        std::thread::yield_now();
    }
    // The first interval may still include the spinning after the last answer. (The test measures the
    // sleep; it does not wait for it.)
    let interval = Duration::from_millis(100);
    let spent = || {
        let before = cpu_ns();
        std::thread::sleep(interval);
        cpu_ns().saturating_sub(before)
    };
    spent();
    // The two clocks are not read at the same instant: a few us of difference are allowed.
    let spent = spent();
    assert!(spent < 50_000, "{spent} ns of CPU time in {interval:?}");
    control.call(proto::Stop {}).unwrap();
    server.join().unwrap().unwrap();
}

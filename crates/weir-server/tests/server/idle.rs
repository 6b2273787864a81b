//! An idle server sleeps. Alone in its process, because the test looks at all its threads.

use std::sync::mpsc::channel;
use std::time::Duration;

use crate::alone::is_alone;
use weir_core::proto;
use weir_server::control::Control;
use weir_server::{serve, Options};

#[test]
fn an_idle_server_sleeps() {
    if !is_alone("idle::an_idle_server_sleeps") {
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
        elevated: Vec::new(),
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
    weir_cluster::guard::wait_until("the pool becomes warm", || {
        control.call(proto::Status {}).unwrap().tiers[0].warm_bytes >= 64 << 20
    });
    let wakes = weir_cluster::threads::wakes_in(Duration::from_secs(2)).unwrap();
    println!("{wakes} wakes in 2 s");
    assert!(wakes <= 8, "{wakes} wakes in 2 s");
    control.call(proto::Stop {}).unwrap();
    server.join().unwrap().unwrap();
}

//! A real server in this process, for tests and benches of the client.
#![allow(dead_code)] // each binary uses its part

use std::sync::mpsc::channel;
use std::thread::JoinHandle;

use tempfile::TempDir;
use weir_core::proto::{ServerStatus, Stop};
use weir_server::control::Control;
use weir_server::{serve, Options, ServerError, StorageDir};

/// The server, in directories that go with it.
pub struct Served {
    /// Where all of it is.
    pub dir: TempDir,
    /// How it was started.
    pub options: Options,
    thread: JoinHandle<Result<ServerStatus, ServerError>>,
}

impl Served {
    /// Starts one of 64 MiB of memory and 256 MiB of files, unless `change` says otherwise.
    pub fn start(change: impl FnOnce(&mut Options)) -> Served {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let mut options = Options {
            run_dir: dir.path().join("run"),
            shm_dir: dir.path().join("shared"),
            storage: vec![StorageDir {
                path: dir.path().join("files"),
                budget_bytes: 256 << 20,
            }],
            memory_budget_bytes: 64 << 20,
            warm_bytes: 4 << 20,
            warmers: 1,
            max_files: 10_000,
            max_clients: 32,
            spin_us: 20,
            prefix: "/weir".into(),
            elevated: Vec::new(),
            sharing: weir_server::rules::Sharing::default(),
            audit: false,
            io_uring: false,
            watch_pid: None,
        };
        change(&mut options);
        let (told, ready) = channel();
        let thread = std::thread::spawn({
            let options = options.clone();
            move || serve(&options, move || told.send(()).unwrap())
        });
        ready.recv().expect("the server starts");
        Served {
            dir,
            options,
            thread,
        }
    }

    /// Lets this process use it.
    pub fn name_in_environment(&self) {
        std::env::set_var("WEIR_INSTANCE", &self.options.run_dir);
    }

    /// A connection for tools.
    pub fn control(&self) -> Control {
        Control::connect(&self.options.run_dir).unwrap()
    }

    /// Ends it; what it says at its end.
    pub fn stop(self) -> ServerStatus {
        let status = self.control().call(Stop {}).unwrap();
        self.thread.join().unwrap().unwrap();
        status
    }
}

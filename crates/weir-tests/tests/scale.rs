//! The model of `weir simulate-scale` against real servers: a job of Python processes, one for each
//! server, over loopback and between namespaces. The requests between servers are compared one by one
//! with the prediction.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use weir_cluster::{can_test, Cluster, Spec};
use weir_scale::{predict, Job, Layout, Prediction};
use weir_tests::launch::weir_binary;
use weir_tests::needs::{missing, PYTHON};
use weir_tests::source_root;

/// The operations that are compared.
const OPERATIONS: [&str; 7] = [
    "find_to_keep",
    "make",
    "hold",
    "put",
    "published",
    "lease",
    "runs",
];

/// The machines of a job: this one with several servers, or namespaces with a server each.
enum Site {
    Here(tempfile::TempDir),
    Nodes(Cluster),
}

impl Site {
    /// A weir command at the node of a server.
    fn weir(&self, rank: u16, arguments: &[&str]) -> Command {
        let weir = weir_binary().unwrap();
        let mut command = match self {
            Site::Here(room) => {
                let mut command = Command::new(weir);
                command.env("WEIR_LAUNCH_DIRECTORY", room.path());
                command
            }
            Site::Nodes(cluster) => cluster.node(usize::from(rank)).command(weir),
        };
        command
            .args(arguments)
            .env("WEIR_MEMORY_BUDGET", "2G")
            .env("WEIR_FILE_ENABLED", "false")
            .stdin(Stdio::null());
        command
    }

    fn start(&self, servers: u16) {
        match self {
            Site::Here(_) => self.said(&["start", "scale", "--servers", &servers.to_string()]),
            Site::Nodes(cluster) => self.said(&["start", "scale", "--hosts", &cluster.host_list()]),
        };
    }

    /// A program at a server.
    fn run(&self, rank: u16) -> Command {
        match self {
            Site::Here(_) => {
                let number = rank.to_string();
                self.weir(rank, &["run", "-i", "scale", "--rank", &number, "--"])
            }
            Site::Nodes(_) => self.weir(rank, &["run", "-i", "scale", "--"]),
        }
    }

    /// A directory that all processes see, where they meet.
    fn meeting(&self) -> PathBuf {
        let room = match self {
            Site::Here(room) => room.path().to_owned(),
            Site::Nodes(cluster) => cluster.dir().join("shared"),
        };
        let meeting = room.join("meeting");
        let _ = std::fs::remove_dir_all(&meeting);
        std::fs::create_dir_all(&meeting).unwrap();
        meeting
    }

    fn said(&self, arguments: &[&str]) -> String {
        let output = self.weir(0, arguments).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    }
}

/// Ends the instance, also when the test fails.
struct Instance<'a>(&'a Site);

impl Drop for Instance<'_> {
    fn drop(&mut self) {
        let stop = ["stop", "scale", "--report", "none"];
        let _ = self.0.weir(0, &stop).output();
    }
}

/// Runs the job on real servers; returns for each operation the number of requests that each server got.
fn real(job: &Job, site: &Site) -> Vec<Vec<u64>> {
    site.start(job.nodes);
    let _instance = Instance(site);
    let meeting = site.meeting();
    let servers = job.nodes.to_string();
    let worker = source_root().join("tests/scale/worker.py");
    let shape = match job.layout {
        Layout::Strided => "strided",
        _ => "segmented",
    };
    let processes: Vec<_> = (0..job.nodes)
        .map(|rank| {
            let mut command = site.run(rank);
            command
                .args([worker.as_path(), Path::new("/weir/checkpoint"), &meeting])
                .args([
                    &rank.to_string(),
                    &servers,
                    &job.bytes.to_string(),
                    &job.transfer.to_string(),
                ])
                .arg(shape)
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap()
        })
        .collect();
    for process in processes {
        let output = process.wait_with_output().unwrap();
        assert!(output.status.success(), "{output:?}");
        print!("{}", String::from_utf8_lossy(&output.stdout));
    }
    let status = site.said(&["status", "scale", "--json"]);
    let status: serde_json::Value = serde_json::from_str(&status).unwrap();
    let count = |operation: &str, server: usize| {
        let requests = &status["each"][server]["requests"];
        requests[format!("peer {operation}")].as_u64().unwrap_or(0)
    };
    OPERATIONS
        .iter()
        .map(|name| {
            (0..usize::from(job.nodes))
                .map(|server| count(name, server))
                .collect()
        })
        .collect()
}

fn compare(job: &Job, site: &Site) {
    let model: Prediction = predict(job);
    let found = real(job, site);
    // Every second servers publish the writes so far: a program that writes at that moment publishes
    // once more, which is at most one more request for each server.
    let published: u64 = found[4].iter().sum();
    let more = published - u64::from(job.nodes);
    for (name, counts) in OPERATIONS.iter().zip(&found) {
        for (server, count) in counts.iter().enumerate() {
            let expected = model.asked(name, server);
            let most = match *name {
                "put" | "published" => expected + more,
                _ => expected,
            };
            assert!(
                (expected..=most).contains(count),
                "{name} at server {server}: {count} for {expected} to {most} ({job:?})"
            );
        }
    }
}

/// Returns true if Python is installed.
fn can_run() -> bool {
    let lacks = missing(&[PYTHON]);
    if !lacks.is_empty() {
        let lacks = format!("packages (apt-get install {})", lacks.join(" "));
        weir_cluster::skip("the model", &lacks);
    }
    lacks.is_empty()
}

fn compare_all(site: impl Fn(u16) -> Site) {
    for nodes in [2, 4, 8] {
        let site = site(nodes);
        for layout in [Layout::Segmented, Layout::Strided] {
            let job = Job {
                nodes,
                processes: 1,
                bytes: 96 << 20,
                transfer: 1 << 20,
                layout,
            };
            compare(&job, &site);
        }
    }
}

#[test]
fn real_servers_are_asked_what_the_model_says() {
    if can_run() {
        compare_all(|_| Site::Here(tempfile::tempdir().unwrap()));
    }
}

#[test]
fn so_are_those_of_several_nodes() {
    if !can_run() || !can_test("the model between namespaces", true) {
        return;
    }
    compare_all(|nodes| {
        let spec = Spec::with_ssh(usize::from(nodes));
        Site::Nodes(Cluster::up(&spec).unwrap())
    });
}

//! The model of `weir simulate-scale` against real servers: a job of Python processes, one a
//! server, over loopback. What servers ask each other is compared request by request with the
//! prediction; times are printed beside it and not judged, for the machine is shared.

use std::path::Path;
use std::process::{Command, Stdio};

use weir_scale::{predict, Costs, Job, Layout, Machines, Prediction};
use weir_tests::launch::weir_binary;
use weir_tests::needs::{missing, PYTHON};
use weir_tests::source_root;

/// What is compared.
const OPERATIONS: [&str; 7] = ["find", "make", "hold", "put", "published", "lease", "runs"];

/// Ends the instance also when the test fails.
struct Instance<'a>(&'a Path);

impl Instance<'_> {
    fn weir(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(weir_binary().unwrap());
        command
            .args(arguments)
            .env("WEIR_LAUNCH_DIRECTORY", self.0)
            .env("WEIR_MEMORY_BUDGET", "2G")
            .env("WEIR_FILE_ENABLED", "false")
            .stdin(Stdio::null());
        command
    }

    fn said(&self, arguments: &[&str]) -> String {
        let output = self.weir(arguments).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    }
}

impl Drop for Instance<'_> {
    fn drop(&mut self) {
        let _ = self.weir(&["stop", "scale", "--report", "none"]).output();
    }
}

/// Runs the job on real servers; how often each was asked for what, by operation.
fn real(job: &Job) -> Vec<Vec<u64>> {
    let room = tempfile::tempdir().unwrap();
    let instance = Instance(room.path());
    let meeting = room.path().join("meeting");
    std::fs::create_dir(&meeting).unwrap();
    let servers = job.nodes.to_string();
    instance.said(&["start", "scale", "--servers", &servers]);
    let worker = source_root().join("tests/scale/worker.py");
    let shape = match job.layout {
        Layout::Strided => "strided",
        _ => "segmented",
    };
    let processes: Vec<_> = (0..job.nodes)
        .map(|rank| {
            let rank = rank.to_string();
            let mut command = instance.weir(&["run", "-i", "scale", "--rank", &rank, "--"]);
            command
                .args([worker.as_path(), Path::new("/weir/checkpoint"), &meeting])
                .args([
                    &rank,
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
    let status = instance.said(&["status", "scale", "--json"]);
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

fn compare(job: &Job) {
    let machines = Machines::One { cores: 4 };
    let model: Prediction = predict(job, machines, &Costs::default());
    for phase in &model.phases {
        println!("predicted {} {:.3} ms", phase.name, phase.seconds * 1e3);
    }
    let found = real(job);
    // Each second servers publish what was written so far: whom that meets while it writes
    // publishes once more, which is at most one more request for each server.
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

#[test]
fn real_servers_are_asked_what_the_model_says() {
    let lacks = missing(&[PYTHON]);
    if !lacks.is_empty() {
        println!("SKIPPED: apt-get install {}", lacks.join(" "));
        return;
    }
    for nodes in [2, 4, 8] {
        for layout in [Layout::Segmented, Layout::Strided] {
            compare(&Job {
                nodes,
                processes: 1,
                bytes: 96 << 20,
                transfer: 1 << 20,
                layout,
            });
        }
    }
}

//! The files and processes that an instance of weir left on the nodes of a cluster: tests expect none.

use std::time::{Duration, Instant};

use crate::{Cluster, Node};

/// The files and processes of instances on a node, a line each; empty if there are none.
pub fn left_behind(node: &Node) -> String {
    let script = "ls -d /tmp/weir-*/* /dev/shm/weir-*/* 2>/dev/null | grep -v guard.lock; \
                  ps ax | grep -E '[w]eir (agent|server)'";
    let output = node.command("sh").args(["-c", script]).output();
    String::from_utf8_lossy(&output.expect("a shell").stdout).into_owned()
}

/// Waits until nothing is left on any node that is not lost.
///
/// # Panics
/// After a minute, with what is still there.
#[track_caller]
pub fn assert_gone(cluster: &Cluster) {
    let begin = Instant::now();
    for node in cluster.nodes().iter().filter(|node| node.pid().is_some()) {
        loop {
            let left = left_behind(node);
            if left.is_empty() {
                break;
            }
            assert!(begin.elapsed() < Duration::from_secs(60), "{left}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

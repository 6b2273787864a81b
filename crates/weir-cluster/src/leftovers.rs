//! The files and processes that an instance of weir left on the nodes of a cluster: tests expect none.

use crate::guard;
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
/// If it hangs; what was left is printed.
#[track_caller]
pub fn assert_gone(cluster: &Cluster) {
    for node in cluster.nodes().iter().filter(|node| node.pid().is_some()) {
        let mut shown = String::new();
        guard::wait_until("nothing is left on a node", || {
            let left = left_behind(node);
            if left != shown {
                eprintln!("{left}");
                shown.clone_from(&left);
            }
            left.is_empty()
        });
    }
}

//! The process that made a request, as /proc describes it.

use std::fs;

use fuser::Request;
use weir_client::process::mounted::Requester;

/// Runs `act` for the process that made a request.
pub fn on_behalf<T>(request: &Request, act: impl FnOnce(&Requester<'_>) -> T) -> T {
    let pid = request.pid();
    let groups = || groups_of(pid);
    act(&Requester {
        uid: request.uid(),
        gid: request.gid(),
        groups: &groups,
    })
}

/// The supplementary groups of a thread; none, if it is not to be seen.
fn groups_of(tid: u32) -> Vec<u32> {
    let status = fs::read_to_string(format!("/proc/{tid}/status")).unwrap_or_default();
    let groups = field(&status, "Groups:").unwrap_or_default();
    groups
        .split_whitespace()
        .filter_map(|group| group.parse().ok())
        .collect()
}

/// True if a thread has a signal that ends its waiting: one that is pending and is neither blocked
/// nor ignored. True too if the thread is gone.
pub fn is_interrupted(tid: u32) -> bool {
    match fs::read_to_string(format!("/proc/{tid}/status")) {
        Ok(status) => has_signal(&status),
        Err(_) => true,
    }
}

/// The same, of the text of /proc/PID/status.
fn has_signal(status: &str) -> bool {
    let set = |name| {
        let set = field(status, name).unwrap_or_default();
        u64::from_str_radix(set.trim(), 16).unwrap_or(0)
    };
    let pending = set("SigPnd:") | set("ShdPnd:");
    pending & !set("SigBlk:") & !set("SigIgn:") != 0
}

fn field<'s>(status: &'s str, name: &str) -> Option<&'s str> {
    status.lines().find_map(|line| line.strip_prefix(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATUS: &str = "Name:\tx\nGroups:\t4 24 1000 \nSigPnd:\t0000000000000000\n\
        ShdPnd:\t0000000000004002\nSigBlk:\t0000000000004000\nSigIgn:\t0000000000000001\n";

    #[test]
    fn a_pending_signal_counts_unless_blocked_or_ignored() {
        assert!(has_signal(STATUS));
        let blocked = STATUS.replace("SigBlk:\t0000000000004000", "SigBlk:\t0000000000004002");
        assert!(!has_signal(&blocked));
        let ignored = STATUS.replace("SigIgn:\t0000000000000001", "SigIgn:\t0000000000000003");
        assert!(!has_signal(&ignored));
        assert!(!has_signal(""));
    }

    #[test]
    fn own_groups_are_those_that_the_kernel_says() {
        let asked = nix::unistd::getgroups().unwrap();
        let asked: Vec<u32> = asked.iter().map(|group| group.as_raw()).collect();
        let found = groups_of(std::process::id());
        assert_eq!(found.len(), asked.len());
        assert!(asked.iter().all(|group| found.contains(group)));
    }
}

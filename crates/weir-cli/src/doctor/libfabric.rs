//! The check of libfabric: its version, its providers, and if servers would use it.

use std::net::{IpAddr, Ipv4Addr};

use weir_config::Transport;
use weir_fabric::ofi::{find, LibfabricReport, Unusable};
use weir_launch::address;
use weir_launch::endpoint::{open, Opened, NOTHING_FASTER};

use super::finding::{Finding, MachineReport};

pub(super) fn check(examined: &MachineReport<'_>) -> Finding {
    let fabric = &examined.loaded.config.fabric;
    let host = nix::unistd::gethostname().unwrap_or_default();
    let here = address::of_this_node(fabric, &host.to_string_lossy());
    let tried = || open(fabric, here.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST)));
    judge(fabric.transport, find(), tried)
}

fn judge(
    transport: Transport,
    found: Result<LibfabricReport, Unusable>,
    tried: impl FnOnce() -> Opened,
) -> Finding {
    const CHECK: &str = "libfabric";
    const REMEDY: &str = "install libfabric, or set fabric.transport=tcp";
    let found = match (transport, found) {
        (Transport::Libfabric, Err(why)) => {
            return Finding::warn(CHECK, format!("TCP is used: {why}"), REMEDY)
        }
        (_, Err(why)) => return Finding::ok(CHECK, format!("not used: {why}")),
        (Transport::Tcp, Ok(found)) => {
            let text = format!("{}; not used: fabric.transport is tcp", describe(&found));
            return Finding::ok(CHECK, text);
        }
        (Transport::Auto, Ok(found)) if !found.is_fast() => {
            let text = format!("{}; not used: {NOTHING_FASTER}", describe(&found));
            return Finding::ok(CHECK, text);
        }
        (_, Ok(found)) => found,
    };
    match tried() {
        Opened::Bound(bound) => {
            let text = format!("{}; {} is used", describe(&found), bound.provider());
            Finding::ok(CHECK, text)
        }
        Opened::Unusable(why) => {
            let text = format!("{}; TCP is used: {why}", describe(&found));
            Finding::warn(CHECK, text, "set fabric.provider to one that is there")
        }
        Opened::Unwanted => Finding::ok(CHECK, describe(&found)),
    }
}

fn describe(found: &LibfabricReport) -> String {
    let list = |names: &[String]| match names {
        [] => "none".to_owned(),
        names => names.join(", "),
    };
    format!(
        "{}, providers: {} (left alone: {})",
        found.version,
        list(&found.usable),
        list(&found.left_out)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(usable: &[&str]) -> LibfabricReport {
        LibfabricReport {
            version: "1.17".into(),
            usable: usable.iter().map(|&name| name.to_owned()).collect(),
            left_out: vec!["shm".into()],
        }
    }

    #[test]
    fn it_says_why_libfabric_is_not_used() {
        let untried = || -> Opened { panic!("nothing is opened") };
        let absent = || Err(Unusable::Absent("no such file".into()));
        let finding = judge(Transport::Libfabric, absent(), untried);
        assert!(finding.remedy.is_some() && finding.found.contains("no such file"));
        let finding = judge(Transport::Tcp, absent(), untried);
        assert!(finding.remedy.is_none() && finding.found.contains("no such file"));
        let finding = judge(Transport::Tcp, Ok(found(&["cxi"])), untried);
        assert!(finding.found.contains("fabric.transport is tcp"));
        let slow = judge(Transport::Auto, Ok(found(&["tcp;ofi_rxm"])), untried);
        assert!(slow.found.contains("faster than TCP"), "{slow:?}");
        let broken = || Opened::Unusable("cxi: fi_domain: No such device".into());
        let finding = judge(Transport::Auto, Ok(found(&["cxi"])), broken);
        assert!(finding.remedy.is_some() && finding.found.contains("No such device"));
    }
}

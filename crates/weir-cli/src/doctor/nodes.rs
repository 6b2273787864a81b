//! Checks of what an instance of several nodes needs: that they are found, and an address.
//!
//! Left out: whether they can be reached; only a start shows that.

use weir_launch::address;
use weir_launch::nodes::{find, NodeOptions};
use weir_launch::reach::StartMethod;

use super::finding::{Finding, MachineReport};

pub(super) fn check(examined: &MachineReport<'_>) -> Vec<Finding> {
    let launch = &examined.loaded.config.launch;
    let found = match find(&NodeOptions::default(), launch, examined.env) {
        Ok(Some(found)) => found,
        Ok(None) => return vec![Finding::ok("nodes", "this node alone")],
        Err(e) => {
            let remedy = "start weir on one of the job's nodes, or name them with --hosts";
            return vec![Finding::fail("nodes", format!("{e:#}"), remedy)];
        }
    };
    let by = match &found.reach {
        StartMethod::Shell { words, .. } => words.first(),
        StartMethod::All { command, .. } => command.first(),
        StartMethod::Each { commands } | StartMethod::Join { commands, .. } => {
            commands.first().and_then(|command| command.first())
        }
        StartMethod::Nowhere => None,
    };
    let by = by.map_or("nothing", String::as_str);
    let text = format!(
        "{} of the job, the others reached by {by}",
        found.servers.len()
    );
    vec![
        Finding::ok("nodes", text),
        fabric(examined, &found.servers[0].host),
    ]
}

/// The address that this node's server would listen on.
fn fabric(examined: &MachineReport<'_>, host: &str) -> Finding {
    let check = "address";
    match address::of_this_node(&examined.loaded.config.fabric, host) {
        Ok(address) => Finding::ok(check, address.to_string()),
        Err(e) => Finding::fail(check, format!("{e:#}"), "set fabric.address"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_config::{Environment, Machine, Sources};

    fn findings(variables: &[(&str, &str)]) -> Vec<Finding> {
        let env: Environment = variables.iter().copied().collect();
        let loaded = Sources::default().load("/".as_ref()).unwrap();
        let examined = MachineReport {
            loaded: &loaded,
            env: &env,
            machine: Machine::default(),
        };
        check(&examined)
    }

    #[test]
    fn a_job_that_this_node_is_not_of_fails() {
        assert_eq!(findings(&[])[0].found, "this node alone");
        let bad = findings(&[("LSB_HOSTS", "not-this-node nor-this-one")]);
        assert!(bad[0].found.contains("not among"), "{bad:?}");
        let own = nix::unistd::gethostname().unwrap();
        let hosts = format!("{} another", own.to_string_lossy());
        let good = findings(&[("LSB_HOSTS", &hosts)]);
        assert_eq!(good[0].found, "2 of the job, the others reached by blaunch");
    }
}

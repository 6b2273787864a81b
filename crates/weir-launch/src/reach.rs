//! The commands that start agents on other nodes, and the tree of those agents.

use serde::{Deserialize, Serialize};
use weir_core::placement::tree::shares;

use crate::hosted_server::{HostedServer, OwnServers};

/// How agents are started on other nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StartMethod {
    /// There are none.
    Nowhere,
    /// A command that takes a host and a line for its shell: ssh. Each node goes on with a part
    /// of the others, so that together they are a tree.
    Shell {
        /// The command and its options.
        words: Vec<String>,
        /// The weir program there.
        program: String,
        /// The most nodes that one starts.
        fanout: u32,
    },
    /// One command a node, made for it, all from the first node: blaunch.
    Each {
        /// One for each server but the first node's, in their order.
        commands: Vec<Vec<String>>,
    },
    /// One command a node as well, whose programs have no standard input: pbsdsh. They find an
    /// invitation in a file that all nodes see, and connect back.
    Join {
        /// One for each server but the first node's, in their order.
        commands: Vec<Vec<String>>,
        /// The invitation.
        file: String,
    },
    /// One command that starts an agent on all other nodes, and gives its standard input to
    /// each: srun, flux exec.
    All {
        /// The command.
        command: Vec<String>,
        /// A command that prints something while the job lives, asked when the other one
        /// ends; without one, its end means nothing.
        alive: Vec<String>,
    },
}

/// A process to be started, and the servers that it answers for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentBranch {
    /// Its command.
    pub command: Vec<String>,
    /// The servers; its own first.
    pub servers: Vec<HostedServer>,
    /// The ones among them that are its own.
    pub own: OwnServers,
    /// How it reaches the others.
    pub reach: StartMethod,
    /// It connects by another way than the pipes of its process.
    pub joins: bool,
}

impl StartMethod {
    /// The processes that this agent starts for the servers below it.
    pub fn branches(&self, below: &[HostedServer]) -> Vec<AgentBranch> {
        match self {
            _ if below.is_empty() => Vec::new(),
            Self::Nowhere => Vec::new(),
            Self::Shell {
                words,
                program,
                fanout,
            } => shares(below, *fanout)
                .map(|servers| AgentBranch {
                    command: shell_command(words, &servers[0].host, program),
                    servers: servers.to_vec(),
                    own: OwnServers::First,
                    reach: self.clone(),
                    joins: false,
                })
                .collect(),
            Self::Each { commands } | Self::Join { commands, .. } => commands
                .iter()
                .zip(below)
                .map(|(command, server)| AgentBranch {
                    command: command.clone(),
                    servers: vec![server.clone()],
                    own: OwnServers::First,
                    reach: Self::Nowhere,
                    joins: matches!(self, Self::Join { .. }),
                })
                .collect(),
            Self::All { command, .. } => vec![AgentBranch {
                command: command.clone(),
                servers: below.to_vec(),
                own: OwnServers::ByName,
                reach: Self::Nowhere,
                joins: false,
            }],
        }
    }
}

/// ssh hands the line to the user's shell, which may be any: single quotes mean the same in all.
fn shell_command(words: &[String], host: &str, program: &str) -> Vec<String> {
    let line = format!("exec {} agent", crate::shell::quoted(program));
    let host_and_line = [host.to_owned(), line];
    words.iter().cloned().chain(host_and_line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn servers(n: u16) -> Vec<HostedServer> {
        let server = |rank| HostedServer::new(rank, format!("n{rank}"));
        (0..n).map(server).collect()
    }

    fn tree(fanout: u32) -> StartMethod {
        StartMethod::Shell {
            words: vec!["ssh".into(), "-x".into()],
            program: "/opt/weir".into(),
            fanout,
        }
    }

    /// The servers that are reached below, and the most steps to one.
    fn walk(reach: &StartMethod, below: &[HostedServer]) -> (Vec<u16>, usize) {
        let mut reached = Vec::new();
        let mut depth = 0;
        for branch in reach.branches(below) {
            reached.push(branch.servers[0].rank);
            let (more, steps) = walk(&branch.reach, &branch.servers[1..]);
            reached.extend(more);
            depth = depth.max(steps + 1);
        }
        (reached, depth)
    }

    #[test]
    fn the_tree_reaches_each_once_and_is_low() {
        for (nodes, fanout, depth) in [
            (0, 32, 0),
            (7, 32, 1),
            (32, 32, 1),
            (33, 32, 2),
            (1_056, 32, 2),
            (10_000, 32, 3),
            (7, 2, 3),
            (6, 2, 2),
            (3, 1, 3),
        ] {
            let (mut reached, steps) = walk(&tree(fanout), &servers(nodes));
            reached.sort_unstable();
            assert_eq!(reached, (0..nodes).collect::<Vec<_>>());
            assert_eq!(steps, depth, "{nodes} nodes, {fanout} each");
        }
    }

    #[test]
    fn ssh_gets_a_line_that_any_shell_reads() {
        let branches = tree(32).branches(&servers(1));
        let command = ["ssh", "-x", "n0", "exec '/opt/weir' agent"];
        assert_eq!(branches[0].command, command);
    }

    #[test]
    fn one_command_answers_for_all_or_one_for_each() {
        let all = StartMethod::All {
            command: vec!["srun".into()],
            alive: Vec::new(),
        };
        let branches = all.branches(&servers(5));
        assert_eq!(branches.len(), 1);
        assert_eq!(
            (branches[0].servers.len(), branches[0].own),
            (5, OwnServers::ByName)
        );
        let each = StartMethod::Each {
            commands: vec![
                vec!["blaunch".into(), "n0".into()],
                vec!["blaunch".into(), "n1".into()],
            ],
        };
        let branches = each.branches(&servers(2));
        assert_eq!(branches[1].command, ["blaunch", "n1"]);
        assert_eq!(branches[1].servers, servers(2)[1..]);
    }
}

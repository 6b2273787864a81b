//! The commands that start agents on other nodes, and the tree of those agents.

use serde::{Deserialize, Serialize};
use weir_core::placement::tree::shares;

use crate::seat::{OwnPositions, ServerPosition};

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
        /// For each seat that is not the first node's, in their order.
        commands: Vec<Vec<String>>,
    },
    /// One command a node as well, whose programs have no standard input: pbsdsh. They find an
    /// invitation in a file that all nodes see, and connect back.
    Join {
        /// For each seat that is not the first node's, in their order.
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

/// A process to be started, and the seats behind it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentBranch {
    /// Its command.
    pub command: Vec<String>,
    /// The seats that it answers for; its own first.
    pub seats: Vec<ServerPosition>,
    /// Which of them are its own.
    pub own: OwnPositions,
    /// How it reaches the others.
    pub reach: StartMethod,
    /// It connects by another way than the pipes of its process.
    pub joins: bool,
}

impl StartMethod {
    /// The processes that this agent starts for the seats below it.
    pub fn branches(&self, below: &[ServerPosition]) -> Vec<AgentBranch> {
        match self {
            _ if below.is_empty() => Vec::new(),
            Self::Nowhere => Vec::new(),
            Self::Shell {
                words,
                program,
                fanout,
            } => shares(below, *fanout)
                .map(|seats| AgentBranch {
                    command: shell_command(words, &seats[0].host, program),
                    seats: seats.to_vec(),
                    own: OwnPositions::First,
                    reach: self.clone(),
                    joins: false,
                })
                .collect(),
            Self::Each { commands } | Self::Join { commands, .. } => commands
                .iter()
                .zip(below)
                .map(|(command, seat)| AgentBranch {
                    command: command.clone(),
                    seats: vec![seat.clone()],
                    own: OwnPositions::First,
                    reach: Self::Nowhere,
                    joins: matches!(self, Self::Join { .. }),
                })
                .collect(),
            Self::All { command, .. } => vec![AgentBranch {
                command: command.clone(),
                seats: below.to_vec(),
                own: OwnPositions::ByName,
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

    fn seats(n: u16) -> Vec<ServerPosition> {
        let seat = |rank| ServerPosition::new(rank, format!("n{rank}"));
        (0..n).map(seat).collect()
    }

    fn tree(fanout: u32) -> StartMethod {
        StartMethod::Shell {
            words: vec!["ssh".into(), "-x".into()],
            program: "/opt/weir".into(),
            fanout,
        }
    }

    /// The seats that are reached below, and the most steps to one.
    fn walk(reach: &StartMethod, below: &[ServerPosition]) -> (Vec<u16>, usize) {
        let mut reached = Vec::new();
        let mut depth = 0;
        for branch in reach.branches(below) {
            reached.push(branch.seats[0].rank);
            let (more, steps) = walk(&branch.reach, &branch.seats[1..]);
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
            let (mut reached, steps) = walk(&tree(fanout), &seats(nodes));
            reached.sort_unstable();
            assert_eq!(reached, (0..nodes).collect::<Vec<_>>());
            assert_eq!(steps, depth, "{nodes} nodes, {fanout} each");
        }
    }

    #[test]
    fn ssh_gets_a_line_that_any_shell_reads() {
        let branches = tree(32).branches(&seats(1));
        let command = ["ssh", "-x", "n0", "exec '/opt/weir' agent"];
        assert_eq!(branches[0].command, command);
    }

    #[test]
    fn one_command_answers_for_all_or_one_for_each() {
        let all = StartMethod::All {
            command: vec!["srun".into()],
            alive: Vec::new(),
        };
        let branches = all.branches(&seats(5));
        assert_eq!(branches.len(), 1);
        assert_eq!(
            (branches[0].seats.len(), branches[0].own),
            (5, OwnPositions::ByName)
        );
        let each = StartMethod::Each {
            commands: vec![
                vec!["blaunch".into(), "n0".into()],
                vec!["blaunch".into(), "n1".into()],
            ],
        };
        let branches = each.branches(&seats(2));
        assert_eq!(branches[1].command, ["blaunch", "n1"]);
        assert_eq!(branches[1].seats, seats(2)[1..]);
    }
}

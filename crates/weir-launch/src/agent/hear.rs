//! The words of servers, and messages of agents below: how they change the state of an agent.

use std::process::Command;

use weir_core::roster::Member;
use weir_core::types::Rank;
use weir_instance::directories::{self, Remains};
use weir_instance::errln;

use super::state::{spawn, Agent, AgentEnding, Event};
use crate::hosted_server::HostedServer;
use crate::message::{AgentTask, MessageUp, ReadyServer, StartFailure};
use crate::reach::StartMethod;
use crate::server::ServerMessage;

impl Agent {
    pub(super) fn heard_server(
        &mut self,
        index: usize,
        word: Option<ServerMessage>,
    ) -> Result<(), StartFailure> {
        let local = &mut self.locals[index];
        let host = local.server.host.clone();
        let rank = Some(local.server.rank);
        let failed = |why, lives| StartFailure {
            host,
            rank,
            why,
            lives,
            dead: false,
        };
        match word {
            Some(ServerMessage::Bound {
                address,
                run_dir,
                endpoint,
            }) => {
                local.bound = true;
                local.run_dir = Some(run_dir);
                self.members.push(Member {
                    rank: Rank(local.server.rank),
                    host: local.server.host.clone(),
                    address,
                    endpoint,
                    is_mover: local.server.is_mover,
                });
            }
            Some(ServerMessage::Ready(ready)) if self.started => {
                let server = &local.server;
                errln!("server {} on {}: it is back", server.rank, server.host);
                local.ready = Some(ready);
            }
            Some(ServerMessage::Ready(ready)) => {
                match directories::keep(&ready.dirs) {
                    Ok(kept) => local.kept = kept,
                    Err(error) => return Err(failed(format!("{error:#}"), None)),
                }
                local.dirs.clone_from(&ready.dirs);
                local.ready = Some(ready.clone());
                let server = local.server.clone();
                self.ready_servers.push(ReadyServer { server, ready });
            }
            Some(ServerMessage::Lives { run_dir }) => {
                let why = format!("instance {} runs already", self.charge.name);
                return Err(failed(why, Some(run_dir)));
            }
            Some(ServerMessage::Dead(label)) => {
                let obstacle = label
                    .obstacle()
                    .filter(|_| self.charge.task != AgentTask::Start);
                let describe = || Remains::from_label(*label).describe();
                let why = obstacle.map_or_else(describe, str::to_owned);
                if !self.started {
                    return Err(StartFailure {
                        dead: true,
                        ..failed(why, None)
                    });
                }
                errln!(
                    "server {} on {}: {why}",
                    local.server.rank,
                    local.server.host
                );
            }
            Some(ServerMessage::Failed(_)) if self.ending == Some(AgentEnding::GivenUp) => {}
            Some(ServerMessage::Failed(why)) if self.started => {
                errln!(
                    "server {} on {}: {why}",
                    local.server.rank,
                    local.server.host
                );
            }
            Some(ServerMessage::Failed(why)) => return Err(failed(why, None)),
            Some(ServerMessage::Ended(ended)) => local.ended = Some(ended),
            None => {
                local.closed = true;
                let status = local.child.wait();
                let status = status.map_or_else(|e| e.to_string(), |status| status.to_string());
                if !self.started {
                    return Err(failed(format!("the server gave up ({status})"), None));
                }
                if local.ended.is_none() {
                    let server = local.server.clone();
                    let why = format!("the server was lost ({status})");
                    // One that does not become ready again is not tried once more.
                    if local.ready.is_some() && self.ending.is_none() {
                        errln!(
                            "server {} on {}: {why}; started again",
                            server.rank,
                            server.host
                        );
                        match self.start_again(index) {
                            Ok(()) => return Ok(()),
                            Err(e) => errln!("it cannot be: {e:#}"),
                        }
                    }
                    self.heard_of_loss(server, why);
                }
            }
        }
        Ok(())
    }

    pub(super) fn heard_link(
        &mut self,
        index: usize,
        up: Option<MessageUp>,
    ) -> Result<(), StartFailure> {
        let link = &mut self.links[index];
        link.heard |= up.is_some();
        match up {
            Some(MessageUp::Bound(members)) => {
                link.done.extend(members.iter().map(|member| member.rank.0));
                self.members.extend(members);
            }
            Some(MessageUp::Ready(servers)) => {
                link.done
                    .extend(servers.iter().map(|ready| ready.server.rank));
                self.ready_servers.extend(servers);
            }
            Some(MessageUp::Failed(failed)) if !self.started => return Err(failed),
            Some(MessageUp::Failed(_)) => {}
            Some(MessageUp::Lost { server, why }) => self.heard_of_loss(server, why),
            Some(MessageUp::Cleared(cleared)) => {
                link.done
                    .extend(cleared.iter().map(|(server, _)| server.rank));
                self.cleared.extend(cleared);
            }
            Some(MessageUp::Stop) => self.ask_to_stop(),
            Some(MessageUp::Ask(id)) => self.asked_below(index, id),
            Some(MessageUp::Saw(id, seen)) => self.saw(id, *seen),
            Some(MessageUp::Ended(ended)) => {
                link.done
                    .extend(ended.iter().map(|(server, _)| server.rank));
                self.ended.extend(ended);
            }
            None => {
                link.closed = true;
                link.hang_up();
                let missing: Vec<HostedServer> = link.servers.clone();
                let missing = missing
                    .into_iter()
                    .filter(|server| !link.done.contains(&server.rank));
                let missing: Vec<HostedServer> = missing.collect();
                if !self.started {
                    let why = link.describe_end();
                    let server = missing.first().or(link.servers.first()).expect("not empty");
                    return Err(StartFailure {
                        host: server.host.clone(),
                        rank: Some(server.rank),
                        why,
                        lives: None,
                        dead: false,
                    });
                }
                if !missing.is_empty() && self.farewell.is_none() {
                    let why = link.describe_end();
                    for server in missing {
                        self.heard_of_loss(server, why.clone());
                    }
                    self.ask_after_the_job();
                }
            }
        }
        Ok(())
    }

    /// The command that held all other nodes ended: with its nodes, or with the job. A batch
    /// system that does not see daemons as part of the job would leave this node's.
    fn ask_after_the_job(&self) {
        let StartMethod::All { alive, .. } = &self.charge.reach else {
            return;
        };
        let (alive, tell) = (alive.clone(), self.tell.clone());
        let asked = spawn("weir-job", move || {
            let Some((program, arguments)) = alive.split_first() else {
                return;
            };
            let output = Command::new(program).args(arguments).output();
            if output.is_ok_and(|output| output.status.success() && output.stdout.is_empty()) {
                let _ = tell.send(Event::JobOver);
            }
        });
        if let Err(e) = asked {
            errln!("{e:#}");
        }
    }

    fn heard_of_loss(&mut self, server: HostedServer, why: String) {
        let known = format!("server {} on {}: ", server.rank, server.host);
        let is_given_up = self.ending == Some(AgentEnding::GivenUp);
        if is_given_up || self.lost.iter().any(|line| line.starts_with(&known)) {
            return;
        }
        errln!("{known}{why}");
        self.lost.push(known + &why);
        if !self.charge.root {
            self.say(&MessageUp::Lost { server, why });
        }
    }
}

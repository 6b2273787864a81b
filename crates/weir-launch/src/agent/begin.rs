//! From nothing to ready: servers and agents below are started, addresses collected, the roster
//! given out.

use std::io::{BufReader, Write};
use std::net::SocketAddr;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::mpsc::RecvTimeoutError;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use weir_core::roster::{Member, Roster};
use weir_core::types::Rank;

use super::state::{forget_stdio, spawn, Agent, Event, LocalServer};
use super::summary::{Request, SOCKET};
use crate::hosted_server::{find_here, name_of, own_name, HostedServer, OwnServers};
use crate::join;
use crate::link::Link;
use crate::message::{AgentAssignment, AgentTask, MessageDown, MessageUp, StartFailure};
use crate::reach::StartMethod;
use crate::server::{self, read_line, to_line, Launch, RosterWritten, ServerAssignment};

/// Longer than any start.
const FOREVER: Duration = Duration::from_secs(86_400);

impl Agent {
    /// From nothing to ready.
    pub(super) fn begin(&mut self) -> Result<(), StartFailure> {
        let deadline = self.deadline();
        let (own, below) = self.split_assigned()?;
        let here = own
            .first()
            .map_or_else(|| "this node".to_owned(), |server| server.host.clone());
        let fail = |e: anyhow::Error| StartFailure {
            host: here.clone(),
            rank: None,
            why: format!("{e:#}"),
            lives: None,
            dead: false,
        };
        // Others first: they take longer.
        self.start_links(&below).map_err(fail)?;
        for server in own {
            self.start_server(server).map_err(fail)?;
        }
        self.wait(deadline, |agent| {
            agent.locals.iter().all(|local| local.bound)
        })?;
        self.settle_in().map_err(fail)?;
        self.wait(deadline, |agent| {
            agent.links.iter().all(|link| link.awaited().is_none())
        })?;
        // All have come: the file with the secret has done its service.
        self.invitation = None;
        self.members.sort_by_key(|member| member.rank);
        if self.charge.root {
            let mut members = std::mem::take(&mut self.members);
            if let AgentTask::Recover { missing } = &self.charge.task {
                add_missing(&mut members, missing);
            }
            let roster = Roster::new(self.charge.instance, members);
            self.roster = Some(roster.map_err(|e| fail(e.into()))?);
        } else {
            let members = std::mem::take(&mut self.members);
            self.say(&MessageUp::Bound(members));
            // Without a deadline: the agent above has one, and disconnects at it.
            self.wait(Instant::now() + FOREVER, |agent| agent.roster.is_some())?;
        }
        self.spread_roster().map_err(fail)?;
        // For this step anew, except at the root, whose deadline is that of the whole.
        let deadline = if self.charge.root {
            deadline
        } else {
            self.deadline()
        };
        self.wait(deadline, |agent| {
            agent.locals.iter().all(|local| local.ready.is_some())
                && agent.links.iter().all(|link| link.awaited().is_none())
        })?;
        self.serve_socket().map_err(fail)?;
        self.started = true;
        let ready = std::mem::take(&mut self.ready_servers);
        self.say(&MessageUp::Ready(ready));
        if self.charge.root && !self.charge.lifeline {
            forget_stdio();
        }
        Ok(())
    }

    pub(super) fn deadline(&self) -> Instant {
        Instant::now() + Duration::from_millis(self.charge.deadline_ms)
    }

    /// Splits the assigned servers into the agent's own, and those of the agents below it.
    pub(super) fn split_assigned(
        &self,
    ) -> Result<(Vec<HostedServer>, Vec<HostedServer>), StartFailure> {
        let mut servers = self.charge.assigned.clone();
        match self.charge.own {
            OwnServers::All => Ok((servers, Vec::new())),
            OwnServers::First => {
                let below = servers.split_off(1.min(servers.len()));
                Ok((servers, below))
            }
            OwnServers::ByName => match find_here(&servers) {
                Ok(server) => Ok((vec![server], Vec::new())),
                Err(e) => Err(StartFailure {
                    host: own_name(),
                    rank: None,
                    why: format!("{e:#}"),
                    lives: None,
                    dead: false,
                }),
            },
        }
    }

    pub(super) fn start_links(&mut self, below: &[HostedServer]) -> Result<()> {
        // Agents below have shorter deadlines, so that the one nearest to a hang reports it.
        let below_charge = AgentAssignment {
            deadline_ms: self.charge.deadline_ms * 9 / 10,
            root: false,
            lifeline: true,
            ..self.charge.clone()
        };
        for branch in self.charge.reach.branches(below) {
            let (index, tell) = (self.links.len(), self.tell.clone());
            let link = Link::start(&branch, move |up| {
                let _ = tell.send(Event::Link(index, up));
            });
            let link =
                link.with_context(|| format!("starting weir on {}", branch.servers[0].host))?;
            if !branch.joins {
                link.send(&MessageDown::Charge(Box::new(AgentAssignment {
                    assigned: branch.servers,
                    own: branch.own,
                    reach: branch.reach,
                    ..below_charge.clone()
                })));
            }
            self.links.push(link);
        }
        if let StartMethod::Join { file, .. } = &self.charge.reach {
            let tell = self.tell.clone();
            let charge = AgentAssignment {
                assigned: below.to_vec(),
                own: OwnServers::ByName,
                reach: StartMethod::Nowhere,
                ..below_charge
            };
            let host = self.charge.assigned[0].host.clone();
            let invited = join::invite(Path::new(file), charge, &host, move |rank, stream| {
                let _ = tell.send(Event::Joined(rank, stream));
            });
            self.invitation = Some(invited.context("inviting the other nodes")?);
        }
        Ok(())
    }

    fn start_server(&mut self, server: HostedServer) -> Result<()> {
        let local = self.spawn_server(self.locals.len(), server, None)?;
        self.locals.push(local);
        Ok(())
    }

    /// Starts a server again that was killed after it had been ready: it has a journal to come
    /// back to, and the others wait for it where it was.
    pub(super) fn start_again(&mut self, index: usize) -> Result<()> {
        let server = self.locals[index].server.clone();
        let roster = self.roster.as_ref().context("there is no roster")?;
        let member = roster
            .member(Rank(server.rank))
            .context("not in the roster")?;
        let mut local = self.spawn_server(index, server, Some(member.address))?;
        local.bound = true;
        local.restarts = self.locals[index].restarts + 1;
        local.run_dir = self.locals[index].run_dir.take();
        local.dirs = std::mem::take(&mut self.locals[index].dirs);
        // The lock is kept throughout, so that no other start clears the directories away.
        local.kept = std::mem::take(&mut self.locals[index].kept);
        self.locals[index] = local;
        Ok(())
    }

    fn spawn_server(
        &self,
        index: usize,
        server: HostedServer,
        again: Option<SocketAddr>,
    ) -> Result<LocalServer> {
        let share = match self.charge.own {
            OwnServers::All => u32::from(self.charge.servers),
            _ => 1,
        };
        let (child, lifeline, words) = server::spawn(&Launch {
            name: Some(name_of(&self.charge.name, server.rank, share)),
            run_dir: None,
            job: self.charge.job.clone().on_this_node(),
            lifeline: true,
            drain_to: self.charge.drain_to.clone(),
            settings: self.charge.settings.clone(),
            part: Some(ServerAssignment {
                instance: self.charge.instance,
                secret: self.charge.secret.clone(),
                rank: server.rank,
                servers: self.charge.servers,
                host: server.host.clone(),
                share,
                again,
                recovers: self.recovers(),
                given_up: self.given_up(),
            }),
        })?;
        let tell = self.tell.clone();
        spawn("weir-server", move || {
            let mut words = BufReader::new(words);
            loop {
                let word = read_line(&mut words).ok();
                let over = word.is_none();
                if tell.send(Event::Server(index, word)).is_err() || over {
                    return;
                }
            }
        })?;
        Ok(LocalServer {
            server,
            child,
            lifeline: Some(lifeline),
            run_dir: None,
            bound: false,
            ready: None,
            dirs: Vec::new(),
            kept: Vec::new(),
            ended: None,
            closed: false,
            restarts: 0,
        })
    }

    /// Once there is a run directory, standard error is a file in it.
    fn settle_in(&self) -> Result<()> {
        if let Some(run_dir) = self.run_dir() {
            let log = std::fs::File::options()
                .create(true)
                .append(true)
                .open(run_dir.join("agent.log"))?;
            nix::unistd::dup2_stderr(&log)?;
        }
        Ok(())
    }

    fn run_dir(&self) -> Option<&Path> {
        self.locals.first()?.run_dir.as_deref()
    }

    fn spread_roster(&mut self) -> Result<()> {
        let roster = self.roster.as_ref().expect("made, or waited for");
        let line: Arc<str> = to_line(&MessageDown::Roster(roster.clone())).into();
        for link in &mut self.links {
            link.done.clear();
            link.send_line(&line);
        }
        let text = to_line(roster);
        for local in &mut self.locals {
            let run_dir = local.run_dir.as_deref().expect("bound");
            weir_instance::roster::write(run_dir, &text)?;
            let lifeline = local.lifeline.as_mut().expect("not ended");
            writeln!(lifeline, "{}", to_line(&RosterWritten {})).context("the server went away")?;
        }
        Ok(())
    }

    fn serve_socket(&self) -> Result<()> {
        for local in &self.locals {
            let run_dir = local.run_dir.as_deref().expect("bound");
            if self.recovers() {
                // That of the agent that was killed.
                let _ = std::fs::remove_file(run_dir.join(SOCKET));
            }
            let listener = UnixListener::bind(run_dir.join(SOCKET)).context(SOCKET)?;
            let tell = self.tell.clone();
            spawn("weir-asked", move || {
                let asked = listener.incoming().flatten();
                for (request, asked) in asked.filter_map(Request::read) {
                    if tell.send(Event::Asked(request, asked)).is_err() {
                        return;
                    }
                }
            })?;
        }
        Ok(())
    }

    /// Takes events until `done` or the deadline.
    fn wait(
        &mut self,
        deadline: Instant,
        done: impl Fn(&Self) -> bool,
    ) -> Result<(), StartFailure> {
        while !done(self) {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.events.recv_timeout(left) {
                Ok(event) => self.handle_event(event)?,
                Err(RecvTimeoutError::Timeout) => return Err(self.too_late()),
                Err(RecvTimeoutError::Disconnected) => unreachable!("a sender is kept"),
            }
            if self.ending.is_some() {
                return Err(StartFailure {
                    host: own_name(),
                    rank: None,
                    why: "given up: it was asked to end before all was ready".into(),
                    lives: None,
                    dead: false,
                });
            }
        }
        Ok(())
    }

    fn too_late(&self) -> StartFailure {
        let seconds = self.charge.deadline_ms.div_ceil(1000);
        let late = self
            .links
            .iter()
            .find_map(|link| Some((link.awaited()?, link.last_output())));
        let (host, rank, output) = match late {
            Some((server, output)) => (server.host.clone(), Some(server.rank), output),
            None => (own_name(), self.late_local(), String::new()),
        };
        StartFailure {
            host,
            rank,
            why: format!("not ready after {seconds} s (launch.deadline_s){output}"),
            lives: None,
            dead: false,
        }
    }

    /// A server of this node that has not become ready.
    fn late_local(&self) -> Option<u16> {
        let late = self.locals.iter().find(|local| local.ready.is_none());
        late.map(|local| local.server.rank)
    }
}

/// Adds the servers that cannot be brought back, where they were. Nobody answers there, unless one of the others has
/// got that port by now: then at the next one.
fn add_missing(members: &mut Vec<Member>, missing: &[Member]) {
    for member in missing {
        let mut member = member.clone();
        while members.iter().any(|one| one.address == member.address) {
            let port = member.address.port();
            member.address.set_port(port.checked_add(1).unwrap_or(1024));
        }
        members.push(member);
    }
    members.sort_by_key(|member| member.rank);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_server_has_an_address_of_nobody_else() {
        let member = |rank, port| Member {
            rank: Rank(rank),
            host: "n".into(),
            address: SocketAddr::from(([127, 0, 0, 1], port)),
            endpoint: None,
            is_mover: false,
        };
        let mut members = vec![member(2, 4000), member(0, 4001)];
        add_missing(&mut members, &[member(1, 4000), member(3, 65535)]);
        let is: Vec<(u16, u16)> = members
            .iter()
            .map(|member| (member.rank.0, member.address.port()))
            .collect();
        assert_eq!(is, [(0, 4001), (1, 4002), (2, 4000), (3, 65535)]);
    }
}

//! From ready to the end, in order or not.

use std::io::Write;
use std::path::PathBuf;
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use weir_instance::directories::clear_dirs;
use weir_instance::errln;

use super::state::{Agent, AgentEnding, EndNotice, LocalServer};
use super::summary::Summary;
use crate::link::Link;
use crate::message::{MessageDown, MessageUp};
use crate::server::to_line;

/// How long what was given up may take to end by itself.
pub(super) const GIVE_UP: Duration = Duration::from_secs(10);

/// How long the end of servers is waited for in silence.
const SAY_AFTER: Duration = Duration::from_secs(5);

impl Agent {
    /// From ready to the end.
    pub(super) fn live(&mut self) {
        for link in &mut self.links {
            link.done.clear();
        }
        while self.ending.is_none() {
            let Ok(event) = self.events.recv() else {
                return;
            };
            let _ = self.handle_event(event);
        }
        self.stop();
    }

    /// Ends what is here and below, tells what came of it, and leaves.
    fn stop(&mut self) {
        if self.ending == Some(AgentEnding::Orphaned) && self.keeps_remains() {
            return self.leave_remains();
        }
        self.links
            .iter()
            .for_each(|link| link.send(&MessageDown::Stop));
        self.locals.iter_mut().for_each(LocalServer::order_stop);
        self.handle_until(|agent| {
            agent.locals.iter().all(|local| local.closed)
                && agent
                    .links
                    .iter()
                    .all(|link| link.closed || link.awaited().is_none())
        });
        for local in &mut self.locals {
            match local.ended.take() {
                Some(ended) => self.ended.push((local.server.clone(), ended)),
                None => clear_lost(local),
            }
        }
        let ended = std::mem::take(&mut self.ended);
        let summary = if self.charge.root {
            Summary::sum(&ended, &self.lost)
        } else {
            self.say(&MessageUp::Ended(ended));
            self.handle_until(|agent| agent.farewell.is_some() || agent.above_closed);
            Summary {
                report: self
                    .farewell
                    .take()
                    .and_then(|all| all.report.map(|report| *report)),
                problems: self.lost.clone(),
                lost: self.lost.len(),
            }
        };
        let farewell = MessageDown::Farewell(summary.report.clone().map(Box::new));
        self.farewell = Some(EndNotice { report: None });
        for link in &mut self.links {
            link.send(&farewell);
            link.hang_up();
        }
        self.handle_until(|agent| agent.links.iter().all(|link| link.closed));
        for asked in &mut self.asked {
            let _ = writeln!(asked, "{}", to_line(&summary));
        }
        if self.charge.root && self.charge.lifeline {
            // The process above may be gone.
            let _ = writeln!(std::io::stdout(), "{}", to_line(&summary));
        }
    }

    /// Ends what is here and below as if it had been killed: nobody is left who would have moved what it holds. The
    /// agents below see only the end of the pipe, as the servers do.
    fn leave_remains(&mut self) {
        errln!("the process above was lost: what the servers hold stays, for weir recover");
        self.farewell = Some(EndNotice { report: None });
        self.hang_up();
        self.handle_until(|agent| {
            agent.locals.iter().all(|local| local.closed)
                && agent.links.iter().all(|link| link.closed)
        });
    }

    /// Ends the pipes to what is here and below.
    fn hang_up(&mut self) {
        self.links.iter_mut().for_each(Link::hang_up);
        self.locals
            .iter_mut()
            .for_each(|local| local.lifeline = None);
    }

    /// Takes events until `done`. No end is put to the wait, for what servers still do may take
    /// its time; those that asked are told which servers it is for.
    fn handle_until(&mut self, done: impl Fn(&Self) -> bool) {
        while !done(self) {
            match self.events.recv_timeout(SAY_AFTER) {
                Ok(event) => drop(self.handle_event(event)),
                Err(RecvTimeoutError::Timeout) => self.say_whom_it_waits_for(),
                Err(RecvTimeoutError::Disconnected) => unreachable!("a sender is kept"),
            }
        }
    }

    fn say_whom_it_waits_for(&mut self) {
        let locals = self.locals.iter().filter(|local| !local.closed);
        let links = self.links.iter().filter(|link| !link.closed);
        let below = links.flat_map(|link| {
            let awaited = link.servers.iter();
            awaited.filter(|server| !link.done.contains(&server.rank))
        });
        let names = locals.map(|local| &local.server).chain(below);
        let names = names.map(|server| format!("server {} on {}", server.rank, server.host));
        let mut names: Vec<String> = names.collect();
        if names.is_empty() {
            names.push("servers of other nodes".to_owned());
        }
        for asked in &mut self.asked {
            let _ = writeln!(asked, "waiting for {}", names.join(", "));
        }
    }

    /// The start failed: everything here and below is to go, soon; of an instance that was to be recovered its processes
    /// only.
    pub(super) fn give_up(&mut self) {
        self.started = true;
        self.ending = Some(AgentEnding::GivenUp);
        self.farewell = Some(EndNotice { report: None });
        if !self.recovers() {
            let links = self.links.iter();
            links.for_each(|link| link.send(&MessageDown::Stop));
            self.locals.iter_mut().for_each(LocalServer::order_stop);
        }
        self.hang_up();
        // Where no agent is yet, none has anything to clear away; if it is on its way, it
        // finds the connection closed.
        let silent = self.links.iter_mut().filter(|link| !link.heard);
        silent.for_each(Link::kill);
        let deadline = Instant::now() + GIVE_UP;
        let gone = |agent: &Self| {
            agent.locals.iter().all(|local| local.closed)
                && agent.links.iter().all(|link| link.closed)
        };
        while !gone(self) {
            let left = deadline.saturating_duration_since(Instant::now());
            let Ok(event) = self.events.recv_timeout(left) else {
                break;
            };
            let _ = self.handle_event(event);
        }
        self.links.iter_mut().for_each(Link::kill);
    }
}

/// The instance ends: what a server left that was lost is of no use to anybody.
fn clear_lost(local: &mut LocalServer) {
    local.kept.clear();
    if let Err(e) = clear_dirs(local.dirs.iter().map(PathBuf::as_path)) {
        errln!(
            "server {} on {}: {e:#}",
            local.server.rank,
            local.server.host
        );
    }
}

//! One event at a time: how it changes the state of the agent.

use std::io::Write;

use super::state::{forget_stdio, spawn, Agent, AgentEnding, EndNotice, Event};
use super::summary::{EmployAnswer, Request};
use crate::message::{MessageDown, MessageUp, StartFailure};
use crate::server::to_line;
use crate::workers::{Task, WorkerInvitation};
use weir_instance::errln;

impl Agent {
    /// Takes note of one event.
    pub(super) fn handle_event(&mut self, event: Event) -> Result<(), StartFailure> {
        match event {
            Event::Above(Ok(Some(MessageDown::Roster(roster)))) => self.roster = Some(roster),
            Event::Above(Ok(Some(MessageDown::Stop))) => self.end_as(AgentEnding::Ordered),
            Event::Above(Ok(Some(MessageDown::Stay))) => self.stay(),
            Event::Above(Ok(Some(MessageDown::Farewell(report)))) => {
                self.farewell = Some(EndNotice { report });
            }
            Event::Above(Ok(Some(MessageDown::Look(id)))) => self.look(id),
            Event::Above(Ok(Some(MessageDown::Work(invitation)))) => self.work(&invitation),
            Event::Above(Ok(Some(MessageDown::Answer(id, seen)))) => self.answered(id, seen),
            Event::Above(Ok(Some(MessageDown::Charge(_)))) => {}
            Event::Above(Ok(None) | Err(_)) => {
                self.above_closed = true;
                if self.charge.lifeline || !self.started {
                    self.end_as(AgentEnding::Orphaned);
                }
            }
            Event::Server(index, word) => return self.heard_server(index, word),
            Event::Link(index, up) => return self.heard_link(index, up),
            Event::Signal(signal) => {
                if self.charge.heed_signals || !self.started {
                    errln!("stopping on {signal}");
                    self.end_on_signal();
                }
            }
            Event::Joined(rank, stream) => {
                let link = self
                    .links
                    .iter_mut()
                    .find(|link| link.servers[0].rank == rank);
                if let Some(Err(e)) = link.map(|link| link.joined(stream)) {
                    errln!("{e:#}");
                }
            }
            Event::JobOver => {
                errln!("stopping with the job");
                self.end_as(AgentEnding::Orphaned);
            }
            Event::Asked(Request::Stop, stream) => {
                self.asked.push(stream);
                self.ask_to_stop();
            }
            Event::Asked(Request::Status, stream) => self.asked_for_status(stream),
            Event::Asked(Request::Employ(invitation), mut stream) => {
                // Only this one reaches all servers.
                let employed = self.charge.root;
                if employed {
                    self.work(&invitation);
                }
                let answer = to_line(&EmployAnswer { employed });
                // The process that asked may have ended.
                let _ = writeln!(stream, "{answer}");
            }
            Event::Seen(id, seen) => self.saw(id, seen),
            Event::LookOver(id) => self.close_look(id),
        }
        Ok(())
    }

    /// Has it end. The first reason counts: an end that was ordered goes on if the process above is lost.
    fn end_as(&mut self, ending: AgentEnding) {
        self.ending.get_or_insert(ending);
    }

    /// A batch system sends SIGTERM to all processes of a job whose time is up: what is to be moved to the parallel
    /// file system stays then. The root decides for all.
    fn end_on_signal(&mut self) {
        if !self.started || !self.keeps_remains() {
            self.ask_to_stop();
        } else if self.charge.root {
            self.end_as(AgentEnding::Orphaned);
        }
    }

    /// Lives on without the process above.
    fn stay(&mut self) {
        if self.charge.root && self.charge.lifeline {
            self.charge.lifeline = false;
            self.charge.heed_signals = true;
            forget_stdio();
        }
    }

    /// Has a worker started beside each server. If one cannot be started, the process that waits for it finds that out by its deadline.
    fn work(&self, invitation: &WorkerInvitation) {
        let down = MessageDown::Work(invitation.clone());
        self.links.iter().for_each(|link| link.send(&down));
        for local in &self.locals {
            let Some(run_dir) = local.run_dir.clone() else {
                continue;
            };
            let task = Task {
                invitation: invitation.clone(),
                number: local.server.rank,
                run_dir,
            };
            let tended = task.start(&[]).and_then(|mut child| {
                spawn("weir-worker", move || {
                    let _ = child.wait();
                })
            });
            if let Err(e) = tended {
                errln!("a worker beside server {}: {e:#}", local.server.rank);
            }
        }
    }

    /// The whole instance is to stop: the root knows how.
    pub(super) fn ask_to_stop(&mut self) {
        if self.charge.root {
            self.end_as(AgentEnding::Ordered);
        } else {
            self.say(&MessageUp::Stop);
        }
    }
}

//! The state of all servers, for `weir status` on any node.
//!
//! The root asks all agents (`Look`), each answers for its servers and passes on what those below
//! it say (`Saw`). Who asks on another node asks through its agents (`Ask`), and the answer goes
//! the same way back. Numbers of questions are unique: that of the agent that was asked, which
//! is random, and a count.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use weir_core::proto::Status;
use weir_instance::connection::Connection;

use super::state::{spawn, Agent, Event, QuerySource, ReportQuery};
use crate::hosted_server::HostedServer;
use crate::message::{MessageDown, MessageUp, ServerReport};
use crate::server::to_line;

/// How long servers may take to answer.
const PATIENCE: Duration = Duration::from_secs(3);

impl Agent {
    /// Somebody asked at the socket.
    pub(super) fn asked_for_status(&mut self, stream: UnixStream) {
        self.looks.count += 1;
        let id = self.number.wrapping_add(self.looks.count);
        if self.charge.root {
            self.open_look(id, QuerySource::Here(stream));
        } else {
            self.looks.waiting.insert(id, stream);
            self.say(&MessageUp::Ask(id));
        }
    }

    /// Somebody asked below.
    pub(super) fn asked_below(&mut self, link: usize, id: u64) {
        if self.charge.root {
            self.open_look(id, QuerySource::Below(link));
        } else {
            self.looks.routes.insert(id, link);
            self.say(&MessageUp::Ask(id));
        }
    }

    fn open_look(&mut self, id: u64, asker: QuerySource) {
        let servers = self.charge.assigned.iter();
        let look = ReportQuery {
            asker,
            missing: servers.map(|server| server.rank).collect(),
            seen: Vec::new(),
        };
        self.looks.open.insert(id, look);
        let tell = self.tell.clone();
        let timer = spawn("weir-look", move || {
            std::thread::sleep(PATIENCE);
            let _ = tell.send(Event::LookOver(id));
        });
        self.look(id);
        if timer.is_err() {
            self.close_look(id);
        }
    }

    /// Asks the servers here and the agents below.
    pub(super) fn look(&mut self, id: u64) {
        let lost = |server: &HostedServer| silent(server, "it was lost");
        let mut gone = Vec::new();
        for link in &self.links {
            match link.closed {
                true => gone.extend(link.servers.iter().map(lost)),
                false => link.send(&MessageDown::Look(id)),
            }
        }
        for local in &self.locals {
            let (Some(run_dir), false) = (local.run_dir.clone(), local.closed) else {
                gone.push(lost(&local.server));
                continue;
            };
            if local.ready.is_none() {
                let why = "it was lost, and is being started again";
                gone.push(silent(&local.server, why));
                continue;
            }
            let (server, tell) = (local.server.clone(), self.tell.clone());
            let restarts = local.restarts;
            let ask = move || {
                let status = Connection::to(&run_dir).and_then(|mut to| to.call(Status {}));
                let report = status.map_err(|e| format!("{e:#}"));
                let seen = ServerReport {
                    server,
                    report,
                    restarts,
                };
                let _ = tell.send(Event::Seen(id, seen));
            };
            if spawn("weir-look", ask).is_err() {
                gone.push(lost(&local.server));
            }
        }
        for seen in gone {
            self.saw(id, seen);
        }
    }

    /// One has answered.
    pub(super) fn saw(&mut self, id: u64, seen: ServerReport) {
        if !self.charge.root {
            return self.say(&MessageUp::Saw(id, Box::new(seen)));
        }
        let Some(look) = self.looks.open.get_mut(&id) else {
            return;
        };
        if look.missing.remove(&seen.server.rank) {
            look.seen.push(seen);
        }
        if look.missing.is_empty() {
            self.close_look(id);
        }
    }

    /// Answers with what there is.
    pub(super) fn close_look(&mut self, id: u64) {
        let Some(mut look) = self.looks.open.remove(&id) else {
            return;
        };
        let why = format!("no answer in {} s", PATIENCE.as_secs());
        let missing = self.charge.assigned.iter();
        let missing = missing.filter(|server| look.missing.contains(&server.rank));
        look.seen.extend(missing.map(|server| silent(server, &why)));
        look.seen.sort_by_key(|seen| seen.server.rank);
        match look.asker {
            QuerySource::Here(stream) => answer(stream, &look.seen),
            QuerySource::Below(link) => self.links[link].send(&MessageDown::Answer(id, look.seen)),
        }
    }

    /// An answer from the root, for here or for below.
    pub(super) fn answered(&mut self, id: u64, seen: Vec<ServerReport>) {
        if let Some(stream) = self.looks.waiting.remove(&id) {
            answer(stream, &seen);
        } else if let Some(link) = self.looks.routes.remove(&id) {
            self.links[link].send(&MessageDown::Answer(id, seen));
        }
    }
}

/// A server that says nothing of itself.
fn silent(server: &HostedServer, why: &str) -> ServerReport {
    ServerReport {
        server: server.clone(),
        report: Err(why.into()),
        restarts: 0,
    }
}

fn answer(mut stream: UnixStream, seen: &[ServerReport]) {
    // The asker may have disconnected.
    let _ = stream
        .set_write_timeout(Some(PATIENCE))
        .and_then(|()| writeln!(stream, "{}", to_line(&seen)));
}

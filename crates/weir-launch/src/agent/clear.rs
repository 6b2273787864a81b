//! Clearing what the servers of an instance left that were all killed, on every node that can be reached.

use std::time::Instant;

use anyhow::Result;
use weir_config::{Environment, Loaded};
use weir_instance::directories::Remains;

use super::end::GIVE_UP;
use super::state::{Agent, AgentEnding};
use crate::link::Link;
use crate::message::{MessageUp, StartFailure};

impl Agent {
    /// Clears what its own servers left, has the agents below do the same, and tells the outcome.
    pub(super) fn clear(&mut self) -> Result<(), StartFailure> {
        let deadline = self.deadline();
        // The end of an agent below is the loss of its servers from now on, and no failure of all.
        self.started = true;
        let (own, below) = self.split_assigned()?;
        let failed = |e: anyhow::Error| StartFailure {
            host: own[0].host.clone(),
            rank: None,
            why: format!("{e:#}"),
            lives: None,
            dead: false,
        };
        self.start_links(&below).map_err(failed)?;
        let outcome = self.clear_own().map_err(|e| format!("{e:#}"));
        self.cleared
            .extend(own.iter().map(|server| (server.clone(), outcome.clone())));
        self.take_events(deadline, |link| link.closed || link.awaited().is_none());
        for link in &mut self.links {
            let silent = link
                .servers
                .iter()
                .filter(|server| !link.done.contains(&server.rank));
            let silent: Vec<_> = silent.cloned().collect();
            if silent.is_empty() {
                continue;
            }
            let why = match link.closed {
                true => link.describe_end(),
                false => format!("no answer{}", link.last_output()),
            };
            let of_link = silent.into_iter().map(|server| (server, Err(why.clone())));
            self.cleared.extend(of_link);
        }
        let cleared = std::mem::take(&mut self.cleared);
        self.say(&MessageUp::Cleared(cleared));
        self.links.iter_mut().for_each(Link::hang_up);
        self.take_events(Instant::now() + GIVE_UP, |link| link.closed);
        self.links.iter_mut().for_each(Link::kill);
        Ok(())
    }

    /// Takes events until all links are done, or the deadline.
    fn take_events(&mut self, deadline: Instant, is_done: impl Fn(&Link) -> bool) {
        self.ending = Some(AgentEnding::GivenUp);
        while !self.links.iter().all(&is_done) {
            let left = deadline.saturating_duration_since(Instant::now());
            let Ok(event) = self.events.recv_timeout(left) else {
                return;
            };
            let _ = self.handle_event(event);
        }
    }

    fn clear_own(&self) -> Result<()> {
        let config = Loaded::from_toml(&self.charge.settings, &Environment::default())?.config;
        let env = Environment::of_process();
        let Some(mut remains) = Remains::named(&self.charge.name, &config, &env) else {
            return Ok(());
        };
        // Another instance may have that name by now.
        remains.labels.retain(|label| {
            let part = label.part.as_ref();
            part.is_some_and(|part| part.instance == self.charge.instance)
        });
        remains.clear()
    }
}

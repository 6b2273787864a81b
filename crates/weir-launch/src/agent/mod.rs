//! One node's part in an instance of several servers: `weir agent`.
//!
//! It starts its own server and the agents below, passes addresses up and the roster down, and
//! stays until the instance ends. Everything that happens is an event of one queue.
//!
//! Invariants:
//! - until all is ready, any failure ends everything below and is told above with the name of
//!   its node; after that, a server that is killed is started again, unless it had not become
//!   ready: then its death is told, and the others go on;
//! - what is above ends, then this ends its servers and what is below; only the agent of the
//!   first node under `weir start` lives on, until it is asked (`agent.sock`, SIGTERM);
//! - what is to be moved to the parallel file system is cleared by an order only, not because a process was lost
//!   or a signal came.
//!
//! | file | subject |
//! | --- | --- |
//! | `state` | what an agent knows, and the events of its queue |
//! | `begin` | from nothing to ready |
//! | `clear` | instead of that: clearing what killed servers left |
//! | `events` | one event |
//! | `hear` | what servers and the agents below say |
//! | `look` | what all servers are doing |
//! | `end` | from ready to the end |
//! | `summary` | what is asked at the socket, how it ended |

mod begin;
mod clear;
mod end;
mod events;
mod hear;
mod look;
mod state;
mod summary;

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::sync::mpsc::{channel, Receiver, Sender};

use anyhow::{ensure, Result};
use nix::sys::signal::{SigSet, Signal};

use crate::join;
use crate::message::{read_down, AgentAssignment, AgentTask, MessageDown, MessageUp};
use crate::random::random;
use state::{spawn, Agent, Event};
pub use summary::{employ, status, stop, Summary};

/// `weir agent`: told what it is on standard input, or by the file of an invitation.
pub fn run(invitation: Option<&Path>) -> Result<()> {
    let (tell, events) = channel();
    watch_signals(tell.clone())?;
    match invitation {
        None => {
            let mut above = BufReader::new(std::io::stdin());
            let charge = match read_down(&mut above)? {
                Some(MessageDown::Charge(charge)) => *charge,
                _ => anyhow::bail!("weir agent is started by weir run and weir start"),
            };
            act(charge, above, Box::new(std::io::stdout()), events, tell)
        }
        Some(file) => {
            let (charge, above, up) = join::join(file)?;
            act(charge, BufReader::new(above), Box::new(up), events, tell)
        }
    }
}

fn act(
    charge: AgentAssignment,
    mut above: impl BufRead + Send + 'static,
    up: Box<dyn Write + Send>,
    events: Receiver<Event>,
    tell: Sender<Event>,
) -> Result<()> {
    let own = env!("CARGO_PKG_VERSION");
    ensure!(
        charge.version == own,
        "weir here is of version {own}, on the first node of {}",
        charge.version
    );
    if charge.root {
        // A terminal's keys and hangups are not for it. It fails for a leader of a group, which is as good.
        let _ = nix::unistd::setsid();
    }
    let to = tell.clone();
    spawn("weir-above", move || loop {
        let down = read_down(&mut above);
        let over = !matches!(down, Ok(Some(_)));
        if to.send(Event::Above(down)).is_err() || over {
            return;
        }
    })?;
    let number = u64::from_ne_bytes(random()?);
    let clears = charge.task == AgentTask::Clear;
    let mut agent = Agent::new(number, charge, up, events, tell);
    if clears {
        if let Err(failed) = agent.clear() {
            agent.say(&MessageUp::Failed(failed));
        }
        return Ok(());
    }
    match agent.begin() {
        Ok(()) => agent.live(),
        Err(failed) => {
            agent.say(&MessageUp::Failed(failed));
            agent.give_up();
        }
    }
    Ok(())
}

/// Reads signals in a thread; the others inherit that they are blocked. Children do too, which
/// for servers is as it should be, and launchers are ended by their pipes.
fn watch_signals(tell: Sender<Event>) -> Result<()> {
    let signals: SigSet = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP]
        .into_iter()
        .collect();
    signals.thread_block()?;
    spawn("weir-signals", move || {
        while let Ok(signal) = signals.wait() {
            if tell.send(Event::Signal(signal)).is_err() {
                return;
            }
        }
    })
}

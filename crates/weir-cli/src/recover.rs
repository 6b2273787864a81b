//! `weir recover`: what dead instances of this node have is moved to the parallel file system, and they are
//! cleared, one after the other. What one cannot have moved does not keep the others.
//!
//! An instance of several servers is brought back on all its nodes. If some of its servers cannot be, the others' files are
//! moved, and everything stays where it is for another try.

use std::path::Path;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::Context;
use weir_config::{Environment, Loaded};
use weir_core::proto::Status;
use weir_instance::connection::{Connection, Use};
use weir_instance::directories::{self, Label, Remains};
use weir_instance::errln;
use weir_launch::recover::{self as servers, MissingServer};

use crate::args::{EarlierDrains, RecoverArgs};
use crate::ending::{end_living, move_out, InstanceEnding};
use crate::exit::Failure;
use crate::locate::{refuse_under_mirrors, remains_of, run_dir_of};
use crate::run::take_up;

/// The time in which a server notices that its run was killed.
const NOTICE_TIME: Duration = Duration::from_secs(2);
/// The longest time that the end of a server is waited for.
const END_TIME: Duration = Duration::from_secs(60);
/// The time in which a server that lives answers.
const ANSWER_TIME: Duration = Duration::from_secs(2);
/// The time between two looks.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);

/// `weir recover`. `NotMoved`: what an instance has is not all safe; it stays.
pub fn recover(args: &RecoverArgs, settings: &Loaded, env: &Environment) -> Result<(), Failure> {
    let undead = await_dying(args, settings, env);
    for label in &undead {
        errln!(
            "weir: {}: its server is ending, or does not answer, and still holds its files; nothing of it was moved: try again",
            label.name
        );
    }
    let found = find_dead(args, &undead, settings, env)?;
    if found.is_empty() && undead.is_empty() {
        outln!("weir: no dead instance on this node has files that are to be moved out of it");
    }
    let mut left: Vec<String> = undead.into_iter().map(|label| label.name).collect();
    for remains in &found {
        if args.list || !may_move(args, remains) {
            outln!("weir: {}", remains.describe());
            for target in remains.first().drain_targets() {
                outln!("weir: {}: files for {}", remains.name, target.display());
            }
            left.extend((!args.list).then(|| remains.name.clone()));
            continue;
        }
        let ending = InstanceEnding {
            drain_to: args.drain_to.as_deref(),
            drains: true,
            by_force: false,
            before: EarlierDrains::Killed,
        };
        if let Err(failure) = end_dead(remains, ending, settings, env) {
            errln!("weir: {}: {failure}", remains.name);
            left.push(remains.name.clone());
        }
    }
    match left.is_empty() {
        true => Ok(()),
        false => Err(Failure::NotMoved(left.join(", "))),
    }
}

/// Waits for servers that are ending: of a run that was killed a moment ago they count neither as dead nor as used. A server
/// that holds much memory takes some time to end. Returns those that hang.
fn await_dying(args: &RecoverArgs, settings: &Loaded, env: &Environment) -> Vec<Label> {
    let is_meant = |label: &Label| match args.instances.is_empty() {
        true => args.drain_to.is_some() || label.awaits_drain(),
        false => args.instances.iter().any(|one| is_named(label, one)),
    };
    let mut ending = directories::living(&settings.config, env);
    ending.retain(is_meant);
    let began = Instant::now();
    while !ending.is_empty() {
        ending.retain(|label| label.is_held() && Use::all(&label.run_dir).is_empty());
        if began.elapsed() > NOTICE_TIME {
            // The others are those of weir start, and of nodes without a weir run.
            ending.retain(|label| !answers(&label.run_dir));
        }
        if began.elapsed() > END_TIME {
            break;
        }
        std::thread::sleep(LOOK_INTERVAL);
    }
    ending
}

/// True if an instance has a name, or is a part of the instance of that name.
fn is_named(label: &Label, name: &str) -> bool {
    [&label.name, label.instance()].contains(&name)
}

/// True if the server of a run directory answers.
fn answers(run_dir: &Path) -> bool {
    let (told, answer) = mpsc::channel();
    let run_dir = run_dir.to_owned();
    // One that does not leaves its thread behind until this process ends.
    std::thread::spawn(move || {
        let asked = Connection::to(&run_dir).and_then(|mut server| server.call(Status {}));
        let _ = told.send(asked.is_ok());
    });
    answer.recv_timeout(ANSWER_TIME).unwrap_or(false)
}

/// The instances that are asked for, other than the `undead`.
fn find_dead(
    args: &RecoverArgs,
    undead: &[Label],
    settings: &Loaded,
    env: &Environment,
) -> Result<Vec<Remains>, Failure> {
    if args.instances.is_empty() {
        let mut all = directories::all(&settings.config, env);
        all.retain(|remains| args.list || args.drain_to.is_some() || remains.awaits_drain());
        return Ok(all);
    }
    let find = |name: &String| {
        let run_dir = run_dir_of(Some(name), &settings.config, env)?;
        if directories::lives(&run_dir) {
            return Err(Failure::Refused(format!(
                "{name} is not dead: weir stop {name} moves what is to be moved out of it"
            )));
        }
        let remains = remains_of(&run_dir, &settings.config, env);
        remains.ok_or(Failure::NoInstance { run_dir })
    };
    let is_dead = |name: &&String| !undead.iter().any(|label| is_named(label, name));
    args.instances.iter().filter(is_dead).map(find).collect()
}

/// True if there is a directory to move files to, and something that can.
fn may_move(args: &RecoverArgs, remains: &Remains) -> bool {
    remains.obstacle().is_none() && (args.drain_to.is_some() || remains.awaits_drain())
}

/// Moves what a dead instance has, and ends it. It stays that of its own job meanwhile: one that is over would be cleared.
pub fn end_dead(
    remains: &Remains,
    ending: InstanceEnding<'_>,
    settings: &Loaded,
    env: &Environment,
) -> Result<(), Failure> {
    let label = remains.first();
    refuse_under_mirrors(&label.run_dir)?;
    let drain_to = ending.drain_to.or(label.drain_to.as_deref());
    let ending = InstanceEnding {
        drain_to,
        before: EarlierDrains::Killed,
        ..ending
    };
    if remains.is_of_several() {
        return end_dead_servers(remains, ending, settings, env);
    }
    let ready = take_up(remains, label.settings.clone(), label.job.clone())?;
    end_living(&ready.run_dir, ending, settings)
}

/// The same for an instance of several servers.
fn end_dead_servers(
    remains: &Remains,
    ending: InstanceEnding<'_>,
    settings: &Loaded,
    env: &Environment,
) -> Result<(), Failure> {
    let launch = servers::launch_settings(remains, settings)?;
    let left = remains.state();
    let recovered = servers::recover(remains, &launch, env)?;
    errln!("weir: {left}; its servers go on with it");
    let root = recovered.root;
    let ready = root.server(root.own).context("no server on this node")?;
    let run_dir = ready.run_dir.clone();
    let ended = match recovered.missing.is_empty() {
        true => end_living(&run_dir, ending, settings),
        false => move_from_some(&run_dir, ending, settings, &recovered.missing),
    };
    let gone = root.abandon();
    ended?;
    Ok(gone?)
}

/// Moves what is on the nodes whose servers are back. The instance stays.
fn move_from_some(
    run_dir: &Path,
    ending: InstanceEnding<'_>,
    settings: &Loaded,
    missing: &[MissingServer],
) -> Result<(), Failure> {
    for MissingServer { server, why } in missing {
        errln!(
            "weir: server {} on {} cannot be brought back, so what only it has is not moved: {why}",
            server.rank,
            server.host
        );
    }
    let ending = InstanceEnding {
        before: EarlierDrains::LostServers,
        ..ending
    };
    errln!(
        "weir: files are named that have bytes there, but not those whose names, or directories, only such a server had; \
         nothing is removed from the parallel file system until all servers are back"
    );
    move_out(run_dir, ending, settings)?;
    Err(Failure::NotMoved(format!(
        "what the other servers have is moved; {} missing, and the instance stays",
        match missing.len() {
            1 => "one is".to_owned(),
            n => format!("{n} are"),
        }
    )))
}

/// Clears a dead instance, of several servers on all nodes.
pub fn clear_dead(remains: &Remains, settings: &Loaded, env: &Environment) -> Result<(), Failure> {
    refuse_under_mirrors(&remains.first().run_dir)?;
    let left = remains.state();
    if !remains.is_of_several() {
        remains.clear()?;
        errln!("weir: {left}; cleared");
        return Ok(());
    }
    let launch = servers::launch_settings(remains, settings)?;
    let missing = servers::clear(remains, &launch, env)?;
    for MissingServer { server, why } in &missing {
        errln!(
            "weir: what server {} on {} left is not cleared; weir stop --no-drain {} there clears it: {why}",
            server.rank, server.host, remains.name
        );
    }
    match missing.len() {
        0 => errln!("weir: {left}; cleared"),
        n => return Err(anyhow::anyhow!("what {n} servers left may be there still").into()),
    }
    Ok(())
}

//! The server's process, `weir server`: from the first line on stdin to the last on stdout.
//!
//! It leaves the session of who started it (a terminal's keys and hangups are not for it) and
//! the directory (which may have to be unmounted). While `weir run` lives, only the lifeline
//! ends it: a batch system that signals a whole job must not take the file system away from a
//! program that is still saving its state. Without a lifeline SIGTERM and SIGINT stop it: in order, or, if it has
//! files that are to be moved to the parallel file system, so that another server can go on with them. For a batch
//! system sends SIGTERM to all processes of a job whose time is up.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

use anyhow::{bail, ensure, Context, Result};
use nix::poll::{poll, PollFd, PollFlags, PollTimeout};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use weir_config::{Config, Environment, Loaded, LogLevel};
use weir_core::types::Rank;
use weir_instance::connection;
use weir_instance::directories::{
    claim, Burial, Claim, Claimant, Claimed, Label, Parent, ServerPart,
};
use weir_instance::roster;
use weir_launch::address::fabric_listener;
use weir_launch::endpoint::{self, Opened};
use weir_launch::server::{
    read_line, to_line, Launch, LifelineWord, ReadyInstance, RosterWritten, ServerAssignment,
    ServerEnd, ServerMessage,
};

use crate::instance::{self, Membership};
use crate::limits::explained;
use crate::mount::ServerMount;
use crate::transfers::TransferStarter;

/// Serves one instance.
pub fn run() -> Result<()> {
    // Fails when this process leads a group: started by hand from a shell, which is fine.
    let _ = nix::unistd::setsid();
    let mut stdin = unbuffered_stdin();
    let launch: Launch =
        read_line(&mut stdin).context("weir server is started by weir run and weir start")?;
    match prepare(&launch) {
        Ok(Claimed::Ours(claim, burial)) => match join(&launch, &claim, &mut stdin) {
            Ok(membership) => serve(&launch, claim, burial, membership),
            Err(e) => {
                say(&ServerMessage::Failed(explained(format!("{e:#}"))))?;
                if claim.takes_up {
                    claim.leave();
                    return Ok(());
                }
                claim.release()
            }
        },
        Ok(Claimed::Lives { run_dir }) => say(&ServerMessage::Lives { run_dir }),
        Ok(Claimed::Dead(label)) => say(&ServerMessage::Dead(Box::new(label))),
        Err(e) => say(&ServerMessage::Failed(explained(format!("{e:#}")))),
    }
}

/// Listens for the other servers and waits to be told of them; `None` for the only one.
fn join(launch: &Launch, claim: &Claim, stdin: &mut impl BufRead) -> Result<Option<Membership>> {
    let Some(part) = &launch.part else {
        return Ok(None);
    };
    roster::write_secret(&claim.run_dir, &part.secret)?;
    let fabric = settings(launch)?.fabric;
    // An empty one among others that are not would be wrong about all that it had.
    ensure!(
        claim.takes_up || !goes_on(part),
        "nothing is left to go on with"
    );
    let listener = match part.again {
        Some(address) => {
            TcpListener::bind(address).with_context(|| format!("listening at {address} again"))?
        }
        None => fabric_listener(&fabric, &part.host, part.share > 1)?,
    };
    let address = listener.local_addr()?;
    let opened = endpoint::open(&fabric, address.ip());
    if part.again.is_none() {
        say(&ServerMessage::Bound {
            address,
            run_dir: claim.run_dir.clone(),
            endpoint: opened.endpoint(),
        })?;
        let RosterWritten {} =
            read_line(stdin).context("nobody is left to tell of the other servers")?;
    }
    let roster = roster::read(&claim.run_dir)?.context("there is no roster")?;
    let listed = roster.member(Rank(part.rank)).map(|member| member.address);
    ensure!(
        roster.instance() == part.instance
            && roster.servers() == part.servers
            && listed == Some(address),
        "the roster is of another instance"
    );
    // For a recovery, beside the journal.
    roster::write(&claim.shm_dir, &to_line(&roster))?;
    if let (Ok(_), Opened::Unusable(why)) = (roster.endpoints(), &opened) {
        // Who comes back cannot talk over anything else than the others.
        bail!("the others talk over libfabric, which cannot be used any more: {why}");
    }
    Ok(Some(Membership {
        part: part.clone(),
        roster,
        listener,
        opened,
    }))
}

/// True if the server goes on with what it left when it was killed.
fn goes_on(part: &ServerAssignment) -> bool {
    part.again.is_some() || part.recovers
}

/// Reads byte by byte, so that what follows the first line stays in the pipe: the end of file is
/// waited for by another thread.
fn unbuffered_stdin() -> BufReader<impl Read> {
    let stdin = File::from(
        std::io::stdin()
            .as_fd()
            .try_clone_to_owned()
            .expect("stdin is open"),
    );
    BufReader::with_capacity(1, stdin)
}

fn say(message: &impl serde::Serialize) -> Result<()> {
    let mut out = std::io::stdout();
    writeln!(out, "{}", to_line(message))?;
    Ok(out.flush()?)
}

fn settings(launch: &Launch) -> Result<Config> {
    // They were expanded and checked by who sent them.
    Ok(Loaded::from_toml(&launch.settings, &Environment::default())?.config)
}

fn prepare(launch: &Launch) -> Result<Claimed> {
    let config = settings(launch)?;
    let env = Environment::of_process();
    std::env::set_current_dir("/")?;
    let runs = match (&launch.part, &launch.run_dir) {
        (Some(_), _) => Parent::of_shared_runs(&config),
        (None, Some(dir)) => Parent::holding(dir).context("not a run directory")?,
        (None, None) => Parent::of_runs(&env),
    };
    runs.check_length()?;
    let claimant = Claimant {
        job: &launch.job,
        // An instance of several that is started anew is another one: what is left is no part of it.
        resumes: launch.part.as_ref().is_none_or(goes_on),
    };
    if let Some(name) = &launch.name {
        return claim(name, &config, &runs, claimant);
    }
    // A pid is free of live namesakes except where containers share a directory.
    let pid = std::process::id();
    let mut names = (0..100).map(|n| {
        if n == 0 {
            format!("run-{pid}")
        } else {
            format!("run-{pid}-{n}")
        }
    });
    loop {
        let name = names.next().context("a hundred instances of one name")?;
        match claim(&name, &config, &runs, claimant)? {
            // Not what a killed server of that number left either.
            Claimed::Lives { .. } | Claimed::Dead(_) => {}
            Claimed::Ours(claim, _) if claim.takes_up => claim.leave(),
            ours @ Claimed::Ours(..) => return Ok(ours),
        }
    }
}

fn serve(
    launch: &Launch,
    claim: Claim,
    burial: Burial,
    membership: Option<Membership>,
) -> Result<()> {
    let config = settings(launch)?;
    let log = open_log(&config, &claim.run_dir)?;
    let mount = config.mount.prefix.as_path();
    let servers = launch.part.as_ref().map_or(1, |part| part.servers);
    let label = Label {
        drain_to: launch.drain_to.clone(),
        part: launch.part.as_ref().map(server_part),
        ..claim.label(servers, &launch.job, mount, &launch.settings)
    };
    let recovers = launch.part.as_ref().is_some_and(|part| part.recovers);
    let keeps_remains = recovers || label.awaits_drain();
    watch_for_the_end(launch.lifeline, keeps_remains, claim.run_dir.clone())?;
    let ready = ReadyInstance {
        name: claim.name.clone(),
        run_dir: claim.run_dir.clone(),
        dirs: claim.dirs(),
        mount: mount.to_owned(),
        cleared: burial.names(),
        took_up: claim.takes_up,
        kernel_mount: None,
    };
    let part = launch.part.as_ref();
    let is_first = part.is_none_or(|part| part.share <= 1 || part.rank == 0);
    let mut is_ready = false;
    let mut removal = None;
    let mut starter = None;
    let mut transfers = None;
    let begin = || {
        for name in &ready.cleared {
            tracing::info!("cleared what instance {name} left, whose job is over");
        }
        if let Err(e) = label.put() {
            tracing::error!("what a killed server leaves would not be known as its: {e:#}");
        }
        is_ready = true;
        match TransferStarter::listen(&claim.run_dir, config.drain.evict_percent.0) {
            Ok(started) => transfers = Some(started),
            Err(e) => tracing::error!("programs cannot have files moved by weir.h: {e:#}"),
        }
        let (config, lifeline) = (config.clone(), launch.lifeline);
        // The mount's process is a client of this server, which serves once this has returned.
        starter = Some(std::thread::spawn(move || {
            announce(ready, &config, is_first, lifeline)
        }));
        // Removing gigabytes takes its time, and nobody waits for it before the end.
        removal = Some(std::thread::spawn(|| burial.remove()));
    };
    let served = label
        .prepare()
        .and_then(|()| instance::serve(&claim, &config, membership, begin));
    let result = served.map_err(|e| explained(format!("{e:#}")));
    if let Some(transfers) = transfers {
        transfers.stop();
    }
    if let Some(Ok(Some(beneath))) = starter.map(JoinHandle::join) {
        beneath.stop();
    }
    if let Some(removal) = removal {
        // One that panicked has said so; the next start goes on with it.
        let _ = removal.join();
    }
    if let Err(why) = &result {
        tracing::error!("{why}");
    }
    let stays = result.is_err() && claim.takes_up;
    let keep = (config.run.keep || result.is_err()) && !stays;
    let log = if keep { keep_log(&log, &claim) } else { None };
    if let (Err(why), false) = (&result, is_ready) {
        say(&ServerMessage::Failed(why.clone()))?;
    }
    if stays {
        claim.leave();
    } else {
        claim.release()?;
    }
    if launch.lifeline {
        say(&ServerMessage::Ended(ServerEnd { result, log }))?;
    }
    Ok(())
}

fn server_part(part: &ServerAssignment) -> ServerPart {
    ServerPart {
        instance: part.instance,
        rank: part.rank,
        host: part.host.clone(),
        share: part.share,
    }
}

/// Brings up the kernel mount, and says that programs may come. If there is to be a mount and cannot
/// be one, the instance stops again.
fn announce(
    mut ready: ReadyInstance,
    config: &Config,
    is_first: bool,
    lifeline: bool,
) -> Option<ServerMount> {
    let run_dir = ready.run_dir.clone();
    let (beneath, word) = match ServerMount::bring_up(config, &run_dir, is_first) {
        Ok(beneath) => {
            ready.kernel_mount = beneath.as_ref().map(|beneath| beneath.dir().to_owned());
            (beneath, ServerMessage::Ready(ready))
        }
        Err(e) => (None, ServerMessage::Failed(format!("{e:#}"))),
    };
    let said = say(&word);
    if !lifeline {
        forget_stdout();
    }
    if let Err(e) = said {
        tracing::warn!("who started this instance has gone: {e}");
    }
    if let ServerMessage::Failed(why) = word {
        tracing::error!("{why}");
        if let Err(e) = connection::stop(&run_dir) {
            tracing::error!("cannot stop in order: {e:#}");
        }
    }
    beneath
}

/// Moves the log out of the directory that is about to go; gives where it is then.
fn keep_log(log: &Path, claim: &Claim) -> Option<PathBuf> {
    if !log.starts_with(&claim.run_dir) {
        return Some(log.to_owned());
    }
    let beside = claim
        .run_dir
        .with_file_name(format!("weir-{}.log", claim.name));
    std::fs::rename(log, &beside).ok().map(|()| beside)
}

/// Sends standard error, and with it every message, to the log.
fn open_log(config: &Config, run_dir: &Path) -> Result<PathBuf> {
    let path = config
        .log
        .file
        .clone()
        .unwrap_or_else(|| run_dir.join("server.log"));
    let file = File::options()
        .create(true)
        .append(true)
        .open(&path)
        .with_context(|| format!("opening the log {}", path.display()))?;
    nix::unistd::dup2_stderr(&file)?;
    let level = match config.log.level {
        LogLevel::Off => tracing_subscriber::filter::LevelFilter::OFF,
        level => level.word().parse().expect("a level of tracing"),
    };
    tracing_subscriber::fmt()
        .with_max_level(level)
        .with_ansi(false)
        // Else it panics if the log is on a file system that is full.
        .log_internal_errors(false)
        .with_writer(std::io::stderr)
        .init();
    Ok(path)
}

/// Standard output was the pipe to `weir start`, which is to go away.
fn forget_stdout() {
    if let Ok(null) = File::options().write(true).open("/dev/null") {
        let _ = nix::unistd::dup2_stdout(&null);
    }
}

/// Waits, in a thread of its own, for what ends the server. Called before other threads start,
/// which inherit that the signals are blocked. With SIGXFSZ blocked, a file size limit makes a
/// call fail instead of killing the server.
fn watch_for_the_end(lifeline: bool, keeps_remains: bool, run_dir: PathBuf) -> Result<()> {
    let signals: SigSet = [
        Signal::SIGTERM,
        Signal::SIGINT,
        Signal::SIGHUP,
        Signal::SIGXFSZ,
    ]
    .into_iter()
    .collect();
    signals.thread_block()?;
    let fd = SignalFd::with_flags(&signals, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
    std::thread::Builder::new()
        .name("weir-end".into())
        .spawn(move || {
            let ended = wait_for_the_end(lifeline, &fd);
            let is_order = matches!(ended, Ok(ServerEnding::Ordered) | Err(_));
            if keeps_remains && !is_order {
                tracing::error!(
                    "it ends without an order, and files may not be moved: what they have stays, for weir \
                     recover {}",
                    run_dir.display()
                );
                // As if it had been killed, from which a server can go on.
                let _ = nix::sys::signal::raise(Signal::SIGKILL);
            }
            if let Err(e) = ended.and_then(|_| connection::stop(&run_dir).map(drop)) {
                tracing::error!("cannot stop in order: {e:#}");
                std::process::abort();
            }
        })?;
    Ok(())
}

/// The reason why a server ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ServerEnding {
    /// It was told to.
    Ordered,
    /// Its lifeline has ended without a word.
    RunLost,
    /// A signal asks it to end.
    Signalled,
}

fn wait_for_the_end(mut lifeline: bool, signals: &SignalFd) -> Result<ServerEnding> {
    let stdin = std::io::stdin();
    loop {
        let mut fds = vec![PollFd::new(signals.as_fd(), PollFlags::POLLIN)];
        if lifeline {
            fds.push(PollFd::new(stdin.as_fd(), PollFlags::POLLIN));
        }
        poll(&mut fds, PollTimeout::NONE)?;
        if fds.get(1).and_then(PollFd::any) == Some(true) {
            // Everything that came before was read to its last line, so that nothing is buffered.
            match read_line::<LifelineWord>(&mut stdin.lock()) {
                Ok(LifelineWord::Stay) => {
                    lifeline = false;
                    forget_stdout();
                }
                Ok(LifelineWord::Stop) => return Ok(ServerEnding::Ordered),
                Err(_) => return Ok(ServerEnding::RunLost),
            }
        }
        while let Some(info) = signals.read_signal()? {
            let signal = Signal::try_from(i32::try_from(info.ssi_signo)?)?;
            if !lifeline && [Signal::SIGTERM, Signal::SIGINT].contains(&signal) {
                tracing::info!("stopping on {signal}");
                return Ok(ServerEnding::Signalled);
            }
        }
    }
}

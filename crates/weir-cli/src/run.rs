//! `weir run` and `weir start`: the life of an instance, seen from outside.

use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::Duration;

use anyhow::{Context, Result};
use weir_config::{
    all_keys, Config, Connectors, Drain, Environment, Loaded, MirrorUse, ValueOrigin,
};
use weir_instance::connection::Use;
use weir_instance::directories::{self, Job, Remains};
use weir_instance::errln;
use weir_instance::size::bytes;
use weir_launch::nodes;
use weir_launch::root::{self, run_dir_of_rank, InstancePlan, RootAgent};
use weir_launch::server::{self, Launch, ReadyInstance, Server};
use weir_launch::shell::quoted;
use weir_launch::LaunchError;

use crate::args::{EarlierDrains, RunArgs, StartArgs};
use crate::ending::show_summary;
use crate::exit::{Failure, RUN_FAILED, RUN_NOT_SAFE};
use crate::inject::InjectedLibraries;
use crate::linked::{ObstructedProgram, ProgramKind};
use crate::locate::{
    elevated_directories, elevated_targets, living, refuse_under_mirrors, remains_of, run_dir_of,
};
use crate::mirrors::Mirrors;
use crate::report::DrainedFiles;
use crate::run_stages::RunStages;
use crate::transfers::finish_transfers;
use crate::{inject, limits, linked, mount, namespace, prefetch, report, supervise};

/// The libraries that a command gets.
pub fn libraries(
    env: &Environment,
    connectors: &Connectors,
    command: &[OsString],
) -> Result<InjectedLibraries> {
    let program = std::env::current_exe().context("finding the weir program")?;
    inject::find_libraries(env, &program, connectors, command)
}

/// `weir run`; the exit code.
pub fn run(args: &RunArgs, settings: &Loaded, env: &Environment) -> Result<u8, Failure> {
    let config = &settings.config;
    let libraries = libraries(env, &config.run.connectors, &args.command)?;
    let start = CommandStart {
        words: &args.command,
        libraries: &libraries,
        mirror: config.run.mirror,
        env,
    };
    let elevated = config.elevated_directories();
    let stages = RunStages {
        stage_in: &args.stage_in,
        drain_to: args.drain_to.as_deref(),
        elevate: &elevated,
        prefix: config.mount.prefix.as_path().to_owned(),
        ends_instance: true,
        before: EarlierDrains::Ended,
        settings: &config.drain,
    };
    if let Some(run_dir) = another(args, settings, env)? {
        let run_dir = living(run_dir, config, env)?;
        let run_dir = living(run_dir_of_rank(&run_dir, args.rank), config, env)?;
        let stages = RunStages {
            ends_instance: false,
            ..stages.of_running(&run_dir)?
        };
        stages.check()?;
        let outcome = run_staged(&start, &stages, &run_dir)?;
        if !outcome.is_safe {
            tell_where_it_is(&run_dir, &run_dir.display().to_string());
        }
        return Ok(outcome.code());
    }
    stages.check()?;
    let job = Job::from_environment(env);
    tell_of_dead(&job, None, config, env);
    let found = nodes::find(&args.nodes.wanted(), &config.launch, env)?;
    if found.is_none() && args.rank > 0 {
        return Err(Failure::Refused(format!(
            "--rank {}: a new instance has one server here, unless --servers says how many",
            args.rank
        )));
    }
    if config.mount.namespace {
        enter_namespace(config, found.is_some())?;
    }
    if let Some(found) = found {
        let drain_to = absolute(args.drain_to.as_deref())?;
        let plan = InstancePlan {
            name: None,
            job: &job,
            drain_to: drain_to.as_deref(),
            settings,
            lifeline: true,
        };
        let root = root::start(&found, plan)?;
        let outcome = run_on(args.rank, &start, &stages, &root);
        if let Some(code) = outcome.as_ref().ok().and_then(CommandOutcome::unsafe_code) {
            let ready = root.server(root.own).cloned();
            let ready = ready.context("no server on this node")?;
            root.leave()?;
            tell_where_it_is(&ready.run_dir, &ready.name);
            return Ok(code);
        }
        let ended = end_all(root, settings, drained_to(&outcome, args, config).as_ref());
        let awaits_drain = drain_to.is_some() || !stages.elevate.is_empty();
        if !ended && awaits_drain && outcome.as_ref().is_ok_and(|outcome| !outcome.was_served) {
            errln!(
                "weir: what was not moved stays on the nodes; weir recover on one of them moves it"
            );
        }
        let code = outcome?.code();
        return Ok(if ended { code } else { RUN_FAILED });
    }
    let server = server::start(&Launch {
        name: None,
        run_dir: None,
        job,
        lifeline: true,
        drain_to: absolute(args.drain_to.as_deref())?,
        settings: settings.toml(),
        part: None,
    })?;
    tell_of_cleared(&server.ready);
    let outcome = run_staged(&start, &stages, &server.ready.run_dir);
    if let Some(code) = outcome.as_ref().ok().and_then(CommandOutcome::unsafe_code) {
        let ready = server.ready.clone();
        server.leave()?;
        tell_where_it_is(&ready.run_dir, &ready.name);
        return Ok(code);
    }
    let ended = stop_server(
        server,
        settings,
        env,
        drained_to(&outcome, args, config).as_ref(),
    );
    let code = outcome?.code();
    Ok(if ended { code } else { RUN_FAILED })
}

/// Moves this process into namespaces in which the prefix is a directory. `has_nodes`: the instance has several servers.
fn enter_namespace(config: &Config, has_nodes: bool) -> Result<(), Failure> {
    if has_nodes {
        return Err(Failure::Refused(
            "mount.namespace is for an instance of one server: ranks that a batch system starts \
             on other nodes would not be in the namespace; leave it out"
                .to_owned(),
        ));
    }
    Ok(namespace::enter(config.mount.prefix.as_path()).context("mount.namespace")?)
}

/// The instance that is used, if one is that was there before: one that was named, or that of
/// `weir start` without a name. If its server was killed, another one goes on with it.
fn another(
    args: &RunArgs,
    settings: &Loaded,
    env: &Environment,
) -> Result<Option<PathBuf>, Failure> {
    let config = &settings.config;
    let by = match (&args.instance, env.get("WEIR_INSTANCE")) {
        (Some(name), _) => Some(format!("--instance {name}")),
        (None, Some(run_dir)) => Some(format!("WEIR_INSTANCE={run_dir}")),
        (None, None) => None,
    };
    let described = args.describing(settings);
    if by.is_none() && !described.is_empty() {
        return Ok(None);
    }
    if let Some(by) = by.as_ref().filter(|_| !described.is_empty()) {
        return Err(Failure::Refused(format!(
            "{} would say what a new instance is to be like, but the command is to use the one of \
             {by}: leave that out; WEIR_INSTANCE= weir run ... starts a new instance",
            described.join(", ")
        )));
    }
    let run_dir = run_dir_of(args.instance.as_deref(), config, env)?;
    let about_its_end = RunArgs::about_its_end(settings);
    let is_there = || directories::lives(&run_dir) || remains_of(&run_dir, config, env).is_some();
    if !about_its_end.is_empty() && is_there() {
        return Err(Failure::Refused(format!(
            "{} would be about the end of an instance, but the one in {} was there before and stays: \
             leave that out; weir stop reports",
            about_its_end.join(", "),
            run_dir.display()
        )));
    }
    found(by.is_some(), run_dir, config, env)
}

/// The instance in `run_dir`, with a new server if that was killed; `None` if there is none, unless
/// it was `named`.
fn found(
    named: bool,
    run_dir: PathBuf,
    config: &Config,
    env: &Environment,
) -> Result<Option<PathBuf>, Failure> {
    if directories::lives(&run_dir) {
        return Ok(Some(run_dir));
    }
    let job = Job::from_environment(env);
    let remains = remains_of(&run_dir, config, env);
    let remains = remains.filter(|remains| !remains.first().job.is_over(&job));
    if let Some(remains) = remains {
        let settings = remains.first().settings.clone();
        return match take_up(&remains, settings, job) {
            Ok(ready) => Ok(Some(ready.run_dir)),
            // Another command of the job was faster.
            Err(Failure::AlreadyRunning { run_dir, .. }) => Ok(Some(run_dir)),
            Err(failure) => Err(failure),
        };
    }
    Ok(named.then_some(run_dir))
}

/// Starts a server that goes on with what a killed one left, and says so.
pub fn take_up(remains: &Remains, settings: String, job: Job) -> Result<ReadyInstance, Failure> {
    if remains.obstacle().is_some() || remains.is_of_several() {
        return Err(Failure::Dead {
            why: remains.describe(),
        });
    }
    let left = remains.state();
    let label = remains.first();
    refuse_under_mirrors(&label.run_dir)?;
    let server = server::start(&Launch {
        name: Some(label.name.clone()),
        run_dir: Some(label.run_dir.clone()),
        job,
        lifeline: false,
        drain_to: label.drain_to.clone(),
        settings,
        part: None,
    });
    let name = &remains.name;
    let server = server.map_err(|failure| match failure {
        LaunchError::Other(other) => Failure::Dead {
            why: format!(
                "instance {name} is dead, and no server can go on with it: {other:#}; \
                 weir stop {name} clears it"
            ),
        },
        failure => failure.into(),
    })?;
    errln!("weir: {left}; a new server goes on with it");
    let ready = server.detach();
    tell_of_cleared(&ready);
    Ok(ready)
}

/// The path from the root, for a server that has another directory.
fn absolute(path: Option<&Path>) -> Result<Option<PathBuf>> {
    let absolute = path.map(std::path::absolute).transpose();
    absolute.context("the current directory")
}

/// The most dead instances of which each gets a line.
const MOST_DEAD_NAMED: usize = 3;

/// Names dead instances of this job, and those with files that are to be moved out of them, these first: nobody clears them
/// unless told to.
fn tell_of_dead(job: &Job, except: Option<&str>, config: &Config, env: &Environment) {
    let mut dead = directories::all(config, env);
    dead.retain(|remains| {
        let concerns = remains.first().job == *job || remains.awaits_drain();
        concerns && except != Some(remains.name.as_str())
    });
    dead.sort_by_key(|remains| !remains.awaits_drain());
    let named = match dead.len() {
        // One more takes a line, too.
        all if all <= MOST_DEAD_NAMED + 1 => all,
        _ => MOST_DEAD_NAMED,
    };
    for remains in &dead[..named] {
        errln!("weir: {}", remains.describe());
    }
    let others = dead[named..].iter().map(Remains::held_bytes);
    let held = others.reduce(|(memory, files), one| (memory + one.0, files + one.1));
    if let Some((memory, files)) = held {
        errln!(
            "weir: {} more instances are dead, and hold {} in memory, {} in files; weir recover --list names them",
            dead.len() - named,
            bytes(memory),
            bytes(files)
        );
    }
}

fn tell_of_cleared(ready: &ReadyInstance) {
    for name in &ready.cleared {
        errln!("weir: cleared what instance {name} left, whose job is over");
    }
}

/// Runs the command at this node's server, or with `--servers` at the one of `--rank`.
fn run_on(
    rank: u16,
    start: &CommandStart<'_>,
    stages: &RunStages<'_>,
    root: &RootAgent,
) -> Result<CommandOutcome, Failure> {
    let rank = if rank == 0 { root.own } else { rank };
    let server = root.server(rank);
    let server = server.with_context(|| format!("--rank: no server {rank} is on this node"))?;
    run_staged(start, stages, &server.run_dir)
}

/// Stops an instance of several servers and reports; whether all went well with weir.
fn end_all(root: RootAgent, settings: &Loaded, drained_to: Option<&DrainedFiles<'_>>) -> bool {
    match root.stop() {
        Ok(summary) => {
            show_summary(&summary, settings, drained_to);
            summary.lost == 0
        }
        Err(e) => {
            errln!("weir: {e:#}");
            false
        }
    }
}

/// The command of `weir run`, and the way in which it gets the client.
struct CommandStart<'a> {
    words: &'a [OsString],
    libraries: &'a InjectedLibraries,
    mirror: MirrorUse,
    env: &'a Environment,
}

/// How the command of `weir run` ended.
struct CommandOutcome {
    status: ExitStatus,
    /// The instance was there to the end.
    was_served: bool,
    /// True if everything was moved that was to be moved out of the instance.
    is_safe: bool,
}

impl CommandOutcome {
    /// The exit code of `weir run`. A command that failed by itself says more by its own; one that the end of the job has
    /// ended says nothing that is not known.
    fn code(&self) -> u8 {
        match supervise::exit_code(self.status) {
            0 if !self.was_served => RUN_FAILED,
            code if !self.is_safe && (code == 0 || supervise::is_end_by_signal(code)) => {
                RUN_NOT_SAFE
            }
            code => code,
        }
    }

    /// The same, if the instance is to stay because it has data that is nowhere else.
    fn unsafe_code(&self) -> Option<u8> {
        (self.was_served && !self.is_safe).then(|| self.code())
    }
}

/// Runs the command between the stages that were asked for.
fn run_staged(
    start: &CommandStart<'_>,
    stages: &RunStages<'_>,
    run_dir: &Path,
) -> Result<CommandOutcome, Failure> {
    let mut used = Use::begin(run_dir)?;
    stages.bring_in(run_dir)?;
    prefetch::prefetch(run_dir, stages.settings.evict_percent.0)?;
    let drains = stages.begin_drains(run_dir);
    let mut outcome = run_in(start, run_dir, &mut used)?;
    // An instance that stays goes on with them.
    let is_moved = !outcome.was_served
        || !stages.ends_instance
        || finish_transfers(run_dir, patience_of(stages.settings));
    outcome.is_safe = !outcome.was_served || stages.take_out(run_dir, drains);
    outcome.is_safe &= is_moved;
    Ok(outcome)
}

/// The longest time for which nothing is moved in the end.
fn patience_of(settings: &Drain) -> Duration {
    match settings.stuck_s {
        0 => Duration::MAX,
        seconds => Duration::from_secs(seconds.into()),
    }
}

/// The files that were moved out of an instance.
fn drained_to<'a>(
    outcome: &Result<CommandOutcome, Failure>,
    args: &'a RunArgs,
    config: &Config,
) -> Option<DrainedFiles<'a>> {
    let is_drained = |outcome: &CommandOutcome| outcome.was_served && outcome.is_safe;
    if !outcome.as_ref().is_ok_and(is_drained) {
        return None;
    }
    let elevates = !config.elevated_directories().is_empty();
    DrainedFiles::new(args.drain_to.as_deref(), elevates, &config.drain)
}

/// Says where data is that could not be moved out of an instance.
fn tell_where_it_is(run_dir: &Path, name: &str) {
    let elevates = !elevated_targets(run_dir).is_empty();
    let run_dir = run_dir.display();
    let ways = match elevates {
        false => format!(
            "weir stage out -i {run_dir} SOURCE DESTINATION tries again, weir stop {name} gives up what it has"
        ),
        true => format!(
            "weir stop {name} tries again, weir run -i {run_dir} -- cp -a SOURCE DESTINATION copies files to another \
             directory, weir stop --no-drain {name} gives up what it has"
        ),
    };
    errln!("weir: the data is safe only in the instance, which stays: {ways}");
}

fn run_in(
    start: &CommandStart<'_>,
    run_dir: &Path,
    used: &mut Use,
) -> Result<CommandOutcome, Failure> {
    let mut command = Command::new(&start.words[0]);
    command.args(&start.words[1..]);
    command.envs(inject::variables(run_dir, start.libraries, start.env)?);
    if let Some(warning) = limits::too_small_for(run_dir) {
        errln!("weir: warning: {warning}");
    }
    let obstructed = linked::find_obstructed(&start.words[0]);
    let mirrors = mirror(start, obstructed.as_ref(), run_dir, &mut command)?;
    let unseen = obstructed.as_ref();
    if let Some(warning) = unseen.and_then(|program| mount::explain_unseen(program, run_dir)) {
        let elevated = match &mirrors {
            Some(_) => "; it finds elevated directories at their own paths",
            None => "",
        };
        errln!("weir: warning: {warning}{elevated}");
    }
    let status = supervise::run(command, &[])?;
    drop(mirrors);
    let was_served = used.is_served();
    if !was_served {
        errln!(
            "weir: the instance {} was stopped, or its server lost, while the command ran; the \
             command ended with {status}",
            run_dir.display()
        );
    }
    Ok(CommandOutcome {
        status,
        was_served,
        is_safe: true,
    })
}

/// Has a command find the elevated directories by the kernel, if it is to.
fn mirror(
    start: &CommandStart<'_>,
    obstructed: Option<&ObstructedProgram>,
    run_dir: &Path,
    command: &mut Command,
) -> Result<Option<Mirrors>> {
    // A program that gets other rights is kept out of mounts of its user, and gets none in a user namespace.
    let needs = obstructed.is_some_and(|program| program.kind != ProgramKind::Privileged);
    let is_asked = start.mirror == MirrorUse::Always;
    let is_wanted = is_asked || start.mirror == MirrorUse::Auto && needs;
    if !is_wanted || elevated_directories(run_dir).is_empty() {
        return Ok(None);
    }
    let put_over = |mirrors: Mirrors| mirrors.put_over(command).map(|()| mirrors);
    match Mirrors::start(run_dir, start.env).and_then(put_over) {
        Ok(mirrors) => Ok(Some(mirrors)),
        Err(error) if is_asked => Err(error.context("run.mirror")),
        Err(error) => {
            errln!(
                "weir: warning: it finds elevated directories as they are without weir: {error:#}"
            );
            Ok(None)
        }
    }
}

/// Stops the server and reports; whether all went well with weir.
fn stop_server(
    server: Server,
    settings: &Loaded,
    env: &Environment,
    drained_to: Option<&DrainedFiles<'_>>,
) -> bool {
    let run_dir = server.ready.run_dir.clone();
    let ended = match server.stop() {
        Ok(ended) => ended,
        Err(e) => {
            errln!("weir: {e:#}; its log is in {}", run_dir.display());
            if let Some(remains) = remains_of(&run_dir, &settings.config, env) {
                errln!("weir: {}", remains.describe());
            }
            return false;
        }
    };
    if let Some(log) = ended.log {
        errln!("weir: the server's log is {}", log.display());
    }
    match ended.result {
        Ok(done) => {
            report::print(&done, settings.config.run.report, drained_to);
            true
        }
        Err(why) => {
            errln!("weir: the instance was lost: {why}");
            false
        }
    }
}

/// `weir start`.
pub fn start(args: &StartArgs, settings: &Loaded, env: &Environment) -> Result<(), Failure> {
    if settings.config.mount.namespace {
        return Err(Failure::Refused(
            "mount.namespace is for weir run: weir start ends before the commands that would be in the \
             namespace; leave it out"
                .to_owned(),
        ));
    }
    let libraries = libraries(env, &settings.config.run.connectors, &[])?;
    let name = args
        .instance
        .clone()
        .unwrap_or_else(|| directories::default_name(env));
    directories::check_name(&name)?;
    let job = Job::from_environment(env);
    let found = nodes::find(&args.nodes.wanted(), &settings.config.launch, env)?;
    let elevated = settings.config.elevated_directories();
    let stages = RunStages {
        stage_in: &[],
        drain_to: None,
        elevate: &elevated,
        prefix: settings.config.mount.prefix.as_path().to_owned(),
        ends_instance: true,
        before: EarlierDrains::Ended,
        settings: &settings.config.drain,
    };
    stages.check()?;
    tell_of_dead(&job, Some(&name), &settings.config, env);
    let remains = Remains::named(&name, &settings.config, env);
    let is_over = |remains: &Remains| remains.first().job.is_over(&job);
    let remains = match remains {
        Some(left) if is_over(&left) => {
            if left.first().outlives_job() {
                let why = left.describe();
                return Err(Failure::Dead { why });
            }
            None
        }
        remains => remains,
    };
    if let Some(remains) = remains {
        if found.is_some() && !remains.is_of_several() {
            let why = format!(
                "{}; it cannot become one of several servers",
                remains.describe()
            );
            return Err(Failure::Dead { why });
        }
        let settings = settings_to_go_on(&remains, settings)?;
        let ready = take_up(&remains, settings, job)?;
        return Ok(announce(args, &ready, "", &libraries, env)?);
    }
    if let Some(found) = found {
        let plan = InstancePlan {
            name: Some(&name),
            job: &job,
            drain_to: None,
            settings,
            lifeline: false,
        };
        let root = root::start(&found, plan)?;
        for (host, name) in root.cleared() {
            errln!("weir: cleared what instance {name} left on {host}, whose job is over");
        }
        let ready = root.server(root.own).context("no server on this node")?;
        let of = format!(" on {} servers", root.ready_servers.len());
        return Ok(announce(args, &ready.clone(), &of, &libraries, env)?);
    }
    let server = server::start(&Launch {
        name: Some(name),
        run_dir: None,
        job,
        lifeline: false,
        drain_to: None,
        settings: settings.toml(),
        part: None,
    })?;
    let ready = server.detach();
    tell_of_cleared(&ready);
    Ok(announce(args, &ready, "", &libraries, env)?)
}

/// The settings with which a server goes on: those given now, but where the data is, which was
/// settled when the instance was started.
fn settings_to_go_on(remains: &Remains, given: &Loaded) -> Result<String, Failure> {
    const SETTLED: &[&str] = &[
        "mount.prefix",
        "memory.directory",
        "file.enabled",
        "file.directories",
    ];
    let saved = Loaded::from_toml(&remains.first().settings, &Environment::default())?;
    for key in all_keys().filter(|key| SETTLED.contains(&key.path().as_str())) {
        let (was, now) = (key.shown(&saved.config), key.shown(&given.config));
        if was != now && *given.origin(key) == ValueOrigin::CommandLine {
            let name = &remains.name;
            return Err(Failure::Refused(format!(
                "instance {name} is dead, and a server that goes on with it has {} = {was}, not \
                 {now}: leave that out, or clear it with weir stop {name} first",
                key.path(),
            )));
        }
    }
    let mut merged = given.clone();
    merged.config.mount.prefix = saved.config.mount.prefix;
    merged.config.memory.directory = saved.config.memory.directory;
    merged.config.file.enabled = saved.config.file.enabled;
    merged.config.file.directories = saved.config.file.directories;
    Ok(merged.toml())
}

/// The one line of `weir start`, or those for a shell.
fn announce(
    args: &StartArgs,
    ready: &ReadyInstance,
    of: &str,
    libraries: &InjectedLibraries,
    env: &Environment,
) -> Result<()> {
    let whole = format!(
        "weir: instance {} serves {}{of}; WEIR_INSTANCE={}\n",
        ready.name,
        ready.mount.display(),
        ready.run_dir.display()
    );
    let text = if args.shell {
        let variables = inject::variables(&ready.run_dir, libraries, env)?;
        let wanted = variables
            .into_iter()
            .filter(|(name, _)| args.inject || *name == "WEIR_INSTANCE");
        let export = |(name, value): (_, OsString)| {
            format!("export {name}={}\n", quoted(&value.to_string_lossy()))
        };
        wanted.map(export).collect()
    } else {
        whole.clone()
    };
    let told = std::io::stdout().write_all(text.as_bytes());
    // It runs all the same.
    told.inspect_err(|_| errln::write(format_args!("{whole}")))
        .context("standard output")?;
    Ok(())
}

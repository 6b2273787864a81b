//! The `weir` command: reads the command line and the configuration, does what is asked, and
//! turns the outcome into an exit code (see `exit`).
//!
//! One binary: the server is this program as well (`weir server`), so that what runs is
//! always of one version.

#[macro_use]
mod out;

mod analyze;
mod args;
mod array_log;
mod bench;
mod doctor;
mod drain;
mod ending;
mod exit;
mod inject;
mod instance;
mod json_lines;
mod laminate;
mod layout;
mod limits;
mod linked;
mod locate;
mod manual;
mod mirrors;
mod mount;
mod mount_names;
mod movers;
mod namespace;
mod prefetch;
mod recover;
mod report;
mod run;
mod run_stages;
mod scale;
mod serve;
mod share;
mod show;
mod stage;
mod stop;
mod supervise;
mod transfers;

use std::process::ExitCode;

use clap::Parser;
use weir_config::{Environment, Loaded};
use weir_instance::errln;
use weir_instance::size::bytes;

use crate::args::{Cli, Command, FormatArgs};
use crate::exit::Failure;

/// The whole program, from its command line to its exit code.
pub fn main() -> ExitCode {
    end_by_panic();
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(e) => return usage(&e),
    };
    let in_run = matches!(cli.command, Command::Run(_));
    match dispatch(&cli) {
        Ok(code) => code,
        Err(failure) => {
            for line in failure.to_string().lines() {
                errln!("weir: {line}");
            }
            ExitCode::from(if in_run {
                failure.run_code()
            } else {
                failure.code()
            })
        }
    }
}

/// Lets a panic of any thread end the process, once its message is written: the clients of
/// a server without one of its threads would wait, but a new server takes over from one that ended.
fn end_by_panic() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        report(info);
        std::process::abort();
    }));
}

/// Help and version are no errors; a refused `weir run` keeps out of its command's codes.
fn usage(error: &clap::Error) -> ExitCode {
    let _ = error.print();
    let in_run = std::env::args_os().nth(1).is_some_and(|word| word == "run");
    match error.exit_code() {
        0 => ExitCode::SUCCESS,
        _ if in_run => ExitCode::from(exit::RUN_FAILED),
        _ => ExitCode::from(exit::USAGE),
    }
}

fn dispatch(cli: &Cli) -> Result<ExitCode, Failure> {
    let env = Environment::of_process();
    let settings = || load(cli, &env);
    match &cli.command {
        Command::Run(args) => return run::run(args, &settings()?, &env).map(ExitCode::from),
        Command::Start(args) => run::start(args, &settings()?, &env)?,
        Command::Stop(args) => stop::stop(args, &settings()?, &env)?,
        Command::Recover(args) => recover::recover(args, &settings()?, &env)?,
        Command::Status(args) => show::status(args, &settings()?.config, &env)?,
        Command::Ls(args) => show::list(args, &settings()?.config, &env)?,
        Command::Laminate(args) => laminate::laminate(args, &settings()?.config, &env)?,
        Command::Log(args) => array_log::log(args, &env)?,
        Command::Stage(args) => stage::stage(args, &settings()?.config, &env)?,
        Command::Drain(args) => drain::command::ask(args, &settings()?.config, &env)?,
        Command::Analyze(args) => return analyze::analyze(args, &settings()?.config, &env),
        Command::PrefetchProcess(args) => prefetch::take_share(args)?,
        Command::TransferProcess(args) => transfers::serve(args)?,
        Command::DrainProcess(args) => drain::process::drain(args)?,
        Command::Mount(args) => {
            let config = &settings()?.config;
            match &args.elevated {
                None => mount::by_hand(args, config, &env)?,
                Some(dir) => mirrors::mount_by_hand(args, dir, config, &env)?,
            }
        }
        Command::MountProcess {
            run_dir,
            at,
            elevated,
        } => match elevated {
            None => mount::serve(run_dir, at)?,
            Some(dir) => mirrors::serve(run_dir, at, dir)?,
        },
        Command::Doctor(args) => doctor::run(args, &settings()?, &env)?,
        Command::Config(args) => print_config(args, &settings()?),
        Command::Bench(args) => {
            let load = |more: &[&str]| load_with(cli, &env, more);
            return bench::run(args, load, &env).map(ExitCode::from);
        }
        Command::SimulateScale(args) => scale::run(args)?,
        Command::Server => serve::run()?,
        Command::Worker => bench::worker::run()?,
        Command::Mover => movers::serve()?,
        Command::Agent { join } => weir_launch::agent::run(join.as_deref())?,
        Command::Man { directory } => manual::write(directory)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn load(cli: &Cli, env: &Environment) -> Result<Loaded, Failure> {
    load_with(cli, env, &[])
}

/// The settings, with more of them set, last.
fn load_with(cli: &Cli, env: &Environment, more: &[&str]) -> Result<Loaded, Failure> {
    let here = std::env::current_dir().unwrap_or_else(|_| "/".into());
    let mut sources = cli.sources(env.clone());
    sources.set.extend(more.iter().map(|&set| set.to_owned()));
    let loaded = sources.load(&here)?;
    for warning in &loaded.warnings {
        errln!("weir: warning: {warning}");
    }
    Ok(loaded)
}

fn print_config(args: &FormatArgs, loaded: &Loaded) {
    if args.json {
        outln!("{:#}", loaded.json());
        return;
    }
    out!("{}", config_text(loaded));
}

/// The settings for people, and the budgets that they give on this machine.
fn config_text(loaded: &Loaded) -> String {
    let machine = weir_config::Machine::look(&loaded.config);
    let budgets = weir_config::Budgets::for_machine(&loaded.config, &machine);
    format!(
        "{}\n# On this machine now: {} of memory, {} of it warm, and {} of files.\n",
        loaded.toml(),
        bytes(budgets.memory_bytes),
        bytes(budgets.warm_bytes),
        bytes(budgets.file_bytes.iter().sum())
    )
}

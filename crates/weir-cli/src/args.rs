//! The command line: subcommands, options, help. The man pages are made from it.

use std::ffi::OsString;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use clap::builder::{PathBufValueParser, TypedValueParser};
use clap::{Args, Parser, Subcommand, ValueEnum};
use weir_config::{
    all_keys, paths_to_toml, DrainOrder, Environment, Loaded, ReportFormat, Sources, ValueOrigin,
};
use weir_launch::nodes::NodeOptions;

use crate::exit;

/// An ephemeral burst-buffer file system of the node's memory and NVMe, for the life of one job.
#[derive(Debug, Parser)]
#[command(name = "weir", version, propagate_version = true, after_help = after_help())]
#[command(subcommand_required = true, arg_required_else_help = true)]
pub struct Cli {
    /// Settings.
    #[command(flatten)]
    pub settings: SettingsArgs,
    /// The subcommand.
    #[command(subcommand)]
    pub command: Command,
}

fn after_help() -> String {
    format!(
        "Exit status:\n{}\nof weir run, beside that of its command (128 + N for signal N):\n{}",
        exit::table(exit::CODES),
        exit::table(exit::RUN_CODES)
    )
}

/// Where settings come from, beside the environment.
#[derive(Args, Debug, Default)]
pub struct SettingsArgs {
    /// Read this file instead of ./weir.toml or ~/.config/weir/weir.toml.
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Overrule a setting, such as memory.budget=8G; see weir.toml(5).
    #[arg(long, global = true, value_name = "SECTION.KEY=VALUE")]
    set: Vec<String>,
}

/// Which nodes an instance has.
#[derive(Args, Debug, Default, PartialEq, Eq)]
pub struct NodeArgs {
    /// The nodes, such as a,b[1-8] (default: those of the batch job, else this one). This node
    /// must be among them.
    #[arg(long, value_name = "LIST", conflicts_with_all = ["hostfile", "servers"])]
    hosts: Option<String>,
    /// A file with a node a line.
    #[arg(long, value_name = "FILE", conflicts_with = "servers")]
    hostfile: Option<PathBuf>,
    /// Start this many servers, all on this machine. They share its budgets.
    #[arg(long, value_name = "N")]
    servers: Option<u16>,
    /// Nodes on which no program of the job runs, such as m[1-2]: these alone copy files to the parallel file
    /// system while programs compute on the others. They are of the instance, too.
    #[arg(long, value_name = "LIST", conflicts_with = "servers")]
    movers: Option<String>,
}

impl NodeArgs {
    /// The nodes that are asked for.
    pub fn wanted(&self) -> NodeOptions<'_> {
        NodeOptions {
            hosts: self.hosts.as_deref(),
            hostfile: self.hostfile.as_deref(),
            servers: self.servers,
            movers: self.movers.as_deref(),
        }
    }
}

/// Options that stand for settings one changes often.
#[derive(Args, Debug, Default, PartialEq, Eq)]
pub struct InstanceArgs {
    /// Where programs see the file system (mount.prefix; default /weir).
    #[arg(long, value_name = "PATH")]
    mount: Option<String>,
    /// The most memory for data: a size or a percentage (memory.budget; default 25%).
    #[arg(long, value_name = "SIZE")]
    memory: Option<String>,
    /// A directory for what does not fit in memory (file.directories; default $TMPDIR or /tmp).
    /// May be given more than once.
    #[arg(long, value_name = "DIRECTORY")]
    storage: Vec<String>,
    /// Have no file tier (file.enabled=false).
    #[arg(long, conflicts_with = "storage")]
    no_storage: bool,
    /// Take what programs write below this directory of the parallel file system, and move it there while
    /// they run (elevate.directories). Programs use their own paths, and see one tree; the directory is
    /// created if its parent exists. May be given more than once. What is not safe when the command has
    /// ended is treated as for --drain-to.
    #[arg(long, value_name = "DIRECTORY", value_parser = utf8_path())]
    elevate: Vec<PathBuf>,
}

impl InstanceArgs {
    fn assignments(&self) -> Vec<String> {
        let mut set = Vec::new();
        let mut add = |key: &str, value: &str| set.push(format!("{key}={value}"));
        if let Some(mount) = &self.mount {
            add("mount.prefix", mount);
        }
        if let Some(memory) = &self.memory {
            add("memory.budget", memory);
        }
        if !self.storage.is_empty() {
            add("file.directories", &self.storage.join(":"));
        }
        if self.no_storage {
            add("file.enabled", "false");
        }
        if !self.elevate.is_empty() {
            let paths: Vec<PathBuf> = self.elevate.iter().map(|dir| without_dots(dir)).collect();
            add("elevate.directories", &paths_to_toml(&paths));
        }
        set
    }
}

/// Takes a path that settings and labels can hold, which are text.
fn utf8_path() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().try_map(|path| {
        let whole = std::path::absolute(&path).unwrap_or_else(|_| path.clone());
        match whole.to_str() {
            Some(_) => Ok(path),
            None => Err(format!("the name of {} is not UTF-8", whole.display())),
        }
    })
}

/// The absolute path of a directory that may not exist yet. `..` is what it is to the kernel.
fn without_dots(dir: &Path) -> PathBuf {
    let is_up = |part| part == Component::ParentDir;
    let has_dots = dir.components().any(is_up);
    let found = match (dir.file_name(), dir.parent()) {
        _ if !has_dots => None,
        // One that ends with `..`, too.
        (None, _) | (_, None) => dir.canonicalize().ok(),
        (Some(name), Some(above)) => above.canonicalize().ok().map(|above| above.join(name)),
    };
    found.unwrap_or_else(|| std::path::absolute(dir).unwrap_or_else(|_| dir.to_owned()))
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a command with the file system in its place.
    ///
    /// Starts an instance, injects the client into the command and all that it starts (mpiexec
    /// and mpirun included), waits, stops the instance and reports. The instance ends with weir
    /// run, however that ends. In a batch job it has a server on each of the job's nodes.
    ///
    /// An instance that runs already is used with --instance, with WEIR_INSTANCE set as by weir
    /// start --shell, and if it is the one of this job, or of this user outside of jobs, that weir
    /// start makes. With options that say what an instance is to be like, such as --hosts, --memory
    /// or --set, a new one is started instead of the last; with the others, and in a command of
    /// another weir run, such options are refused: nothing would come of them.
    Run(RunArgs),
    /// Start an instance that stays until weir stop, for batch scripts.
    ///
    /// In a batch job, or with --hosts, it has a server on each node. On every node its run
    /// directory has the same path, so that WEIR_INSTANCE may be passed on as it is.
    ///
    /// If the server of an instance of this name was killed, a new one goes on with what it left.
    ///
    /// In a script: eval "$(weir start --shell)"
    Start(StartArgs),
    /// Stop an instance and clear what it took.
    ///
    /// It is refused while programs use the instance, which it lists; --force does it all the same.
    ///
    /// One that is dead, whose server was killed, is cleared: what it had is gone then. Nothing else
    /// does that while its job lasts. If files are to be moved out of it, they are moved first, as by weir recover.
    Stop(StopArgs),
    /// Move what dead instances still have to the parallel file system, and clear them.
    ///
    /// An instance is dead if its server was killed, or its weir run, as at the time limit of a job. What its memory and
    /// its file tier have is on this node as long as nobody clears it: weir recover moves it to the directories that it
    /// elevated, or to that of --drain-to, as the end of the run would have. Of an instance of several nodes it brings
    /// the servers of all nodes back for that, and clears all. What cannot be recovered is named.
    Recover(RecoverArgs),
    /// Show an instance, or list those that run and those that are dead.
    ///
    /// An instance is dead if its server was killed. weir start NAME goes on with what it left, and so
    /// does a weir run that uses it; weir stop NAME clears it.
    Status(StatusArgs),
    /// List a directory of the file system.
    Ls(LsArgs),
    /// Make files read-only for good, so that every node may keep where their bytes are.
    ///
    /// A file that somebody has open for writing is laminated once it is closed.
    Laminate(LaminateArgs),
    /// Show, read and replay logs of array writes.
    ///
    /// With the connector of PnetCDF the writes of a program are in a log until they go into the file (docs/GUIDE.md,
    /// "Connectors"). A log that a killed program left is replayed when the file is opened again, and before files are
    /// moved out of the instance. This command does it by hand, and shows what is in a log; it needs no PnetCDF.
    Log(LogArgs),
    /// Move files into an instance, or out of it.
    ///
    /// SOURCE and DESTINATION are as for rsync -a: a directory keeps its name below DESTINATION, DIR/
    /// is what is in it; patterns are in quotes. Paths of the instance begin with its mount prefix. Each file
    /// is written under a hidden name beside its target, synced, and then renamed: a name is always
    /// that of a whole file. Sparse files stay sparse; modes, times, links and extended attributes
    /// are kept, owners are not.
    ///
    /// A file that is there already, of the same size and time, is not moved again: so the same
    /// command goes on where one was interrupted.
    Stage(StageArgs),
    /// Say if what programs wrote is on the parallel file system, and wait for it.
    ///
    /// weir run --drain-to moves files while its command runs: each once it is closed and has not
    /// changed for two seconds. weir drain asks it to look now, and --wait returns when everything is
    /// moved that was closed before. A file that a program has open for writing, or that awaits its
    /// lamination, is not safe, and is waited for too.
    Drain(DrainArgs),
    /// Run a command for each file that programs have written, before it is moved.
    ///
    /// Beside a weir run --elevate or --drain-to, on its node: each file that is closed and has not changed for a
    /// second is given to the command, and moved to the parallel file system when that has ended. The command
    /// sees the file at its own path, and reads the instance's bytes. If it fails, the file is moved all the same.
    /// A file that is written again is analysed again. When weir analyze ends, for whatever reason, it holds
    /// no file back any more; nor does it while a program waits for room.
    ///
    /// It waits for the weir run, and ends with it: what was written last is analysed before that ends. So in a
    /// batch script start it in the background, before weir run; the command of weir run must not wait for it.
    Analyze(AnalyzeArgs),
    /// Mount an instance as a file system of the kernel, for programs that use no interposer.
    ///
    /// weir run and weir start do so by themselves where they can (mount.kernel); weir status says
    /// where. This is for a further directory, or another mount namespace. umount DIR, or
    /// fusermount3 -u DIR, takes it off again, and so does the end of the instance.
    Mount(MountArgs),
    /// Say what is wrong with this machine, and what to do about it.
    ///
    /// With --bundle the findings go into a file for a bug report, and are not judged, with
    /// versions, settings, limits, mounts, and the status and logs of your instances on this node.
    Doctor(DoctorArgs),
    /// Print the settings in force and where each came from.
    Config(FormatArgs),
    /// Measure directories beside the machine's limits, in the manner of IOR and mdtest.
    ///
    /// Any directory can be a target, so that weir, tmpfs and a disk are measured by the same
    /// code in the same run. To measure weir: weir run -- weir bench /weir /dev/shm
    ///
    /// With --hosts, --hostfile, --job or --servers it is an instance of several nodes that is
    /// measured and judged, beside plain TCP between them: weir bench --hosts a,b,c,d
    Bench(Box<crate::bench::BenchCommand>),
    /// Predict the requests that servers of many nodes get, from a model.
    ///
    /// The model is driven by the placement, the records and the trees of weir itself, so that hot
    /// servers show. It says no times. docs/SPECIFICATION.md compares it with real servers.
    SimulateScale(crate::scale::ScaleArgs),
    /// The server's process; started by run and start.
    #[command(hide = true)]
    Server,
    /// One node's part of an instance of several; started by run and start, and by itself on
    /// other nodes.
    #[command(hide = true)]
    Agent {
        /// The file with its invitation, where standard input cannot carry one.
        #[arg(long)]
        join: Option<PathBuf>,
    },
    /// The process of a kernel mount; started by mount and by the server.
    #[command(hide = true)]
    MountProcess {
        /// The run directory of the instance.
        run_dir: PathBuf,
        /// The directory to mount it at.
        at: PathBuf,
        /// The elevated directory to mount instead of the instance.
        #[arg(long)]
        elevated: Option<PathBuf>,
    },
    /// A process that prefetches before a command; started by run.
    #[command(hide = true)]
    PrefetchProcess(PrefetchProcessArgs),
    /// The process that moves files for programs; started by the server.
    #[command(hide = true)]
    TransferProcess(TransferProcessArgs),
    /// The process that drains beside a command; started by run.
    #[command(hide = true)]
    DrainProcess(DrainProcessArgs),
    /// A worker of weir bench --hosts; started by the agents.
    #[command(hide = true)]
    Worker,
    /// A process that moves files for a drain; started by the agents.
    #[command(hide = true)]
    Mover,
    /// Write the man pages into a directory.
    #[command(hide = true)]
    Man {
        /// Where to.
        directory: PathBuf,
    },
}

/// Of `weir run`.
#[derive(Args, Debug)]
pub struct RunArgs {
    /// Use the instance of this name or run directory, which must run.
    #[arg(long, short = 'i', value_name = "NAME", conflicts_with_all = ["mount", "memory", "storage", "no_storage", "elevate", "hosts", "hostfile", "servers", "movers"])]
    pub instance: Option<String>,
    /// With several servers on this machine: the one that the command uses.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub rank: u16,
    #[command(flatten)]
    pub nodes: NodeArgs,
    #[command(flatten)]
    instance_args: InstanceArgs,
    /// The report at the end: text, json or none (run.report; default text).
    #[arg(long, value_name = "FORMAT")]
    report: Option<String>,
    /// Keep the server's log (run.keep).
    #[arg(long)]
    keep: bool,
    /// The connectors: auto, none, or a list such as mpiio,hdf5 (run.connectors; default auto).
    #[arg(long, value_name = "LIST")]
    connectors: Option<String>,
    /// Move this file or directory into the instance before the command: to DESTINATION, a path
    /// below the mount prefix, or to its own name in the prefix. May be given more than once; see
    /// weir stage.
    #[arg(long, value_name = "SOURCE[:DESTINATION]")]
    pub stage_in: Vec<OsString>,
    /// Move what is in the instance into this directory, which is created if its parent exists: while the
    /// command works each file that is closed (drain.while_running), and the rest when it has ended,
    /// however it ended. If that fails, weir run ends with 122 unless the command failed by itself, and the
    /// instance stays: nothing is lost. drain.only and drain.skip choose files.
    #[arg(long, value_name = "DIRECTORY", value_parser = utf8_path())]
    pub drain_to: Option<PathBuf>,
    /// The command and its arguments.
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

impl RunArgs {
    /// The options that say what an instance is to be like, so that it cannot be one that runs: by
    /// name, as given.
    pub fn describing(&self, settings: &Loaded) -> Vec<String> {
        let nodes = [
            ("--hosts", self.nodes.hosts.is_some()),
            ("--hostfile", self.nodes.hostfile.is_some()),
            ("--servers", self.nodes.servers.is_some()),
            ("--movers", self.nodes.movers.is_some()),
        ];
        let nodes = nodes.into_iter().filter(|(_, is_given)| *is_given);
        let keys = all_keys().filter(|key| *settings.origin(key) == ValueOrigin::CommandLine);
        let keys = keys.map(weir_config::KeyInfo::path);
        let keys = keys.filter(|key| !key.starts_with("run.") && !key.starts_with("drain."));
        let own = &self.instance_args;
        let option = |key: String| match key.as_str() {
            "mount.prefix" if own.mount.is_some() => "--mount".to_owned(),
            "memory.budget" if own.memory.is_some() => "--memory".to_owned(),
            "file.directories" if !own.storage.is_empty() => "--storage".to_owned(),
            "file.enabled" if own.no_storage => "--no-storage".to_owned(),
            "elevate.directories" if !own.elevate.is_empty() => "--elevate".to_owned(),
            key => format!("--set {key}"),
        };
        let names = nodes.map(|(name, _)| name.to_owned());
        names.chain(keys.map(option)).collect()
    }

    /// The options about the end of an instance, which is not of a run that uses one that was there
    /// before.
    pub fn about_its_end(settings: &Loaded) -> Vec<&'static str> {
        let given = |name| {
            let mut keys = all_keys().filter(|key| key.path() == name);
            keys.any(|key| *settings.origin(key) == ValueOrigin::CommandLine)
        };
        let is_wanted = settings.config.run.report != ReportFormat::None;
        let options = [
            ("--report", given("run.report") && is_wanted),
            ("--keep", given("run.keep") && settings.config.run.keep),
        ];
        let options = options.into_iter().filter(|(_, is_given)| *is_given);
        options.map(|(name, _)| name).collect()
    }
}

/// Of `weir start`.
#[derive(Args, Debug)]
pub struct StartArgs {
    /// Its name (default: of the batch job, or of the user).
    #[arg(value_name = "NAME")]
    pub instance: Option<String>,
    /// Print shell commands that make weir run and the other commands use it.
    #[arg(long)]
    pub shell: bool,
    /// With --shell: inject the client into every program that the shell starts from then on.
    #[arg(long, requires = "shell")]
    pub inject: bool,
    #[command(flatten)]
    pub nodes: NodeArgs,
    #[command(flatten)]
    instance_args: InstanceArgs,
}

/// Of `weir stop`.
#[derive(Args, Debug)]
pub struct StopArgs {
    /// Name or run directory (default: WEIR_INSTANCE, else as for weir start).
    #[arg(value_name = "NAME")]
    pub instance: Option<String>,
    /// Stop it under the programs that use it. Their calls get ESHUTDOWN from then on.
    #[arg(long)]
    pub force: bool,
    /// Move everything in it into this directory first, which is created if its parent exists. If that
    /// fails, the instance stays.
    #[arg(long, value_name = "DIRECTORY")]
    pub drain_to: Option<PathBuf>,
    /// Give up what is not yet on the parallel file system, instead of moving what is in elevated
    /// directories first.
    #[arg(long, conflicts_with = "drain_to")]
    pub no_drain: bool,
    /// The report: text, json or none (run.report; default text).
    #[arg(long, value_name = "FORMAT")]
    report: Option<String>,
}

/// Of `weir recover`.
#[derive(Args, Debug)]
pub struct RecoverArgs {
    /// Names or run directories (default: all dead instances of the user on this node that files are to be
    /// moved out of).
    #[arg(value_name = "NAME")]
    pub instances: Vec<String>,
    /// Only say which instances are dead, what they have, and what can be done.
    #[arg(long)]
    pub list: bool,
    /// Move everything in them into this directory, which is created if its parent exists (default: that of their
    /// weir run --drain-to).
    #[arg(long, value_name = "DIRECTORY")]
    pub drain_to: Option<PathBuf>,
}

/// Of `weir status`.
#[derive(Args, Debug)]
pub struct StatusArgs {
    /// Name or run directory (default: WEIR_INSTANCE, else all of the user).
    #[arg(value_name = "NAME")]
    pub instance: Option<String>,
    /// Look twice, a second apart, and show what was written and read in between.
    #[arg(long, conflicts_with = "json")]
    pub rates: bool,
    /// For programs.
    #[arg(long)]
    pub json: bool,
}

/// Of `weir ls`.
#[derive(Args, Debug)]
pub struct LsArgs {
    /// A path, with or without the mount prefix before it.
    #[arg(default_value = "/")]
    pub path: String,
    /// Name or run directory (default: WEIR_INSTANCE, else as for weir start).
    #[arg(long, short = 'i', value_name = "NAME")]
    pub instance: Option<String>,
    /// Kind, mode, size and time (UTC) of each.
    #[arg(long, short = 'l')]
    pub long: bool,
    /// Below each file, at which servers its bytes are, in memory and in files.
    #[arg(long)]
    pub layout: bool,
    /// Names that begin with a dot too.
    #[arg(long, short = 'a')]
    pub all: bool,
}

/// Of `weir laminate`.
#[derive(Args, Debug)]
pub struct LaminateArgs {
    /// Files, with or without the mount prefix before them.
    #[arg(required = true, value_name = "PATH")]
    pub paths: Vec<String>,
    /// Wait so long for those who have them open for writing.
    #[arg(long, value_name = "SECONDS")]
    pub wait: Option<u64>,
    /// Name or run directory (default: WEIR_INSTANCE, else as for weir start).
    #[arg(long, short = 'i', value_name = "NAME")]
    pub instance: Option<String>,
}

/// Of `weir log`.
#[derive(Args, Debug)]
pub struct LogArgs {
    /// A log, or a directory of logs (default: those of the instance whose command this is).
    #[arg(long, global = true, value_name = "DIR")]
    pub path: Option<PathBuf>,
    #[command(subcommand)]
    pub action: LogAction,
}

/// The actions of `weir log`.
#[derive(Debug, Subcommand)]
pub enum LogAction {
    /// Show which logs there are, and what they have.
    Show {
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Print a variable: a line for each row, `_` for elements that the log does not have.
    Read {
        /// Its name.
        #[arg(value_name = "VARIABLE")]
        variable: String,
    },
    /// Move what killed programs logged into their files, and remove the logs.
    Replay {
        /// Move it into this file instead: a copy of the one that the log is of.
        #[arg(long, value_name = "FILE")]
        to: Option<PathBuf>,
        /// Keep the logs.
        #[arg(long)]
        keep: bool,
    },
}

/// Of `weir stage`.
#[derive(Args, Debug)]
pub struct StageArgs {
    /// Into the instance, or out of it.
    #[command(subcommand)]
    pub direction: StageDirection,
}

/// The direction of a stage.
#[derive(Debug, Subcommand)]
pub enum StageDirection {
    /// Move files into the instance.
    In(StageInArgs),
    /// Move files out of the instance.
    Out(StageFiles),
}

/// Of `weir stage in`.
#[derive(Args, Debug)]
pub struct StageInArgs {
    #[command(flatten)]
    pub files: StageFiles,
    /// Stay, look for new and changed files of SOURCE every second, and move each once it has not changed for a
    /// second. Ends at SIGINT, SIGTERM or SIGHUP, after a last look, and with the instance. Files that are
    /// removed from SOURCE stay in the instance.
    #[arg(long, conflicts_with = "manifest")]
    pub follow: bool,
}

/// The files of a stage, and its options.
#[derive(Args, Debug)]
pub struct StageFiles {
    /// Sources, and the destination last.
    #[arg(
        value_name = "SOURCE... DESTINATION",
        num_args = 2..,
        required_unless_present = "manifest",
        conflicts_with = "manifest"
    )]
    pub paths: Vec<PathBuf>,
    /// Read pairs from this file: `source destination` a line; quotes; # begins a comment.
    #[arg(long, value_name = "FILE")]
    pub manifest: Option<PathBuf>,
    /// Read everything back from the target and compare.
    #[arg(long)]
    pub verify: bool,
    #[command(flatten)]
    pub choice: ChoiceArgs,
    /// Laminate files first of which other nodes see the bytes only then (visibility ral). Without it
    /// they are not moved.
    #[arg(long)]
    pub laminate: bool,
    /// How many threads copy on each node (default: two for each of its processors, 16 to 32).
    #[arg(long, value_name = "N")]
    pub threads: Option<std::num::NonZeroUsize>,
    /// Print the summary as JSON.
    #[arg(long)]
    pub json: bool,
    /// Write the summary as JSON to this file, too.
    #[arg(long, value_name = "FILE")]
    pub summary: Option<PathBuf>,
    /// Name or run directory (default: WEIR_INSTANCE, else as for weir start).
    #[arg(long, short = 'i', value_name = "NAME")]
    pub instance: Option<String>,
}

/// Of `weir drain`.
#[derive(Args, Debug)]
pub struct DrainArgs {
    /// Ask for these files and directories of the instance only (default: everything in it).
    #[arg(value_name = "PATH")]
    pub paths: Vec<PathBuf>,
    /// Wait until all of it is safe, or could not be moved.
    #[arg(long, short = 'w', conflicts_with = "status")]
    pub wait: bool,
    /// Wait no longer than this: 30, 10m, 1h.
    #[arg(long, value_name = "TIME", requires = "wait", value_parser = parse_time)]
    pub timeout: Option<Duration>,
    /// Show the state, as a look finds it that begins now. If none ends within some seconds the answer is "not yet".
    #[arg(long)]
    pub status: bool,
    #[command(flatten)]
    pub pause: PauseArgs,
    /// Print the state as JSON.
    #[arg(long)]
    pub json: bool,
    /// Name or run directory (default: WEIR_INSTANCE, else as for weir start).
    #[arg(long, short = 'i', value_name = "NAME")]
    pub instance: Option<String>,
}

/// A pause of a drain.
#[derive(Args, Clone, Copy, Debug)]
pub struct PauseArgs {
    /// Move nothing until --resume, or until the command of weir run has ended. Other nodes finish what they move.
    #[arg(long, conflicts_with_all = ["wait", "resume"])]
    pub pause: bool,
    /// End a pause.
    #[arg(long)]
    pub resume: bool,
}

impl PauseArgs {
    /// True to begin a pause, false to end it.
    pub fn change(self) -> Option<bool> {
        (self.pause || self.resume).then_some(self.pause)
    }
}

/// Of `weir analyze`.
#[derive(Args, Debug)]
pub struct AnalyzeArgs {
    /// Analyse files that fit this pattern, or are in a directory that does, as of drain.only: a path of the
    /// instance, or of the elevated directory, or one below it, such as '**/*.h5' (default: every file). May be
    /// given more than once.
    #[arg(long, value_name = "GLOB")]
    pub on: Vec<String>,
    /// Run so many commands at once.
    #[arg(long, short = 'j', value_name = "N", default_value = "1")]
    pub jobs: std::num::NonZeroU8,
    /// Kill a command after this time, with all that it started: 30, 10m, 1h; 0: never.
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = parse_time)]
    pub timeout: Duration,
    /// Wait so long for a weir run that moves files.
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = parse_time)]
    pub wait: Duration,
    /// Print a line of JSON for each file.
    #[arg(long)]
    pub json: bool,
    /// Name or run directory (default: WEIR_INSTANCE, else as for weir start).
    #[arg(long, short = 'i', value_name = "NAME")]
    pub instance: Option<String>,
    /// The command and its arguments. {} in them is the path of the file; without one it is the last argument.
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

/// A time: seconds, or with units.
fn parse_time(text: &str) -> Result<Duration, String> {
    let parsed = match text.parse() {
        Ok(seconds) => Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string()),
        Err(_) => humantime::parse_duration(text).map_err(|error| error.to_string()),
    };
    parsed.map_err(|error| format!("{error}; write 30, 90s, 10m or 1h"))
}

/// The choice of what is moved.
#[derive(Args, Clone, Debug, Default)]
pub struct ChoiceArgs {
    /// Move only files that fit this pattern, or are in a directory that does: of paths of the
    /// instance, or of those outside for stage in. May be given more than once.
    #[arg(long, value_name = "PATTERN")]
    pub only: Vec<String>,
    /// Do not move files that fit this pattern, or are in a directory that does. May be given more
    /// than once.
    #[arg(long, value_name = "PATTERN")]
    pub skip: Vec<String>,
}

impl ChoiceArgs {
    /// The choice that the settings make for drains.
    pub fn of_drains(drain: &weir_config::Drain, prefix: &str) -> ChoiceArgs {
        ChoiceArgs {
            only: drain.only.below(prefix).collect(),
            skip: drain.skip.below(prefix).collect(),
        }
    }

    /// The same, as words of a command line.
    pub fn words(&self) -> Vec<OsString> {
        let words = |option: &'static str, patterns: &[String]| -> Vec<OsString> {
            let pairs = patterns
                .iter()
                .map(|pattern| format!("{option}={pattern}").into());
            pairs.collect()
        };
        [words("--only", &self.only), words("--skip", &self.skip)].concat()
    }
}

/// Of a process that prefetches.
#[derive(Args, Debug)]
pub struct PrefetchProcessArgs {
    /// Its number among these processes, from 0.
    #[arg(long)]
    pub share: usize,
    /// The number of these processes.
    #[arg(long)]
    pub shares: usize,
    /// The percentage of the storage that may be used.
    #[arg(long)]
    pub evict_percent: u32,
    /// The run directory of the instance.
    pub run_dir: PathBuf,
}

impl PrefetchProcessArgs {
    /// The same, as words of a command line.
    pub fn words(&self) -> Vec<OsString> {
        vec![
            format!("--share={}", self.share).into(),
            format!("--shares={}", self.shares).into(),
            format!("--evict-percent={}", self.evict_percent).into(),
            "--".into(),
            self.run_dir.clone().into(),
        ]
    }
}

/// Of the process that moves files for programs.
#[derive(Args, Debug)]
pub struct TransferProcessArgs {
    /// The percentage of the storage that prefetching may use.
    #[arg(long)]
    pub evict_percent: u32,
    /// The run directory of the instance.
    pub run_dir: PathBuf,
}

/// The drains of an instance before one, by which it knows what it may remove from its target.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
pub enum EarlierDrains {
    /// There were none, or programs have used the instance since.
    #[default]
    Ended,
    /// They were killed, and no program has made room since. The drain removes files that they had moved, and that programs
    /// have removed.
    Killed,
    /// They were killed, and servers of the instance are lost, with names and bytes. The drain removes nothing.
    LostServers,
}

/// Of the process that drains.
#[derive(Args, Debug)]
pub struct DrainProcessArgs {
    #[command(flatten)]
    pub choice: ChoiceArgs,
    /// The least time between two looks.
    #[arg(long)]
    pub interval_s: u32,
    /// The longest time without the return of a call, in the end; 0: no limit.
    #[arg(long)]
    pub stuck_s: u32,
    /// The percentage of the storage in use at which files of an elevated tree are evicted.
    #[arg(long)]
    pub evict_percent: u32,
    /// The order in which files get their names.
    #[arg(long, value_parser = parse_order)]
    pub order: DrainOrder,
    /// Patterns of files that are moved before all others.
    #[arg(long)]
    pub first: Vec<String>,
    /// Patterns of files of an elevated tree that are not evicted.
    #[arg(long)]
    pub keep: Vec<String>,
    /// The seconds from a warning to the end of the job; 0: not known.
    #[arg(long)]
    pub warning_s: u32,
    /// The most bytes that are written in a second; 0: without limit.
    #[arg(long)]
    pub limit: u64,
    /// The bytes of a stripe; none: the target is asked.
    #[arg(long)]
    pub stripe: Option<u64>,
    /// Replace what somebody else has put on the target of an elevated tree.
    #[arg(long)]
    pub replace_foreign: bool,
    /// The program that hears of events.
    #[arg(long)]
    pub hook: Option<PathBuf>,
    /// The file that has the state.
    #[arg(long)]
    pub status_file: Option<PathBuf>,
    /// Laminate files in the end that are seen by other nodes only then.
    #[arg(long)]
    pub laminate: bool,
    /// The drains before this one.
    #[arg(long, value_enum, default_value_t)]
    pub before: EarlierDrains,
    /// The number of processes of this drain that have left calls which hang.
    #[arg(long, default_value_t)]
    pub generation: u32,
    /// It comes after another process, and is no child of the one that waits for it.
    #[arg(long)]
    pub is_successor: bool,
    /// The number of the elevated tree, if one is drained.
    #[arg(long)]
    pub tree: Option<usize>,
    /// The run directory of the instance.
    pub run_dir: PathBuf,
    /// The directory that takes everything.
    pub target: PathBuf,
}

fn parse_order(word: &str) -> Result<DrainOrder, String> {
    let mut orders = [DrainOrder::Changes, DrainOrder::None].into_iter();
    let order = orders.find(|order| order.word() == word);
    order.ok_or_else(|| format!("expected one of {}", DrainOrder::WORDS.join(", ")))
}

/// Of `weir mount`.
#[derive(Args, Debug)]
pub struct MountArgs {
    /// An empty directory of yours.
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
    /// Mount this elevated directory instead: the one tree that it is to the programs of the instance.
    #[arg(long, value_name = "DIR")]
    pub elevated: Option<PathBuf>,
    /// Name or run directory (default: WEIR_INSTANCE, else as for weir start).
    #[arg(long, short = 'i', value_name = "NAME")]
    pub instance: Option<String>,
}

/// The options of `weir doctor`.
#[derive(Args, Debug)]
pub struct DoctorArgs {
    #[command(flatten)]
    pub format: FormatArgs,
    /// Write all that a bug report needs to this new text file, and list it.
    #[arg(long, value_name = "FILE", conflicts_with = "json")]
    pub bundle: Option<PathBuf>,
    /// The program that is to be run: which connectors it has a use for.
    pub program: Option<PathBuf>,
}

/// The options of subcommands that print for people or programs.
#[derive(Args, Debug)]
pub struct FormatArgs {
    /// For programs.
    #[arg(long)]
    pub json: bool,
}

impl Cli {
    /// The sources of the configuration, this command's own options last.
    pub fn sources(&self, environment: Environment) -> Sources {
        let mut set = self.settings.set.clone();
        set.extend(self.command.assignments());
        Sources {
            file: self.settings.config.clone(),
            environment,
            set,
        }
    }
}

impl Command {
    fn assignments(&self) -> Vec<String> {
        let report = |format: &Option<String>| format.as_ref().map(|f| format!("run.report={f}"));
        match self {
            Self::Run(run) => {
                let mut set = run.instance_args.assignments();
                set.extend(report(&run.report));
                set.extend(run.keep.then(|| "run.keep=true".to_owned()));
                let connectors = run.connectors.as_ref();
                set.extend(connectors.map(|list| format!("run.connectors={list}")));
                set
            }
            Self::Start(start) => start.instance_args.assignments(),
            Self::Stop(stop) => report(&stop.report).into_iter().collect(),
            _ => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_declaration_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn directories_that_are_elevated_are_taken_literally() {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().canonicalize().unwrap();
        std::fs::create_dir(top.join("a")).unwrap();
        let dots = top.join("a/../b");
        let words = ["weir", "run", "--elevate", "/p/$HOME:x", "--elevate"];
        let words = words.map(OsString::from).into_iter();
        let words = words.chain([dots.into_os_string(), "true".into()]);
        let sources = Cli::parse_from(words).sources(Environment::default());
        let loaded = sources.load(Path::new("/")).unwrap();
        let elevated = loaded.config.elevated_directories();
        assert_eq!(elevated, [PathBuf::from("/p/$HOME:x"), top.join("b")]);
        // So do the servers.
        let again = Loaded::from_toml(&loaded.toml(), &Environment::default()).unwrap();
        assert_eq!(again.config.elevated_directories(), elevated);
    }

    #[test]
    fn paths_that_are_no_text_are_refused() {
        use std::os::unix::ffi::OsStringExt;
        for option in ["--elevate", "--drain-to"] {
            let bad = OsString::from_vec(b"/bad\xff".to_vec());
            let words = [
                OsString::from("weir"),
                "run".into(),
                option.into(),
                bad,
                "true".into(),
            ];
            let refused = Cli::try_parse_from(words).unwrap_err().to_string();
            assert!(refused.contains("is not UTF-8"), "{refused}");
        }
    }

    #[test]
    fn options_are_settings_and_the_command_is_left_alone() {
        let cli = Cli::parse_from([
            "weir",
            "run",
            "--memory",
            "1G",
            "--storage",
            "/a",
            "--storage",
            "/b",
            "--set",
            "log.level=debug",
            "--",
            "ls",
            "--set",
            "x",
            "-l",
        ]);
        let sources = cli.sources(Environment::default());
        assert_eq!(
            sources.set,
            [
                "log.level=debug",
                "memory.budget=1G",
                "file.directories=/a:/b"
            ]
        );
        let Command::Run(run) = cli.command else {
            panic!()
        };
        assert_eq!(run.command, ["ls", "--set", "x", "-l"]);
        let cli = Cli::parse_from(["weir", "run", "ls", "--memory"]);
        let Command::Run(run) = cli.command else {
            panic!()
        };
        assert_eq!(run.command, ["ls", "--memory"]);
    }
}

//! Every setting of weir, declared once: section, key, type, default, documentation.
//!
//! The declaration below makes the structs, the table [`SECTIONS`] that the loader, the error
//! messages, `weir config` and the manual go by, and the defaults. A default is text in the
//! syntax of the environment, read by the same parser as a user's.

use std::path::PathBuf;

use serde::Serialize;

use crate::environment::Environment;
use crate::network::{CommandWords, FabricAddress, Ports, Provider};
use crate::patterns::Patterns;
use crate::rules::{ElevateSettings, Rules};
use crate::types::{
    ArrayLog, Budget, Connectors, Directories, DrainOrder, ElevatedPaths, HugePages, InvalidValue,
    KernelMount, LaminateOn, LogFlush, LogLevel, LoggedFiles, Method, MirrorUse, MountPrefix,
    RawValue, ReportFormat, Setting, Size, Stripe, Transport, Visibility, WarmBudget, WholePercent,
};

/// A section of `weir.toml`.
#[derive(Debug)]
pub struct SectionInfo {
    /// As in `[name]`.
    pub name: &'static str,
    /// Its documentation; one line of source a line.
    pub doc: &'static str,
    /// In the order of declaration.
    pub keys: &'static [KeyInfo],
}

/// A key of a section.
pub struct KeyInfo {
    /// The section it is in.
    pub section: &'static str,
    /// As before the `=`.
    pub name: &'static str,
    /// Its documentation; one line of source a line.
    pub doc: &'static str,
    /// The form of its value, for error messages and the manual.
    pub shape: &'static str,
    /// The default, as one would write it in a variable.
    pub default: &'static str,
    pub(crate) set: fn(&mut Config, &RawValue<'_>, &Environment) -> Result<(), InvalidValue>,
    pub(crate) to_toml: fn(&Config) -> String,
}

impl std::fmt::Debug for KeyInfo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.path())
    }
}

impl KeyInfo {
    /// `section.key`.
    pub fn path(&self) -> String {
        format!("{}.{}", self.section, self.name)
    }

    /// `WEIR_SECTION_KEY`.
    pub fn variable(&self) -> String {
        format!("WEIR_{}_{}", self.section, self.name).to_ascii_uppercase()
    }

    /// The value in force, in TOML.
    pub fn shown(&self, config: &Config) -> String {
        (self.to_toml)(config)
    }
}

macro_rules! settings {
    ($(
        $(#[doc = $section_doc:literal])+
        $section:ident : $Section:ident {
            $( $(#[doc = $doc:literal])+ $key:ident : $ty:ty = $default:literal, )+
        }
    )+) => {
        $(
            $(#[doc = $section_doc])+
            #[derive(Clone, Debug, PartialEq, Serialize)]
            pub struct $Section { $( $(#[doc = $doc])+ pub $key: $ty, )+ }
        )+

        /// All settings, typed.
        #[derive(Clone, Debug, PartialEq, Serialize)]
        pub struct Config {
            $( $(#[doc = $section_doc])+ pub $section: $Section, )+
            /// The rules of a file, each of one directory.
            pub rules: Rules,
        }

        /// Every section and key.
        pub static SECTIONS: &[SectionInfo] = &[$(
            SectionInfo {
                name: stringify!($section),
                doc: concat!($($section_doc, "\n"),+),
                keys: &[$(
                    KeyInfo {
                        section: stringify!($section),
                        name: stringify!($key),
                        doc: concat!($($doc, "\n"),+),
                        shape: <$ty as Setting>::SHAPE,
                        default: $default,
                        set: |config, raw, env| {
                            config.$section.$key = Setting::read(raw, env)?;
                            Ok(())
                        },
                        to_toml: |config| config.$section.$key.to_toml(),
                    },
                )+],
            },
        )+];

        impl Config {
            /// The defaults in `env`, on which those with `$VARIABLES` depend.
            ///
            /// The error names the variable whose value makes a default unusable, such as a
            /// relative `TMPDIR`.
            pub fn defaults(env: &Environment) -> Result<Self, (String, InvalidValue)> {
                Ok(Self {
                    $( $section: $Section {
                        $( $key: Setting::read(&RawValue::Text($default), env).map_err(|bad| {
                            (concat!(stringify!($section), ".", stringify!($key)).to_owned(), bad)
                        })?, )+
                    }, )+
                    rules: Rules::default(),
                })
            }
        }
    };
}

settings! {
    /// Where programs find weir.
    mount: Mount {
        /// The path under which programs see the file system. Nothing needs to exist there; what
        /// does is hidden from the programs that weir runs.
        prefix: MountPrefix = "/weir",
        /// The kernel mount (FUSE), for programs that the client cannot be injected into: static ones,
        /// setuid ones, those of other languages' runtimes. `auto`: where the kernel can, at
        /// `mount.prefix` if that is an empty directory, else in the instance's run directory;
        /// `never`; or the directory to mount it at, which must exist, and then a start fails where
        /// the kernel cannot mount it.
        kernel: KernelMount = "auto",
        /// `weir run` moves itself and its command into user and mount namespaces of their own, in
        /// which `mount.prefix` is a directory, so that the kernel can mount there without
        /// privileges (no root, no fusermount3; /dev/fuse must be open to the user, and user
        /// namespaces allowed). setuid programs have no effect there. Instances of one server only.
        namespace: bool = "false",
    }

    /// The memory tier, which takes data first.
    memory: Memory {
        /// The most memory that data may take on this node. A percentage is of the least of the
        /// memory available, the memory limit of the control group (what a batch system
        /// grants the job) and the space free in `memory.directory`.
        budget: Budget = "25%",
        /// How much memory is kept ready: allocated, touched and on huge pages, so that a burst
        /// runs at the speed of a copy. `auto` is the budget, but at most 2 GiB. Memory
        /// that is warm is taken from the node even when nothing is stored.
        warm: WarmBudget = "auto",
        /// A directory on tmpfs. Data is kept in `weir-UID-memory/INSTANCE` below it.
        directory: PathBuf = "/dev/shm",
        /// Collapse warm memory to huge pages, which more than doubles the speed of large writes
        /// where the kernel can do it (`weir doctor` says whether this one does).
        huge_pages: HugePages = "auto",
    }

    /// The file tier, which takes what the memory budget does not hold.
    file: File {
        /// Use the file tier. Without it, a write that does not fit in the memory budget fails
        /// with ENOSPC.
        enabled: bool = "true",
        /// Directories on storage of this node, NVMe where there is some. Data is kept in
        /// `weir-UID-files-HOST/INSTANCE` below each.
        directories: Directories = "${TMPDIR:-/tmp}",
        /// The most that data may take, over all directories. A percentage is of the space
        /// free in them at the start; directories of one file system count once.
        budget: Budget = "50%",
    }

    /// When programs of other nodes see what a node wrote; those of the node itself see it at
    /// once. A pattern is a path in which `*` stands for anything but a slash and `**` for
    /// anything, such as \"/weir/ckpt/**\" or \"log/*.txt\" (below the mount). It counts for
    /// files made from then on; of several that match, the longest counts.
    visibility: VisibilitySection {
        /// Where nothing else is said: read after sync (ras), read after write (raw) or read
        /// after laminate (ral). See docs/SEMANTICS.md.
        default: Visibility = "raw",
        /// Files that are seen after sync.
        ras: Patterns = "",
        /// Files that are seen after each write. Their readers ask the writers' nodes.
        raw: Patterns = "",
        /// Files that are seen once they are laminated.
        ral: Patterns = "",
    }

    /// The events that make files read-only for good: then each node may keep where their bytes
    /// are.
    laminate: Laminate {
        /// Where nothing else is said: only an explicit request, a chmod that takes the last write
        /// permission (as UnifyFS does), or as well the end of the last descriptor open for writing
        /// (close).
        on: LaminateOn = "request",
        /// Files that are laminated by a chmod that takes the last write permission.
        chmod: Patterns = "",
        /// Files that are laminated when the last descriptor open for writing is closed.
        close: Patterns = "",
    }

    /// Finding programs that read what another node wrote before it was made known: that lack
    /// an fsync or close of the writer, or wait for a lamination that did not come.
    audit: Audit {
        /// Ask the nodes that write a file at each read of it elsewhere. The report names file,
        /// bytes, programs and nodes. Reads cost messages then.
        enabled: bool = "false",
    }

    /// The services of the kernel that programs of an instance may use.
    calls: Calls {
        /// Give programs rings of io_uring. The kernel knows nothing of weir's files, and
        /// what is asked of them by a ring fails. Without it `io_uring_setup` says ENOSYS, as an older kernel
        /// does, and programs do their work by other calls. With it, a program that uses rings for
        /// sockets or files elsewhere is as fast as it was.
        io_uring: bool = "false",
    }

    /// The server, one process a node.
    server: Server {
        /// Threads that warm memory. They run at low priority and end when the pool is full.
        warmers: u32 = "2",
        /// The most files, directories and links at one time. Room for their names is only taken
        /// as it is used.
        max_files: u32 = "4000000",
        /// The most processes that use the instance at one time, besides kernel mounts.
        max_clients: u32 = "4096",
        /// How long a client watches for an answer before it sleeps, in microseconds, and the
        /// server for the next request; ten times as long while requests follow one another
        /// that fast, 40 times if they are of a kernel mount. A client does so only while the server
        /// runs on another CPU.
        spin_us: u32 = "5",
    }

    /// Starting an instance on several nodes: those of the batch job, of `--hosts` or of
    /// `--hostfile`.
    launch: Launch {
        /// The program that starts servers on the other nodes.
        method: Method = "auto",
        /// How a node is reached where that is ssh: the command, before the host's name. The
        /// connection stays while the instance runs; that of a dead node has to break.
        ssh: CommandWords = "ssh -x -T -o BatchMode=yes -o LogLevel=ERROR -o ServerAliveInterval=15",
        /// The most nodes that one node starts servers on over ssh. Those go on with others, so
        /// that the time grows with the logarithm of their number.
        fanout: u32 = "32",
        /// How long all servers may take to know each other, in seconds. If one does not, none
        /// is left.
        deadline_s: u32 = "60",
        /// Where run directories of instances of several servers are: the same path on every
        /// node, but a directory of the node's own. A short one, since sockets lie in it.
        directory: PathBuf = "/tmp",
        /// The weir program on the other nodes; `auto` is where it is on this one.
        program: Option<PathBuf> = "auto",
    }

    /// How servers reach each other.
    fabric: Fabric {
        /// The address that each server listens on. `auto` is the one that the node's name
        /// stands for, else the first that is no loopback; name a fast network where there is
        /// one.
        address: FabricAddress = "auto",
        /// The ports to choose from, where a firewall wants to know them.
        ports: Ports = "any",
        /// The transport of requests between servers. `libfabric` is looked for at run time
        /// (libfabric.so.1); where a server cannot use it, all use TCP, and the servers' logs and
        /// `weir doctor` say why. `auto` takes it only for networks that are faster than by TCP.
        transport: Transport = "tcp",
        /// Which of libfabric's providers.
        provider: Provider = "auto",
        /// How long a server that is there may take to answer another, in seconds; then the call
        /// that needs it fails with EIO. One that cannot be reached is given up within 2 seconds.
        deadline_s: u32 = "30",
    }

    /// The log of the server.
    log: Log {
        /// How much is written.
        level: LogLevel = "info",
        /// The file; `auto` is `server.log` in the run directory, which goes with the instance.
        file: Option<PathBuf> = "auto",
    }

    /// Directories of the parallel file system (PFS) that stay where they are for programs, and of which
    /// weir takes what programs write: `weir run --elevate`.
    elevate: Elevate {
        /// The directories. A program's file there is taken at the speed of memory, moved while it
        /// runs, and on the PFS, whole, when `weir run` ends. docs/ELEVATOR.md says what else differs. Rules for
        /// the files of a directory are in `[[elevate]]`.
        directories: ElevatedPaths = "",
    }

    /// How files are moved while a command runs: `weir run --drain-to` and `--elevate`.
    drain: Drain {
        /// Move files while the command runs, too; else once it has ended.
        while_running: bool = "true",
        /// The least time between two looks for files that were written, in seconds. It grows with
        /// the time that a look takes, so that looking takes a twentieth of a processor at most.
        interval_s: u32 = "1",
        /// The longest time for which the end of `weir run` waits while no call of the parallel file
        /// system returns, in seconds; 0: without limit. Then it says what hangs, and exits with 122; the
        /// files stay in the instance. If only some calls hang, weir goes on without their files after this time, and
        /// after five minutes at the latest.
        stuck_s: u32 = "600",
        /// The use of a node's storage, in percent, from which on weir frees the storage of files of elevated directories
        /// that are on the parallel file system already, the least recently used first; programs then read
        /// them there. 100: only when a write finds no room; 0: never, and a full instance is ENOSPC.
        evict_percent: WholePercent = "75",
        /// Of an elevated directory: replace also files that somebody else has put on the parallel file system, or
        /// changed there, since the job took their names. Else they stay, and the job's files stay in the
        /// instance until they have been moved out of the way.
        replace_foreign: bool = "false",
        /// The order in which files get their names on the parallel file system: that of their last changes, so that a
        /// file that says what another one holds is there after it (changes); or none, small ones first, which is
        /// faster for many small files on a file system whose calls take long.
        order: DrainOrder = "changes",
        /// Files that are moved before all others, such as the checkpoint from which a job goes on: patterns as for
        /// `drain.only`, in elevated directories too.
        first: Patterns = "",
        /// The seconds from the signal by which the batch system warns (SIGTERM, SIGUSR1, SIGUSR2 or SIGXCPU) to the end
        /// of the job; 0: it is not known. Some seconds before the end, also of one that Slurm tells, `weir run`
        /// moves no more, and says which files are not safe.
        warning_s: u32 = "0",
        /// The most bytes that all nodes together write to the parallel file system in a second; 0: as many as it
        /// takes.
        limit: Size = "0",
        /// The size of the stripes of files on the parallel file system: what is written there at once does not
        /// cross the end of one, and two movers do not write to one. By itself, what Lustre and GPFS say; 4 MiB
        /// elsewhere.
        stripe: Stripe = "auto",
        /// A program that hears what becomes of files while they are moved, as lines of JSON on its standard input:
        /// docs/ELEVATOR.md, "Asking".
        hook: Option<PathBuf> = "auto",
        /// A file that has the state of the move after each look, as `weir drain --status --json` tells it; with the
        /// number of the elevated directory behind its name, from 0, if one is moved.
        status_file: Option<PathBuf> = "auto",
        /// Files that are moved; if none are named, all. A pattern that a directory fits is for all that
        /// is in it. The rest is gone with the instance.
        only: Patterns = "",
        /// Files that are not moved.
        skip: Patterns = "",
    }

    /// `weir run` and the end of an instance.
    run: Run {
        /// The report written to standard error at the end of `weir run`.
        report: ReportFormat = "text",
        /// Keep the server's log after the end, and say where it is.
        keep: bool = "false",
        /// The connectors that programs get: `mpiio` has collective calls of MPI-IO on files in weir do without
        /// exchanges between processes; `hdf5` has HDF5 1.14 and later do so too, if `mpiio` is there, and
        /// publish what it flushes; `pnetcdf` logs array writes of PnetCDF. `all`: all that are installed; `auto`:
        /// these, but `hdf5` only if the command starts a program that is linked with HDF5 and MPI, for an HDF5 that
        /// is linked statically fails if it cannot load it.
        connectors: Connectors = "auto",
        /// The kernel mounts elevated directories, too, and the command finds them in a mount namespace of its own, each
        /// at its own path. `auto`: if the command is a program that the client cannot be in (a static one); `always`:
        /// also if it starts such programs itself; `never`. /dev/fuse must be open to the user, and unless that is root
        /// fusermount3 be installed and user namespaces allowed; setuid programs have no effect there then. Programs that
        /// run on other nodes are not in the namespace. Where a mirror cannot be mounted, `auto` warns, and
        /// `always` does not start the command.
        mirror: MirrorUse = "auto",
    }

    /// Array writes of PnetCDF, with the connector `pnetcdf`: docs/GUIDE.md, "Connectors".
    pnetcdf: PnetCdf {
        /// A write goes to a log first, and into the file when it is closed or synced, when the log is full, or when
        /// the program reads what is in it. Each process has a log, or the processes of a node share one.
        log: ArrayLog = "process",
        /// The files for which that is done.
        files: LoggedFiles = "weir",
        /// How logged writes go into a file in weir: each process writes its own ones (`direct`), or PnetCDF does it,
        /// collectively. Files that are not in weir are always written by PnetCDF.
        flush: LogFlush = "direct",
        /// The most bytes that a process logs before they are moved into the file.
        budget: Size = "256MiB",
        /// The most bytes that a process moves into the file in one request.
        buffer: Size = "64MiB",
    }
}

impl Config {
    /// The elevated directories: those with rules, then the others of `elevate.directories`, whose rules are the
    /// defaults.
    pub fn elevated(&self) -> Vec<ElevateSettings> {
        let mut rules = self.rules.elevate.clone();
        for directory in &self.elevate.directories.0 {
            if rules.iter().all(|rule| rule.directory != *directory) {
                let defaults = ElevateSettings::defaults(&Environment::default());
                rules.push(ElevateSettings {
                    directory: directory.clone(),
                    ..defaults.expect("they depend on nothing")
                });
            }
        }
        rules
    }

    /// The paths of the elevated directories.
    pub fn elevated_directories(&self) -> Vec<PathBuf> {
        let rules = self.elevated().into_iter();
        rules.map(|rule| rule.directory).collect()
    }
}

/// The key called `section.name`.
pub(crate) fn find(section: &str, name: &str) -> Option<&'static KeyInfo> {
    all_keys().find(|key| key.section == section && key.name == name)
}

/// Every key of every section.
pub fn all_keys() -> impl Iterator<Item = &'static KeyInfo> {
    SECTIONS.iter().flat_map(|section| section.keys)
}

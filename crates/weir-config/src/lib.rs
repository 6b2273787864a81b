//! The settings of weir: their declaration, their origins, and their values on this machine.
//!
//! Layers, each overruling the one before: the defaults, one `weir.toml`, the environment
//! (`WEIR_SECTION_KEY`), the command line (`--set section.key=value`). Every key is declared
//! once, in [`settings`]; its parser, default, documentation and manual page come from there. A file may have
//! rules as well, of which there may be several (`[[elevate]]`, [`rules`]).
//!
//! Invariants:
//! - an unknown key or a malformed value is refused with its origin and the nearest valid name;
//!   nothing is skipped silently;
//! - the default of every key is written in the syntax that a user would use;
//! - nothing here reads the process's environment except [`Environment::of_process`].
//!
//! Left out: acting on a setting. [`machine`] only turns budgets into bytes.
//! The format is documented in docs/CONFIGURATION.md, which [`docs`] generates.

#![forbid(unsafe_code)]

mod docs;
mod environment;
mod error;
mod load;
pub mod machine;
mod network;
mod patterns;
pub mod rules;
pub mod settings;
mod types;

pub use docs::{manual_page, markdown};
pub use environment::{Environment, INTERNAL_VARIABLES};
pub use error::{ConfigError, Problem, ValueOrigin};
pub use load::{find_file, Loaded, Sources};
pub use machine::{Budgets, Machine};
pub use network::{CommandWords, FabricAddress, Ports, Provider};
pub use patterns::Patterns;
pub use rules::{ElevateSettings, PrefetchSettings, RuleKey, RuleTable, Rules, RULE_TABLES};
pub use settings::{
    all_keys, Config, Drain, KeyInfo, Mount, PnetCdf, SectionInfo, Server, SECTIONS,
};
pub use types::{
    paths_to_toml, ArrayLog, Budget, Connector, ConnectorChoice, Connectors, Directories,
    DrainOrder, HugePages, KernelMount, LaminateOn, LogFlush, LogLevel, LoggedFiles, Method,
    MirrorUse, MountPrefix, PrefetchTime, ReportFormat, Setting, Size, Transport, UpdateMode,
    Visibility, WarmBudget, WholePercent,
};

//! The types of settings: their syntax, parsing and output.
//!
//! A value arrives as text (environment, command line) or as TOML. [`Setting::to_toml`] writes TOML
//! that parses to the same value; `weir config` and the server's copy of the configuration rely on
//! that.

use std::path::{Component, Path, PathBuf};

use serde::Serialize;
use toml::de::{DeTable, DeValue};

use crate::environment::Environment;
use crate::error::nearest;

/// A value as it was written.
#[derive(Debug)]
pub enum RawValue<'a> {
    /// From a variable or an option.
    Text(&'a str),
    /// From a file.
    Toml(&'a DeValue<'a>),
}

/// The reason why a value is refused.
#[derive(Debug, PartialEq, Eq)]
pub struct InvalidValue {
    /// One line, after "bad value ...:".
    pub reason: String,
    /// The word that the user probably meant.
    pub nearest: Option<String>,
}

impl From<String> for InvalidValue {
    fn from(reason: String) -> Self {
        Self {
            reason,
            nearest: None,
        }
    }
}

/// A type of setting.
pub trait Setting: Sized + Serialize {
    /// The syntax, as the manual describes it.
    const SHAPE: &'static str;

    /// Parses a word from a variable, an option or a TOML string.
    fn from_text(text: &str, env: &Environment) -> Result<Self, InvalidValue>;

    /// Parses a TOML value; strings and integers are parsed as words unless a type overrides this.
    fn from_toml(value: &DeValue<'_>, env: &Environment) -> Result<Self, InvalidValue> {
        match value {
            DeValue::String(text) => Self::from_text(text, env),
            DeValue::Integer(number) if number.radix() == 10 => {
                Self::from_text(number.as_str(), env)
            }
            other => Err(expected::<Self>(other.type_str())),
        }
    }

    /// The value in TOML.
    fn to_toml(&self) -> String;

    /// Parses either form.
    fn read(raw: &RawValue<'_>, env: &Environment) -> Result<Self, InvalidValue> {
        match raw {
            RawValue::Text(text) => Self::from_text(text.trim(), env),
            RawValue::Toml(value) => Self::from_toml(value, env),
        }
    }
}

pub(crate) fn expected<T: Setting>(found: &str) -> InvalidValue {
    InvalidValue::from(format!("expected {}, found {found}", T::SHAPE))
}

pub(crate) fn quoted(text: &str) -> String {
    toml::Value::from(text).to_string()
}

/// A path as it is written in TOML: a `$` of its name is not that of a variable.
fn path_to_toml(path: &Path) -> String {
    quoted(&literal(&path.to_string_lossy()))
}

/// A text of which nothing is expanded.
fn literal(text: &str) -> String {
    text.replace('$', "$$")
}

/// A number of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct Size(pub u64);

impl Size {
    /// `512`, `64K`, `1.5G`, `2GiB` count in 1024s; `64KB` and `2GB` in 1000s, as dd has it.
    pub fn parse(text: &str) -> Result<Self, InvalidValue> {
        let lone_letter = text
            .strip_suffix(['k', 'K', 'm', 'M', 'g', 'G', 't', 'T', 'p', 'P'])
            .is_some_and(|number| number.ends_with(|c: char| c.is_ascii_digit() || c == ' '));
        let text = if lone_letter {
            format!("{text}iB")
        } else {
            text.to_owned()
        };
        let size: bytesize::ByteSize = text.parse().map_err(|_| {
            InvalidValue::from("expected a size such as 512M, 2GiB or 1500000".to_owned())
        })?;
        Ok(Self(size.as_u64()))
    }

    /// The shortest exact form: `2GiB`, `1500`.
    pub fn exact(self) -> String {
        let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
        units
            .iter()
            .find(|(shift, _)| self.0 != 0 && self.0.trailing_zeros() >= *shift)
            .map_or_else(
                || self.0.to_string(),
                |(shift, unit)| format!("{}{unit}", self.0 >> shift),
            )
    }
}

impl Setting for Size {
    const SHAPE: &'static str = "a size (\"200M\")";

    fn from_text(text: &str, _: &Environment) -> Result<Self, InvalidValue> {
        Size::parse(text)
    }

    fn to_toml(&self) -> String {
        quoted(&self.exact())
    }
}

/// A share of a total, or a number of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Budget {
    /// A fixed number of bytes.
    Bytes(Size),
    /// Percent, above 0 and at most 100.
    Percent(f64),
}

impl Budget {
    /// The number of bytes, with `whole` as the total.
    pub fn bytes_of(self, whole: u64) -> u64 {
        match self {
            Self::Bytes(size) => size.0,
            Self::Percent(percent) => share(whole, percent),
        }
    }
}

/// `percent` of `whole`, to a thousandth of a percent: in integers, so that 100 % is the whole.
fn share(whole: u64, percent: f64) -> u64 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "checked to be within 0 to 100 when it was read"
    )]
    let thousandths = (percent * 1000.0).round() as u128;
    let bytes = u128::from(whole) * thousandths / 100_000;
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

impl Setting for Budget {
    const SHAPE: &'static str = "a size (\"4G\") or a percentage (\"25%\")";

    fn from_text(text: &str, _: &Environment) -> Result<Self, InvalidValue> {
        let Some(number) = text.strip_suffix('%') else {
            return Size::parse(text).map(Self::Bytes);
        };
        let percent: f64 = number
            .trim()
            .parse()
            .map_err(|_| InvalidValue::from(format!("`{number}` is no number")))?;
        if percent > 0.0 && percent <= 100.0 {
            Ok(Self::Percent(percent))
        } else {
            Err("a percentage is above 0 and at most 100".to_owned().into())
        }
    }

    fn to_toml(&self) -> String {
        match self {
            Self::Bytes(size) => quoted(&size.exact()),
            Self::Percent(percent) => quoted(&format!("{percent}%")),
        }
    }
}

/// The size of the stripes of files on a parallel file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stripe {
    /// As the file system says.
    Auto,
    /// This size.
    Fixed(Size),
}

impl Stripe {
    /// The sizes that file systems have.
    const KNOWN: std::ops::RangeInclusive<u64> = 4 << 10..=4 << 30;

    /// The bytes; `None`: the file system is asked.
    pub fn bytes(self) -> Option<u64> {
        match self {
            Self::Auto => None,
            Self::Fixed(size) => Some(size.0),
        }
    }
}

impl Setting for Stripe {
    const SHAPE: &'static str = "\"auto\" or a size of 4K to 4G";

    fn from_text(text: &str, _: &Environment) -> Result<Self, InvalidValue> {
        if text == "auto" {
            return Ok(Self::Auto);
        }
        let size = Size::parse(text)?;
        match Self::KNOWN.contains(&size.0) {
            true => Ok(Self::Fixed(size)),
            false => Err(InvalidValue::from(format!("expected {}", Self::SHAPE))),
        }
    }

    fn to_toml(&self) -> String {
        match self {
            Self::Auto => quoted("auto"),
            Self::Fixed(size) => quoted(&size.exact()),
        }
    }
}

/// The part of the memory budget that is kept ready to be written.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum WarmBudget {
    /// The budget, but at most 2 GiB.
    Auto,
    /// A fixed budget; a percentage is of the memory budget.
    Fixed(Budget),
}

impl Setting for WarmBudget {
    const SHAPE: &'static str = "\"auto\", a size or a percentage of memory.budget";

    fn from_text(text: &str, env: &Environment) -> Result<Self, InvalidValue> {
        match text {
            "auto" => Ok(Self::Auto),
            "0" | "none" => Ok(Self::Fixed(Budget::Bytes(Size(0)))),
            _ => Budget::from_text(text, env).map(Self::Fixed),
        }
    }

    fn to_toml(&self) -> String {
        match self {
            Self::Auto => quoted("auto"),
            Self::Fixed(budget) => budget.to_toml(),
        }
    }
}

/// The absolute path of the mount. Normalised: no `.`, `..` or doubled slash.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct MountPrefix(PathBuf);

impl MountPrefix {
    /// The path.
    pub fn as_path(&self) -> &Path {
        &self.0
    }
}

impl Setting for MountPrefix {
    const SHAPE: &'static str = "an absolute path below /";

    fn from_text(text: &str, env: &Environment) -> Result<Self, InvalidValue> {
        let path = absolute(text, env)?;
        if path == Path::new("/") {
            return Err("weir cannot stand in for the whole of /".to_owned().into());
        }
        let taken = ["/proc", "/sys", "/dev"];
        if let Some(system) = taken.iter().find(|t| path.starts_with(t)) {
            return Err(format!("{system} belongs to the kernel").into());
        }
        Ok(Self(path))
    }

    fn to_toml(&self) -> String {
        path_to_toml(&self.0)
    }
}

/// A connector: a library that programs get beside the client, and that wraps the functions of another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Connector {
    /// Collective calls of MPI-IO.
    MpiIo,
    /// Array writes of PnetCDF.
    PnetCdf,
    /// Transfers and flushes of HDF5.
    Hdf5,
}

impl Connector {
    /// All of them.
    pub const ALL: [Connector; 3] = [Connector::MpiIo, Connector::PnetCdf, Connector::Hdf5];

    /// The name in settings.
    pub fn name(self) -> &'static str {
        match self {
            Connector::MpiIo => "mpiio",
            Connector::PnetCdf => "pnetcdf",
            Connector::Hdf5 => "hdf5",
        }
    }
}

/// The connectors of programs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Connectors {
    /// Those that are installed and cannot harm a program that does not know of them, or that it is linked for.
    Auto,
    /// Those that are installed.
    All,
    /// These.
    Named(Vec<Connector>),
}

/// When programs get a connector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectorChoice {
    /// Always; without it nothing is run.
    Required,
    /// Never.
    Excluded,
    /// If it is installed.
    Installed,
    /// If it is installed, and the command starts a program that is linked with the library that it is for.
    Linked,
}

impl Connectors {
    /// When programs get a connector.
    pub fn choice(&self, connector: Connector) -> ConnectorChoice {
        match self {
            // HDF5 is told of its connector by a variable, and one that cannot load it (linked statically, or with other
            // names of its functions) fails in its first call.
            Self::Auto if connector == Connector::Hdf5 => ConnectorChoice::Linked,
            Self::Auto | Self::All => ConnectorChoice::Installed,
            Self::Named(named) if named.contains(&connector) => ConnectorChoice::Required,
            Self::Named(_) => ConnectorChoice::Excluded,
        }
    }
}

impl Setting for Connectors {
    const SHAPE: &'static str =
        "\"auto\", \"all\", \"none\", or names separated by commas: \"mpiio,pnetcdf,hdf5\"";

    fn from_text(text: &str, _: &Environment) -> Result<Self, InvalidValue> {
        let named = |name: &str| {
            let mut all = Connector::ALL.into_iter();
            all.find(|connector| connector.name() == name.trim())
        };
        match text {
            "auto" => Ok(Self::Auto),
            "all" => Ok(Self::All),
            "none" => Ok(Self::Named(Vec::new())),
            names => {
                let found: Option<Vec<Connector>> = names.split(',').map(named).collect();
                found
                    .map(Self::Named)
                    .ok_or_else(|| InvalidValue::from(format!("expected {}", Self::SHAPE)))
            }
        }
    }

    fn to_toml(&self) -> String {
        match self {
            Self::Auto => quoted("auto"),
            Self::All => quoted("all"),
            Self::Named(named) if named.is_empty() => quoted("none"),
            Self::Named(named) => {
                let names: Vec<&str> = named.iter().map(|connector| connector.name()).collect();
                quoted(&names.join(","))
            }
        }
    }
}

/// The kernel mount's mode.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum KernelMount {
    /// Mount if possible, at a suitable directory.
    Auto,
    /// Do not mount.
    Never,
    /// Mount at this directory.
    At(PathBuf),
}

impl Setting for KernelMount {
    const SHAPE: &'static str = "\"auto\", \"never\" or an absolute path";

    fn from_text(text: &str, env: &Environment) -> Result<Self, InvalidValue> {
        match text {
            "auto" => Ok(Self::Auto),
            "never" => Ok(Self::Never),
            _ => absolute(text, env).map(Self::At),
        }
    }

    fn to_toml(&self) -> String {
        match self {
            Self::Auto => quoted("auto"),
            Self::Never => quoted("never"),
            Self::At(dir) => path_to_toml(dir),
        }
    }
}

fn absolute(text: &str, env: &Environment) -> Result<PathBuf, InvalidValue> {
    let text = env.expand(text)?;
    let path = Path::new(&text);
    if !path.is_absolute() {
        return Err(format!("`{text}` is not an absolute path").into());
    }
    if path.components().any(|c| c == Component::ParentDir) {
        return Err(format!("`{text}` contains `..`").into());
    }
    // Collecting the components drops `.`, doubled and trailing slashes.
    Ok(path.components().collect())
}

impl Setting for PathBuf {
    const SHAPE: &'static str = "an absolute path; $VARIABLES are expanded, `$$` is a `$`";

    fn from_text(text: &str, env: &Environment) -> Result<Self, InvalidValue> {
        absolute(text, env)
    }

    fn to_toml(&self) -> String {
        path_to_toml(self)
    }
}

/// A named file, or the default one.
impl Setting for Option<PathBuf> {
    const SHAPE: &'static str = "\"auto\" or an absolute path; $VARIABLES are expanded";

    fn from_text(text: &str, env: &Environment) -> Result<Self, InvalidValue> {
        match text {
            "auto" => Ok(None),
            _ => absolute(text, env).map(Some),
        }
    }

    fn to_toml(&self) -> String {
        self.as_ref()
            .map_or_else(|| quoted("auto"), Setting::to_toml)
    }
}

/// Directories, in the order in which they are filled.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Directories(pub Vec<PathBuf>);

impl Setting for Directories {
    const SHAPE: &'static str = PATHS_SHAPE;

    fn from_text(text: &str, env: &Environment) -> Result<Self, InvalidValue> {
        at_least_one(paths_of_text::<Self>(text, env)?)
    }

    fn from_toml(value: &DeValue<'_>, env: &Environment) -> Result<Self, InvalidValue> {
        at_least_one(paths_of_toml::<Self>(value, env)?)
    }

    fn to_toml(&self) -> String {
        paths_to_toml(&self.0)
    }
}

/// Directories of the parallel file system that are elevated.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct ElevatedPaths(pub Vec<PathBuf>);

impl ElevatedPaths {
    /// None is the root, the kernel's, or within another one.
    pub(crate) fn check(self) -> Result<Self, InvalidValue> {
        for (at, path) in self.0.iter().enumerate() {
            let stands_in = literal(&path.display().to_string());
            MountPrefix::from_text(&stands_in, &Environment::default())?;
            let others = self.0.iter().take(at);
            if let Some(other) = others
                .clone()
                .find(|other| other.starts_with(path) || path.starts_with(other))
            {
                if path == other {
                    return Err(format!("{} is named twice", path.display()).into());
                }
                let (one, other) = (path.display(), other.display());
                return Err(format!("{one} and {other}: one is within the other").into());
            }
        }
        Ok(self)
    }
}

impl Setting for ElevatedPaths {
    const SHAPE: &'static str = PATHS_SHAPE;

    fn from_text(text: &str, env: &Environment) -> Result<Self, InvalidValue> {
        Self(paths_of_text::<Self>(text, env)?).check()
    }

    fn from_toml(value: &DeValue<'_>, env: &Environment) -> Result<Self, InvalidValue> {
        Self(paths_of_toml::<Self>(value, env)?).check()
    }

    fn to_toml(&self) -> String {
        paths_to_toml(&self.0)
    }
}

const PATHS_SHAPE: &str =
    "a list of absolute paths (in a variable or option: with `:` between, or as in a file); $VARIABLES are expanded, `$$` is a `$`";

fn paths_of_text<T: Setting>(text: &str, env: &Environment) -> Result<Vec<PathBuf>, InvalidValue> {
    if text.starts_with('[') {
        let table = format!("paths = {text}");
        let table = DeTable::parse(&table).map_err(|error| error.message().to_owned())?;
        return match table.get_ref().get("paths") {
            Some(list) => paths_of_toml::<T>(list.get_ref(), env),
            None => Err(expected::<T>("no list")),
        };
    }
    // Expanded before it is split: `${TMPDIR:-/tmp}` has a colon of its own, and a variable may
    // hold a list.
    let expanded = env.expand(text)?;
    let parts = expanded.split(':').filter(|part| !part.is_empty());
    parts.map(|part| absolute(part, env)).collect()
}

fn paths_of_toml<T: Setting>(
    value: &DeValue<'_>,
    env: &Environment,
) -> Result<Vec<PathBuf>, InvalidValue> {
    let items = match value {
        DeValue::String(text) => return Ok(vec![absolute(text, env)?]),
        DeValue::Array(items) => items,
        other => return Err(expected::<T>(other.type_str())),
    };
    let paths = items.iter().map(|item| match item.get_ref() {
        DeValue::String(text) => absolute(text, env),
        other => Err(expected::<T>(&format!("a list with {}", other.type_str()))),
    });
    paths.collect()
}

/// A list of paths, as the text of a setting: nothing in them is expanded, and a `:` is part of a name.
pub fn paths_to_toml(paths: &[PathBuf]) -> String {
    let items: Vec<String> = paths.iter().map(Setting::to_toml).collect();
    format!("[{}]", items.join(", "))
}

fn at_least_one(paths: Vec<PathBuf>) -> Result<Directories, InvalidValue> {
    if paths.is_empty() {
        return Err(
            "no directory is named; to do without, set file.enabled = false"
                .to_owned()
                .into(),
        );
    }
    Ok(Directories(paths))
}

impl Setting for bool {
    const SHAPE: &'static str = "true or false";

    fn from_text(text: &str, _: &Environment) -> Result<Self, InvalidValue> {
        match text {
            "true" | "yes" | "on" | "1" => Ok(true),
            "false" | "no" | "off" | "0" => Ok(false),
            _ => Err(one_of(text, &["true", "false"])),
        }
    }

    fn from_toml(value: &DeValue<'_>, _: &Environment) -> Result<Self, InvalidValue> {
        match value {
            DeValue::Boolean(yes) => Ok(*yes),
            other => Err(expected::<Self>(other.type_str())),
        }
    }

    fn to_toml(&self) -> String {
        self.to_string()
    }
}

impl Setting for u32 {
    const SHAPE: &'static str = "a whole number";

    fn from_text(text: &str, _: &Environment) -> Result<Self, InvalidValue> {
        let digits: String = text.chars().filter(|c| *c != '_').collect();
        digits
            .parse()
            .map_err(|e| InvalidValue::from(format!("expected {}: {e}", Self::SHAPE)))
    }

    fn to_toml(&self) -> String {
        self.to_string()
    }
}

/// A part of a whole, in whole percent, of which 0 has a meaning of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct WholePercent(pub u32);

impl Setting for WholePercent {
    const SHAPE: &'static str = "a whole number from 0 to 100";

    fn from_text(text: &str, env: &Environment) -> Result<Self, InvalidValue> {
        match u32::from_text(text, env)? {
            percent @ 0..=100 => Ok(Self(percent)),
            percent => Err(format!("expected {}, not {percent}", Self::SHAPE).into()),
        }
    }

    fn to_toml(&self) -> String {
        self.0.to_string()
    }
}

fn one_of(word: &str, words: &[&str]) -> InvalidValue {
    InvalidValue {
        reason: format!("expected one of {}", words.join(", ")),
        nearest: nearest(word, words.iter().copied()),
    }
}

/// Declares an enum whose variants are written as single words.
macro_rules! words {
    ($(#[$doc:meta])* $name:ident, $shape:literal { $( $(#[$vdoc:meta])* $variant:ident = $word:literal, )+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
        pub enum $name { $( $(#[$vdoc])* #[serde(rename = $word)] $variant, )+ }

        impl $name {
            /// Every word, in the order of declaration.
            pub const WORDS: &'static [&'static str] = &[$($word),+];

            /// The word that means this value.
            pub fn word(self) -> &'static str {
                match self { $( Self::$variant => $word, )+ }
            }
        }

        impl Setting for $name {
            const SHAPE: &'static str = $shape;

            fn from_text(text: &str, _: &Environment) -> Result<Self, InvalidValue> {
                match text {
                    $( $word => Ok(Self::$variant), )+
                    _ => Err(one_of(text, Self::WORDS)),
                }
            }

            fn to_toml(&self) -> String {
                quoted(self.word())
            }
        }
    };
}

words! {
    /// The use of huge pages for the memory tier.
    HugePages, "\"auto\" or \"never\"" {
        /// Wherever the kernel can.
        Auto = "auto",
        /// Small pages only.
        Never = "never",
    }
}

words! {
    /// The order in which files get their names on the parallel file system.
    DrainOrder, "\"changes\" or \"none\"" {
        /// That of the last changes of the files.
        Changes = "changes",
        /// Each file gets its name when it is copied.
        None = "none",
    }
}

words! {
    /// The commands that find elevated directories by the kernel.
    MirrorUse, "\"auto\", \"always\" or \"never\"" {
        /// Programs that the client cannot be in.
        Auto = "auto",
        /// All.
        Always = "always",
        /// None.
        Never = "never",
    }
}

words! {
    /// The log of array writes.
    ArrayLog, "\"process\", \"node\" or \"none\"" {
        /// Each process has one.
        Process = "process",
        /// The processes of a node share one.
        Node = "node",
        /// There is none.
        None = "none",
    }
}

words! {
    /// The files whose array writes are logged.
    LoggedFiles, "\"weir\" or \"all\"" {
        /// Those in weir.
        Weir = "weir",
        /// Those elsewhere, too.
        All = "all",
    }
}

words! {
    /// How logged array writes go into a file in weir.
    LogFlush, "\"direct\" or \"pnetcdf\"" {
        /// Each process writes its own ones.
        Direct = "direct",
        /// By PnetCDF.
        PnetCdf = "pnetcdf",
    }
}

words! {
    /// The transport of requests between servers.
    Transport, "\"tcp\", \"libfabric\" or \"auto\"" {
        /// TCP.
        Tcp = "tcp",
        /// libfabric, where it can be used.
        Libfabric = "libfabric",
        /// libfabric where it has a provider for a network that is faster than by TCP.
        Auto = "auto",
    }
}

words! {
    /// How much the server writes to its log.
    LogLevel, "\"off\", \"error\", \"warn\", \"info\", \"debug\" or \"trace\"" {
        /// Nothing.
        Off = "off",
        /// Failures.
        Error = "error",
        /// And whatever looks wrong.
        Warn = "warn",
        /// And what is done, once a step.
        Info = "info",
        /// And why.
        Debug = "debug",
        /// And each request.
        Trace = "trace",
    }
}

words! {
    /// The form of the report at the end of `weir run`.
    ReportFormat, "\"text\", \"json\" or \"none\"" {
        /// For people.
        Text = "text",
        /// For programs; one line.
        Json = "json",
        /// None.
        None = "none",
    }
}

words! {
    /// When programs of other nodes see what was written.
    Visibility, "\"ras\", \"raw\" or \"ral\"" {
        /// Read after sync: once the writer synced or closed the file, or a second later.
        Ras = "ras",
        /// Read after write: at once.
        Raw = "raw",
        /// Read after laminate: once the file is read-only for good.
        Ral = "ral",
    }
}

words! {
    /// The events that laminate a file, beside an explicit request.
    LaminateOn, "\"chmod\", \"close\" or \"request\"" {
        /// A chmod that takes the last write permission.
        Chmod = "chmod",
        /// As well, the end of the last descriptor that is open for writing.
        Close = "close",
        /// Nothing.
        Request = "request",
    }
}

words! {
    /// The way of a file of the parallel file system that is opened to be changed.
    UpdateMode, "\"pass\" or \"take\"" {
        /// It is changed there.
        Pass = "pass",
        /// It is copied into the instance first.
        Take = "take",
    }
}

words! {
    /// The time at which files are prefetched.
    PrefetchTime, "\"start\"" {
        /// Before the command of `weir run` begins.
        Start = "start",
    }
}

words! {
    /// How servers are started on other nodes.
    Method, "\"auto\", \"slurm\", \"flux\", \"pbs\", \"lsf\" or \"ssh\"" {
        /// As the batch system does whose job this is, else over ssh.
        Auto = "auto",
        /// srun.
        Slurm = "slurm",
        /// flux exec.
        Flux = "flux",
        /// pbsdsh.
        Pbs = "pbs",
        /// blaunch.
        Lsf = "lsf",
        /// ssh, or what `launch.ssh` says.
        Ssh = "ssh",
    }
}

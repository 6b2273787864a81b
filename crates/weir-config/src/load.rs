//! Merging the layers: defaults, file, environment, command line.
//!
//! All errors of all layers are collected; a configuration with an error is never returned. Unknown
//! keys of the file and the command line are refused. An unknown `WEIR_` variable only causes a
//! warning: variables are inherited, and one left from another version must not stop a job.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use toml::de::{DeTable, DeValue};

use crate::environment::Environment;
use crate::error::{nearest, ConfigError, Problem, ValueOrigin};
use crate::rules::{find_table, RuleTable, Rules, DIRECTORY, RULE_TABLES};
use crate::settings::{all_keys, find, Config, KeyInfo, SECTIONS};
use crate::types::{ElevatedPaths, InvalidValue, RawValue, Size};

/// The sources of a configuration.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    /// The file named by `--config`; it must exist.
    pub file: Option<PathBuf>,
    /// The variables.
    pub environment: Environment,
    /// `section.key=value`, in the order of the command line; later ones overrule.
    pub set: Vec<String>,
}

/// The configuration in force.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The values.
    pub config: Config,
    /// The file that was read, if any.
    pub file: Option<PathBuf>,
    /// Suspect text that was ignored.
    pub warnings: Vec<Problem>,
    origins: BTreeMap<String, ValueOrigin>,
}

/// The default file: `weir.toml` in the current directory, else in the user's configuration
/// directory.
pub fn find_file(environment: &Environment, here: &Path) -> Option<PathBuf> {
    let home = || Some(Path::new(environment.get("HOME")?).join(".config"));
    let user = environment.get("XDG_CONFIG_HOME").map(PathBuf::from);
    let candidates = [
        Some(here.join("weir.toml")),
        user.or_else(home).map(|dir| dir.join("weir/weir.toml")),
    ];
    candidates.into_iter().flatten().find(|path| path.is_file())
}

impl Sources {
    /// Reads and merges all layers. `--config` comes before `WEIR_CONFIG`, and both before the file
    /// found from the current directory `here`.
    pub fn load(&self, here: &Path) -> Result<Loaded, ConfigError> {
        let named = self
            .file
            .clone()
            .or_else(|| self.environment.get("WEIR_CONFIG").map(PathBuf::from));
        let path = named.or_else(|| find_file(&self.environment, here));
        let text = match &path {
            Some(path) => std::fs::read_to_string(path).map_err(|source| ConfigError::Read {
                path: path.clone(),
                source,
            })?,
            None => String::new(),
        };
        let mut loader = Loader::new(&self.environment)?;
        if let Some(path) = &path {
            loader.file(path, &text);
        }
        loader.variables();
        for assignment in &self.set {
            loader.assignment(assignment);
        }
        loader.finish(path)
    }
}

impl Loaded {
    /// Reads the text that [`Loaded::toml`] wrote, without other layers.
    pub fn from_toml(text: &str, environment: &Environment) -> Result<Self, ConfigError> {
        let mut loader = Loader::new(environment)?;
        loader.file(Path::new("<settings in force>"), text);
        loader.finish(None)
    }

    /// The origin of the value of `key`.
    pub fn origin(&self, key: &KeyInfo) -> &ValueOrigin {
        self.origins
            .get(&key.path())
            .unwrap_or(&ValueOrigin::Default)
    }

    /// True if the key of this path, as `launch.ssh`, has no default value.
    pub fn is_set(&self, path: &str) -> bool {
        let origin = self.origins.get(path);
        origin.is_some_and(|origin| *origin != ValueOrigin::Default)
    }

    /// The settings in force as a `weir.toml`, each with its origin in a comment.
    pub fn toml(&self) -> String {
        let mut out = String::new();
        let rules = self.rules();
        let has_rules =
            |name: &str| find_table(name).is_some_and(|table| (table.count)(&rules) > 0);
        // A file has either [elevate] or [[elevate]].
        for section in SECTIONS.iter().filter(|section| !has_rules(section.name)) {
            let _ = writeln!(out, "[{}]", section.name);
            for key in section.keys {
                let line = format!("{} = {}", key.name, key.shown(&self.config));
                let _ = writeln!(out, "{line:<39} # {}", self.origin(key));
            }
            out.push('\n');
        }
        for table in RULE_TABLES {
            for at in 0..(table.count)(&rules) {
                let head = format!("[[{}]]", table.name);
                let _ = writeln!(out, "{head:<39} # {}", self.rule_origin(table, at));
                for key in table.keys {
                    let _ = writeln!(out, "{} = {}", key.name, (key.to_toml)(&rules, at));
                }
                out.push('\n');
            }
        }
        out.truncate(out.trim_end().len());
        out.push('\n');
        out
    }

    /// The rules in force: those of a file, and those that `elevate.directories` stands for if there are some.
    fn rules(&self) -> Rules {
        let mut rules = self.config.rules.clone();
        if !rules.elevate.is_empty() {
            rules.elevate = self.config.elevated();
        }
        rules
    }

    /// The origin of a rule in force.
    fn rule_origin(&self, table: &RuleTable, at: usize) -> ValueOrigin {
        let own = self.origins.get(&rule_path(table, at));
        let listed = || self.origins.get("elevate.directories");
        own.or_else(listed).cloned().unwrap_or(ValueOrigin::Default)
    }

    /// The settings for programs: `section.key` to value, text as in TOML, and origin; `table` to a list of rules,
    /// with the origin of each.
    pub fn json(&self) -> serde_json::Value {
        let values = serde_json::to_value(&self.config).unwrap_or_default();
        let rules = serde_json::to_value(self.rules()).unwrap_or_default();
        let of_table = |table: &'static RuleTable| {
            let rules = rules[table.name].as_array().cloned().unwrap_or_default();
            let with_origins = rules.into_iter().enumerate().map(|(at, mut rule)| {
                rule["origin"] = serde_json::json!(self.rule_origin(table, at));
                rule
            });
            (table.name.to_owned(), with_origins.collect())
        };
        all_keys()
            .map(|key| {
                let entry = serde_json::json!({
                    "value": values[key.section][key.name],
                    "toml": key.shown(&self.config),
                    "origin": self.origin(key),
                });
                (key.path(), entry)
            })
            .chain(RULE_TABLES.iter().map(of_table))
            .collect::<serde_json::Map<_, _>>()
            .into()
    }
}

struct Loader<'e> {
    environment: &'e Environment,
    config: Config,
    origins: BTreeMap<String, ValueOrigin>,
    problems: Vec<Problem>,
    warnings: Vec<Problem>,
}

impl<'e> Loader<'e> {
    fn new(environment: &'e Environment) -> Result<Self, ConfigError> {
        let config = Config::defaults(environment).map_err(|(path, bad)| {
            let what = format!("no usable value for {path}: {}", bad.reason);
            ConfigError::Refused(vec![Problem::new(ValueOrigin::Default, what)])
        })?;
        Ok(Self {
            environment,
            config,
            origins: BTreeMap::new(),
            problems: Vec::new(),
            warnings: Vec::new(),
        })
    }

    fn finish(mut self, file: Option<PathBuf>) -> Result<Loaded, ConfigError> {
        self.check_elevated();
        self.check_prefetch();
        self.check_sizes();
        if self.problems.is_empty() {
            Ok(Loaded {
                config: self.config,
                file,
                warnings: self.warnings,
                origins: self.origins,
            })
        } else {
            Err(ConfigError::Refused(self.problems))
        }
    }

    fn set(&mut self, key: &KeyInfo, raw: &RawValue<'_>, written: &str, origin: ValueOrigin) {
        match (key.set)(&mut self.config, raw, self.environment) {
            Ok(()) => {
                self.origins.insert(key.path(), origin);
            }
            Err(InvalidValue { reason, nearest }) => {
                let what = format!("bad value {written} for {}: {reason}", key.path());
                self.problems
                    .push(Problem::new(origin, what).nearest(nearest));
            }
        }
    }

    fn file(&mut self, path: &Path, text: &str) {
        let at = |offset: usize| ValueOrigin::File {
            path: path.to_owned(),
            line: line_of(text, offset),
        };
        let table = match DeTable::parse(text) {
            Ok(table) => table,
            Err(error) => {
                let span = error.span().unwrap_or(0..0);
                let origin = at(span.start);
                let mut what = error.message().trim_end().replace('\n', "; ");
                if what == "duplicate key" {
                    let name = text.get(span).unwrap_or_default();
                    let _ = write!(what, " `{name}`");
                    if find_table(name).is_some() && is_section(name) {
                        let _ = write!(what, ": a file has [{name}] or [[{name}]], not both");
                    }
                }
                self.problems.push(Problem::new(origin, what));
                return;
            }
        };
        for (name, value) in table.get_ref() {
            let origin = at(name.span().start);
            match value.get_ref() {
                DeValue::Table(keys) if is_section(name.get_ref()) => {
                    for (key, value) in keys {
                        let origin = at(key.span().start);
                        let written = &text[value.span()];
                        self.key_of_file(name.get_ref(), key.get_ref(), value, written, origin);
                    }
                }
                DeValue::Array(items) if find_table(name.get_ref()).is_some() => {
                    let table = find_table(name.get_ref()).expect("it was found");
                    for item in items {
                        self.rule(table, item, &at, text);
                    }
                }
                DeValue::Table(_) => self.problems.push(unknown_section(name.get_ref(), origin)),
                DeValue::Array(items) if items.iter().all(|item| item.get_ref().is_table()) => {
                    self.problems.push(unknown_section(name.get_ref(), origin));
                }
                _ => self.problems.push(outside_sections(name.get_ref(), origin)),
            }
        }
        // Tables are sorted by name; a user reads by line.
        self.problems.sort_by_key(|problem| match problem.origin {
            ValueOrigin::File { line, .. } => line,
            _ => 0,
        });
    }

    fn key_of_file(
        &mut self,
        section: &str,
        name: &str,
        value: &toml::Spanned<DeValue<'_>>,
        written: &str,
        origin: ValueOrigin,
    ) {
        match find(section, name) {
            Some(key) => self.set(key, &RawValue::Toml(value.get_ref()), written, origin),
            None => self.problems.push(unknown_key(section, name, origin)),
        }
    }

    /// Adds a rule. `at`: the origin of what is at an offset of the text.
    fn rule(
        &mut self,
        table: &'static RuleTable,
        item: &toml::Spanned<DeValue<'_>>,
        at: &impl Fn(usize) -> ValueOrigin,
        text: &str,
    ) {
        let origin = at(item.span().start);
        let DeValue::Table(keys) = item.get_ref() else {
            let what = format!(
                "a rule of `{0}` is a table: write [[{0}]] and its keys below",
                table.name
            );
            return self.problems.push(Problem::new(origin, what));
        };
        let number = (table.count)(&self.config.rules);
        (table.add)(&mut self.config.rules, self.environment).expect("defaults are values");
        if !keys.contains_key(DIRECTORY) {
            let what = format!("[[{}]] has no `{DIRECTORY}`", table.name);
            self.problems.push(Problem::new(origin.clone(), what));
        }
        self.origins.insert(rule_path(table, number), origin);
        for (key, value) in keys {
            let origin = at(key.span().start);
            let name = key.get_ref();
            let Some(key) = table.find(name) else {
                let near = nearest(name, table.keys.iter().map(|key| key.name));
                let what = format!("unknown key `{name}` in [[{}]]", table.name);
                self.problems.push(Problem::new(origin, what).nearest(near));
                continue;
            };
            let raw = RawValue::Toml(value.get_ref());
            let set = (key.set)(&mut self.config.rules, &raw, self.environment);
            if let Err(InvalidValue { reason, nearest }) = set {
                let written = &text[value.span()];
                let what = format!(
                    "bad value {written} for {name} in [[{}]]: {reason}",
                    table.name
                );
                self.problems
                    .push(Problem::new(origin, what).nearest(nearest));
            }
        }
    }

    /// Checks the directories of all layers together.
    fn check_elevated(&mut self) {
        let directories = self.config.elevated_directories();
        // Those of the list alone were checked when it was read.
        if self.config.rules.elevate.is_empty() || !self.problems.is_empty() {
            return;
        }
        for number in 1..=directories.len() {
            let checked = ElevatedPaths(directories[..number].to_vec()).check();
            if let Err(InvalidValue { reason, .. }) = checked {
                let table = find_table("elevate").expect("it is declared");
                let origin = self.origins.get(&rule_path(table, number - 1));
                let origin = origin.or_else(|| self.origins.get("elevate.directories"));
                let origin = origin.cloned().unwrap_or(ValueOrigin::Default);
                let what = format!("bad directory in [[elevate]]: {reason}");
                return self.problems.push(Problem::new(origin, what));
            }
        }
    }

    /// Checks the limits of sizes of each rule.
    fn check_sizes(&mut self) {
        let rules = &self.config.rules;
        let elevate = rules
            .elevate
            .iter()
            .enumerate()
            .filter_map(|(number, rule)| {
                self.size_problem("elevate", number, rule.take_from, rule.take_up_to)
            });
        let prefetch = rules
            .prefetch
            .iter()
            .enumerate()
            .filter_map(|(number, rule)| {
                self.size_problem("prefetch", number, rule.from, rule.up_to)
            });
        let found: Vec<Problem> = elevate.chain(prefetch).collect();
        self.problems.extend(found);
    }

    /// The problem if no size is within the limits of a rule. An upper limit of 0 is none.
    fn size_problem(&self, table: &str, number: usize, from: Size, up_to: Size) -> Option<Problem> {
        if up_to == Size(0) || from <= up_to {
            return None;
        }
        let what = format!(
            "bad sizes in [[{table}]]: no file is of {} bytes or more and of {} at most",
            from.0, up_to.0
        );
        Some(Problem::new(self.origin_of_rule(table, number), what))
    }

    /// The place where a rule was set.
    fn origin_of_rule(&self, table: &str, number: usize) -> ValueOrigin {
        let table = find_table(table).expect("it is declared");
        let origin = self.origins.get(&rule_path(table, number));
        origin.cloned().unwrap_or(ValueOrigin::Default)
    }

    /// Only files of elevated directories are prefetched.
    fn check_prefetch(&mut self) {
        let elevated = self.config.elevated_directories();
        for (number, rule) in self.config.rules.prefetch.iter().enumerate() {
            let mut above = elevated
                .iter()
                .filter(|dir| rule.directory.starts_with(dir));
            if self.problems.is_empty() && above.next().is_none() {
                let origin = self.origin_of_rule("prefetch", number);
                let dir = rule.directory.display();
                let what = format!("bad directory in [[prefetch]]: {dir} is in no elevated directory: elevate it, too");
                self.problems.push(Problem::new(origin, what));
            }
        }
    }

    fn variables(&mut self) {
        let environment = self.environment;
        for (variable, value) in environment.settings() {
            let origin = ValueOrigin::Environment {
                variable: variable.to_owned(),
            };
            if let Some(key) = all_keys().find(|key| key.variable() == variable) {
                self.set(key, &RawValue::Text(value), &format!("`{value}`"), origin);
            } else if let Some(what) = rule_of_variable(variable) {
                self.warnings.push(Problem::new(origin, what));
            } else {
                let names: Vec<String> = all_keys().map(KeyInfo::variable).collect();
                let near = nearest(variable, names.iter().map(String::as_str));
                let problem = Problem::new(origin, "no setting of weir; passed over").nearest(near);
                self.warnings.push(problem);
            }
        }
    }

    fn assignment(&mut self, assignment: &str) {
        let origin = ValueOrigin::CommandLine;
        let parts = assignment
            .split_once('=')
            .and_then(|(path, value)| Some((path.trim().split_once('.')?, value)));
        let Some(((section, name), value)) = parts else {
            let what = format!("`{assignment}`: expected section.key=value");
            self.problems.push(Problem::new(origin, what));
            return;
        };
        if let Some(what) = rule_of_key(section, name) {
            self.problems.push(Problem::new(origin, what));
        } else if !is_section(section) {
            self.problems.push(unknown_section(section, origin));
        } else if let Some(key) = find(section, name) {
            self.set(key, &RawValue::Text(value), &format!("`{value}`"), origin);
        } else {
            self.problems.push(unknown_key(section, name, origin));
        }
    }
}

fn is_section(name: &str) -> bool {
    SECTIONS.iter().any(|section| section.name == name)
}

/// The name of a rule in the table of origins.
fn rule_path(table: &RuleTable, number: usize) -> String {
    format!("{}[{number}]", table.name)
}

/// Why a key cannot be set outside of a rule; `None`: it is no key of rules.
fn rule_of_key(section: &str, name: &str) -> Option<String> {
    let table = find_table(section)?;
    let is_of_rule = find(section, name).is_none() && table.find(name).is_some();
    is_of_rule.then(|| {
        format!("`{section}.{name}` is a key of a rule, which only a weir.toml has: write [[{section}]] there")
    })
}

/// The same for a variable.
fn rule_of_variable(variable: &str) -> Option<String> {
    let path = variable.strip_prefix("WEIR_")?.to_ascii_lowercase();
    let (section, name) = path.split_once('_')?;
    rule_of_key(section, name).map(|what| format!("{what}; passed over"))
}

fn unknown_section(name: &str, origin: ValueOrigin) -> Problem {
    if find_table(name).is_some() {
        let what =
            format!("`{name}` is a list of rules: write [[{name}]] and the keys of each below");
        return Problem::new(origin, what);
    }
    let tables = RULE_TABLES.iter().map(|table| table.name);
    let near = nearest(name, SECTIONS.iter().map(|s| s.name).chain(tables));
    Problem::new(origin, format!("unknown section `{name}`")).nearest(near)
}

fn unknown_key(section: &str, name: &str, origin: ValueOrigin) -> Problem {
    if let Some(what) = rule_of_key(section, name) {
        return Problem::new(origin, what);
    }
    let here = all_keys().filter(|key| key.section == section);
    let near = nearest(name, here.map(|key| key.name));
    // The right key in the wrong section is a common slip.
    let elsewhere = || all_keys().find(|key| key.name == name).map(KeyInfo::path);
    Problem::new(origin, format!("unknown key `{name}` in [{section}]"))
        .nearest(near.or_else(elsewhere))
}

fn outside_sections(name: &str, origin: ValueOrigin) -> Problem {
    let what = if is_section(name) {
        format!("`{name}` is a section: write [{name}] and its keys below")
    } else {
        format!("`{name}` stands outside of any section")
    };
    let path = all_keys().find(|key| key.name == name).map(KeyInfo::path);
    Problem::new(origin, what).nearest(path)
}

/// The line, counted from 1, of byte `offset`.
fn line_of(text: &str, offset: usize) -> usize {
    let before = &text.as_bytes()[..offset.min(text.len())];
    before.split(|&byte| byte == b'\n').count()
}

//! Rules: settings of which `weir.toml` may have several, as arrays of tables (`[[elevate]]`).
//!
//! Each table has the key `directory`, and others that have defaults. All are declared below, once, as the
//! sections are in [`crate::settings`]; the loader, the error messages, `weir config` and the manual go by
//! [`RULE_TABLES`]. Only a file has rules: a variable or an option would have to say which one it means.

use std::path::PathBuf;

use serde::Serialize;

use crate::environment::Environment;
use crate::patterns::Patterns;
use crate::types::{InvalidValue, PrefetchTime, RawValue, Setting, Size, UpdateMode};

/// The key that each rule must have.
pub(crate) const DIRECTORY: &str = "directory";

/// A kind of rule.
#[derive(Debug)]
pub struct RuleTable {
    /// As in `[[name]]`.
    pub name: &'static str,
    /// Its documentation; one line of source a line.
    pub doc: &'static str,
    /// In the order of declaration.
    pub keys: &'static [RuleKey],
    pub(crate) add: fn(&mut Rules, &Environment) -> Result<(), InvalidValue>,
    pub(crate) count: fn(&Rules) -> usize,
}

/// A key of a rule.
pub struct RuleKey {
    /// As before the `=`.
    pub name: &'static str,
    /// Its documentation; one line of source a line.
    pub doc: &'static str,
    /// The form of its value, for error messages and the manual.
    pub shape: &'static str,
    /// The default, as one would write it in a string.
    pub default: &'static str,
    /// Sets the key of the last rule.
    pub(crate) set: fn(&mut Rules, &RawValue<'_>, &Environment) -> Result<(), InvalidValue>,
    /// The value that a rule has, in TOML.
    pub(crate) to_toml: fn(&Rules, usize) -> String,
}

impl std::fmt::Debug for RuleKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

macro_rules! rules {
    ($(
        $(#[doc = $table_doc:literal])+
        $table:ident : $Table:ident {
            $( $(#[doc = $doc:literal])+ $key:ident : $ty:ty = $default:literal, )+
        }
    )+) => {
        $(
            $(#[doc = $table_doc])+
            #[derive(Clone, Debug, PartialEq, Serialize)]
            pub struct $Table { $( $(#[doc = $doc])+ pub $key: $ty, )+ }

            impl $Table {
                pub(crate) fn defaults(env: &Environment) -> Result<Self, InvalidValue> {
                    Ok(Self { $( $key: Setting::read(&RawValue::Text($default), env)?, )+ })
                }
            }
        )+

        /// The rules of a file, in its order.
        #[derive(Clone, Debug, Default, PartialEq, Serialize)]
        pub struct Rules { $( $(#[doc = $table_doc])+ pub $table: Vec<$Table>, )+ }

        /// Every kind of rule.
        pub static RULE_TABLES: &[RuleTable] = &[$(
            RuleTable {
                name: stringify!($table),
                doc: concat!($($table_doc, "\n"),+),
                keys: &[$(
                    RuleKey {
                        name: stringify!($key),
                        doc: concat!($($doc, "\n"),+),
                        shape: <$ty as Setting>::SHAPE,
                        default: $default,
                        set: |rules, raw, env| {
                            let rule = rules.$table.last_mut().expect("a rule was added");
                            rule.$key = Setting::read(raw, env)?;
                            Ok(())
                        },
                        to_toml: |rules, at| rules.$table[at].$key.to_toml(),
                    },
                )+],
                add: |rules, env| {
                    rules.$table.push($Table::defaults(env)?);
                    Ok(())
                },
                count: |rules| rules.$table.len(),
            },
        )+];
    };
}

rules! {
    /// A directory that is elevated, as one of `elevate.directories` is, and what becomes of its files. Patterns
    /// are of paths below the directory, as for `drain.only`: `*.h5` is for files in the directory itself,
    /// `**/*.h5` for all below it, and a pattern that a directory fits for all that is in it. A file may have either
    /// `[[elevate]]` or `[elevate]`; `elevate.directories` of a variable or an option, and `--elevate`, are added to the
    /// rules, with the defaults where no rule has the directory.
    elevate: ElevateSettings {
        /// The directory. None is within another one.
        directory: PathBuf = "/",
        /// New files that are created in the instance; if none are named, all. The others are created on the parallel
        /// file system, by the program's own call, in directories that are there already: see docs/ELEVATOR.md.
        only: Patterns = "",
        /// New files that are created on the parallel file system. A pattern with a slash at its end is for directories,
        /// which are created there as well, with all that is in them.
        skip: Patterns = "",
        /// Files that are never evicted: their bytes stay in the instance.
        keep: Patterns = "",
        /// Files that are moved before all others, beside those of `drain.first`.
        first: Patterns = "",
        /// The way of a file that is on the parallel file system already when a program opens it to change a part
        /// of it: the program changes it there (pass), or it is copied into the instance first (take).
        update: UpdateMode = "pass",
        /// The size from which on a file is taken for an update. A smaller one is changed where it is.
        take_from: Size = "0",
        /// The size up to which a file is taken for an update; 0: any. A larger one is changed where it is.
        take_up_to: Size = "0",
    }

    /// Files of the parallel file system that are taken into the instance before programs ask for them, and read from
    /// there. They are the first to be evicted, and are not moved back unless a program changes them.
    prefetch: PrefetchSettings {
        /// A directory that is elevated, or one in it. Patterns are of paths below it.
        directory: PathBuf = "/",
        /// The files; if none are named, all.
        only: Patterns = "",
        /// Files that are left where they are.
        skip: Patterns = "",
        /// The size from which on a file is taken.
        from: Size = "0",
        /// The size up to which a file is taken; 0: any.
        up_to: Size = "0",
        /// The time: before the command of `weir run` begins (start).
        when: PrefetchTime = "start",
    }
}

/// The kind of rule with a name.
pub(crate) fn find_table(name: &str) -> Option<&'static RuleTable> {
    RULE_TABLES.iter().find(|table| table.name == name)
}

impl RuleTable {
    /// The key with a name.
    pub(crate) fn find(&self, name: &str) -> Option<&'static RuleKey> {
        self.keys.iter().find(|key| key.name == name)
    }
}

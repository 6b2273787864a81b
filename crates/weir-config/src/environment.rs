//! A snapshot of the environment, and the `WEIR_` variables that are not settings.
//!
//! A snapshot lets tests set variables without changing the environment of the test process, which
//! its threads share.

use std::collections::BTreeMap;

/// `WEIR_` variables that are not settings: weir sets them for its own parts, or they name a file.
pub const INTERNAL_VARIABLES: &[(&str, &str)] = &[
    (
        "WEIR_CONFIG",
        "the configuration file to read instead of the ones looked for",
    ),
    (
        "WEIR_INSTANCE",
        "the run directory of the instance in use; set for programs by weir run and weir start",
    ),
    (
        "WEIR_AT",
        "where programs see the instance in use; set for programs by weir run and weir start --inject",
    ),
    (
        "WEIR_CONNECTORS",
        "the connectors that the client library loads at the first call of MPI-IO or PnetCDF; set for programs by weir run and weir start --inject, \
         from run.connectors",
    ),
    (
        "WEIR_SOCKET",
        "the server's socket, when it is not in the run directory",
    ),
    (
        "WEIR_PRELOAD",
        "the client library to inject instead of the one found beside weir",
    ),
];

/// Prefixes of variables that tests and benchmarks of weir use for themselves.
const INTERNAL_PREFIXES: &[&str] = &["WEIR_TEST_", "WEIR_BENCH_", "WEIR_DEBUG_"];

/// Environment variables by name. Variables that are not UTF-8 are left out: no setting can
/// hold such a value, and names of weir's own are ASCII.
#[derive(Clone, Debug, Default)]
pub struct Environment(BTreeMap<String, String>);

impl Environment {
    /// The environment of this process.
    pub fn of_process() -> Self {
        std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .collect()
    }

    /// The value of `name`; an empty one counts as not set, as in most shells' `${name:-}`.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0
            .get(name)
            .map(String::as_str)
            .filter(|v| !v.is_empty())
    }

    /// The variables whose names start with `WEIR_` and that are settings.
    pub(crate) fn settings(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()))
            .filter(|(name, _)| name.starts_with("WEIR_") && !is_internal(name))
    }

    /// `text` with `$NAME`, `${NAME}` and `${NAME:-default}` replaced.
    pub(crate) fn expand(&self, text: &str) -> Result<String, String> {
        shellexpand::env_with_context(text, |name| match self.get(name) {
            Some(value) => Ok(Some(value)),
            None => Err("is not set"),
        })
        .map(std::borrow::Cow::into_owned)
        .map_err(|e| format!("${} {}", e.var_name, e.cause))
    }
}

impl<K: Into<String>, V: Into<String>> FromIterator<(K, V)> for Environment {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(variables: I) -> Self {
        Self(
            variables
                .into_iter()
                .map(|(name, value)| (name.into(), value.into()))
                .collect(),
        )
    }
}

fn is_internal(name: &str) -> bool {
    INTERNAL_VARIABLES.iter().any(|(known, _)| *known == name)
        || INTERNAL_PREFIXES
            .iter()
            .any(|prefix| name.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expansion_knows_defaults_and_refuses_what_is_not_set() {
        let env: Environment = [("TMPDIR", "/scratch"), ("EMPTY", "")]
            .into_iter()
            .collect();
        assert_eq!(env.expand("$TMPDIR/x").unwrap(), "/scratch/x");
        assert_eq!(env.expand("${TMPDIR:-/tmp}").unwrap(), "/scratch");
        assert_eq!(env.expand("${EMPTY:-/tmp}").unwrap(), "/tmp");
        assert_eq!(env.expand("$NOWHERE/x").unwrap_err(), "$NOWHERE is not set");
    }

    #[test]
    fn internal_variables_are_no_settings() {
        let env: Environment = [
            ("WEIR_INSTANCE", "/run/x"),
            ("WEIR_TEST_SEED", "1"),
            ("WEIR_MEMORY_BUDGET", "1G"),
            ("HOME", "/root"),
        ]
        .into_iter()
        .collect();
        let names: Vec<&str> = env.settings().map(|(name, _)| name).collect();
        assert_eq!(names, ["WEIR_MEMORY_BUDGET"]);
    }
}

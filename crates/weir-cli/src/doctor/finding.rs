//! Findings of `weir doctor`, and the state of the machine that its checks look at.

use serde::Serialize;
use weir_config::{Environment, Loaded, Machine};

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// As it should be.
    Ok,
    /// Slower or smaller than it could be.
    Warn,
    /// Weir does not work with this.
    Fail,
}

/// The result of one check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The subject of the check; a few words.
    pub check: &'static str,
    /// How bad it is.
    pub level: Level,
    /// The state that the check found.
    pub found: String,
    /// The remedy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

impl Finding {
    pub(super) fn ok(check: &'static str, found: impl Into<String>) -> Self {
        Self {
            check,
            level: Level::Ok,
            found: found.into(),
            remedy: None,
        }
    }

    pub(super) fn warn(
        check: &'static str,
        found: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self {
            level: Level::Warn,
            remedy: Some(remedy.into()),
            ..Self::ok(check, found)
        }
    }

    pub(super) fn fail(
        check: &'static str,
        found: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self {
            level: Level::Fail,
            ..Self::warn(check, found, remedy)
        }
    }
}

/// The machine, the settings and the environment that the checks look at.
pub(super) struct MachineReport<'a> {
    pub(super) loaded: &'a Loaded,
    pub(super) env: &'a Environment,
    pub(super) machine: Machine,
}

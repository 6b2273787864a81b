//! The job that an instance belongs to, and whether that is over.
//!
//! The remains of a killed server are data of its job, for as long as the job may come back for them. A job
//! counts as over only if that is known: the node was booted again, the batch system started the
//! job anew, or it says that the job is gone. A batch system that does not answer says nothing.

use std::io::Read;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use weir_config::Environment;

/// How long a command of a batch system may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often it is looked at meanwhile.
const GLANCE: Duration = Duration::from_millis(10);

/// A batch system: how it tells its jobs, and how it is asked about one.
struct System {
    /// The variable with the job's id.
    id: &'static str,
    /// The variable that counts how often the job was started anew.
    life: Option<&'static str>,
    /// The command that asks about a job; its id is put for `{}`.
    command: &'static [&'static str],
    /// True if the answer means that the job is over.
    is_over: fn(&Answer) -> bool,
}

/// The answer of a command.
struct Answer {
    is_success: bool,
    /// Standard output and standard error.
    text: String,
}

impl Answer {
    fn says(&self, words: &[&str]) -> bool {
        words.iter().any(|word| self.text.contains(word))
    }
}

const SYSTEMS: &[System] = &[
    System {
        id: "SLURM_JOB_ID",
        life: Some("SLURM_RESTART_COUNT"),
        command: &["squeue", "--noheader", "--format=%T", "--jobs={}"],
        is_over: |answer| match answer.is_success {
            true => answer.text.trim().is_empty(),
            false => answer.says(&["Invalid job id"]),
        },
    },
    System {
        id: "FLUX_JOB_ID",
        life: None,
        command: &["flux", "jobs", "--no-header", "--format={state}", "{}"],
        is_over: |answer| answer.is_success && answer.text.trim() == "INACTIVE",
    },
    System {
        id: "PBS_JOBID",
        life: None,
        command: &["qstat", "{}"],
        is_over: |answer| !answer.is_success && answer.says(&["Unknown Job", "has finished"]),
    },
    System {
        id: "LSB_JOBID",
        life: None,
        command: &["bjobs", "-noheader", "-o", "stat", "{}"],
        is_over: |answer| {
            answer.says(&["is not found"])
                || answer.is_success && matches!(answer.text.trim(), "DONE" | "EXIT")
        },
    },
    System {
        id: "JOB_ID",
        life: None,
        command: &["qstat", "-j", "{}"],
        is_over: |answer| !answer.is_success && answer.says(&["do not exist"]),
    },
];

/// A batch job, or outside of jobs all that the user does until the node is booted again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    /// The variable that has its id, and the id; `None` outside of jobs.
    batch: Option<(String, String)>,
    /// How often the batch system had started it anew; empty where that is not said.
    life: String,
    /// The kernel's number of this boot.
    boot: String,
}

impl Job {
    /// The job whose environment this is.
    pub fn from_environment(env: &Environment) -> Self {
        let found = SYSTEMS
            .iter()
            .find_map(|system| Some((system, env.get(system.id)?)));
        let life = found.and_then(|(system, _)| env.get(system.life?));
        Self {
            batch: found.map(|(system, id)| (system.id.to_owned(), id.to_owned())),
            life: life.unwrap_or_default().to_owned(),
            boot: this_boot(),
        }
    }

    /// The same job on the node that asks: each node is booted by itself.
    #[must_use]
    pub fn on_this_node(self) -> Self {
        let boot = this_boot();
        Self { boot, ..self }
    }

    /// Its id, if it is a batch job.
    pub fn id(&self) -> Option<&str> {
        self.batch.as_ref().map(|(_, id)| id.as_str())
    }

    /// True if this job is known to be over, as seen from the job `now`.
    pub fn is_over(&self, now: &Job) -> bool {
        if self.boot != now.boot {
            return true;
        }
        match &self.batch {
            None => false,
            Some(_) if self.batch == now.batch => self.life != now.life,
            Some((variable, id)) => batch_system_forgot(variable, id),
        }
    }
}

fn this_boot() -> String {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    boot.trim().to_owned()
}

impl std::fmt::Display for Job {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.id() {
            Some(id) => write!(f, "job {id}"),
            None => write!(f, "no job"),
        }
    }
}

/// The id of the batch job whose environment this is.
pub fn batch_id(env: &Environment) -> Option<&str> {
    SYSTEMS.iter().find_map(|system| env.get(system.id))
}

fn batch_system_forgot(variable: &str, id: &str) -> bool {
    let Some(system) = SYSTEMS.iter().find(|system| system.id == variable) else {
        return false;
    };
    let words: Vec<String> = system
        .command
        .iter()
        .map(|word| word.replace("{}", id))
        .collect();
    let answer = ask(&words);
    if answer.is_none() {
        tracing::debug!("{} does not say whether job {id} is over", words[0]);
    }
    answer.is_some_and(|answer| (system.is_over)(&answer))
}

/// Runs a command; `None` if it is not there or does not end.
fn ask(words: &[String]) -> Option<Answer> {
    let mut child = Command::new(&words[0])
        .args(&words[1..])
        .env("LD_PRELOAD", "")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .ok()?;
    let begin = Instant::now();
    let status = loop {
        match child.try_wait().ok()? {
            Some(status) => break status,
            None if begin.elapsed() < PATIENCE => std::thread::sleep(GLANCE),
            None => {
                let _ = child.kill();
                let _ = child.wait();
                return None;
            }
        }
    };
    // It has ended, and says little: all of it is in the pipes.
    let mut text = String::new();
    let _ = child.stdout.take()?.read_to_string(&mut text);
    let _ = child.stderr.take()?.read_to_string(&mut text);
    Some(Answer {
        is_success: status.success(),
        text,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(variables: &[(&str, &str)]) -> Job {
        Job::from_environment(&variables.iter().copied().collect())
    }

    #[test]
    fn a_job_is_over_only_if_that_is_known() {
        let none = job(&[]);
        let one = job(&[("SLURM_JOB_ID", "1")]);
        let again = job(&[("SLURM_JOB_ID", "1"), ("SLURM_RESTART_COUNT", "1")]);
        assert!(!none.is_over(&none) && !none.is_over(&one) && !one.is_over(&one));
        assert!(one.is_over(&again));
        let before = Job {
            boot: "another".into(),
            ..one.clone()
        };
        assert!(before.is_over(&one) && !before.on_this_node().is_over(&one));
        let strange = Job {
            batch: Some(("NO_SUCH_SYSTEM".into(), "1".into())),
            ..one.clone()
        };
        assert!(!strange.is_over(&one));
    }

    #[test]
    fn answers_of_batch_systems_are_understood() {
        let is_over = |id: &str, is_success, text: &str| {
            let system = SYSTEMS.iter().find(|system| system.id == id).unwrap();
            let text = text.to_owned();
            (system.is_over)(&Answer { is_success, text })
        };
        assert!(is_over("SLURM_JOB_ID", true, "\n"));
        assert!(!is_over("SLURM_JOB_ID", true, "COMPLETING\n"));
        let unknown = "slurm_load_jobs error: Invalid job id specified";
        assert!(is_over("SLURM_JOB_ID", false, unknown));
        let unreachable = "slurm_load_jobs error: Unable to contact slurm controller";
        assert!(!is_over("SLURM_JOB_ID", false, unreachable));
        assert!(is_over("FLUX_JOB_ID", true, "INACTIVE\n"));
        assert!(!is_over("FLUX_JOB_ID", true, "RUN\n"));
        assert!(is_over("PBS_JOBID", false, "qstat: Unknown Job Id 7.pbs"));
        assert!(!is_over("PBS_JOBID", false, "cannot connect to server"));
        assert!(is_over("LSB_JOBID", true, "EXIT\n"));
        assert!(is_over("LSB_JOBID", false, "Job <7> is not found"));
        assert!(!is_over("LSB_JOBID", true, "RUN\n"));
        assert!(is_over("JOB_ID", false, "Following jobs do not exist: 7"));
    }

    #[test]
    fn a_command_that_is_not_there_says_nothing() {
        assert!(ask(&["/nonexistent/squeue".into()]).is_none());
        let said = ask(&["sh".into(), "-c".into(), "echo out; echo err >&2".into()]).unwrap();
        assert!(said.is_success && said.says(&["out"]) && said.says(&["err"]));
    }
}

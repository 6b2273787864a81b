//! The end of an instance that lives: moving files out of it first, and the report.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use weir_config::Loaded;
use weir_instance::connection::{self, Use};
use weir_instance::directories;
use weir_instance::errln;
use weir_launch::agent::{self, Summary};
use weir_launch::root::run_dir_of_rank;

use crate::args::EarlierDrains;
use crate::exit::Failure;
use crate::locate::{elevated_directories, refuse_under_mirrors};
use crate::report::{self, DrainedFiles};
use crate::run_stages::RunStages;
use crate::show;

/// How an instance is ended.
#[derive(Clone, Copy, Debug)]
pub struct InstanceEnding<'a> {
    /// The directory that everything is moved to first.
    pub drain_to: Option<&'a Path>,
    /// True if the files of elevated directories are moved first.
    pub drains: bool,
    /// Programs may use it.
    pub by_force: bool,
    /// The drains before this.
    pub before: EarlierDrains,
}

/// Ends an instance that lives, and reports.
pub fn end_living(
    run_dir: &Path,
    ending: InstanceEnding<'_>,
    settings: &Loaded,
) -> Result<(), Failure> {
    let config = &settings.config.drain;
    let elevates = ending.drains && !elevated_directories(run_dir).is_empty();
    let drained_to = DrainedFiles::new(ending.drain_to, elevates, config);
    move_out(run_dir, ending, settings)?;
    if let Some(summary) = agent::stop(run_dir)? {
        directories::wait_until_gone(run_dir)?;
        show_summary(&summary, settings, drained_to.as_ref());
        return match summary.lost {
            0 => Ok(()),
            n => Err(anyhow::anyhow!("{n} servers did not end in order").into()),
        };
    }
    let done = connection::stop(run_dir)?;
    directories::wait_until_gone(run_dir)?;
    report::print(&done, settings.config.run.report, drained_to.as_ref());
    Ok(())
}

/// Moves out of an instance that lives what is to be moved before it ends.
pub fn move_out(
    run_dir: &Path,
    ending: InstanceEnding<'_>,
    settings: &Loaded,
) -> Result<(), Failure> {
    refuse_under_mirrors(run_dir)?;
    if !ending.by_force {
        refuse_if_used(run_dir)?;
    }
    let stages = RunStages {
        stage_in: &[],
        drain_to: ending.drain_to,
        elevate: &[],
        prefix: PathBuf::new(),
        ends_instance: true,
        before: ending.before,
        settings: &settings.config.drain,
    };
    let stages = stages.of_running(run_dir)?;
    stages.check()?;
    let elevates = !elevated_directories(run_dir).is_empty();
    if ending.drain_to.is_some() || elevates && ending.drains {
        drain(&stages, run_dir, ending.by_force)?;
    }
    Ok(())
}

/// Moves everything out of an instance that is to be stopped. Programs may come and go meanwhile: unless
/// it is stopped by force, it is moved again until none did.
fn drain(stages: &RunStages<'_>, run_dir: &Path, by_force: bool) -> Result<(), Failure> {
    loop {
        let before = show::work_done(run_dir);
        if !stages.take_all_out(run_dir) {
            return Err(Failure::NotMoved("the instance stays".to_owned()));
        }
        if by_force {
            return Ok(());
        }
        refuse_if_used(run_dir)?;
        if before == show::work_done(run_dir) {
            return Ok(());
        }
        errln!("weir: programs used the instance meanwhile; moving again");
    }
}

/// How long programs that have just ended may take to be gone.
const LAST_ONES: Duration = Duration::from_secs(2);
/// How often it is looked whether they are.
const AGAIN: Duration = Duration::from_millis(20);

/// Refuses to stop what programs use, or commands of `weir run` on this node.
fn refuse_if_used(run_dir: &Path) -> Result<(), Failure> {
    let begin = Instant::now();
    loop {
        let by = users(run_dir);
        if by.is_empty() {
            return Ok(());
        }
        if begin.elapsed() > LAST_ONES {
            let name = run_dir.file_name().unwrap_or_default();
            let name = name.to_string_lossy().into_owned();
            return Err(Failure::InUse { name, by });
        }
        std::thread::sleep(AGAIN);
    }
}

/// The programs that use an instance, for people; empty if none does. Servers that do not answer are left out.
fn users(run_dir: &Path) -> String {
    let attached = show::attached(run_dir);
    let ranks = (0..).map(|rank| run_dir_of_rank(run_dir, rank));
    let here = ranks.take_while(|dir| dir.exists());
    let runs = here.flat_map(|dir| Use::all(&dir));
    let runs = runs.map(|pid| format!("weir run (process {pid})"));
    let programs = (!attached.is_empty()).then(|| report::parties(&attached));
    runs.chain(programs).collect::<Vec<String>>().join(", ")
}

/// Shows the problems of an end, and the report.
pub fn show_summary(summary: &Summary, settings: &Loaded, drained_to: Option<&DrainedFiles<'_>>) {
    for problem in &summary.problems {
        errln!("weir: {problem}");
    }
    if let Some(done) = &summary.report {
        report::print(done, settings.config.run.report, drained_to);
    }
}

//! `weir stage in --follow`: moves the files of sources that others fill, until a signal or the end of the
//! instance.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

use weir_instance::errln;
use weir_mover::sources::{make_parents, pair, SourcesRefused};
use weir_mover::tree::FileTree;
use weir_mover::{FollowedSources, StagePair, StageProgress, StageSummary};

use super::helpers::StageHelpers;
use super::{filter, on_signals, options, sources_and_target, PathRules, ENDING, SAME_SIGNAL};
use crate::args::StageFiles;
use crate::exit::Failure;
use crate::{share, supervise};

/// The least time between two looks.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// The time between two looks is at least so many times that of a look.
const LOOK_SHARE: u32 = 20;
/// The longest time after which a signal is seen.
const NAP: Duration = Duration::from_millis(50);

/// The sources and the destination of a stage that follows.
struct FollowedPaths<'t, S: FileTree, T: FileTree> {
    trees: (&'t S, &'t T),
    sources: Vec<PathBuf>,
    target: PathBuf,
}

impl<S: FileTree, T: FileTree> FollowedPaths<'_, S, T> {
    /// The sources that are there, patterns expanded anew. Of a pattern that fits one name today, and two tomorrow, the
    /// destination is a directory all the time.
    fn pairs(&self) -> Result<Vec<StagePair>, SourcesRefused> {
        let (from, to) = self.trees;
        let mut pairs = Vec::new();
        for source in &self.sources {
            let is_pattern = !matches!(from.look_up(source), Ok(Some(_)));
            let wants_directory = is_pattern || self.sources.len() > 1;
            let target = match wants_directory {
                true => self.target.join(""),
                false => self.target.clone(),
            };
            if wants_directory {
                let inside = self.target.join("x");
                let pair = StagePair {
                    source: source.clone(),
                    target: inside,
                };
                make_parents(to, &[pair])?;
            }
            match pair(from, std::slice::from_ref(source), to, &target) {
                Err(SourcesRefused::NoMatch(_)) => {}
                found => pairs.extend(found?),
            }
        }
        weir_mover::sources::check_targets(&pairs)?;
        make_parents(to, &pairs)?;
        Ok(pairs)
    }

    fn has_target_ended(&self) -> bool {
        self.trees.1.look_up(Path::new("/")).is_err()
    }
}

/// The signals so far. The first one ends the looks after a last one, a later one stops that.
fn hear_signals(progress: &StageProgress) -> Result<Arc<AtomicBool>, Failure> {
    let ends = Arc::new(AtomicBool::new(false));
    let (told, stop) = (Arc::clone(&ends), Arc::clone(&progress.stop));
    let mut first: Option<Instant> = None;
    on_signals(supervise::not_ignored(&ENDING), move |_| {
        told.store(true, Ordering::Relaxed);
        let is_later = first.get_or_insert_with(Instant::now).elapsed() > SAME_SIGNAL;
        if is_later {
            stop.store(true, Ordering::Relaxed);
        }
        is_later
    })?;
    Ok(ends)
}

pub(super) fn follow<S: FileTree, T: FileTree>(
    args: &StageFiles,
    from: &S,
    to: &T,
    rules: &PathRules<'_>,
    helpers: Option<&StageHelpers>,
) -> Result<StageSummary, Failure> {
    let filter = filter(&args.choice, rules.pattern)?;
    let (sources, target) = sources_and_target(args, rules, &filter)?;
    let paths = FollowedPaths {
        trees: (from, to),
        sources,
        target,
    };
    let mut followed = FollowedSources::new(options(args), filter);
    let progress = StageProgress::default();
    let ends = hear_signals(&progress)?;
    share::allow_open_files();
    let team = helpers.map(StageHelpers::team);
    let mut last_error = None;
    // An error at the first look is an error of the arguments.
    paths.pairs()?;
    loop {
        let is_last = ends.load(Ordering::Relaxed);
        let begun = Instant::now();
        match paths.pairs() {
            Ok(pairs) => {
                last_error = None;
                if let Some(helpers) = helpers {
                    helpers.set_pairs(&pairs);
                }
                for failure in followed.look(from, to, &pairs, &progress, team.as_ref()) {
                    errln!("weir: {}; trying again", failure.reason);
                }
            }
            Err(error) => {
                let error = Some(error.to_string());
                if error != last_error && !paths.has_target_ended() {
                    errln!(
                        "weir: {}; trying again",
                        error.as_deref().unwrap_or_default()
                    );
                }
                last_error = error;
            }
        }
        if paths.has_target_ended() {
            errln!("weir: the instance has ended");
            followed.forget_failures();
            break;
        }
        if is_last {
            break;
        }
        let interval = LOOK_INTERVAL.max(begun.elapsed() * LOOK_SHARE);
        while begun.elapsed() < interval && !ends.load(Ordering::Relaxed) {
            std::thread::sleep(NAP);
        }
    }
    Ok(followed.into_summary())
}

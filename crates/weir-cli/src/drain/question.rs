//! The answer to the question: are these files safe?
//!
//! Only a round that began after the question can answer it: the last round that has ended may be older than the file, and
//! the round under way may have walked before the file was written. Without such a round nothing counts as safe.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use weir_mover::drain::{DrainRound, PendingFile, PendingState};

use super::messages::DrainVerdict;

/// The paths that a question is about.
#[derive(Debug, Default)]
pub struct Question {
    /// Below the root of the tree; the empty one is all of it.
    pub paths: Vec<PathBuf>,
    /// Those of them that the target had, or a round had seen, when the question came. They stay known if programs remove
    /// them.
    pub known: HashSet<PathBuf>,
    /// Those of them that the instance had then, and that are to be moved.
    pub present: HashSet<PathBuf>,
}

/// An answer, and the reason in a sentence.
pub type DrainAnswer = (DrainVerdict, Option<String>);

impl Question {
    /// Judges by the last round. `unknown`: the reason why that round is too old for the question.
    pub fn judge(&self, last: &DrainRound, unknown: Option<&str>) -> DrainAnswer {
        let found = self.judge_by(last);
        let Some(unknown) = unknown else {
            return found;
        };
        let (verdict, reason) = found;
        let is_present = self
            .unseen(last)
            .is_some_and(|path| self.present.contains(path));
        let reason = match (verdict, reason) {
            (DrainVerdict::Safe, _) => format!("not everything is known to be safe: {unknown}"),
            (DrainVerdict::NoSuchPath, Some(path)) if is_present => {
                format!("{path} is not moved yet: {unknown}")
            }
            (DrainVerdict::NotYet, Some(reason)) => format!("{reason}; {unknown}"),
            found => return found,
        };
        (DrainVerdict::NotYet, Some(reason))
    }

    /// The first path that neither a round nor the target had.
    fn unseen(&self, last: &DrainRound) -> Option<&PathBuf> {
        let is_unseen = |path: &&PathBuf| {
            !last.has_seen(path) && !self.known.contains(*path) && due_at(last, path).is_none()
        };
        self.paths.iter().find(is_unseen)
    }

    fn judge_by(&self, last: &DrainRound) -> DrainAnswer {
        if let Some(missing) = self.unseen(last) {
            let missing = missing.display().to_string();
            return (DrainVerdict::NoSuchPath, Some(missing));
        }
        let is_meant =
            |file: &&PendingFile| self.paths.iter().any(|path| file.path.starts_with(path));
        let pending = last.pending.iter().filter(is_meant);
        if let Some(reason) = pending.clone().find_map(failure_of) {
            return (DrainVerdict::Failed, Some(reason));
        }
        if let Some(file) = pending.clone().next() {
            return (DrainVerdict::NotYet, Some(in_words(file)));
        }
        let Some(due) = self.paths.iter().find_map(|path| due_at(last, path)) else {
            return (DrainVerdict::Safe, None);
        };
        let due = due.display();
        // Removals and links wait for files that cannot be moved.
        match last.pending.iter().find_map(failure_of) {
            Some(reason) => (
                DrainVerdict::Failed,
                Some(format!("the name of {due} waits for a file: {reason}")),
            ),
            None => (
                DrainVerdict::NotYet,
                Some(format!("{due} is not safe yet: its name is to change")),
            ),
        }
    }
}

/// A name that is to change, at a path, below it or above it.
fn due_at<'r>(last: &'r DrainRound, path: &Path) -> Option<&'r PathBuf> {
    let mut due = last.names_due.iter();
    due.find(|due| due.starts_with(path) || path.starts_with(due))
}

fn failure_of(file: &PendingFile) -> Option<String> {
    match &file.state {
        PendingState::Failed { reason } => Some(reason.clone()),
        _ => None,
    }
}

fn in_words(file: &PendingFile) -> String {
    let why = match file.state {
        PendingState::Open => "it is open for writing",
        PendingState::Unlaminated => "it is not laminated",
        PendingState::Analysis => "it awaits its analysis",
        PendingState::Waiting | PendingState::Failed { .. } => "it is to be moved",
    };
    format!("{} is not safe yet: {why}", file.path.display())
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    use super::*;

    fn round(pending: &[&str], names_due: &[&str]) -> DrainRound {
        let mut round = DrainRound::default();
        round.pending = pending
            .iter()
            .map(|path| PendingFile {
                path: PathBuf::from(path),
                size: 0,
                state: PendingState::Waiting,
            })
            .collect();
        round.names_due = names_due.iter().map(PathBuf::from).collect();
        round
    }

    fn about(paths: &[&str]) -> Question {
        let paths: Vec<PathBuf> = paths.iter().map(PathBuf::from).collect();
        Question {
            known: paths.iter().cloned().collect(),
            paths,
            ..Question::default()
        }
    }

    #[test]
    fn only_a_round_after_the_question_finds_files_safe() {
        let all = about(&[""]);
        assert_eq!(
            all.judge(&round(&[], &[]), None),
            (DrainVerdict::Safe, None)
        );
        let (verdict, reason) = all.judge(&round(&[], &[]), Some("the drain is paused"));
        assert_eq!(verdict, DrainVerdict::NotYet);
        assert!(reason.unwrap().ends_with("the drain is paused"));
        let (verdict, reason) = all.judge(&round(&["a"], &[]), None);
        assert_eq!(verdict, DrainVerdict::NotYet);
        assert_eq!(reason.unwrap(), "a is not safe yet: it is to be moved");
    }

    #[test]
    fn a_file_that_no_round_has_seen_is_not_moved_yet() {
        let mut question = about(&["new"]);
        question.known.clear();
        let missing = (DrainVerdict::NoSuchPath, Some("new".to_owned()));
        assert_eq!(question.judge(&round(&[], &[]), Some("paused")), missing);
        question.present = question.paths.iter().cloned().collect();
        let (verdict, reason) = question.judge(&round(&[], &[]), Some("the drain is paused"));
        assert_eq!(verdict, DrainVerdict::NotYet);
        let reason = reason.unwrap();
        assert_eq!(reason, "new is not moved yet: the drain is paused");
        // A round that began later has missed it: it was removed.
        assert_eq!(question.judge(&round(&[], &[]), None), missing);
    }

    #[test]
    fn a_name_that_is_not_text_is_known_by_its_bytes() {
        let new: PathBuf = OsStr::from_bytes(b"new\xff").into();
        let question = Question {
            present: [new.clone()].into(),
            paths: vec![new],
            ..Question::default()
        };
        let (verdict, _) = question.judge(&round(&[], &[]), Some("the drain is paused"));
        assert_eq!(verdict, DrainVerdict::NotYet);
    }

    #[test]
    fn a_name_that_is_to_change_is_not_safe() {
        for (due, path) in [("DONE", "DONE"), ("d/DONE", "d"), ("d", "d/DONE")] {
            let (verdict, _) = about(&[path]).judge(&round(&[], &[due]), None);
            assert_eq!(verdict, DrainVerdict::NotYet, "{path}");
        }
        let other = about(&["other"]).judge(&round(&["a"], &["DONE"]), None);
        assert_eq!(other, (DrainVerdict::Safe, None));
    }

    #[test]
    fn a_name_that_waits_for_a_failed_file_has_failed() {
        let mut failed = round(&["a"], &["DONE"]);
        failed.pending[0].state = PendingState::Failed {
            reason: "no room".to_owned(),
        };
        let (verdict, reason) = about(&["DONE"]).judge(&failed, None);
        assert_eq!(verdict, DrainVerdict::Failed);
        assert!(reason.unwrap().ends_with("no room"));
    }
}

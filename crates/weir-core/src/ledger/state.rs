//! The states of a file on its way to the PFS, and the events that change them.

use serde::{Deserialize, Serialize};

use crate::types::Rank;

/// How often a file was opened for writing again before it was published.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Serialize, Deserialize)]
pub struct Generation(pub u32);

/// The reason for which a move failed; it is tried again later, except after a conflict.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum MoveFailure {
    /// The PFS gave this errno.
    Errno(i32),
    /// A call to the PFS did not return in time.
    Hung,
    /// The copy's sum was not the file's.
    Mismatch,
    /// The mover's server is gone.
    OwnerGone,
    /// Someone outside the job changed the target.
    Conflict,
}

/// The state of a file (the letter is Data Elevator's).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum DrainState {
    /// W: open for writing.
    Writing,
    /// B: whole, in the buffer.
    Written,
    /// A: an analysis reads it.
    Analysing,
    /// M: analysed.
    Analysed,
    /// D: this server copies it.
    Moving(Rank),
    /// The copy is synced and checked, under a hidden name.
    Ready,
    /// F: on the PFS, under its own name.
    Published,
    /// Its bytes, or some of them, exist nowhere any more.
    Lost,
}

/// An event of a file. Those of analyses and movers name the generation that they were about.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum DrainEvent {
    /// A program opens it for writing. A copy that is ready is a version of its own by then, and
    /// has a row of its own.
    Reopened,
    /// The last writer closed it, or it was laminated.
    Closed,
    /// An analysis begins to read it.
    AnalysisBegan(Generation),
    /// The analysis ended, well or not.
    AnalysisEnded(Generation),
    /// A server begins to copy it.
    MoveBegan(Generation, Rank),
    /// That failed.
    MoveFailed(Generation, MoveFailure),
    /// The copy is synced and checked.
    Copied(Generation),
    /// The copy has the file's name.
    Published(Generation),
    /// The only node that had it is gone.
    Lost,
}

/// An event that a file in this state cannot have.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DrainRefused {
    /// It is about an older generation: who reports it is late.
    #[error("the file was written again")]
    Superseded,
    /// It does not follow from the state.
    #[error("the event does not follow from the file's state")]
    OutOfTurn,
}

impl DrainEvent {
    /// The generation that the event is about; `None`: whichever is current.
    fn generation(&self) -> Option<Generation> {
        match self {
            DrainEvent::Reopened | DrainEvent::Closed | DrainEvent::Lost => None,
            DrainEvent::AnalysisBegan(of)
            | DrainEvent::AnalysisEnded(of)
            | DrainEvent::MoveBegan(of, _)
            | DrainEvent::MoveFailed(of, _)
            | DrainEvent::Copied(of)
            | DrainEvent::Published(of) => Some(*of),
        }
    }
}

impl DrainState {
    /// The state after an event; `wants_analysis`: the file is not moved before it was analysed.
    pub fn after(
        &self,
        event: &DrainEvent,
        current: Generation,
        wants_analysis: bool,
    ) -> Result<DrainState, DrainRefused> {
        if event.generation().is_some_and(|of| of != current) {
            return Err(DrainRefused::Superseded);
        }
        let waits = if wants_analysis {
            DrainState::Analysed
        } else {
            DrainState::Written
        };
        match (self, event) {
            (DrainState::Writing, DrainEvent::Closed) => Ok(DrainState::Written),
            (
                DrainState::Written
                | DrainState::Analysing
                | DrainState::Analysed
                | DrainState::Moving(_),
                DrainEvent::Reopened,
            ) => Ok(DrainState::Writing),
            (DrainState::Written, DrainEvent::AnalysisBegan(_)) if wants_analysis => {
                Ok(DrainState::Analysing)
            }
            (DrainState::Analysing, DrainEvent::AnalysisEnded(_)) => Ok(DrainState::Analysed),
            (from, DrainEvent::MoveBegan(_, owner)) if *from == waits => {
                Ok(DrainState::Moving(*owner))
            }
            (DrainState::Moving(_), DrainEvent::MoveFailed(..)) => Ok(waits),
            (DrainState::Moving(_), DrainEvent::Copied(_))
            | (DrainState::Ready, DrainEvent::MoveFailed(..)) => Ok(DrainState::Ready),
            (DrainState::Ready, DrainEvent::Published(_)) => Ok(DrainState::Published),
            // The copy outlives the node.
            (DrainState::Ready | DrainState::Published | DrainState::Lost, DrainEvent::Lost) => {
                Err(DrainRefused::OutOfTurn)
            }
            (_, DrainEvent::Lost) => Ok(DrainState::Lost),
            _ => Err(DrainRefused::OutOfTurn),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Generation = Generation(3);

    fn states() -> Vec<DrainState> {
        let moving = DrainState::Moving(Rank(1));
        let ends = [DrainState::Ready, DrainState::Published, DrainState::Lost];
        let begins = [
            DrainState::Writing,
            DrainState::Written,
            DrainState::Analysing,
            DrainState::Analysed,
        ];
        begins.into_iter().chain([moving]).chain(ends).collect()
    }

    fn events(of: Generation) -> Vec<DrainEvent> {
        vec![
            DrainEvent::Reopened,
            DrainEvent::Closed,
            DrainEvent::AnalysisBegan(of),
            DrainEvent::AnalysisEnded(of),
            DrainEvent::Lost,
            DrainEvent::MoveBegan(of, Rank(1)),
            DrainEvent::MoveFailed(of, MoveFailure::Hung),
            DrainEvent::Copied(of),
            DrainEvent::Published(of),
        ]
    }

    /// The whole table, by letters: rows are states, columns are the events in the order of
    /// `events`; `.` is refused.
    fn table(wants_analysis: bool) -> String {
        let letter = |state: &DrainState| match state {
            DrainState::Writing => 'W',
            DrainState::Written => 'B',
            DrainState::Analysing => 'A',
            DrainState::Analysed => 'M',
            DrainState::Moving(_) => 'D',
            DrainState::Ready => 'R',
            DrainState::Published => 'F',
            DrainState::Lost => 'L',
        };
        let row = |state: DrainState| {
            let after = events(NOW).into_iter().map(|event| {
                let next = state.after(&event, NOW, wants_analysis);
                next.map_or('.', |next| letter(&next))
            });
            format!("{} {}", letter(&state), after.collect::<String>())
        };
        states().into_iter().map(row).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn every_state_meets_every_event() {
        let plain = "\
W .B..L....
B W...LD...
A W..ML....
M W...L....
D W...L.BR.
R ......R.F
F .........
L .........";
        assert_eq!(table(false), plain);
        let analysed = "\
W .B..L....
B W.A.L....
A W..ML....
M W...LD...
D W...L.MR.
R ......R.F
F .........
L .........";
        assert_eq!(table(true), analysed);
    }

    #[test]
    fn an_event_of_another_generation_changes_nothing() {
        for state in states() {
            for event in events(Generation(2)) {
                if event.generation().is_some() {
                    let after = state.after(&event, NOW, false);
                    assert_eq!(after, Err(DrainRefused::Superseded), "{state:?} {event:?}");
                }
            }
        }
    }
}

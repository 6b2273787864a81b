//! Macros for results that a call may not have, because it does not concern weir.

/// Gives the value, or returns from the function with the result that has none.
macro_rules! ours {
    ($outcome:expr) => {
        match $outcome {
            None => return None,
            Some(Err(error)) => return Some(Err(error)),
            Some(Ok(value)) => value,
        }
    };
}
pub(super) use ours;

/// Gives the value, or ends the function with the error.
macro_rules! done {
    ($result:expr) => {
        match $result {
            Ok(value) => value,
            Err(error) => return Some(Err(error)),
        }
    };
}
pub(super) use done;

//! The tests of the index as a whole: against a model, and cases by hand.

mod cases;
mod model;

//! The extent index: the location of a file's bytes.
//!
//! # Intuition
//!
//! weir's data lies in logs, in the order in which it was written. A file is then a list of
//! statements "these bytes of the file are at that position of that log", each with a stamp that
//! orders it among the writes of the file. A later write does not change bytes, it makes a new
//! statement; where two overlap, the one with the greater stamp holds. The index keeps for every
//! byte the statement that holds, and finds it.
//!
//! Statements are *runs*, arithmetic progressions of pieces ([`Run`]): a checkpoint that `P`
//! processes write in turns, a million pieces each, is `P` runs. All work is done on runs as such
//! ([`progression`](self)): a contiguous file over which a strided one is written becomes the gaps,
//! again one run.
//!
//! # Application
//!
//! The server holds one index a file. It harvests growing records repeatedly and passes each
//! through [`ExtentIndex::grow`] with the state that it inserted before; finished runs go through
//! [`ExtentIndex::insert`], a truncation inserts [`Run::hole`]. Both report the log bytes that are
//! no longer referred to, each exactly once. A client asks for [`ExtentIndex::runs_in`], puts the
//! runs into an index of its own, and reads by [`ExtentIndex::for_each_piece_in`].
//!
//! ```
//! use weir_core::extent::{ExtentIndex, Run};
//!
//! let mut index = ExtentIndex::new();
//! let mut freed = Vec::new();
//! index.insert(Run::extent(0, 100, 1, 0, 7, 4096)?, &mut |range| freed.push(range))?;
//! index.insert(Run::extent(40, 20, 2, 0, 8, 0)?, &mut |range| freed.push(range))?;
//! assert_eq!((freed[0].slab, freed[0].pos, freed[0].len), (7, 4096 + 40, 20));
//!
//! let mut pieces = Vec::new();
//! index.query(0, 100, &mut pieces);
//! assert_eq!(pieces.iter().map(|piece| (piece.offset, piece.length)).collect::<Vec<_>>(), [(0, 40), (40, 20), (60, 40)]);
//! # Ok::<(), weir_core::extent::RunError>(())
//! ```
//!
//! # Edge cases
//!
//! - *Late arrivals.* Runs may come in any order of stamps; the outcome is that of stamp order. So
//!   stamps are kept, holes are kept, and neighbours with different stamps stay apart, until the
//!   caller knows that nothing older can come and says so ([`ExtentIndex::coalesce_before`],
//!   [`ExtentIndex::settle`], [`ExtentIndex::drop_holes`]).
//! - *Hostile runs.* Every run is checked on the way in. What is not checked: that two runs do not
//!   claim the same log bytes. Each claim is then counted, so an account of live bytes a slab must
//!   tolerate more freed than it lent.
//! - *Random writes.* Two writes of one length are a progression too; progressions of fewer than
//!   four pieces are kept as extents.
#![forbid(unsafe_code)]

mod adopt;
mod geometry;
mod index;
mod layout;
mod map;
mod overlay;
mod plain;
mod progression;
mod query;
mod run;
mod settle;
mod strided;
#[cfg(test)]
mod tests;

pub use index::{ExtentIndex, Inserted};
pub use layout::{Layout, Tiers};
pub use query::Known;
pub use run::{FreedRange, Piece, PieceSource, Run, RunError, Source, COPY_RANK, MAX_OFFSET};

//! The contiguous pieces of a datatype, counted without listing them.

use core::ffi::c_int;

use crate::datatypes::DatatypeReader;
use crate::mpi::{Count, Mpi, MpiHandle, SUCCESS};
use crate::symbols::function;

/// So many pieces that the gap behind the last one does not count.
const MANY_PIECES: u64 = 16;
/// The most datatypes within each other that are looked at.
const MAX_DEPTH: u32 = 32;

/// `MPI_COMBINER_*` in MPICH's ABI, of the datatypes whose pieces are counted.
mod combiner {
    use core::ffi::c_int;

    pub const DUP: c_int = 2;
    pub const CONTIGUOUS: c_int = 3;
    pub const VECTOR: c_int = 4;
    pub const HVECTOR: c_int = 6;
    pub const INDEXED: c_int = 7;
    pub const HINDEXED: c_int = 9;
    pub const INDEXED_BLOCK: c_int = 10;
    pub const STRUCT: c_int = 12;
    pub const SUBARRAY: c_int = 13;
    pub const RESIZED: c_int = 18;
    pub const HINDEXED_BLOCK: c_int = 19;
}
/// `MPI_ORDER_C` of MPICH and of Open MPI.
const ORDERS_OF_C: [c_int; 2] = [56, 0];

/// A datatype within another one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct DatatypePart {
    /// The number of its pieces.
    pieces: u64,
    /// True if copies of it, one behind the other, are one piece.
    is_dense: bool,
}

impl DatatypePart {
    /// The number of pieces of so many copies, one behind the other.
    fn repeated(self, count: u64) -> u64 {
        match self.is_dense {
            true => count.min(1),
            false => self.pieces.saturating_mul(count),
        }
    }
}

type MeasureSize = unsafe extern "C" fn(MpiHandle, *mut Count) -> c_int;
type MeasureExtent = unsafe extern "C" fn(MpiHandle, *mut Count, *mut Count) -> c_int;

/// The functions of MPI that tell the pieces of a datatype.
#[derive(Clone, Copy, Debug)]
pub struct PieceCounter {
    reader: DatatypeReader,
    size: MeasureSize,
    extent: MeasureExtent,
    true_extent: MeasureExtent,
}

impl PieceCounter {
    /// Finds the functions. `None`: this MPI lacks one.
    pub fn find(mpi: &Mpi) -> Option<PieceCounter> {
        // SAFETY: the types are those of MPI's functions of these names.
        unsafe {
            Some(PieceCounter {
                reader: DatatypeReader::find(mpi)?,
                size: function(c"PMPI_Type_size_x")?,
                extent: function(c"PMPI_Type_get_extent_x")?,
                true_extent: function(c"PMPI_Type_get_true_extent_x")?,
            })
        }
    }

    /// The average distance from the begin of a piece to that of the next one, bytes: with few pieces in copies of the datatype one
    /// behind the other, with many within one. `None`: the datatype is one piece, or its pieces cannot be counted.
    ///
    /// # Safety
    ///
    /// A valid datatype.
    pub unsafe fn spacing(&self, datatype: MpiHandle) -> Option<u64> {
        // SAFETY: the datatype is valid, by the caller.
        unsafe {
            let part = self.part(datatype, 0).filter(|part| !part.is_dense)?;
            let measure = match part.pieces {
                MANY_PIECES.. => self.true_extent,
                _ => self.extent,
            };
            let extent = u64::try_from(extent_by(measure, datatype)?).ok()?;
            extent.checked_div(part.pieces)
        }
    }

    /// # Safety
    ///
    /// A valid datatype.
    unsafe fn part(&self, datatype: MpiHandle, depth: u32) -> Option<DatatypePart> {
        // SAFETY: the datatype is valid, by the caller; those within it are as long as `inner` lives.
        unsafe {
            let mut size = 0;
            if (self.size)(datatype, &raw mut size) != SUCCESS {
                return None;
            }
            let extent = extent_by(self.extent, datatype)?;
            let pieces = match self.reader.read(datatype) {
                Some(inner) if depth < MAX_DEPTH => {
                    let parts = inner.datatypes.iter();
                    let parts = parts.map(|inner| self.part(*inner, depth + 1));
                    count_pieces(
                        inner.combiner,
                        &inner.integers,
                        &parts.collect::<Option<Vec<_>>>()?,
                    )?
                }
                None if self.reader.is_named(datatype) => 1,
                _ => return None,
            };
            Some(DatatypePart {
                pieces,
                is_dense: pieces <= 1 && size == extent,
            })
        }
    }
}

/// The extent, or true extent, of a datatype.
///
/// # Safety
///
/// A valid datatype, and one of MPI's functions that measure these.
unsafe fn extent_by(measure: MeasureExtent, datatype: MpiHandle) -> Option<Count> {
    let (mut lower, mut extent) = (0, 0);
    // SAFETY: the datatype is valid, by the caller; room for both numbers.
    let code = unsafe { measure(datatype, &raw mut lower, &raw mut extent) };
    (code == SUCCESS).then_some(extent)
}

/// The number of pieces of a datatype, from how it was put together (MPI 4.0, section 5.1.13), with its integer arguments, and the datatypes within
/// it. Neighbours that touch may count as two. `None`: it is of another kind.
fn count_pieces(combiner: c_int, numbers: &[c_int], parts: &[DatatypePart]) -> Option<u64> {
    use combiner::{
        CONTIGUOUS, DUP, HINDEXED, HINDEXED_BLOCK, HVECTOR, INDEXED, INDEXED_BLOCK, RESIZED,
        STRUCT, SUBARRAY, VECTOR,
    };
    let number = |at: usize| u64::try_from(*numbers.get(at)?).ok();
    let first = *parts.first()?;
    let several = |lengths: u64, blocks: u64| Some(first.repeated(lengths).saturating_mul(blocks));
    match combiner {
        DUP | RESIZED => Some(first.pieces),
        CONTIGUOUS => several(number(0)?, 1),
        VECTOR if number(1) == number(2) => several(number(0)?.saturating_mul(number(1)?), 1),
        VECTOR | HVECTOR | INDEXED_BLOCK | HINDEXED_BLOCK => several(number(1)?, number(0)?),
        // A structure has a datatype for each block, the others have one for all.
        INDEXED | HINDEXED | STRUCT => {
            let count = usize::try_from(number(0)?).ok()?;
            let blocks = numbers.get(1..=count)?.iter().zip(parts.iter().cycle());
            let pieces =
                blocks.map(|(length, part)| part.repeated(u64::try_from(*length).unwrap_or(0)));
            Some(pieces.fold(0, u64::saturating_add))
        }
        SUBARRAY => {
            let rank = usize::try_from(number(0)?).ok()?;
            let list = |at: usize| numbers.get(1 + at * rank..1 + (at + 1) * rank);
            let mut lengths: Vec<_> = list(0)?.iter().zip(list(1)?).collect();
            if ORDERS_OF_C.contains(numbers.last()?) {
                lengths.reverse();
            }
            // From the fastest dimension on: as long as the dimensions are whole, a piece goes on.
            let (mut run, mut pieces, mut is_whole) = (1_u64, 1_u64, true);
            for (whole, own) in lengths {
                let elements = u64::try_from(*own).ok()?;
                match is_whole {
                    true => run = run.saturating_mul(elements),
                    false => pieces = pieces.saturating_mul(elements),
                }
                is_whole &= whole == own;
            }
            several(run, pieces)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ELEMENT: DatatypePart = DatatypePart {
        pieces: 1,
        is_dense: true,
    };
    const GAPPED: DatatypePart = DatatypePart {
        pieces: 3,
        is_dense: false,
    };

    #[test]
    fn pieces_are_counted_for_each_kind_of_datatype() {
        let element = &[ELEMENT][..];
        // Number of blocks, their length, their distance.
        assert_eq!(count_pieces(combiner::VECTOR, &[5, 2, 8], element), Some(5));
        assert_eq!(count_pieces(combiner::VECTOR, &[5, 8, 8], element), Some(1));
        assert_eq!(
            count_pieces(combiner::VECTOR, &[5, 2, 8], &[GAPPED]),
            Some(30)
        );
        assert_eq!(count_pieces(combiner::HVECTOR, &[5, 2], element), Some(5));
        assert_eq!(count_pieces(combiner::CONTIGUOUS, &[7], element), Some(1));
        assert_eq!(
            count_pieces(combiner::CONTIGUOUS, &[7], &[GAPPED]),
            Some(21)
        );
        assert_eq!(count_pieces(combiner::CONTIGUOUS, &[0], element), Some(0));
        assert_eq!(count_pieces(combiner::RESIZED, &[], &[GAPPED]), Some(3));
        assert_eq!(
            count_pieces(combiner::INDEXED, &[3, 1, 0, 4, 9, 9, 9], element),
            Some(2)
        );
        assert_eq!(
            count_pieces(combiner::INDEXED_BLOCK, &[4, 2, 0, 9, 18, 27], element),
            Some(4)
        );
        assert_eq!(
            count_pieces(combiner::STRUCT, &[2, 3, 2], &[ELEMENT, GAPPED]),
            Some(7)
        );
        // A part of 2 x 3 x 4 of an array of 8 x 3 x 4 elements, and of one of 8 x 6 x 4, in the order of C; then the same in
        // Fortran's, in which the first dimension is the fastest.
        assert_eq!(
            count_pieces(
                combiner::SUBARRAY,
                &[3, 8, 3, 4, 2, 3, 4, 0, 0, 0, 56],
                element
            ),
            Some(1)
        );
        assert_eq!(
            count_pieces(
                combiner::SUBARRAY,
                &[3, 8, 6, 4, 2, 3, 4, 0, 0, 0, 56],
                element
            ),
            Some(2)
        );
        assert_eq!(
            count_pieces(
                combiner::SUBARRAY,
                &[3, 8, 6, 4, 2, 3, 4, 0, 0, 0, 57],
                element
            ),
            Some(12)
        );
        // An array distributed over processes, and one with too few numbers.
        assert_eq!(count_pieces(14, &[1, 2, 3], element), None);
        assert_eq!(count_pieces(combiner::SUBARRAY, &[3, 8], element), None);
        assert_eq!(count_pieces(combiner::VECTOR, &[5], element), None);
    }
}

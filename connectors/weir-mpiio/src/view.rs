//! The pieces of a view. Data sieving pays off where they lie close together.
//!
//! ROMIO reads the pieces of a view one by one, 0.7 us each, or all bytes from the first to the last of them (data sieving). Below
//! a spacing of [`SIEVED_SPACING`] bytes, reading the gaps from weir's memory takes less time than a call.
//!
//! Left out, so that their pieces are read one by one: distributed arrays (MPI_Type_create_darray), Fortran's types by precision, datatypes
//! with large counts, and those with negative strides.

use core::ffi::c_int;
use std::sync::OnceLock;

use weir_connect::datatypes::{Combiner, Construction, DatatypeReader};
use weir_connect::mpi::{Count, Mpi, MpiHandle, SUCCESS};
use weir_connect::symbols::function;

use crate::files::ViewShape;

/// The largest average distance, in bytes, from the beginning of a piece to that of the next at which gaps are read, too.
const SIEVED_SPACING: u64 = 2048;
/// The bytes that ROMIO reads at once, by default (`ind_rd_buffer_size`).
const SIEVE_BYTES: u64 = 4 << 20;
/// `MPI_ORDER_FORTRAN`, of MPICH and of Open MPI.
const FORTRAN_ORDER: [u64; 2] = [57, 1];
/// The most derived datatypes within one that are looked at: one may have itself twice in each of many levels.
const MOST_DATATYPES: u32 = 1000;

type TypeSize = unsafe extern "C" fn(MpiHandle, *mut Count) -> c_int;
type TypeExtent = unsafe extern "C" fn(MpiHandle, *mut Count, *mut Count) -> c_int;

/// The functions of MPI that give the shape of a datatype.
#[derive(Clone, Copy, Debug)]
struct ShapeReader {
    made: DatatypeReader,
    size: TypeSize,
    extent: TypeExtent,
    true_extent: TypeExtent,
}

/// The shape of a view with this file type. Sparse if it is not known.
///
/// # Safety
///
/// A valid datatype, or `MPI_DATATYPE_NULL`.
pub unsafe fn read_shape(mpi: &Mpi, filetype: MpiHandle) -> ViewShape {
    static READER: OnceLock<Option<ShapeReader>> = OnceLock::new();
    let Some(reader) = READER.get_or_init(|| ShapeReader::find(mpi)) else {
        return ViewShape::Sparse;
    };
    if mpi.is_null_datatype(filetype) {
        // MPI refuses it.
        return ViewShape::Sparse;
    }
    let mut left = MOST_DATATYPES;
    // SAFETY: the datatype is valid, by the caller.
    let are_close = unsafe {
        reader.made.read(filetype).and_then(|made| {
            let pieces = reader.pieces_of(&made, &mut left)?;
            Some(reader.extents_of(filetype)?.are_close(pieces))
        })
    };
    match are_close {
        Some(true) => ViewShape::Dense,
        Some(false) | None => ViewShape::Sparse,
    }
}

/// Bytes of a datatype.
#[derive(Clone, Copy, Debug)]
struct Extents {
    /// The bytes of its pieces.
    size: u64,
    /// The bytes from one datatype to the next in a row.
    extent: u64,
    /// The bytes from the first piece to the end of the last.
    true_extent: u64,
}

impl Extents {
    fn has_gaps(self) -> bool {
        self.size < self.extent
    }

    /// True if all that sieving reads for so many pieces, in each of several datatypes in a row, is little.
    fn are_close(self, pieces: u64) -> bool {
        let sieved = match self.extent <= SIEVE_BYTES {
            true => self.extent,
            // A read begins at the first piece that it is for.
            false => self
                .true_extent
                .next_multiple_of(SIEVE_BYTES)
                .min(self.extent),
        };
        self.has_gaps() && sieved / pieces.max(1) < SIEVED_SPACING
    }
}

impl ShapeReader {
    fn find(mpi: &Mpi) -> Option<ShapeReader> {
        // SAFETY: the types are those of MPI's functions of these names.
        unsafe {
            Some(ShapeReader {
                made: DatatypeReader::find(mpi)?,
                size: function(c"PMPI_Type_size_x")?,
                extent: function(c"PMPI_Type_get_extent_x")?,
                true_extent: function(c"PMPI_Type_get_true_extent_x")?,
            })
        }
    }

    /// # Safety
    ///
    /// A valid datatype.
    unsafe fn extents_of(&self, datatype: MpiHandle) -> Option<Extents> {
        let (mut size, mut extent, mut true_extent) = (0, 0, 0);
        let (mut lower_bound, mut first) = (0, 0);
        // SAFETY: the datatype is valid, by the caller; there is room for each number.
        let codes = unsafe {
            [
                (self.size)(datatype, &raw mut size),
                (self.extent)(datatype, &raw mut lower_bound, &raw mut extent),
                (self.true_extent)(datatype, &raw mut first, &raw mut true_extent),
            ]
        };
        if codes != [SUCCESS; 3] {
            return None;
        }
        Some(Extents {
            size: u64::try_from(size).ok()?,
            extent: u64::try_from(extent).ok()?,
            true_extent: u64::try_from(true_extent).ok()?,
        })
    }

    /// The number of pieces that each datatype of a row adds; 0 if it has no gaps, so that the row is one piece.
    ///
    /// # Safety
    ///
    /// A valid datatype.
    unsafe fn pieces_in_row(&self, datatype: MpiHandle, left: &mut u32) -> Option<u64> {
        // SAFETY: the datatype is valid, by the caller.
        unsafe {
            let pieces = match self.made.read(datatype) {
                Some(made) => self.pieces_of(&made, left)?,
                None => 1,
            };
            let is_whole = pieces == 1 && !self.extents_of(datatype)?.has_gaps();
            Some(if is_whole { 0 } else { pieces })
        }
    }

    /// The number of pieces of a derived datatype; pieces that touch may count as several. `None`: it is not known.
    ///
    /// # Safety
    ///
    /// The construction of a valid datatype.
    unsafe fn pieces_of(&self, made: &Construction<'_>, left: &mut u32) -> Option<u64> {
        *left = left.checked_sub(1)?;
        let numbers = made.integers.iter();
        let numbers: Vec<u64> = numbers
            .map(|number| u64::try_from(*number).ok())
            .collect::<Option<_>>()?;
        // SAFETY: the datatypes are valid, as long as `made` is.
        let mut in_row = made
            .datatypes
            .iter()
            .map(|inner| unsafe { self.pieces_in_row(*inner, left) });
        if made.combiner == Combiner::Struct {
            let blocks = numbers.get(1..)?.iter().zip(in_row);
            let mut pieces = blocks.map(|(len, in_row)| Some(pieces_of_block(*len, in_row?)));
            return pieces.try_fold(0_u64, |sum, pieces| Some(sum.saturating_add(pieces?)));
        }
        let in_row = in_row.next()??;
        pieces_of_blocks(made.combiner, &numbers, in_row)
    }
}

/// The number of pieces of `len` datatypes in a row. `in_row`: the pieces that each adds; 0: it has no gaps.
fn pieces_of_block(len: u64, in_row: u64) -> u64 {
    match in_row {
        0 => len.min(1),
        pieces => len.saturating_mul(pieces),
    }
}

/// The number of pieces of a datatype made from a single other one. `numbers`: in the order of MPI's standard.
fn pieces_of_blocks(combiner: Combiner, numbers: &[u64], in_row: u64) -> Option<u64> {
    let block = |len: &u64| pieces_of_block(*len, in_row);
    match (combiner, numbers) {
        (Combiner::Dup | Combiner::Resized, _) => Some(in_row.max(1)),
        (Combiner::Contiguous, [count]) => Some(block(count)),
        (Combiner::Vector | Combiner::IndexedBlock, [count, len, ..]) => {
            Some(count.saturating_mul(block(len)))
        }
        (Combiner::Indexed, [count, lens @ ..]) => {
            let lens = lens.iter().take(usize::try_from(*count).ok()?);
            Some(lens.map(block).fold(0, u64::saturating_add))
        }
        (Combiner::Subarray, [dimensions, sizes @ ..]) => {
            let dimensions = usize::try_from(*dimensions).ok()?;
            let (sizes, rest) = sizes.split_at_checked(dimensions)?;
            let parts = rest.get(..dimensions)?;
            let is_fortran = FORTRAN_ORDER.contains(numbers.last()?);
            let mut lens: Vec<(u64, u64)> =
                sizes.iter().copied().zip(parts.iter().copied()).collect();
            if is_fortran {
                lens.reverse();
            }
            let elements = parts.iter().copied().fold(1, u64::saturating_mul);
            let rows = rows_of(&lens).min(elements);
            let row = elements.checked_div(rows).unwrap_or(0);
            Some(rows.saturating_mul(block(&row)))
        }
        _ => None,
    }
}

/// The number of pieces of a part of an array. `lens`: for each dimension its length and the part's, the fastest dimension last.
fn rows_of(lens: &[(u64, u64)]) -> u64 {
    let cut = lens.iter().rposition(|(whole, part)| part < whole);
    let above = &lens[..cut.unwrap_or(0)];
    let parts = above.iter().map(|(_, part)| *part);
    parts.fold(1, u64::saturating_mul)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NO_GAPS: u64 = 0;

    #[test]
    fn pieces_are_counted() {
        let pieces =
            |combiner, numbers: &[u64], in_row| pieces_of_blocks(combiner, numbers, in_row);
        assert_eq!(pieces(Combiner::Contiguous, &[8], NO_GAPS), Some(1));
        assert_eq!(pieces(Combiner::Contiguous, &[8], 3), Some(24));
        assert_eq!(pieces(Combiner::Vector, &[100, 4, 16], NO_GAPS), Some(100));
        assert_eq!(pieces(Combiner::Vector, &[100, 4, 16], 2), Some(800));
        assert_eq!(
            pieces(Combiner::Indexed, &[3, 5, 0, 7, 9, 9, 9], NO_GAPS),
            Some(2)
        );
        assert_eq!(
            pieces(Combiner::IndexedBlock, &[3, 5, 1, 7, 9], NO_GAPS),
            Some(3)
        );
        assert_eq!(pieces(Combiner::Resized, &[], NO_GAPS), Some(1));
        assert_eq!(pieces(Combiner::Other, &[1], NO_GAPS), None);
    }

    #[test]
    fn rows_of_a_part_that_touch_are_one() {
        let pieces = |lens: &[[u64; 2]], order, in_row| {
            let mut numbers = vec![lens.len() as u64];
            numbers.extend(lens.iter().map(|[whole, _]| whole));
            numbers.extend(lens.iter().map(|[_, part]| part));
            numbers.extend(lens.iter().map(|_| 0));
            numbers.push(order);
            pieces_of_blocks(Combiner::Subarray, &numbers, in_row)
        };
        for (c, fortran) in [(56, 57), (0, 1)] {
            assert_eq!(pieces(&[[9, 4], [8, 3], [7, 2]], c, NO_GAPS), Some(12));
            assert_eq!(pieces(&[[9, 4], [8, 3], [7, 7]], c, NO_GAPS), Some(4));
            assert_eq!(pieces(&[[9, 4], [8, 8], [7, 7]], c, NO_GAPS), Some(1));
            assert_eq!(
                pieces(&[[7, 2], [8, 3], [9, 4]], fortran, NO_GAPS),
                Some(12)
            );
            assert_eq!(pieces(&[[9, 4], [8, 3]], c, 2), Some(24));
            assert_eq!(pieces(&[[9, 0], [8, 3]], c, NO_GAPS), Some(0));
        }
        assert_eq!(
            pieces_of_blocks(Combiner::Subarray, &[u64::MAX, 1], 0),
            None
        );
    }

    #[test]
    fn small_gaps_are_read_and_large_ones_are_not() {
        let extents = |size, extent, true_extent| Extents {
            size,
            extent,
            true_extent,
        };
        assert!(extents(64, 256, 64).are_close(1));
        assert!(!extents(64, 1 << 20, 64).are_close(1));
        assert!(!extents(256, 256, 256).are_close(1));
        assert!(extents(10_000 * 8, 1 << 30, 10_000 * 80).are_close(10_000));
        assert!(!extents(1000 * 8, 1 << 30, 1000 * 80_000).are_close(1000));
        // Three neighbours in each of many large records.
        assert!(!extents(24, 1 << 20, 24).are_close(3));
        assert!(!extents(24, 1 << 30, 24).are_close(3));
        assert!(!extents(0, 0, 0).are_close(0));
    }
}

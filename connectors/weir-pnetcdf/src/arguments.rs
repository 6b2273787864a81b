//! The arguments of a put or a get. They are checked as in PnetCDF, with its error codes, and converted to a part of a variable and
//! contiguous elements.

use core::ffi::{c_int, c_void};

use weir_arrays::definitions::{FileDefinitions, Variable};
use weir_arrays::element::ElementType;
use weir_arrays::subarray::{advance, Range, Subarray};
use weir_connect::mpi::{MpiHandle, Offset};

use crate::datatypes::Datatypes;
use crate::library::{
    NC_ECHAR, NC_EEDGE, NC_EGLOBAL, NC_EINVALCOORDS, NC_ENEGATIVECNT, NC_ENOTVAR, NC_ENULLSTART,
    NC_ESTRIDE,
};

/// The highest number of a record in the formats before CDF-5.
const MAX_RECORDS: u64 = u32::MAX as u64;

/// The part that a call names, as pointers to one number for each dimension of the variable.
#[derive(Clone, Copy, Debug)]
pub enum NamedPart {
    /// All of it (`var`).
    Whole,
    /// One element (`var1`).
    Element(*const Offset),
    /// A part (`vara`, `vars`, `varm`, an item of `varn`). Without strides they are 1; without counts, if these may be left out,
    /// they are 1, too.
    Part {
        start: *const Offset,
        count: *const Offset,
        stride: *const Offset,
        may_lack_counts: bool,
    },
}

/// The type of a call's memory.
#[derive(Clone, Copy, Debug)]
pub enum MemoryType {
    /// The type in the function's name.
    Named(ElementType),
    /// The type in the arguments (the flexible functions): a count of a datatype of MPI.
    Flexible(Offset, MpiHandle),
}

impl MemoryType {
    /// The count and the derived datatype, if one describes memory.
    pub fn derived(self, datatypes: &Datatypes) -> Option<(Offset, MpiHandle)> {
        match self {
            MemoryType::Flexible(count, datatype) => {
                let is_plain = datatypes.element(datatype).is_some() || datatypes.is_null(datatype);
                (!is_plain).then_some((count, datatype))
            }
            MemoryType::Named(_) => None,
        }
    }

    /// True if the count in a call's arguments is that of a part's elements. Elements of a derived datatype are counted when they
    /// are packed. `NC_COUNT_IGNORE` (-1) means as many as the part has.
    pub fn has_elements(self, datatypes: &Datatypes, part: &Subarray) -> bool {
        match self {
            MemoryType::Flexible(count, datatype) if datatypes.element(datatype).is_some() => {
                count == -1 || u64::try_from(count).ok() == part.elements()
            }
            MemoryType::Named(_) | MemoryType::Flexible(..) => true,
        }
    }

    /// The type of the elements. `None`: PnetCDF knows none of this kind.
    ///
    /// # Safety
    ///
    /// A valid datatype.
    pub unsafe fn element_of(
        self,
        datatypes: &Datatypes,
        variable: &Variable,
    ) -> Option<ElementType> {
        match self {
            MemoryType::Named(element) => Some(element),
            MemoryType::Flexible(_, datatype) if datatypes.is_null(datatype) => {
                Some(variable.external)
            }
            // SAFETY: the datatype is valid, by the caller.
            MemoryType::Flexible(_, datatype) => unsafe { datatypes.elements_of(datatype) },
        }
    }
}

/// A variable by its number.
///
/// # Errors
///
/// The number is not that of a variable, or it stands for the file (`NC_GLOBAL`).
pub fn variable(definitions: &FileDefinitions, number: c_int) -> Result<(u32, &Variable), c_int> {
    if number == -1 {
        return Err(NC_EGLOBAL);
    }
    let index = u32::try_from(number).map_err(|_| NC_ENOTVAR)?;
    let variable = definitions.variables.get(index as usize);
    Ok((index, variable.ok_or(NC_ENOTVAR)?))
}

/// Checks that elements can be converted to those of the variable.
///
/// # Errors
///
/// The one is text, the other not.
pub fn check_type(element: ElementType, variable: &Variable) -> Result<(), c_int> {
    let is_text = |element| element == ElementType::Text;
    match is_text(element) == is_text(variable.external) {
        true => Ok(()),
        false => Err(NC_ECHAR),
    }
}

impl NamedPart {
    /// True for a whole variable.
    pub fn is_whole(self) -> bool {
        matches!(self, NamedPart::Whole)
    }

    /// The part of a variable. `records`: the number of records in the file. For a write the record dimension has no end.
    ///
    /// # Safety
    ///
    /// Each pointer is null or points to one number for each dimension.
    ///
    /// # Errors
    ///
    /// Errors of PnetCDF for a part that is not within the variable.
    pub unsafe fn checked(
        self,
        variable: &Variable,
        records: u64,
        is_cdf5: bool,
        is_write: bool,
    ) -> Result<Subarray, c_int> {
        let length = |dimension: usize| match dimension == 0 && variable.is_record {
            true => records,
            false => variable.shape[dimension],
        };
        let rank = variable.shape.len();
        // As in PnetCDF 1.12.3, which has its own error codes for parts in lists (varn).
        let mut without_start = NC_EINVALCOORDS;
        let (start, count, stride) = match self {
            NamedPart::Whole => {
                let ranges = (0..rank).map(|dimension| Range::new(0, length(dimension)));
                return Ok(Subarray(ranges.collect()));
            }
            NamedPart::Element(start) => (start, None, core::ptr::null()),
            NamedPart::Part {
                start,
                count,
                stride,
                may_lack_counts,
            } => {
                if may_lack_counts {
                    without_start = NC_ENULLSTART;
                } else if rank > 0 && count.is_null() {
                    return Err(match start.is_null() {
                        true => NC_EINVALCOORDS,
                        false => NC_EEDGE,
                    });
                }
                (start, (!count.is_null()).then_some(count), stride)
            }
        };
        if rank > 0 && start.is_null() {
            return Err(without_start);
        }
        // SAFETY: neither list is null, and each has a number for every dimension, by the caller.
        let number = |list: *const Offset, dimension: usize| unsafe { *list.add(dimension) };
        let mut ranges = Vec::with_capacity(rank);
        for dimension in 0..rank {
            let start = u64::try_from(number(start, dimension)).map_err(|_| NC_EINVALCOORDS)?;
            let count = count.map_or(1, |count| number(count, dimension));
            let is_open = dimension == 0 && variable.is_record && is_write;
            let end = match is_open {
                true if is_cdf5 => i64::MAX.cast_unsigned(),
                true => MAX_RECORDS,
                false => length(dimension),
            };
            // A start at the end is permitted where nothing follows.
            if start > end || start == end && count > 0 {
                return Err(NC_EINVALCOORDS);
            }
            let stride = match stride.is_null() {
                true => 1,
                false => u64::try_from(number(stride, dimension)).unwrap_or(0),
            };
            let count = u64::try_from(count).map_err(|_| NC_ENEGATIVECNT)?;
            if stride == 0 {
                return Err(NC_ESTRIDE);
            }
            let range = Range {
                start,
                count,
                stride,
            };
            if range.end_index().is_none_or(|last| last > end) {
                return Err(NC_EEDGE);
            }
            ranges.push(range);
        }
        Ok(Subarray(ranges.into()))
    }
}

/// Bytes of a part's elements in memory; `None`: they do not fit into the address space.
pub fn memory_bytes(part: &Subarray, element: ElementType) -> Option<usize> {
    let bytes = part.elements()?.checked_mul(element.bytes() as u64)?;
    usize::try_from(bytes)
        .ok()
        .filter(|bytes| isize::try_from(*bytes).is_ok())
}

/// True if a part's elements lie within the first `elements` of memory, with the distances of [`gather`].
///
/// # Safety
///
/// There is a distance for every dimension.
pub unsafe fn are_within(part: &Subarray, distances: *const Offset, elements: usize) -> bool {
    let (mut lowest, mut highest) = (0_i128, 0_i128);
    for (dimension, range) in part.0.iter().enumerate() {
        // SAFETY: there is a distance for every dimension, by the caller.
        let distance = i128::from(unsafe { *distances.add(dimension) });
        let farthest = distance.saturating_mul(i128::from(range.count.saturating_sub(1)));
        match farthest < 0 {
            true => lowest = lowest.saturating_add(farthest),
            false => highest = highest.saturating_add(farthest),
        }
    }
    lowest >= 0 && u64::try_from(highest).is_ok_and(|highest| highest < elements as u64)
}

/// Copies the elements of a part one after the other. `distances`: for each dimension, the distance between neighbours in memory
/// (`varm`), in elements.
///
/// # Safety
///
/// There is a distance for every dimension; the memory has the elements.
pub unsafe fn gather(
    part: &Subarray,
    element: ElementType,
    distances: *const Offset,
    memory: *const c_void,
) -> Vec<u8> {
    let bytes = element.bytes();
    let mut gathered = Vec::with_capacity(memory_bytes(part, element).unwrap_or(0));
    // SAFETY: there is a distance for every dimension, and the memory has an element at each of
    // them, by the caller.
    unsafe {
        for_elements(part, distances, |distance| {
            let from = memory.cast::<u8>().offset(distance * bytes.cast_signed());
            gathered.extend_from_slice(core::slice::from_raw_parts(from, bytes));
        });
    }
    gathered
}

/// The opposite of [`gather`].
///
/// # Safety
///
/// There is a distance for every dimension; the memory has room for the elements.
pub unsafe fn scatter(
    part: &Subarray,
    element: ElementType,
    distances: *const Offset,
    elements: &[u8],
    memory: *mut c_void,
) {
    let bytes = element.bytes();
    let mut elements = elements.chunks_exact(bytes);
    // SAFETY: there is a distance for every dimension, and the memory has room for an element at
    // each of them, by the caller.
    unsafe {
        for_elements(part, distances, |distance| {
            let from = elements.next().expect("one for each");
            let to = memory.cast::<u8>().offset(distance * bytes.cast_signed());
            core::ptr::copy_nonoverlapping(from.as_ptr(), to, bytes);
        });
    }
}

/// Visits the elements of a part in their order, with their distances from the first one.
///
/// # Safety
///
/// There is a distance for every dimension.
unsafe fn for_elements(part: &Subarray, distances: *const Offset, mut visit: impl FnMut(isize)) {
    if part.elements() == Some(0) {
        return;
    }
    let mut at = vec![0_u64; part.0.len()];
    loop {
        let mut distance = 0;
        for (dimension, at) in at.iter().enumerate() {
            // SAFETY: there is a distance for every dimension, by the caller.
            let step = unsafe { *distances.add(dimension) };
            distance += isize::try_from(step).unwrap_or(0) * isize::try_from(*at).unwrap_or(0);
        }
        visit(distance);
        if !advance(&mut at, |dimension| part.0[dimension].count) {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mapped_elements_are_within_memory_or_not() {
        let part = Subarray([Range::new(0, 3), Range::new(0, 4)].into());
        let within = |distances: [Offset; 2], elements| {
            // SAFETY: a distance for each of two dimensions.
            unsafe { are_within(&part, distances.as_ptr(), elements) }
        };
        assert!(within([4, 1], 12) && within([1, 3], 12));
        assert!(!within([4, 1], 11) && !within([8, 1], 12));
        assert!(!within([4, -1], 100) && !within([Offset::MAX, Offset::MAX], usize::MAX));
    }
}

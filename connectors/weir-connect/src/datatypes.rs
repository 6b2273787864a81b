//! Decodes a datatype by MPI_Type_get_envelope(3) and MPI_Type_get_contents(3), found at run time.

use core::ffi::{c_int, c_void};

use crate::mpi::{Count, Mpi, MpiHandle, SUCCESS};
use crate::symbols::function;

type TypeEnvelope =
    unsafe extern "C" fn(MpiHandle, *mut c_int, *mut c_int, *mut c_int, *mut c_int) -> c_int;
type LargeTypeEnvelope = unsafe extern "C" fn(
    MpiHandle,
    *mut Count,
    *mut Count,
    *mut Count,
    *mut Count,
    *mut c_int,
) -> c_int;
type TypeContents = unsafe extern "C" fn(
    MpiHandle,
    c_int,
    c_int,
    c_int,
    *mut c_int,
    *mut isize,
    *mut c_void,
) -> c_int;

/// The number of a predefined datatype's combiner in MPICH's ABI (mpich.org/abi), `MPI_COMBINER_NAMED`. In Open MPI each number is lower
/// by one.
const NAMED: c_int = 1;

/// The datatypes that a derived one was made of.
#[derive(Debug)]
pub struct InnerDatatypes<'r> {
    /// The datatype arguments, valid as long as this.
    pub datatypes: Vec<MpiHandle>,
    /// `MPI_COMBINER_*` in MPICH's ABI: how they were put together.
    pub combiner: c_int,
    /// The integer arguments of that.
    pub integers: Vec<c_int>,
    reader: &'r DatatypeReader,
}

impl Drop for InnerDatatypes<'_> {
    fn drop(&mut self) {
        for datatype in &mut self.datatypes {
            // SAFETY: the handle is from MPI_Type_get_contents. That of a derived datatype is a new reference, which is ours to
            // free, once. A datatype without inner ones may be a predefined one (Fortran's, by precision), so it is not freed.
            unsafe {
                let lists = self.reader.lists(*datatype);
                if lists.is_some_and(|lists| lists.datatypes > 0) {
                    (self.reader.free)(&raw mut *datatype);
                }
            }
        }
    }
}

/// The lengths of the lists of arguments.
#[derive(Clone, Copy, Debug)]
struct ListLengths {
    integers: c_int,
    addresses: c_int,
    datatypes: c_int,
    combiner: c_int,
}

/// The functions of MPI that decode a datatype.
#[derive(Clone, Copy, Debug)]
pub struct DatatypeReader {
    envelope: TypeEnvelope,
    /// MPI 4.0. An MPI without it has no datatypes that `envelope` refuses.
    large_envelope: Option<LargeTypeEnvelope>,
    contents: TypeContents,
    free: unsafe extern "C" fn(*mut MpiHandle) -> c_int,
    is_openmpi: bool,
}

impl DatatypeReader {
    /// Finds the functions. `None`: this MPI lacks one.
    pub fn find(mpi: &Mpi) -> Option<DatatypeReader> {
        // SAFETY: the types are those of MPI's functions of these names.
        unsafe {
            Some(DatatypeReader {
                envelope: function(c"PMPI_Type_get_envelope")?,
                large_envelope: function(c"PMPI_Type_get_envelope_c"),
                contents: function(c"PMPI_Type_get_contents")?,
                free: function(c"PMPI_Type_free")?,
                is_openmpi: mpi.is_openmpi,
            })
        }
    }

    /// The datatypes within a datatype. `None`: it is predefined, MPI does not know it, or it was made with large counts (MPI 4.0).
    ///
    /// # Safety
    ///
    /// A valid datatype.
    pub unsafe fn read(&self, datatype: MpiHandle) -> Option<InnerDatatypes<'_>> {
        // SAFETY: the datatype is valid, by the caller.
        let lists = unsafe { self.lists(datatype) }.filter(|lists| lists.combiner != NAMED)?;
        let room = |count: c_int| usize::try_from(count).unwrap_or(0);
        let mut integers = vec![0 as c_int; room(lists.integers)];
        let mut addresses = vec![0_isize; room(lists.addresses)];
        // A handle is a word (Open MPI), or half a word (MPICH).
        let mut handles = vec![0 as MpiHandle; room(lists.datatypes)];
        // SAFETY: the datatype is valid and derived, and each list has the length that MPI named for it.
        let code = unsafe {
            (self.contents)(
                datatype,
                lists.integers,
                lists.addresses,
                lists.datatypes,
                integers.as_mut_ptr(),
                addresses.as_mut_ptr(),
                handles.as_mut_ptr().cast(),
            )
        };
        if code != SUCCESS {
            return None;
        }
        if !self.is_openmpi {
            handles = halves_of(&handles);
        }
        Some(InnerDatatypes {
            datatypes: handles,
            combiner: lists.combiner,
            integers,
            reader: self,
        })
    }

    /// True for a predefined datatype.
    ///
    /// # Safety
    ///
    /// A valid datatype.
    pub unsafe fn is_named(&self, datatype: MpiHandle) -> bool {
        // SAFETY: the datatype is valid, by the caller.
        let lists = unsafe { self.lists(datatype) };
        lists.is_some_and(|lists| lists.combiner == NAMED)
    }

    /// The lengths of a datatype's lists. `None`: MPI does not know it, or it was made with large counts.
    ///
    /// # Safety
    ///
    /// A valid datatype.
    unsafe fn lists(&self, datatype: MpiHandle) -> Option<ListLengths> {
        let (mut integers, mut addresses, mut datatypes, mut number) = (0, 0, 0, 0);
        if let Some(envelope) = self.large_envelope {
            let mut counts = [0; 4];
            let [integers, addresses, large, datatypes] = &mut counts;
            // SAFETY: the datatype is valid, by the caller; there is room for five numbers.
            let code = unsafe {
                envelope(
                    datatype,
                    integers,
                    addresses,
                    large,
                    datatypes,
                    &raw mut number,
                )
            };
            // If asked for the contents of a datatype with large counts, MPI's error handler would end the program.
            if code != SUCCESS || counts[2] != 0 {
                return None;
            }
        }
        // SAFETY: the datatype is valid, by the caller; there is room for four numbers.
        let code = unsafe {
            (self.envelope)(
                datatype,
                &raw mut integers,
                &raw mut addresses,
                &raw mut datatypes,
                &raw mut number,
            )
        };
        (code == SUCCESS).then_some(ListLengths {
            integers,
            addresses,
            datatypes,
            combiner: number + c_int::from(self.is_openmpi),
        })
    }
}

/// Unpacks handles of half a word, which MPI has put into the first half of a list of words.
fn halves_of(words: &[MpiHandle]) -> Vec<MpiHandle> {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    let halves = bytes.chunks_exact(4).take(words.len());
    let whole = |half: &[u8]| u32::from_ne_bytes(half.try_into().expect("four bytes"));
    halves.map(|half| whole(half) as MpiHandle).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_of_half_a_word_are_told_apart() {
        let mut words = [0_usize; 3];
        // SAFETY: three numbers of four bytes fit into three words.
        unsafe { words.as_mut_ptr().cast::<[u32; 3]>().write([7, 8, 9]) };
        assert_eq!(halves_of(&words), [7, 8, 9]);
        assert_eq!(halves_of(&[]), []);
    }
}

//! MPI's datatypes, as types of elements. A derived one counts as elements of its first predefined datatype, as in PnetCDF, which
//! permits no others in it.

use core::ffi::{c_int, c_void, CStr};

use weir_arrays::element::ElementType;
use weir_connect::datatypes::DatatypeReader;
use weir_connect::mpi::{Mpi, MpiHandle, Offset, SUCCESS};
use weir_connect::symbols::{find_symbol, function, Search};

/// A datatype: its handle in MPICH's ABI, the variable of Open MPI whose address is its handle, its type of elements.
type Datatype = (u32, &'static CStr, ElementType);

/// For each type of elements, the datatype that is passed to PnetCDF comes first.
const DATATYPES: [Datatype; 29] = [
    (0x4c00_0101, c"ompi_mpi_char", ElementType::Text),
    (0x4c00_0118, c"ompi_mpi_signed_char", ElementType::I8),
    (0x4c00_0102, c"ompi_mpi_unsigned_char", ElementType::U8),
    (0x4c00_0203, c"ompi_mpi_short", ElementType::I16),
    (0x4c00_0204, c"ompi_mpi_unsigned_short", ElementType::U16),
    (0x4c00_0405, c"ompi_mpi_int", ElementType::I32),
    (0x4c00_0406, c"ompi_mpi_unsigned", ElementType::U32),
    (0x4c00_040a, c"ompi_mpi_float", ElementType::F32),
    (0x4c00_080b, c"ompi_mpi_double", ElementType::F64),
    (0x4c00_0809, c"ompi_mpi_long_long_int", ElementType::I64),
    (
        0x4c00_0819,
        c"ompi_mpi_unsigned_long_long",
        ElementType::U64,
    ),
    (0x4c00_0807, c"ompi_mpi_long", ElementType::I64),
    (0x4c00_0808, c"ompi_mpi_unsigned_long", ElementType::U64),
    (0x4c00_0137, c"ompi_mpi_int8_t", ElementType::I8),
    (0x4c00_013b, c"ompi_mpi_uint8_t", ElementType::U8),
    (0x4c00_0238, c"ompi_mpi_int16_t", ElementType::I16),
    (0x4c00_023c, c"ompi_mpi_uint16_t", ElementType::U16),
    (0x4c00_0439, c"ompi_mpi_int32_t", ElementType::I32),
    (0x4c00_043d, c"ompi_mpi_uint32_t", ElementType::U32),
    (0x4c00_083a, c"ompi_mpi_int64_t", ElementType::I64),
    (0x4c00_083e, c"ompi_mpi_uint64_t", ElementType::U64),
    // Fortran's.
    (0x4c00_011a, c"ompi_mpi_character", ElementType::Text),
    (0x4c00_012d, c"ompi_mpi_integer1", ElementType::I8),
    (0x4c00_022f, c"ompi_mpi_integer2", ElementType::I16),
    (0x4c00_041b, c"ompi_mpi_integer", ElementType::I32),
    (0x4c00_0430, c"ompi_mpi_integer4", ElementType::I32),
    (0x4c00_0831, c"ompi_mpi_integer8", ElementType::I64),
    (0x4c00_041c, c"ompi_mpi_real", ElementType::F32),
    (0x4c00_081f, c"ompi_mpi_dblprec", ElementType::F64),
];

/// `MPI_DATATYPE_NULL` (in PnetCDF: the variable's own type).
const NULL: (u32, &CStr) = (0x0c00_0000, c"ompi_mpi_datatype_null");

/// The deepest nesting of derived datatypes that is looked through.
const MAX_DEPTH: usize = 32;

type PackElements = unsafe extern "C" fn(
    *const c_void,
    c_int,
    MpiHandle,
    *mut c_void,
    c_int,
    *mut c_int,
    MpiHandle,
) -> c_int;
type UnpackElements = unsafe extern "C" fn(
    *const c_void,
    c_int,
    *mut c_int,
    *mut c_void,
    c_int,
    MpiHandle,
    MpiHandle,
) -> c_int;

/// `MPI_COMM_SELF`.
const COMM_SELF: (u32, &CStr) = (0x4400_0001, c"ompi_mpi_comm_self");

/// The datatypes of the MPI of this process.
#[derive(Debug)]
pub struct Datatypes {
    known: Vec<(MpiHandle, ElementType)>,
    null: MpiHandle,
    comm_self: MpiHandle,
    reader: DatatypeReader,
    pack: PackElements,
    unpack: UnpackElements,
    /// True where a handle is an `int`: the upper half of a word may be anything.
    is_half: bool,
}

impl Datatypes {
    /// Finds the datatypes. `None`: this MPI lacks one, or a function.
    pub fn find(mpi: &Mpi) -> Option<Datatypes> {
        let handle = |mpich: u32, openmpi: &CStr| match mpi.is_openmpi {
            false => Some(mpich as MpiHandle),
            true => find_symbol(Search::All, openmpi).map(|at| at as MpiHandle),
        };
        let known = DATATYPES.iter();
        let known =
            known.map(|(mpich, openmpi, element)| Some((handle(*mpich, openmpi)?, *element)));
        // SAFETY: the types are those of MPI's functions of these names.
        unsafe {
            Some(Datatypes {
                known: known.collect::<Option<_>>()?,
                null: handle(NULL.0, NULL.1)?,
                comm_self: handle(COMM_SELF.0, COMM_SELF.1)?,
                reader: DatatypeReader::find(mpi)?,
                pack: function(c"PMPI_Pack")?,
                unpack: function(c"PMPI_Unpack")?,
                is_half: !mpi.is_openmpi,
            })
        }
    }

    fn whole(&self, handle: MpiHandle) -> MpiHandle {
        match self.is_half {
            true => handle & 0xffff_ffff,
            false => handle,
        }
    }

    /// The type of the elements of a predefined datatype; `None`: it is another one, such as a derived one.
    pub fn element(&self, datatype: MpiHandle) -> Option<ElementType> {
        let datatype = self.whole(datatype);
        let mut known = self.known.iter();
        known
            .find(|(known, _)| *known == datatype)
            .map(|(_, element)| *element)
    }

    /// True for `MPI_DATATYPE_NULL`.
    pub fn is_null(&self, datatype: MpiHandle) -> bool {
        self.whole(datatype) == self.null
    }

    /// The datatype of elements.
    pub fn handle(&self, element: ElementType) -> MpiHandle {
        let mut known = self.known.iter();
        known
            .find(|(_, known)| *known == element)
            .expect("all types are listed")
            .0
    }

    /// The type of the elements of a datatype, which may be a derived one; `None`: PnetCDF knows no such elements.
    ///
    /// # Safety
    ///
    /// A valid datatype.
    pub unsafe fn elements_of(&self, datatype: MpiHandle) -> Option<ElementType> {
        // SAFETY: the datatype is valid, by the caller.
        unsafe { self.first_element(datatype, 0) }
    }

    /// # Safety
    ///
    /// A valid datatype.
    unsafe fn first_element(&self, datatype: MpiHandle, depth: usize) -> Option<ElementType> {
        if let Some(element) = self.element(datatype) {
            return Some(element);
        }
        if depth == MAX_DEPTH {
            return None;
        }
        // SAFETY: the datatype is valid, by the caller, and so is one that it was made of, as long as this is.
        unsafe {
            let made = self.reader.read(datatype)?;
            self.first_element(*made.datatypes.first()?, depth + 1)
        }
    }

    /// Packs the elements of `count` datatypes in memory, one after the other, to `bytes` bytes. `None`: they have another size, or
    /// MPI failed.
    ///
    /// # Safety
    ///
    /// A valid datatype, and memory with `count` of it.
    pub unsafe fn packed(
        &self,
        memory: *const c_void,
        count: Offset,
        datatype: MpiHandle,
        bytes: usize,
    ) -> Option<Vec<u8>> {
        let mut packed = vec![0_u8; bytes];
        let (count, room) = (c_int::try_from(count).ok()?, c_int::try_from(bytes).ok()?);
        let mut end = 0;
        // SAFETY: the datatype is valid, and the memory has `count` of it, by the caller; MPI checks the room for the elements.
        let code = unsafe {
            (self.pack)(
                memory,
                count,
                datatype,
                packed.as_mut_ptr().cast(),
                room,
                &raw mut end,
                self.comm_self,
            )
        };
        (code == SUCCESS && end == room).then_some(packed)
    }

    /// The opposite of [`Datatypes::packed`]. False: MPI failed.
    ///
    /// # Safety
    ///
    /// As there.
    pub unsafe fn unpack(
        &self,
        elements: &[u8],
        memory: *mut c_void,
        count: Offset,
        datatype: MpiHandle,
    ) -> bool {
        let (Ok(count), Ok(bytes)) = (c_int::try_from(count), c_int::try_from(elements.len()))
        else {
            return false;
        };
        let mut end = 0;
        // SAFETY: the datatype is valid, and the memory has room for `count` of it, by the caller;
        // MPI reads `bytes` at most.
        let code = unsafe {
            (self.unpack)(
                elements.as_ptr().cast(),
                bytes,
                &raw mut end,
                memory,
                count,
                datatype,
                self.comm_self,
            )
        };
        code == SUCCESS
    }
}

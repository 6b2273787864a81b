//! Arrays of netCDF's classic formats, as far as a log of their writes needs them. Pure: no I/O, clock, thread or unsafe.
//!
//! The PnetCDF connector (`weir-pnetcdf`) writes such logs, and reads what is in them; `weir log` reads them without PnetCDF.
//!
//! | file | subject |
//! | --- | --- |
//! | `element` | the types of elements, and conversions between them |
//! | `subarray` | a rectangular part of a variable, with strides, and what two have in common |
//! | `definitions` | the variables of a file: shapes, types, places |
//! | `header` | the header of a file |
//! | `log` | the records of a log |
//! | `batch` | entries of a log that may be moved into the file in any order |
//!
//! The sources are "NetCDF Classic Format Specification" (Unidata; CDF-1, CDF-2, CDF-5) and Hou et al., "Integration of Burst
//! Buffer in High-level Parallel I/O Library for Exa-scale Computing Era" (PDSW-DISCS 2018).

#![forbid(unsafe_code)]

pub mod batch;
pub mod definitions;
pub mod element;
pub mod header;
pub mod log;
pub mod subarray;
pub mod waves;

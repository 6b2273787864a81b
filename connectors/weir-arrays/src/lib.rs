//! Arrays of netCDF's classic formats, to the extent that a log of their writes needs. Pure: no I/O, clock, thread or unsafe.
//!
//! The PnetCDF connector (`weir-pnetcdf`) writes and reads such logs; `weir log` reads them without PnetCDF.
//!
//! | file | subject |
//! | --- | --- |
//! | `element` | the types of elements, and conversions between them |
//! | `subarray` | a rectangular part of a variable, with strides, and the intersection of two |
//! | `definitions` | the variables of a file: shapes, types, offsets |
//! | `header` | the header of a file |
//! | `log` | the records of a log |
//! | `batch` | entries of a log that may be moved into the file in any order |
//! | `waves` | the order of puts of several processes |
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

//! The names that the connectors of MPI-IO and PnetCDF wrap. `tests/real/shell/first_call.sh` compares them with the functions
//! that these libraries define.

use super::wrapped;

// MPI's functions in C.
wrapped! { Mpi:
    "MPI_File_open"
    "MPI_File_close"
    "MPI_File_set_atomicity"
    "MPI_File_set_view"
    "MPI_File_set_info"
    "MPI_File_write_all"
    "MPI_File_write_at_all"
    "MPI_File_read_all"
    "MPI_File_read_at_all"
    "MPI_File_write_all_c"
    "MPI_File_write_at_all_c"
    "MPI_File_read_all_c"
    "MPI_File_read_at_all_c"
}

// MPI's functions in Fortran.
wrapped! { FortranMpi:
    "mpi_file_open_"
    "mpi_file_close_"
    "mpi_file_set_atomicity_"
    "mpi_file_set_view_"
    "mpi_file_set_info_"
    "mpi_file_write_all_"
    "mpi_file_write_at_all_"
    "mpi_file_read_all_"
    "mpi_file_read_at_all_"
    "ompi_file_open_f"
    "ompi_file_close_f"
    "ompi_file_set_atomicity_f"
    "ompi_file_set_view_f"
    "ompi_file_set_info_f"
    "ompi_file_write_all_f"
    "ompi_file_write_at_all_f"
    "ompi_file_read_all_f"
    "ompi_file_read_at_all_f"
    "mpi_file_open_f08_"
    "mpi_file_close_f08_"
    "mpi_file_set_atomicity_f08_"
    "mpi_file_set_view_f08_"
    "mpi_file_set_info_f08_"
}

// The MPI-IO connector's own function, which that of HDF5 calls.
wrapped! { Own: "weir_mpiio_begin_collective" }

// PnetCDF's functions on files, modes and requests.
wrapped! { PnetCdf:
    "ncmpi_create"
    "ncmpi_open"
    "ncmpi_enddef"
    "ncmpi__enddef"
    "ncmpi_redef"
    "ncmpi_begin_indep_data"
    "ncmpi_end_indep_data"
    "ncmpi_sync"
    "ncmpi_flush"
    "ncmpi_sync_numrecs"
    "ncmpi_fill_var_rec"
    "ncmpi_close"
    "ncmpi_abort"
    "ncmpi_wait"
    "ncmpi_wait_all"
    "ncmpi_cancel"
    "ncmpi_buffer_attach"
    "ncmpi_buffer_detach"
    "ncmpi_inq_buffer_usage"
    "ncmpi_inq_put_size"
    "ncmpi_inq_nreqs"
    "ncmpi_inq_dimlen"
    "ncmpi_inq_dim"
    "ncmpi_put_vard"
    "ncmpi_put_vard_all"
    "ncmpi_get_vard"
    "ncmpi_get_vard_all"
}

/// PnetCDF's functions on parts of a variable, or of several: a beginning with each part, each type of memory, and each end.
macro_rules! on_parts {
    ($ends:tt $verb:literal: $($part:literal)*) => {
        $(on_parts!(@types $ends concat!("ncmpi_", $verb, "_var", $part));)*
    };
    (@types $ends:tt $name:expr) => {
        on_parts!(@type $ends $name; "" "_text" "_schar" "_uchar" "_short" "_ushort" "_int" "_uint" "_long" "_float" "_double"
            "_longlong" "_ulonglong");
    };
    (@type $ends:tt $name:expr; $($memory:literal)*) => {
        $(on_parts!(@end $ends concat!($name, $memory));)*
    };
    (@end ($($end:literal)*) $name:expr) => {
        wrapped! { PnetCdf: $(concat!($name, $end))* }
    };
}

on_parts! { ("" "_all") "put": "" "1" "a" "s" "m" "n" }
on_parts! { ("" "_all") "get": "" "1" "a" "s" "m" "n" }
on_parts! { ("" "_all") "mput": "" "1" "a" "s" "m" }
on_parts! { ("" "_all") "mget": "" "1" "a" "s" "m" }
on_parts! { ("") "iput": "" "1" "a" "s" "m" "n" }
on_parts! { ("") "bput": "" "1" "a" "s" "m" "n" }

//! Real programs, unmodified, on weir: one test for each line of the lists of programs and guarantees.
//!
//! `WEIR_TEST_TARGET=/dev/shm/x cargo test -p weir-tests --test real` runs the same on a
//! directory; see the crate's documentation.

use std::ffi::OsString;

use anyhow::Context;
use libtest_mimic::{Arguments, Trial};
use weir_cluster::skip::Lack;
use weir_tests::build::{self, Compiler};
use weir_tests::launch::{check_file, run, Job, Options, Target, TestedDirectory};
use weir_tests::mount::{why_none, KernelMount};
use weir_tests::needs::{self, Need};
use weir_tests::trials;

/// The subject of a check.
#[derive(Clone, Copy)]
enum What {
    /// A compiled program.
    Program(&'static str, Compiler),
    /// A bash script.
    Shell(&'static str),
    /// A Python program.
    Python(&'static str),
    /// A bash script that starts MPI programs: the script and the MPI.
    Mpi(&'static str, &'static str),
}

/// A tool of `tools/` that gets what no package has, and its argument.
type Fetched = (&'static str, &'static str);

struct Check {
    name: &'static str,
    what: What,
    /// The compiled programs that a script starts.
    programs: &'static [(&'static str, Compiler)],
    /// The arguments after the directory.
    arguments: &'static [&'static str],
    needs: &'static [Need],
    /// Tools that fetch something no package has; where it cannot be had, the check is skipped, and fails in CI.
    fetched: &'static [Fetched],
    /// The options of `weir run`.
    weir_options: Options,
    /// The kernel mount that it requires; ignored on a directory.
    mount: KernelMount,
    place: TestedDirectory,
    /// A package that no Debian package has: a script in `tools/` that prints its directory if it is installed.
    tool: Option<&'static str>,
}

impl Check {
    const fn compiled(self, programs: &'static [(&'static str, Compiler)]) -> Check {
        Check { programs, ..self }
    }

    const fn with(self, arguments: &'static [&'static str]) -> Check {
        Check { arguments, ..self }
    }

    const fn fetching(self, fetched: &'static [Fetched]) -> Check {
        Check { fetched, ..self }
    }

    const fn on(self, weir_options: Options) -> Check {
        Check {
            weir_options,
            ..self
        }
    }

    const fn elevated(self) -> Check {
        Check {
            place: TestedDirectory::Elevated,
            ..self
        }
    }

    /// In an elevated directory that the kernel has, too.
    const fn beside_mirror(self) -> Check {
        Check {
            place: TestedDirectory::ElevatedAndMirrored,
            mount: KernelMount::Needed,
            ..self
        }
    }

    /// In an elevated directory, without the client.
    const fn mirrored(self) -> Check {
        Check {
            place: TestedDirectory::Mirrored,
            mount: KernelMount::Needed,
            ..self
        }
    }

    const fn tooled(self, tool: &'static str) -> Check {
        Check {
            tool: Some(tool),
            ..self
        }
    }

    const fn mounted(self, mount: KernelMount) -> Check {
        Check { mount, ..self }
    }
}

/// Small enough for several instances at once.
const USUAL: Options = Options {
    memory_mib: 1024,
    file_mib: None,
    more: &["--set", "memory.warm=256M"],
};
/// Data spills to the file tier after 64 MiB.
const SPILLING: Options = Options {
    memory_mib: 64,
    file_mib: Some(4096),
    more: &[],
};
/// Both tiers together hold 256 MiB.
const TINY: Options = Options {
    memory_mib: 128,
    file_mib: Some(128),
    more: &[],
};
/// The same, for each of four servers.
const TINY_FOUR: Options = Options {
    memory_mib: 64,
    file_mib: Some(64),
    more: &["--servers", "4"],
};
/// Four servers on this machine.
const FOUR: Options = Options {
    memory_mib: 256,
    file_mib: None,
    more: &["--servers", "4", "--set", "memory.warm=256M"],
};
/// With all connectors.
const CONNECTED: Options = Options {
    memory_mib: 1024,
    file_mib: None,
    more: &["--set", "memory.warm=256M", "--connectors", "all"],
};
/// The same as FOUR, with all connectors; a node's writes are visible on others once they are synchronised.
const FOUR_RAS: Options = Options {
    memory_mib: 256,
    file_mib: None,
    more: &[
        "--servers",
        "4",
        "--set",
        "memory.warm=256M",
        "--set",
        "visibility.default=ras",
        "--connectors",
        "all",
    ],
};
/// The same as FOUR, over libfabric.
const FOUR_LIBFABRIC: Options = Options {
    memory_mib: 256,
    file_mib: None,
    more: &[
        "--servers",
        "4",
        "--set",
        "memory.warm=256M",
        "--set",
        "fabric.transport=libfabric",
        "--set",
        "fabric.provider=tcp;ofi_rxm",
    ],
};
/// The time limit of a test, unless `WEIR_TEST_LIMIT_S` sets another one, in seconds.
const LIMIT_S: u64 = 300;

const fn check(name: &'static str, what: What, needs: &'static [Need]) -> Check {
    Check {
        name,
        what,
        programs: &[],
        arguments: &[],
        needs,
        fetched: &[],
        weir_options: USUAL,
        mount: KernelMount::Either,
        place: TestedDirectory::Prefix,
        tool: None,
    }
}

const C: &[Need] = &[needs::CC];
const SHELL: &[Need] = &[needs::TAR, needs::XZ, needs::RSYNC, needs::PATCH];
const XATTR: &[Need] = &[needs::SETFATTR, needs::TAR, needs::RSYNC, needs::PYTHON];
const STAGE: &[Need] = &[needs::GIT, needs::SETFATTR, needs::PYTHON];
const PROGRAMS: &[Need] = &[
    needs::CC,
    needs::CMAKE,
    needs::MAKE,
    needs::AUTOCONF,
    needs::GIT,
    needs::ZIP,
    needs::UNZIP,
    needs::BUSYBOX,
    needs::SQLITE,
    needs::NODE,
    needs::PYTHON,
    needs::VIM,
];
const MPICH: &[Need] = &[needs::MPICH_RUN, needs::MPICH_CC];
const OPENMPI: &[Need] = &[needs::OPENMPI_RUN, needs::OPENMPI_CC];
const MPI_FORTRAN: &[Need] = &[
    needs::GFORTRAN,
    needs::MPICH_RUN,
    needs::MPICH_CC,
    needs::OPENMPI_RUN,
    needs::OPENMPI_CC,
];
const HDF5_BUILT: &[Need] = &[
    needs::MPICH_RUN,
    needs::MPICH_CC,
    needs::CMAKE,
    needs::MAKE,
    needs::HDF5_MPICH,
    needs::HDF5_TOOLS,
];
const PNETCDF_BUILT: &[Need] = &[
    needs::MPICH_RUN,
    needs::MPICH_CC,
    needs::AUTOCONF,
    needs::AUTOMAKE,
    needs::LIBTOOL,
    needs::MAKE,
    needs::XZ,
    needs::NETCDF_TOOLS,
];
const HDF5_WHEELS: &[Need] = &[needs::PYTHON, needs::PIP, needs::NUMPY, needs::HDF5_TOOLS];
const FIRST_CALL: &[Need] = &[needs::CC, needs::MPICH_RUN, needs::MPICH_CC];
const HDF5_CONNECTOR: &str = "mpi/hdf5_connector.c";
const MPIIO: &str = "mpi/mpiio.c";
const CONNECTOR: &str = "mpi/connector.c";
const ORDER: &str = "mpi/order_mpi.c";
/// The examples of the C API, which users read.
const TRANSFER: &str = "../../crates/weir-capi/examples/transfer.c";
const DRAIN: &str = "../../crates/weir-capi/examples/drain.c";
const PREFETCH: &str = "../../crates/weir-capi/examples/prefetch.c";
/// The benchmark of PnetCDF's writes.
const PNETCDF_PUTS: &str = "../../crates/weir-bench/programs/puts.c";
const PHDF5: &str = "mpi/phdf5.c";

const fn program(
    name: &'static str,
    source: &'static str,
    compiler: Compiler,
    needs: &'static [Need],
) -> Check {
    check(name, What::Program(source, compiler), needs)
}

const fn c(name: &'static str, source: &'static str) -> Check {
    program(name, source, Compiler::C, C)
}

const fn python(name: &'static str, script: &'static str, needs: &'static [Need]) -> Check {
    check(name, What::Python(script), needs)
}

const fn shell(name: &'static str, script: &'static str, needs: &'static [Need]) -> Check {
    check(name, What::Shell(script), needs)
}

const fn mpi(
    name: &'static str,
    started: &'static str,
    mpi: &'static str,
    needs: &'static [Need],
) -> Check {
    check(name, What::Mpi(started, mpi), needs)
}

/// The programs that must work unmodified, and the guarantees that must hold.
#[rustfmt::skip] // A table reads best as one.
const CHECKS: &[Check] = &[
    // bash, coreutils, tar
    shell("shell::bash_redirections_appends_here_documents_subshells_cd", "shell/bash_files.sh", SHELL),
    shell("shell::coreutils_cp_mv_ls_find_du_sort_dd_stat_touch_truncate_rm", "shell/coreutils.sh", SHELL),
    shell("shell::tar", "shell/tar.sh", SHELL),
    shell("shell::programs_do_here_what_they_do_elsewhere", "shell/programs.sh", PROGRAMS),
    // Python
    python("python::open_scandir_walk_rename_shutil_pickle", "python/files.py", &[needs::PYTHON]),
    python("python::subprocess_redirected_and_inherited_files", "python/processes.py", &[needs::PYTHON]),
    python("python::numpy_tofile_fromfile", "python/arrays.py", &[needs::PYTHON, needs::NUMPY]),
    python("python::h5py_and_h5dump", "python/hdf5.py", &[needs::PYTHON, needs::H5PY, needs::HDF5_TOOLS]),
    python("python::netcdf4_and_ncdump_nccopy_ncvalidator",
        "python/netcdf.py", &[needs::PYTHON, needs::NETCDF4, needs::NETCDF_TOOLS, needs::PNETCDF_TOOLS]),
    shell("python::adios2_bp4_bp5", "shell/adios2.sh", &[needs::PYTHON, needs::NUMPY]).tooled("adios2"),
    // Languages
    c("c::stdio_in_full", "c/stdio_full.c"),
    c("c::stdio_wide", "c/stdio_wide.c"),
    program("cxx::streams_and_filesystem", "cxx/streams.cpp", Compiler::Cxx, &[needs::CXX]),
    program("fortran::formatted_unformatted_direct_stream",
        "fortran/fortran_io.f90", Compiler::Fortran, &[needs::GFORTRAN]),
    // The namespace, descriptors, errors
    c("names::create_mkdir_rename_link_symlink_unlink_chmod_times", "c/namespace.c"),
    c("names::what_is_replaced_is_always_found", "c/replaced.c"),
    c("names::readdir_of_100000_while_others_create_and_remove", "c/readdir_many.c"),
    c("names::errno_of_what_must_fail", "c/errnos.c"),
    c("names::a_create_that_fails_leaves_no_file", "c/nofiles.c"),
    c("xattr::set_get_list_remove_limits_and_permissions", "c/xattr.c"),
    shell("xattr::setfattr_cp_mv_rsync_tar_python", "shell/xattr.sh", XATTR),
    c("xattr::of_several_servers", "c/xattr.c").on(FOUR),
    shell("xattr::setfattr_cp_mv_rsync_tar_python_of_several_servers", "shell/xattr.sh", XATTR).on(FOUR),
    shell("stage::what_programs_made_comes_out_and_goes_in_again", "shell/stage.sh", STAGE),
    shell("stage::of_several_servers", "shell/stage.sh", STAGE).on(FOUR),
    shell("drain::programs_and_killed_checkpoint_loops", "shell/drain.sh", STAGE),
    shell("drain::what_was_taken_back_before_data_was_written", "shell/taken_back.sh", &[needs::PYTHON]),
    // Elevated directories
    shell("elevate::random_operations_links_and_killed_checkpoint_loops", "shell/elevate.sh", STAGE),
    shell("elevate::files_larger_than_the_instance", "shell/larger.sh", STAGE),
    shell("elevate::as_in_a_plain_directory", "shell/elevate_plain.sh", &[needs::PYTHON]),
    shell("elevate::rules", "shell/elevate_rules.sh", &[needs::PYTHON]),
    shell("elevate::analysis_in_transit", "shell/analyze.sh", &[needs::PYTHON, needs::H5PY]),
    shell("elevate::bash", "shell/bash_files.sh", SHELL).elevated(),
    shell("elevate::coreutils", "shell/coreutils.sh", SHELL).elevated(),
    shell("elevate::coreutils_with_several_servers", "shell/coreutils.sh", SHELL).on(FOUR).elevated(),
    shell("elevate::tar", "shell/tar.sh", SHELL).elevated(),
    shell("elevate::git_cmake_sqlite_vim_and_others", "shell/programs.sh", PROGRAMS).elevated(),
    shell("elevate::xattr", "shell/xattr.sh", XATTR).elevated(),
    python("elevate::python_files", "python/files.py", &[needs::PYTHON]).elevated(),
    python("elevate::inherited_files", "python/processes.py", &[needs::PYTHON]).elevated(),
    c("elevate::vectors_truncate_sparse_append", "c/posix_io.c").elevated(),
    c("elevate::glob_wordexp_fts_ftw_scandir", "c/walks.c").elevated(),
    c("elevate::files_without_a_name", "c/tmpfile.c").elevated(),
    c("elevate::mappings", "c/mapped.c").mounted(KernelMount::Needed).elevated(),
    c("elevate::inherited_descriptors", "c/heritage.c").elevated(),
    mpi("elevate::mpiio_mpich", "mpiio", "mpich", MPICH).compiled(&[(MPIIO, Compiler::Mpich)]).elevated(),
    mpi("elevate::parallel_hdf5_openmpi",
        "phdf5", "openmpi", &[needs::OPENMPI_RUN, needs::HDF5_OPENMPI, needs::HDF5_TOOLS])
        .compiled(&[(PHDF5, Compiler::Hdf5OpenMpi)]).elevated(),
    mpi("elevate::pnetcdf",
        "pnetcdf_io", "openmpi",
        &[needs::OPENMPI_RUN, needs::OPENMPI_CC, needs::PNETCDF, needs::PNETCDF_TOOLS, needs::NETCDF_TOOLS])
        .compiled(&[("mpi/pnetcdf_io.c", Compiler::Pnetcdf)]).elevated(),
    // The same by the kernel, without the client
    shell("mirror::as_in_a_plain_directory", "shell/elevate_plain.sh", &[needs::PYTHON])
        .with(&["mirror"]).mounted(KernelMount::Needed),
    shell("mirror::random_operations", "shell/elevate_rules.sh", &[needs::PYTHON])
        .with(&["mirror"]).mounted(KernelMount::Needed),
    shell("mirror::static_programs_beside_injected_ones", "shell/mounted.sh", &[needs::CC, needs::PYTHON]).beside_mirror(),
    shell("mirror::static_programs_beside_injected_ones_on_several_servers",
        "shell/mounted.sh", &[needs::CC, needs::PYTHON]).on(FOUR).beside_mirror(),
    shell("mirror::bash", "shell/bash_files.sh", SHELL).mirrored(),
    shell("mirror::coreutils", "shell/coreutils.sh", SHELL).mirrored(),
    shell("mirror::git_cmake_sqlite_vim_and_others", "shell/programs.sh", PROGRAMS).mirrored(),
    python("mirror::python_files", "python/files.py", &[needs::PYTHON]).mirrored(),
    c("mirror::vectors_truncate_sparse_append", "c/posix_io.c").mirrored(),
    c("mirror::glob_wordexp_fts_ftw_scandir", "c/walks.c").mirrored(),
    c("mirror::errno_of_what_must_fail", "c/errnos.c").mirrored(),
    c("mirror::what_is_replaced_is_always_found", "c/replaced.c").mirrored(),
    c("libc::glob_wordexp_fts_ftw_scandir_as_libc_walks", "c/walks.c"),
    c("libc::what_libc_looks_at_from_inside_and_links_of_proc", "c/insides.c"),
    c("names::files_without_a_name", "c/tmpfile.c"),
    c("names::files_without_a_name_on_several_servers", "c/tmpfile.c").on(FOUR),
    python("names::fifos_and_unix_sockets", "python/special.py", &[needs::PYTHON]),
    python("names::fifos_and_unix_sockets_of_several_servers", "python/special.py", &[needs::PYTHON]).on(FOUR),
    shell("users::programs_that_become_another_user", "shell/users.sh", &[needs::PYTHON, needs::UNSHARE]),
    shell("users::programs_that_become_another_user_on_several_servers",
        "shell/users.sh", &[needs::PYTHON, needs::UNSHARE]).on(FOUR),
    shell("names::refusals_are_those_of_tmpfs", "shell/refusals.sh", C).compiled(&[("c/refusals.c", Compiler::C)]),
    shell("names::refusals_are_those_of_tmpfs_on_several_servers",
        "shell/refusals.sh", C).compiled(&[("c/refusals.c", Compiler::C)]).on(FOUR),
    c("attr::what_clears_set_id_bits", "c/setid.c"),
    c("io::the_limit_of_a_files_size", "c/fsize.c"),
    c("attr::what_clears_set_id_bits_on_several_servers", "c/setid.c").on(FOUR),
    c("io::the_limit_of_a_files_size_on_several_servers", "c/fsize.c").on(FOUR),
    c("io::vectors_truncate_sparse_append", "c/posix_io.c"),
    c("io::aio_and_lio_listio", "c/aio.c"),
    c("io::descriptors_by_sendmmsg_and_rings", "c/passed.c"),
    c("processes::dup_fork_exec_inheritance_and_appends", "c/processes.c"),
    c("processes::inherited_descriptors_whoever_begins_the_program", "c/heritage.c"),
    c("processes::all_that_starts_programs_whatever_the_environment", "c/starting.c"),
    c("processes::posix_spawn_exec_and_scripts_in_full", "c/spawns.c"),
    shell("processes::shared_libraries_by_path_name_and_need", "shell/libraries.sh", &[needs::CC, needs::PYTHON]),
    // MPI-IO, parallel HDF5, PnetCDF, parallel NetCDF-4
    mpi("mpi::mpiio_mpich", "mpiio", "mpich", MPICH).compiled(&[(MPIIO, Compiler::Mpich)]),
    mpi("mpi::mpiio_openmpi", "mpiio", "openmpi", OPENMPI).compiled(&[(MPIIO, Compiler::OpenMpi)]),
    mpi("mpi::mpiio_openmpi_romio", "mpiio", "openmpi-romio", OPENMPI).compiled(&[(MPIIO, Compiler::OpenMpi)]),
    mpi("mpi::connector_mpich", "connector", "mpich", MPICH).compiled(&[(CONNECTOR, Compiler::Mpich)]),
    mpi("mpi::connector_openmpi", "connector", "openmpi", OPENMPI).compiled(&[(CONNECTOR, Compiler::OpenMpi)]),
    mpi("mpi::connector_openmpi_romio", "connector", "openmpi-romio", OPENMPI).compiled(&[(CONNECTOR, Compiler::OpenMpi)]),
    shell("mpi::connectors_at_the_first_call", "shell/first_call.sh", FIRST_CALL),
    shell("mpi::fortran_by_three_bindings", "shell/mpi_fortran.sh", MPI_FORTRAN),
    mpi("mpi::parallel_hdf5_mpich_and_h5dump",
        "phdf5", "mpich", &[needs::MPICH_RUN, needs::HDF5_MPICH, needs::HDF5_TOOLS])
        .compiled(&[(PHDF5, Compiler::Hdf5Mpich)]),
    mpi("mpi::parallel_hdf5_openmpi_and_h5dump",
        "phdf5", "openmpi", &[needs::OPENMPI_RUN, needs::HDF5_OPENMPI, needs::HDF5_TOOLS])
        .compiled(&[(PHDF5, Compiler::Hdf5OpenMpi)]),
    // The HDF5 connector: HDF5 1.14, which is built; the HDF5s of h5py's wheels, 1.12.2, 1.14.6 and 2.0.0
    mpi("mpi::hdf5_connector_mpich", "hdf5_connector", "mpich", HDF5_BUILT)
        .compiled(&[(HDF5_CONNECTOR, Compiler::Hdf5Built)]).fetching(&[("build-hdf5", "mpich")]).on(CONNECTED),
    shell("python::hdf5_connector_and_wheels_of_h5py", "shell/hdf5_wheels.sh", HDF5_WHEELS)
        .fetching(&[("fetch-h5py", "3.8.0"), ("fetch-h5py", "3.14.0"), ("fetch-h5py", "3.16.0")]).on(CONNECTED),
    shell("several::hdf5_flushes_publish", "shell/hdf5_flush.sh", HDF5_WHEELS)
        .fetching(&[("fetch-h5py", "3.14.0")]).on(FOUR_RAS),
    mpi("mpi::h5py_with_mpi",
        "h5py_mpi.py", "openmpi", &[needs::OPENMPI_RUN, needs::H5PY_MPI, needs::MPI4PY, needs::HDF5_TOOLS]),
    mpi("mpi::pnetcdf_and_ncvalidator_ncdump_nccopy",
        "pnetcdf_io", "openmpi",
        &[needs::OPENMPI_RUN, needs::OPENMPI_CC, needs::PNETCDF, needs::PNETCDF_TOOLS, needs::NETCDF_TOOLS])
        .compiled(&[("mpi/pnetcdf_io.c", Compiler::Pnetcdf)]),
    shell("mpi::pnetcdf_with_a_log",
        "shell/pnetcdf.sh", &[needs::OPENMPI_RUN, needs::OPENMPI_CC, needs::PNETCDF, needs::NETCDF_TOOLS])
        .compiled(&[("mpi/pnetcdf_calls.c", Compiler::Pnetcdf), ("mpi/pnetcdf_log.c", Compiler::Pnetcdf), ("mpi/pnetcdf_answers.c", Compiler::Pnetcdf)]),
    shell("mpi::pnetcdf_kernels", "shell/pnetcdf_kernels.sh", &[needs::OPENMPI_RUN, needs::OPENMPI_CC, needs::PNETCDF])
        .compiled(&[(PNETCDF_PUTS, Compiler::Pnetcdf)]),
    shell("mpi::pnetcdf_with_a_log_mpich", "shell/pnetcdf.sh", PNETCDF_BUILT)
        .compiled(&[("mpi/pnetcdf_calls.c", Compiler::PnetcdfBuilt), ("mpi/pnetcdf_log.c", Compiler::PnetcdfBuilt), ("mpi/pnetcdf_answers.c", Compiler::PnetcdfBuilt)])
        .fetching(&[("build-pnetcdf", "mpich")]).with(&["mpich"]),
    shell("mpi::pnetcdf_kernels_mpich", "shell/pnetcdf_kernels.sh", PNETCDF_BUILT)
        .compiled(&[(PNETCDF_PUTS, Compiler::PnetcdfBuilt)])
        .fetching(&[("build-pnetcdf", "mpich")]).with(&["mpich"]),
    shell("mpi::connectors_benchmark",
        "shell/connectors_bench.sh", &[needs::PYTHON, needs::OPENMPI_RUN, needs::OPENMPI_CC, needs::PNETCDF]),
    mpi("mpi::parallel_netcdf4_and_ncdump_nccopy",
        "netcdf4_par", "openmpi",
        &[needs::OPENMPI_RUN, needs::OPENMPI_CC, needs::NETCDF_MPI, needs::NETCDF_TOOLS, needs::PNETCDF_TOOLS,
          needs::HDF5_TOOLS])
        .compiled(&[("mpi/netcdf4_par.c", Compiler::NetcdfMpi)]),
    shell("hotpath::reads_and_writes_ask_nothing_of_the_kernel",
        "shell/hotpath.sh", &[needs::CC, needs::STRACE]).compiled(&[("c/hotpath.c", Compiler::C)]),
    shell("sync::asks_the_server_once_the_file_tier_is_used", "shell/sync.sh", &[needs::PYTHON]),
    // What must hold
    c("order::overlapping_writes_ordered_by_pipe_and_shared_memory", "c/order.c"),
    mpi("order::overlapping_writes_ordered_by_mpi_barrier_mpich",
        "order_mpi", "mpich", MPICH).compiled(&[(ORDER, Compiler::Mpich)]),
    mpi("order::overlapping_writes_ordered_by_mpi_barrier_openmpi",
        "order_mpi", "openmpi", OPENMPI).compiled(&[(ORDER, Compiler::OpenMpi)]),
    c("order::a_read_sees_every_write_that_returned", "c/visible.c"),
    c("faults::sigkill_loses_no_finished_write", "c/kill.c"),
    c("faults::signal_handlers_use_files_too", "c/signals.c"),
    c("faults::a_bug_of_weir_fails_a_call", "c/bugs.c"),
    shell("faults::a_bug_of_a_connector_fails_a_call_of_mpi",
        "shell/connector_bugs.sh", &[needs::OPENMPI_RUN, needs::OPENMPI_CC, needs::PNETCDF])
        .compiled(&[("mpi/connector_bugs.c", Compiler::Pnetcdf)]),
    c("faults::threads_are_cancelled", "c/cancelled.c"),
    c("descriptors::what_is_closed_unseen_is_not_written_to", "c/closed.c"),
    shell("programs::that_the_interposer_is_not_in", "shell/uninjected.sh", C).mounted(KernelMount::Never),
    shell("programs::that_the_interposer_is_not_in_with_a_kernel_mount",
        "shell/uninjected.sh", C).mounted(KernelMount::Needed),
    c("mount::shared_and_private_mappings", "c/mapped.c").mounted(KernelMount::Needed),
    c("mount::shared_and_private_mappings_on_several_servers", "c/mapped.c").mounted(KernelMount::Needed).on(FOUR),
    python("mount::databases_that_map_their_files",
        "python/databases.py", &[needs::PYTHON, needs::NUMPY, needs::LMDB, needs::PLYVEL])
        .mounted(KernelMount::Needed),
    shell("mount::programs_that_the_interposer_is_not_in",
        "shell/mounted.sh", &[needs::CC, needs::PYTHON]).mounted(KernelMount::Needed),
    shell("mount::programs_that_the_interposer_is_not_in_on_several_servers",
        "shell/mounted.sh", &[needs::CC, needs::PYTHON]).mounted(KernelMount::Needed).on(FOUR),
    shell("mount::mappings_follow_what_other_nodes_sync",
        "shell/mapped_elsewhere.sh", &[needs::PYTHON]).mounted(KernelMount::Needed).on(FOUR),
    // Allocators, which call weir with their locks held
    c("allocators::no_wrapper_asks_the_program_for_memory", "c/allocator.c"),
    shell("allocators::jemalloc_mimalloc_tcmalloc_and_sanitizers",
        "shell/allocators.sh", &[needs::CC, needs::PYTHON, needs::JEMALLOC, needs::MIMALLOC, needs::TCMALLOC])
        .compiled(&[("c/allocator.c", Compiler::C)]),
    // The C API
    program("api::attach_laminate_sync_and_lists", "c/api.c", Compiler::Capi, C),
    shell("api::on_several_servers_by_dlopen_and_without_the_interposer",
        "shell/api.sh", &[needs::CC, needs::CXX])
        .compiled(&[("c/api.c", Compiler::Capi), ("cxx/api_dlopen.cpp", Compiler::CapiCxx)]).on(FOUR),
    shell("api::transfers", "shell/transfers.sh", C)
        .compiled(&[("c/transfers.c", Compiler::Capi), (TRANSFER, Compiler::Capi)]).on(FOUR),
    shell("api::drain_state_and_prefetch", "shell/middleware.sh", C)
        .compiled(&[("c/drains.c", Compiler::Capi), (DRAIN, Compiler::Capi), (PREFETCH, Compiler::Capi)]),
    shell("several::what_one_server_does_the_others_see", "shell/ranks.sh", &[needs::PYTHON]).on(FOUR),
    shell("several::what_a_program_at_another_server_left_is_gone_on_with",
        "shell/neighbours.sh", &[needs::PYTHON]).on(FOUR).mounted(KernelMount::Never),
    shell("several::large_scattered_and_listed_reads_of_what_others_hold",
        "shell/batches.sh", C).compiled(&[("c/batches.c", Compiler::C)]).on(FOUR),
    shell("several::what_one_server_does_the_others_see_over_libfabric",
        "shell/ranks_libfabric.sh", &[needs::PYTHON, needs::LIBFABRIC]).on(FOUR_LIBFABRIC),
    c("space::files_in_thousands_of_pieces", "c/fragments.c"),
    c("space::files_in_thousands_of_pieces_on_several", "c/fragments.c").on(FOUR),
    c("space::memory_budget_exceeded_unnoticed", "c/spill.c").with(&["512"]).on(SPILLING),
    c("space::what_is_overwritten_or_idle_makes_room", "c/overwrite.c").with(&["256"]).on(TINY),
    c("space::what_is_overwritten_or_idle_makes_room_on_several", "c/overwrite.c").with(&["128"]).on(TINY_FOUR),
    shell("space::a_tmpfs_that_others_fill_leads_to_the_file_tier",
        "shell/full_tmpfs.sh", &[needs::PYTHON, needs::UNSHARE]),
    shell("space::enospc_from_the_call_that_did_not_fit_and_deletes_make_room",
        "shell/nospace.sh", &[needs::CC, needs::UNSHARE]).compiled(&[("c/nospace.c", Compiler::C)]).on(TINY),
];

fn job(check: &Check) -> anyhow::Result<Job> {
    for (source, compiler) in check.programs {
        build::program(source, *compiler)?;
    }
    let mut command: Vec<OsString> = match check.what {
        What::Program(source, compiler) => vec![build::program(source, compiler)?.into()],
        What::Shell(script) => vec!["/bin/bash".into(), check_file(script).into()],
        What::Python(script) => vec!["/usr/bin/python3".into(), check_file(script).into()],
        What::Mpi(started, mpi) => vec![
            "/usr/bin/env".into(),
            format!("WEIR_TEST_MPI={mpi}").into(),
            "/bin/bash".into(),
            check_file("mpi/run.sh").into(),
            started.into(),
        ],
    };
    if let Some(tool) = check.tool {
        let directory = needs::directory_of_tool(tool).context("it was there")?;
        let mut variable = OsString::from(format!("WEIR_TEST_{}=", tool.to_uppercase()));
        variable.push(directory);
        command.splice(0..0, ["/usr/bin/env".into(), variable]);
    }
    Ok(Job {
        name: check.name.to_owned(),
        command,
        arguments: check
            .arguments
            .iter()
            .map(|&word| word.to_owned())
            .collect(),
        weir_options: check.weir_options,
        mount: check.mount,
        place: check.place,
        limit: trials::limit(LIMIT_S)?,
    })
}

fn trial(check: &'static Check, target: &Result<Target, String>) -> Trial {
    let is_directory = matches!(target, Ok(Target::Directory(_)));
    let needs_mount = check.mount.is_needed() && !is_directory;
    if let Some(why) = needs_mount.then(why_none).flatten() {
        let why = format!("no kernel mount: {why}");
        return trials::skipped(check.name, Lack::Kernel, &why);
    }
    let tool = check
        .tool
        .map(|tool| (tool, needs::directory_of_tool(tool)));
    if let Some((tool, None)) = tool {
        let why = format!("tools/{tool} --install installs it");
        return trials::skipped(check.name, Lack::Setup, &why);
    }
    trials::on_target(check.name, check.needs, target, |target| {
        for (tool, argument) in check.fetched {
            if let Err(error) = build::tool(tool, argument) {
                weir_cluster::skip(check.name, &format!("{error:#}"));
                return Ok(());
            }
        }
        run(&target, &job(check)?)
    })
}

fn main() {
    let mut arguments = Arguments::from_args();
    // Each test is several processes already.
    arguments.test_threads.get_or_insert(2);
    let target = trials::target(&arguments);
    let trials = CHECKS.iter().map(|check| trial(check, &target)).collect();
    libtest_mimic::run(&arguments, trials).exit();
}

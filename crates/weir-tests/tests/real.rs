//! Real programs, unmodified, on weir: one test for each line of the lists of programs and guarantees.
//!
//! `WEIR_TEST_TARGET=/dev/shm/x cargo test -p weir-tests --test real` runs the same on a
//! directory; see the crate's documentation.

use std::ffi::OsString;
use std::time::Duration;

use libtest_mimic::{Arguments, Failed, Trial};
use weir_tests::build::{program, Compiler};
use weir_tests::launch::{check_file, run, Job, Options, Target};
use weir_tests::mount::{why_none, KernelMount};
use weir_tests::needs::{self, missing, Need};

/// The subject of a check.
#[derive(Clone, Copy)]
enum What {
    /// A compiled program.
    Program(&'static str, Compiler),
    /// A bash script, and the compiled programs it starts.
    Shell(&'static str, &'static [(&'static str, Compiler)]),
    /// A Python program.
    Python(&'static str),
    /// A bash script that starts MPI programs: the script, the MPI and the programs it needs.
    Mpi(
        &'static str,
        &'static str,
        &'static [(&'static str, Compiler)],
    ),
}

struct Check {
    name: &'static str,
    what: What,
    /// The arguments after the directory.
    arguments: &'static [&'static str],
    needs: &'static [Need],
    /// The options of `weir run`, instead of [`USUAL`].
    weir_options: Option<Options>,
    /// The kernel mount that it requires; ignored on a directory.
    mount: KernelMount,
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
/// The same as FOUR, over libfabric.
const FOUR_LIBFABRIC: Options = Options {
    memory_mib: 256,
    file_mib: None,
    more: FOUR_LIBFABRIC_MORE,
};
const FOUR_LIBFABRIC_MORE: &[&str] = &[
    "--servers",
    "4",
    "--set",
    "memory.warm=256M",
    "--set",
    "fabric.transport=libfabric",
    "--set",
    "fabric.provider=tcp;ofi_rxm",
];
/// The time limit of a test, unless `WEIR_TEST_LIMIT_S` sets another one, in seconds.
const LIMIT_S: u64 = 300;

const fn check(name: &'static str, what: What, needs: &'static [Need]) -> Check {
    Check {
        name,
        what,
        arguments: &[],
        needs,
        weir_options: None,
        mount: KernelMount::Either,
    }
}

const C: &[Need] = &[needs::CC];
const SHELL: &[Need] = &[needs::TAR, needs::XZ, needs::RSYNC, needs::PATCH];
const XATTR: &[Need] = &[needs::SETFATTR, needs::TAR, needs::RSYNC, needs::PYTHON];
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
const MPIIO: &str = "mpi/mpiio.c";
const ORDER: &str = "mpi/order_mpi.c";
const PHDF5: &str = "mpi/phdf5.c";

const fn c(name: &'static str, source: &'static str) -> Check {
    check(name, What::Program(source, Compiler::C), C)
}

const fn python(name: &'static str, script: &'static str, needs: &'static [Need]) -> Check {
    check(name, What::Python(script), needs)
}

/// The same as `check`, for a check that uses the kernel mount.
const fn mounted(name: &'static str, what: What, needs: &'static [Need]) -> Check {
    Check {
        mount: KernelMount::Needed,
        ..check(name, what, needs)
    }
}

/// The programs that must work unmodified, and the guarantees that must hold.
const CHECKS: &[Check] = &[
    // bash, coreutils, tar
    check(
        "shell::bash_redirections_appends_here_documents_subshells_cd",
        What::Shell("shell/bash_files.sh", &[]),
        SHELL,
    ),
    check(
        "shell::coreutils_cp_mv_ls_find_du_sort_dd_stat_touch_truncate_rm",
        What::Shell("shell/coreutils.sh", &[]),
        SHELL,
    ),
    check("shell::tar", What::Shell("shell/tar.sh", &[]), SHELL),
    check(
        "shell::programs_do_here_what_they_do_elsewhere",
        What::Shell("shell/programs.sh", &[]),
        PROGRAMS,
    ),
    // Python
    python(
        "python::open_scandir_walk_rename_shutil_pickle",
        "python/files.py",
        &[needs::PYTHON],
    ),
    python(
        "python::subprocess_redirected_and_inherited_files",
        "python/processes.py",
        &[needs::PYTHON],
    ),
    python(
        "python::numpy_tofile_fromfile",
        "python/arrays.py",
        &[needs::PYTHON, needs::NUMPY],
    ),
    python(
        "python::h5py_and_h5dump",
        "python/hdf5.py",
        &[needs::PYTHON, needs::H5PY, needs::HDF5_TOOLS],
    ),
    python(
        "python::netcdf4_and_ncdump_nccopy_ncvalidator",
        "python/netcdf.py",
        &[
            needs::PYTHON,
            needs::NETCDF4,
            needs::NETCDF_TOOLS,
            needs::PNETCDF_TOOLS,
        ],
    ),
    // Languages
    c("c::stdio_in_full", "c/stdio_full.c"),
    c("c::stdio_wide", "c/stdio_wide.c"),
    check(
        "cxx::streams_and_filesystem",
        What::Program("cxx/streams.cpp", Compiler::Cxx),
        &[needs::CXX],
    ),
    check(
        "fortran::formatted_unformatted_direct_stream",
        What::Program("fortran/fortran_io.f90", Compiler::Fortran),
        &[needs::GFORTRAN],
    ),
    // The namespace, descriptors, errors
    c(
        "names::create_mkdir_rename_link_symlink_unlink_chmod_times",
        "c/namespace.c",
    ),
    c("names::what_is_replaced_is_always_found", "c/replaced.c"),
    c(
        "names::readdir_of_100000_while_others_create_and_remove",
        "c/readdir_many.c",
    ),
    c("names::errno_of_what_must_fail", "c/errnos.c"),
    c("names::a_create_that_fails_leaves_no_file", "c/nofiles.c"),
    c(
        "xattr::set_get_list_remove_limits_and_permissions",
        "c/xattr.c",
    ),
    check(
        "xattr::setfattr_cp_mv_rsync_tar_python",
        What::Shell("shell/xattr.sh", &[]),
        XATTR,
    ),
    Check {
        weir_options: Some(FOUR),
        ..c("xattr::of_several_servers", "c/xattr.c")
    },
    Check {
        weir_options: Some(FOUR),
        ..check(
            "xattr::setfattr_cp_mv_rsync_tar_python_of_several_servers",
            What::Shell("shell/xattr.sh", &[]),
            XATTR,
        )
    },
    c(
        "libc::glob_wordexp_fts_ftw_scandir_as_libc_walks",
        "c/walks.c",
    ),
    c(
        "libc::what_libc_looks_at_from_inside_and_links_of_proc",
        "c/insides.c",
    ),
    c("names::files_without_a_name", "c/tmpfile.c"),
    Check {
        weir_options: Some(FOUR),
        ..c(
            "names::files_without_a_name_on_several_servers",
            "c/tmpfile.c",
        )
    },
    python(
        "names::fifos_and_unix_sockets",
        "python/special.py",
        &[needs::PYTHON],
    ),
    Check {
        weir_options: Some(FOUR),
        ..python(
            "names::fifos_and_unix_sockets_of_several_servers",
            "python/special.py",
            &[needs::PYTHON],
        )
    },
    check(
        "users::programs_that_become_another_user",
        What::Shell("shell/users.sh", &[]),
        &[needs::PYTHON, needs::UNSHARE],
    ),
    Check {
        weir_options: Some(FOUR),
        ..check(
            "users::programs_that_become_another_user_on_several_servers",
            What::Shell("shell/users.sh", &[]),
            &[needs::PYTHON, needs::UNSHARE],
        )
    },
    check(
        "names::refusals_are_those_of_tmpfs",
        What::Shell("shell/refusals.sh", &[("c/refusals.c", Compiler::C)]),
        C,
    ),
    Check {
        weir_options: Some(FOUR),
        ..check(
            "names::refusals_are_those_of_tmpfs_on_several_servers",
            What::Shell("shell/refusals.sh", &[("c/refusals.c", Compiler::C)]),
            C,
        )
    },
    c("attr::what_clears_set_id_bits", "c/setid.c"),
    c("io::the_limit_of_a_files_size", "c/fsize.c"),
    Check {
        weir_options: Some(FOUR),
        ..c(
            "attr::what_clears_set_id_bits_on_several_servers",
            "c/setid.c",
        )
    },
    Check {
        weir_options: Some(FOUR),
        ..c(
            "io::the_limit_of_a_files_size_on_several_servers",
            "c/fsize.c",
        )
    },
    c("io::vectors_truncate_sparse_append", "c/posix_io.c"),
    c("io::aio_and_lio_listio", "c/aio.c"),
    c("io::descriptors_by_sendmmsg_and_rings", "c/passed.c"),
    c(
        "processes::dup_fork_exec_inheritance_and_appends",
        "c/processes.c",
    ),
    c(
        "processes::inherited_descriptors_whoever_begins_the_program",
        "c/heritage.c",
    ),
    c(
        "processes::all_that_starts_programs_whatever_the_environment",
        "c/starting.c",
    ),
    c(
        "processes::posix_spawn_exec_and_scripts_in_full",
        "c/spawns.c",
    ),
    check(
        "processes::shared_libraries_by_path_name_and_need",
        What::Shell("shell/libraries.sh", &[]),
        &[needs::CC, needs::PYTHON],
    ),
    // MPI-IO, parallel HDF5, PnetCDF, parallel NetCDF-4
    check(
        "mpi::mpiio_mpich",
        What::Mpi("mpiio", "mpich", &[(MPIIO, Compiler::Mpich)]),
        MPICH,
    ),
    check(
        "mpi::mpiio_openmpi",
        What::Mpi("mpiio", "openmpi", &[(MPIIO, Compiler::OpenMpi)]),
        OPENMPI,
    ),
    check(
        "mpi::mpiio_openmpi_romio",
        What::Mpi("mpiio", "openmpi-romio", &[(MPIIO, Compiler::OpenMpi)]),
        OPENMPI,
    ),
    check(
        "mpi::parallel_hdf5_mpich_and_h5dump",
        What::Mpi("phdf5", "mpich", &[(PHDF5, Compiler::Hdf5Mpich)]),
        &[needs::MPICH_RUN, needs::HDF5_MPICH, needs::HDF5_TOOLS],
    ),
    check(
        "mpi::parallel_hdf5_openmpi_and_h5dump",
        What::Mpi("phdf5", "openmpi", &[(PHDF5, Compiler::Hdf5OpenMpi)]),
        &[needs::OPENMPI_RUN, needs::HDF5_OPENMPI, needs::HDF5_TOOLS],
    ),
    check(
        "mpi::h5py_with_mpi",
        What::Mpi("h5py_mpi.py", "openmpi", &[]),
        &[
            needs::OPENMPI_RUN,
            needs::H5PY_MPI,
            needs::MPI4PY,
            needs::HDF5_TOOLS,
        ],
    ),
    check(
        "mpi::pnetcdf_and_ncvalidator_ncdump_nccopy",
        What::Mpi(
            "pnetcdf_io",
            "openmpi",
            &[("mpi/pnetcdf_io.c", Compiler::Pnetcdf)],
        ),
        &[
            needs::OPENMPI_RUN,
            needs::OPENMPI_CC,
            needs::PNETCDF,
            needs::PNETCDF_TOOLS,
            needs::NETCDF_TOOLS,
        ],
    ),
    check(
        "mpi::parallel_netcdf4_and_ncdump_nccopy",
        What::Mpi(
            "netcdf4_par",
            "openmpi",
            &[("mpi/netcdf4_par.c", Compiler::NetcdfMpi)],
        ),
        &[
            needs::OPENMPI_RUN,
            needs::OPENMPI_CC,
            needs::NETCDF_MPI,
            needs::NETCDF_TOOLS,
            needs::PNETCDF_TOOLS,
            needs::HDF5_TOOLS,
        ],
    ),
    check(
        "hotpath::reads_and_writes_ask_nothing_of_the_kernel",
        What::Shell("shell/hotpath.sh", &[("c/hotpath.c", Compiler::C)]),
        &[needs::CC, needs::STRACE],
    ),
    check(
        "sync::asks_the_server_once_the_file_tier_is_used",
        What::Shell("shell/sync.sh", &[]),
        &[needs::PYTHON],
    ),
    // What must hold
    c(
        "order::overlapping_writes_ordered_by_pipe_and_shared_memory",
        "c/order.c",
    ),
    check(
        "order::overlapping_writes_ordered_by_mpi_barrier_mpich",
        What::Mpi("order_mpi", "mpich", &[(ORDER, Compiler::Mpich)]),
        MPICH,
    ),
    check(
        "order::overlapping_writes_ordered_by_mpi_barrier_openmpi",
        What::Mpi("order_mpi", "openmpi", &[(ORDER, Compiler::OpenMpi)]),
        OPENMPI,
    ),
    c(
        "order::a_read_sees_every_write_that_returned",
        "c/visible.c",
    ),
    c("faults::sigkill_loses_no_finished_write", "c/kill.c"),
    c("faults::signal_handlers_use_files_too", "c/signals.c"),
    c("faults::a_bug_of_weir_fails_a_call", "c/bugs.c"),
    c("faults::threads_are_cancelled", "c/cancelled.c"),
    c(
        "descriptors::what_is_closed_unseen_is_not_written_to",
        "c/closed.c",
    ),
    Check {
        mount: KernelMount::Never,
        ..check(
            "programs::that_the_interposer_is_not_in",
            What::Shell("shell/uninjected.sh", &[]),
            C,
        )
    },
    Check {
        mount: KernelMount::Needed,
        ..check(
            "programs::that_the_interposer_is_not_in_with_a_kernel_mount",
            What::Shell("shell/uninjected.sh", &[]),
            C,
        )
    },
    Check {
        mount: KernelMount::Needed,
        ..c("mount::shared_and_private_mappings", "c/mapped.c")
    },
    Check {
        mount: KernelMount::Needed,
        weir_options: Some(FOUR),
        ..c(
            "mount::shared_and_private_mappings_on_several_servers",
            "c/mapped.c",
        )
    },
    mounted(
        "mount::databases_that_map_their_files",
        What::Python("python/databases.py"),
        &[needs::PYTHON, needs::NUMPY, needs::LMDB, needs::PLYVEL],
    ),
    mounted(
        "mount::programs_that_the_interposer_is_not_in",
        What::Shell("shell/mounted.sh", &[]),
        &[needs::CC, needs::PYTHON],
    ),
    Check {
        weir_options: Some(FOUR),
        ..mounted(
            "mount::programs_that_the_interposer_is_not_in_on_several_servers",
            What::Shell("shell/mounted.sh", &[]),
            &[needs::CC, needs::PYTHON],
        )
    },
    Check {
        weir_options: Some(FOUR),
        ..mounted(
            "mount::mappings_follow_what_other_nodes_sync",
            What::Shell("shell/mapped_elsewhere.sh", &[]),
            &[needs::PYTHON],
        )
    },
    // Allocators, which call weir with their locks held
    c(
        "allocators::no_wrapper_asks_the_program_for_memory",
        "c/allocator.c",
    ),
    check(
        "allocators::jemalloc_mimalloc_tcmalloc_and_sanitizers",
        What::Shell("shell/allocators.sh", &[("c/allocator.c", Compiler::C)]),
        &[
            needs::CC,
            needs::PYTHON,
            needs::JEMALLOC,
            needs::MIMALLOC,
            needs::TCMALLOC,
        ],
    ),
    // The C API
    check(
        "api::attach_laminate_sync_and_lists",
        What::Program("c/api.c", Compiler::Capi),
        C,
    ),
    Check {
        weir_options: Some(FOUR),
        ..check(
            "api::on_several_servers_by_dlopen_and_without_the_interposer",
            What::Shell(
                "shell/api.sh",
                &[
                    ("c/api.c", Compiler::Capi),
                    ("cxx/api_dlopen.cpp", Compiler::CapiCxx),
                ],
            ),
            &[needs::CC, needs::CXX],
        )
    },
    Check {
        weir_options: Some(FOUR),
        ..check(
            "several::what_one_server_does_the_others_see",
            What::Shell("shell/ranks.sh", &[]),
            &[needs::PYTHON],
        )
    },
    Check {
        weir_options: Some(FOUR),
        mount: KernelMount::Never,
        ..check(
            "several::what_a_program_at_another_server_left_is_gone_on_with",
            What::Shell("shell/neighbours.sh", &[]),
            &[needs::PYTHON],
        )
    },
    Check {
        weir_options: Some(FOUR),
        ..check(
            "several::large_scattered_and_listed_reads_of_what_others_hold",
            What::Shell("shell/batches.sh", &[("c/batches.c", Compiler::C)]),
            C,
        )
    },
    Check {
        weir_options: Some(FOUR_LIBFABRIC),
        ..check(
            "several::what_one_server_does_the_others_see_over_libfabric",
            What::Shell("shell/ranks_libfabric.sh", &[]),
            &[needs::PYTHON, needs::LIBFABRIC],
        )
    },
    Check {
        arguments: &["512"],
        weir_options: Some(SPILLING),
        ..c("space::memory_budget_exceeded_unnoticed", "c/spill.c")
    },
    Check {
        arguments: &["256"],
        weir_options: Some(TINY),
        ..c(
            "space::what_is_overwritten_or_idle_makes_room",
            "c/overwrite.c",
        )
    },
    Check {
        arguments: &["128"],
        weir_options: Some(TINY_FOUR),
        ..c(
            "space::what_is_overwritten_or_idle_makes_room_on_several",
            "c/overwrite.c",
        )
    },
    check(
        "space::a_tmpfs_that_others_fill_leads_to_the_file_tier",
        What::Shell("shell/full_tmpfs.sh", &[]),
        &[needs::PYTHON, needs::UNSHARE],
    ),
    Check {
        weir_options: Some(TINY),
        ..check(
            "space::enospc_from_the_call_that_did_not_fit_and_deletes_make_room",
            What::Shell("shell/nospace.sh", &[("c/nospace.c", Compiler::C)]),
            &[needs::CC, needs::UNSHARE],
        )
    },
];

fn limit() -> Duration {
    let named = std::env::var("WEIR_TEST_LIMIT_S")
        .ok()
        .and_then(|text| text.parse().ok());
    Duration::from_secs(named.unwrap_or(LIMIT_S))
}

fn compile(programs: &[(&str, Compiler)]) -> anyhow::Result<()> {
    for (source, compiler) in programs {
        program(source, *compiler)?;
    }
    Ok(())
}

fn job(check: &Check) -> anyhow::Result<Job> {
    let mut command: Vec<OsString> = Vec::new();
    match check.what {
        What::Program(source, compiler) => command.push(program(source, compiler)?.into()),
        What::Shell(script, programs) => {
            compile(programs)?;
            command.extend(["/bin/bash".into(), check_file(script).into()]);
        }
        What::Python(script) => {
            command.extend(["/usr/bin/python3".into(), check_file(script).into()]);
        }
        What::Mpi(started, mpi, programs) => {
            compile(programs)?;
            let mpi = format!("WEIR_TEST_MPI={mpi}");
            let script = check_file("mpi/run.sh");
            command.extend([
                "/usr/bin/env".into(),
                mpi.into(),
                "/bin/bash".into(),
                script.into(),
                started.into(),
            ]);
        }
    }
    Ok(Job {
        name: check.name.to_owned(),
        command,
        arguments: check
            .arguments
            .iter()
            .map(|&word| word.to_owned())
            .collect(),
        weir_options: check.weir_options.unwrap_or(USUAL),
        mount: check.mount,
        limit: limit(),
    })
}

fn trial(check: &'static Check, target: &Result<Target, String>, allow_missing: bool) -> Trial {
    let packages = missing(check.needs).join(" ");
    let target = target.clone();
    let is_directory = matches!(target, Ok(Target::Directory(_)));
    let wanted = packages.clone();
    let test = Trial::test(check.name, move || {
        if !wanted.is_empty() {
            return Err(Failed::from(format!(
                "missing on this machine: apt-get install {wanted}"
            )));
        }
        let outcome = target
            .map_err(anyhow::Error::msg)
            .and_then(|target| run(&target, &job(check)?));
        outcome.map_err(|error| Failed::from(format!("{error:#}")))
    });
    if allow_missing && !packages.is_empty() {
        eprintln!("SKIP {}: missing on this machine: {packages}", check.name);
        return test.with_kind("SKIP").with_ignored_flag(true);
    }
    if let Some(why) = no_mount(check, is_directory) {
        eprintln!("SKIP {}: no kernel mount: {why}", check.name);
        return test.with_kind("SKIP").with_ignored_flag(true);
    }
    test
}

/// The reason why a check that needs a kernel mount cannot run here.
fn no_mount(check: &Check, is_directory: bool) -> Option<String> {
    match check.mount.is_needed() && !is_directory {
        true => why_none(),
        false => None,
    }
}

fn main() {
    let mut arguments = Arguments::from_args();
    // Each test is several processes already.
    arguments.test_threads.get_or_insert(2);
    let allow_missing = std::env::var("WEIR_TEST_ALLOW_MISSING").is_ok_and(|value| value == "1");
    let target = if arguments.list {
        Err(String::new())
    } else {
        Target::from_environment().map_err(|error| format!("{error:#}"))
    };
    let trials = CHECKS
        .iter()
        .map(|check| trial(check, &target, allow_missing))
        .collect();
    libtest_mimic::run(&arguments, trials).exit();
}

//! Programs and files of the machine that tests need, and the Debian packages that contain them.
//!
//! `tools/packages.txt` lists the same packages; a test of this module compares the two.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A program or file of the machine, and the Debian package that contains it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Need {
    /// A command in PATH, or an absolute path.
    pub what: &'static str,
    /// The package to install.
    pub package: &'static str,
}

macro_rules! needs {
    ($($(#[$doc:meta])* $name:ident: $what:literal from $package:literal;)+) => {
        $($(#[$doc])* pub const $name: Need = Need { what: $what, package: $package };)+
        /// Every known need.
        pub const ALL: &[Need] = &[$($name),+];
    };
}

needs! {
    /// The C compiler.
    CC: "gcc" from "gcc";
    /// Builds a project.
    CMAKE: "cmake" from "cmake";
    /// Runs the makefiles of cmake and configure.
    MAKE: "make" from "make";
    /// Makes configure.
    AUTOCONF: "autoconf" from "autoconf";
    /// Makes makefiles for configure.
    AUTOMAKE: "automake" from "automake";
    /// Shared libraries of such makefiles.
    LIBTOOL: "libtoolize" from "libtool";
    /// git.
    GIT: "git" from "git";
    /// zip.
    ZIP: "zip" from "zip";
    /// unzip.
    UNZIP: "unzip" from "unzip";
    /// busybox.
    BUSYBOX: "busybox" from "busybox";
    /// sqlite3.
    SQLITE: "sqlite3" from "sqlite3";
    /// Node.
    NODE: "node" from "nodejs";
    /// vim.
    VIM: "vi" from "vim-tiny";
    /// Counts system calls.
    STRACE: "strace" from "strace";
    /// The C++ compiler.
    CXX: "g++" from "g++";
    /// The Fortran compiler.
    GFORTRAN: "gfortran" from "gfortran";
    /// Debian's Python, for which the packages below are built.
    PYTHON: "/usr/bin/python3" from "python3";
    /// Installs wheels.
    PIP: "/usr/lib/python3/dist-packages/pip" from "python3-pip";
    /// Downloads.
    /// numpy.
    NUMPY: "/usr/lib/python3/dist-packages/numpy" from "python3-numpy";
    /// h5py without MPI.
    H5PY: "/usr/lib/python3/dist-packages/h5py/_debian_h5py_serial" from "python3-h5py";
    /// h5py with MPI (Open MPI's).
    H5PY_MPI: "/usr/lib/python3/dist-packages/h5py/_debian_h5py_mpi" from "python3-h5py-mpi";
    /// mpi4py.
    MPI4PY: "/usr/lib/python3/dist-packages/mpi4py" from "python3-mpi4py";
    /// netCDF4 for Python.
    NETCDF4: "/usr/lib/python3/dist-packages/netCDF4" from "python3-netcdf4";
    /// MPICH's launcher.
    MPICH_RUN: "mpiexec.mpich" from "mpich";
    /// MPICH's compiler.
    MPICH_CC: "mpicc.mpich" from "libmpich-dev";
    /// Open MPI's launcher.
    OPENMPI_RUN: "mpiexec.openmpi" from "openmpi-bin";
    /// Open MPI's compiler.
    OPENMPI_CC: "mpicc.openmpi" from "libopenmpi-dev";
    /// Parallel HDF5 for MPICH.
    HDF5_MPICH: "h5pcc.mpich" from "libhdf5-mpich-dev";
    /// Parallel HDF5 for Open MPI.
    HDF5_OPENMPI: "h5pcc.openmpi" from "libhdf5-openmpi-dev";
    /// h5dump and its like.
    HDF5_TOOLS: "h5dump" from "hdf5-tools";
    /// libfabric's headers.
    LIBFABRIC: "/usr/include/rdma/fabric.h" from "libfabric-dev";
    /// `PnetCDF` (Open MPI's).
    PNETCDF: "/usr/include/pnetcdf.h" from "libpnetcdf-dev";
    /// ncvalidator and its like.
    PNETCDF_TOOLS: "ncvalidator" from "pnetcdf-bin";
    /// Parallel `NetCDF-4` (Open MPI's).
    NETCDF_MPI: "/usr/share/doc/libnetcdf-mpi-dev" from "libnetcdf-mpi-dev";
    /// ncdump and nccopy.
    NETCDF_TOOLS: "ncdump" from "netcdf-bin";
    /// LMDB.
    LMDB: "/usr/lib/python3/dist-packages/lmdb" from "python3-lmdb";
    /// `LevelDB`.
    PLYVEL: "/usr/lib/python3/dist-packages/plyvel" from "python3-plyvel";
    /// tar.
    TAR: "tar" from "tar";
    /// xz, which tar calls.
    XZ: "xz" from "xz-utils";
    /// rsync.
    RSYNC: "rsync" from "rsync";
    /// setfattr and getfattr.
    SETFATTR: "setfattr" from "attr";
    /// patch.
    PATCH: "patch" from "patch";
    /// An allocator, to be preloaded and linked.
    JEMALLOC: "/usr/share/doc/libjemalloc2" from "libjemalloc2";
    /// An allocator.
    MIMALLOC: "/usr/share/doc/libmimalloc2.0" from "libmimalloc2.0";
    /// An allocator.
    TCMALLOC: "/usr/share/doc/libtcmalloc-minimal4" from "libtcmalloc-minimal4";
    /// unshare and mount, for a small tmpfs when the target is a directory.
    UNSHARE: "unshare" from "util-linux";
    /// GlusterFS's management daemon.
    GLUSTERD: "/usr/sbin/glusterd" from "glusterfs-server";
    /// The FUSE mount of GlusterFS.
    GLUSTERFS: "/usr/sbin/glusterfs" from "glusterfs-client";
    /// The command that manages volumes.
    GLUSTER: "/usr/sbin/gluster" from "glusterfs-cli";
}

impl Need {
    /// Its path; `None` if it is missing.
    pub fn find(&self) -> Option<PathBuf> {
        let direct = Path::new(self.what);
        if direct.is_absolute() {
            return direct.exists().then(|| direct.to_owned());
        }
        let path = std::env::var_os("PATH")?;
        std::env::split_paths(&path)
            .map(|dir| dir.join(self.what))
            .find(|candidate| candidate.is_file())
    }
}

/// The directory of a package that a script in `tools/` has installed; `None`: it has not.
pub fn directory_of_tool(tool: &str) -> Option<PathBuf> {
    let script = crate::source_root().join("tools").join(tool);
    let output = Command::new(script).stderr(Stdio::null()).output().ok()?;
    let said = String::from_utf8(output.stdout).ok()?;
    let directory = PathBuf::from(said.trim_end());
    (output.status.success() && directory.is_dir()).then_some(directory)
}

/// The missing packages of these needs.
pub fn missing(needs: &[Need]) -> Vec<&'static str> {
    let mut packages: Vec<_> = needs
        .iter()
        .filter(|need| need.find().is_none())
        .map(|need| need.package)
        .collect();
    packages.sort_unstable();
    packages.dedup();
    packages
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_package_is_in_the_list_that_is_installed() {
        let list = std::fs::read_to_string(crate::source_root().join("tools/packages.txt"))
            .expect("tools/packages.txt");
        let listed: Vec<&str> = list
            .lines()
            .filter_map(|line| line.split('#').next())
            .map(str::trim)
            .filter(|line| !line.is_empty())
            .collect();
        for need in ALL {
            assert!(
                listed.contains(&need.package),
                "{} is not listed",
                need.package
            );
        }
    }

    #[test]
    fn a_need_is_found_by_path_or_by_name() {
        let sh = Need {
            what: "sh",
            package: "dash",
        };
        let absent = Need {
            what: "weir-no-such-program",
            package: "none",
        };
        let root = Need {
            what: "/",
            package: "base-files",
        };
        assert!(sh.find().is_some() && root.find().is_some());
        assert_eq!(missing(&[sh, absent, root, absent]), ["none"]);
    }
}

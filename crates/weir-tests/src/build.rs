//! Compiles the check programs, each once, into `target/.../real`.
//!
//! A program is compiled again if its source or the shared header is newer. Tests that need the same
//! program at the same time wait for one compilation.

use std::collections::HashMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::SystemTime;

use anyhow::{bail, ensure, Context, Result};

use crate::{checks_dir, profile_dir, source_root};

/// The compiler of a program. The names of MPI programs end in the name of the MPI, because one source
/// makes a program for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Compiler {
    /// gcc, as a distribution builds: optimised and fortified.
    C,
    /// g++, C++17.
    Cxx,
    /// gcc, with the C API.
    Capi,
    /// g++, with the C API.
    CapiCxx,
    /// gfortran.
    Fortran,
    /// MPICH's compiler.
    Mpich,
    /// Open MPI's compiler.
    OpenMpi,
    /// Parallel HDF5 with MPICH.
    Hdf5Mpich,
    /// Parallel HDF5 with Open MPI.
    Hdf5OpenMpi,
    /// Parallel HDF5 1.14 with MPICH, which `tools/build-hdf5` builds: Debian's has no connectors.
    Hdf5Built,
    /// `PnetCDF`, which Debian builds with Open MPI.
    Pnetcdf,
    /// `PnetCDF` with MPICH and its burst buffer driver, which `tools/build-pnetcdf` builds.
    PnetcdfBuilt,
    /// Parallel `NetCDF-4`, which Debian builds with Open MPI.
    NetcdfMpi,
}

const WARNINGS: [&str; 2] = ["-Wall", "-Wextra"];

impl Compiler {
    fn command(self) -> &'static [&'static str] {
        match self {
            Self::C | Self::Capi => &["gcc", "-O2", "-D_FORTIFY_SOURCE=2", "-pthread"],
            Self::Cxx | Self::CapiCxx => &["g++", "-O2", "-std=c++17"],
            Self::Fortran => &["gfortran", "-O2"],
            // MPI_STATUSES_IGNORE is an array of no elements there, which gcc reports as a mistake.
            Self::Mpich | Self::Hdf5Built | Self::PnetcdfBuilt => {
                &["mpicc.mpich", "-O2", "-Wno-stringop-overflow"]
            }
            Self::OpenMpi | Self::Pnetcdf => &["mpicc.openmpi", "-O2"],
            Self::Hdf5Mpich => &["h5pcc.mpich", "-O2"],
            Self::Hdf5OpenMpi => &["h5pcc.openmpi", "-O2"],
            Self::NetcdfMpi => &[
                "mpicc.openmpi",
                "-O2",
                "-I/usr/include/hdf5/openmpi",
                "-I/usr/lib/x86_64-linux-gnu/netcdf/mpi/include",
                "-I/usr/lib/aarch64-linux-gnu/netcdf/mpi/include",
            ],
        }
    }

    fn libraries(self) -> &'static [&'static str] {
        match self {
            Self::Pnetcdf | Self::PnetcdfBuilt => &["-lpnetcdf"],
            Self::NetcdfMpi => &["-lnetcdf_mpi"],
            Self::Hdf5Built => &["-lhdf5"],
            Self::Capi | Self::CapiCxx => &["-lweir"],
            _ => &[],
        }
    }

    /// The options that point to the C API, laid out as in an installation, or to a library that was built.
    fn places(self) -> Result<Vec<OsString>> {
        let (headers, libraries) = match self {
            Self::Capi | Self::CapiCxx => (include_dir(), library_dir()?),
            Self::Hdf5Built | Self::PnetcdfBuilt => {
                let builder = match self {
                    Self::Hdf5Built => "build-hdf5",
                    _ => "build-pnetcdf",
                };
                let built = tool(builder, "mpich")?;
                (built.join("include"), built.join("lib"))
            }
            _ => return Ok(Vec::new()),
        };
        let place = |option: &str, path: PathBuf| {
            let mut word = OsString::from(option);
            word.push(path);
            word
        };
        Ok(vec![
            place("-I", headers),
            place("-L", libraries.clone()),
            place("-Wl,-rpath,", libraries),
        ])
    }

    fn suffix(self) -> &'static str {
        match self {
            Self::C | Self::Cxx | Self::Fortran | Self::Capi | Self::CapiCxx => "",
            Self::Mpich | Self::Hdf5Mpich | Self::Hdf5Built | Self::PnetcdfBuilt => ".mpich",
            Self::OpenMpi | Self::Hdf5OpenMpi | Self::Pnetcdf | Self::NetcdfMpi => ".openmpi",
        }
    }
}

/// The directory that a tool of `tools/` prints, and makes before if need be: once a machine.
pub fn tool(name: &str, argument: &str) -> Result<PathBuf> {
    let path = source_root().join("tools").join(name);
    let output = Command::new(&path).arg(argument).output();
    let output = output.with_context(|| format!("start {}", path.display()))?;
    ensure!(
        output.status.success(),
        "{name} {argument}: {}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    let dir = String::from_utf8(output.stdout).context("a path")?;
    Ok(PathBuf::from(dir.trim_end()))
}

/// The directory of compiled programs.
pub fn build_dir() -> PathBuf {
    profile_dir().join("real")
}

/// The directory of a source's program: programs of the same name come from several directories.
fn output_dir(source: &Path) -> Result<PathBuf> {
    if source.starts_with(checks_dir()) {
        return Ok(build_dir());
    }
    let of = source.parent().and_then(Path::file_name);
    Ok(build_dir().join(of.context("a source lies in a directory")?))
}

fn include_dir() -> PathBuf {
    source_root().join("crates/weir-capi/include")
}

/// A directory with libweir.so under the names that linkers and programs use.
fn library_dir() -> Result<PathBuf> {
    static MADE: Mutex<()> = Mutex::new(());
    let _one = lock(&MADE);
    let library = profile_dir().join("libweir.so");
    ensure!(library.is_file(), "{} was not built", library.display());
    let dir = build_dir().join("lib");
    std::fs::create_dir_all(&dir).with_context(|| format!("mkdir {}", dir.display()))?;
    for name in ["libweir.so", "libweir.so.1"] {
        let link = dir.join(name);
        if !link.exists() {
            std::os::unix::fs::symlink(&library, &link).context("name libweir.so")?;
        }
    }
    Ok(dir)
}

/// The compiled program of `source` (relative to `tests/real`), made now if need be.
pub fn program(source: &str, compiler: Compiler) -> Result<PathBuf> {
    program_in(&checks_dir(), source, compiler)
}

/// The same, of a source relative to `dir`.
pub fn program_in(dir: &Path, source: &str, compiler: Compiler) -> Result<PathBuf> {
    type Slot = Arc<Mutex<Option<PathBuf>>>;
    static DONE: OnceLock<Mutex<HashMap<(PathBuf, Compiler), Slot>>> = OnceLock::new();
    let source = dir.join(source);
    let slot = {
        let mut all = lock(DONE.get_or_init(Mutex::default));
        Arc::clone(all.entry((source.clone(), compiler)).or_default())
    };
    let mut done = lock(&slot);
    if let Some(path) = &*done {
        return Ok(path.clone());
    }
    let path = compile(&source, compiler)?;
    *done = Some(path.clone());
    Ok(path)
}

/// Locks; a test that panicked while it compiled must not make the others fail.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn compile(source: &Path, compiler: Compiler) -> Result<PathBuf> {
    let stem = source
        .file_stem()
        .context("a source has a name")?
        .to_string_lossy();
    let dir = output_dir(source)?;
    std::fs::create_dir_all(&dir).with_context(|| format!("mkdir {}", dir.display()))?;
    let output = dir.join(format!("{stem}{}", compiler.suffix()));
    if is_fresh(&output, source)? {
        return Ok(output);
    }
    let [command, options @ ..] = compiler.command() else {
        bail!("no compiler for {compiler:?}");
    };
    // A temporary name: a process that runs the old program is not disturbed, and none sees a part of
    // the new one.
    let temporary = dir.join(format!(
        ".{stem}{}.{}",
        compiler.suffix(),
        std::process::id()
    ));
    // Compilers leave files named after the source in the current directory (gfortran its .mod files,
    // h5pcc the object), so each build runs in a directory of its own.
    let own = tempfile::tempdir_in(&dir).context("a directory to build in")?;
    let result = Command::new(command)
        .args(options)
        .args(WARNINGS)
        .arg("-o")
        .arg(&temporary)
        .arg(source)
        .args(compiler.places()?)
        .args(compiler.libraries())
        .current_dir(own.path())
        .output()
        .with_context(|| format!("start {command}"))?;
    ensure!(
        result.status.success(),
        "{command} {}: {}\n{}",
        source.display(),
        result.status,
        String::from_utf8_lossy(&result.stderr)
    );
    std::fs::rename(&temporary, &output).context("name the compiled program")?;
    Ok(output)
}

fn is_fresh(output: &Path, source: &Path) -> Result<bool> {
    let changed = |path: &Path| -> Result<SystemTime> {
        let metadata = path
            .metadata()
            .with_context(|| format!("stat {}", path.display()))?;
        Ok(metadata.modified()?)
    };
    if !output.exists() {
        return Ok(false);
    }
    let built = changed(output)?;
    let mut headers = vec![checks_dir().join("c/check.h"), include_dir().join("weir.h")];
    for entry in source
        .parent()
        .context("a source lies in a directory")?
        .read_dir()?
    {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "h") {
            headers.push(path);
        }
    }
    let newest = headers.iter().map(|header| changed(header));
    let newest = newest.collect::<Result<Vec<_>>>()?.into_iter().max();
    Ok(built > changed(source)? && newest.is_none_or(|newest| built > newest))
}

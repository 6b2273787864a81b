//! Programs' files: the kind of each, and the libraries that it is linked with.

use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::unistd::{Gid, Uid};
use object::elf::{FileHeader64, DT_NEEDED, EM_AARCH64, EM_X86_64, ET_DYN, ET_EXEC, PT_INTERP};
use object::read::elf::{FileHeader, ProgramHeader};
use object::{Endianness, ReadCache};

/// The beginnings of the names of the libraries of MPI: MPICH's, Open MPI's, vendors'.
pub const MPI: &[&str] = &["libmpi.", "libmpich.", "libmpi_"];
/// Those of HDF5: that of its own build, and those of distributions, such as `libhdf5_openmpi`.
pub const HDF5: &[&str] = &["libhdf5.", "libhdf5_"];
/// An HDF5 whose functions have other names: it cannot load a plug-in that is made for HDF5.
const RENAMED_HDF5: &str = "libvtkhdf5";
/// The first number of a shared HDF5 that can load connectors: that of 1.12.
const FIRST_WITH_CONNECTORS: u32 = 200;
/// The most words of a command that are looked at.
const MAX_WORDS: usize = 64;

/// The names of the libraries that the loader finds for a program, or the reason why they are not known.
pub type LinkedLibraries = Result<Vec<String>, String>;

/// The kind of a program's file. It decides how the client gets into its processes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProgramKind {
    /// The loader of the C library starts it.
    Dynamic,
    /// This interpreter is started.
    Script(PathBuf),
    /// Nothing is loaded into it.
    Static,
    /// Go's runtime makes its system calls itself.
    Go,
    /// It gets the rights of its owner or group, or capabilities, and the loader drops what is preloaded.
    Privileged,
    /// It is for another machine, or it is no program.
    Foreign,
}

impl ProgramKind {
    /// Reads the file.
    pub fn read(path: &Path) -> io::Result<ProgramKind> {
        let mut file = File::open(path)?;
        let mut start = [0; 512];
        let read = file.read(&mut start)?;
        if let Some(line) = start[..read].strip_prefix(b"#!") {
            let words = line.split(|byte| b" \t\n\0".contains(byte));
            let interpreter = words.into_iter().find(|word| !word.is_empty());
            return Ok(match interpreter {
                Some(path) => ProgramKind::Script(OsStr::from_bytes(path).into()),
                None => ProgramKind::Foreign,
            });
        }
        let metadata = file.metadata()?;
        let kind = read_elf(file).unwrap_or(ProgramKind::Foreign);
        Ok(match kind {
            ProgramKind::Dynamic if raises_rights(path, &metadata) => ProgramKind::Privileged,
            kind => kind,
        })
    }

    /// Why the client cannot be put into it, if that is so.
    pub fn obstacle(&self) -> Option<&'static str> {
        match self {
            ProgramKind::Dynamic | ProgramKind::Script(_) => None,
            ProgramKind::Static => Some("is linked statically"),
            ProgramKind::Go => Some("is a Go program, whose runtime makes system calls itself"),
            ProgramKind::Privileged => Some("gets other rights when it starts"),
            ProgramKind::Foreign => Some("is no 64-bit program for this machine"),
        }
    }
}

/// A program that the client cannot be put into.
#[derive(Debug)]
pub struct ObstructedProgram {
    pub path: PathBuf,
    pub kind: ProgramKind,
    /// Why not.
    pub obstacle: &'static str,
}

/// The program that a command starts, if the client cannot be put into it: of a script, its interpreter.
pub fn find_obstructed(word: &OsStr) -> Option<ObstructedProgram> {
    let mut path = find_program(Path::new(word))?;
    let mut kind = ProgramKind::read(&path).ok()?;
    if let ProgramKind::Script(interpreter) = kind {
        path = interpreter;
        kind = ProgramKind::read(&path).ok()?;
    }
    let obstacle = kind.obstacle()?;
    Some(ObstructedProgram {
        path,
        kind,
        obstacle,
    })
}

fn read_elf(file: File) -> object::read::Result<ProgramKind> {
    let data = ReadCache::new(file);
    let header = FileHeader64::<Endianness>::parse(&data)?;
    let endian = header.endian()?;
    let machine = match cfg!(target_arch = "aarch64") {
        true => EM_AARCH64,
        false => EM_X86_64,
    };
    let is_program = [ET_EXEC, ET_DYN].contains(&header.e_type(endian));
    if header.e_machine(endian) != machine || !is_program {
        return Ok(ProgramKind::Foreign);
    }
    let segments = header.program_headers(endian, &data)?;
    if !segments
        .iter()
        .any(|segment| segment.p_type(endian) == PT_INTERP)
    {
        return Ok(ProgramKind::Static);
    }
    let sections = header.sections(endian, &data)?;
    let is_go = sections.section_by_name(endian, b".go.buildinfo").is_some();
    Ok(if is_go {
        ProgramKind::Go
    } else {
        ProgramKind::Dynamic
    })
}

/// True if the kernel starts a file with other rights than this process has (execve(2), AT_SECURE).
fn raises_rights(path: &Path, metadata: &Metadata) -> bool {
    let has = |bit: u32| metadata.mode() & bit != 0;
    let (user, group) = (Uid::effective().as_raw(), Gid::effective().as_raw());
    let mut capabilities = [0_u8; 64];
    let mut has_capabilities = || {
        user != 0 && rustix::fs::getxattr(path, "security.capability", &mut capabilities).is_ok()
    };
    has(0o4000) && metadata.uid() != user
        || has(0o2000) && metadata.gid() != group
        || has_capabilities()
}

/// Asks ldd(1), which has the loader list them, and does not run the program.
pub fn libraries_of(program: &Path) -> LinkedLibraries {
    let path =
        find_program(program).ok_or_else(|| format!("{} is not found", program.display()))?;
    let output = Command::new("ldd")
        .arg(&path)
        .env("LD_PRELOAD", "")
        .output()
        .map_err(|e| format!("ldd: {e}"))?;
    let said = String::from_utf8_lossy(&output.stdout);
    let names = said.lines().filter_map(|line| {
        let name = line.split_whitespace().next()?;
        Some(Path::new(name).file_name()?.to_string_lossy().into_owned())
    });
    match output.status.success() {
        true => Ok(names.collect()),
        false => Err(match ProgramKind::read(&path) {
            Ok(ProgramKind::Script(_)) => {
                "it is a script; ask about the program that it starts".to_owned()
            }
            Ok(kind) => format!("it {}", kind.obstacle().unwrap_or("is not known to ldd")),
            Err(e) => e.to_string(),
        }),
    }
}

/// The first of the libraries whose name begins so.
pub fn find_library<'a>(names: &'a [String], starts: &[&str]) -> Option<&'a String> {
    let is_one = |name: &&String| starts.iter().any(|start| name.starts_with(start));
    names.iter().find(is_one)
}

/// The reason why an HDF5 with this name cannot load a connector, if there is one.
pub fn old_hdf5(name: &str) -> Option<&'static str> {
    let number = name.rsplit_once(".so.")?.1.split('.').next()?;
    let number: u32 = number.parse().ok()?;
    (number < FIRST_WITH_CONNECTORS).then_some("HDF5 before 1.12, which has no connectors")
}

/// True if the functions of a program's HDF5 have other names.
pub fn has_renamed_hdf5(names: &[String]) -> bool {
    find_library(names, &[RENAMED_HDF5]).is_some()
}

/// True if a word of a command, the first one or that of a launcher such as mpiexec, names a program that is linked with
/// MPI and HDF5. A script, and a program that loads them later, are not seen through.
pub fn starts_parallel_hdf5(command: &[OsString]) -> bool {
    let words = command.iter().take(MAX_WORDS);
    let programs = words.filter(|word| !word.as_encoded_bytes().starts_with(b"-"));
    programs.into_iter().any(|word| {
        let program = find_program(Path::new(word));
        // Most programs are not, and need no run of ldd.
        program.is_some_and(|path| needs_mpi(&path) && has_hdf5(&path))
    })
}

fn has_hdf5(program: &Path) -> bool {
    libraries_of(program)
        .is_ok_and(|names| find_library(&names, HDF5).is_some() && !has_renamed_hdf5(&names))
}

/// True if a file is a 64-bit ELF program that itself names a library of MPI.
fn needs_mpi(program: &Path) -> bool {
    let Ok(file) = File::open(program) else {
        return false;
    };
    needed_libraries(file).is_ok_and(|names| find_library(&names, MPI).is_some())
}

fn needed_libraries(file: File) -> object::read::Result<Vec<String>> {
    let data = ReadCache::new(file);
    let header = FileHeader64::<Endianness>::parse(&data)?;
    let endian = header.endian()?;
    let table = header
        .sections(endian, &data)?
        .dynamic_table(endian, &data)?;
    let needed = table.iter().filter(|entry| entry.tag == DT_NEEDED);
    let names = needed.map(|entry| table.string(entry));
    names
        .map(|name| Ok(String::from_utf8_lossy(name?).into_owned()))
        .collect()
}

/// The file of a program: a path, or a name in PATH.
pub fn find_program(program: &Path) -> Option<PathBuf> {
    if program.components().count() > 1 || program.is_absolute() {
        return program.is_file().then(|| program.to_owned());
    }
    if program.as_os_str() == OsStr::new("") {
        return None;
    }
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|dir| dir.join(program))
        .find(|path| path.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_libraries_of_a_program_are_known_without_running_it() {
        let dir = tempfile::tempdir().unwrap();
        let script = dir.path().join("script");
        std::fs::write(&script, "#!/bin/sh\ntouch ran\n").unwrap();
        assert!(libraries_of(&script).is_err());
        let names = libraries_of(Path::new("sh")).unwrap();
        assert!(find_library(&names, &["libc."]).is_some(), "{names:?}");
        assert!(libraries_of(Path::new("no-such-program")).is_err());
    }

    /// Programs that are linked with libraries of these names, as the compiler driver that links this test makes them.
    #[test]
    fn programs_with_mpi_and_hdf5_are_seen_behind_their_launcher() {
        let dir = tempfile::tempdir().unwrap();
        let cc = |arguments: &[&str]| {
            let mut command = Command::new("cc");
            command.current_dir(dir.path()).args(arguments);
            assert!(command.status().unwrap().success(), "cc {arguments:?}");
        };
        std::fs::write(dir.path().join("main.c"), "int main(void) { return 0; }").unwrap();
        std::fs::write(dir.path().join("none.c"), "").unwrap();
        let (mpi, hdf5, vtk) = ("libmpi.so.40", "libhdf5.so.310", "libvtkhdf5.so.9");
        for name in [mpi, hdf5, vtk] {
            cc(&[
                "-shared",
                "-o",
                name,
                "none.c",
                &format!("-Wl,-soname,{name}"),
            ]);
        }
        let program = |name: &str, libraries: &[&str]| -> OsString {
            let fixed = [
                "-o",
                name,
                "main.c",
                "-Wl,--no-as-needed",
                "-Wl,-rpath,$ORIGIN",
            ];
            cc(&[&fixed, libraries].concat());
            dir.path().join(name).into()
        };
        let both = program("both", &[mpi, hdf5]);
        let starts = |words: &[&OsString]| {
            let words: Vec<OsString> = words.iter().map(|word| (*word).clone()).collect();
            starts_parallel_hdf5(&words)
        };
        let [env, option, number] = ["env", "-n", "4"].map(OsString::from);
        assert!(starts(&[&both]));
        assert!(starts(&[&env, &option, &number, &both]));
        assert!(!starts(&[&env, &option, &number]));
        assert!(!starts(&[&OsString::new()]));
        assert!(!starts(&[&program("without", &[mpi])]));
        assert!(!starts(&[&program("serial", &[hdf5])]));
        assert!(!starts(&[&program("renamed", &[mpi, hdf5, vtk])]));
        let data = dir.path().join("data");
        std::fs::write(&data, b"\x7fELF\x02\x01\x01").unwrap();
        assert!(!starts(&[&data.into()]));
    }
}

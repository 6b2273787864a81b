//! The programs. They are in C, because users' programs are, and are compiled when they are needed, because each MPI
//! has an ABI of its own.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// A program; its source says what it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ArrayProgram {
    /// Collective calls of MPI-IO through a view with gaps.
    Strided,
    /// Transfers of parallel HDF5.
    Collective,
    /// HDF5 in one process.
    Small,
    /// Writes of PnetCDF.
    Puts,
    /// Starts of a program that uses no MPI.
    Start,
}

impl ArrayProgram {
    const fn name(self) -> &'static str {
        match self {
            ArrayProgram::Strided => "strided",
            ArrayProgram::Collective => "collective",
            ArrayProgram::Small => "small",
            ArrayProgram::Puts => "puts",
            ArrayProgram::Start => "start",
        }
    }

    const fn source(self) -> &'static str {
        match self {
            ArrayProgram::Strided => include_str!("../../programs/strided.c"),
            ArrayProgram::Collective => include_str!("../../programs/collective.c"),
            ArrayProgram::Small => include_str!("../../programs/small.c"),
            ArrayProgram::Puts => include_str!("../../programs/puts.c"),
            ArrayProgram::Start => include_str!("../../programs/start.c"),
        }
    }

    const fn library(self) -> Option<&'static str> {
        match self {
            ArrayProgram::Strided | ArrayProgram::Start => None,
            ArrayProgram::Collective | ArrayProgram::Small => Some("-lhdf5"),
            ArrayProgram::Puts => Some("-lpnetcdf"),
        }
    }
}

/// The numbers that a program prints, by their names.
pub type ProgramNumbers = BTreeMap<String, f64>;

/// The programs that were compiled.
pub struct CompiledPrograms<'a> {
    /// The compiler, with options.
    compiler: &'a [String],
    directory: &'a Path,
    /// The path of each, or why it cannot be compiled.
    compiled: RefCell<BTreeMap<ArrayProgram, Result<PathBuf, String>>>,
}

impl<'a> CompiledPrograms<'a> {
    /// Programs that a compiler makes in a directory.
    pub fn new(compiler: &'a [String], directory: &'a Path) -> CompiledPrograms<'a> {
        CompiledPrograms {
            compiler,
            directory,
            compiled: RefCell::default(),
        }
    }

    /// The path of a program; or the reason why it cannot be compiled.
    pub fn path_of(&self, program: ArrayProgram) -> Result<PathBuf, String> {
        let mut compiled = self.compiled.borrow_mut();
        let entry = compiled.entry(program);
        entry.or_insert_with(|| self.compile(program)).clone()
    }

    fn compile(&self, program: ArrayProgram) -> Result<PathBuf, String> {
        let path = self.directory.join(program.name());
        let source = path.with_extension("c");
        fs::write(&source, program.source()).map_err(|error| error.to_string())?;
        let (compiler, options) = self.compiler.split_first().ok_or("no compiler")?;
        let mut command = Command::new(compiler);
        command.args(options).arg("-O2").arg("-o").arg(&path);
        command.arg(&source).args(program.library());
        match command.stdin(Stdio::null()).output() {
            Ok(output) if output.status.success() => Ok(path),
            Ok(output) => Err(first_error(&output)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Err(format!("{compiler} is not found: give --mpicc"))
            }
            Err(error) => Err(format!("{compiler}: {error}")),
        }
    }
}

/// The first line that says what is wrong.
fn first_error(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr);
    let is_reason = |line: &&str| line.contains("error") || line.contains("cannot find");
    let reason = text.lines().find(is_reason).or(text.lines().next());
    let reason = reason.unwrap_or("it says nothing").trim();
    // Without the place in our source.
    let reason = reason.rsplit("error: ").next().unwrap_or(reason);
    format!("not compiled: {reason}")
}

/// The numbers of a text of names that are each followed by a number.
pub fn numbers_in(text: &str) -> ProgramNumbers {
    let words: Vec<&str> = text.split_whitespace().collect();
    let pairs = words.windows(2).filter_map(|pair| match pair {
        [name, number] => Some(((*name).to_owned(), number.parse().ok()?)),
        _ => None,
    });
    pairs.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_cannot_be_compiled_says_why() {
        let directory = tempfile::tempdir().unwrap();
        let path_of = |words: &[&str], program| {
            let compiler: Vec<String> = words.iter().map(ToString::to_string).collect();
            CompiledPrograms::new(&compiler, directory.path()).path_of(program)
        };
        let refused = |words: &[&str]| path_of(words, ArrayProgram::Puts).unwrap_err();
        let missing = refused(&["/nowhere/mpicc"]);
        assert_eq!(missing, "/nowhere/mpicc is not found: give --mpicc");
        let failing = "echo puts.c:9:1: error: no such header >&2; false";
        let failed = refused(&["sh", "-c", failing]);
        assert_eq!(failed, "not compiled: no such header");
        let compiled = path_of(&["true"], ArrayProgram::Start).unwrap();
        assert_eq!(compiled, directory.path().join("start"));
        let source = fs::read_to_string(compiled.with_extension("c")).unwrap();
        assert!(source.contains("int main"));
    }

    #[test]
    fn numbers_follow_their_names() {
        let numbers = numbers_in("gets_s 0.5 copies_s 0.25\nflash puts_s 1e-3 MiB 15.0\n");
        let at = |name: &str| numbers.get(name).copied();
        assert_eq!(at("gets_s"), Some(0.5));
        assert_eq!(at("copies_s"), Some(0.25));
        assert_eq!(at("puts_s"), Some(1e-3));
        assert_eq!((at("flash"), at("MiB")), (None, Some(15.0)));
    }
}

//! The paths on the command line of `weir stage`: which are in the instance, and which outside.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::args::ChoiceArgs;
use crate::exit::Failure;
use crate::locate::elevated_targets;

/// The meaning of the paths on the command line.
pub(super) struct ArgumentPaths {
    /// Of the instance.
    prefix: PathBuf,
    run_dir: PathBuf,
    pub here: PathBuf,
}

impl ArgumentPaths {
    pub fn new(prefix: &Path, run_dir: &Path) -> Result<ArgumentPaths> {
        Ok(ArgumentPaths {
            prefix: prefix.to_owned(),
            run_dir: run_dir.to_owned(),
            here: std::env::current_dir().context("the current directory")?,
        })
    }

    /// Refuses patterns of outside that are relative to a directory whose name no pattern can have.
    pub fn check_patterns(&self, choice: &ChoiceArgs) -> Result<(), Failure> {
        let mut patterns = choice.only.iter().chain(&choice.skip);
        let is_relative = |pattern: &String| Path::new(pattern).is_relative();
        match self.here.to_str().is_none() && patterns.any(is_relative) {
            false => Ok(()),
            true => Err(Failure::Refused(
                "--only, --skip: the name of this directory is not UTF-8; give patterns of absolute paths".to_owned(),
            )),
        }
    }

    /// The path behind the prefix, with a slash before it.
    pub fn below(&self, path: &Path) -> Option<PathBuf> {
        let path = path.as_os_str().as_bytes();
        let rest = path.strip_prefix(self.prefix.as_os_str().as_bytes())?;
        match rest {
            [] => Some(PathBuf::from("/")),
            [b'/', ..] => Some(PathBuf::from(OsStr::from_bytes(rest))),
            _ => None,
        }
    }

    pub fn inside(&self, path: &Path) -> Result<PathBuf, Failure> {
        self.below(path).ok_or_else(|| {
            if self.is_elevated(path) {
                let (path, run_dir) = (path.display(), self.run_dir.display());
                return Failure::Refused(format!(
                    "{path} is in a directory that the instance elevates, whose files programs see: weir run -i {run_dir} \
                     -- cp -a {path} DESTINATION copies it"
                ));
            }
            Failure::Refused(format!(
                "{} is not in the instance, whose paths begin with {}",
                path.display(),
                self.prefix.display()
            ))
        })
    }

    fn is_elevated(&self, path: &Path) -> bool {
        let path = find_real_path(&self.here.join(path));
        let mut elevated = elevated_targets(&self.run_dir).into_iter();
        elevated.any(|dir| path.starts_with(dir))
    }

    pub fn outside(&self, path: &Path) -> Result<PathBuf, Failure> {
        match self.below(path) {
            None => Ok(self.here.join(path)),
            Some(_) => Err(Failure::Refused(format!(
                "{} is in the instance, and so is the other end: cp does that in weir run",
                path.display()
            ))),
        }
    }
}

/// A path without symbolic links, of which the end need not exist outside.
fn find_real_path(path: &Path) -> PathBuf {
    for above in path.ancestors() {
        if let (Ok(real), Ok(rest)) = (above.canonicalize(), path.strip_prefix(above)) {
            // Without the slash that an empty rest would add.
            return real.join(rest).components().collect();
        }
    }
    path.to_owned()
}

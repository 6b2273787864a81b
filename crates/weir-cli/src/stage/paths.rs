//! The paths on the command line of `weir stage`: which are in the instance, and which outside.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, Result};
use weir_mover::tree::NodeKind;
use weir_mover::unmoved::ElevatedPair;
use weir_mover::{DirectoryTree, InstanceTree, MoveSide, PathFilter};

use crate::args::ChoiceArgs;
use crate::exit::Failure;
use crate::locate::{elevated_directories, elevated_targets};

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

/// The elevated directories of an instance, from which a stage would not take the files that programs see.
pub(super) struct ElevatedSources {
    run_dir: PathBuf,
    /// Each tree with its directory, which has no symbolic link in its path.
    trees: Vec<(PathBuf, InstanceTree)>,
}

impl ElevatedSources {
    /// Where mirrors lie over the directories there are none: a stage sees what programs see.
    pub fn find(run_dir: &Path, instance: &InstanceTree) -> Result<ElevatedSources> {
        let directories = elevated_directories(run_dir).into_iter().enumerate();
        let trees = directories.map(|(number, dir)| {
            let tree = instance.elevated(number).context("no such elevated tree")?;
            Ok((dir, tree))
        });
        Ok(ElevatedSources {
            run_dir: run_dir.to_owned(),
            trees: trees.collect::<Result<_>>()?,
        })
    }

    /// The trees with their directories.
    pub fn pairs(&self) -> ElevatedPairs<'_> {
        let pair = |(dir, tree)| {
            let (from, to) = (MoveSide::new(tree, "/"), MoveSide::new(&DirectoryTree, dir));
            (dir, ElevatedPair::new(from, to))
        };
        ElevatedPairs {
            run_dir: &self.run_dir,
            pairs: self
                .trees
                .iter()
                .map(|(dir, tree)| pair((&**dir, tree)))
                .collect(),
        }
    }
}

/// The trees of [`ElevatedSources`], compared with their directories.
pub(super) struct ElevatedPairs<'s> {
    run_dir: &'s Path,
    pairs: Vec<(&'s Path, ElevatedPair<'s, InstanceTree, DirectoryTree>)>,
}

impl ElevatedPairs<'_> {
    /// Refuses a source outside if it has files for which programs of the instance see others, or which they do not see. A
    /// source may be a pattern; `filter` chooses among the paths that it leads to.
    pub fn check(&self, source: &Path, filter: &PathFilter) -> Result<(), Failure> {
        let literal = literal_part(source);
        let pattern = source.strip_prefix(&literal).unwrap_or(Path::new(""));
        let mut ends = [&b"/"[..], b"/."].into_iter();
        let is_entered = ends.any(|end| source.as_os_str().as_bytes().ends_with(end));
        // A link is moved as a link, unless a slash follows it.
        let real = match (literal.parent(), literal.file_name()) {
            (Some(dir), Some(name)) if !is_entered && pattern.as_os_str().is_empty() => {
                find_real_path(dir).join(name)
            }
            _ => find_real_path(&literal),
        };
        let matches = match pattern.to_str() {
            None | Some("") => PathFilter::default(),
            // The stage itself refuses a pattern that cannot be parsed.
            Some(pattern) => PathFilter::new(&[format!("/{pattern}")], &[]).unwrap_or_default(),
        };
        for (dir, pair) in &self.pairs {
            let below = match real.strip_prefix(dir) {
                Ok(below) => below,
                Err(_) if dir.starts_with(&real) => Path::new(""),
                Err(_) => continue,
            };
            let is_chosen = |path: &Path, kind: NodeKind| {
                let whole = dir.join(path);
                // Above the source: a removed directory.
                let within = whole.strip_prefix(&real).unwrap_or(Path::new(""));
                matches.takes_kind(&Path::new("/").join(within), kind)
                    && filter.takes_kind(&literal.join(within), kind)
            };
            let unmoved = pair.find_unmoved(below, is_chosen);
            let unmoved = unmoved.with_context(|| format!("comparing {}", source.display()))?;
            if let Some(unmoved) = unmoved {
                return Err(Failure::Refused(format!(
                    "programs of the instance see another {} than the one that is there yet: weir drain --wait has it \
                     moved first, or weir run -i {} -- cp -a {} DESTINATION copies what they see",
                    dir.join(unmoved).display(),
                    self.run_dir.display(),
                    source.display()
                )));
            }
        }
        Ok(())
    }
}

/// The part of a source above the first component that may be a pattern; all of it, if it exists.
fn literal_part(source: &Path) -> PathBuf {
    if source.symlink_metadata().is_ok() {
        return source.components().collect();
    }
    let is_literal = |part: &Component<'_>| {
        let bytes = part.as_os_str().as_bytes();
        !bytes.iter().any(|byte| b"*?[{".contains(byte))
    };
    source.components().take_while(is_literal).collect()
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

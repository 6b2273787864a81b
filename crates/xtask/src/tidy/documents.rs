//! Documents name files that exist, and say a number's promise in a short row.
//!
//! A *path of the tree* is a word of a document or of a comment that ends in the extension of a source
//! or a document (`process/special.rs`), or a word in backticks that ends in `/` (`view/`). It exists if the
//! path of a file or folder of the repository ends with it: documents name a file as its crate does. A
//! word that begins with `/`, or has other characters than names of files have, is no such path.
//!
//! In comments a word needs a `/` within it, because `main.rs` in an example may be anybody's.
//!
//! Left out: files and folders of a running instance ([`AT_RUN_TIME`]).

use std::collections::BTreeSet;
use std::path::Path;

/// The longest row of a table in docs/SPECIFICATION.md, in characters.
pub const LONGEST_ROW: usize = 200;

/// Extensions of files that documents name.
const EXTENSIONS: [&str; 4] = [".rs", ".md", ".toml", ".sh"];

/// A folder of an instance, and a file of its user.
const AT_RUN_TIME: [&str; 2] = ["special/", "weir.toml"];

/// The paths of the repository, each with every end of it.
#[derive(Debug, Default)]
pub struct RepositoryPaths {
    ends: BTreeSet<String>,
}

impl RepositoryPaths {
    /// Adds a file, by its path from the root, and the folders above it.
    pub fn add(&mut self, file: &Path) {
        let mut is_folder = false;
        for path in file.ancestors() {
            let names: Vec<_> = path.iter().map(|name| name.to_string_lossy()).collect();
            for first in 0..names.len() {
                let slash = if is_folder { "/" } else { "" };
                self.ends
                    .insert(format!("{}{slash}", names[first..].join("/")));
            }
            is_folder = true;
        }
    }

    /// The paths that a line of a document names and that do not exist.
    pub fn missing_in_document(&self, line: &str) -> Vec<String> {
        let folders = line.split('`').skip(1).step_by(2);
        let folders = folders.filter(|word| word.ends_with('/'));
        self.missing(
            words(line)
                .filter(|word| has_extension(word))
                .chain(folders),
        )
    }

    /// The same for a line of a comment, without its slashes.
    pub fn missing_in_comment(&self, line: &str) -> Vec<String> {
        self.missing(words(line).filter(|word| has_extension(word) && word.contains('/')))
    }

    fn missing<'a>(&self, named: impl Iterator<Item = &'a str>) -> Vec<String> {
        named
            .filter(|path| !path.starts_with('/') && path.chars().all(is_of_a_name))
            .map(|path| path.trim_start_matches("../").trim_start_matches("./"))
            .filter(|path| !self.ends.contains(*path) && !AT_RUN_TIME.contains(path))
            .map(str::to_owned)
            .collect()
    }
}

/// The words of a line: what stands between blanks and punctuation that paths do not have.
fn words(line: &str) -> impl Iterator<Item = &str> {
    line.split(|c: char| c.is_whitespace() || "`()[],;\"'|<>=".contains(c))
        .map(|word| word.trim_end_matches(['.', ':', '?']))
}

fn has_extension(word: &str) -> bool {
    let is_at_end = |extension: &str| word.ends_with(extension) && word.len() > extension.len();
    EXTENSIONS.iter().any(|extension| is_at_end(extension))
}

fn is_of_a_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || "_-./".contains(c)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree() -> RepositoryPaths {
        let mut tree = RepositoryPaths::default();
        tree.add(Path::new("crates/a/src/process/special.rs"));
        tree.add(Path::new("docs/FORMAT.md"));
        tree
    }

    #[test]
    fn a_path_may_begin_at_any_folder() {
        let line = "`process/special.rs`, a/src/process/special.rs; `special.rs`: docs/FORMAT.md. `process/`";
        assert_eq!(tree().missing_in_document(line), [""; 0]);
    }

    #[test]
    fn a_path_that_does_not_exist_is_found() {
        assert_eq!(
            tree().missing_in_document(
                "`process/gone.rs` (docs/GONE.md), `gone.rs`, `gone/`, ess/special.rs"
            ),
            [
                "process/gone.rs",
                "docs/GONE.md",
                "gone.rs",
                "ess/special.rs",
                "gone/"
            ]
        );
        assert_eq!(
            tree().missing_in_comment("docs/GONE.md, main.rs, either/or, `gone/`"),
            ["docs/GONE.md"]
        );
    }

    #[test]
    fn other_words_are_no_paths() {
        let line = "`/etc/weir.toml` https://a/b.md *.rs {a,b}.rs $HOME/a.toml `a b/`, and/or, .rs";
        assert_eq!(tree().missing_in_document(line), [""; 0]);
    }
}

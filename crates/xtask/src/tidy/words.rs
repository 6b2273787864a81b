//! Words that the workspace does not use, and words that it uses for two things.
//!
//! docs/glossary.md has a table of words that are not to be used, each for one kind of place, and
//! the words to use instead. This check reads that table and counts, in each crate:
//!
//! - *type*: definitions of a struct, enum, union, trait or type alias of that name;
//! - *function*: definitions of a function or method of that name. A call is none, and neither is
//!   a method in the `impl` of a trait, or a function of C's: others named them;
//! - *opening*: documentation comments whose first word it is;
//! - *comment*: lines of comment in which it stands.
//!
//! A type's name that several modules define means several things; those are counted by name, for
//! all crates together. Tests may use the name again for their doubles.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{ensure, Context, Result};
use syn::visit::{self, Visit};

use super::modules::is_for_tests;
use super::ratchet::FaultCount;

/// The heading of the table in docs/glossary.md.
const HEADING: &str = "## Words that weir does not use";

/// The kinds of places, as the table's second column has them, and the rule of each.
const KINDS: [(&str, &str); 4] = [
    ("type", "words-types"),
    ("function", "words-functions"),
    ("opening", "words-openings"),
    ("comment", "words-comments"),
];

/// The table of the glossary: word and kind, and the words to use instead.
#[derive(Debug, Default)]
pub struct Glossary {
    instead: BTreeMap<(String, &'static str), String>,
}

impl Glossary {
    /// Reads the text of docs/glossary.md.
    pub fn parse(text: &str) -> Result<Self> {
        let table = text.split(HEADING).nth(1).context("no table of words")?;
        let rows = table
            .lines()
            .skip_while(|line| !line.starts_with('|'))
            .take_while(|line| line.starts_with('|'))
            .skip(2);
        let mut glossary = Glossary::default();
        for row in rows {
            let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
            ensure!(cells.len() == 3, "not three cells: {row}");
            let kind = KINDS.iter().find(|(kind, _)| *kind == cells[1]);
            let (kind, _) = kind.with_context(|| format!("no kind of place: {row}"))?;
            for word in cells[0].split(',') {
                let word = word.trim().trim_matches('`').to_owned();
                let instead = cells[2].to_owned();
                glossary.instead.insert((word, kind), instead);
            }
        }
        for (kind, _) in KINDS {
            let is_of_kind = |(_, k): &&(String, &str)| *k == kind;
            ensure!(
                glossary.instead.keys().any(|key| is_of_kind(&key)),
                "no word of the kind {kind}"
            );
        }
        Ok(glossary)
    }

    fn fault(&self, kind: &'static str, word: &str, path: &Path, line: usize) -> Option<String> {
        let instead = self.instead.get(&(word.to_owned(), kind))?;
        Some(format!(
            "{}:{line}: {kind} `{word}`: {instead}",
            path.display()
        ))
    }
}

/// The words of a crate, or of the documents, that are not to be used.
#[derive(Debug, Default)]
pub struct WordFaults {
    /// The faults of each kind.
    faults: BTreeMap<&'static str, Vec<String>>,
    /// The types that are defined, each with its place; none of tests.
    types: Vec<(String, String)>,
}

impl WordFaults {
    /// Looks at one source.
    pub fn add_source(&mut self, glossary: &Glossary, path: &Path, text: &str) -> Result<()> {
        let parsed = syn::parse_file(text).with_context(|| path.display().to_string())?;
        let mut definitions = Definitions {
            is_test: parsed.attrs.iter().any(is_for_tests) || is_of_tests(path),
            found: Vec::new(),
        };
        definitions.visit_file(&parsed);
        for found in definitions.found {
            let fault = glossary.fault(found.kind, &found.name, path, found.line);
            self.faults.entry(found.kind).or_default().extend(fault);
            if found.kind == "type" && !found.is_test {
                let place = format!("{}:{}", path.display(), found.line);
                self.types.push((found.name, place));
            }
        }
        let mut is_within = false;
        for (index, line) in text.lines().enumerate() {
            let line = line.trim_start();
            let comment = comment_of(line);
            if let Some(words) = comment {
                self.add_comment(glossary, path, index + 1, words);
                if line.starts_with("//") && !is_within {
                    let is_documentation = line.starts_with("///") || line.starts_with("//!");
                    let first = words.split(|c: char| !c.is_alphanumeric()).next();
                    if let (true, Some(first)) = (is_documentation, first) {
                        let fault = glossary.fault("opening", first, path, index + 1);
                        self.faults.entry("opening").or_default().extend(fault);
                    }
                }
            }
            is_within = line.starts_with("//");
        }
        Ok(())
    }

    /// Looks at one line of prose.
    pub fn add_comment(&mut self, glossary: &Glossary, path: &Path, line: usize, text: &str) {
        let words = text.split(|c: char| !c.is_alphanumeric());
        let faults = words
            .filter_map(|word| glossary.fault("comment", &word.to_ascii_lowercase(), path, line));
        self.faults.entry("comment").or_default().extend(faults);
    }

    /// The number of faults of each kind, under the key `key`.
    pub fn counts(&self, key: &str) -> Vec<FaultCount> {
        let faults = |kind| self.faults.get(kind).cloned().unwrap_or_default();
        KINDS
            .iter()
            .map(|(kind, rule)| FaultCount::of_each(rule, key.to_owned(), faults(*kind)))
            .filter(|count| !count.faults.is_empty())
            .collect()
    }
}

/// The names that several types of the workspace have.
pub fn same_names<'a>(crates: impl IntoIterator<Item = &'a WordFaults>) -> Vec<FaultCount> {
    let mut places: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for (name, place) in crates.into_iter().flat_map(|words| &words.types) {
        places.entry(name).or_default().push(place.clone());
    }
    places
        .into_iter()
        .filter(|(_, places)| places.len() > 1)
        .map(|(name, places)| FaultCount::of_each("same-names", name.to_owned(), places))
        .collect()
}

/// The comment of a line, without its slashes. A `//` within a string counts too, where a blank follows.
pub fn comment_of(line: &str) -> Option<&str> {
    let comment = if line.starts_with("//") {
        line
    } else {
        line.split_once(" // ")?.1
    };
    Some(comment.trim_start_matches(['/', '!']).trim_start())
}

/// Is the source one of tests alone?
fn is_of_tests(path: &Path) -> bool {
    let is_folder = |name: &std::ffi::OsStr| {
        ["tests", "benches", "examples", "fuzz"]
            .iter()
            .any(|folder| name == *folder)
    };
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    path.iter().any(is_folder) || stem == "tests" || stem.ends_with("_tests")
}

struct Definition {
    kind: &'static str,
    name: String,
    line: usize,
    is_test: bool,
}

/// Collects the definitions of a source.
struct Definitions {
    found: Vec<Definition>,
    is_test: bool,
}

impl Definitions {
    fn add(&mut self, kind: &'static str, name: &syn::Ident) {
        self.found.push(Definition {
            kind,
            name: name.to_string(),
            line: name.span().start().line,
            is_test: self.is_test,
        });
    }
}

impl<'ast> Visit<'ast> for Definitions {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        let was_test = self.is_test;
        self.is_test |= item.attrs.iter().any(is_for_tests);
        visit::visit_item_mod(self, item);
        self.is_test = was_test;
    }

    fn visit_item_struct(&mut self, item: &'ast syn::ItemStruct) {
        self.add("type", &item.ident);
        visit::visit_item_struct(self, item);
    }

    fn visit_item_enum(&mut self, item: &'ast syn::ItemEnum) {
        self.add("type", &item.ident);
        visit::visit_item_enum(self, item);
    }

    fn visit_item_union(&mut self, item: &'ast syn::ItemUnion) {
        self.add("type", &item.ident);
        visit::visit_item_union(self, item);
    }

    fn visit_item_type(&mut self, item: &'ast syn::ItemType) {
        self.add("type", &item.ident);
        visit::visit_item_type(self, item);
    }

    fn visit_item_trait(&mut self, item: &'ast syn::ItemTrait) {
        self.add("type", &item.ident);
        visit::visit_item_trait(self, item);
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        self.add("function", &item.sig.ident);
        visit::visit_trait_item_fn(self, item);
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.add("function", &item.sig.ident);
        visit::visit_item_fn(self, item);
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        for member in &item.items {
            if let (None, syn::ImplItem::Fn(function)) = (&item.trait_, member) {
                self.add("function", &function.sig.ident);
            }
        }
        visit::visit_item_impl(self, item);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn glossary() -> Glossary {
        let text = format!(
            "| a | b |\n|--|--|\n| x | y |\n\n{HEADING}\n\n| not | as | instead |\n| --- | --- | --- |\n\
             | `Place`, `Found` | type | the field's noun |\n| `take` | function | a verb and its object |\n\
             | `What` | opening | a noun |\n| `whom` | comment | the actor |\n\nEnd.\n| `f` | g | h |\n"
        );
        Glossary::parse(&text).unwrap()
    }

    fn words(path: &str, text: &str) -> WordFaults {
        let mut words = WordFaults::default();
        words
            .add_source(&glossary(), Path::new(path), text)
            .unwrap();
        words
    }

    /// How many faults of each kind a source has.
    fn faults(text: &str) -> Vec<(&'static str, usize)> {
        let counts = words("a.rs", text).counts("a");
        counts.iter().map(|c| (c.rule, c.numbers[0])).collect()
    }

    #[test]
    fn definitions_of_types_count_and_uses_do_not() {
        let text = "pub struct Place; enum Found {} fn f(_: Place) -> Found { loop {} }";
        assert_eq!(faults(text), [("words-types", 2)]);
        assert_eq!(faults("use other::Place; fn f(_: other::Found) {}"), []);
        assert_eq!(
            faults("mod m { trait Place { type Found; } }"),
            [("words-types", 1)]
        );
    }

    #[test]
    fn definitions_of_functions_count_and_calls_and_traits_of_others_do_not() {
        let text = "fn take() {} impl A { fn take(self) {} } trait B { fn take(&self); }";
        assert_eq!(faults(text), [("words-functions", 3)]);
        let text =
            "impl Iterator for A { fn take(self) {} } fn f() { std::mem::take(a); a.take(); }";
        assert_eq!(faults(text), []);
        assert_eq!(faults("extern \"C\" { fn take(); } fn take_lock() {}"), []);
    }

    #[test]
    fn a_documentation_comment_opens_once() {
        let text = "//! What this is.\n\n/// One.\n/// What two is.\nfn f() {}\n/// What.\nfn g() {}\n// What.\n";
        assert_eq!(faults(text), [("words-openings", 2)]);
        assert_eq!(faults("/// Whatever.\nfn f() {}"), []);
    }

    #[test]
    fn a_word_in_a_comment_counts() {
        let text = "/\u{2f} Whom it calls.\nfn f() {} /\u{2f} to whom\nfn whom() {}\n";
        assert_eq!(faults(text), [("words-comments", 2)]);
    }

    #[test]
    fn faults_say_where_they_are_and_the_word_to_write() {
        let counts = words("a.rs", "\nstruct Place;").counts("a");
        assert_eq!(counts[0].faults, ["a.rs:2: type `Place`: the field's noun"]);
    }

    #[test]
    fn types_of_one_name_are_counted_over_all_crates_without_tests() {
        let twice = words("a.rs", "struct A; struct B; mod m { struct A; }");
        let once = words("b.rs", "struct A; #[cfg(test)] mod tests { struct B; }");
        let tests = words("crates/c/tests/c.rs", "struct B;");
        let counts = same_names([&twice, &once, &tests]);
        assert_eq!(counts.len(), 1);
        assert_eq!(
            (counts[0].key.as_str(), &counts[0].numbers[..]),
            ("A", &[3][..])
        );
    }

    #[test]
    fn a_table_that_says_nothing_is_an_error() {
        assert!(Glossary::parse("| a | b |").is_err());
        assert!(Glossary::parse(&format!("{HEADING}\n")).is_err());
        assert!(Glossary::parse(&format!(
            "{HEADING}\n| a | b | c |\n|-|-|-|\n| `A` | thing | b |"
        ))
        .is_err());
    }
}

//! Paths in JSON. Its strings are UTF-8, and names of files are any bytes.
//!
//! A path is a string, in which bytes that are not UTF-8 are replaced: two paths may look the same. If there are such
//! bytes, the object also has the path as ASCII, under the same key followed by `_bytes`: a byte that is not printable is
//! written as `\xFF`, or `\t`, `\r`, `\n`, and a backslash or a quote has a backslash before it. `printf %b` converts this
//! to the path. For a list of paths, that key has a list of all of them.
//!
//! The modules [`path`], [`source`], [`target`] and so on are for `#[serde(flatten, with = "...")]`, each for the key of its name.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// A path as ASCII, with all its bytes.
fn escaped(path: &Path) -> String {
    path.as_os_str().as_bytes().escape_ascii().to_string()
}

/// The path that [`escaped`] has written; `None`: it cannot have written this text.
fn unescaped(text: &str) -> Option<PathBuf> {
    let mut rest = text.bytes();
    let mut bytes = Vec::new();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'\\' => match rest.next()? {
                b't' => b'\t',
                b'r' => b'\r',
                b'n' => b'\n',
                b'x' => {
                    let digits = [rest.next()?, rest.next()?];
                    let digits = std::str::from_utf8(&digits).ok()?;
                    u8::from_str_radix(digits, 16).ok()?
                }
                byte => byte,
            },
            byte => byte,
        });
    }
    Some(OsString::from_vec(bytes).into())
}

/// The entries of an object for a path: each a key and its value.
pub fn entries_of(key: &str, path: &Path) -> impl Iterator<Item = (String, String)> {
    let text = path.to_string_lossy().into_owned();
    let bytes = path.to_str().is_none().then(|| escaped(path));
    let bytes = bytes.map(|bytes| (format!("{key}_bytes"), bytes));
    std::iter::once((key.to_owned(), text)).chain(bytes)
}

/// The same for a list of paths.
fn entries_of_list(key: &str, paths: &[PathBuf]) -> impl Iterator<Item = (String, Vec<String>)> {
    let texts = paths.iter();
    let texts = texts.map(|path| path.to_string_lossy().into_owned());
    let is_text = paths.iter().all(|path| path.to_str().is_some());
    let bytes = (!is_text).then(|| paths.iter().map(|path| escaped(path)).collect());
    let bytes = bytes.map(|bytes| (format!("{key}_bytes"), bytes));
    std::iter::once((key.to_owned(), texts.collect())).chain(bytes)
}

/// The path that entries give.
fn path_of(text: String, bytes: Option<&str>) -> PathBuf {
    let whole = bytes.and_then(unescaped);
    whole.unwrap_or_else(|| text.into())
}

/// The paths that entries give.
fn paths_of(texts: Vec<String>, bytes: Vec<String>) -> Vec<PathBuf> {
    let mut bytes = bytes.into_iter();
    let paths = texts.into_iter();
    paths
        .map(|text| path_of(text, bytes.next().as_deref()))
        .collect()
}

/// Makes a module for a key.
macro_rules! path_key {
    ($key:ident, $bytes:literal, $text:ty, $value:ty, $given:ty, $entries:ident, $read:expr) => {
        #[doc = concat!("The key `", stringify!($key), "`.")]
        pub mod $key {
            use std::path::PathBuf;

            use serde::{Deserialize, Deserializer, Serializer};

            /// Writes the entries.
            pub fn serialize<S: Serializer>(
                value: &$given,
                serializer: S,
            ) -> Result<S::Ok, S::Error> {
                serializer.collect_map(super::$entries(stringify!($key), value))
            }

            /// Reads the entries.
            pub fn deserialize<'de, D: Deserializer<'de>>(
                deserializer: D,
            ) -> Result<$value, D::Error> {
                #[derive(Deserialize)]
                struct Entries {
                    $key: $text,
                    #[serde(rename = $bytes, default)]
                    bytes: Option<$text>,
                }
                let entries = Entries::deserialize(deserializer)?;
                let read: fn($text, Option<$text>) -> $value = $read;
                Ok(read(entries.$key, entries.bytes))
            }
        }
    };
    ($key:ident, $bytes:literal) => {
        path_key!(
            $key,
            $bytes,
            String,
            PathBuf,
            std::path::Path,
            entries_of,
            |text, bytes| super::path_of(text, bytes.as_deref())
        );
    };
    (list $key:ident, $bytes:literal) => {
        path_key!(
            $key,
            $bytes,
            Vec<String>,
            Vec<PathBuf>,
            [PathBuf],
            entries_of_list,
            |texts, bytes| super::paths_of(texts, bytes.unwrap_or_default())
        );
    };
}

path_key!(path, "path_bytes");
path_key!(source, "source_bytes");
path_key!(target, "target_bytes");
path_key!(log, "log_bytes");
path_key!(list skipped, "skipped_bytes");
path_key!(list not_emptied, "not_emptied_bytes");
path_key!(list not_reached, "not_reached_bytes");
path_key!(list others, "others_bytes");

#[cfg(test)]
mod tests {
    use super::*;
    use serde::{Deserialize, Serialize};

    #[derive(PartialEq, Debug, Serialize, Deserialize)]
    struct Object {
        #[serde(flatten, with = "super::path")]
        path: PathBuf,
        size: u64,
        #[serde(flatten, with = "super::skipped")]
        skipped: Vec<PathBuf>,
    }

    fn path(bytes: &[u8]) -> PathBuf {
        OsString::from_vec(bytes.to_vec()).into()
    }

    #[test]
    fn paths_that_are_text_are_text_alone() {
        let object = Object {
            path: "/a/\u{e4}\\x".into(),
            size: 1,
            skipped: vec!["b".into()],
        };
        let text = serde_json::to_string(&object).unwrap();
        assert_eq!(
            text,
            "{\"path\":\"/a/\u{e4}\\\\x\",\"size\":1,\"skipped\":[\"b\"]}"
        );
        assert_eq!(serde_json::from_str::<Object>(&text).unwrap(), object);
    }

    #[test]
    fn names_that_are_not_text_stay_two() {
        let names: [&[u8]; 4] = [b"a\xff", b"a\xfe", "a\u{fffd}".as_bytes(), b"a\\xff"];
        let mut seen = std::collections::HashSet::new();
        for name in names {
            let object = Object {
                path: path(name),
                size: 1,
                skipped: vec![path(name), "b".into()],
            };
            let text = serde_json::to_string(&object).unwrap();
            assert_eq!(serde_json::from_str::<Object>(&text).unwrap(), object);
            assert!(seen.insert(text));
        }
    }

    #[test]
    fn all_bytes_come_back() {
        let all = path(&(1..=255).collect::<Vec<u8>>());
        let text = escaped(&all);
        assert!(text.is_ascii() && !text.contains('\n'));
        assert_eq!(unescaped(&text), Some(all));
        for bad in ["\\", "\\x", "\\x1", "\\xgg"] {
            assert_eq!(unescaped(bad), None, "{bad}");
        }
    }
}

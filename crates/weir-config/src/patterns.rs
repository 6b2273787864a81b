//! Lists of patterns over paths.

use globset::GlobBuilder;
use serde::Serialize;
use toml::de::DeValue;

use crate::environment::Environment;
use crate::types::{expected, quoted, InvalidValue, Setting};

/// Checked globs, in the order in which they were written.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Patterns(pub Vec<String>);

impl Patterns {
    /// Each as a pattern of paths below the mount, which begin with a slash.
    pub fn below<'a>(&'a self, mount: &'a str) -> impl Iterator<Item = String> + 'a {
        self.0.iter().map(move |pattern| {
            let inside = pattern.strip_prefix(mount).filter(|p| p.starts_with('/'));
            let inside = inside.unwrap_or(pattern);
            format!("/{}", inside.trim_start_matches('/'))
        })
    }
}

fn checked(pattern: &str) -> Result<String, InvalidValue> {
    let built = GlobBuilder::new(pattern).literal_separator(true).build();
    match built {
        Ok(_) if pattern.is_empty() => Err("an empty pattern".to_owned().into()),
        Ok(_) => Ok(pattern.to_owned()),
        Err(error) => Err(format!("not a pattern: {}", error.kind()).into()),
    }
}

impl Setting for Patterns {
    const SHAPE: &'static str = "a list of patterns (in a variable or option: with `:` between)";

    fn from_text(text: &str, _: &Environment) -> Result<Self, InvalidValue> {
        let parts = text.split(':').filter(|part| !part.is_empty());
        parts.map(checked).collect::<Result<_, _>>().map(Patterns)
    }

    fn from_toml(value: &DeValue<'_>, _: &Environment) -> Result<Self, InvalidValue> {
        let items = match value {
            DeValue::String(text) => return Ok(Patterns(vec![checked(text)?])),
            DeValue::Array(items) => items,
            other => return Err(expected::<Self>(other.type_str())),
        };
        let patterns = items.iter().map(|item| match item.get_ref() {
            DeValue::String(text) => checked(text),
            other => Err(expected::<Self>(&format!(
                "a list with {}",
                other.type_str()
            ))),
        });
        patterns.collect::<Result<_, _>>().map(Patterns)
    }

    fn to_toml(&self) -> String {
        let items: Vec<String> = self.0.iter().map(|pattern| quoted(pattern)).collect();
        format!("[{}]", items.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_below_the_mount_however_they_are_written() {
        let env = Environment::default();
        let patterns = Patterns::from_text("/weir/a/**:/b:c/*.x:/weird", &env).unwrap();
        let below: Vec<_> = patterns.below("/weir").collect();
        assert_eq!(below, ["/a/**", "/b", "/c/*.x", "/weird"]);
        assert_eq!(
            patterns.to_toml(),
            r#"["/weir/a/**", "/b", "c/*.x", "/weird"]"#
        );
        assert_eq!(Patterns::from_text("", &env), Ok(Patterns::default()));
    }

    #[test]
    fn what_is_no_pattern_is_refused() {
        let bad = Patterns::from_text("/a[", &Environment::default()).unwrap_err();
        assert!(bad.reason.starts_with("not a pattern: "), "{}", bad.reason);
    }
}

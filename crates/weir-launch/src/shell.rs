//! Words of a shell's command line.

/// A word that any POSIX shell reads as `text`.
pub fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoting_survives_a_quote() {
        assert_eq!(quoted("a'b c"), r"'a'\''b c'");
    }
}

//! Sizes in bytes as people write them: `47008`, `64k`, `1m`, `1MiB`. Suffixes are binary (k = 1024).

/// Reads a size with an optional binary suffix k, m or g (also `KiB`, `kb` and the like).
///
/// # Errors
/// A sentence for the user: not a number, an unknown suffix, zero, or too large.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit());
    let (number, suffix) = text.split_at(digits.unwrap_or(text.len()));
    let number: u64 = number
        .parse()
        .map_err(|_| format!("`{text}` is not a size; write for example 47008, 64k or 1m"))?;
    let shift = match suffix.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        other => return Err(format!("unknown suffix `{other}`; use k, m or g")),
    };
    let bytes = number
        .checked_mul(1 << shift)
        .filter(|&b| i64::try_from(b).is_ok())
        .ok_or_else(|| format!("`{text}` is too large"))?;
    if bytes == 0 {
        return Err("a size of zero measures nothing".into());
    }
    Ok(bytes)
}

/// Writes a size the shortest exact way: `1 MiB`, `64 KiB`, `47008 B`.
pub fn show_size(bytes: u64) -> String {
    for (shift, unit) in [(30, "GiB"), (20, "MiB"), (10, "KiB")] {
        if bytes != 0 && bytes.is_multiple_of(1 << shift) {
            return format!("{} {unit}", bytes >> shift);
        }
    }
    format!("{bytes} B")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_with_binary_suffixes() {
        assert_eq!(parse_size("47008"), Ok(47008));
        assert_eq!(parse_size("64k"), Ok(65536));
        assert_eq!(parse_size("1MiB"), Ok(1 << 20));
        assert_eq!(parse_size("2 g"), Ok(2 << 30));
    }

    #[test]
    fn bad_sizes_say_what_is_wrong() {
        assert!(parse_size("1x").unwrap_err().contains("suffix"));
        assert!(parse_size("k").unwrap_err().contains("not a size"));
        assert!(parse_size("0").unwrap_err().contains("zero"));
        assert!(parse_size("99999999999g").unwrap_err().contains("large"));
    }

    #[test]
    fn sizes_are_shown_exactly() {
        assert_eq!(show_size(1 << 20), "1 MiB");
        assert_eq!(show_size(65536), "64 KiB");
        assert_eq!(show_size(47008), "47008 B");
    }
}

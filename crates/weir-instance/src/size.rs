//! Numbers of bytes, for people.

/// A number of bytes to three digits: `1.50 GiB`.
pub fn bytes(bytes: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let mut whole = bytes;
    let mut unit = 0;
    while whole >= 1 << 20 {
        whole >>= 10;
        unit += 1;
    }
    if unit == 0 && whole < 1024 {
        return format!("{whole} B");
    }
    // Below 2^20 every number is exact as a float.
    let shown = f64::from(u32::try_from(whole).expect("below 2^20")) / 1024.0;
    let digits = if shown < 10.0 {
        2
    } else {
        usize::from(shown < 100.0)
    };
    format!("{shown:.digits$} {}", units[unit + 1])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_have_three_digits() {
        let cases = [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.00 KiB"),
            (1536, "1.50 KiB"),
            (47 << 20, "47.0 MiB"),
            (500 << 30, "500 GiB"),
            (u64::MAX, "16.0 EiB"),
        ];
        for (number, text) in cases {
            assert_eq!(bytes(number), text);
        }
    }
}

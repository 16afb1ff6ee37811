//! Numbers of bytes as people type and read them: `4096`, `64KiB`, `10GiB`; units are powers of 1,024, as in the servers'
//! configuration. Scope: pure functions.

/// Largest first.
const UNITS: [(&str, u32); 4] = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];

/// A number with a unit; without one it is bytes. Also `K`, `M`, `G`, `T`, in either case. At least 1.
///
/// # Errors
/// A text for the person who typed it.
pub fn parse(text: &str) -> Result<u64, String> {
    let wrong = || format!("`{text}` is not a size such as 4096, 64MiB or 10GiB");
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let unit = &text[digits.len()..];
    let named = |name: &str| name.eq_ignore_ascii_case(unit) || name[..1].eq_ignore_ascii_case(unit);
    let shift = match UNITS.iter().find(|(name, _)| named(name)) {
        Some((_, shift)) => *shift,
        None if unit.is_empty() || unit.eq_ignore_ascii_case("b") => 0,
        None => return Err(wrong()),
    };
    let count: u64 = digits.parse().map_err(|_| wrong())?;
    count.checked_mul(1 << shift).filter(|bytes| *bytes > 0).ok_or_else(wrong)
}

/// The largest unit that loses nothing.
pub fn show(bytes: u64) -> String {
    match UNITS.iter().find(|(_, shift)| bytes > 0 && bytes.is_multiple_of(1 << shift)) {
        Some((unit, shift)) => format!("{}{unit}", bytes >> shift),
        None => bytes.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_understood_and_nonsense_is_not() {
        assert_eq!(parse("4096"), Ok(4_096));
        assert_eq!(parse("64KiB"), Ok(65_536));
        assert_eq!(parse("8m"), Ok(8 << 20));
        assert_eq!(parse("10GiB"), Ok(10 << 30));
        assert_eq!(parse("1TIB"), Ok(1 << 40));
        assert_eq!(parse("5b"), Ok(5));
        for text in ["", "0", "-1", "GiB", "1.5GiB", "1GB", "1 GiB", "1PiB", "99999999999TiB", "1é"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn what_is_shown_is_understood_again() {
        for bytes in [1, 1_000, 1_024, 65_536, 3 << 20, (1 << 40) + 1, 5 << 40] {
            assert_eq!(parse(&show(bytes)), Ok(bytes));
        }
        assert_eq!(show(10 << 30), "10GiB");
        assert_eq!(show(0), "0");
    }
}

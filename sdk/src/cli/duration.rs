//! Times as people type them: `90`, `90s`, `15m`, `1h`, `7d`, `250ms`. Scope: pure functions.

use std::time::Duration;

/// Units, longest spelling first where one ends in another.
const UNITS: [(&str, u64); 5] = [("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];

/// A number with a unit; without one it is seconds. At least one millisecond.
///
/// # Errors
/// A text for the person who typed it.
pub fn parse(text: &str) -> Result<Duration, String> {
    let wrong = || format!("`{text}` is not a time such as 90s, 15m or 1h");
    let (digits, millis_each) = UNITS
        .iter()
        .find_map(|(unit, millis)| text.strip_suffix(unit).map(|digits| (digits, *millis)))
        .unwrap_or((text, 1_000));
    let number: u64 = digits.parse().map_err(|_| wrong())?;
    let millis = number.checked_mul(millis_each).ok_or_else(wrong)?;
    if millis == 0 { Err(wrong()) } else { Ok(Duration::from_millis(millis)) }
}

/// A time of whole seconds.
///
/// # Errors
/// As [`parse`], and a time with a fraction of a second.
pub fn parse_seconds(text: &str) -> Result<Duration, String> {
    let time = parse(text)?;
    if time.subsec_nanos() == 0 {
        Ok(time)
    } else {
        Err(format!("`{text}` is not a whole number of seconds"))
    }
}

/// Seconds in the largest unit that loses nothing.
pub fn show_seconds(seconds: u64) -> String {
    let unit = UNITS
        .iter()
        .rev()
        .map(|(unit, millis)| (unit, millis / 1_000))
        .find(|(_, each)| *each > 0 && seconds > 0 && seconds.is_multiple_of(*each));
    unit.map_or_else(|| format!("{seconds}s"), |(unit, each)| format!("{}{unit}", seconds / each))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_understood_and_nonsense_is_not() {
        let millis = |text| parse(text).map(|time| time.as_millis());
        assert_eq!(millis("90"), Ok(90_000));
        assert_eq!(millis("90s"), Ok(90_000));
        assert_eq!(millis("15m"), Ok(900_000));
        assert_eq!(millis("1h"), Ok(3_600_000));
        assert_eq!(millis("2d"), Ok(172_800_000));
        assert_eq!(millis("250ms"), Ok(250));
        for text in ["", "s", "0", "-1s", "1w", "1.5h", "99999999999999999999d", "18446744073709551615d"] {
            assert!(parse(text).is_err(), "{text}");
        }
        assert!(parse_seconds("1500ms").is_err());
        assert_eq!([0, 1, 90, 3_600, 604_800].map(show_seconds), ["0s", "1s", "90s", "1h", "7d"]);
        assert_eq!(parse_seconds("2000ms"), Ok(Duration::from_secs(2)));
    }
}

//! Values on the command line that several commands accept.

use std::time::Duration;

/// Units of a duration, with their seconds. The longer name first where one starts with another.
const UNITS: [(&str, f64); 8] =
    [("ms", 1e-3), ("us", 1e-6), ("min", 60.0), ("sec", 1.0), ("h", 3600.0), ("m", 60.0), ("s", 1.0), ("", 1.0)];

/// Reads the ID of a process.
pub fn parse_pid(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| "not the number of a process".to_owned())
}

/// Reads a duration: a number of seconds (`10`, `0.5`), or numbers with units (`500ms`, `10s`, `1m30s`, `1h`). Fails with one sentence.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    const WRONG: &str = "not a duration: give seconds (10, 0.5), or numbers with units (500ms, 10s, 1m30s, 1h)";
    let mut seconds = 0.0;
    let mut rest = text.trim();
    loop {
        let digits = rest.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(rest.len());
        let (number, after) = rest.split_at(digits);
        let number: f64 = number.parse().map_err(|_| WRONG)?;
        let (unit, length) = UNITS.into_iter().find(|(unit, _)| after.starts_with(unit)).ok_or(WRONG)?;
        seconds += number * length;
        rest = &after[unit.len()..];
        if rest.is_empty() {
            break;
        }
        // `10 seconds` is no unit and a rest, and `1 2` no number of seconds.
        if unit.is_empty() {
            return Err(WRONG.to_owned());
        }
    }
    match Duration::try_from_secs_f64(seconds) {
        Ok(duration) if !duration.is_zero() => Ok(duration),
        _ => Err("not a time above zero".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_with_and_without_units() {
        let milliseconds = |text| parse_duration(text).map(|duration| duration.as_millis());
        let right =
            ["10", "0.5", "10s", "500ms", "1m30s", "2m", "2min", "1h", "1h1m1s", " 3 ", "1.5s", "3sec", "900us"];
        let expected = [10_000, 500, 10_000, 500, 90_000, 120_000, 120_000, 3_600_000, 3_661_000, 3000, 1500, 3000, 0];
        assert_eq!(right.map(milliseconds), expected.map(Ok));
        for wrong in ["", "s", "10 seconds", "1 2", "-1", "1d", "0", "0s", "1e3", "nan", "1..2", "ms10", "9e999"] {
            assert!(parse_duration(wrong).is_err(), "{wrong}");
        }
        assert!(parse_duration(&"9".repeat(400)).is_err());
    }
}

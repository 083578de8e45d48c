//! Numbers and times as a person reads them.

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// `1234567` as `1,234,567`.
pub fn count(value: u64) -> String {
    let digits = value.to_string();
    let mut grouped = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

/// A share in percent with one digit after the point; never `0.0 %` for something, never
/// `100.0 %` for less than everything.
pub fn percent(part: u64, whole: u64) -> String {
    if whole == 0 {
        return "-".to_string();
    }
    let percent = part as f64 * 100.0 / whole as f64;
    if part > 0 && percent < 0.05 {
        "<0.1 %".to_string()
    } else if part < whole && percent >= 99.95 {
        ">99.9 %".to_string()
    } else {
        format!("{percent:.1} %")
    }
}

/// The share of a time that a guest lost, by pauses and what follows them. It loses no more than all of it: what is above was lost before the time
/// began, when the profiler attached, or was estimated too high.
pub fn percent_lost(lost: u64, time: u64) -> String {
    percent(lost.min(time), time)
}

/// A duration with three digits and the unit that fits: `14.2 µs`, `1.03 s`.
pub fn duration(ns: u64) -> String {
    let (value, unit) = match ns {
        0..=999 => return format!("{ns} ns"),
        1_000..=999_499 => (ns as f64 / 1e3, "µs"),
        999_500..=999_499_999 => (ns as f64 / 1e6, "ms"),
        _ => (ns as f64 / 1e9, "s"),
    };
    match value {
        value if value < 9.995 => format!("{value:.2} {unit}"),
        value if value < 99.95 => format!("{value:.1} {unit}"),
        value => format!("{} {unit}", count(value.round() as u64)),
    }
}

/// `2026-03-01 12:34:56 UTC`, from nanoseconds since 1970.
pub fn date(unix_ns: u64) -> String {
    let seconds = unix_ns / 1_000_000_000;
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    // The calendar repeats every 400 years (146,097 days); years begin in March, so that the leap
    // day is a year's last.
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02}:{:02} UTC", second / 3_600, second / 60 % 60, second % 60)
}

/// The first `columns` columns of a text, marked with `…` where something is missing.
pub fn cut_end(text: &str, columns: usize) -> String {
    if text.width() <= columns {
        return text.to_string();
    }
    let mut kept: String = text.chars().take_while(within(columns)).collect();
    // A sequence can be wider than its characters: U+FE0F makes the one before it two columns wide.
    while kept.width() >= columns.max(1) {
        kept.pop();
    }
    if columns > 0 {
        kept.push('…');
    }
    kept
}

/// Whether a character, and those before it, leave room for one more column.
fn within(columns: usize) -> impl FnMut(&char) -> bool {
    let mut used = 0;
    move |c| {
        used += c.width().unwrap_or(0);
        used < columns
    }
}

/// The last `columns` columns of a text, marked with `…` where something is missing.
pub fn cut_start(text: &str, columns: usize) -> String {
    if text.width() <= columns {
        return text.to_string();
    }
    let kept = text.chars().rev().take_while(within(columns)).map(char::len_utf8).sum::<usize>();
    let mut kept = &text[text.len() - kept..];
    while kept.width() >= columns.max(1) {
        let first = kept.chars().next().map_or(kept.len(), char::len_utf8);
        kept = &kept[first..];
    }
    if columns > 0 { format!("…{kept}") } else { String::new() }
}

/// Fills up with spaces on the right.
pub fn pad(text: &str, columns: usize) -> String {
    format!("{text}{}", " ".repeat(columns.saturating_sub(text.width())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_cut_fits_even_where_characters_combine() {
        let text = "ab\u{1f56f}\u{fe0f}\u{1fdd}\u{1f56f}\u{fe0f}\u{1f56f}\u{fe0f}cd";
        for columns in 0..12 {
            for cut in [cut_end(text, columns), cut_start(text, columns)] {
                assert!(cut.width() <= columns, "{cut:?} is wider than {columns}");
            }
        }
        assert_eq!((cut_end("abcd", 3), cut_start("abcd", 3)), ("ab…".into(), "…cd".into()));
    }

    #[test]
    fn thousands_are_separated() {
        for (value, text) in [(0, "0"), (999, "999"), (1_000, "1,000"), (1_234_567, "1,234,567")] {
            assert_eq!(count(value), text);
        }
        assert_eq!(count(u64::MAX), "18,446,744,073,709,551,615");
    }

    #[test]
    fn percentages_hide_neither_little_nor_the_rest() {
        for (part, whole, text) in [
            (0, 0, "-"),
            (0, 10, "0.0 %"),
            (1, 1_000_000, "<0.1 %"),
            (1, 1_000, "0.1 %"),
            (1, 3, "33.3 %"),
            (999_999, 1_000_000, ">99.9 %"),
            (10, 10, "100.0 %"),
            (3, 2, "150.0 %"),
        ] {
            assert_eq!(percent(part, whole), text);
        }
        assert_eq!([percent_lost(1, 3), percent_lost(52, 5), percent_lost(1, 0)], ["33.3 %", "100.0 %", "-"]);
    }

    #[test]
    fn durations_have_the_unit_that_fits() {
        for (ns, text) in [
            (0, "0 ns"),
            (999, "999 ns"),
            (1_000, "1.00 µs"),
            (9_999, "10.0 µs"),
            (14_230, "14.2 µs"),
            (99_960, "100 µs"),
            (999_499, "999 µs"),
            (999_500, "1.00 ms"),
            (999_499_999, "999 ms"),
            (999_500_000, "1.00 s"),
            (59_940_000_000, "59.9 s"),
            (3_600_000_000_000, "3,600 s"),
        ] {
            assert_eq!(duration(ns), text);
        }
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        // `date -u -d @N '+%F %T'` prints the same.
        for (seconds, text) in [
            (0, "1970-01-01 00:00:00 UTC"),
            (951_782_400, "2000-02-29 00:00:00 UTC"),
            (1_709_251_199, "2024-02-29 23:59:59 UTC"),
            (1_767_225_599, "2025-12-31 23:59:59 UTC"),
            (4_107_542_400, "2100-03-01 00:00:00 UTC"),
        ] {
            assert_eq!(date(seconds * 1_000_000_000), text);
        }
        let _ = date(u64::MAX);
    }

    #[test]
    fn texts_are_cut_to_columns() {
        assert_eq!(cut_end("abcdef", 6), "abcdef");
        assert_eq!(cut_end("abcdefg", 6), "abcde…");
        assert_eq!(cut_start("abcdefg", 6), "…cdefg");
        assert_eq!(cut_end("長長長長", 6), "長長…");
        assert_eq!(cut_start("長長長長", 6), "…長長");
        assert_eq!(cut_end("abc", 0), "");
        assert_eq!(pad("長", 4), "長  ");
    }
}

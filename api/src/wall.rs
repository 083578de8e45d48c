//! The time of day.

use core::fmt;
use core::time::Duration;

/// A date and time in UTC. `Display` is ISO 8601 with milliseconds.
///
/// It may jump in either direction when the host's clock is set: measure with [`Instant`](crate::Instant), and use this
/// for display and for other machines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WallTime {
    /// Time since 1970-01-01T00:00:00Z, without leap seconds.
    pub since_epoch: Duration,
    /// Which clock it comes from.
    pub source: WallSource,
}

/// Where a [`WallTime`] comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum WallSource {
    /// The kernel that the process runs on (`CLOCK_REALTIME`).
    Host,
    /// KVM's clock for guests: the host's time, to the microsecond.
    Kvm,
    /// Xen's clock for domains: its time, to the microsecond.
    Xen,
    /// The real-time clock (RTC) of a PC, in whole seconds: it may be late by up to one.
    Rtc,
    /// A simulation, whose date follows from its seed.
    Simulated,
}

impl fmt::Display for WallSource {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(match self {
            WallSource::Host => "host",
            WallSource::Kvm => "KVM",
            WallSource::Xen => "Xen",
            WallSource::Rtc => "RTC",
            WallSource::Simulated => "simulation",
        })
    }
}

const DAY_SECS: u64 = 86_400;
const DAYS_IN_400_YEARS: u64 = 146_097;
/// From 0000-03-01 to 1970-01-01.
const DAYS_BEFORE_1970: u64 = 719_468;

impl fmt::Display for WallTime {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let secs = self.since_epoch.as_secs();
        let (year, month, day) = date_of(secs / DAY_SECS);
        let (hour, minute, second) = (secs / 3600 % 24, secs / 60 % 60, secs % 60);
        let millis = self.since_epoch.subsec_millis();
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millis:03}Z")
    }
}

/// A moment since 1970-01-01T00:00:00Z, without leap seconds, as HTTP writes it (RFC 9110, section 5.6.7), in whole seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HttpDate(pub Duration);

// 1970-01-01 was a Thursday.
const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

impl HttpDate {
    /// Reads a date in one of the three forms that a recipient accepts: `Sun, 06 Nov 1994 08:49:37 GMT`, that of RFC 850, and that of C's
    /// `asctime`. The year of RFC 850 has two digits: it is the last such one that is at most 50 years after `now`, which is since
    /// 1970. `None` for other text, for a date that the calendar does not have and for one before 1970. Whether the name of the day is
    /// that of the date is not checked.
    pub fn parse(text: &str, now: Duration) -> Option<HttpDate> {
        let text = text.trim_ascii();
        if let Some((day, rest)) = text.split_once(", ") {
            let mut words = rest.strip_suffix(" GMT")?.split(' ');
            let (date, time) = match (words.next()?, words.next()?, words.next(), words.next()) {
                (day_of_month, month, Some(year), Some(time)) if DAYS.contains(&day) => {
                    ((digits(year, 4)?, month_number(month)?, digits(day_of_month, 2)?), time)
                }
                (date, time, None, None) if is_long_day(day) => {
                    let (day_of_month, rest) = date.split_once('-')?;
                    let (month, year) = rest.split_once('-')?;
                    let (this_year, ..) = date_of(now.as_secs() / DAY_SECS);
                    let latest = this_year + 50;
                    let year = latest - (latest + 100 - digits(year, 2)?) % 100;
                    ((year, month_number(month)?, digits(day_of_month, 2)?), time)
                }
                _ => return None,
            };
            return if words.next().is_none() { moment(date, time) } else { None };
        }
        // A day below 10 has a space more.
        let (day, rest) = text.split_once(' ')?;
        let (month, rest) = rest.split_once(' ')?;
        let (day_of_month, rest) = rest.strip_prefix(' ').unwrap_or(rest).split_once(' ')?;
        let (time, year) = rest.split_once(' ')?;
        let day_of_month = digits(day_of_month, day_of_month.len().clamp(1, 2))?;
        if DAYS.contains(&day) { moment((digits(year, 4)?, month_number(month)?, day_of_month), time) } else { None }
    }
}

fn is_long_day(name: &str) -> bool {
    name.ends_with("day") && DAYS.iter().any(|day| name.starts_with(day))
}

fn month_number(name: &str) -> Option<u64> {
    MONTHS.iter().position(|month| *month == name).map(|index| index as u64 + 1)
}

/// A number of exactly `count` digits.
fn digits(text: &str, count: usize) -> Option<u64> {
    let is_number = text.len() == count && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| is_number)
}

/// A year, month and day of the calendar at `hh:mm:ss`.
fn moment(wanted: (u64, u64, u64), time: &str) -> Option<HttpDate> {
    let (hour, rest) = time.split_once(':')?;
    let (minute, second) = rest.split_once(':')?;
    let (hour, minute, second) = (digits(hour, 2)?, digits(minute, 2)?, digits(second, 2)?);
    // A leap second is the first of the next minute.
    if hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    let days = days_until(wanted)?;
    (date_of(days) == wanted)
        .then(|| HttpDate(Duration::from_secs(days * DAY_SECS + hour * 3600 + minute * 60 + second)))
}

/// Days from 1970-01-01 to a date, the inverse of [`date_of`] for dates that the calendar has.
fn days_until((year, month, day): (u64, u64, u64)) -> Option<u64> {
    let year = if month <= 2 { year.checked_sub(1)? } else { year };
    let (era, year_of_era) = (year / 400, year % 400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day.checked_sub(1)?;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    (era * DAYS_IN_400_YEARS + day_of_era).checked_sub(DAYS_BEFORE_1970)
}

impl fmt::Display for HttpDate {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let secs = self.0.as_secs();
        let days = secs / DAY_SECS;
        let (year, month, day) = date_of(days);
        let (hour, minute, second) = (secs / 3600 % 24, secs / 60 % 60, secs % 60);
        let (weekday, month) = (DAYS[(days % 7) as usize], MONTHS[month as usize - 1]);
        write!(f, "{weekday}, {day:02} {month} {year:04} {hour:02}:{minute:02}:{second:02} GMT")
    }
}

/// Year, month and day of the Gregorian calendar, `days` after 1970-01-01. Years are counted from March on, so that the
/// leap day is the last of its year: a month's first day is then a linear function of its number.
fn date_of(days: u64) -> (u64, u64, u64) {
    let days = days + DAYS_BEFORE_1970;
    let (era, day_of_era) = (days / DAYS_IN_400_YEARS, days % DAYS_IN_400_YEARS);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let months_since_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * months_since_march + 2) / 5 + 1;
    let month = if months_since_march < 10 { months_since_march + 3 } else { months_since_march - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    fn text(secs: u64) -> alloc::string::String {
        WallTime { since_epoch: Duration::from_secs(secs), source: WallSource::Host }.to_string()
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        // By `date -u -d @SECONDS`.
        for (secs, expected) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_399, "2000-02-28T23:59:59.000Z"),
            (951_782_400, "2000-02-29T00:00:00.000Z"),
            (1_078_099_200, "2004-03-01T00:00:00.000Z"),
            (1_795_341_900, "2026-11-22T10:05:00.000Z"),
            (4_107_542_400, "2100-03-01T00:00:00.000Z"),
            (253_402_300_799, "9999-12-31T23:59:59.000Z"),
        ] {
            assert_eq!(text(secs), expected);
        }
        assert_eq!(HttpDate(Duration::from_secs(784_111_777)).to_string(), "Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(HttpDate(Duration::ZERO).to_string(), "Thu, 01 Jan 1970 00:00:00 GMT");
        // No moment that there is overflows.
        assert!(text(u64::MAX).ends_with('Z'));
    }

    #[test]
    fn dates_are_read_in_all_forms_of_http() {
        let now = Duration::from_secs(1_795_341_900);
        let read = |text: &str| HttpDate::parse(text, now).map(|date| date.0.as_secs());
        for form in ["Sun, 06 Nov 1994 08:49:37 GMT", "Sunday, 06-Nov-94 08:49:37 GMT", "Sun Nov  6 08:49:37 1994"] {
            assert_eq!(read(form), Some(784_111_777), "{form}");
        }
        assert_eq!(read("Tue Nov 15 12:45:26 1994"), Some(784_903_526));
        // Two digits of a year are at most 50 years ahead: `now` is in 2026.
        for (text, year) in [("76", 2076), ("77", 1977), ("26", 2026), ("00", 2000), ("99", 1999)] {
            let read = read(&alloc::format!("Monday, 01-Mar-{text} 00:00:00 GMT")).unwrap();
            assert_eq!(date_of(read / DAY_SECS), (year, 3, 1));
        }
        for secs in [0, 951_782_399, 951_782_400, 1_078_099_200, 4_107_542_400, 253_402_300_799] {
            let date = HttpDate(Duration::from_secs(secs));
            assert_eq!(HttpDate::parse(&date.to_string(), now), Some(date));
        }
        for bad in [
            "",
            "yesterday",
            "0",
            "Sun, 06 Nov 1994 08:49:37",
            "Sun, 06 Nov 1994 08:49:37 UTC",
            "Sun, 06 Nov 1994 08:49:37 GMT GMT",
            "Sun, 6 Nov 1994 08:49:37 GMT",
            "Xyz, 06 Nov 1994 08:49:37 GMT",
            "Sun, 06 nov 1994 08:49:37 GMT",
            "Sun, 31 Nov 1994 08:49:37 GMT",
            "Sun, 00 Nov 1994 08:49:37 GMT",
            "Sun, 06 Nov 1994 24:49:37 GMT",
            "Sun, 06 Nov 1994 08:60:37 GMT",
            "Sun, 06 Nov 1994 08:49:61 GMT",
            "Sun, 06 Nov 1994 8:49:37 GMT",
            "Sun, 06 Nov 0000 08:49:37 GMT",
            "Thu, 01 Jan 0000 00:00:00 GMT",
            "Wed, 31 Dec 1969 23:59:59 GMT",
            "Sun, 06-Nov-94 08:49:37 GMT",
            "Sunday, 06 Nov 1994 08:49:37 GMT",
            "Sunday, 06-Nov-1994 08:49:37 GMT",
            "Sun Nov 006 08:49:37 1994",
            "Sun Nov  08:49:37 1994",
            "Sun Nov 6 08:49:37 1994 GMT",
            "\u{fc}, \u{fc} \u{fc} \u{fc} \u{fc} GMT",
        ] {
            assert_eq!(read(bad), None, "{bad}");
        }
    }
}

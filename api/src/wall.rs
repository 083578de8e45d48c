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

impl fmt::Display for WallTime {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let secs = self.since_epoch.as_secs();
        let (year, month, day) = date(secs / DAY_SECS);
        let (hour, minute, second) = (secs / 3600 % 24, secs / 60 % 60, secs % 60);
        let millis = self.since_epoch.subsec_millis();
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millis:03}Z")
    }
}

/// A moment since 1970-01-01T00:00:00Z, without leap seconds, as HTTP writes it (RFC 9110, section 5.6.7), in whole seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HttpDate(pub Duration);

impl fmt::Display for HttpDate {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        // 1970-01-01 was a Thursday.
        const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
        const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
        let secs = self.0.as_secs();
        let days = secs / DAY_SECS;
        let (year, month, day) = date(days);
        let (hour, minute, second) = (secs / 3600 % 24, secs / 60 % 60, secs % 60);
        let (weekday, month) = (DAYS[(days % 7) as usize], MONTHS[month as usize - 1]);
        write!(f, "{weekday}, {day:02} {month} {year:04} {hour:02}:{minute:02}:{second:02} GMT")
    }
}

/// Year, month and day of the Gregorian calendar, `days` after 1970-01-01. Years are counted from March on, so that the
/// leap day is the last of its year: a month's first day is then a linear function of its number.
fn date(days: u64) -> (u64, u64, u64) {
    const DAYS_IN_400_YEARS: u64 = 146_097;
    // From 0000-03-01 to 1970-01-01.
    let days = days + 719_468;
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
}

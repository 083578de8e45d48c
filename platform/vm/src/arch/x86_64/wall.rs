//! The time of day: from Xen or KVM where they offer their clock, else from the battery-backed clock of a PC.

use super::ports::{read_port8, write_port8};
use super::time;
use core::time::Duration;
use glass_api::{WallSource, WallTime};

/// The time of day; `None` if the machine has no clock for it. One core at a time may call it: KVM's structures and the clock's registers are the
/// machine's.
pub fn read() -> Option<WallTime> {
    if let Some(since_epoch) = time::wall_from_xen() {
        return Some(WallTime { since_epoch, source: WallSource::Xen });
    }
    if let Some(since_epoch) = time::wall_from_kvm() {
        return Some(WallTime { since_epoch, source: WallSource::Kvm });
    }
    let secs = read_rtc(|register| {
        // Bit 7 would mask non-maskable interrupts.
        write_port8(0x70, register);
        read_port8(0x71)
    })?;
    Some(WallTime { since_epoch: Duration::from_secs(secs), source: WallSource::Rtc })
}

/// Registers of the MC146818 (its data sheet, and ACPI's century register, which QEMU and most firmware have at 0x32).
mod register {
    pub const TIME: [u8; 7] = [0x00, 0x02, 0x04, 0x07, 0x08, 0x09, 0x32];
    pub const A: u8 = 0x0a;
    pub const B: u8 = 0x0b;
}
/// What a port without a device reads as.
const NO_DEVICE: u8 = 0xff;
/// In register A: the time changes within 244 us.
const UPDATING: u8 = 0x80;
/// In register B: numbers are binary, not decimal digits; hours are 0 to 23.
const BINARY: u8 = 0x04;
const HOURS_24: u8 = 0x02;
/// In the register of hours, where they are 1 to 12.
const AFTERNOON: u8 = 0x80;
/// Polls of a clock that is always about to change, as a missing one seems to be.
const POLLS_MAX: usize = 2_000;

/// Seconds since 1970; `None` if there is no such clock or it shows no date. `read` reads a register.
fn read_rtc(read: impl Fn(u8) -> u8) -> Option<u64> {
    // Where there is no device, every register reads so, and waiting for it would take a while.
    if read(register::A) == NO_DEVICE && read(register::B) == NO_DEVICE {
        return None;
    }
    let steady = || {
        (0..POLLS_MAX).find(|_| read(register::A) & UPDATING == 0)?;
        Some(register::TIME.map(&read))
    };
    // Twice the same: no update came in between.
    let mut before = steady()?;
    for _ in 0..3 {
        let time = steady()?;
        if time == before {
            return decode(time, read(register::B));
        }
        before = time;
    }
    None
}

fn decode(time: [u8; 7], mode: u8) -> Option<u64> {
    let number = |byte: u8| u64::from(if mode & BINARY != 0 { byte } else { (byte >> 4) * 10 + (byte & 0xf) });
    let [second, minute, hour, day, month, year, century] = time;
    let hour = match mode & HOURS_24 != 0 {
        true => number(hour),
        false => number(hour & !AFTERNOON) % 12 + if hour & AFTERNOON != 0 { 12 } else { 0 },
    };
    let century = Some(number(century)).filter(|century| (19..=29).contains(century)).unwrap_or(20);
    let (second, minute, day, month) = (number(second), number(minute), number(day), number(month));
    let is_date = second < 60 && minute < 60 && hour < 24 && (1..=31).contains(&day) && (1..=12).contains(&month);
    let days = days(century * 100 + number(year), month, day).filter(|_| is_date)?;
    Some(((days * 24 + hour) * 60 + minute) * 60 + second)
}

/// Days from 1970-01-01 to a date of the Gregorian calendar. Years begin in March, so that a leap day is the last of one.
fn days(year: u64, month: u64, day: u64) -> Option<u64> {
    let (year, month) = if month > 2 { (year, month - 3) } else { (year.checked_sub(1)?, month + 9) };
    let since_year_0 = year * 365 + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day.checked_sub(1)?;
    // From 0000-03-01 to 1970-01-01.
    since_year_0.checked_sub(719_468)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;
    use core::cell::Cell;

    fn text(secs: u64) -> alloc::string::String {
        WallTime { since_epoch: Duration::from_secs(secs), source: WallSource::Rtc }.to_string()
    }

    #[test]
    fn dates_are_read_in_each_of_the_clocks_modes() {
        let expected = "2026-11-22T22:05:09.000Z";
        for (time, mode) in [
            ([0x09, 0x05, 0x22, 0x22, 0x11, 0x26, 0x20], HOURS_24),
            ([0x09, 0x05, 0x90, 0x22, 0x11, 0x26, 0x20], 0),
            ([9, 5, 22, 22, 11, 26, 20], HOURS_24 | BINARY),
            ([9, 5, 10 | AFTERNOON, 22, 11, 26, 0xff], BINARY),
        ] {
            assert_eq!(text(decode(time, mode).unwrap()), expected, "{time:?}");
        }
        // Midnight and noon, and a leap day.
        assert_eq!(text(decode([0, 0, 0x12, 0x29, 0x02, 0x24, 0x20], 0).unwrap()), "2024-02-29T00:00:00.000Z");
        assert_eq!(text(decode([0, 0, 0x92, 0x01, 0x01, 0x70, 0x19], 0).unwrap()), "1970-01-01T12:00:00.000Z");
        assert_eq!(decode([0, 0, 0, 0, 0, 0, 0], 0), None);
        assert_eq!(decode([0x60, 0, 0, 1, 1, 0x26, 0x20], HOURS_24), None);
    }

    #[test]
    fn every_answer_of_a_clock_is_taken() {
        assert_eq!(read_rtc(|_| 0xff), None, "nothing is there");
        for byte in 0..=0x7f {
            let _ = read_rtc(|_| byte);
        }
        // One that never shows the same twice.
        let count = Cell::new(0u8);
        let changing = |register| {
            count.set(count.get().wrapping_add(1));
            if register == register::A { 0 } else { count.get() }
        };
        assert_eq!(read_rtc(changing), None);
    }
}

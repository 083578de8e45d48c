//! The TSC's frequency, from the hypervisor if that reports it, else from the PIT; and the time of day of KVM and Xen.

use super::ports::{cpuid, read_port8, read_tsc, write_msr, write_port8};
use crate::xen;
use core::sync::atomic::{AtomicU32, Ordering};
use core::time::Duration;

const NS_PER_S: u128 = 1_000_000_000;

/// The TSC's frequency, or where its measurement started.
pub enum Frequency {
    /// The hypervisor reports it.
    Reported(Rates),
    /// Compared with the PIT, since this reading.
    Since(PitReading),
}

impl Frequency {
    /// Starts to find the TSC's frequency. What runs until [`Frequency::hz`] needs no time and is not waited for again.
    pub fn start() -> Frequency {
        hz_from_xen()
            .map(|tsc| Rates { tsc, timer: None })
            .or_else(rates_from_kvm)
            .map_or_else(|| Frequency::Since(start_pit()), Frequency::Reported)
    }

    /// The TSC's frequency in Hz.
    pub fn hz(&self) -> u64 {
        match *self {
            Frequency::Reported(rates) => rates.tsc,
            // The PIT has counted to its end if the host ran others meanwhile.
            Frequency::Since(start) => hz_since(start).or_else(|| hz_since(start_pit())).unwrap_or(GUESSED_HZ),
        }
    }

    /// The rate of the local APIC's timer, in Hz, where it is reported.
    pub fn timer_hz(&self) -> Option<u64> {
        match self {
            Frequency::Reported(rates) => rates.timer,
            Frequency::Since(_) => None,
        }
    }
}

/// Rates that a hypervisor reports, in Hz.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rates {
    tsc: u64,
    /// Of the local APIC's timer.
    timer: Option<u64>,
}

/// KVM's per-vCPU time structure, which is Xen's (Linux: `pvclock-abi.h`): version, padding, TSC at a moment (two words), nanoseconds of
/// KVM's clock at that moment (two words), multiplier, shift.
#[repr(C, align(32))]
struct KvmTime([AtomicU32; 8]);
static KVM_TIME: KvmTime = KvmTime([const { AtomicU32::new(0) }; 8]);

/// KVM's time of day when its clock was zero: version, seconds, nanoseconds.
#[repr(C, align(16))]
struct KvmWall([AtomicU32; 3]);
static KVM_WALL: KvmWall = KvmWall([const { AtomicU32::new(0) }; 3]);

const KVM_SIGNATURE_EBX: u32 = u32::from_le_bytes(*b"KVMK");
const KVM_CPUID: u32 = 0x4000_0000;
/// CPUID bit: the kvmclock MSRs at 0x4b564d00 exist.
const KVM_FEATURE_CLOCK: u32 = 1 << 3;
/// A leaf of CPUID that began with VMware and that QEMU (its `vmware-cpuid-freq`) and our VMM have, too: kHz of the TSC, kHz of the local APIC's
/// timer. It is one of the hypervisor's only below the end.
const RATES_CPUID: u32 = 0x4000_0010;
const CPUID_END: u32 = 0x4000_0100;
const MSR_KVM_WALL_CLOCK: u32 = 0x4b56_4d00;
const MSR_KVM_SYSTEM_TIME: u32 = 0x4b56_4d01;
/// Readings of a structure that the hypervisor may be writing.
const PV_READS_MAX: usize = 100;

/// The contents of the structure.
#[derive(Clone, Copy)]
struct PvReading {
    tsc: u64,
    system_ns: u64,
    multiplier: u32,
    shift: i8,
}

/// The hypervisor's last leaf of CPUID, if it is KVM.
fn last_leaf_of_kvm() -> Option<u32> {
    let [last, signature, ..] = cpuid(KVM_CPUID);
    (signature == KVM_SIGNATURE_EBX).then_some(last)
}

/// Whether KVM, as which the hypervisor is known, has the clock.
fn kvm_has_clock() -> bool {
    cpuid(KVM_CPUID + 1)[0] & KVM_FEATURE_CLOCK != 0
}

/// Exact and without waiting.
fn read_kvmclock() -> Option<PvReading> {
    // SAFETY: KVM writes 32 bytes to a static of that size and alignment, until the next write.
    unsafe { write_msr(MSR_KVM_SYSTEM_TIME, &raw const KVM_TIME as u64 | 1) };
    let reading = read_pvclock(|| core::array::from_fn(|index| KVM_TIME.0[index].load(Ordering::Acquire)));
    // SAFETY: switches it off again.
    unsafe { write_msr(MSR_KVM_SYSTEM_TIME, 0) };
    reading
}

/// The structure, when the hypervisor has not written it meanwhile.
fn read_pvclock(words: impl Fn() -> [u32; 8]) -> Option<PvReading> {
    (0..PV_READS_MAX).find_map(|_| {
        let read = words();
        // Odd while the hypervisor writes.
        let is_whole = read[0] & 1 == 0 && words()[0] == read[0];
        let long = |index: usize| u64::from(read[index]) | u64::from(read[index + 1]) << 32;
        let reading = PvReading { tsc: long(2), system_ns: long(4), multiplier: read[6], shift: read[7] as u8 as i8 };
        is_whole.then_some(reading)
    })
}

fn hz_from_xen() -> Option<u64> {
    let reading = if xen::is_domain() { read_pvclock(xen::time_words)? } else { return None };
    hz_from_pvclock(reading.multiplier, reading.shift)
}

/// The time of day by Xen; `None` outside of its domains.
pub fn wall_from_xen() -> Option<Duration> {
    if !xen::is_domain() {
        return None;
    }
    let at_zero = (0..PV_READS_MAX).find_map(|_| {
        let (version, wall) = xen::wall_at_zero();
        (version & 1 == 0 && xen::wall_at_zero().0 == version).then_some(wall)
    })?;
    let since_zero = system_time(read_pvclock(xen::time_words)?, read_tsc())?;
    (at_zero != Duration::ZERO).then(|| at_zero.saturating_add(since_zero))
}

/// With as few exits as possible: each CPUID is one.
fn rates_from_kvm() -> Option<Rates> {
    let last = last_leaf_of_kvm()?;
    if (RATES_CPUID..CPUID_END).contains(&last) {
        let [tsc, timer, ..] = cpuid(RATES_CPUID).map(|khz| (khz > 0).then_some(u64::from(khz) * 1000));
        if let Some(tsc) = tsc {
            return Some(Rates { tsc, timer });
        }
    }
    if !kvm_has_clock() {
        return None;
    }
    let reading = read_kvmclock()?;
    Some(Rates { tsc: hz_from_pvclock(reading.multiplier, reading.shift)?, timer: None })
}

/// The host's time of day; `None` without KVM's clock.
pub fn wall_from_kvm() -> Option<Duration> {
    if last_leaf_of_kvm().is_none() || !kvm_has_clock() {
        return None;
    }
    // SAFETY: KVM writes 12 bytes to a static of that size, once, before the next instruction.
    unsafe { write_msr(MSR_KVM_WALL_CLOCK, &raw const KVM_WALL as u64) };
    let [version, secs, nanos] = core::array::from_fn(|index| KVM_WALL.0[index].load(Ordering::Acquire));
    let reading = read_kvmclock()?;
    let at_zero = Duration::from_secs(secs.into()).checked_add(Duration::from_nanos(nanos.into()))?;
    let since_zero = system_time(reading, read_tsc())?;
    (version != 0 && version & 1 == 0 && secs != 0).then(|| at_zero.saturating_add(since_zero))
}

/// Time of the hypervisor's clock when the TSC is `tsc`.
fn system_time(reading: PvReading, tsc: u64) -> Option<Duration> {
    if !(-31..=31).contains(&reading.shift) {
        return None;
    }
    let ticks = u128::from(tsc.saturating_sub(reading.tsc));
    let shifted = if reading.shift < 0 { ticks >> -reading.shift } else { ticks << reading.shift };
    let since_ns = u64::try_from((shifted * u128::from(reading.multiplier)) >> 32).ok()?;
    Some(Duration::from_nanos(reading.system_ns.checked_add(since_ns)?))
}

/// ns = (ticks << shift) * multiplier >> 32, solved for ticks in a second.
fn hz_from_pvclock(multiplier: u32, shift: i8) -> Option<u64> {
    if multiplier == 0 || !(-31..=31).contains(&shift) {
        return None;
    }
    let hz = (NS_PER_S << 32) / u128::from(multiplier);
    let hz = if shift < 0 { hz << -shift } else { hz >> shift };
    u64::try_from(hz).ok().filter(|&hz| hz > 1_000_000)
}

const PIT_HZ: u128 = 1_193_182;
/// PIT ticks to measure at least: 2 ms. The error is a few ticks of reading, under 0.2 %.
const PIT_TICKS_MIN: u16 = 2386;
/// What the PIT counts down from: 55 ms.
const PIT_TICKS_MAX: u16 = u16::MAX;
/// Reads after which a PIT that does not count is given up: far more than 2 ms of port reads.
const PIT_READS_MAX: u32 = 1_000_000;
/// Reads of which the shortest is taken: code takes longer when it runs for the first time.
const PIT_READS_MIN: u32 = 4;
/// For a machine without any usable clock: time runs, at a guessed speed.
const GUESSED_HZ: u64 = 2_000_000_000;

/// Command of the PIT: channel 0, low and high byte, mode 0 (counts once; the output is high from the end on), binary.
const PIT_COUNT_ONCE: u8 = 0x30;
/// Command of the PIT: latch status and count of channel 0.
const PIT_READ_BACK: u8 = 0xc2;
/// Status: the output is high; the count was not loaded yet.
const PIT_OUTPUT: u8 = 1 << 7;
const PIT_NOT_LOADED: u8 = 1 << 6;

/// The PIT and the TSC at the same moment.
#[derive(Clone, Copy)]
pub struct PitReading {
    /// Since it was started.
    ticks: u16,
    tsc: u64,
}

/// Lets channel 0 count once, and reads it.
fn start_pit() -> PitReading {
    write_port8(0x43, PIT_COUNT_ONCE);
    let [low, high] = PIT_TICKS_MAX.to_le_bytes();
    write_port8(0x40, low);
    write_port8(0x40, high);
    read_pit().unwrap_or(PitReading { ticks: 0, tsc: read_tsc() })
}

/// The frequency since `start`, when enough time has passed; `None` if the PIT has reached its end or does not count.
fn hz_since(start: PitReading) -> Option<u64> {
    for _ in 0..PIT_READS_MAX {
        let end = read_pit()?;
        let ticks = end.ticks.saturating_sub(start.ticks);
        if ticks >= PIT_TICKS_MIN {
            return u64::try_from(u128::from(end.tsc.checked_sub(start.tsc)?) * PIT_HZ / u128::from(ticks)).ok();
        }
    }
    None
}

/// The shortest of a few readings; `None` if the PIT has reached its end.
fn read_pit() -> Option<PitReading> {
    let mut best: Option<(u64, PitReading)> = None;
    for _ in 0..PIT_READS_MIN {
        let before = read_tsc();
        write_port8(0x43, PIT_READ_BACK);
        let latched = read_tsc();
        let status = read_port8(0x40);
        let count = u16::from_le_bytes([read_port8(0x40), read_port8(0x40)]);
        if status & PIT_OUTPUT != 0 {
            return None;
        }
        let took = latched.saturating_sub(before);
        if status & PIT_NOT_LOADED == 0 && best.is_none_or(|(shortest, _)| took < shortest) {
            best = Some((took, PitReading { ticks: PIT_TICKS_MAX - count, tsc: before + took / 2 }));
        }
    }
    best.map(|(_, reading)| reading)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_frequency_follows_from_kvms_scale() {
        // 2.6 GHz: shift 0 and multiplier 2^32 / 2.6.
        let multiplier = ((1u64 << 32) * 10 / 26) as u32;
        let hz = hz_from_pvclock(multiplier, 0).unwrap();
        assert!(hz.abs_diff(2_600_000_000) < 10, "{hz}");
        assert!(hz_from_pvclock(multiplier, -1).unwrap().abs_diff(5_200_000_000) < 20);
        assert_eq!(hz_from_pvclock(0, 0), None);
        assert_eq!(hz_from_pvclock(1, 127), None);
    }

    #[test]
    fn kvms_time_goes_on_from_its_reading() {
        // 2 GHz: half a nanosecond a tick.
        let reading = PvReading { tsc: 1000, system_ns: 7_000_000_000, multiplier: 1 << 31, shift: 0 };
        assert_eq!(system_time(reading, 1000), Some(Duration::from_secs(7)));
        assert_eq!(system_time(reading, 2_000_001_000), Some(Duration::from_secs(8)));
        assert_eq!(system_time(PvReading { shift: -1, ..reading }, 4_000_001_000), Some(Duration::from_secs(8)));
        assert_eq!(system_time(PvReading { shift: 127, ..reading }, 2000), None);
        assert_eq!(system_time(PvReading { shift: 31, ..reading }, u64::MAX), None);
    }
}

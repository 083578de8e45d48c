//! The local APIC's timer and the I/O APICs' pins, by their memory-mapped registers.
//!
//! (x2APIC would need the wrmsr service for each access, 10 us on hosts that emulate ring 0.)

use crate::acpi::IoApic;
use crate::clock;
use crate::cores::this_core;
use crate::ports::{halt, write_port8};
use glass_api::Instant;

/// Local APIC registers, an architectural address.
pub const LOCAL_APIC: u64 = 0xfee0_0000;
/// The first I/O APIC when no table says otherwise.
pub const IO_APIC: IoApic = IoApic { address: 0xfec0_0000, first_interrupt: 0 };

const TIMER_VECTOR: u8 = 0x40;
/// Devices have the vectors from here on.
const FIRST_DEVICE_VECTOR: u8 = 0x50;
const SPURIOUS_VECTOR: u8 = 0xff;

/// Registers of the local APIC (Intel SDM volume 3, table 11-1).
mod register {
    pub const TASK_PRIORITY: u64 = 0x80;
    pub const END_OF_INTERRUPT: u64 = 0xb0;
    pub const SPURIOUS: u64 = 0xf0;
    pub const TIMER: u64 = 0x320;
    pub const LINT0: u64 = 0x350;
    pub const LINT1: u64 = 0x360;
    pub const TIMER_INITIAL: u64 = 0x380;
    pub const TIMER_CURRENT: u64 = 0x390;
    pub const TIMER_DIVIDE: u64 = 0x3e0;
}
const MASKED: u32 = 1 << 16;
const ENABLED: u32 = 1 << 8;
const DIVIDE_BY_1: u32 = 0xb;

fn read(register: u64) -> u32 {
    // SAFETY: the local APIC's page is mapped as a device; its registers touch no memory.
    unsafe { ((LOCAL_APIC + register) as *const u32).read_volatile() }
}

fn write(register: u64, value: u32) {
    // SAFETY: as for `read`; interrupts are taken only in the idle service, whatever is enabled.
    unsafe { ((LOCAL_APIC + register) as *mut u32).write_volatile(value) }
}

/// Enables this core's APIC, masks what we do not use and measures the timer.
pub fn initialize() {
    // The two 8259s, if there are any, stay silent.
    write_port8(0x21, 0xff);
    write_port8(0xa1, 0xff);
    write(register::SPURIOUS, ENABLED | u32::from(SPURIOUS_VECTOR));
    write(register::TASK_PRIORITY, 0);
    write(register::LINT0, MASKED);
    write(register::LINT1, MASKED);
    write(register::TIMER_DIVIDE, DIVIDE_BY_1);
    write(register::TIMER, MASKED | u32::from(TIMER_VECTOR));
    let timer_hz = measure_timer();
    this_core().apic_timer_hz.set(timer_hz);
    write(register::TIMER, u32::from(TIMER_VECTOR));
}

/// Timer ticks per second, measured against the TSC for 250 us.
fn measure_timer() -> u64 {
    write(register::TIMER_INITIAL, u32::MAX);
    let start = clock::now();
    let first = read(register::TIMER_CURRENT);
    while clock::now().0 - start.0 < 250_000 {}
    let last = read(register::TIMER_CURRENT);
    let elapsed_ns = (clock::now().0 - start.0).max(1);
    write(register::TIMER_INITIAL, 0);
    (u64::from(first.wrapping_sub(last)) * 1_000_000_000 / elapsed_ns).max(1)
}

/// Why [`idle`] returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wake {
    /// The deadline was reached.
    Timer,
    /// The device with this index asked for attention.
    Device(usize),
    /// Something else; look at everything.
    Other,
}

impl Wake {
    /// The interrupt's vector.
    pub fn vector(self) -> u8 {
        match self {
            Wake::Timer => TIMER_VECTOR,
            Wake::Device(device) => FIRST_DEVICE_VECTOR.saturating_add(device as u8),
            Wake::Other => SPURIOUS_VECTOR,
        }
    }
}

/// Halts the core until a device needs attention or `deadline` is reached.
///
/// An interrupt raised since the caller last looked ends the halt at once, so arming the devices,
/// looking once more and then calling this loses no wake-up.
pub fn idle(deadline: Option<Instant>) -> Wake {
    if let Some(deadline) = deadline {
        let ns = deadline.since(clock::now()).as_nanos().clamp(1, 1_000_000_000);
        let ticks = ns * u128::from(this_core().apic_timer_hz.get()) / 1_000_000_000;
        write(register::TIMER_INITIAL, ticks.clamp(1, u128::from(u32::MAX)) as u32);
    }
    let vector = halt();
    if vector != SPURIOUS_VECTOR {
        write(register::END_OF_INTERRUPT, 0);
    }
    if deadline.is_some() && vector != TIMER_VECTOR {
        write(register::TIMER_INITIAL, 0);
    }
    match vector {
        TIMER_VECTOR => Wake::Timer,
        SPURIOUS_VECTOR => Wake::Other,
        _ => match vector.checked_sub(FIRST_DEVICE_VECTOR) {
            Some(device) => Wake::Device(usize::from(device)),
            None => Wake::Other,
        },
    }
}

/// Routes global system interrupt `interrupt` to this core as device `device`.
///
/// The pin is programmed as edge triggered although virtio-mmio drives a level: the device's line
/// falls when its interrupt is acknowledged and rises anew with the next, and the queue is looked
/// at after the acknowledgement. A level pin costs one more exit and, on some hosts, a second wake-up.
///
/// Returns false when no I/O APIC handles that interrupt.
pub fn route(io_apics: &[IoApic], interrupt: u32, device: usize) -> bool {
    let candidates = io_apics.iter().filter(|apic| apic.first_interrupt <= interrupt);
    let Some(apic) = candidates.max_by_key(|apic| apic.first_interrupt) else { return false };
    let pin = interrupt - apic.first_interrupt;
    let vector = FIRST_DEVICE_VECTOR as usize + device;
    if pin >= 120 || vector >= usize::from(SPURIOUS_VECTOR) {
        return false;
    }
    let local_apic_id = read(0x20) >> 24;
    write_io_apic(apic.address, 0x11 + 2 * pin, local_apic_id << 24);
    write_io_apic(apic.address, 0x10 + 2 * pin, vector as u32);
    true
}

fn write_io_apic(address: u64, register: u32, value: u32) {
    // SAFETY: the I/O APIC's page is mapped as a device (start.rs maps every address that gets here).
    unsafe { (address as *mut u32).write_volatile(register) };
    // SAFETY: as above; the data window is at offset 16.
    unsafe { ((address + 16) as *mut u32).write_volatile(value) };
}

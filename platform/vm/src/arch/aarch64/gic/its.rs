//! The Interrupt Translation Service of version 3 (GIC architecture specification, chapter 5): a message of a device becomes an interrupt with a
//! number from 8192 on, which arrives at the boot core.

use super::distributor::Bank;
use super::{PRIORITY, v3};
use alloc::alloc::{Layout, alloc_zeroed};
use core::sync::atomic::{AtomicU64, Ordering, fence};

/// Registers.
mod register {
    pub const CONTROL: u64 = 0x0000;
    pub const TYPE: u64 = 0x0008;
    pub const COMMANDS: u64 = 0x0080;
    pub const WRITTEN: u64 = 0x0088;
    pub const READ: u64 = 0x0090;
    pub const TABLES: u64 = 0x0100;
    pub const MESSAGES: u64 = 0x1_0040;
}
const TABLES_COUNT: u64 = 8;
/// Kinds of tables, of which each has memory of ours.
const DEVICES: u64 = 1;
const COLLECTIONS: u64 = 4;
/// Of a table or of the queue of commands: it is there, in cached memory that is shared, in pages of 4 KiB, of which it is one.
const VALID: u64 = 1 << 63;
const CACHED: u64 = 7 << 59 | 1 << 10;
/// The same of a table that a redistributor has.
const CACHED_THERE: u64 = 7 << 7 | 1 << 10;
/// The queue has a page of commands, of four words each.
const PAGE_BYTES: usize = 4096;
const COMMAND_BYTES: u64 = 32;
/// Reads while a command is not carried out. Emulated ones are at once.
const READS_MAX: u32 = 1_000_000;

/// Commands.
mod command {
    pub const SYNC: u64 = 0x05;
    pub const MAP_DEVICE: u64 = 0x08;
    pub const MAP_COLLECTION: u64 = 0x09;
    pub const MAP_INTERRUPT: u64 = 0x0a;
    pub const INVALIDATE: u64 = 0x0c;
}

/// Registers of a redistributor.
mod redistributor {
    pub const CONTROL: u64 = 0x00;
    pub const TYPE: u64 = 0x08;
    pub const PROPERTIES: u64 = 0x70;
    pub const PENDING: u64 = 0x78;
}
/// Numbers of interrupts have 14 bits, so there are as many properties as numbers below 8192.
const NUMBER_BITS: u64 = 14;
pub const FIRST_INTERRUPT: u32 = 8192;
const PROPERTIES_BYTES: usize = 8192;
const PENDING_BYTES: usize = 64 << 10;
const PENDING_IS_ZERO: u64 = 1 << 62;
/// Of a property.
const ENABLED: u8 = 1;
/// Messages of a device: our numbers of them, so each device has as many as all have.
const MESSAGES_BITS: u64 = 8;

static ADDRESS: AtomicU64 = AtomicU64::new(0);
/// The queue of commands, the properties, and the words by which commands name this core's redistributor.
static QUEUE: AtomicU64 = AtomicU64::new(0);
static PROPERTIES: AtomicU64 = AtomicU64::new(0);
static CORE: AtomicU64 = AtomicU64::new(0);
/// Devices that were mapped: one bit each for those on bus 0.
static MAPPED: [AtomicU64; 4] = [const { AtomicU64::new(0) }; 4];

fn service() -> Bank {
    // SAFETY: the device tree has the address, and start.rs has mapped the registers.
    unsafe { Bank::new(ADDRESS.load(Ordering::Relaxed)) }
}

/// Memory that only the controller uses, zero and never freed; 0 if there is none.
fn memory(bytes: usize, align: usize) -> u64 {
    let Ok(layout) = Layout::from_size_align(bytes, align) else { return 0 };
    // SAFETY: no caller wants nothing.
    unsafe { alloc_zeroed(layout) }.expose_provenance() as u64
}

/// Switches the service at `address` on for the core that calls this. Without memory it stays off, and no message has a place.
pub fn start(address: u64) {
    let (queue, properties) = (memory(PAGE_BYTES, PAGE_BYTES), memory(PROPERTIES_BYTES, PAGE_BYTES));
    let pending = memory(PENDING_BYTES, PENDING_BYTES);
    let Some(interrupts) = v3::redistributor() else { return };
    if queue == 0 || properties == 0 || pending == 0 {
        return;
    }
    let own = interrupts.before(v3::INTERRUPTS_OFFSET);
    own.write_u64(redistributor::PROPERTIES, properties | CACHED_THERE | (NUMBER_BITS - 1));
    own.write_u64(redistributor::PENDING, pending | CACHED_THERE | PENDING_IS_ZERO);
    own.write(redistributor::CONTROL, own.read(redistributor::CONTROL) | 1);
    ADDRESS.store(address, Ordering::Relaxed);
    QUEUE.store(queue, Ordering::Relaxed);
    PROPERTIES.store(properties, Ordering::Relaxed);
    let service = service();
    for table in (0..TABLES_COUNT).map(|index| register::TABLES + 8 * index) {
        let kind = service.read_u64(table) >> 56 & 7;
        if kind == DEVICES || kind == COLLECTIONS {
            let page = memory(PAGE_BYTES, PAGE_BYTES);
            if page == 0 {
                return ADDRESS.store(0, Ordering::Relaxed);
            }
            service.write_u64(table, page | CACHED | VALID);
        }
    }
    service.write_u64(register::COMMANDS, queue | CACHED | VALID);
    service.write_u64(register::WRITTEN, 0);
    service.write(register::CONTROL, 1);
    // Bit 19: redistributors are named by their addresses, not by their numbers.
    let by_address = service.read_u64(register::TYPE) >> 19 & 1 != 0;
    let number = own.read_u64(redistributor::TYPE) >> 8 & 0xffff;
    CORE.store(if by_address { own.address() & !0xffff } else { number << 16 }, Ordering::Relaxed);
    carry_out([command::MAP_COLLECTION, 0, CORE.load(Ordering::Relaxed) | VALID]);
    synchronize();
}

/// Puts a command into the queue and waits until it is carried out.
fn carry_out(words: [u64; 3]) {
    let (service, queue) = (service(), QUEUE.load(Ordering::Relaxed));
    let place = service.read_u64(register::WRITTEN);
    for (index, word) in words.into_iter().chain([0]).enumerate() {
        // SAFETY: the place is in the queue's page, which the service reads only up to the number that is written below.
        unsafe { ((queue + place + 8 * index as u64) as *mut u64).write_volatile(word) };
    }
    fence(Ordering::SeqCst);
    let next = (place + COMMAND_BYTES) % PAGE_BYTES as u64;
    service.write_u64(register::WRITTEN, next);
    let _ = (0..READS_MAX).find(|_| service.read_u64(register::READ) == next);
}

fn synchronize() {
    carry_out([command::SYNC, 0, CORE.load(Ordering::Relaxed)]);
}

/// What the device on bus 0 with this number writes, and where, for its message `number`, which is one of all devices'. `None` if the service is
/// off, or the device is on another bus.
pub fn message(device: u32, number: u32) -> Option<(u64, u32)> {
    let address = ADDRESS.load(Ordering::Relaxed);
    let mapped = MAPPED.get(device as usize / 64).filter(|_| address != 0)?;
    let id = u64::from(device) << 32;
    if mapped.fetch_or(1 << (device % 64), Ordering::Relaxed) & 1 << (device % 64) == 0 {
        let entry_bytes = (service().read_u64(register::TYPE) >> 4 & 15) as usize + 1;
        let table = memory(entry_bytes << MESSAGES_BITS, 256);
        if table == 0 {
            return None;
        }
        carry_out([command::MAP_DEVICE | id, MESSAGES_BITS - 1, table | VALID]);
    }
    let property = PROPERTIES.load(Ordering::Relaxed) + u64::from(number);
    // SAFETY: there are far more properties than messages, and the service reads the byte after the command below.
    unsafe { (property as *mut u8).write_volatile(PRIORITY | ENABLED) };
    fence(Ordering::SeqCst);
    carry_out([command::MAP_INTERRUPT | id, u64::from(number) | u64::from(FIRST_INTERRUPT + number) << 32, 0]);
    carry_out([command::INVALIDATE | id, number.into(), 0]);
    synchronize();
    Some((address + register::MESSAGES, number))
}

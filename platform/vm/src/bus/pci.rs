//! PCI: finds virtio functions, gives them a place in memory where the firmware has not, and switches their messages on.
//!
//! Pure: configuration spaces are behind [`Spaces`]. A read of one costs an exit to the VMM, so only what is needed is read.

use crate::machine::{PciSegment, Ram};
use alloc::vec::Vec;
use core::fmt;
use core::ops::Range;
use glass_drivers_virtio::{PciConfig, PciLayout, PciRegion, TransportError, pci_capabilities, pci_device_kind};

/// A function's place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Function {
    pub bus: u8,
    pub device: u8,
    pub function: u8,
}

impl Function {
    /// Where its configuration space is, from that of bus 0 on.
    pub fn offset(self) -> u64 {
        u64::from(self.bus) << 20 | u64::from(self.device) << 15 | u64::from(self.function) << 12
    }
}

impl Function {
    /// Its number in messages (PCI Express Base Specification, section 2.2.6.2).
    pub fn number(self) -> u16 {
        u16::from(self.bus) << 8 | u16::from(self.device) << 3 | u16::from(self.function)
    }
}

impl fmt::Display for Function {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{:02x}:{:02x}.{}", self.bus, self.device, self.function)
    }
}

/// Configuration spaces of functions. Offsets are multiples of 4.
pub trait Spaces {
    /// All ones where there is no function.
    fn read(&mut self, function: Function, offset: u16) -> u32;
    /// Writes 32 bits.
    fn write(&mut self, function: Function, offset: u16, value: u32);
}

/// Words of a configuration space that are usually read.
const WORDS_USUAL: usize = 64;

/// One function's configuration space, of which each word is read once until it is written.
struct Space<'a, S> {
    spaces: &'a mut S,
    function: Function,
    /// Offsets and words.
    known: Vec<(u16, u32)>,
}

impl<S: Spaces> PciConfig for Space<'_, S> {
    fn read(&mut self, offset: u16) -> u32 {
        if let Some((_, word)) = self.known.iter().find(|(known, _)| *known == offset) {
            return *word;
        }
        let word = self.spaces.read(self.function, offset);
        self.known.push((offset, word));
        word
    }

    fn write(&mut self, offset: u16, value: u32) {
        self.known.retain(|(known, _)| *known != offset);
        self.spaces.write(self.function, offset, value);
    }
}

/// Registers of a configuration space (PCI 3.0, section 6.1).
mod register {
    pub const IDENTITY: u16 = 0x00;
    pub const COMMAND: u16 = 0x04;
    /// Its third byte is the kind of header.
    pub const HEADER: u16 = 0x0c;
    pub const FIRST_BAR: u16 = 0x10;
    /// Of a bridge: its second byte is the bus behind it.
    pub const BRIDGE_BUSES: u16 = 0x18;
    pub const SUBSYSTEM: u16 = 0x2c;
}
const NO_FUNCTION: u16 = 0xffff;
const HEADER_BRIDGE: u8 = 1;
const HEADER_FUNCTIONS: u8 = 0x80;
const COMMAND_MEMORY: u32 = 1 << 1;
/// Access to memory, by us and by the device, and no interrupt by a line.
const COMMAND_RUN: u32 = COMMAND_MEMORY | 1 << 2 | 1 << 10;
const COMMAND_BITS: u32 = 0xffff;
const BAR_IS_PORT: u32 = 1;
const BAR_WIDTH: u32 = 3 << 1;
const BAR_64_BITS: u32 = 2 << 1;
const BAR_FLAGS: u32 = 15;

const MSIX: u8 = 0x11;
const MSIX_ENABLED: u32 = 1 << 31;
const MSIX_ALL_MASKED: u32 = 1 << 30;
/// More messages than this are not used: changes of the configuration, and a message for each queue that a driver of ours has.
const MESSAGES_MAX: u16 = 8;

/// All virtio functions from bus `first` on, and the kinds of their devices: on that bus, and behind bridges that the firmware has given a bus
/// up to `last`.
pub fn virtio_functions(spaces: &mut impl Spaces, first: u8, last: u8) -> Vec<(Function, u32)> {
    let mut found = Vec::new();
    let mut buses = alloc::vec![first];
    let mut next = 0;
    while let Some(&bus) = buses.get(next) {
        next += 1;
        for device in 0..32 {
            for function in 0..8 {
                let function = Function { bus, device, function };
                let identity = spaces.read(function, register::IDENTITY);
                let (vendor, number) = (identity as u16, (identity >> 16) as u16);
                match (vendor, function.function) {
                    (NO_FUNCTION, 0) => break,
                    (NO_FUNCTION, _) => continue,
                    _ => {}
                }
                let header = spaces.read(function, register::HEADER).to_le_bytes()[2];
                let behind = if header & !HEADER_FUNCTIONS == HEADER_BRIDGE { bus_behind(spaces, function) } else { 0 };
                // A bus has a higher number than the one that leads to it, so this ends.
                if behind > bus && behind <= last && !buses.contains(&behind) {
                    buses.push(behind);
                }
                // Only devices from before virtio 1.0 have their kind in the subsystem.
                if let Some(kind) = pci_device_kind(vendor, number, 0) {
                    let subsystem = (spaces.read(function, register::SUBSYSTEM) >> 16) as u16;
                    found.push((function, pci_device_kind(vendor, number, subsystem).unwrap_or(kind)));
                }
                if function.function == 0 && header & HEADER_FUNCTIONS == 0 {
                    break;
                }
            }
        }
    }
    found
}

fn bus_behind(spaces: &mut impl Spaces, bridge: Function) -> u8 {
    spaces.read(bridge, register::BRIDGE_BUSES).to_le_bytes()[1]
}

/// Where registers can be placed that the firmware has not placed: in the window that a device tree names, else from below the configuration
/// spaces downwards. There the window of the host bridge ends that QEMU's microvm has; its address is in no table but AML.
pub struct FreeAddresses {
    start: u64,
    end: u64,
    ram: Vec<Ram>,
}

impl FreeAddresses {
    /// The room of a segment that is not `ram`.
    pub fn of(segment: &PciSegment, ram: &[Ram]) -> FreeAddresses {
        let below = ram.iter().map(|(_, end)| *end).filter(|end| *end <= segment.address).max();
        let (start, end) = segment.window.unwrap_or((below.unwrap_or(0), segment.address));
        FreeAddresses { start, end, ram: ram.to_vec() }
    }

    /// A place for `bytes` bytes, a power of two, at a multiple of that.
    fn take(&mut self, bytes: u64) -> Option<u64> {
        let start = self.end.checked_sub(bytes)? & !(bytes - 1);
        if start < self.start {
            return None;
        }
        self.end = start;
        Some(start)
    }

    fn is_ram(&self, addresses: &Range<u64>) -> bool {
        self.ram.iter().any(|(start, end)| addresses.start < *end && *start < addresses.end)
    }
}

/// A function that is ready for its driver.
#[derive(Debug, PartialEq, Eq)]
pub struct Opened {
    pub layout: PciLayout,
    /// Addresses of the common registers, of notifications and of the device's configuration.
    pub windows: [Range<u64>; 3],
    /// Addresses of the table of messages, all of them masked.
    pub messages: Range<u64>,
    pub message_count: u16,
}

/// Why a function cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenError {
    /// Its registers are not as virtio has them.
    Layout(TransportError),
    /// It has no messages.
    NoMessages,
    /// Registers are behind a base address register that has no memory, or are too long for it.
    BadRegister(u8),
    /// There is no room for so many bytes of registers.
    NoAddresses(u64),
    /// Its registers would lie in RAM.
    InRam(u64),
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            OpenError::Layout(error) => write!(f, "{error}"),
            OpenError::NoMessages => {
                write!(f, "it has no MSI-X, which is the only kind of interrupt that is used on PCI")
            }
            OpenError::BadRegister(bar) => write!(f, "its base address register {bar} has no room for its registers"),
            OpenError::NoAddresses(bytes) => write!(f, "there is no address space for {bytes} bytes of registers"),
            OpenError::InRam(address) => write!(f, "its registers at {address:#x} violation in RAM"),
        }
    }
}

/// Makes a function ready: its registers have addresses, it may use memory, and its messages are enabled, each still masked.
pub fn open(spaces: &mut impl Spaces, function: Function, free: &mut FreeAddresses) -> Result<Opened, OpenError> {
    let mut config = Space { spaces, function, known: Vec::with_capacity(WORDS_USUAL) };
    let layout = PciLayout::read(&mut config).map_err(OpenError::Layout)?;
    let msix = *pci_capabilities(&mut config, MSIX).first().ok_or(OpenError::NoMessages)?;
    let control = config.read(msix);
    let place = config.read(msix + 4);
    let count = (control >> 16 & 0x7ff) as u16 + 1;
    let table = PciRegion { bar: (place & 7) as u8, offset: place & !7, bytes: u32::from(count) * 16 };
    // Registers that move must not be in use.
    let command = config.read(register::COMMAND) & COMMAND_BITS;
    if command & COMMAND_MEMORY != 0 {
        config.write(register::COMMAND, command & !COMMAND_MEMORY);
    }
    let mut bars = Bars { config: &mut config, free, known: [None; 6] };
    let [common, notify, device, messages] =
        [layout.common, layout.notify, layout.device, table].map(|region| bars.addresses(&region));
    let (windows, messages) = ([common?, notify?, device?], messages?);
    config.write(register::COMMAND, command | COMMAND_RUN);
    config.write(msix, control & !MSIX_ALL_MASKED | MSIX_ENABLED);
    Ok(Opened { layout, windows, messages, message_count: count.min(MESSAGES_MAX) })
}

/// The base address registers of a function, each looked at once.
struct Bars<'a, 'c, S> {
    config: &'a mut Space<'c, S>,
    free: &'a mut FreeAddresses,
    /// The address, and the length if it is known.
    known: [Option<(u64, Option<u64>)>; 6],
}

impl<S: Spaces> Bars<'_, '_, S> {
    fn addresses(&mut self, region: &PciRegion) -> Result<Range<u64>, OpenError> {
        if region.bytes == 0 {
            return Ok(0..0);
        }
        let bar = usize::from(region.bar);
        if bar >= self.known.len() {
            return Err(OpenError::BadRegister(region.bar));
        }
        let (address, length) = match self.known[bar] {
            Some(known) => known,
            None => self.place(region.bar)?,
        };
        self.known[bar] = Some((address, length));
        let end = u64::from(region.offset) + u64::from(region.bytes);
        let is_inside = length.is_none_or(|length| end <= length);
        let end = address.checked_add(end).filter(|_| is_inside).ok_or(OpenError::BadRegister(region.bar))?;
        let addresses = address + u64::from(region.offset)..end;
        if self.free.is_ram(&addresses) { Err(OpenError::InRam(addresses.start)) } else { Ok(addresses) }
    }

    /// The address behind base address register `bar`, which gets one if it has none; then its length is known too.
    fn place(&mut self, bar: u8) -> Result<(u64, Option<u64>), OpenError> {
        let register = register::FIRST_BAR + 4 * u16::from(bar);
        let low = self.config.read(register);
        let is_wide = low & BAR_WIDTH == BAR_64_BITS;
        if low & BAR_IS_PORT != 0 || (is_wide && bar == 5) {
            return Err(OpenError::BadRegister(bar));
        }
        let high = if is_wide { self.config.read(register + 4) } else { 0 };
        let address = u64::from(high) << 32 | u64::from(low & !BAR_FLAGS);
        if address != 0 {
            return Ok((address, None));
        }
        // It keeps as many low bits zero as its length has (PCI 3.0, section 6.2.5.1).
        self.config.write(register, u32::MAX);
        let mask = u64::from(self.config.read(register) & !BAR_FLAGS) | u64::from(u32::MAX) << 32;
        let bytes = mask.wrapping_neg();
        if bytes == 0 || !bytes.is_power_of_two() || bytes > u64::from(u32::MAX) {
            return Err(OpenError::BadRegister(bar));
        }
        let address = self.free.take(bytes).ok_or(OpenError::NoAddresses(bytes))?;
        self.config.write(register, address as u32);
        if is_wide {
            self.config.write(register + 4, (address >> 32) as u32);
        }
        Ok((address, Some(bytes)))
    }
}

//! The machine as an AArch64 image finds it: by its device tree.

use super::gic::Taker;
#[cfg(not(test))]
use super::psci;
use super::{uart, wall};
use crate::command_line::MmioDevice;
use crate::devices::{Devices, Settings};
use crate::drivers::Drivers;
use crate::interrupts::Vectors;
use crate::machine::device_tree::{self, Node, Tree};
use crate::machine::{MmioWindows, PciSegment, Ram};
use alloc::vec::Vec;
use core::slice;

/// The start of the RAM in which the image is linked. The VMM puts the device tree there.
pub const FIRST_ADDRESS: u64 = 0x4000_0000;
/// More ranges of RAM, and more devices of a kind, are ignored.
const RANGES_MAX: usize = 32;
const WINDOWS_MAX: usize = 64;
const SEGMENTS_MAX: usize = 16;
const PROCESSORS_MAX: usize = 512;
/// Length of the registers of a PL011 and a PL031.
const REGISTERS_BYTES: u64 = 4096;
/// Number of the first interrupt that is shared by all cores.
const FIRST_SHARED: u32 = 32;

/// The interrupt controller: a version of Arm's Generic Interrupt Controller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gic {
    /// The second, with its CPU interfaces in memory.
    V2 { distributor: Ram, interfaces: Ram },
    /// The third, with its CPU interfaces in system registers.
    V3 { distributor: Ram, redistributors: Ram },
}

/// What there is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Machine {
    /// Affinities of the processors.
    pub processors: Vec<u32>,
    /// All RAM: the part that the image lies in included.
    pub ram: Vec<Ram>,
    /// The interrupt controller.
    pub gic: Gic,
    /// What takes the messages of devices on PCI.
    pub messages: Option<Taker>,
    /// PCI buses, if their messages are taken.
    pub pci: Vec<PciSegment>,
    /// Windows in which virtio-mmio devices may be.
    pub mmio: MmioWindows,
    /// Registers that are used from the start on.
    registers: Vec<Ram>,
}

/// What was handed over at the start.
pub struct StartInfo {
    tree: Tree<'static>,
    ram: [Ram; RANGES_MAX],
    ram_count: usize,
}

impl StartInfo {
    /// Reads the device tree at `address`, 0 if it is at the start of RAM, and makes the serial port work.
    ///
    /// # Safety
    /// The tree is there, in memory that is mapped and that nothing overwrites; boot.s's tables are in use.
    pub unsafe fn read(address: u64) -> StartInfo {
        let start = if address == 0 { FIRST_ADDRESS } else { address } as *const u8;
        // SAFETY: the caller vouches for the memory, of which the header has the length.
        let bytes = unsafe {
            let length = device_tree::length(&*start.cast());
            slice::from_raw_parts(start, length.expect("there is a device tree"))
        };
        let tree = Tree::open(bytes).expect("the device tree is whole");
        if let Some((address, _)) =
            tree.nodes().find(|node| node.is_compatible("arm,pl011")).and_then(|node| node.range(0))
        {
            // SAFETY: the tree names them; boot.s has mapped the registers, and so will start.rs.
            unsafe { uart::place(address) };
        }
        let mut info = StartInfo { tree, ram: [(0, 0); RANGES_MAX], ram_count: 0 };
        for node in tree.nodes().filter(|node| node.text("device_type") == Some("memory")) {
            for range in (0..RANGES_MAX).map_while(|index| node.range(index)) {
                let free = info.ram.get_mut(info.ram_count);
                info.ram_count += usize::from(free.is_some());
                free.into_iter().for_each(|place| *place = ends(range));
            }
        }
        info
    }

    /// Kernel command line; empty if it is missing or no UTF-8.
    pub fn command_line(&self) -> &'static str {
        let chosen = self.tree.nodes().find(|node| node.name == "chosen");
        chosen.and_then(|node| node.text("bootargs")).unwrap_or("")
    }

    /// The ranges of RAM, in the VMM's order.
    pub fn ram(&self) -> &[Ram] {
        &self.ram[..self.ram_count]
    }

    /// All RAM behind the image is zero: no VMM states it.
    pub fn is_ram_zero(&self) -> bool {
        false
    }
}

fn ends((start, bytes): (u64, u64)) -> Ram {
    (start, start.saturating_add(bytes))
}

impl Machine {
    /// Describes the machine. The command line lists no windows: the tree does.
    pub fn read(info: &StartInfo, _: &[MmioDevice]) -> Machine {
        let mut processors = Vec::new();
        let (mut gic, mut windows, mut registers) = (None, Vec::new(), Vec::new());
        let (mut messages, mut pci) = (None, Vec::new());
        for node in info.tree.nodes() {
            let range = node.range(0);
            if node.text("device_type") == Some("cpu") && processors.len() < PROCESSORS_MAX {
                // One whose fourth level is not 0 cannot be addressed by the registers that we use.
                processors.extend(
                    range
                        .map(|(affinity, _)| affinity)
                        .filter(|affinity| *affinity <= 0xff_ffff)
                        .map(|affinity| affinity as u32),
                );
            } else if node.is_compatible("arm,gic-v3") {
                gic = range.zip(node.range(1)).map(|(distributor, redistributors)| Gic::V3 {
                    distributor: ends(distributor),
                    redistributors: ends(redistributors),
                });
            } else if node.is_compatible("arm,cortex-a15-gic") || node.is_compatible("arm,gic-400") {
                gic = range.zip(node.range(1)).map(|(distributor, interfaces)| Gic::V2 {
                    distributor: ends(distributor),
                    interfaces: ends(interfaces),
                });
            } else if node.is_compatible("arm,pl011") {
                registers.extend(range.map(|(start, _)| (start, start + REGISTERS_BYTES)));
            } else if let (true, Some((start, _))) = (node.is_compatible("arm,pl031"), range) {
                registers.push((start, start + REGISTERS_BYTES));
                // SAFETY: the tree names them, and the registers are mapped with the others.
                unsafe { wall::place(start) };
            } else if node.is_compatible("arm,gic-v2m-frame") {
                messages = range.map(|(address, _)| Taker::Frame(address));
            } else if node.is_compatible("arm,gic-v3-its") {
                messages = range.map(|(address, _)| Taker::Service(address));
            } else if node.is_compatible("pci-host-ecam-generic") && pci.len() < SEGMENTS_MAX {
                pci.extend(segment(&node));
            } else if node.is_compatible("virtio,mmio") && windows.len() < WINDOWS_MAX {
                windows.extend(window(&node));
            }
            #[cfg(not(test))]
            if let Some(method) = node.text("method").filter(|_| node.name == "psci") {
                psci::choose(method == "smc");
            }
        }
        let gic = gic.expect("the device tree has an interrupt controller");
        registers.extend(gic.registers(processors.len() as u64));
        registers.extend(messages.map(Taker::registers));
        if messages.is_none() {
            pci.clear();
        }
        let ram = info.ram().to_vec();
        Machine { processors, ram, gic, messages, pci, mmio: MmioWindows::Listed(windows), registers }
    }

    /// Registers that are mapped from the start on: those of the interrupt controller, the serial port and the clock.
    pub fn registers(&self) -> impl Iterator<Item = Ram> {
        self.registers.iter().copied()
    }

    /// Memory that the machine shares with others and that is not in its list of RAM: there is none.
    pub fn shared_pages(&self) -> impl Iterator<Item = u64> {
        core::iter::empty()
    }

    /// Starts the devices that are on no bus: there is none.
    pub fn start_own_devices(&self, _: &Settings, _: &mut Vectors, _: &mut Drivers, _: &mut Devices) {}
}

/// Buses, with the window for registers below 4 GiB: entries of `ranges` have an address of PCI in three words, ours, and a length (IEEE 1275's
/// binding to PCI, section 2.2.1).
fn segment(node: &Node) -> Option<PciSegment> {
    const MEMORY_32_BITS: u32 = 2;
    const WORDS: usize = 7;
    let (address, _) = node.range(0)?;
    let bus = |index| node.word("bus-range", index).map(|bus| bus as u8);
    let word = |entry: usize, index| node.word("ranges", entry * WORDS + index);
    let entries = (0..RANGES_MAX).map_while(|entry| Some((entry, word(entry, 0)?)));
    let memory = entries.filter(|(_, kind)| kind >> 24 & 3 == MEMORY_32_BITS).map(|(entry, _)| entry).next();
    let number = |entry, index| Some(u64::from(word(entry, index)?) << 32 | u64::from(word(entry, index + 1)?));
    let window = memory.and_then(|entry| Some(ends((number(entry, 3)?, number(entry, 5)?))));
    Some(PciSegment { address, first_bus: bus(0).unwrap_or(0), last_bus: bus(1).unwrap_or(255), window })
}

/// A window, and its interrupt, which is one that all cores share.
fn window(node: &Node) -> Option<MmioDevice> {
    let is_shared = node.word("interrupts", 0)? == 0;
    let interrupt = node.word("interrupts", 1)?.checked_add(FIRST_SHARED)?;
    let (address, _) = node.range(0)?;
    is_shared.then_some(MmioDevice { address, interrupt })
}

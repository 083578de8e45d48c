//! Devices on the bus virtio-mmio: one window of registers each (virtio 1.2, section 4.2).

use crate::error::TransportError;
use crate::transport::{QueueAddresses, Transport};
use glass_drivers_device::{MmioRegisters, Registers, SetupError, after_write};

/// Size of one device's window.
pub const WINDOW_BYTES: usize = 512;

mod register {
    pub const MAGIC: usize = 0x000;
    pub const VERSION: usize = 0x004;
    pub const DEVICE_ID: usize = 0x008;
    pub const DEVICE_FEATURES: usize = 0x010;
    pub const DEVICE_FEATURES_SELECT: usize = 0x014;
    pub const DRIVER_FEATURES: usize = 0x020;
    pub const DRIVER_FEATURES_SELECT: usize = 0x024;
    pub const QUEUE_SELECT: usize = 0x030;
    pub const QUEUE_SIZE_MAX: usize = 0x034;
    pub const QUEUE_SIZE: usize = 0x038;
    pub const QUEUE_READY: usize = 0x044;
    pub const QUEUE_NOTIFY: usize = 0x050;
    pub const INTERRUPT_ACKNOWLEDGE: usize = 0x064;
    pub const STATUS: usize = 0x070;
    pub const QUEUE_DESCRIPTORS: usize = 0x080;
    pub const QUEUE_AVAILABLE: usize = 0x090;
    pub const QUEUE_USED: usize = 0x0a0;
    pub const CONFIG_GENERATION: usize = 0x0fc;
    pub const CONFIG: usize = 0x100;
}

const MAGIC: u32 = u32::from_le_bytes(*b"virt");
/// Both reasons that a device can have: a used buffer, a new configuration.
const ALL_INTERRUPTS: u32 = 3;

/// A virtio 1.x device behind memory-mapped registers.
#[derive(Debug)]
pub struct MmioTransport<R = MmioRegisters> {
    registers: R,
    device_id: u32,
    /// The queue whose registers are in the window, as far as it was written since the last reset: a write is an exit.
    selected: Option<u16>,
}

impl MmioTransport {
    /// The device whose [`WINDOW_BYTES`] of registers are at virtual address `base`.
    ///
    /// # Safety
    /// As for [`MmioRegisters::new`].
    pub unsafe fn new(base: usize) -> Result<MmioTransport, TransportError> {
        // SAFETY: the caller makes the same promise.
        MmioTransport::over(unsafe { MmioRegisters::new(base, WINDOW_BYTES) })
    }
}

impl<R: Registers> MmioTransport<R> {
    /// The device behind `registers`. Three register reads.
    pub fn over(mut registers: R) -> Result<MmioTransport<R>, TransportError> {
        let magic = registers.read_u32(register::MAGIC);
        if magic != MAGIC {
            return Err(TransportError::NotVirtio { magic });
        }
        // An empty slot is marked in either layout, so this comes before the version.
        let device_id = registers.read_u32(register::DEVICE_ID);
        if device_id == 0 {
            return Err(TransportError::NoDevice);
        }
        match registers.read_u32(register::VERSION) {
            2 => Ok(MmioTransport { registers, device_id, selected: None }),
            1 => Err(TransportError::Legacy),
            version => Err(TransportError::UnknownVersion(version)),
        }
    }

    fn select_queue(&mut self, queue: u16) {
        if self.selected.replace(queue) != Some(queue) {
            self.registers.write_u32(register::QUEUE_SELECT, u32::from(queue));
        }
    }

    fn write_u64(&mut self, offset: usize, value: u64) {
        self.registers.write_u32(offset, value as u32);
        self.registers.write_u32(offset + 4, (value >> 32) as u32);
    }
}

impl<R: Registers> Transport for MmioTransport<R> {
    fn device_id(&self) -> u32 {
        self.device_id
    }

    fn read_status(&mut self) -> u8 {
        self.registers.read_u32(register::STATUS) as u8
    }

    fn write_status(&mut self, status: u8) {
        if status == 0 {
            self.selected = None;
        }
        self.registers.write_u32(register::STATUS, u32::from(status));
    }

    fn read_features(&mut self) -> u64 {
        (0..2).fold(0, |features, half| {
            self.registers.write_u32(register::DEVICE_FEATURES_SELECT, half);
            features | u64::from(self.registers.read_u32(register::DEVICE_FEATURES)) << (32 * half)
        })
    }

    fn write_features(&mut self, features: u64) {
        for half in 0..2 {
            self.registers.write_u32(register::DRIVER_FEATURES_SELECT, half);
            self.registers.write_u32(register::DRIVER_FEATURES, (features >> (32 * half)) as u32);
        }
    }

    fn read_queue_size_max(&mut self, queue: u16) -> u16 {
        self.select_queue(queue);
        // A queue that is in use already is not ours to set up.
        if self.registers.read_u32(register::QUEUE_READY) != 0 {
            return 0;
        }
        u16::try_from(self.registers.read_u32(register::QUEUE_SIZE_MAX)).unwrap_or(1 << 15)
    }

    unsafe fn write_queue(&mut self, queue: u16, addresses: &QueueAddresses) -> Result<(), SetupError> {
        self.select_queue(queue);
        self.registers.write_u32(register::QUEUE_SIZE, u32::from(addresses.size));
        self.write_u64(register::QUEUE_DESCRIPTORS, addresses.descriptors);
        self.write_u64(register::QUEUE_AVAILABLE, addresses.available);
        self.write_u64(register::QUEUE_USED, addresses.used);
        self.registers.write_u32(register::QUEUE_READY, 1);
        Ok(())
    }

    fn notify(&mut self, queue: u16) {
        self.registers.write_u32(register::QUEUE_NOTIFY, u32::from(queue));
        after_write();
    }

    fn acknowledge_interrupt(&mut self) {
        // Acknowledging a reason that was not set does no harm and saves a read.
        self.registers.write_u32(register::INTERRUPT_ACKNOWLEDGE, ALL_INTERRUPTS);
    }

    fn read_config_u8(&mut self, offset: u16) -> u8 {
        self.registers.read_u8(register::CONFIG + usize::from(offset))
    }

    fn read_config_u16(&mut self, offset: u16) -> u16 {
        self.registers.read_u16(register::CONFIG + usize::from(offset))
    }

    fn read_config_u32(&mut self, offset: u16) -> u32 {
        self.registers.read_u32(register::CONFIG + usize::from(offset))
    }

    fn read_config_generation(&mut self) -> u32 {
        self.registers.read_u32(register::CONFIG_GENERATION)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use std::string::ToString;

    /// A slot that remembers what was written to it.
    struct Slot {
        magic: u32,
        version: u32,
        id: u32,
        writes: Vec<(usize, u32)>,
    }

    impl Registers for Slot {
        fn read_u32(&mut self, offset: usize) -> u32 {
            match offset {
                0 => self.magic,
                4 => self.version,
                8 => self.id,
                // The features' halves differ, by the last selection.
                0x10 => 0x10 + self.writes.last().unwrap().1,
                0x34 => 1 << 20,
                0xfc => 9,
                _ => 0,
            }
        }
        fn write_u32(&mut self, offset: usize, value: u32) {
            self.writes.push((offset, value));
        }
        fn read_u8(&mut self, offset: usize) -> u8 {
            offset as u8
        }
        fn read_u16(&mut self, offset: usize) -> u16 {
            offset as u16
        }
        fn write_u8(&mut self, offset: usize, _: u8) {
            panic!("register {offset:#x} is not written bytewise");
        }
        fn write_u16(&mut self, offset: usize, _: u16) {
            panic!("register {offset:#x} is not written in halves");
        }
        fn bytes(&self) -> usize {
            WINDOW_BYTES
        }
    }

    fn slot(magic: u32, version: u32, id: u32) -> Slot {
        Slot { magic, version, id, writes: Vec::new() }
    }

    #[test]
    fn tells_what_it_cannot_drive() {
        let error = |slot| MmioTransport::over(slot).err().unwrap();
        assert_eq!(error(slot(u32::MAX, 2, 1)), TransportError::NotVirtio { magic: u32::MAX });
        assert_eq!(error(slot(MAGIC, 1, 0)), TransportError::NoDevice);
        assert_eq!(error(slot(MAGIC, 3, 1)), TransportError::UnknownVersion(3));
        assert!(error(slot(MAGIC, 1, 1)).to_string().contains("force-legacy=false"));
    }

    #[test]
    fn features_are_written_in_halves() {
        let mut transport = MmioTransport::over(slot(MAGIC, 2, 2)).unwrap();
        transport.registers.writes.clear();
        transport.write_features(0x0123_4567_89ab_cdef);
        assert_eq!(transport.registers.writes, [(0x24, 0), (0x20, 0x89ab_cdef), (0x24, 1), (0x20, 0x0123_4567)]);
    }

    #[test]
    fn a_window_that_is_memory_works_too() {
        let mut memory = [0u32; WINDOW_BYTES / 4];
        memory[0] = MAGIC;
        memory[1] = 2;
        memory[2] = 2;
        memory[0x100 / 4] = 0x0403_0201;
        memory[0x104 / 4] = 5;
        // SAFETY: the array is 512 bytes, aligned to 4 and not used otherwise while the transport lives.
        let mut transport = unsafe { MmioTransport::new(memory.as_mut_ptr().expose_provenance()) }.unwrap();
        assert_eq!(transport.device_id(), 2);
        assert_eq!(transport.read_config_u8(2), 3);
        assert_eq!((transport.read_config_u16(2), transport.read_config_u32(0)), (0x0403, 0x0403_0201));
        assert_eq!(transport.read_config_u32(4), 5);
        transport.notify(7);
        transport.write_status(11);
        assert_eq!(transport.read_status(), 11);
        assert_eq!(memory[0x50 / 4], 7);
    }

    #[test]
    fn halves_of_wide_registers_meet() {
        let mut transport = MmioTransport::over(slot(MAGIC, 2, 1)).unwrap();
        assert_eq!(transport.read_features(), 0x11_0000_0010);
        assert_eq!(transport.read_queue_size_max(0), 1 << 15);
        transport.registers.writes.clear();
        let addresses = QueueAddresses { size: 4, descriptors: 1 << 32 | 2, available: 3, used: 4 };
        // SAFETY: there is no device.
        unsafe { transport.write_queue(9, &addresses) }.unwrap();
        let expected =
            [(0x30, 9), (0x38, 4), (0x80, 2), (0x84, 1), (0x90, 3), (0x94, 0), (0xa0, 4), (0xa4, 0), (0x44, 1)];
        assert_eq!(transport.registers.writes, expected);
    }

    #[test]
    fn a_queue_is_selected_once_after_each_reset() {
        let mut transport = MmioTransport::over(slot(MAGIC, 2, 1)).unwrap();
        let mut selections = |act: &dyn Fn(&mut MmioTransport<Slot>)| {
            transport.registers.writes.clear();
            act(&mut transport);
            transport.registers.writes.iter().filter(|(at, _)| *at == register::QUEUE_SELECT).count()
        };
        let addresses = QueueAddresses { size: 4, descriptors: 1, available: 3, used: 4 };
        let set_up = |transport: &mut MmioTransport<Slot>, queue| {
            transport.read_queue_size_max(queue);
            // SAFETY: there is no device.
            unsafe { transport.write_queue(queue, &addresses) }.unwrap();
        };
        assert_eq!(selections(&|transport| set_up(transport, 0)), 1);
        assert_eq!(selections(&|transport| set_up(transport, 1)), 1);
        assert_eq!(selections(&|transport| set_up(transport, 1)), 0);
        assert_eq!(selections(&|transport| transport.write_status(0)), 0);
        assert_eq!(selections(&|transport| set_up(transport, 1)), 1);
    }

    #[test]
    fn either_reason_of_an_interrupt_is_acknowledged() {
        let mut transport = MmioTransport::over(slot(MAGIC, 2, 1)).unwrap();
        transport.registers.writes.clear();
        transport.acknowledge_interrupt();
        assert_eq!(transport.registers.writes, [(0x64, 3)]);
        assert_eq!(transport.read_config_generation(), 9);
    }
}

//! The registers of a device on virtio-mmio (virtio 1.2, section 4.2.2), as a guest's driver reads and writes them: what the driver has set up so
//! far, and when the device is to start or to stop. Pure: no device and no KVM.

use anyhow::{Result, ensure};
use glass_devices::{FEATURES_OF_ALL, Place, QUEUE_SIZE_MAX};

/// Bytes of a device's window.
pub const WINDOW_BYTES: u64 = 512;

/// Where each register is.
pub mod offset {
    pub const MAGIC: u64 = 0x000;
    pub const VERSION: u64 = 0x004;
    pub const DEVICE_ID: u64 = 0x008;
    pub const VENDOR_ID: u64 = 0x00c;
    pub const DEVICE_FEATURES: u64 = 0x010;
    pub const DEVICE_FEATURES_SELECT: u64 = 0x014;
    pub const DRIVER_FEATURES: u64 = 0x020;
    pub const DRIVER_FEATURES_SELECT: u64 = 0x024;
    pub const QUEUE_SELECT: u64 = 0x030;
    pub const QUEUE_SIZE_MAX: u64 = 0x034;
    pub const QUEUE_SIZE: u64 = 0x038;
    pub const QUEUE_READY: u64 = 0x044;
    pub const QUEUE_NOTIFY: u64 = 0x050;
    pub const INTERRUPT_STATUS: u64 = 0x060;
    pub const INTERRUPT_ACKNOWLEDGE: u64 = 0x064;
    pub const STATUS: u64 = 0x070;
    pub const QUEUE_DESCRIPTORS: u64 = 0x080;
    pub const QUEUE_AVAILABLE: u64 = 0x090;
    pub const QUEUE_USED: u64 = 0x0a0;
    pub const CONFIG: u64 = 0x100;
}

const MAGIC: u32 = u32::from_le_bytes(*b"virt");
const VERSION: u32 = 2;
const VENDOR: u32 = u32::from_le_bytes(*b"glas");
/// A buffer was used: why each interrupt of ours comes. It is not kept whether the driver has acknowledged the last one: that would take an exit
/// for each, and the line is an edge.
const USED_BUFFER: u32 = 1;

/// Bits of the status (section 2.1).
mod status {
    pub const DRIVER_OK: u32 = 4;
    pub const FEATURES_OK: u32 = 8;
    pub const NEEDS_RESET: u32 = 64;
    pub const ALL: u32 = 0xff;
}
const VERSION_1: u64 = 1 << 32;

/// Registers that are written and never read, as offset and bytes: a write to one need not be seen before another register is used.
pub const WRITE_ONLY: [(u64, u32); 5] = [
    (offset::DRIVER_FEATURES, 8),
    (offset::QUEUE_SIZE, 4),
    (offset::QUEUE_DESCRIPTORS, 8),
    (offset::QUEUE_AVAILABLE, 8),
    (offset::QUEUE_USED, 8),
];
/// What is in the window before the configuration.
const READABLE: [u64; 9] = [
    offset::MAGIC,
    offset::VERSION,
    offset::DEVICE_ID,
    offset::VENDOR_ID,
    offset::DEVICE_FEATURES,
    offset::QUEUE_SIZE_MAX,
    offset::QUEUE_READY,
    offset::INTERRUPT_STATUS,
    offset::STATUS,
];

/// What a device has to do after a write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Nothing.
    None,
    /// The driver has set it up: start, with these features and queues.
    Start(Agreed),
    /// Stop, and forget what was set up.
    Reset,
    /// This queue has new buffers.
    Notify(usize),
}

/// What a driver has agreed to and set up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Agreed {
    pub features: u64,
    /// By number; `None` for one that the driver does not use.
    pub queues: Vec<Option<Place>>,
}

/// A queue that is set up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Queue {
    pub place: Place,
    pub is_ready: bool,
}

/// The registers of one device.
#[derive(Debug)]
pub struct Registers {
    id: u32,
    /// What the device offers.
    features: u64,
    config: Vec<u8>,
    state: State,
}

/// What the driver has written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct State {
    pub status: u32,
    pub device_features_select: u32,
    pub driver_features_select: u32,
    pub driver_features: u64,
    pub queue_select: u32,
    pub queues: Vec<Queue>,
}

impl State {
    fn new(queues: usize) -> State {
        State {
            status: 0,
            device_features_select: 0,
            driver_features_select: 0,
            driver_features: 0,
            queue_select: 0,
            queues: vec![Queue::default(); queues],
        }
    }

    fn queue(&mut self) -> Option<&mut Queue> {
        self.queues.get_mut(self.queue_select as usize)
    }
}

impl Registers {
    /// Registers of the device `id` (section 5), which offers `features` beside those of every device.
    pub fn new(id: u32, features: u64, config: &[u8], queues: usize) -> Registers {
        let bytes_max = (WINDOW_BYTES - offset::CONFIG) as usize;
        let config = config[..config.len().min(bytes_max)].to_vec();
        Registers { id, features: features | FEATURES_OF_ALL, config, state: State::new(queues) }
    }

    /// Reads `bytes.len()` bytes. What is no register, or is not read in its width, is zero.
    pub fn read(&self, at: u64, bytes: &mut [u8]) {
        bytes.fill(0);
        if at < offset::CONFIG {
            if let (0, Ok(bytes)) = (at % 4, <&mut [u8; 4]>::try_from(bytes)) {
                *bytes = self.register(at).to_le_bytes();
            }
            return;
        }
        for (byte, at) in bytes.iter_mut().zip(at - offset::CONFIG..) {
            *byte = self.config.get(at as usize).copied().unwrap_or(0);
        }
    }

    /// All that can be read, as it is now: what is where.
    pub fn readable(&self) -> impl Iterator<Item = (u64, u32)> + '_ {
        READABLE.into_iter().map(|at| (at, self.register(at)))
    }

    /// The configuration, which never changes.
    pub fn config(&self) -> &[u8] {
        &self.config
    }

    fn register(&self, at: u64) -> u32 {
        let State { status, device_features_select, queue_select, queues, .. } = &self.state;
        let queue = queues.get(*queue_select as usize);
        match at {
            offset::MAGIC => MAGIC,
            offset::VERSION => VERSION,
            offset::DEVICE_ID => self.id,
            offset::VENDOR_ID => VENDOR,
            offset::DEVICE_FEATURES if *device_features_select < 2 => {
                (self.features >> (32 * device_features_select)) as u32
            }
            offset::QUEUE_SIZE_MAX => queue.map_or(0, |_| QUEUE_SIZE_MAX.into()),
            offset::QUEUE_READY => queue.map_or(0, |queue| queue.is_ready.into()),
            offset::INTERRUPT_STATUS => USED_BUFFER,
            offset::STATUS => *status,
            _ => 0,
        }
    }

    /// Writes bytes, of which registers have four.
    pub fn write(&mut self, at: u64, bytes: &[u8]) -> Effect {
        let (0, Ok(bytes)) = (at % 4, <[u8; 4]>::try_from(bytes)) else { return Effect::None };
        let value = u32::from_le_bytes(bytes);
        let state = &mut self.state;
        match at {
            offset::DEVICE_FEATURES_SELECT => state.device_features_select = value,
            offset::DRIVER_FEATURES_SELECT => state.driver_features_select = value,
            offset::DRIVER_FEATURES if state.driver_features_select < 2 && state.status & status::FEATURES_OK == 0 => {
                set_half(&mut state.driver_features, state.driver_features_select, value);
            }
            offset::QUEUE_SELECT => state.queue_select = value,
            offset::QUEUE_NOTIFY => return Effect::Notify(value as usize),
            offset::STATUS => return self.set_status(value & status::ALL),
            // What runs is not set up anew.
            _ if state.status & status::DRIVER_OK == 0 => self.set_up_queue(at, value),
            _ => {}
        }
        Effect::None
    }

    fn set_up_queue(&mut self, at: u64, value: u32) {
        let Some(Queue { place, is_ready }) = self.state.queue() else { return };
        let half = u32::from(at & 4 != 0);
        match at & !4 {
            _ if at == offset::QUEUE_READY => *is_ready = value == 1,
            // One that no queue has is refused at the start.
            offset::QUEUE_SIZE if half == 0 => place.size = u16::try_from(value).unwrap_or(0),
            offset::QUEUE_DESCRIPTORS => set_half(&mut place.descriptors, half, value),
            offset::QUEUE_AVAILABLE => set_half(&mut place.available, half, value),
            offset::QUEUE_USED => set_half(&mut place.used, half, value),
            _ => {}
        }
    }

    fn set_status(&mut self, value: u32) -> Effect {
        let state = &mut self.state;
        if value == 0 {
            *state = State::new(state.queues.len());
            return Effect::Reset;
        }
        let added = value & !state.status;
        // The driver sets bits; only a reset clears them, and only the device sets this one.
        state.status |= value & !status::NEEDS_RESET;
        let features = state.driver_features;
        if added & status::FEATURES_OK != 0 && (features & !self.features != 0 || features & VERSION_1 == 0) {
            state.status &= !status::FEATURES_OK;
        }
        if added & status::DRIVER_OK == 0 {
            return Effect::None;
        }
        if state.status & status::FEATURES_OK == 0 {
            self.give_up();
            return Effect::None;
        }
        self.agreed().map_or(Effect::None, Effect::Start)
    }

    /// What the driver has agreed to, if the device runs.
    pub fn agreed(&self) -> Option<Agreed> {
        let State { status, driver_features, queues, .. } = &self.state;
        let is_running = status & (status::DRIVER_OK | status::NEEDS_RESET) == status::DRIVER_OK;
        let queues = queues.iter().map(|queue| queue.is_ready.then_some(queue.place)).collect();
        is_running.then_some(Agreed { features: *driver_features, queues })
    }

    /// The number of the device.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// What the driver has written.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// Takes over what a driver has written to another device of the same kind.
    ///
    /// # Errors
    /// This device does not have what the driver has agreed to.
    pub fn restore(&mut self, state: State) -> Result<()> {
        ensure!(state.driver_features & !self.features == 0, "a device had features that it does not have here");
        ensure!(state.queues.len() == self.state.queues.len(), "a device had another number of queues");
        self.state = State { status: state.status & status::ALL, ..state };
        Ok(())
    }

    /// The device cannot do what its driver has set up, until that resets it.
    pub fn give_up(&mut self) {
        self.state.status |= status::NEEDS_RESET;
    }
}

fn set_half(word: &mut u64, half: u32, value: u32) {
    let shift = 32 * half;
    *word = *word & !(0xffff_ffff << shift) | u64::from(value) << shift;
}

#[cfg(test)]
mod tests {
    use super::*;

    const OFFERED: u64 = 1 << 5;

    fn registers() -> Registers {
        Registers::new(1, OFFERED, &[1, 2, 3, 4, 5, 6], 2)
    }

    fn write(registers: &mut Registers, at: u64, value: u32) -> Effect {
        registers.write(at, &value.to_le_bytes())
    }

    fn read(registers: &Registers, at: u64) -> u32 {
        let mut bytes = [0; 4];
        registers.read(at, &mut bytes);
        u32::from_le_bytes(bytes)
    }

    fn agree(registers: &mut Registers, features: u64) {
        for half in 0..2 {
            write(registers, offset::DRIVER_FEATURES_SELECT, half);
            write(registers, offset::DRIVER_FEATURES, (features >> (32 * half)) as u32);
        }
        write(registers, offset::STATUS, 11);
    }

    #[test]
    fn a_driver_finds_the_device_and_starts_it() {
        let mut registers = registers();
        let found = [offset::MAGIC, offset::VERSION, offset::DEVICE_ID].map(|at| read(&registers, at));
        assert_eq!(found, [MAGIC, 2, 1]);
        let features = [0, 1, 2].map(|half| {
            write(&mut registers, offset::DEVICE_FEATURES_SELECT, half);
            read(&registers, offset::DEVICE_FEATURES)
        });
        assert_eq!(features, [1 << 28 | 1 << 29 | 1 << 5, 1, 0]);
        agree(&mut registers, VERSION_1 | OFFERED);
        assert_eq!(read(&registers, offset::STATUS), 11);
        write(&mut registers, offset::QUEUE_SELECT, 1);
        assert_eq!(read(&registers, offset::QUEUE_SIZE_MAX), u32::from(QUEUE_SIZE_MAX));
        for (at, value) in [
            (offset::QUEUE_SIZE, 64),
            (offset::QUEUE_DESCRIPTORS, 0x1000),
            (offset::QUEUE_DESCRIPTORS + 4, 2),
            (offset::QUEUE_AVAILABLE, 0x2000),
            (offset::QUEUE_USED, 0x3000),
            (offset::QUEUE_READY, 1),
        ] {
            assert_eq!(write(&mut registers, at, value), Effect::None);
        }
        assert_eq!(read(&registers, offset::QUEUE_READY), 1);
        let place = Place { size: 64, descriptors: 2 << 32 | 0x1000, available: 0x2000, used: 0x3000 };
        let queues = vec![None, Some(place)];
        let agreed = Agreed { features: VERSION_1 | OFFERED, queues };
        assert_eq!(write(&mut registers, offset::STATUS, 15), Effect::Start(agreed));
        // It runs: it is not started a second time, and not set up anew.
        assert_eq!(write(&mut registers, offset::STATUS, 15), Effect::None);
        write(&mut registers, offset::QUEUE_READY, 0);
        assert_eq!(read(&registers, offset::QUEUE_READY), 1);
        assert_eq!(write(&mut registers, offset::QUEUE_NOTIFY, 1), Effect::Notify(1));
        assert_eq!(write(&mut registers, offset::STATUS, 0), Effect::Reset);
        let after = [offset::STATUS, offset::QUEUE_READY].map(|at| read(&registers, at));
        assert_eq!(after, [0, 0]);
    }

    #[test]
    fn what_is_not_offered_is_not_agreed() {
        for features in [OFFERED, VERSION_1 | 1 << 6, 0] {
            let mut registers = registers();
            agree(&mut registers, features);
            assert_eq!(read(&registers, offset::STATUS), 3, "{features:#x}");
            assert_eq!(write(&mut registers, offset::STATUS, 15), Effect::None);
            assert_eq!(read(&registers, offset::STATUS) & status::NEEDS_RESET, status::NEEDS_RESET);
        }
        // What was agreed stays.
        let mut registers = registers();
        agree(&mut registers, VERSION_1);
        agree(&mut registers, u64::MAX);
        let Effect::Start(agreed) = write(&mut registers, offset::STATUS, 15) else { panic!("it starts") };
        assert_eq!(agreed.features, VERSION_1);
    }

    #[test]
    fn other_widths_and_places_have_no_effect() {
        let mut registers = registers();
        for bytes in [&[15][..], &[15, 0], &[15; 8], &[]] {
            assert_eq!(registers.write(offset::STATUS, bytes), Effect::None);
        }
        assert_eq!(registers.write(offset::STATUS + 1, &[1, 0, 0, 0]), Effect::None);
        assert_eq!(read(&registers, offset::STATUS), 0);
        let mut byte = [9];
        registers.read(offset::MAGIC, &mut byte);
        assert_eq!(byte, [0]);
        // The configuration is read in any width, and is zero behind its end.
        registers.read(offset::CONFIG + 5, &mut byte);
        assert_eq!((byte, read(&registers, offset::CONFIG + 3)), ([6], 0x0006_0504));
        let mut wide = [9; 8];
        registers.read(WINDOW_BYTES - 1, &mut wide);
        assert_eq!(wide, [0; 8]);
        write(&mut registers, offset::QUEUE_SELECT, u32::MAX);
        write(&mut registers, offset::QUEUE_SIZE, 64);
        assert_eq!(read(&registers, offset::QUEUE_SIZE_MAX), 0);
    }

    #[test]
    fn what_can_be_read_is_what_a_read_returns() {
        let mut registers = registers();
        agree(&mut registers, VERSION_1);
        for at in (0..offset::CONFIG).step_by(4) {
            let listed = registers.readable().find(|(listed, _)| *listed == at).map_or(0, |(_, value)| value);
            assert_eq!(read(&registers, at), listed, "{at:#x}");
        }
        assert!(
            WRITE_ONLY
                .iter()
                .all(|(at, bytes)| READABLE.iter().all(|read| !(*at..*at + u64::from(*bytes)).contains(read)))
        );
    }
}

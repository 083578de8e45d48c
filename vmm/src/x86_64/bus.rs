//! The windows of the VM's devices: one page of physical addresses, with 512 bytes for each.

use anyhow::{Context, Result, ensure};
use glass_devices::Position;
use vm_memory::bitmap::BitmapSlice;
use vm_memory::{Bytes, VolatileSlice};

use crate::x86_64::registers::{Effect, Registers, State, WINDOW_BYTES, offset};
use crate::x86_64::worker::Attached;

/// Where the first window is.
pub const WINDOWS: u64 = 0xfeb0_0000;
/// All of them.
pub const BUS_BYTES: u64 = 4096;
/// As many devices as have room.
pub const DEVICES_MAX: usize = (BUS_BYTES / WINDOW_BYTES) as usize;
/// Faults in the set-up of devices that are reported, at most: a guest can make them as often as it likes.
const REPORTS_MAX: u32 = 8;

/// A device and its registers.
pub struct Window {
    pub registers: Registers,
    pub attached: Box<dyn Attached>,
}

/// What a device needs to continue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Paused {
    /// Its number (virtio 1.2, section 5).
    pub id: u32,
    pub state: State,
    /// How far it is with each of its queues.
    pub positions: Vec<Position>,
}

/// The devices.
#[derive(Default)]
pub struct Bus {
    windows: Vec<Window>,
    reports: u32,
}

/// Where window number `index` is.
pub fn address(index: usize) -> u64 {
    WINDOWS + WINDOW_BYTES * index as u64
}

/// The window at an address, and where in it that is.
pub fn place(address: u64) -> Option<(usize, u64)> {
    let at = address.checked_sub(WINDOWS).filter(|at| *at < BUS_BYTES)?;
    Some(((at / WINDOW_BYTES) as usize, at % WINDOW_BYTES))
}

impl Bus {
    /// Devices in the order of their windows.
    pub fn new(windows: Vec<Window>) -> Bus {
        assert!(windows.len() <= DEVICES_MAX, "the page has no more windows");
        Bus { windows, reports: 0 }
    }

    /// How many there are.
    pub fn devices(&self) -> usize {
        self.windows.len()
    }

    /// Reads `bytes.len()` bytes of the guest's physical address `address`; zeroes where no device is.
    pub fn read(&self, address: u64, bytes: &mut [u8]) {
        bytes.fill(0);
        if let Some((index, at)) = place(address)
            && let Some(window) = self.windows.get(index)
        {
            window.registers.read(at, bytes);
        }
    }

    /// Writes bytes that the guest has written to an address; no effect where no device is. Returns the number of the window.
    ///
    /// # Errors
    /// A device cannot be stopped, so the VM has to end.
    pub fn write(&mut self, address: u64, bytes: &[u8]) -> Result<Option<usize>> {
        let Some((index, at)) = place(address) else { return Ok(None) };
        let Some(Window { registers, attached }) = self.windows.get_mut(index) else { return Ok(None) };
        match registers.write(at, bytes) {
            // KVM passes notifications of queues that exist on to the device.
            Effect::None | Effect::Notify(_) => {}
            Effect::Reset => _ = attached.stop()?,
            Effect::Start(agreed) => {
                if let Err(error) = attached.start(&agreed, &[]) {
                    registers.give_up();
                    self.report(index, &error);
                }
            }
        }
        Ok(Some(index))
    }

    fn report(&mut self, index: usize, error: &anyhow::Error) {
        if self.reports < REPORTS_MAX {
            self.reports += 1;
            eprintln!(
                "the guest cannot use its device {index}: {error:#}; it rests until the guest's driver starts it again"
            );
        }
    }

    /// Copies what a guest can read of window number `index` to `memory`, which is all of the windows.
    pub fn mirror<B: BitmapSlice>(&self, index: usize, memory: &VolatileSlice<B>) -> Result<()> {
        let registers = &self.windows[index].registers;
        let start = index * WINDOW_BYTES as usize;
        for (at, value) in registers.readable() {
            memory.write_obj(value.to_le(), start + at as usize).context("the windows are not in memory")?;
        }
        let config = start + offset::CONFIG as usize;
        memory.write_slice(registers.config(), config).context("the windows are not in memory")
    }

    /// Stops all devices. What is on its way has ended.
    pub fn stop(&mut self) -> Result<()> {
        self.pause().map(|_| ())
    }

    /// Stops all devices, and returns what they need to continue. What is on its way has ended.
    pub fn pause(&mut self) -> Result<Vec<Paused>> {
        let pause = |Window { registers, attached }: &mut Window| {
            Ok(Paused { id: registers.id(), state: registers.state().clone(), positions: attached.stop()? })
        };
        self.windows.iter_mut().map(pause).collect()
    }

    /// Takes over the registers of devices that were paused, which may be those of another VM with the same ones.
    ///
    /// # Errors
    /// They are other devices.
    pub fn restore(&mut self, paused: &[Paused]) -> Result<()> {
        let ids = paused.iter().map(|paused| paused.id);
        ensure!(ids.eq(self.windows.iter().map(|window| window.registers.id())), "the VM had other devices");
        for (window, paused) in self.windows.iter_mut().zip(paused) {
            window.registers.restore(paused.state.clone())?;
        }
        Ok(())
    }

    /// Starts the devices again that ran before they were paused.
    pub fn resume(&mut self, paused: &[Paused]) -> Result<()> {
        for (Window { registers, attached }, paused) in self.windows.iter_mut().zip(paused) {
            if let Some(agreed) = registers.agreed() {
                attached.start(&agreed, &paused.positions)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::x86_64::registers::Agreed;
    use anyhow::bail;
    use std::sync::{Arc, Mutex};

    /// Notes what becomes of it.
    struct Noted(Arc<Mutex<Vec<&'static str>>>);

    impl Attached for Noted {
        fn start(&mut self, agreed: &Agreed, positions: &[Position]) -> Result<()> {
            self.0.lock().unwrap().push(if positions.is_empty() { "start" } else { "continue" });
            match &agreed.queues[0] {
                Some(place) if place.size == 0 => bail!("no size"),
                _ => Ok(()),
            }
        }
        fn stop(&mut self) -> Result<Vec<Position>> {
            self.0.lock().unwrap().push("stop");
            Ok(vec![Position { next_available: 7, next_used: 5 }])
        }
    }

    fn bus() -> (Bus, Arc<Mutex<Vec<&'static str>>>) {
        let notes = Arc::new(Mutex::new(Vec::new()));
        let window =
            |id: u32| Window { registers: Registers::new(id, 0, &[7, 8], 1), attached: Box::new(Noted(notes.clone())) };
        (Bus::new(vec![window(2), window(3)]), notes)
    }

    fn start(bus: &mut Bus, ready: u32) {
        for (at, value) in [(0x24, 1_u32), (0x20, 1), (0x70, 11), (0x44, ready), (0x70, 15)] {
            bus.write(address(1) + at, &value.to_le_bytes()).unwrap();
        }
    }

    #[test]
    fn a_device_starts_and_stops_by_its_own_registers() {
        let (mut bus, notes) = bus();
        start(&mut bus, 0);
        assert_eq!(*notes.lock().unwrap(), ["start"]);
        bus.write(address(1) + 0x70, &[0; 4]).unwrap();
        assert_eq!(*notes.lock().unwrap(), ["start", "stop"]);
        let mut status = [1; 4];
        bus.read(address(0) + 0x70, &mut status);
        assert_eq!(status, [0; 4]);
    }

    #[test]
    fn a_device_that_cannot_start_needs_a_reset() {
        let (mut bus, notes) = bus();
        start(&mut bus, 1);
        let mut status = [0; 4];
        bus.read(address(1) + 0x70, &mut status);
        assert_eq!((status, notes.lock().unwrap().len()), ([79, 0, 0, 0], 1));
    }

    #[test]
    fn addresses_without_a_device_are_zero() {
        let (mut bus, notes) = bus();
        for address in [0, WINDOWS - 1, address(2), WINDOWS + BUS_BYTES - 1, WINDOWS + BUS_BYTES, u64::MAX] {
            assert!(bus.write(address, &[0; 4]).unwrap().is_none_or(|index| index < 2));
            let mut bytes = [9; 8];
            bus.read(address, &mut bytes);
            assert_eq!(bytes, [0; 8], "{address:#x}");
        }
        assert!(notes.lock().unwrap().is_empty());
    }

    #[test]
    fn devices_that_ran_continue_in_another_vm() {
        let (mut bus, notes) = bus();
        start(&mut bus, 0);
        let paused = bus.pause().unwrap();
        let (mut copy, of_copy) = super::tests::bus();
        copy.restore(&paused).unwrap();
        let mut status = [[0; 4]; 2];
        status.iter_mut().zip([0, 1]).for_each(|(status, index)| copy.read(address(index) + 0x70, status));
        assert_eq!(status, [[0; 4], [15, 0, 0, 0]]);
        copy.resume(&paused).unwrap();
        bus.resume(&paused).unwrap();
        assert_eq!(of_copy.lock().unwrap().as_slice(), ["continue"]);
        assert_eq!(notes.lock().unwrap().as_slice(), ["start", "stop", "stop", "continue"]);
        // What other devices had is refused.
        for change in
            [|paused: &mut Paused| paused.id += 1, |paused: &mut Paused| paused.state.driver_features |= 1 << 60]
        {
            let mut other = paused.clone();
            change(&mut other[1]);
            assert!(copy.restore(&other).is_err());
        }
        assert!(copy.restore(&paused[..1]).is_err());
    }

    #[test]
    fn the_mirror_has_what_reads_return() {
        let (mut bus, _) = bus();
        let mut page = vec![0_u8; BUS_BYTES as usize];
        bus.write(address(1) + 0x70, &3_u32.to_le_bytes()).unwrap();
        let memory = VolatileSlice::from(&mut page[..]);
        for index in 0..2 {
            bus.mirror(index, &memory).unwrap();
        }
        for at in (0..BUS_BYTES).step_by(4) {
            let mut read = [0; 4];
            bus.read(WINDOWS + at, &mut read);
            assert_eq!(read, page[at as usize..at as usize + 4], "{at:#x}");
        }
    }
}

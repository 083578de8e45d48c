//! The use of a device from its reset to its next one: the steps of its start that all devices share, and the memory that
//! it may use in between.

use crate::transport::{Transport, feature, status};
use alloc::vec::Vec;
use core::mem;
use glass_drivers_device::{Dma, DmaMemory, Kept, SetupError, Users, Violation};

/// Reads of the status register that a reset may take: at 28 us each, about 30 ms.
const RESET_READS_MAX: usize = 1000;
/// A configuration that changes this often while it is read is not read any further.
const CONFIG_READS_MAX: usize = 16;

/// Where the use of a device stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Nothing was written to its registers yet.
    Untouched,
    /// From its reset to [`Session::go`].
    Starting,
    Running,
    /// It was reset, or does not obey.
    Ended,
}

/// A device that is used. Dropping it resets the device, and only then frees the memory that the device could use: a device that
/// does not obey keeps that forever.
pub struct Session<T: Transport> {
    pub transport: T,
    phase: Phase,
    memory: Vec<Kept>,
    interrupted_for_nothing: bool,
}

impl<T: Transport> Session<T> {
    pub fn new(transport: T) -> Session<T> {
        Session { transport, phase: Phase::Untouched, memory: Vec::new(), interrupted_for_nothing: false }
    }

    /// Resets the device and agrees on features (virtio 1.2, section 3.1.1, steps 1 to 6): those in `needed`, and those in `wanted`
    /// that are offered together with what they build on by `bases`. Queues and [`Session::go`] come next. After an error,
    /// here or there, drop the session or begin once more.
    pub fn begin(&mut self, device_id: u32, wanted: u64, needed: u64, bases: &[(u64, u64)]) -> Result<u64, SetupError> {
        let found = self.transport.device_id();
        if found != device_id {
            return Err(SetupError::WrongDevice { wanted: device_id, found });
        }
        // What an earlier use may still write to is freed here, or never.
        if !self.reset() {
            return Err(SetupError::ResetIgnored);
        }
        self.phase = Phase::Starting;
        self.interrupted_for_nothing = false;
        let transport = &mut self.transport;
        // Both steps in one write, which may be an exit.
        transport.write_status(status::ACKNOWLEDGE | status::DRIVER);
        let offered = transport.read_features();
        let needed = needed | feature::VERSION_1;
        if offered & needed != needed {
            return Err(SetupError::MissingFeatures(needed & !offered));
        }
        let agreed = offered & (wanted | needed);
        let baseless = bases.iter().filter(|(_, base)| agreed & base == 0);
        let features = baseless.fold(agreed, |features, (feature, _)| features & !feature);
        transport.write_features(features);
        transport.write_status(status::ACKNOWLEDGE | status::DRIVER | status::FEATURES_OK);
        if transport.read_status() & status::FEATURES_OK == 0 {
            return Err(SetupError::FeaturesRefused(features));
        }
        Ok(features)
    }

    /// Memory for this use of the device: it is freed when the device was reset and the result dropped.
    pub fn allocate(&mut self, dma: &impl Dma, bytes: usize, users: Users) -> Result<DmaMemory, SetupError> {
        let memory = dma.allocate(bytes, users).filter(|memory| memory.bytes() >= bytes);
        let memory = memory.ok_or(SetupError::OutOfMemory { bytes })?;
        self.memory.push(memory.keep());
        Ok(memory)
    }

    /// The device may run now.
    pub fn go(&mut self) {
        let agreed = status::ACKNOWLEDGE | status::DRIVER | status::FEATURES_OK;
        self.transport.write_status(agreed | status::DRIVER_OK);
        self.phase = Phase::Running;
    }

    pub fn has_ended(&self) -> bool {
        self.phase == Phase::Ended
    }

    /// Resets the device, so that it releases our memory; only once. Whether it obeyed: if not, no memory that it could use may
    /// be used or freed any more, and what came from [`Session::allocate`] never is.
    pub fn end(&mut self) -> bool {
        if self.phase == Phase::Ended {
            return true;
        }
        self.phase = Phase::Ended;
        self.reset()
    }

    fn reset(&mut self) -> bool {
        self.transport.write_status(0);
        let has_obeyed = (0..RESET_READS_MAX).any(|_| self.transport.read_status() == 0);
        let memory = mem::take(&mut self.memory);
        if !has_obeyed {
            mem::forget(memory);
        }
        has_obeyed
    }

    /// Takes the interrupt down. `is_explained`: by completions for which an interrupt was requested. Others may lie there for long, such as those of
    /// frames that were sent.
    pub fn acknowledge(&mut self, is_explained: bool) {
        self.transport.acknowledge_interrupt();
        self.interrupted_for_nothing = !is_explained;
    }

    /// Whether the device has given up by itself, which an interrupt without a completion may mean. A check costs an exit, so
    /// drivers do it only when there is time: before sleeping.
    pub fn check_alive(&mut self) -> Option<Violation> {
        let is_suspect = mem::take(&mut self.interrupted_for_nothing) && self.phase == Phase::Running;
        (is_suspect && self.transport.read_status() & status::NEEDS_RESET != 0).then_some(Violation::NeedsReset)
    }

    /// What `read` reads of the configuration, all from one version of it.
    pub fn read_config<R>(&mut self, mut read: impl FnMut(&mut T) -> R) -> Result<R, SetupError> {
        for _ in 0..CONFIG_READS_MAX {
            let before = self.transport.read_config_generation();
            let result = read(&mut self.transport);
            if self.transport.read_config_generation() == before {
                return Ok(result);
            }
        }
        Err(SetupError::BadConfig("it changes all the time"))
    }
}

impl<T: Transport> Drop for Session<T> {
    fn drop(&mut self) {
        match self.phase {
            Phase::Untouched | Phase::Ended => {}
            Phase::Running => {
                self.end();
            }
            Phase::Starting => {
                // A device that has our memory must release it; all that we wrote to it is lost then.
                if !self.memory.is_empty() {
                    self.reset();
                }
                let status = self.transport.read_status();
                self.transport.write_status(status | status::FAILED);
            }
        }
    }
}

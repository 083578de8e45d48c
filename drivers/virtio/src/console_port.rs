//! Ports of a console device beyond the first (virtio 1.2, section 5.3.6): which queues they have, and the few words
//! that open one.
//!
//! QEMU drops what the host does not read from port 0 (`virtconsole`), so that old guests never wait. From other ports
//! (`virtserialport`) it takes nothing more until the host has read: there a guest can tell that it is too fast.

use crate::dma::{Dma, DmaMemory};
use crate::error::SetupError;
use crate::queue::{Queue, QueueOptions, Segment};
use crate::transport::{self, Transport};

const CONFIG_PORTS_MAX: u16 = 4;
const CONTROL_QUEUE: u16 = 3;
const MESSAGE_BYTES: usize = 8;
/// The driver is ready, a port is ready, a port is open.
const EVENTS: [u16; 3] = [0, 3, 6];

/// The queues of a port: to us, to the host.
pub fn queues(port: u16) -> (u16, u16) {
    if port == 0 { (0, 1) } else { (2 * port + 2, 2 * port + 3) }
}

/// The way on which a driver tells the device about ports. What the device would say is not asked for: one port is used,
/// and the host's end of it may come and go.
pub struct Control {
    queue: Queue,
    memory: DmaMemory,
    port: u16,
}

impl Control {
    /// Prepares to open `port`, which must not be 0.
    pub fn new(
        transport: &mut impl Transport,
        dma: &impl Dma,
        port: u16,
        event_idx: bool,
    ) -> Result<Control, SetupError> {
        let ports_max = u32::from_le_bytes(transport::read_config(transport, CONFIG_PORTS_MAX)?);
        if u32::from(port) >= ports_max {
            return Err(SetupError::BadConfig("it has not so many ports"));
        }
        let options = QueueOptions { size: 4, event_idx, table_entries: 0 };
        let queue = Queue::new(transport, dma, CONTROL_QUEUE, options)?;
        Ok(Control { queue, memory: DmaMemory::new(dma, EVENTS.len() * MESSAGE_BYTES)?, port })
    }

    /// Opens the port of a device that has been started.
    pub fn open(&mut self, transport: &mut impl Transport) {
        for (index, event) in EVENTS.into_iter().enumerate() {
            let offset = index * MESSAGE_BYTES;
            // The port's number (u32), the event, and the value 1: yes.
            self.memory.store_u64(offset, u64::from(self.port) | u64::from(event) << 32 | 1 << 48);
            let segment = Segment {
                address: self.memory.device_address(offset),
                bytes: MESSAGE_BYTES as u32,
                device_writes: false,
            };
            // SAFETY: the memory lives until the device is reset, and nobody writes it again.
            let _ = unsafe { self.queue.add(&[segment]) };
        }
        self.queue.kick(transport);
    }

    /// Gives up the memory for ever, for a device that does not reset.
    pub fn leak(&mut self) {
        self.queue.leak();
        self.memory.leak();
    }
}

//! Ports of a console device beyond the first (virtio 1.2, section 5.3.6): which queues they have, and the few words
//! that open one.
//!
//! QEMU drops what the host does not read from port 0 (`virtconsole`), so that old guests never wait. From other ports
//! (`virtserialport`) it takes nothing more until the host has read: there a guest notices that it is too fast.

use crate::queue::{Queue, QueueOptions, Segment};
use crate::session::Session;
use crate::transport::Transport;
use glass_drivers_device::{Dma, DmaMemory, SetupError, Users};

const CONFIG_PORTS_MAX: u16 = 4;
const CONTROL_QUEUE: u16 = 3;
const MESSAGE_BYTES: usize = 8;
/// The driver is ready, a port is ready, a port is open.
const EVENTS: [u16; 3] = [0, 3, 6];

/// The queues of a port: to us, to the host.
pub fn queues(port: u16) -> (u16, u16) {
    if port == 0 { (0, 1) } else { (2 * port + 2, 2 * port + 3) }
}

/// The way on which a driver informs the device about ports. The device's own messages are not received: one port is used,
/// and the host's end of it may come and go.
pub struct Control {
    queue: Queue,
    memory: DmaMemory,
    port: u16,
}

impl Control {
    /// Prepares to open `port`, which must not be 0.
    pub fn new<T: Transport>(
        session: &mut Session<T>,
        dma: &impl Dma,
        port: u16,
        event_idx: bool,
    ) -> Result<Control, SetupError> {
        let ports_max = session.read_config(|transport| transport.read_config_u32(CONFIG_PORTS_MAX))?;
        if u32::from(port) >= ports_max {
            return Err(SetupError::BadConfig("it has not so many ports"));
        }
        let options = QueueOptions { size: 4, event_idx, table_entries: 0 };
        let queue = Queue::new(session, dma, CONTROL_QUEUE, options)?;
        let memory = session.allocate(dma, EVENTS.len() * MESSAGE_BYTES, Users::DeviceReads)?;
        Ok(Control { queue, memory, port })
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
            // SAFETY: the session keeps the memory until the device is reset, and it is never written again.
            let _ = unsafe { self.queue.add(&[segment]) };
        }
        self.queue.kick(transport);
    }
}

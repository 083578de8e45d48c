//! Vsock: the stack of connections over a socket device, driven by the core's loop as one.

#[cfg(test)]
#[path = "vsock_tests.rs"]
mod tests;

use super::{Devices, Settings, Started};
use crate::bus::VmTransport;
use crate::{clock, random};
use alloc::boxed::Box;
use alloc::string::ToString;
use glass_api::Instant;
use glass_drivers_device::{Dma, Driver, IdentityDma, SetupError, Violation};
use glass_drivers_virtio::{Transport, Vsock, VsockConfig};
use glass_lib_trace::Group;
use glass_lib_vsock::{Config, Header, Sockets};

/// Buffers of 16 KiB: a packet of less than a quarter is copied out of one, and a longer one costs the host fewer descriptors.
const DEVICE: VsockConfig = VsockConfig { receive_buffers: 32, receive_bytes: 16 << 10 };

/// A stack and its device.
struct SocketDevice<T: Transport, D: Dma> {
    device: Vsock<T, D>,
    sockets: Sockets,
}

pub fn start(
    transport: VmTransport,
    settings: &Settings,
    devices: &mut Devices,
) -> Result<Option<Started>, SetupError> {
    if devices.vsock.is_some() {
        return Ok(None);
    }
    let device = Vsock::new(transport, IdentityDma, DEVICE)?;
    let config = config(&device, settings.memory_bytes);
    let sockets = Sockets::new(device.cid(), config, random::next(), clock::now);
    devices.vsock = Some(sockets.clone());
    Ok(Some(("vsock".to_string(), Box::new(SocketDevice { device, sockets }))))
}

/// Bounds for a device in a machine with so much memory.
fn config<T: Transport, D: Dma>(device: &Vsock<T, D>, memory_bytes: usize) -> Config {
    Config { has_messages: device.has_messages(), ..Config::for_memory(memory_bytes) }
}

impl<T: Transport, D: Dma> SocketDevice<T, D> {
    /// Hands the received packets to the stack. Whether there were any.
    fn receive(&mut self) -> bool {
        let mut progress = false;
        while let Some(packet) = self.device.receive() {
            progress = true;
            let header = Header::parse(&packet.header);
            match self.sockets.receive(header, packet.buffer, packet.bytes) {
                Some(buffer) => self.device.give(buffer),
                None => self.device.give_new(),
            }
        }
        progress
    }

    /// Hands what the stack has to send to the device, as far as it has room.
    fn send(&mut self) {
        while self.device.has_space() {
            let Some(packet) = self.sockets.next_packet() else { return };
            if !self.device.send(&packet.header.bytes(), packet.data) {
                return;
            }
        }
    }
}

impl<T: Transport, D: Dma> Driver for SocketDevice<T, D> {
    fn poll(&mut self) -> bool {
        let mut progress = self.device.poll();
        if self.device.take_reset() {
            self.sockets.reset_all(self.device.cid());
            progress = true;
        }
        self.receive() || progress
    }

    /// Comes after the tasks: what they have written is sent in this round, with one notification.
    fn kick(&mut self) -> bool {
        self.sockets.poll();
        self.send();
        self.device.kick()
    }

    fn arm(&mut self) -> bool {
        self.device.arm()
    }

    fn disarm(&mut self) {
        self.device.disarm();
    }

    fn deadline(&mut self) -> Option<Instant> {
        self.sockets.next_deadline()
    }

    fn is_delivering(&self) -> bool {
        self.sockets.is_delivering()
    }

    fn acknowledge(&mut self) {
        self.device.acknowledge();
    }

    fn violation(&self) -> Option<Violation> {
        self.device.violation()
    }

    /// All connections are reset: the packets in flight are lost.
    fn restart(&mut self) -> Result<(), SetupError> {
        let restarted = self.device.restart();
        self.sockets.reset_all(self.device.cid());
        restarted
    }

    fn set_trace_name(&mut self, name: u32) {
        self.device.set_trace_name(name);
    }

    fn announce(&self, groups: u32) {
        if groups & Group::Net as u32 != 0 {
            self.sockets.announce();
        }
    }
}

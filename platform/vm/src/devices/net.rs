//! The network: a TCP/IP stack over a card, driven by the core's loop as one.

#[cfg(test)]
#[path = "net_tests.rs"]
mod tests;

use super::{Devices, Settings, Started};
use crate::bus::VmTransport;
use crate::command_line::{Addressing, Ipv6Addressing};
use crate::cores::this_core;
use crate::serial::print_line;
use crate::{clock, generation, random};
use alloc::boxed::Box;
use alloc::string::ToString;
use core::fmt;
use core::mem;
use core::num::NonZeroU16;
use glass_api::Instant;
use glass_drivers_device::{Driver, IdentityDma, NetDevice, NetLimits, NetTransmit, SetupError, Violation};
use glass_drivers_virtio::{Net, NetConfig};
use glass_lib_net::{Address, Card, CardLimits, CardTransmit, Config, FrameDevice, Ipv6, Notice, Stack};
use glass_lib_trace::Group;

/// One part in so many of the memory holds frames.
const RECEIVE_SHARE: usize = 6;

/// A card of any bus, as a stack sees it.
struct StackCard<N: NetDevice>(N);

/// The right to send a frame through it.
struct StackTransmit<T: NetTransmit>(T);

impl<N: NetDevice> Card for StackCard<N> {
    type Transmit<'a>
        = StackTransmit<N::Transmit<'a>>
    where
        Self: 'a;

    fn limits(&self) -> CardLimits {
        card_limits(self.0.limits())
    }

    fn receive(&mut self) -> Option<(&[u8], StackTransmit<N::Transmit<'_>>)> {
        let (frame, transmit) = self.0.receive()?;
        Some((frame, StackTransmit(transmit)))
    }

    fn transmit(&mut self) -> Option<StackTransmit<N::Transmit<'_>>> {
        self.0.transmit().map(StackTransmit)
    }
}

impl<T: NetTransmit> CardTransmit for StackTransmit<T> {
    fn send<R>(self, bytes: usize, segment_bytes: Option<NonZeroU16>, fill: impl FnOnce(&mut [u8]) -> R) -> R {
        self.0.send(bytes, segment_bytes, fill)
    }
}

fn card_limits(limits: NetLimits) -> CardLimits {
    CardLimits {
        mtu: limits.mtu,
        completes_checksums: limits.completes_checksums,
        verifies_checksums: limits.verifies_checksums,
        segment_v4_bytes_max: limits.segment_v4_bytes_max,
        segment_v6_bytes_max: limits.segment_v6_bytes_max,
    }
}

/// A stack and its card.
struct Network<N: NetDevice> {
    stack: Stack<FrameDevice<StackCard<N>>>,
    now: fn() -> Instant,
    /// The generation of this VM that the stack has the connections of.
    generation: u64,
}

pub fn start(
    transport: VmTransport,
    settings: &Settings,
    devices: &mut Devices,
) -> Result<Option<Started>, SetupError> {
    if devices.sockets.is_some() {
        return Ok(None);
    }
    let config = NetConfig { memory_bytes: settings.memory_bytes / RECEIVE_SHARE, ..NetConfig::default() };
    let card = Net::new(transport, IdentityDma, config)?;
    let mac = card.mac();
    start_stack(card, mac, settings, devices).map(Some)
}

/// The stack over a card of any bus, of which the service gets one.
pub fn start_stack<N: NetDevice + 'static>(
    card: N,
    mac: [u8; 6],
    settings: &Settings,
    devices: &mut Devices,
) -> Result<Started, SetupError> {
    let address = match settings.address {
        Addressing::Dhcp => Address::Dhcp,
        Addressing::Static { address, prefix_bits, gateway } => Address::Static { address, prefix_bits, gateway },
    };
    let ipv6 = match settings.ipv6 {
        Ipv6Addressing::Auto => Ipv6::Auto,
        Ipv6Addressing::Off => Ipv6::Off,
        Ipv6Addressing::Static { address, prefix_bits, gateway } => Ipv6::Static { address, prefix_bits, gateway },
    };
    let name_servers = settings.name_servers.clone();
    let congestion = settings.congestion;
    let config = Config { ipv6, name_servers, congestion, ..Config::for_memory(address, settings.memory_bytes) };
    match Stack::new(FrameDevice(StackCard(card)), mac, config, secret(), clock::now()) {
        Ok(stack) => {
            devices.sockets = Some(stack.sockets());
            Ok(("net".to_string(), Box::new(Network { stack, now: clock::now, generation: generation::number() })))
        }
        Err(error) => {
            print_line(format_args!("no network: {error}"));
            Err(SetupError::BadConfig("its network has no usable address"))
        }
    }
}

/// The key of a stack's numbers.
fn secret() -> u128 {
    (u128::from(random::next()) << 64) | u128::from(random::next())
}

impl<N: NetDevice> Network<N> {
    fn card(&mut self) -> &mut N {
        &mut self.stack.device_mut().0.0
    }
}

impl<N: NetDevice> Driver for Network<N> {
    /// Comes before the tasks.
    fn poll(&mut self) -> bool {
        self.stack.set_time((self.now)());
        let generation = generation::number();
        if mem::replace(&mut self.generation, generation) != generation {
            // First, because a client of DHCP chooses its numbers from these.
            self.stack.abandon(secret());
            if let Some((mac, address)) = generation::card()
                && let Err(error) = self.stack.move_to(mac, address)
            {
                print(format_args!("this copy has the address of the VM that was copied: {error}"));
            }
        }
        self.card().poll()
    }

    /// Comes after the tasks: what they have queued leaves in this round, together with acknowledgements, and with one kick.
    fn kick(&mut self) -> bool {
        let moved = self.stack.poll((self.now)());
        if let Some((port, open)) = self.stack.take_missed_port() {
            report_missed_port(port, &open);
        }
        while let Some(notice) = self.stack.take_notice() {
            report(notice);
        }
        self.card().kick();
        moved
    }

    fn arm(&mut self) -> bool {
        self.card().arm()
    }

    fn disarm(&mut self) {
        self.card().disarm();
    }

    fn deadline(&mut self) -> Option<Instant> {
        self.stack.next_deadline((self.now)())
    }

    fn has_work(&self) -> bool {
        self.stack.has_work()
    }

    fn is_delivering(&self) -> bool {
        self.stack.is_delivering()
    }

    fn acknowledge(&mut self) {
        self.card().acknowledge();
    }

    fn violation(&self) -> Option<Violation> {
        self.stack.device().0.0.violation()
    }

    fn restart(&mut self) -> Result<(), SetupError> {
        self.card().restart()
    }

    fn set_trace_name(&mut self, name: u32) {
        self.card().set_trace_name(name);
    }

    fn announce(&self, groups: u32) {
        if groups & Group::Net as u32 != 0 {
            self.stack.announce();
        }
    }
}

fn print(line: fmt::Arguments) {
    match this_core().print.get() {
        Some(print) => print(line),
        None => print_line(line),
    }
}

fn report(notice: Notice) {
    match notice {
        Notice::Lost(address) => print(format_args!(
            "this VM does not have the address {address} any more: its DHCP server has not renewed it, and connections with it end"
        )),
        Notice::Regained(address) => print(format_args!("this VM has the address {address} from a DHCP server again")),
        // A site-local address (deprecated by RFC 3879) is one of QEMU's user-mode network: no client outside can use it.
        Notice::Configured(address) if address.segments()[0] & 0xffc0 == 0xfec0 => {}
        Notice::Configured(address) => {
            print(format_args!("this VM has the address {address}, too, from an IPv6 router"))
        }
        Notice::Duplicate(address) => print(format_args!(
            "another host has the address {address}, which this VM therefore does not use: give its network card \
             another address"
        )),
    }
}

/// A port that is forwarded to no listener resets each connection, which a client cannot distinguish from a service that fails.
fn report_missed_port(port: u16, open: &[u16]) {
    match open {
        [only] => print(format_args!(
            "a client wants to reach port {port}, but the service listens on port {only}: forward that one \
             (glass run --port {port}:{only})"
        )),
        [] => print(format_args!("a client wants to reach port {port}, but the service listens on no port")),
        _ => print(format_args!("a client wants to reach port {port}, but the service listens on ports {open:?}")),
    }
}

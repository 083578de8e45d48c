//! Kinds of devices: which driver each gets, and what the service gets of it. A new kind is a line in [`KINDS`] and a function.

mod console;
mod disk;
mod files;
pub mod net;
#[cfg(target_arch = "x86_64")]
pub mod power_button;
mod vsock;

use crate::bus::{self, Found, VmTransport};
use crate::clock;
use crate::command_line::{Addressing, Ipv6Addressing};
use crate::drivers::Drivers;
use crate::interrupts::Vectors;
use crate::machine::Machine;
use crate::random;
use crate::serial::print_line;
use alloc::boxed::Box;
use alloc::rc::Rc;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::cell::Cell;
use core::fmt;
use core::net::IpAddr;
use core::time::Duration;
use glass_drivers_device::{BlockDevice, Driver, IdentityDma, SetupError};
use glass_drivers_virtio::{Rng, Transport, device};
use glass_drivers_xen::BlkFeatures;
use glass_lib_net::{Congestion, Sockets};

pub use console::SharedConsole;

/// A disk as the service sees it.
pub type VmDisk = glass_drivers_device::Disk<Box<dyn BlockDevice>>;
/// Files as the service sees them.
pub type VmFiles = glass_drivers_virtio::HostFiles<VmTransport, IdentityDma>;

/// Starts the driver of one kind of device. Returns what people call the device, and the driver; `None` if one more of this kind is of no
/// use.
type Start = fn(VmTransport, &Settings, &mut Devices) -> Result<Option<Started>, SetupError>;
type Started = (String, Box<dyn Driver>);

/// Every kind that there is a driver for, in the order of their start.
const KINDS: [(u32, Start); 6] = [
    (device::RNG, start_rng),
    (device::BLK, disk::start),
    (device::FS, files::start),
    (device::NET, net::start),
    (device::VSOCK, vsock::start),
    (device::CONSOLE, console::start),
];

/// How long a start without another source of entropy waits for the device's.
const ENTROPY_WAIT: Duration = Duration::from_secs(1);

fn start_rng(transport: VmTransport, _: &Settings, _: &mut Devices) -> Result<Option<Started>, SetupError> {
    let mut rng = Rng::new(transport, IdentityDma, random::add)?.repeat(random::RESEED_TIME, clock::now);
    let end = clock::now() + ENTROPY_WAIT;
    while !random::is_seeded() && rng.violation().is_none() && clock::now() < end {
        rng.poll();
    }
    Ok(Some(("entropy".to_string(), Box::new(rng))))
}

/// What devices are started with.
pub struct Settings {
    /// How the network gets its address.
    pub address: Addressing,
    /// How it gets its IPv6 addresses.
    pub ipv6: Ipv6Addressing,
    /// Name servers; without one those of the DHCP server and the IPv6 routers.
    pub name_servers: Vec<IpAddr>,
    /// How the network's rate reacts to loss.
    pub congestion: Congestion,
    /// The console's port for text.
    pub console_port: u16,
    /// Memory of the machine.
    pub memory_bytes: usize,
    /// How long a request to a disk may take.
    pub disk_timeout: Duration,
    /// What disks of Xen use.
    pub xen_disk: BlkFeatures,
    /// Cards of Xen make checksums and segments.
    pub xen_offloads: bool,
}

/// What the service gets of the devices.
#[derive(Default)]
pub struct Devices {
    pub disks: Vec<VmDisk>,
    pub files: Option<VmFiles>,
    pub sockets: Option<Sockets>,
    pub vsock: Option<glass_lib_vsock::Sockets>,
    pub console: Option<SharedConsole>,
    /// The host's requests to end.
    pub end_requests: Rc<EndRequests>,
}

/// The host's requests to end the service that the core's loop has not handled.
#[derive(Default)]
pub struct EndRequests {
    /// Interrupt characters on the console.
    pub interrupts: Cell<u32>,
    /// The power button was pressed.
    pub power_button: Cell<bool>,
}

/// There is no source of random bytes.
pub struct NoEntropy;

impl fmt::Display for NoEntropy {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("there is no entropy: give the VM a CPU with an instruction for random words (QEMU: -cpu max) or a device virtio-rng")
    }
}

/// Finds all devices and gives them their addresses. In the order of their start.
pub fn find(machine: &Machine) -> Vec<Found> {
    let mut found = bus::find(machine);
    found.sort_by_key(|found| KINDS.iter().position(|(kind, _)| *kind == found.transport.device_id()));
    found
}

/// Starts the devices that were found and the machine's own, and adds their drivers. One that does not work is reported and left out.
pub fn start(
    found: Vec<Found>,
    machine: &Machine,
    settings: &Settings,
    vectors: &mut Vectors,
    drivers: &mut Drivers,
) -> Result<Devices, NoEntropy> {
    let mut devices = Devices::default();
    for found in found {
        let (place, id) = (found.place, found.transport.device_id());
        // A stack chooses numbers that must be hard to guess. Sources of entropy come first.
        if [device::NET, device::VSOCK].contains(&id) && !random::is_seeded() {
            return Err(NoEntropy);
        }
        let Some((_, start)) = KINDS.into_iter().find(|(kind, _)| *kind == id) else {
            print_line(format_args!("virtio device {place} of type {id} is not used"));
            continue;
        };
        let mut is_surplus = false;
        let build = |transport| {
            let started = start(transport, settings, &mut devices)?;
            is_surplus = started.is_none();
            started.ok_or(SetupError::BadConfig("one device of its kind is enough"))
        };
        match drivers.start(found, vectors, build) {
            Err(_) if is_surplus => print_line(format_args!("virtio device {place} of type {id} is not used")),
            Err(error) => print_line(format_args!("virtio device {place} does not work: {error}")),
            Ok(()) => {}
        }
    }
    if !random::is_seeded() {
        return Err(NoEntropy);
    }
    machine.start_own_devices(settings, vectors, drivers, &mut devices);
    Ok(devices)
}

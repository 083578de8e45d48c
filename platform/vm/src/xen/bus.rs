//! The devices of a domain: connects to xenstore, agrees with the back end of each, and gives the service its disks and its network.

use super::control::{self, StoreDriver};
use super::events::Port;
use super::{XenEvents, grants};
use crate::arch::apic;
use crate::arch::machine::Domain;
use crate::clock;
use crate::cores::this_core;
use crate::devices::{Devices, Settings, VmDisk, net};
use crate::drivers::Drivers;
use crate::interrupts::{Source, Vectors, Wake};
use crate::serial::print_line;
use alloc::boxed::Box;
use alloc::format;
use alloc::rc::Rc;
use alloc::string::ToString;
use core::cell::Cell;
use core::fmt;
use core::pin::pin;
use core::task::{Context, Poll, Waker};
use core::time::Duration;
use glass_drivers_xen::{Blk, BusError, Device, Grants, IdentityFrames, Net, SharedPages, Store};

/// How long a request to xenstore may take. Dom0 may be busy.
const STORE_PATIENCE: Duration = Duration::from_secs(10);
/// How long one device may take to agree with its back end.
const DEVICE_PATIENCE: Duration = Duration::from_secs(20);
const PAGE_BYTES: usize = 4096;
/// One part in so many of the memory is a disk's for its data.
const DISK_SHARE: usize = 8;

/// Starts everything. What does not work is reported and left out.
pub fn start(domain: Domain, settings: &Settings, vectors: &mut Vectors, drivers: &mut Drivers, devices: &mut Devices) {
    if domain.store.page == 0 {
        return print_line(format_args!("this domain has no xenstore, so no devices"));
    }
    let frame = domain.store.page / PAGE_BYTES as u64;
    let page = core::ptr::NonNull::new(core::ptr::with_exposed_provenance_mut(domain.store.page as usize));
    let Some(page) = page else { return };
    // SAFETY: Xen has put xenstore's page there, start.rs has mapped it, and only this connection uses it. It is never freed.
    let pages = unsafe { SharedPages::from_parts(page, PAGE_BYTES, frame, |_, _| ()) };
    let store = Store::new(pages, domain.store.port, XenEvents, clock::now(), STORE_PATIENCE);
    if let Err(error) = drivers.route(&mut Port(domain.store.port), vectors) {
        return print_line(format_args!("xenstore does not work: {error}"));
    }
    drivers.add("xenstore".to_string(), Box::new(StoreDriver(store.clone())));
    control::start(store.clone(), devices.end_requests.clone());
    let mut bus = Bus { store, settings, vectors, drivers, devices, grants: None };
    // Disks take what grants are left.
    bus.start_all("vif", Bus::start_card);
    bus.start_all("vbd", Bus::start_disk);
}

/// What the start of devices needs.
struct Bus<'a> {
    store: Store<XenEvents>,
    settings: &'a Settings,
    vectors: &'a mut Vectors,
    drivers: &'a mut Drivers,
    devices: &'a mut Devices,
    /// Made for the first device.
    grants: Option<Grants>,
}

/// A device on its way.
type Found = Device<XenEvents>;

impl Bus<'_> {
    /// Starts each device of a kind. One that does not work is reported and left out.
    fn start_all(
        &mut self,
        kind: &'static str,
        start: impl Fn(&mut Self, &Found, Port, &Grants) -> Result<(), NoStart>,
    ) {
        let found = match wait(&self.store, Device::list(&self.store, kind)) {
            Some(Ok(found)) => found,
            Some(Err(error)) => return print_line(format_args!("devices of kind {kind}: {error}")),
            None => return print_line(format_args!("devices of kind {kind}: xenstore does not answer")),
        };
        for device in found {
            if self.grants.is_none() {
                self.grants = grants::start();
            }
            let Some(grants) = self.grants.clone() else { return };
            let Some(mut port) = Port::new(device.domain) else {
                return print_line(format_args!("{}: Xen has no event channel left for it", device.path()));
            };
            if let Err(error) = self.drivers.route(&mut port, self.vectors) {
                return print_line(format_args!("{}: {error}", device.path()));
            }
            let number = port.0;
            if let Err(error) = start(self, &device, port, &grants) {
                print_line(format_args!("{} does not work: {error}", device.path()));
                Port(number).mask(0);
            }
        }
    }

    fn start_card(&mut self, device: &Found, port: Port, grants: &Grants) -> Result<(), NoStart> {
        if self.devices.sockets.is_some() {
            return Err(NoStart::Surplus);
        }
        let connect = Net::connect(device, &IdentityFrames, grants, (port.0, XenEvents), self.settings.xen_offloads);
        let card = wait(&self.store, connect).ok_or(NoStart::TooLate)?.map_err(NoStart::Bus)?;
        watch_end(device, card.closed());
        let mac = card.mac();
        let started = net::start_stack(card, mac, self.settings, self.devices);
        let (label, driver) = started.map_err(|_| NoStart::Bus(BusError::BadValue("address")))?;
        self.drivers.add(label, driver);
        Ok(())
    }

    fn start_disk(&mut self, device: &Found, port: Port, grants: &Grants) -> Result<(), NoStart> {
        let limits = (self.settings.memory_bytes / DISK_SHARE, self.settings.xen_disk);
        let connect = Blk::connect(device, &IdentityFrames, grants, (port.0, XenEvents), limits);
        let blk = wait(&self.store, connect).ok_or(NoStart::TooLate)?.map_err(NoStart::Bus)?;
        watch_end(device, blk.closed());
        let label = format!("disk {}", self.devices.disks.len());
        let disk = VmDisk::with_deadline(Box::new(blk), self.settings.disk_timeout, clock::now);
        self.devices.disks.push(disk.clone());
        self.drivers.add(label, Box::new(disk));
        Ok(())
    }
}

/// Sets `is_closed` when the back end closes the device.
fn watch_end(device: &Found, is_closed: Rc<Cell<bool>>) {
    let (device, executor) = (device.handle(), this_core().executor.get());
    let task = async move {
        // When xenstore is broken, nothing is known of the back end.
        if device.closed().await.is_ok() {
            is_closed.set(true);
        }
    };
    let spawned = executor.map(|executor| executor.spawn("xen back end", task));
    if !matches!(spawned, Some(Ok(_))) {
        print_line(format_args!("there is no room for a task that watches a back end"));
    }
}

/// Why a device does not work.
enum NoStart {
    /// A service has one network.
    Surplus,
    Bus(BusError),
    TooLate,
}

impl fmt::Display for NoStart {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            NoStart::Surplus => write!(f, "one card is enough"),
            NoStart::Bus(error) => write!(f, "{error}"),
            NoStart::TooLate => write!(f, "its back end has not connected in {} s", DEVICE_PATIENCE.as_secs()),
        }
    }
}

/// Runs a future that waits for xenstore only, until it ends or its time is over.
pub fn wait<R>(store: &Store<XenEvents>, future: impl Future<Output = R>) -> Option<R> {
    let mut future = pin!(future);
    let mut context = Context::from_waker(Waker::noop());
    let end = clock::now() + DEVICE_PATIENCE;
    loop {
        if let Poll::Ready(result) = future.as_mut().poll(&mut context) {
            return Some(result);
        }
        let now = clock::now();
        if now >= end {
            return None;
        }
        if !store.poll(now) {
            // An event that came since then ends the halt at once.
            let deadline = store.deadline().map_or(end, |deadline| deadline.min(end));
            if let Wake::Interrupt(_) = apic::idle(Some(deadline)) {
                apic::end_of_interrupt();
            }
        }
    }
}

//! Copies of a VM: each one a process that begins where the VM was halted when its snapshot was taken. RAM is a private mapping of the snapshot, so
//! copies share what they do not write.

mod card;
mod processes;

use std::convert::Infallible;
use std::os::fd::IntoRawFd as _;
use std::path::PathBuf;
use std::process;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use card::CopyCard;
use glass_devices::{Card, Device as _, Disk, Listeners, User, UserNetwork};
use glass_formats::Generation;
use kvm_bindings::KVM_MAX_CPUID_ENTRIES;
use kvm_ioctls::{Kvm, VcpuFd};
use processes::Processes;
use rustix::rand::{GetRandomFlags, getrandom};
use vm_memory::{Bytes as _, FileOffset, GuestAddress, GuestMemoryMmap, GuestRegionMmap, MmapRegion};

use crate::x86_64::bus::Bus;
use crate::x86_64::devices::{self, Devices};
use crate::x86_64::exits::{self, Exits};
use crate::x86_64::faults::{Faults, Views};
use crate::x86_64::processor::{self, Shared};
use crate::x86_64::snapshot::disk::{self, NUMBER};
use crate::x86_64::snapshot::pages::Pages;
use crate::x86_64::snapshot::{GENERATION, RAM_OFFSET, Snapshot};
use crate::x86_64::sys::Slots;
use crate::x86_64::{jail, make_vm, mirror, ranges, sys};
use crate::{Copies, CopyNetwork, Network};

/// Runs copies until all have ended, and exits with the status of a service that has succeeded, or that of the first copy that has not. Each of several
/// copies is a process of its own, and each is jailed before its first instruction; what is written to standard input goes to all.
///
/// # Errors
/// The copies cannot start.
pub fn run_copies(copies: &Copies) -> Result<()> {
    let kvm = Kvm::new().context("cannot open /dev/kvm")?;
    let snapshot = Snapshot::open(&copies.snapshot)?;
    // Without them a copy is only slower.
    let pages = Pages::open(&copies.snapshot).unwrap_or_else(|error| {
        eprintln!("glass: copies start without the pages that others have used: {error:#}");
        Pages::default()
    });
    let cannot = || format!("cannot continue the VM of {}", copies.snapshot.display());
    let has_card = snapshot.state.devices.iter().any(|device| device.id == Card::<User>::ID);
    match &copies.network {
        CopyNetwork::User(first) => {
            let ports = &first.ports;
            ensure!(has_card || ports.is_empty(), "the VM of the snapshot has no network, to which a port could lead");
            ensure!(!ports.is_empty() || !copies.on_demand, "copies on demand start by their clients: give --port");
            // All are possible, or none starts.
            (0..copies.count).try_for_each(|index| user_network(first, index).map(drop))?;
        }
        CopyNetwork::Tap(tap) => {
            ensure!(has_card, "the VM of the snapshot has no network: leave out --net");
            ensure!(
                !copies.on_demand,
                "behind a TAP device nothing shows a client before there is a VM: leave out --on-demand, or --net"
            );
            ensure!(
                copies.count == 1 || tap.name.contains(NUMBER),
                "copies need a TAP device each: write {NUMBER} in its name, for the copy's number"
            );
            (0..copies.count).try_for_each(|index| CopyCard::of(tap, index).map(drop))?;
        }
    }
    let has_disk = snapshot.state.devices.iter().any(|device| device.id == Disk::ID);
    match &copies.disk {
        Some(_) => ensure!(has_disk, "the VM of the snapshot has no disk: leave out --disk"),
        None => ensure!(
            !has_disk,
            "the VM of the snapshot has a disk: name that of each copy, as in --disk copy-{NUMBER}.img"
        ),
    }
    let disk = copies.disk.as_ref().map(|(name, _)| name);
    let names_each = disk.is_none_or(|name| name.contains(NUMBER));
    ensure!(
        copies.count == 1 || names_each,
        "copies need a disk each: write {NUMBER} in --disk, for the copy's number"
    );
    let (memory, seen) = match &copies.faults {
        None => (map(&snapshot)?, None),
        Some(_) => {
            ensure!(copies.count == 1, "the page faults of one copy are recorded: leave out --copies");
            let Views { memory, seen } = Views::of(&snapshot)?;
            (memory, Some(seen))
        }
    };
    let mut template = Template { kvm, memory, seen, snapshot, pages, has_card, is_checked: false, copies };
    if copies.records_pages {
        ensure!(copies.count == 1, "the pages of one copy are recorded: leave out --copies");
        let watch = sys::without_neighbours(&template.memory);
        // As long as the process lives.
        _ = watch.context("the kernel cannot record pages: that needs Linux 6.7")?.into_raw_fd();
    }
    if copies.records_pages || copies.faults.is_some() {
        // What it uses itself is of interest.
        template.pages = Pages::default();
    }
    if copies.count == 1 && !copies.on_demand {
        return template.run(0, None).with_context(cannot).map(|never| match never {});
    }
    template.check_features().with_context(cannot)?;
    template.is_checked = true;
    process::exit(Processes::start(&template)?.watch()?)
}

/// The user network of copy number `index`, of which that of the first one is given: its host's ports are further by as much.
fn user_network(first: &UserNetwork, index: u16) -> Result<UserNetwork> {
    let of = |(host, guest): &(u16, u16)| {
        let port = host.checked_add(index);
        Ok((
            port.with_context(|| format!("there is no port {} for copy {index}", u32::from(*host) + u32::from(index)))?,
            *guest,
        ))
    };
    first.ports.iter().map(of).collect::<Result<_>>().map(|ports| UserNetwork { ports })
}

/// RAM as it was, of which each process of this one has its own.
fn map(snapshot: &Snapshot) -> Result<GuestMemoryMmap> {
    let mut offset = RAM_OFFSET;
    let mut regions = Vec::new();
    for (address, bytes) in ranges(snapshot.state.memory_bytes) {
        let file = FileOffset::new(snapshot.file.try_clone()?, offset);
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_NORESERVE);
        let region =
            MmapRegion::build(Some(file), bytes as usize, protection, flags).context("cannot map the snapshot")?;
        regions.push(GuestRegionMmap::new(region, GuestAddress(address)).context("RAM has no end")?);
        offset += bytes;
    }
    GuestMemoryMmap::from_regions(regions).context("cannot map the snapshot")
}

/// What copies are made of.
struct Template<'a> {
    kvm: Kvm,
    snapshot: Snapshot,
    memory: GuestMemoryMmap,
    /// How KVM sees it, if not by the same mapping.
    seen: Option<GuestMemoryMmap>,
    pages: Pages,
    has_card: bool,
    /// The host has what the VM's processor had: several copies have checked it together.
    is_checked: bool,
    copies: &'a Copies,
}

/// How long a thread that was joined may still be there.
const PATIENCE: Duration = Duration::from_secs(1);

impl Template<'_> {
    /// Becomes copy number `index`. `listeners` are those of its network, if they are there already.
    fn run(&self, index: u16, listeners: Option<Listeners>) -> Result<Infallible> {
        let state = &self.snapshot.state;
        let (network, card) = match &self.copies.network {
            _ if !self.has_card => (Network::None, None),
            CopyNetwork::User(first) => (Network::User(user_network(first, index)?), None),
            CopyNetwork::Tap(tap) => (Network::Tap(disk::name(&tap.name, index)), Some(CopyCard::of(tap, index)?)),
        };
        let mac = card.map_or(self.copies.mac, |card| card.mac);
        let prepare = || {
            self.pages.make_ready(&self.memory);
            if self.is_checked { Ok(()) } else { self.check_features() }
        };
        let open = || self.open((&network, mac, listeners), index);
        // Both take about as long, and hardly wait for each other.
        let (prepared, opened) = match self.is_checked && self.pages.is_empty() {
            true => (Ok(()), open()),
            false => thread::scope(|scope| {
                let thread = thread::Builder::new().spawn_scoped(scope, prepare);
                let opened = open();
                let prepared = thread.map_or_else(|_| prepare(), |thread| thread.join().expect("it does not panic"));
                (prepared, opened)
            }),
        };
        prepared?;
        let Opened { slots, devices, processor } = opened?;
        let exits = Arc::new(Exits::new(1, &devices.names, exits::guest_clock(&processor))?);
        let mut bus = Bus::new(devices.windows);
        bus.restore(&state.devices).context(
            "a copy has the kind of network of its template: the user network, or a TAP device by --net tap=NAME",
        )?;
        mirror(&bus, &slots)?;
        begin_generation(&self.memory)?;
        card.map_or(Ok(()), |card| card.write(&self.memory))?;
        let report = |(path, seen): (&PathBuf, GuestMemoryMmap)| {
            let views = Views { memory: self.memory.clone(), seen };
            Faults::connect(path, views, &processor.get_sregs()?, &processor.get_regs()?).map(Mutex::new)
        };
        let faults = self.copies.faults.as_ref().zip(self.seen.clone()).map(report).transpose()?;
        let needs = jail::Needs {
            cores: 1,
            network: &network,
            private_bytes: state.memory_bytes,
            is_template: false,
            reports_faults: faults.is_some(),
        };
        wait_for_end_of_threads()?;
        jail::enter(devices.system_calls, &needs)?;
        bus.resume(&state.devices)?;
        let shared = Shared { bus: Mutex::new(bus), slots, requests: None, faults };
        processor::run(processor, &shared, exits.of_processor(0))
    }

    /// # Errors
    /// This host lacks what the VM's processor had.
    fn check_features(&self) -> Result<()> {
        let features = self.kvm.get_supported_cpuid(KVM_MAX_CPUID_ENTRIES).context("KVM has no features")?;
        self.snapshot.state.processor.check(&features)
    }

    /// Makes the VM of copy number `index`.
    fn open(&self, (network, mac, listeners): (&Network, [u8; 6], Option<Listeners>), index: u16) -> Result<Opened> {
        let state = &self.snapshot.state;
        // First, so that clients may come.
        let card = devices::open_card(network, mac, listeners)?;
        let seen = self.seen.as_ref().unwrap_or(&self.memory);
        let slots = make_vm(&self.kvm, self.memory.clone(), seen.clone())?;
        let disk = self
            .copies
            .disk
            .as_ref()
            .map(|(pattern, options)| (PathBuf::from(disk::name(pattern, index)), options.clone()));
        if let Some((path, _)) = &disk {
            disk::make(&self.copies.snapshot, self.snapshot.origin.disk_bytes, path)?;
        }
        let devices = Devices::open(disk.as_ref(), card, &slots, 1)?;
        let processor = processor::make_bare(&slots, 0)?;
        state.processor.check_rate(processor.get_tsc_khz().unwrap_or(0))?;
        state.processor.apply(slots.vm(), &processor)?;
        Ok(Opened { slots, devices, processor })
    }
}

/// A copy before it runs.
struct Opened {
    slots: Slots,
    devices: Devices,
    processor: VcpuFd,
}

/// The kernel counts a thread for some microseconds after it was joined, and a process with threads cannot be jailed.
fn wait_for_end_of_threads() -> Result<()> {
    let end = Instant::now() + PATIENCE;
    while glass_lib_jail::threads()? > 1 {
        ensure!(Instant::now() < end, "a thread does not end");
        thread::yield_now();
    }
    Ok(())
}

/// Fills `bytes` with random numbers of the host.
fn fill_random(bytes: &mut [u8]) -> Result<()> {
    let count = getrandom(&mut *bytes, GetRandomFlags::empty()).context("there is no randomness")?;
    ensure!(count == bytes.len(), "there is no randomness");
    Ok(())
}

/// Gives a copy its number and its randomness, which it takes note of first.
fn begin_generation(memory: &GuestMemoryMmap) -> Result<()> {
    let mut seed = [0; 32];
    let mut number = [0; 8];
    fill_random(&mut seed)?;
    fill_random(&mut number)?;
    memory.write_slice(&seed, GuestAddress(GENERATION + Generation::SEED))?;
    let number = u64::from_le_bytes(number).max(1);
    memory.write_obj(number.to_le(), GuestAddress(GENERATION + Generation::NUMBER))?;
    Ok(())
}

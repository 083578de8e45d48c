//! Copies of a VM: each one a process that begins where the VM was halted when its snapshot was taken. RAM is a private mapping of the snapshot, so
//! copies share what they do not write.

use std::convert::Infallible;
use std::fs::File;
use std::io::{self, PipeReader, PipeWriter, Read as _, Write as _};
use std::os::fd::{AsFd as _, IntoRawFd as _, OwnedFd};
use std::path::PathBuf;
use std::process;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use glass_devices::{Card, Device as _, Disk, User, UserNetwork};
use glass_formats::{Exit, Generation};
use kvm_bindings::KVM_MAX_CPUID_ENTRIES;
use kvm_ioctls::{Kvm, VcpuFd};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, getppid, pidfd_open, set_parent_process_death_signal, waitpid,
};
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
use crate::{Copies, Network};

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
    ensure!(has_card || copies.ports.is_empty(), "the VM of the snapshot has no network, to which a port could lead");
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
    let mut template = Template { kvm, memory, seen, snapshot, pages, has_card, copies };
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
    if copies.count == 1 {
        return template.run(copies.ports.clone(), 0).with_context(cannot).map(|never| match never {});
    }
    template.check_features().with_context(cannot)?;
    let mut running = Vec::new();
    for index in 0..copies.count {
        let ports = ports_of(&copies.ports, index)?;
        let (reader, writer) = io::pipe().context("there are no descriptors")?;
        let own = process::id();
        let Some(pid) = sys::fork().context("there are no processes")? else {
            drop((running, writer));
            let Err(error) = end_with(own).and_then(|()| read_from(reader)).and_then(|()| template.run(ports, index));
            eprintln!("glass: copy {index}: {error:#}");
            process::exit(1);
        };
        running.push(Running::new(pid, writer)?);
    }
    drop(template);
    process::exit(watch(running)?)
}

/// The ports of copy number `index`.
fn ports_of(ports: &[(u16, u16)], index: u16) -> Result<Vec<(u16, u16)>> {
    let of = |(host, guest): &(u16, u16)| {
        let port = host.checked_add(index);
        Ok((
            port.with_context(|| format!("there is no port {} for copy {index}", u32::from(*host) + u32::from(index)))?,
            *guest,
        ))
    };
    ports.iter().map(of).collect()
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
    copies: &'a Copies,
}

/// How long a thread that was joined may still be there.
const PATIENCE: Duration = Duration::from_secs(1);

impl Template<'_> {
    /// Becomes copy number `index`.
    fn run(&self, ports: Vec<(u16, u16)>, index: u16) -> Result<Infallible> {
        let state = &self.snapshot.state;
        let network = if self.has_card { Network::User(UserNetwork { ports }) } else { Network::None };
        let prepare = || {
            self.pages.make_ready(&self.memory);
            // Several copies have checked it together.
            if self.copies.count == 1 { self.check_features() } else { Ok(()) }
        };
        // Both take about as long, and hardly wait for each other.
        let (prepared, opened) = thread::scope(|scope| {
            let thread = thread::Builder::new().spawn_scoped(scope, prepare);
            let opened = self.open(&network, index);
            let prepared = thread.map_or_else(|_| prepare(), |thread| thread.join().expect("it does not panic"));
            (prepared, opened)
        });
        prepared?;
        let Opened { slots, devices, processor } = opened?;
        let exits = Arc::new(Exits::new(1, &devices.names, exits::guest_clock(&processor))?);
        let mut bus = Bus::new(devices.windows);
        bus.restore(&state.devices)?;
        mirror(&bus, &slots)?;
        begin_generation(&self.memory)?;
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
    fn open(&self, network: &Network, index: u16) -> Result<Opened> {
        let state = &self.snapshot.state;
        // First, so that clients may come.
        let card = devices::open_card(network, self.copies.mac)?;
        let seen = self.seen.as_ref().unwrap_or(&self.memory);
        let slots = make_vm(&self.kvm, self.memory.clone(), seen.clone())?;
        let disk = self.copies.disk.as_ref().map(|(pattern, options)| (disk::name(pattern, index), options.clone()));
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

/// Gives a copy its number and its randomness, which it takes note of first.
fn begin_generation(memory: &GuestMemoryMmap) -> Result<()> {
    let mut seed = [0; 32];
    let mut number = [0; 8];
    for bytes in [&mut seed[..], &mut number] {
        let count = getrandom(&mut *bytes, GetRandomFlags::empty()).context("there is no randomness")?;
        ensure!(count == bytes.len(), "there is no randomness");
    }
    memory.write_slice(&seed, GuestAddress(GENERATION + Generation::SEED))?;
    let number = u64::from_le_bytes(number).max(1);
    memory.write_obj(number.to_le(), GuestAddress(GENERATION + Generation::NUMBER))?;
    Ok(())
}

/// Makes this process end with the one that has made it.
fn end_with(parent: u32) -> Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL)).context("cannot end with the other copies")?;
    let is_there = getppid().is_some_and(|pid| pid.as_raw_nonzero().get().cast_unsigned() == parent);
    ensure!(is_there, "the process that starts copies has ended");
    Ok(())
}

/// Makes it standard input.
fn read_from(reader: PipeReader) -> Result<()> {
    rustix::stdio::dup2_stdin(&reader).context("there is no standard input")
}

/// A copy that runs.
struct Running {
    pid: Pid,
    /// Readable when it has ended.
    process: OwnedFd,
    /// Its console.
    input: Option<PipeWriter>,
}

impl Running {
    fn new(pid: Pid, input: PipeWriter) -> Result<Running> {
        // One that does not read its console is not waited for.
        rustix::io::ioctl_fionbio(&input, true).context("there are no descriptors")?;
        let process = pidfd_open(pid, PidfdFlags::empty()).context("there are no descriptors")?;
        Ok(Running { pid, process, input: Some(input) })
    }
}

/// Waits until all have ended, and passes on what is written to this process; returns a status.
fn watch(mut running: Vec<Running>) -> Result<i32> {
    let success = 2 * Exit::Success as i32 + 1;
    let mut status = success;
    let mut input = Some(File::from(io::stdin().as_fd().try_clone_to_owned()?));
    while !running.is_empty() {
        let mut polled: Vec<_> = running.iter().map(|copy| PollFd::new(&copy.process, PollFlags::IN)).collect();
        polled.extend(input.as_ref().map(|input| PollFd::new(input, PollFlags::IN)));
        match poll(&mut polled, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error).context("cannot wait for the copies"),
        }
        let is_ready: Vec<bool> = polled.iter().map(|polled| !polled.revents().is_empty()).collect();
        if input.is_some() && is_ready.last() == Some(&true) {
            pass_on(&mut input, &mut running);
        }
        let mut has_ended = is_ready.into_iter();
        running.retain(|copy| {
            if has_ended.next() != Some(true) {
                return true;
            }
            let ended = waitpid(Some(copy.pid), WaitOptions::empty()).ok().flatten();
            // One that a signal has ended has failed.
            let ended = ended.map_or(1, |(_, ended)| ended.exit_status().unwrap_or(1));
            if status == success {
                status = ended;
            }
            false
        });
    }
    Ok(status)
}

/// Passes on what is there to read, to all.
fn pass_on(input: &mut Option<File>, running: &mut [Running]) {
    let mut bytes = [0; 256];
    let count = input.as_mut().map_or(0, |input| input.read(&mut bytes).unwrap_or(0));
    for copy in running {
        match &mut copy.input {
            // What does not fit is lost.
            Some(writer) if count > 0 => _ = writer.write(&bytes[..count]),
            other => *other = None,
        }
    }
    if count == 0 {
        *input = None;
    }
}

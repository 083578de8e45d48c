//! The devices of a VM: each one opened, given its window and joined with KVM.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::PathBuf;

use anyhow::{Context, Result};
use glass_devices::{Card, Console, Device, Disk, DiskOptions, Entropy, Listeners, Tap, User};
use glass_lib_jail::SystemCalls;
use kvm_ioctls::{IoEventAddress, NoDatamatch};
use vmm_sys_util::eventfd::EventFd;

use crate::Network;
use crate::x86_64::bus::{DEVICES_MAX, Window, address};
use crate::x86_64::registers::{Registers, WINDOW_BYTES, WRITE_ONLY, offset};
use crate::x86_64::sys::{Slots, event};
use crate::x86_64::worker::{Signals, Worker};

/// The pin of the I/O APIC of the first device.
const FIRST_PIN: u32 = 16;
const _: () = assert!(FIRST_PIN as usize + DEVICES_MAX <= 24, "the I/O APIC has 24 pins");

/// A network card, opened.
pub enum OpenCard {
    Tap(Card<Tap>),
    User(Box<Card<User>>),
}

/// Opens what is behind a card with this address; `None` without one. `listeners` are those of a user network, if they are there already.
pub fn open_card(network: &Network, mac: [u8; 6], listeners: Option<Listeners>) -> Result<Option<OpenCard>> {
    Ok(match network {
        Network::None => None,
        Network::Tap(name) => Some(OpenCard::Tap(Card::new(Tap::open(name)?).with_address(mac))),
        Network::User(user) => {
            let listeners = listeners.map_or_else(|| user.listen(), Ok)?;
            Some(OpenCard::User(Box::new(Card::new(User::open(listeners, mac)?).with_address(mac))))
        }
    })
}

/// What the devices are, and what they need.
pub struct Devices {
    pub windows: Vec<Window>,
    /// Their names, in the same order.
    pub names: Vec<&'static str>,
    pub system_calls: SystemCalls,
    /// Bytes of memory of their own.
    pub memory_bytes: u64,
    /// The guest's acknowledgements of interrupts are written to it, and it is never read: an interrupt of ours is an edge and needs none.
    acknowledged: EventFd,
}

impl Devices {
    /// Opens all devices of a VM with so many processors, with its disks, in the order in which it finds them, and its card. On this thread, which runs
    /// or starts the processors.
    pub fn open<'d>(
        disks: impl IntoIterator<Item = &'d (PathBuf, DiskOptions)>,
        card: Option<OpenCard>,
        slots: &Slots,
        processors: u32,
    ) -> Result<Devices> {
        let (acknowledged, _) = event()?;
        let system_calls = SystemCalls::of_every_program();
        let mut devices =
            Devices { windows: Vec::new(), names: Vec::new(), system_calls, memory_bytes: 0, acknowledged };
        // A guest has the instruction where this process has it; KVM does not list it on a host that runs ring 3 natively and ring 0 not.
        if !is_x86_feature_detected!("rdrand") {
            devices.add(slots, Entropy)?;
        }
        for (path, options) in disks {
            let disk = Disk::open(path, options)?;
            disk.leave_core(processors);
            devices.add(slots, disk)?;
        }
        match card {
            None => {}
            Some(OpenCard::Tap(card)) => devices.add(slots, card)?,
            Some(OpenCard::User(card)) => devices.add(slots, *card)?,
        }
        let copy = |file: &dyn AsFd| file.as_fd().try_clone_to_owned().map(File::from);
        let files = copy(&std::io::stdin()).and_then(|input| Ok((input, copy(&std::io::stdout())?)));
        let (input, output) = files.context("there is no standard input or output")?;
        devices.add(slots, Console::new(input, output))?;
        Ok(devices)
    }

    /// The words of the command line by which an image finds them (`virtio_mmio.device=SIZE@ADDRESS:INTERRUPT` of Linux).
    pub fn words(&self) -> String {
        let word = |index: usize| {
            let (address, pin) = (address(index), FIRST_PIN + index as u32);
            format!("virtio_mmio.device={WINDOW_BYTES}@{address:#x}:{pin} ")
        };
        (0..self.windows.len()).map(word).collect()
    }

    /// Adds a device.
    fn add<D: Device + Send + 'static>(&mut self, slots: &Slots, device: D) -> Result<()> {
        let (index, vm) = (self.windows.len(), slots.vm());
        let base = address(index);
        let at = |offset: u64| IoEventAddress::Mmio(base + offset);
        let refused = || format!("KVM does not take the {}", D::NAME);
        let (line, interrupt) = event()?;
        vm.register_irqfd(&line, FIRST_PIN + index as u32).with_context(refused)?;
        let mut notifications = Vec::new();
        for queue in 0..D::QUEUES {
            let (notified, file) = event()?;
            vm.register_ioevent(&notified, &at(offset::QUEUE_NOTIFY), queue as u32).with_context(refused)?;
            notifications.push(file);
        }
        let acknowledge = at(offset::INTERRUPT_ACKNOWLEDGE);
        vm.register_ioevent(&self.acknowledged, &acknowledge, NoDatamatch).with_context(refused)?;
        for (offset, bytes) in WRITE_ONLY {
            // Without it each write is an exit.
            let _ = vm.register_coalesced_mmio(at(offset), bytes);
        }
        self.memory_bytes += device.memory_bytes();
        self.system_calls = D::allow(std::mem::replace(&mut self.system_calls, SystemCalls::of_every_program()));
        let registers = Registers::new(D::ID, device.features(), device.config().unwrap_or_default(), D::QUEUES);
        let worker = Worker::new(device, slots.memory(), Signals { notifications, interrupt })?;
        self.names.push(D::NAME);
        self.windows.push(Window { registers, attached: Box::new(worker) });
        Ok(())
    }
}

//! The record of exits: how long the guest waited for this process, and for what. A span for each, in the format of a process's trace
//! (docs/formats/trace.md), with a ring for each processor, in a memory file that `glass trace` finds. Exits that KVM handles by itself are not in it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use anyhow::Result;
use glass_formats::trace::{
    CONTROL_MAGIC, EVENT_WORDS, Event, Kind, RINGS_MAX, Ring, TRACE_VERSION, VMM_SPANS, words_of_name,
};
use kvm_bindings::{Msrs, kvm_msr_entry};
use kvm_ioctls::VcpuFd;

use crate::x86_64::bus::place;
use crate::x86_64::sys::{TraceFile, ticks};

/// Events that a processor's ring holds: four are an exit.
const RING_EVENTS: usize = 4096;
const RING_WORDS: usize = RING_EVENTS * EVENT_WORDS;
/// The level of the spans: debug.
const LEVEL: u16 = 4;
/// Numbers of names. Those of devices follow, two for each.
const PORT_READ: u32 = 1;
const PORT_WRITTEN: u32 = 2;
const SIGNAL: u32 = 3;
const NOWHERE: u32 = 4;
const PAGE: u32 = 5;
const FIRST_DEVICE: u32 = 6;
/// Spans of each processor are numbered on their own.
const SPANS_OF_PROCESSOR: u64 = 1 << 48;
/// The register that counts the guest's ticks.
const IA32_TSC: u32 = 0x10;

/// Why KVM has returned from the guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// The guest has read a port.
    PortRead,
    /// The guest has written to a port.
    PortWritten,
    /// The guest has read this physical address.
    Read(u64),
    /// The guest has written to this physical address.
    Written(u64),
    /// A signal, of a profiler say.
    Signal,
    /// The first use of a page, of a copy whose page faults are reported.
    Page,
}

/// The record of all processors of a VM.
pub struct Exits {
    file: TraceFile,
    devices: u32,
}

/// The record of one processor, which only its thread writes.
pub struct ExitsOfProcessor {
    exits: Arc<Exits>,
    index: usize,
    next: u64,
}

/// The clock of a processor beside its host's, as [`Control::guest_clock`](glass_formats::trace::Control::guest_clock) has it; `None` if KVM
/// does not show it.
pub fn guest_clock(processor: &VcpuFd) -> Option<[u64; 3]> {
    let tsc = kvm_msr_entry { index: IA32_TSC, ..Default::default() };
    let mut registers = Msrs::from_entries(&[tsc]).ok()?;
    let before = ticks();
    let read = processor.get_msrs(&mut registers).ok()?;
    let after = ticks();
    registers.as_slice().first().filter(|_| read == 1).map(|tsc| [before, tsc.data, after])
}

impl Exits {
    /// A new one, which is empty, of `cores` processors and of devices with these names, in the order of their windows. `clock` is the guest's
    /// ([`guest_clock`]).
    ///
    /// # Errors
    /// There is no memory for it.
    pub fn new(cores: u8, devices: &[&str], clock: Option<[u64; 3]>) -> Result<Exits> {
        let rings = usize::from(cores).min(RINGS_MAX);
        let file = TraceFile::new(rings * RING_WORDS)?;
        let control = file.control();
        let mut names = vec![
            "exit: read of a port".to_owned(),
            "exit: write to a port".to_owned(),
            "exit: signal".to_owned(),
            "exit: address without a device".to_owned(),
            "exit: first use of a page".to_owned(),
        ];
        for device in devices {
            names.push(format!("exit: read of the {device}'s registers"));
            names.push(format!("exit: write to the {device}'s registers"));
        }
        let first_ring = names.len() as u32 + 1;
        names.extend((0..rings).map(|index| format!("VMM of core {index}")));
        for (entry, name) in control.names[1..].iter().zip(&names) {
            entry.iter().zip(words_of_name(name)).for_each(|(word, value)| word.store(value, Ordering::Relaxed));
        }
        control.names_used.store(names.len() as u32 + 1, Ordering::Relaxed);
        control.rings_lost.store(u32::from(cores) - rings as u32, Ordering::Relaxed);
        control.area_address.store(file.area().as_ptr() as u64, Ordering::Relaxed);
        control.area_bytes.store(size_of_val(file.area()) as u64, Ordering::Relaxed);
        for (index, ring) in control.rings[..rings].iter().enumerate() {
            ring.address.store(file.area()[index * RING_WORDS..].as_ptr() as u64, Ordering::Relaxed);
            ring.name.store(first_ring + index as u32, Ordering::Relaxed);
            ring.taken.store(1, Ordering::Relaxed);
            ring.capacity.store(RING_EVENTS as u64, Ordering::Release);
        }
        let clock = clock.unwrap_or_default();
        control.guest_clock.iter().zip(clock).for_each(|(word, value)| word.store(value, Ordering::Relaxed));
        control.version.store(TRACE_VERSION, Ordering::Relaxed);
        control.is_process.store(1, Ordering::Relaxed);
        control.magic.store(CONTROL_MAGIC, Ordering::Release);
        Ok(Exits { file, devices: devices.len() as u32 })
    }

    /// The record of processor number `index`. Only the first 32 processors have one; of others nothing is recorded.
    pub fn of_processor(self: &Arc<Exits>, index: u8) -> ExitsOfProcessor {
        let next = VMM_SPANS.start + u64::from(index) * SPANS_OF_PROCESSOR;
        ExitsOfProcessor { exits: self.clone(), index: index.into(), next }
    }

    fn ring(&self, index: usize) -> Option<Ring<'_>> {
        let entry = self.file.control().rings.get(index)?;
        Ring::new(&entry.head, self.file.area().get(index * RING_WORDS..(index + 1) * RING_WORDS)?)
    }

    fn name(&self, reason: Reason) -> u32 {
        let device = |address, add| match place(address) {
            Some((index, _)) if (index as u32) < self.devices => FIRST_DEVICE + 2 * index as u32 + add,
            _ => NOWHERE,
        };
        match reason {
            Reason::PortRead => PORT_READ,
            Reason::PortWritten => PORT_WRITTEN,
            Reason::Signal => SIGNAL,
            Reason::Page => PAGE,
            Reason::Read(address) => device(address, 0),
            Reason::Written(address) => device(address, 1),
        }
    }
}

impl ExitsOfProcessor {
    /// Whether it is that of the first processor.
    pub fn is_of_first(&self) -> bool {
        self.index == 0
    }

    /// Records an exit that began at `start`, in ticks of this host's TSC, and ends now.
    pub fn add(&mut self, reason: Reason, start: u64) {
        let Some(ring) = self.exits.ring(self.index) else { return };
        let (b, end) = (self.next, ticks());
        self.next += 1;
        let begin = Event {
            ticks: start,
            kind: Kind::SpanBegin as u16,
            detail: LEVEL,
            a: self.exits.name(reason),
            b,
            ..Event::default()
        };
        ring.push(begin.to_words());
        for (kind, ticks) in [(Kind::SpanEnter, start), (Kind::SpanExit, end), (Kind::SpanEnd, end)] {
            ring.push(Event { ticks, kind: kind as u16, b, ..Event::default() }.to_words());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::x86_64::bus::address;

    fn name(exits: &Exits, number: u32) -> String {
        let words = exits.file.control().names[number as usize].each_ref().map(|word| word.load(Ordering::Relaxed));
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let length = usize::from(u16::from_le_bytes([bytes[0], bytes[1]]));
        String::from_utf8(bytes[2..2 + length].to_vec()).unwrap()
    }

    #[test]
    fn an_exit_is_a_span_of_its_processor() {
        let exits = Arc::new(Exits::new(2, &["disk", "console"], None).unwrap());
        let mut second = exits.of_processor(1);
        let start = ticks();
        second.add(Reason::Written(address(1) + 0x50), start);
        second.add(Reason::PortRead, start);
        let [first, entry] = [0, 1].map(|index| &exits.file.control().rings[index]);
        assert_eq!(first.head.load(Ordering::Relaxed), 0);
        let ring = exits.ring(1).unwrap();
        assert_eq!(name(&exits, entry.name.load(Ordering::Relaxed)), "VMM of core 1");
        let mut events = Vec::new();
        ring.read(0, |_, words| events.push(Event::from_words(words)));
        let kinds: Vec<u16> = events.iter().map(|event| event.kind).collect();
        assert_eq!(kinds, [72, 73, 74, 75, 72, 73, 74, 75]);
        assert_eq!(name(&exits, events[0].a), "exit: write to the console's registers");
        assert_eq!(name(&exits, events[4].a), "exit: read of a port");
        assert!(events[0].ticks == start && events[3].ticks >= start && events[3].ticks == events[2].ticks);
        assert!(events[..4].iter().all(|event| event.b == events[0].b) && events[4].b == events[0].b + 1);
    }

    #[test]
    fn an_address_without_a_device_has_a_name_too() {
        let exits = Exits::new(1, &["disk"], None).unwrap();
        let reasons =
            [Reason::Read(address(0)), Reason::Written(address(0)), Reason::Read(address(1)), Reason::Read(0)];
        let names: Vec<_> = reasons.map(|reason| name(&exits, exits.name(reason))).into();
        let read = "exit: read of the disk's registers";
        assert_eq!(names[..2], [read, "exit: write to the disk's registers"]);
        assert_eq!(names[2..], ["exit: address without a device"; 2]);
    }

    #[test]
    fn processors_without_a_ring_record_nothing() {
        let exits = Arc::new(Exits::new(254, &[], None).unwrap());
        exits.of_processor(200).add(Reason::Signal, 0);
        assert_eq!(exits.file.control().rings_lost.load(Ordering::Relaxed), 254 - RINGS_MAX as u32);
    }
}

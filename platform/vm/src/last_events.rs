//! The end of a core's trace as text, for the crash report. It does not allocate, and treats the contents of the ring only
//! as numbers.

use crate::clock;
use crate::cores::this_core;
use core::fmt;
use core::str;
use core::sync::atomic::Ordering;
use glass_formats::trace::{NAME_BYTES, NAME_TEXT_BYTES, NAMES_MAX, Ring, RingEntry};
use glass_lib_trace::{BlockKind, CONTROL, Event, Kind, Operation, WakeSource};

/// Events of a report.
const EVENTS_MAX: u64 = 12;

/// Calls `print` with a line for each of the last events of this core, the oldest first.
pub fn for_each(mut print: impl FnMut(fmt::Arguments)) {
    let core = this_core();
    let address = core.trace_memory.get().as_ptr().addr() as u64;
    let own = |entry: &&RingEntry| entry.address.load(Ordering::Relaxed) == address;
    let Some(entry) = CONTROL.rings.iter().find(own) else { return };
    let Some(ring) = Ring::new(&entry.head, core.trace_memory.get()) else { return };
    let first = entry.head.load(Ordering::Relaxed).saturating_sub(EVENTS_MAX);
    ring.read(first, |_, words| {
        let event = Event::from_words(words);
        print(format_args!("  {}  {}", clock::instant(event.ticks), InWords { event, name: &Name::numbered }));
    });
}

/// A name of the table.
struct Name([u8; NAME_BYTES]);

impl Name {
    fn numbered(number: u64) -> Name {
        let mut bytes = [0; NAME_BYTES];
        let entry = &CONTROL.names[number as usize % NAMES_MAX];
        for (chunk, word) in bytes.chunks_exact_mut(8).zip(entry) {
            chunk.copy_from_slice(&word.load(Ordering::Relaxed).to_le_bytes());
        }
        Name(bytes)
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let length = usize::from(u16::from_le_bytes([self.0[0], self.0[1]])).min(NAME_TEXT_BYTES);
        match str::from_utf8(&self.0[2..2 + length]) {
            Ok("") | Err(_) => f.write_str("(no name)"),
            Ok(text) => f.write_str(text),
        }
    }
}

/// An event as text.
struct InWords<'a> {
    event: Event,
    name: &'a dyn Fn(u64) -> Name,
}

impl fmt::Display for InWords<'_> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let Event { kind, detail, a, b, c, .. } = self.event;
        let name = |number| (self.name)(number);
        let named = name(u64::from(a));
        let (low, high) = (c & 0xffff_ffff, c >> 32);
        let Some(kind) = Kind::from_number(kind) else {
            return write!(f, "unknown event {kind} ({detail}, {a}, {b:#x}, {c:#x})");
        };
        match kind {
            Kind::TaskSpawn => write!(f, "task {a} {} is spawned by task {}", name(b & 0xffff_ffff), b >> 32),
            Kind::PollBegin => write!(f, "task {a} {} runs", name(b)),
            Kind::PollEnd => write!(f, "task {a} {}", if detail == 0 { "waits" } else { "ends" }),
            Kind::Block => write!(f, "it waits for {named} ({:?} {b})", BlockKind::from_number(detail)),
            Kind::Wake => write!(f, "task {a} is woken"),
            Kind::IdleBegin if b == u64::MAX => write!(f, "the core halts"),
            Kind::IdleBegin => write!(f, "the core halts until {}", glass_api::Instant(b)),
            Kind::IdleEnd => write!(f, "the core resumes ({:?})", WakeSource::from_number(detail)),
            Kind::Interrupt if a == 0 => write!(f, "interrupt {b:#x}"),
            Kind::Interrupt => write!(f, "interrupt {b:#x} of {named}"),
            Kind::SpinBegin => write!(f, "the core spins"),
            Kind::SpinEnd => write!(f, "the core stops spinning"),
            Kind::TimersFire => write!(f, "{a} timers fire"),
            Kind::Submit => {
                let operation = Operation::from_number(detail);
                write!(f, "{named} gets request {b}, {operation:?} of {low} bytes, {high} in flight")
            }
            Kind::Complete => {
                let how = if detail == 0 { "completes" } else { "fails" };
                // Received frames have a separate series of numbers, from the highest bit on.
                write!(f, "{named} {how} request {}, {low} bytes, {high} in flight", b & !(1 << 63))
            }
            Kind::Kick => write!(f, "{named} is notified"),
            Kind::SegmentIn | Kind::SegmentOut | Kind::Retransmit => {
                let (sequence, acknowledged) = (b & 0xffff_ffff, b >> 32);
                write!(f, "{kind:?} of connection {a}: flags {detail:#x}, sequence {sequence}, ")?;
                write!(f, "acknowledged {acknowledged}, {low} bytes, window {high}")
            }
            Kind::Connection => write!(f, "connection {a} {}", if detail == 1 { "opens" } else { "closes" }),
            Kind::Counter => write!(f, "{named} = {}", b as i64),
            Kind::SpanBegin => write!(f, "span {b:#x} {named} starts"),
            Kind::Message => write!(f, "message at {named}"),
            Kind::Groups => write!(f, "groups {b:#x} are on"),
            _ => write!(f, "{kind:?} ({detail}, {a}, {b:#x}, {c:#x})"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::{String, ToString};
    use glass_formats::trace::words_of_name;

    fn words(kind: u16, detail: u16, a: u32, b: u64, c: u64) -> String {
        let names = |number| {
            let mut bytes = [0; NAME_BYTES];
            let text = if number == 3 { "disk 0" } else { "" };
            for (chunk, word) in bytes.chunks_exact_mut(8).zip(words_of_name(text)) {
                chunk.copy_from_slice(&word.to_le_bytes());
            }
            Name(bytes)
        };
        InWords { event: Event { ticks: 0, kind, detail, a, b, c }, name: &names }.to_string()
    }

    #[test]
    fn events_can_be_read() {
        let submit = words(Kind::Submit as u16, 2, 3, 7, 4096 | 5 << 32);
        assert_eq!(submit, "disk 0 gets request 7, Write of 4096 bytes, 5 in flight");
        assert_eq!(words(Kind::Block as u16, 3, 3, 7, 0), "it waits for disk 0 (Request 7)");
        assert_eq!(words(Kind::PollBegin as u16, 0, 4, 3, 0), "task 4 disk 0 runs");
        assert_eq!(words(Kind::Kick as u16, 0, 9, 0, 0), "(no name) is notified");
        assert_eq!(words(Kind::Counter as u16, 1, 3, u64::MAX, 0), "disk 0 = -1");
    }

    #[test]
    fn nonsense_is_shown_as_it_is() {
        assert_eq!(words(9999, 1, 2, 3, 4), "unknown event 9999 (1, 2, 0x3, 0x4)");
        for kind in 0..200 {
            assert!(!words(kind, u16::MAX, u32::MAX, u64::MAX, u64::MAX).is_empty());
        }
        assert_eq!(Name([0xff; NAME_BYTES]).to_string(), "(no name)");
    }
}

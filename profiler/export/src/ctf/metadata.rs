//! The description of the streams, in the format's own language (TSDL).

use std::collections::HashSet;
use std::io::{self, Write};

use glass_formats::trace::{BlockKind, Kind, Operation, Outcome, ValueType, WakeSource};
use glass_profiler_core::names::printable;
use glass_profiler_core::recording::Recording;
use glass_profiler_core::words::kind_name;

use super::Clock;
use super::fields::{Field, UNKNOWN, fields};
use crate::chains::title;

/// Maximum of described names of one kind; further numbers stay numbers.
const NAMES_MAX: usize = 1 << 16;

/// Types without names of the guest. All fields are aligned to bytes.
const TYPES: &str = "\
typealias integer { size = 8; align = 8; signed = false; } := u8;
typealias integer { size = 16; align = 8; signed = false; } := u16;
typealias integer { size = 32; align = 8; signed = false; } := u32;
typealias integer { size = 64; align = 8; signed = false; } := u64;
typealias integer { size = 64; align = 8; signed = true; } := i64;
typealias integer { size = 16; align = 8; signed = false; base = hex; } := hex16;
typealias integer { size = 32; align = 8; signed = false; base = hex; } := hex32;
typealias integer { size = 64; align = 8; signed = false; base = hex; } := hex64;
";

/// A number that identifies a trace: derived from the time and the guest of the recording.
pub(super) fn uuid(recording: &Recording) -> [u8; 16] {
    let origin = &recording.profile.origin;
    let hash = |seed: u64| {
        let bytes = origin.guest.bytes().chain(origin.host.bytes()).chain(origin.start_unix_ns.to_le_bytes());
        bytes.fold(seed, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
    };
    let halves = [hash(0xcbf2_9ce4_8422_2325), hash(0x9ae1_6a3b_2f90_404f)];
    let mut uuid = [0; 16];
    uuid[..8].copy_from_slice(&halves[0].to_le_bytes());
    uuid[8..].copy_from_slice(&halves[1].to_le_bytes());
    // Version 4, variant 1 (RFC 9562): the version for bits without a structure.
    uuid[6] = uuid[6] & 0x0f | 0x40;
    uuid[8] = uuid[8] & 0x3f | 0x80;
    uuid
}

/// A string of the language.
fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in printable(text).chars() {
        if matches!(c, '"' | '\\') {
            quoted.push('\\');
        }
        quoted.push(c);
    }
    quoted.push('"');
    quoted
}

pub(super) fn write(recording: &Recording, clock: Clock, output: &mut dyn Write) -> io::Result<()> {
    let trace = &recording.trace;
    write!(output, "/* CTF 1.8 */\n\n{TYPES}\n")?;
    let hex: Vec<String> = uuid(recording).iter().map(|byte| format!("{byte:02x}")).collect();
    let uuid = format!(
        "{}-{}-{}-{}-{}",
        hex[..4].concat(),
        hex[4..6].concat(),
        hex[6..8].concat(),
        hex[8..10].concat(),
        hex[10..].concat()
    );
    write!(
        output,
        "trace {{\n\tmajor = 1;\n\tminor = 8;\n\tuuid = \"{uuid}\";\n\tbyte_order = le;\n\
         \tpacket.header := struct {{ u32 magic; u8 uuid[16]; u32 stream_id; }};\n}};\n\n"
    )?;
    write!(
        output,
        "env {{\n\ttracer_name = \"glass\";\n\ttracer_version = \"{}\";\n\tguest = {};\n\thostname = {};\n}};\n\n",
        env!("CARGO_PKG_VERSION"),
        quoted(&title(&recording.profile)),
        quoted(&recording.profile.origin.host)
    )?;
    let Clock { ticks_per_second, offset_s, offset_ticks } = clock;
    write!(
        output,
        "clock {{\n\tname = guest;\n\tdescription = \"ticks of the guest's time stamp counter\";\n\
         \tfreq = {ticks_per_second};\n\toffset_s = {offset_s};\n\toffset = {offset_ticks};\n}};\n\n\
         typealias integer {{ size = 64; align = 8; signed = false; map = clock.guest.value; }} := ticks;\n"
    )?;
    enumerations(output)?;
    let rings = (0u32..).zip(&trace.rings).map(|(index, ring)| (index, ring.name.as_str()));
    names(output, "guest_ring", rings)?;
    names(output, "guest_name", (0u32..).zip(&trace.names).map(|(index, name)| (index, name.as_str())))?;
    let functions = trace.functions.iter().map(|function| (function.number, function.name.as_str()));
    names(output, "guest_function", functions)?;
    output.write_all(
        b"\nstream {\n\tid = 0;\n\tpacket.context := struct {\n\t\tticks timestamp_begin;\n\t\tticks timestamp_end;\n\
          \t\tu64 content_size;\n\t\tu64 events_discarded;\n\t\tu64 packet_seq_num;\n\t\tguest_ring ring;\n\t};\n\
          \tevent.header := struct { ticks timestamp; u16 id; };\n};\n",
    )?;
    event(
        output,
        UNKNOWN.0,
        UNKNOWN.1,
        &[&[("kind", super::fields::Type::U16, super::fields::Source::Detail)], UNKNOWN.2],
    )?;
    for kind in Kind::ALL {
        event(output, kind as u16, kind_name(kind), &[fields(kind)])?;
    }
    Ok(())
}

fn event(output: &mut dyn Write, id: u16, name: &str, fields: &[&[Field]]) -> io::Result<()> {
    write!(output, "\nevent {{\n\tid = {id};\n\tname = \"{name}\";\n\tstream_id = 0;\n\tfields := struct {{\n")?;
    for (name, kind, _) in fields.iter().copied().flatten() {
        // With an underscore in front no name is a keyword of the language; readers remove it.
        writeln!(output, "\t\t{} _{name};", kind.name())?;
    }
    output.write_all(b"\t};\n};\n")
}

/// Names for numbers of the guest's format.
fn enumerations(output: &mut dyn Write) -> io::Result<()> {
    let write = |output: &mut dyn Write, name: &str, words: &[(&str, u16)]| {
        let words: Vec<String> = words.iter().map(|(word, number)| format!("\"{word}\" = {number}")).collect();
        writeln!(output, "typealias enum : u16 {{ {} }} := {name};", words.join(", "))
    };
    write(output, "outcome", &[("pending", Outcome::Pending as u16), ("ready", Outcome::Ready as u16)])?;
    let block_kinds = [
        ("other", BlockKind::Other),
        ("timer", BlockKind::Timer),
        ("notify", BlockKind::Notify),
        ("request", BlockKind::Request),
        ("receive", BlockKind::Receive),
        ("send", BlockKind::Send),
        ("accept", BlockKind::Accept),
        ("resource", BlockKind::Resource),
        ("yield", BlockKind::Yield),
    ];
    write(output, "block_kind", &block_kinds.map(|(word, kind)| (word, kind as u16)))?;
    let operations = [
        ("other", Operation::Other),
        ("read", Operation::Read),
        ("write", Operation::Write),
        ("flush", Operation::Flush),
        ("transmit", Operation::Transmit),
        ("receive", Operation::Receive),
    ];
    write(output, "operation", &operations.map(|(word, operation)| (word, operation as u16)))?;
    let sources = [
        ("other", WakeSource::Other),
        ("timer", WakeSource::Timer),
        ("device", WakeSource::Device),
        ("core", WakeSource::Core),
    ];
    write(output, "wake_source", &sources.map(|(word, source)| (word, source as u16)))?;
    let types = [
        ("unsigned", ValueType::Unsigned),
        ("signed", ValueType::Signed),
        ("bool", ValueType::Bool),
        ("float", ValueType::Float),
        ("text", ValueType::Text),
    ];
    write(output, "value_type", &types.map(|(word, kind)| (word, kind as u16)))
}

/// Names that the guest gave to numbers. A name that two numbers share gets its number appended.
fn names<'a>(output: &mut dyn Write, of: &str, names: impl Iterator<Item = (u32, &'a str)>) -> io::Result<()> {
    let mut known = HashSet::new();
    let mut numbers = HashSet::new();
    write!(output, "typealias enum : u32 {{ ")?;
    let mut comma = "";
    for (number, name) in names.filter(|(_, name)| !name.is_empty()).take(NAMES_MAX) {
        if !numbers.insert(number) {
            continue;
        }
        let name = match known.insert(name.to_owned()) {
            true => name.to_owned(),
            false => format!("{name} #{number}"),
        };
        write!(output, "{comma}{} = {number}", quoted(&name))?;
        comma = ", ";
    }
    // An enumeration must have a member.
    if comma.is_empty() {
        output.write_all(b"\"none\" = 0")?;
    }
    writeln!(output, " }} := {of};")
}

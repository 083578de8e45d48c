//! The fields of each kind of event: their place in the guest's event, and their type in the file.

use glass_formats::trace::{Event, Kind};

/// The place of a value in an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    Detail,
    A,
    B,
    /// The low half of `b`.
    BLow,
    BHigh,
    C,
    CLow,
    CHigh,
    /// The low 16 bits of `c`, and the ones after.
    CPort0,
    CPort1,
    /// The bytes of `a`, `b` and `c`.
    Bytes,
}

/// A type in the file, by its name in the description.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Type {
    U16,
    U32,
    U64,
    Hex16,
    Hex32,
    Hex64,
    I64,
    Name,
    Function,
    Outcome,
    BlockKind,
    Operation,
    WakeSource,
    FieldValue,
    Text,
}

impl Type {
    pub fn name(self) -> &'static str {
        match self {
            Type::U16 => "u16",
            Type::U32 => "u32",
            Type::U64 => "u64",
            Type::Hex16 => "hex16",
            Type::Hex32 => "hex32",
            Type::Hex64 => "hex64",
            Type::I64 => "i64",
            Type::Name => "guest_name",
            Type::Function => "guest_function",
            Type::Outcome => "outcome",
            Type::BlockKind => "block_kind",
            Type::Operation => "operation",
            Type::WakeSource => "wake_source",
            Type::FieldValue => "value_type",
            Type::Text => "string",
        }
    }

    fn bytes(self) -> usize {
        match self {
            Type::U16 | Type::Hex16 | Type::Outcome | Type::BlockKind => 2,
            Type::Operation | Type::WakeSource | Type::FieldValue => 2,
            Type::U32 | Type::Hex32 | Type::Name | Type::Function => 4,
            Type::U64 | Type::Hex64 | Type::I64 => 8,
            Type::Text => 0,
        }
    }
}

pub(super) type Field = (&'static str, Type, Source);

/// The class for unknown kinds; its fields include the number of the kind.
pub(super) const UNKNOWN: (u16, &str, &[Field]) = (
    0,
    "unknown",
    &[
        ("detail", Type::Hex16, Source::Detail),
        ("a", Type::Hex32, Source::A),
        ("b", Type::Hex64, Source::B),
        ("c", Type::Hex64, Source::C),
    ],
);

/// The fields of a kind.
pub(super) fn fields(kind: Kind) -> &'static [Field] {
    use Source::*;
    use Type::*;
    const TASK: Field = ("task", U32, A);
    const DEVICE: Field = ("device", Name, A);
    const SPAN: Field = ("span", U64, B);
    const REQUEST: [Field; 3] = [("request", U64, B), ("bytes", U32, CLow), ("under_way", U32, CHigh)];
    const SEGMENT: &[Field] = &[
        ("connection", U32, A),
        ("flags", Hex16, Detail),
        ("sequence", U32, BLow),
        ("acknowledgement", U32, BHigh),
        ("bytes", U32, CLow),
        ("window", U32, CHigh),
    ];
    match kind {
        Kind::TaskSpawn => &[TASK, ("name", Name, BLow), ("parent", U32, BHigh), ("was_there", U16, Detail)],
        Kind::PollBegin => &[TASK, ("name", Name, BLow)],
        Kind::PollEnd => &[TASK, ("outcome", Outcome, Detail)],
        Kind::Block => &[("name", Name, A), ("kind", BlockKind, Detail), ("object", U64, B)],
        Kind::Wake => &[TASK],
        Kind::IdleBegin => &[("deadline_ns", U64, B)],
        Kind::IdleEnd => &[DEVICE, ("source", WakeSource, Detail)],
        Kind::Interrupt => &[DEVICE, ("vector", U64, B)],
        Kind::SpinBegin | Kind::SpinEnd => &[],
        Kind::TimersFire => &[("count", U32, A)],
        Kind::Submit => &[DEVICE, ("operation", Operation, Detail), REQUEST[0], REQUEST[1], REQUEST[2]],
        Kind::Complete => &[DEVICE, ("has_failed", U16, Detail), REQUEST[0], REQUEST[1], REQUEST[2]],
        Kind::Kick => &[DEVICE, ("ticks", U64, B)],
        Kind::SegmentIn | Kind::SegmentOut | Kind::Retransmit => SEGMENT,
        Kind::Connection => &[
            ("connection", U32, A),
            ("begins_or_ends", U16, Detail),
            ("remote", Hex32, BLow),
            ("local_port", U16, CPort0),
            ("remote_port", U16, CPort1),
        ],
        Kind::Counter => &[("name", Name, A), ("value", I64, B), ("is_gauge", U16, Detail)],
        Kind::SpanBegin => &[("name", Name, A), SPAN, ("parent", U64, C), ("level", U16, Detail)],
        Kind::SpanEnter | Kind::SpanExit | Kind::SpanEnd => &[SPAN],
        Kind::Message => &[("place", Name, A), SPAN, ("text_bytes", U64, C), ("level", U16, Detail)],
        Kind::Field => &[("name", Name, A), ("value", Hex64, B), ("span", U64, C), ("type", FieldValue, Detail)],
        Kind::Text => &[("bytes", U16, Detail), ("text", Text, Bytes)],
        Kind::MpiCall | Kind::MpiReturn => &[("call", U16, Detail), ("rank", U32, A)],
        Kind::MpiAbout => &[
            ("role", U16, Detail),
            ("rank_and_one", U32, A),
            ("tag_or_number", U32, BLow),
            ("communicator", U32, BHigh),
            ("bytes", Hex64, C),
        ],
        Kind::MpiSent => &[("rank", U32, A), ("slot", U64, B), ("bytes", U64, C), ("is_offered", U16, Detail)],
        Kind::MpiReceived => &[("rank", U32, A), ("slot", U64, B), ("bytes", U64, C)],
        Kind::FunctionEnter | Kind::FunctionExit | Kind::FunctionTailExit => &[("function", Function, A)],
        Kind::Groups => &[("groups", Hex64, B)],
    }
}

/// Appends the value of a field, little endian.
pub(super) fn encode(field: &Field, event: &Event, output: &mut Vec<u8>) {
    let value = match field.2 {
        Source::Detail => u64::from(event.detail),
        Source::A => u64::from(event.a),
        Source::B | Source::BLow => event.b,
        Source::BHigh => event.b >> 32,
        Source::C | Source::CLow | Source::CPort0 => event.c,
        Source::CHigh => event.c >> 32,
        Source::CPort1 => event.c >> 16,
        Source::Bytes => return encode_text(event, output),
    };
    output.extend_from_slice(&value.to_le_bytes()[..field.1.bytes()]);
}

/// A piece of text, unchanged; it may start or end within a character; the format ends it with a zero.
fn encode_text(event: &Event, output: &mut Vec<u8>) {
    let words = [&event.a.to_le_bytes()[..], &event.b.to_le_bytes()[..], &event.c.to_le_bytes()[..]].concat();
    let length = usize::from(event.detail).min(words.len());
    output.extend(words[..length].iter().map(|byte| if *byte == 0 { b' ' } else { *byte }));
    output.push(0);
}

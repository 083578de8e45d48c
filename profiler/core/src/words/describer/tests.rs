//! Events and their lines.

use glass_formats::trace::ValueType;

use super::*;

struct Table;

impl Names for Table {
    fn name(&self, number: u32) -> Option<&str> {
        ["", "connection", "disk", "store", "bytes", "queued", "evil\x1b[2J"].get(number as usize).copied()
    }

    fn function(&self, number: u32) -> Option<&str> {
        (number == 7).then_some("store::write")
    }
}

fn event(kind: Kind, detail: u16, a: u32, b: u64, c: u64) -> Event {
    Event { ticks: 5, kind: kind as u16, detail, a, b, c }
}

/// `task: text` of each line, all of one ring.
fn described(events: &[Event]) -> Vec<String> {
    let mut describer = Describer::default();
    let mut lines = Vec::new();
    let mut keep = |line: Line| lines.push(format!("{}: {}", line.task, line.text));
    for event in events {
        describer.push(0, event, &Table, &mut keep);
    }
    describer.finish(0, &Table, &mut keep);
    lines
}

fn text(text: &str) -> Event {
    let mut bytes = [0u8; 20];
    bytes[..text.len()].copy_from_slice(text.as_bytes());
    let a = u32::from_le_bytes(bytes[..4].try_into().unwrap());
    let b = u64::from_le_bytes(bytes[4..12].try_into().unwrap());
    let c = u64::from_le_bytes(bytes[12..].try_into().unwrap());
    event(Kind::Text, text.len() as u16, a, b, c)
}

#[test]
fn a_poll_and_what_happens_in_it() {
    let lines = described(&[
        event(Kind::TaskSpawn, 0, 4, 1 | 3 << 32, 0),
        event(Kind::PollBegin, 0, 4, 1, 0),
        event(Kind::Submit, 2, 2, 17, 65_536 | 3 << 32),
        event(Kind::Block, 3, 2, 17, 0),
        event(Kind::PollEnd, 0, 4, 0, 0),
        event(Kind::Complete, 1, 2, 17, 65_536 | 2 << 32),
        event(Kind::Wake, 0, 4, 0, 0),
    ]);
    assert_eq!(
        lines,
        [
            ": spawned: connection #4 by #3",
            "connection #4: running",
            "connection #4: disk: write 17 of 65,536 bytes, 3 in flight",
            "connection #4: waits on a device (disk), request 17",
            "connection #4: waiting",
            ": disk: 17 failed, 65,536 bytes, 2 in flight",
            ": wakes connection #4",
        ]
    );
}

#[test]
fn a_message_is_told_with_its_text_and_fields() {
    let lines = described(&[
        event(Kind::SpanBegin, 3, 3, 9, 0),
        event(Kind::SpanEnter, 0, 0, 9, 0),
        event(Kind::Message, 3, 3, 9, 24),
        text("twenty bytes are all "[..20].into()),
        text("here"),
        event(Kind::Field, ValueType::Signed as u16, 4, -17i64 as u64, 0),
        event(Kind::Field, ValueType::Text as u16, 5, 0, 0),
        text("a\nb"),
        event(Kind::SpinBegin, 0, 0, 0, 0),
    ]);
    assert_eq!(
        lines,
        [
            ": span 9 starts: store",
            ": enters span 9 (store)",
            ": store: twenty bytes are allhere bytes=-17 queued=a\u{fffd}b",
            ": spinning",
        ]
    );
}

#[test]
fn the_network_in_words() {
    let lines = described(&[
        event(Kind::Connection, 1, 3, 0x0a00_0002, 8080 | 50_000 << 16),
        event(Kind::SegmentIn, 0x18, 3, 1000 | 2000 << 32, 1460 | 65_535 << 32),
        event(Kind::Connection, 2, 3, 0, 0),
        event(Kind::Connection, 3, 4, 0x0a00_0002, 8080 | 50_001 << 16),
    ]);
    assert_eq!(lines[0], ": connection 3 opened: 10.0.0.2:50000 to port 8080");
    assert_eq!(
        lines[1],
        ": connection 3 received: PSH ACK 1,460 bytes, sequence 1000, acknowledges 2000, window 65,535"
    );
    assert_eq!(lines[2], ": connection 3 closed");
    assert_eq!(lines[3], ": connection 4 open before the trace: 10.0.0.2:50001 to port 8080");
}

#[test]
fn whatever_comes_gives_a_printable_line() {
    let mut describer = Describer::default();
    let mut lines = 0;
    for kind in 0..200u16 {
        for value in [0, 1, 6, u64::MAX] {
            let event = Event { ticks: value, kind, detail: value as u16, a: value as u32, b: value, c: value };
            describer.push(kind.into(), &event, &Table, &mut |line| {
                lines += 1;
                assert!(!line.text.chars().any(char::is_control) && !line.text.is_empty(), "{line:?}");
            });
        }
    }
    assert!(lines > 600, "{lines}");
    let unknown = Event { kind: 9999, ..Event::default() };
    describer.push(0, &unknown, &Table, &mut |line| assert!(line.text.contains("unknown kind 9999")));
}

#[test]
fn long_texts_are_bounded() {
    let mut events = vec![event(Kind::Message, 3, 3, 0, 0)];
    events.extend(std::iter::repeat_n(text("0123456789abcdefghij"), 10_000));
    events.extend(std::iter::repeat_n(event(Kind::Field, 0, 4, 1, 0), 10_000));
    let lines = described(&events);
    assert!(lines.len() == 1 && lines[0].len() < 10_000 && lines[0].ends_with('…'), "{}", lines[0].len());
}

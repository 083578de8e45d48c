//! Tracks as track events: a descriptor for each track, a packet for each start, end, moment and value.

use std::collections::HashMap;
use std::io::{self, Write};

use glass_profiler_core::trace::model::Value;
use prost::Message;

use super::proto::{self, TracePacket, TrackEvent};
use crate::lanes::{Description, Lane, Mark, Nest, Place, Viewer};

/// The sequence of our packets; the recording's own is 1.
const SEQUENCE: u32 = 2;
/// Maximum of names of each kind that get a number; further ones are written in full each time.
const NAMES_MAX: usize = 1 << 16;

/// Names and their numbers.
#[derive(Default)]
struct Interned {
    numbers: HashMap<String, u64>,
    /// Names that the next packet introduces.
    new: Vec<proto::InternedName>,
}

impl Interned {
    /// The number of a name, `None` if there is no more room.
    fn number(&mut self, name: &str) -> Option<u64> {
        if let Some(number) = self.numbers.get(name) {
            return Some(*number);
        }
        if self.numbers.len() >= NAMES_MAX {
            return None;
        }
        let number = self.numbers.len() as u64 + 1;
        self.numbers.insert(name.to_owned(), number);
        self.new.push(proto::InternedName { iid: Some(number), name: Some(name.to_owned()) });
        Some(number)
    }
}

pub(super) struct Encoder<'a> {
    output: &'a mut dyn Write,
    buffer: Vec<u8>,
    start_timestamp: u64,
    names: Interned,
    categories: Interned,
    details: Interned,
    open: HashMap<Lane, Nest>,
}

impl<'a> Encoder<'a> {
    /// `start_timestamp` is what a time of 0 is on the clock of the file.
    pub fn start(output: &'a mut dyn Write, start_timestamp: u64) -> io::Result<Encoder<'a>> {
        let mut encoder = Encoder {
            output,
            buffer: Vec::new(),
            start_timestamp,
            names: Interned::default(),
            categories: Interned::default(),
            details: Interned::default(),
            open: HashMap::new(),
        };
        encoder.packet(TracePacket {
            timestamp: Some(start_timestamp),
            sequence_flags: Some(proto::FLAG_CLEARED),
            first_packet_on_sequence: Some(true),
            ..Default::default()
        })?;
        Ok(encoder)
    }

    /// Ends the open slices.
    pub fn finish(mut self) -> io::Result<()> {
        let mut open: Vec<(Lane, Nest)> = std::mem::take(&mut self.open).into_iter().collect();
        open.sort_by_key(|(lane, _)| lane.number());
        for (lane, mut nest) in open {
            nest.close(|end_ns| self.end(lane, end_ns))?;
        }
        Ok(())
    }

    fn packet(&mut self, mut packet: TracePacket) -> io::Result<()> {
        packet.trusted_packet_sequence_id = Some(SEQUENCE);
        self.buffer.clear();
        self.buffer.push(proto::PACKET_TAG);
        packet.encode_length_delimited(&mut self.buffer).map_err(io::Error::other)?;
        self.output.write_all(&self.buffer)
    }

    fn event(&mut self, time_ns: u64, event: TrackEvent) -> io::Result<()> {
        let data = proto::InternedData {
            event_categories: std::mem::take(&mut self.categories.new),
            event_names: std::mem::take(&mut self.names.new),
            debug_annotation_names: std::mem::take(&mut self.details.new),
        };
        self.packet(TracePacket {
            timestamp: Some(self.start_timestamp.saturating_add(time_ns)),
            sequence_flags: Some(proto::FLAG_NEEDS_STATE),
            track_event: Some(event),
            interned_data: (data != proto::InternedData::default()).then_some(data),
            ..Default::default()
        })
    }

    fn end(&mut self, lane: Lane, time_ns: u64) -> io::Result<()> {
        let track_uuid = Some(lane.number());
        self.event(time_ns, TrackEvent { event_type: Some(proto::SLICE_END), track_uuid, ..Default::default() })
    }

    fn mark(&mut self, mark: &Mark<'_>, event_type: u32) -> TrackEvent {
        let name_iid = self.names.number(mark.name);
        let arrows = |ends: bool| {
            mark.steps.iter().filter(move |step| (step.place == Place::End) == ends).map(|step| step.arrow).collect()
        };
        TrackEvent {
            category_iids: self.categories.number(mark.category).into_iter().collect(),
            debug_annotations: mark.details.iter().map(|(name, value)| self.detail(name, value)).collect(),
            event_type: Some(event_type),
            name_iid,
            name: name_iid.is_none().then(|| mark.name.to_owned()),
            track_uuid: Some(mark.lane.number()),
            counter_value: None,
            flow_ids: arrows(false),
            terminating_flow_ids: arrows(true),
        }
    }

    fn detail(&mut self, name: &str, value: &Value) -> proto::DebugAnnotation {
        let name_iid = self.details.number(name);
        let mut detail = proto::DebugAnnotation {
            name_iid,
            name: name_iid.is_none().then(|| name.to_owned()),
            ..Default::default()
        };
        match value {
            Value::Unsigned(number) => detail.uint_value = Some(*number),
            Value::Signed(number) => detail.int_value = Some(*number),
            Value::Bool(flag) => detail.bool_value = Some(*flag),
            Value::Float(number) => detail.double_value = Some(*number),
            Value::Text(text) => detail.string_value = Some(text.clone()),
        }
        detail
    }
}

impl Viewer for Encoder<'_> {
    fn lane(&mut self, description: &Description) -> io::Result<()> {
        let Description { lane, name, is_counter } = description;
        let merge = if lane.is_row() { proto::MERGE_BY_NAME } else { proto::MERGE_NEVER };
        self.packet(TracePacket {
            timestamp: Some(self.start_timestamp),
            track_descriptor: Some(proto::TrackDescriptor {
                uuid: Some(lane.number()),
                name: Some(name.clone()),
                parent_uuid: lane.parent().map(Lane::number),
                counter: is_counter.then(proto::CounterDescriptor::default),
                child_ordering: Some(proto::EXPLICIT),
                sibling_order_rank: Some(lane.rank().min(i32::MAX as u32) as i32),
                sibling_merge_behavior: Some(merge),
            }),
            ..Default::default()
        })
    }

    fn slice(&mut self, mark: &Mark<'_>) -> io::Result<()> {
        let mut nest = self.open.remove(&mark.lane).unwrap_or_default();
        let (start_ns, _) = nest.open(mark.start_ns, mark.end_ns, |end_ns| self.end(mark.lane, end_ns))?;
        self.open.insert(mark.lane, nest);
        let event = self.mark(mark, proto::SLICE_BEGIN);
        self.event(start_ns, event)
    }

    fn instant(&mut self, mark: &Mark<'_>) -> io::Result<()> {
        let event = self.mark(mark, proto::INSTANT);
        self.event(mark.start_ns, event)
    }

    fn value(&mut self, lane: Lane, time_ns: u64, value: i64) -> io::Result<()> {
        let event = TrackEvent {
            event_type: Some(proto::COUNTER),
            track_uuid: Some(lane.number()),
            counter_value: Some(value),
            ..Default::default()
        };
        self.event(time_ns, event)
    }
}

//! The messages of track events and of their packets: a subset of Perfetto's `protos/perfetto/trace/track_event/`, with
//! their field numbers.

use prost::Message;

/// Field 1 of the message `Trace`, length-delimited: the start of each packet.
pub(super) const PACKET_TAG: u8 = 0x0a;

#[derive(Clone, PartialEq, Message)]
pub(super) struct TracePacket {
    #[prost(uint64, optional, tag = "8")]
    pub timestamp: Option<u64>,
    #[prost(uint32, optional, tag = "10")]
    pub trusted_packet_sequence_id: Option<u32>,
    #[prost(message, optional, tag = "11")]
    pub track_event: Option<TrackEvent>,
    #[prost(message, optional, tag = "12")]
    pub interned_data: Option<InternedData>,
    #[prost(uint32, optional, tag = "13")]
    pub sequence_flags: Option<u32>,
    #[prost(message, optional, tag = "60")]
    pub track_descriptor: Option<TrackDescriptor>,
    #[prost(bool, optional, tag = "87")]
    pub first_packet_on_sequence: Option<bool>,
}

/// Values of [`TracePacket::sequence_flags`].
pub(super) const FLAG_CLEARED: u32 = 1;
pub(super) const FLAG_NEEDS_STATE: u32 = 2;

#[derive(Clone, PartialEq, Message)]
pub(super) struct TrackEvent {
    #[prost(uint64, repeated, packed = "false", tag = "3")]
    pub category_iids: Vec<u64>,
    #[prost(message, repeated, tag = "4")]
    pub debug_annotations: Vec<DebugAnnotation>,
    #[prost(uint32, optional, tag = "9")]
    pub event_type: Option<u32>,
    #[prost(uint64, optional, tag = "10")]
    pub name_iid: Option<u64>,
    #[prost(uint64, optional, tag = "11")]
    pub track_uuid: Option<u64>,
    #[prost(string, optional, tag = "23")]
    pub name: Option<String>,
    #[prost(int64, optional, tag = "30")]
    pub counter_value: Option<i64>,
    #[prost(fixed64, repeated, packed = "false", tag = "47")]
    pub flow_ids: Vec<u64>,
    #[prost(fixed64, repeated, packed = "false", tag = "48")]
    pub terminating_flow_ids: Vec<u64>,
}

/// Values of [`TrackEvent::event_type`].
pub(super) const SLICE_BEGIN: u32 = 1;
pub(super) const SLICE_END: u32 = 2;
pub(super) const INSTANT: u32 = 3;
pub(super) const COUNTER: u32 = 4;

#[derive(Clone, PartialEq, Message)]
pub(super) struct DebugAnnotation {
    #[prost(uint64, optional, tag = "1")]
    pub name_iid: Option<u64>,
    #[prost(bool, optional, tag = "2")]
    pub bool_value: Option<bool>,
    #[prost(uint64, optional, tag = "3")]
    pub uint_value: Option<u64>,
    #[prost(int64, optional, tag = "4")]
    pub int_value: Option<i64>,
    #[prost(double, optional, tag = "5")]
    pub double_value: Option<f64>,
    #[prost(string, optional, tag = "6")]
    pub string_value: Option<String>,
    #[prost(string, optional, tag = "10")]
    pub name: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct TrackDescriptor {
    #[prost(uint64, optional, tag = "1")]
    pub uuid: Option<u64>,
    #[prost(string, optional, tag = "2")]
    pub name: Option<String>,
    #[prost(uint64, optional, tag = "5")]
    pub parent_uuid: Option<u64>,
    #[prost(message, optional, tag = "8")]
    pub counter: Option<CounterDescriptor>,
    #[prost(uint32, optional, tag = "11")]
    pub child_ordering: Option<u32>,
    #[prost(int32, optional, tag = "12")]
    pub sibling_order_rank: Option<i32>,
    #[prost(uint32, optional, tag = "15")]
    pub sibling_merge_behavior: Option<u32>,
}

/// Value of [`TrackDescriptor::child_ordering`]: by [`TrackDescriptor::sibling_order_rank`].
pub(super) const EXPLICIT: u32 = 3;
/// Values of [`TrackDescriptor::sibling_merge_behavior`].
pub(super) const MERGE_BY_NAME: u32 = 1;
pub(super) const MERGE_NEVER: u32 = 2;

#[derive(Clone, PartialEq, Message)]
pub(super) struct CounterDescriptor {}

#[derive(Clone, PartialEq, Message)]
pub(super) struct InternedData {
    #[prost(message, repeated, tag = "1")]
    pub event_categories: Vec<InternedName>,
    #[prost(message, repeated, tag = "2")]
    pub event_names: Vec<InternedName>,
    #[prost(message, repeated, tag = "3")]
    pub debug_annotation_names: Vec<InternedName>,
}

/// `EventCategory`, `EventName` and `DebugAnnotationName`, which have the same fields.
#[derive(Clone, PartialEq, Message)]
pub(super) struct InternedName {
    #[prost(uint64, optional, tag = "1")]
    pub iid: Option<u64>,
    #[prost(string, optional, tag = "2")]
    pub name: Option<String>,
}

/// The fields of a recording's packet that we need.
#[derive(Clone, PartialEq, Message)]
pub(super) struct RecordedPacket {
    #[prost(message, optional, tag = "60001")]
    pub glass: Option<RecordedGlass>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct RecordedGlass {
    #[prost(message, optional, tag = "1")]
    pub header: Option<RecordedHeader>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct RecordedHeader {
    #[prost(uint64, optional, tag = "8")]
    pub start_timestamp: Option<u64>,
}

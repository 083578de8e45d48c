"""Reads the track events of a trace with Perfetto's published schema and prints, as JSON, what is on each track.

Does what Perfetto's trace processor does with them: sorts by time (packets of the same time keep their order), looks up
interned names, stacks begins and ends of each track, follows flows. Anything that the trace processor would count as an
error or drop is an assertion here.
"""

import collections
import json
import sys

from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import TrackDescriptor, TrackEvent
from perfetto_file import read, unknown_fields

trace = read(sys.argv[1])
start = min(clock.timestamp for packet in trace.packet for clock in packet.clock_snapshot.clocks if clock.clock_id == 6)

# In the order of the file: names before they are used, tracks before they have events.
names, categories, details, tracks, events, cleared = {}, {}, {}, {}, [], False
for packet in trace.packet:
    if packet.trusted_packet_sequence_id != 2:
        assert not packet.HasField("track_event")
        continue
    if packet.sequence_flags & 1:
        assert not cleared and packet.first_packet_on_sequence
        cleared = True
    assert cleared
    for known, new in [
        (names, packet.interned_data.event_names),
        (categories, packet.interned_data.event_categories),
        (details, packet.interned_data.debug_annotation_names),
    ]:
        for entry in new:
            assert entry.iid not in known and entry.iid > 0
            known[entry.iid] = entry.name
    if packet.HasField("track_descriptor"):
        track = packet.track_descriptor
        assert track.uuid not in tracks and track.uuid != 0
        assert not track.parent_uuid or track.parent_uuid in tracks
        tracks[track.uuid] = track
    if packet.HasField("track_event"):
        assert packet.sequence_flags & 2
        event = packet.track_event
        assert event.track_uuid in tracks
        assert tracks[event.track_uuid].HasField("counter") == (event.type == TrackEvent.TYPE_COUNTER)
        name = names[event.name_iid] if event.name_iid else event.name
        keys = [details[detail.name_iid] if detail.name_iid else detail.name for detail in event.debug_annotations]
        kinds = [categories[iid] for iid in event.category_iids]
        events.append((packet.timestamp, name, kinds, dict(zip(keys, event.debug_annotations)), event))


def path(uuid):
    """Names of a track and of those that it is in."""
    track = tracks[uuid]
    outer = path(track.parent_uuid) if track.parent_uuid else []
    return outer + [track.name]


Seen = lambda: {"slices": collections.Counter(), "times": collections.Counter(), "instants": 0, "values": []}
seen = collections.defaultdict(Seen)
stacks = collections.defaultdict(list)
flows, arrows, depth = {}, collections.Counter(), 0
for timestamp, name, kinds, _, event in sorted(events, key=lambda entry: entry[0]):
    lane = seen[" / ".join(path(event.track_uuid))]
    stack = stacks[event.track_uuid]
    time = timestamp - start
    if event.type == TrackEvent.TYPE_COUNTER:
        lane["values"].append([time, event.counter_value])
        continue
    if event.type == TrackEvent.TYPE_SLICE_END:
        opened, begin = stack.pop()
        lane["slices"][opened] += 1
        lane["times"][opened] += time - begin
        continue
    assert name and len(kinds) == 1
    here = event.track_uuid, kinds[0]
    for flow in event.terminating_flow_ids:
        # The trace processor counts an end without a begin as an error.
        arrows[flows.pop(flow)[1] + " -> " + kinds[0]] += 1
    for flow in event.flow_ids:
        if flow in flows:
            arrows[flows[flow][1] + " -> " + kinds[0]] += 1
        flows[flow] = here
    if event.type == TrackEvent.TYPE_INSTANT:
        lane["instants"] += 1
    else:
        assert event.type == TrackEvent.TYPE_SLICE_BEGIN
        stack.append((name, time))
        depth = max(depth, len(stack))
assert not any(stacks.values()), "slices that never end"
merged = [track.uuid for track in tracks.values() if track.sibling_merge_behavior == TrackDescriptor.SIBLING_MERGE_BEHAVIOR_BY_TRACK_NAME]
print(
    json.dumps(
        {
            "unknown_fields": unknown_fields(trace),
            "samples": sum(packet.HasField("perf_sample") for packet in trace.packet),
            "lanes": seen,
            "arrows": arrows,
            "rows": len(merged),
            "depth": depth,
        }
    )
)

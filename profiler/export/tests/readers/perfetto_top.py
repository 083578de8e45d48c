"""Reads a trace with Perfetto's published schema and prints, as JSON, how often each function is innermost, in which mode, and of which thread.

Joins what Perfetto's trace processor joins: perf_sample -> callstack -> frame -> mapping -> module_symbols.
"""

import collections
import json
import sys

from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Profiling
from perfetto_file import read, unknown_fields

trace = read(sys.argv[1])
paths, build_ids, mappings, frames, callstacks, names = {}, {}, {}, {}, {}, {}
processes, threads = {}, {}
for packet in trace.packet:
    processes.update((process.pid, process.cmdline[0]) for process in packet.process_tree.processes)
    threads.update((thread.tid, (thread.tgid, thread.name)) for thread in packet.process_tree.threads)
    data = packet.interned_data
    paths.update((entry.iid, entry.str.decode()) for entry in data.mapping_paths)
    build_ids.update((entry.iid, entry.str) for entry in data.build_ids)
    for mapping in data.mappings:
        path = "".join("/" + paths[iid] for iid in mapping.path_string_ids)
        mappings[mapping.iid] = (path, build_ids.get(mapping.build_id, b""))
    frames.update((frame.iid, frame) for frame in data.frames)
    callstacks.update((stack.iid, list(stack.frame_ids)) for stack in data.callstacks)
    module = packet.module_symbols
    for symbols in module.address_symbols:
        key = (module.path, module.build_id.encode("latin-1") if isinstance(module.build_id, str) else module.build_id)
        names[key + (symbols.address,)] = symbols.lines[0].function_name
counts, modes, ran = collections.Counter(), collections.Counter(), collections.Counter()
for packet in trace.packet:
    if not packet.HasField("perf_sample"):
        continue
    stack = callstacks[packet.perf_sample.callstack_iid] if packet.perf_sample.HasField("callstack_iid") else []
    if not stack:
        continue
    frame = frames[stack[-1]]
    key = mappings.get(frame.mapping_id, ("", b"")) + (frame.rel_pc,)
    counts[names.get(key, hex(frame.rel_pc))] += 1
    sample = packet.perf_sample
    pid, name = threads[sample.tid]
    assert pid == sample.pid
    ran[f"{processes[pid]} {pid}, {name} {sample.tid}"] += 1
    modes[Profiling.CpuMode.Name(packet.perf_sample.cpu_mode)] += 1
print(json.dumps({"unknown_fields": unknown_fields(trace), "self": counts, "modes": modes, "threads": ran}))

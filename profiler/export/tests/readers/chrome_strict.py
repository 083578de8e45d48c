"""Reads a file of Chrome's trace events with a strict parser and prints, as JSON, how many events of each phase it has."""

import collections
import json
import sys


def unique(pairs):
    """An object whose names are all different."""
    result = dict(pairs)
    assert len(result) == len(pairs), f"a name twice: {pairs}"
    return result


def refuse(text):
    """NaN and infinities, which are not JSON."""
    raise ValueError(text)


with open(sys.argv[1], encoding="utf-8", errors="strict") as file:
    trace = json.load(file, object_pairs_hook=unique, parse_constant=refuse)
for event in trace["traceEvents"]:
    assert isinstance(event["pid"], int) and isinstance(event["tid"], int) and event["pid"] > 0 and event["tid"] > 0
    assert event["ts"] >= 0 and (event["ph"] == "E" or event["name"])
print(json.dumps(collections.Counter(event["ph"] for event in trace["traceEvents"])))

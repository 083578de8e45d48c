"""Reads a flame graph with Python's XML parser and prints, as JSON, each function's own samples by its tooltips."""

import collections
import json
import re
import sys
import xml.etree.ElementTree as tree

SVG = "{http://www.w3.org/2000/svg}"
counts = collections.Counter()
for group in tree.parse(sys.argv[1]).getroot().iter(SVG + "g"):
    lines = group.find(SVG + "title").text.split("\n")
    counts[lines[0]] += int(re.search(r", (\d+) of its own$", lines[-1]).group(1))
print(json.dumps({"unknown_fields": 0, "self": counts}))

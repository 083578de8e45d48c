// Prints the critical paths of all spans of a name in a page: `node paths.mjs PAGE.html NAME`.

import { formatCount, formatDuration, formatPercent } from "../../assets/shared/format.js";
import { breakdown, pathOf } from "../../assets/trace/path.js";
import { exactly } from "../../assets/trace/pick.js";
import { spansOf } from "../../assets/trace/spans.js";
import { traceOf } from "./trace_of.mjs";

const [file, name] = process.argv.slice(2);
const data = traceOf(file);
const { rows } = await spansOf(data, data.names.indexOf(name));
const paths = [];
for (const { track, start, ns, isWhole } of rows) {
  if (!isWhole) continue;
  const path = await pathOf(data, await exactly(data, track, start));
  const { own, causes } = breakdown(path.parts);
  const sums = (list) => list.map((sum) => [formatPercent(sum.ns, ns), formatDuration(sum.ns), formatCount(sum.count), formatDuration(sum.max), sum.what]);
  paths.push({
    duration: ns,
    sum: path.parts.reduce((all, part) => all + part.end - part.start, 0),
    steps: path.parts.map((part) => [formatDuration(part.start - path.start), formatDuration(part.end - part.start), part.what]),
    own: sums(own),
    causes: sums(causes),
  });
}
console.log(JSON.stringify(paths));

// Prints the critical paths of all spans of a name in a page: `node paths.mjs PAGE.html NAME`.

import { readFileSync } from "node:fs";
import { formatCount, formatDuration, formatPercent } from "../../assets/format.js";
import { TraceData } from "../../assets/trace_data.js";
import { breakdown, pathOf } from "../../assets/trace_path.js";
import { exactly } from "../../assets/trace_pick.js";
import { spansOf } from "../../assets/trace_spans.js";

const [file, name] = process.argv.slice(2);
const page = readFileSync(file, "utf8");

function element(id) {
  const start = page.indexOf(">", page.indexOf(`id="${id}"`)) + 1;
  return page.slice(start, page.indexOf("</script>", start));
}

const data = new TraceData(element("trace-index"), () => {}, async (number) => element(`pack-${number}`));
const { rows } = await spansOf(data, data.names.indexOf(name));
const paths = [];
for (const { lane, start, ns, isWhole } of rows) {
  if (!isWhole) continue;
  const path = await pathOf(data, await exactly(data, lane, start));
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

// What a range of time adds up to: how often each thing was there and for how long, cut at the edges of the range.

import { formatCount } from "./format.js";
import { textElement } from "./elements.js";
import { firstAbove, piecesIn } from "./trace_data.js";
import { formatMoment, formatTime } from "./trace_overlay.js";
import { TraceTable } from "./trace_tables.js";

const SUMS_DELAY_MS = 250;
/** Slices that are added up; a range with more of them is said to be too long. */
const SUM_SLICES_MAX = 2_000_000;
const SUM_ROWS_MAX = 1_000;

export class RangeSums {
  /** `range()` is what counts, `go(lane, time)` brings a moment in sight. */
  constructor(panel, data, { range, go }) {
    this.panel = panel;
    this.data = data;
    this.range = range;
    this.go = go;
    this.timer = null;
    this.serial = 0;
    this.shown = null;
  }

  /** The range may have changed. */
  update() {
    clearTimeout(this.timer);
    if (!this.panel.hidden) this.timer = setTimeout(() => this.draw(), SUMS_DELAY_MS);
  }

  async draw() {
    const range = this.range();
    if (this.shown?.every((time, end) => time === range[end])) return;
    const serial = ++this.serial;
    this.panel.replaceChildren(textElement("p", "trace-nothing", "Adding up …"));
    this.shown = null;
    const rows = await this.sums(range);
    if (serial !== this.serial) return;
    this.shown = range;
    const [from, to] = range;
    const moments = range.map((time) => formatMoment(this.data.startNs + time, to - from)).join(" – ");
    const head = textElement("p", "trace-nothing", `${moments}, ${formatTime(to - from)}. Times are cut at the edges of the range.`);
    const box = textElement("div", "", "");
    if (rows) new TraceTable(box, { columns: COLUMNS, rows: rows.slice(0, SUM_ROWS_MAX), sort: 4, rows_left_out: Math.max(0, rows.length - SUM_ROWS_MAX) }, this.data, this.go);
    else box.append(textElement("p", "", `There are more than ${formatCount(SUM_SLICES_MAX)} slices in it. Choose a shorter range: drag the axis, or zoom in.`));
    this.panel.replaceChildren(head, box);
  }

  /** A row for each name of each kind under a heading, those with most time first; null if there are too many slices. */
  async sums([from, to]) {
    const { data } = this;
    const sums = new Map();
    let left = SUM_SLICES_MAX;
    for (const lane of data.lanes) {
      if (lane.count === 0 || data.isCounter(lane)) continue;
      const level = lane.levels[0];
      const pieces = piecesIn(level, from, to);
      left -= pieces.reduce((all, [, , count]) => all + count, 0);
      if (left < 0) return null;
      for (const place of pieces) this.add(sums, lane, await data.fetch(lane, level, place), from, to);
    }
    const rows = [...sums.values()].map(({ group, kind, name, count, ns, longest }) => [group, data.names[name], data.kinds[kind].label, count, ns, (ns * 100) / (to - from), longest]);
    return rows.sort((a, b) => b[4] - a[4] || b[3] - a[3]);
  }

  add(sums, lane, { count, start, end, kind, name }, from, to) {
    const group = this.data.groups[lane.group].name;
    for (let index = firstAbove(end, from - 1); index < count && start[index] <= to; index += 1) {
      const ns = Math.min(end[index], to) - Math.max(start[index], from);
      // What only touches the range is not in it, but for marks.
      if (ns < 0 || (ns === 0 && end[index] > start[index])) continue;
      const key = (name[index] * 256 + kind[index]) * 64 + lane.group;
      let sum = sums.get(key);
      if (!sum) sums.set(key, (sum = { group, kind: kind[index], name: name[index], count: 0, ns: 0, longest: [0, lane.number, start[index]] }));
      sum.count += 1;
      sum.ns += ns;
      if (end[index] - start[index] > sum.longest[0]) sum.longest = [end[index] - start[index], lane.number, start[index]];
    }
  }
}

const COLUMNS = [
  ["Lanes", "text"],
  ["Name", "text"],
  ["What", "text"],
  ["Times", "count"],
  ["In the range", "time"],
  ["Of the range", "percent"],
  ["Longest", "moment"],
];

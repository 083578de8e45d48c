// What a selection of time adds up to: how often each thing was there and for how long, cut at its edges.

import { textElement } from "../shared/elements.js";
import { firstAbove, piecesIn } from "./data.js";
import { formatMoment, formatTime } from "./overlay.js";
import { TraceTable } from "./tables.js";

const SUMS_DELAY_MS = 250;
const SUM_ROWS_MAX = 1_000;
/** Slices that are added up before the page may do something else, and shows how far it is. */
const SLICES_AT_ONCE = 250_000;

export class RangeSums {
  /** `range()` is what counts, `go(track, time)` brings a moment in sight. */
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
    const note = textElement("p", "trace-nothing", "Adding up …");
    this.panel.replaceChildren(note);
    this.shown = null;
    const isWhole = range[0] <= 0 && range[1] >= this.data.durationNs;
    const rows = isWhole ? this.whole() : await this.sums(range, (part) => {
      note.textContent = `Adding up … ${Math.round(part * 100)} %`;
      return serial === this.serial;
    });
    if (serial !== this.serial || !rows) return;
    this.shown = range;
    const [from, to] = range;
    const moments = range.map((time) => formatMoment(this.data.startNs + time, to - from)).join(" – ");
    const head = textElement("p", "trace-nothing", `${moments}, ${formatTime(to - from)}. Durations are cut at the edges of the selection. Mean active is the total divided by the length of the selection.`);
    const box = textElement("div", "", "");
    const leftOut = Math.max(0, rows.length - SUM_ROWS_MAX) + (isWhole ? this.data.sumsLeftOut : 0);
    new TraceTable(box, { columns: COLUMNS, rows: rows.slice(0, SUM_ROWS_MAX), sort: 4, rows_left_out: leftOut }, this.data, this.go);
    this.panel.replaceChildren(head, box);
  }

  /** The sums of the whole trace, which the page holds. */
  whole() {
    return this.data.sums.map(([group, name, kind, count, ns, longest]) => this.row({ group, name, kind, count, ns, longest }, this.data.durationNs));
  }

  row({ group, name, kind, count, ns, longest }, length) {
    const { data } = this;
    return [data.groups[group].name, data.names[name], data.kinds[kind].label, count, ns, ns / length, longest[0] > 0 ? longest : null];
  }

  /** A row for each name of each kind under a heading, those with most time first; null if `goOn` returns false for the part that is done. */
  async sums([from, to], goOn) {
    const { data } = this;
    const sums = new Map();
    const tracks = data.tracks.filter((track) => track.count > 0 && !data.isCounter(track)).map((track) => [track, piecesIn(track.levels[0], from, to)]);
    const all = tracks.reduce((sum, [, pieces]) => sum + pieces.reduce((count, piece) => count + piece[2], 0), 0);
    let [done, next] = [0, SLICES_AT_ONCE];
    for (const [track, pieces] of tracks) {
      for (const place of pieces) {
        addTo(sums, track, await data.fetch(track, track.levels[0], place), from, to);
        done += place[2];
        if (done < next) continue;
        next = done + SLICES_AT_ONCE;
        await new Promise((resolve) => setTimeout(resolve));
        if (!goOn(done / all)) return null;
      }
    }
    const rows = [...sums.values()].map((sum) => this.row(sum, to - from));
    return rows.sort((a, b) => b[4] - a[4] || b[3] - a[3]);
  }
}

/** Adds the slices of a piece that lie in a range, cut at its edges. */
export function addTo(sums, track, { count, start, end, kind, name }, from, to) {
  for (let index = firstAbove(end, from - 1); index < count && start[index] <= to; index += 1) {
    const ns = Math.min(end[index], to) - Math.max(start[index], from);
    // What only touches the range is not in it, but for marks.
    if (ns < 0 || (ns === 0 && end[index] > start[index])) continue;
    const key = (name[index] * 256 + kind[index]) * 64 + track.group;
    let sum = sums.get(key);
    if (!sum) sums.set(key, (sum = { group: track.group, kind: kind[index], name: name[index], count: 0, ns: 0, longest: [0, track.number, start[index]] }));
    sum.count += 1;
    sum.ns += ns;
    if (ns > sum.longest[0]) sum.longest = [ns, track.number, start[index]];
  }
}

const COLUMNS = [
  ["Tracks", "text"],
  ["Name", "text"],
  ["Kind", "text"],
  ["Count", "count"],
  ["Total", "time"],
  ["Mean active", "ratio"],
  ["Max", "moment"],
];

// All spans of a name: a histogram of their durations, and a table of them with their fields that sorts and leads to each.

import { formatCount, formatDuration, quantile } from "../shared/format.js";
import { textElement } from "../shared/elements.js";
import { SPAN } from "./columns.js";
import { columnsOf } from "./data.js";
import { formatMoment } from "./overlay.js";

/** Spans of a name that are listed; of more, the first ones. */
const SPANS_MAX = 200_000;
const SPAN_ROWS = 100;
const FIELDS_MAX = 8;
const BARS = 14;

/**
 * All spans of a name, by their place in `data.names`, in order of their start.
 * @returns {Promise<{rows: any[], isCut: boolean}>}
 */
export async function spansOf(data, name) {
  const rows = [];
  for (const track of data.tracks) {
    const type = data.types[track.kind];
    if (type.label !== "span") continue;
    for (const place of track.levels[0].pieces) {
      const piece = await data.fetch(track, track.levels[0], place);
      if (!piece.name.includes(name)) continue;
      const { columns, texts } = columnsOf(piece, type);
      for (let index = 0; index < piece.count; index += 1) {
        if (piece.name[index] !== name) continue;
        if (rows.length >= SPANS_MAX) return { rows: byStart(rows), isCut: true };
        const remarks = columns[SPAN.remarks][index];
        rows.push({ track, start: piece.start[index], ns: piece.end[index] - piece.start[index], id: columns[SPAN.id][index], task: columns[SPAN.task][index], isWhole: remarks === 0, remarks, fields: fieldsOf(texts[index]) });
      }
    }
  }
  return { rows: byStart(rows), isCut: false };
}

function byStart(rows) {
  return rows.sort((a, b) => a.start - b.start);
}

/** "key = value", one a line. */
export function fieldsOf(text) {
  const fields = new Map();
  for (const line of text.split("\n")) {
    const at = line.indexOf(" = ");
    if (at > 0) fields.set(line.slice(0, at), line.slice(at + 3));
  }
  return fields;
}

/** Counts of durations in bars of equal width on a logarithmic scale: `{from, to, count}` each. */
export function histogram(durations, bars = BARS) {
  if (durations.length === 0) return [];
  const logs = durations.map((ns) => Math.log(Math.max(1, ns)));
  const low = logs.reduce((a, b) => Math.min(a, b), Infinity);
  const high = logs.reduce((a, b) => Math.max(a, b), -Infinity);
  const width = (high - low) / bars || 1;
  const count = high > low ? bars : 1;
  const made = Array.from({ length: count }, (_, bar) => ({ from: Math.exp(low + bar * width), to: Math.exp(low + (bar + 1) * width), count: 0 }));
  for (const log of logs) made[Math.min(count - 1, Math.floor((log - low) / width))].count += 1;
  return made;
}

/** How two values of a column are ordered: numbers as numbers, others as texts. */
export function compareValues(a, b) {
  const [x, y] = [a, b].map((value) => (typeof value === "string" && value.trim() !== "" ? Number(value) : value));
  if (typeof x === "number" && typeof y === "number" && !Number.isNaN(x) && !Number.isNaN(y)) return x - y;
  return String(a ?? "").localeCompare(String(b ?? ""));
}

export class SpansView {
  /** `go(track, start)` selects a span. */
  constructor(section, data, go) {
    this.section = section;
    this.data = data;
    this.go = go;
    this.select = section.querySelector("select");
    this.box = section.querySelector(".spans");
    this.name = null;
    this.sort = { column: 1, descending: true };
    this.bar = null;
    this.limit = SPAN_ROWS;
    /** @type {any[]} */
    this.rows = [];
    this.isCut = false;
    const options = data.story.map(({ name, count }) => {
      const option = textElement("option", "", `${data.names[name] || "(no name)"} (${formatCount(count)})`);
      option.value = String(name);
      return option;
    });
    this.select.replaceChildren(...options);
    section.classList.toggle("empty", options.length === 0);
    this.select.addEventListener("change", () => this.choose(Number(this.select.value)));
  }

  /** Called when the panel is shown. */
  open() {
    if (this.name === null && this.data.story.length > 0) this.choose(this.data.story[0].name);
  }

  async choose(name) {
    this.name = name;
    this.select.value = String(name);
    this.bar = null;
    this.limit = SPAN_ROWS;
    this.box.replaceChildren(textElement("p", "trace-nothing", "Reading …"));
    const [found, tasks] = await Promise.all([spansOf(this.data, name), this.data.fetchTasks()]);
    if (this.name !== name) return;
    Object.assign(this, found);
    this.tasks = tasks;
    const keys = new Set(this.rows.slice(0, 1000).flatMap(({ fields }) => [...fields.keys()]));
    this.keys = [...keys].slice(0, FIELDS_MAX);
    this.durations = this.rows.filter(({ isWhole }) => isWhole).map(({ ns }) => ns).sort((a, b) => a - b);
    this.sort = { column: 1, descending: true };
    this.draw();
  }

  /** Headings, values for sorting and texts of the columns. */
  columns() {
    const { data, tasks } = this;
    return [
      ["start", ({ start }) => start, ({ start }) => formatMoment(data.startNs + start, 1e3)],
      ["duration", ({ ns, isWhole }) => (isWhole ? ns : -1), ({ ns, isWhole }) => (isWhole ? formatDuration(ns) : `${formatDuration(ns)} +`)],
      ["ID", ({ id }) => id, ({ id }) => String(id)],
      ["task", ({ task }) => task, ({ task }) => (task > 0 ? data.taskName(tasks, task - 1) : "-")],
      ...this.keys.map((key) => [key, ({ fields }) => fields.get(key) ?? "", ({ fields }) => fields.get(key) ?? "-"]),
    ];
  }

  draw() {
    const { durations } = this;
    const [p50, p99] = [50, 99].map((percent) => formatDuration(quantile(durations, percent)));
    const open = this.rows.length - durations.length;
    const note = textElement("p", "trace-nothing", `${formatCount(this.rows.length)} spans: median ${p50}, p99 ${p99}, max ${formatDuration(quantile(durations, 100))}.${open > 0 ? ` ${formatCount(open)} without a start or an end do not count.` : ""}${this.isCut ? ` Only the first ${formatCount(SPANS_MAX)} are listed.` : ""}`);
    this.box.replaceChildren(note, this.histogram(), this.table());
  }

  histogram() {
    const bars = histogram(this.durations);
    const most = bars.reduce((all, { count }) => Math.max(all, count), 1);
    const box = textElement("div", "histogram", "");
    box.setAttribute("role", "group");
    box.setAttribute("aria-label", "Histogram of durations on a logarithmic scale; a bar shows only its spans");
    const [p50, p99] = [quantile(this.durations, 50), quantile(this.durations, 99)];
    bars.forEach((bar, place) => {
      const isLast = place === bars.length - 1;
      const button = textElement("button", "", "");
      button.type = "button";
      button.disabled = bar.count === 0;
      button.setAttribute("aria-pressed", String(this.bar?.place === place));
      const has = (ns) => ns >= bar.from && (ns < bar.to || isLast);
      const marks = [has(p50) ? "median" : "", has(p99) ? "p99" : ""].filter(Boolean);
      const label = `${formatDuration(bar.from)} to ${formatDuration(bar.to)}: ${formatCount(bar.count)} spans${marks.length > 0 ? ` (${marks.join(", ")})` : ""}`;
      button.setAttribute("aria-label", label);
      button.title = label;
      const fill = textElement("span", marks.length > 0 ? "marked" : "", "");
      fill.style.height = `${bar.count === 0 ? 0 : Math.max(4, (bar.count * 100) / most)}%`;
      button.append(fill);
      button.addEventListener("click", () => {
        this.bar = this.bar?.place === place ? null : { place, has };
        this.draw();
      });
      box.append(button);
    });
    return box;
  }

  table() {
    const columns = this.columns();
    const value = columns[this.sort.column][1];
    const sign = this.sort.descending ? -1 : 1;
    const rows = this.rows.filter(({ ns, isWhole }) => !this.bar || (isWhole && this.bar.has(ns))).sort((a, b) => sign * compareValues(value(a), value(b)) || a.start - b.start);
    const table = textElement("table", "trace-sums", "");
    const [head, line, body] = ["thead", "tr", "tbody"].map((tag) => document.createElement(tag));
    line.append(...columns.map(([label], column) => this.head(label, column)));
    head.append(line);
    body.append(...rows.slice(0, this.limit).map((row) => this.row(row, columns)));
    table.append(head, body);
    const box = textElement("div", "table", "");
    box.append(table);
    const rest = rows.length - this.limit;
    if (rest > 0) {
      const more = textElement("button", "more", `Show ${formatCount(Math.min(rest, SPAN_ROWS))} more of ${formatCount(rest)}`);
      more.type = "button";
      more.addEventListener("click", () => {
        this.limit += SPAN_ROWS;
        this.draw();
      });
      box.append(more);
    }
    return box;
  }

  head(label, column) {
    const head = textElement("th", "", "");
    head.scope = "col";
    const { sort } = this;
    head.setAttribute("aria-sort", sort.column === column ? (sort.descending ? "descending" : "ascending") : "none");
    const button = textElement("button", "", label);
    button.type = "button";
    button.addEventListener("click", () => {
      this.sort = { column, descending: sort.column === column ? !sort.descending : column === 1 };
      this.draw();
    });
    head.append(button);
    return head;
  }

  row(row, columns) {
    const element = document.createElement("tr");
    columns.forEach(([, , text], column) => {
      const cell = textElement("td", "", "");
      if (column === 1) {
        const button = textElement("button", "link", text(row));
        button.type = "button";
        button.addEventListener("click", (event) => {
          event.stopPropagation();
          this.go(row.track, row.start);
        });
        cell.append(button);
      } else {
        cell.textContent = text(row);
        cell.title = text(row);
      }
      element.append(cell);
    });
    element.addEventListener("click", () => this.go(row.track, row.start));
    return element;
  }
}

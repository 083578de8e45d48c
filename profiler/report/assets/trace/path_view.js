// The critical path of the span that was selected last: as a bar, as sums, step by step; and marked in the timeline.

import { formatCount, formatDuration, formatPercent } from "../shared/format.js";
import { textElement } from "../shared/elements.js";
import { breakdown, pathColumns, pathOf, tracksOf } from "./path.js";
import { pixelStyle } from "./colours.js";

/** A part that is narrower has no outline. */
const OUTLINE_MIN_PX = 5;
/** Lines from track to track that are closer together would hide the tracks. */
const STEP_MIN_PX = 8;
/** Steps that are listed at first, and more of them with each click. */
const STEPS_SHOWN = 200;
/** Pixels of the bar, which is stretched to the width of the panel. */
const BAR_WIDTH = 600;
const BAR_HEIGHT = 30;

export class PathView {
  /** `on` holds shown(path or null), go(part), colours(). */
  constructor(section, data, on) {
    this.section = section;
    this.data = data;
    this.on = on;
    this.path = null;
    this.step = -1;
    this.serial = 0;
    this.limit = STEPS_SHOWN;
    this.draw();
  }

  /** Follows the path of a span, or gives it up for null. */
  async follow(span) {
    const serial = ++this.serial;
    const path = span ? await pathOf(this.data, span) : null;
    if (serial !== this.serial) return;
    this.path = path;
    this.step = -1;
    this.limit = STEPS_SHOWN;
    this.tracks = path ? tracksOf(path) : null;
    this.sums = path ? breakdown(path.parts) : null;
    this.draw();
    this.on.shown(path);
  }

  /** Goes to the next step with a place in the timeline, or to one before. */
  walk(by) {
    const { parts } = this.path ?? { parts: [] };
    let place = this.step < 0 && by < 0 ? parts.length - 1 : this.step + by;
    while (parts[place] && parts[place].track === null) place += by;
    if (parts[place]) this.goTo(place);
  }

  goTo(place) {
    this.step = place;
    while (place >= this.limit) this.limit += STEPS_SHOWN;
    this.draw();
    this.section.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest" });
    this.on.go(this.path.parts[place]);
  }

  draw() {
    const { path } = this;
    if (!this.on.colours()) return;
    if (!path) {
      this.section.replaceChildren(textElement("p", "trace-nothing", "Select a span: its critical path, from its end back through the waits and what ended them, is shown here. The overview leads to the slowest and the median."));
      return;
    }
    const head = textElement("h3", "", `${path.span.text}: ${formatDuration(path.end - path.start)}`);
    const parts = [head, this.bar(), this.sumsTable("Breakdown by the cause", this.sums.causes), this.steps(), this.sumsTable("Breakdown by what its own task did or waited for", this.sums.own)];
    if (path.isCut) parts.push(textElement("p", "trace-nothing", "The path has more steps than are followed; the rest is unknown."));
    this.section.replaceChildren(...parts);
  }

  /** The path as a bar, whose columns show shares; the tables have the same for keys and for those who do not see it. */
  bar() {
    const { path } = this;
    const { weights } = this.data;
    const bar = document.createElement("canvas");
    bar.className = "path-bar";
    bar.setAttribute("aria-hidden", "true");
    [bar.width, bar.height] = [BAR_WIDTH, BAR_HEIGHT];
    const pen = bar.getContext("2d");
    pathColumns(path, BAR_WIDTH).forEach((shares, column) => {
      let bottom = BAR_HEIGHT;
      for (const [kind, share] of [...shares].sort(([a], [b]) => weights[a] - weights[b] || a - b)) {
        pen.fillStyle = this.colour(kind);
        pen.fillRect(column, bottom - share * BAR_HEIGHT, 1, share * BAR_HEIGHT);
        bottom -= share * BAR_HEIGHT;
      }
    });
    const placeAt = ({ offsetX }) => {
      const time = path.start + (offsetX / Math.max(1, bar.clientWidth)) * (path.end - path.start);
      return path.parts.findLastIndex((part) => part.start <= time);
    };
    bar.addEventListener("pointermove", (event) => {
      const part = path.parts[placeAt(event)];
      bar.title = part ? `${part.what}: ${formatDuration(part.end - part.start)}` : "";
    });
    bar.addEventListener("click", (event) => {
      const place = placeAt(event);
      if (path.parts[place] && path.parts[place].track !== null) this.goTo(place);
    });
    return bar;
  }

  sumsTable(title, sums) {
    const whole = this.path.end - this.path.start;
    const rows = sums.map(({ what, kind, ns, count, max }) => {
      const row = document.createElement("tr");
      row.append(this.named(kind, textElement("span", "", what)), number(formatPercent(ns, whole)), number(formatDuration(ns)), number(formatCount(count)), number(formatDuration(max)));
      return row;
    });
    return titled(title, ["what", "share", "total", "count", "max"], rows);
  }

  steps() {
    const { path } = this;
    const rows = path.parts.slice(0, this.limit).map((part, place) => {
      const row = document.createElement("tr");
      if (place === this.step) row.setAttribute("aria-current", "step");
      const button = textElement("button", "link", part.what);
      button.type = "button";
      button.disabled = part.track === null;
      button.addEventListener("click", () => this.goTo(place));
      const name = this.named(part.kind, button);
      name.style.paddingLeft = `${8 + Math.min(part.depth, 8) * 10}px`;
      row.append(name, number(formatDuration(part.start - path.start)), number(formatDuration(part.end - part.start)));
      return row;
    });
    const table = titled("Steps", ["step", "at", "duration"], rows);
    table.classList.add("path-steps");
    const rest = path.parts.length - rows.length;
    if (rest > 0) {
      const more = textElement("button", "more", `Show ${formatCount(Math.min(rest, STEPS_SHOWN))} more of ${formatCount(rest)} steps`);
      more.type = "button";
      more.addEventListener("click", () => {
        this.limit += STEPS_SHOWN;
        this.draw();
      });
      table.append(more);
    }
    return table;
  }

  named(kind, element) {
    const cell = textElement("td", "", "");
    const line = textElement("span", "named", "");
    const swatch = textElement("span", "swatch", "");
    swatch.style.backgroundColor = this.colour(kind);
    line.append(swatch, element);
    cell.append(line);
    cell.title = element.textContent;
    return cell;
  }

  colour(kind) {
    return pixelStyle(this.on.colours().of(kind, 0));
  }
}

function number(text) {
  return textElement("td", "number", text);
}

/** A table of texts and numbers with a heading. */
function titled(title, columns, rows) {
  const section = textElement("section", "", "");
  section.append(textElement("h3", "", title));
  const table = textElement("table", "trace-sums", "");
  const [head, line, body] = ["thead", "tr", "tbody"].map((tag) => document.createElement(tag));
  columns.forEach((label, column) => {
    const cell = textElement("th", column === 0 ? "" : "number", label);
    cell.scope = "col";
    line.append(cell);
  });
  head.append(line);
  body.append(...rows);
  table.append(head, body);
  const box = textElement("div", "table", "");
  // It can be wider than a narrow screen, and then scrolls.
  box.tabIndex = 0;
  box.setAttribute("role", "group");
  box.setAttribute("aria-label", title);
  box.append(table);
  section.append(box);
  return section;
}

/** Outlines the parts of a path in their tracks; what is too small for an outline gets a line below it. */
export function drawPath(pen, frame, path) {
  if (!path) return;
  const { plane, ink } = frame;
  pen.strokeStyle = pen.fillStyle = ink.match;
  pen.lineWidth = 2;
  let before = null;
  let steps = -Infinity;
  for (const part of path.parts) {
    if (part.end < frame.view[0] || part.start > frame.view[1] || part.track === null) continue;
    const top = frame.top(part.track);
    if (top === null) continue;
    const left = Math.max(plane.left - 3, frame.x(part.start));
    const right = Math.min(plane.left + plane.width + 3, frame.x(part.end));
    const height = frame.heightOf(frame.data.tracks[part.track]) - 3;
    if (right - left >= OUTLINE_MIN_PX) pen.strokeRect(left, top + 1, right - left, height);
    else pen.fillRect(left, top + height - 1, Math.max(1, right - left), 3);
    if (before !== null && before !== top && left - steps >= STEP_MIN_PX) {
      pen.globalAlpha = 0.6;
      pen.beginPath();
      pen.moveTo(left, Math.min(before, top) + 4);
      pen.lineTo(left, Math.max(before, top));
      pen.stroke();
      pen.globalAlpha = 1;
      steps = left;
    }
    before = top;
  }
}

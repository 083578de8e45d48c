// Where the time of a span went: its way through tasks, devices and waits, as a table and in the timeline.

import { formatCount, formatPercent } from "./format.js";
import { textElement } from "./elements.js";
import { formatTime } from "./trace_overlay.js";
import { pixelStyle } from "./trace_colours.js";

/** A part that is narrower has no outline. */
const OUTLINE_MIN_PX = 5;
/** Lines from lane to lane that are closer together would hide the lanes. */
const STEP_MIN_PX = 8;

export class PathView {
  /** `shown(path)` marks one in the timeline, `go(from, to, lane)` shows a part of it. */
  constructor(section, data, { shown, go, colours }) {
    this.section = section;
    this.data = data;
    this.shown = shown;
    this.go = go;
    this.colours = colours;
    this.select = section.querySelector("select");
    this.box = section.querySelector(".path");
    this.path = null;
    const options = data.paths.map((path, index) => {
      const option = textElement("option", "", `${path.name}  ${formatTime(path.end_ns - path.start_ns)} (${path.why})`);
      option.value = String(index);
      return option;
    });
    this.select.replaceChildren(...options);
    section.classList.toggle("empty", options.length === 0);
    this.select.addEventListener("change", () => this.choose(Number(this.select.value), true));
  }

  choose(index, isMoved) {
    this.path = this.data.paths[index] ?? null;
    this.index = index;
    if (!this.path) return;
    this.select.value = String(index);
    this.draw();
    this.shown(this.path, isMoved);
  }

  draw() {
    const { path } = this;
    if (!path) return;
    const whole = Math.max(1, path.end_ns - path.start_ns);
    // The table has the same for keys and for those who do not see it.
    const bar = textElement("div", "path-bar", "");
    bar.setAttribute("aria-hidden", "true");
    for (const part of path.parts) {
      const piece = textElement("button", "", "");
      piece.type = "button";
      piece.tabIndex = -1;
      piece.style.left = `${((part.start_ns - path.start_ns) * 100) / whole}%`;
      piece.style.width = `${Math.max(0.1, ((part.end_ns - part.start_ns) * 100) / whole)}%`;
      piece.style.backgroundColor = pixelStyle(this.colours().of(part.kind, 0));
      piece.title = `${part.what}: ${formatTime(part.end_ns - part.start_ns)}`;
      piece.addEventListener("click", () => this.go(part.start_ns, part.end_ns, part.lane));
      bar.append(piece);
    }
    this.box.replaceChildren(bar, this.sums(path, whole), this.table(path, whole));
  }

  /** What of the whole each kind of part took. */
  sums(path, whole) {
    return this.list("Sums", path.sums.map(({ what, kind, ns, count }) => [what, kind, ns, formatPercent(ns, whole), `${formatCount(count)} ×`]));
  }

  table(path, whole) {
    const rows = path.parts.map((part) => [part.what, part.kind, part.end_ns - part.start_ns, formatPercent(part.end_ns - part.start_ns, whole), `+${formatTime(part.start_ns - path.start_ns)}`, part]);
    return this.list("In order", rows);
  }

  list(title, rows) {
    const section = textElement("section", "", "");
    section.append(textElement("h3", "", title));
    const table = textElement("table", "trace-sums", "");
    const body = document.createElement("tbody");
    for (const [what, kind, ns, share, more, part] of rows) {
      const row = document.createElement("tr");
      const name = textElement("td", "", "");
      const swatch = textElement("span", "swatch", "");
      swatch.style.backgroundColor = pixelStyle(this.colours().of(kind, 0));
      const text = textElement(part ? "button" : "span", part ? "link" : "", what);
      if (part) text.type = "button";
      name.append(swatch, " ", text);
      name.title = what;
      row.append(name, textElement("td", "number", formatTime(ns)), textElement("td", "number", share), textElement("td", "number", more));
      if (part) row.addEventListener("click", () => this.go(part.start_ns, part.end_ns, part.lane));
      body.append(row);
    }
    table.append(body);
    const box = textElement("div", "table", "");
    box.append(table);
    section.append(box);
    return section;
  }
}

/** Outlines the parts of a path in their lanes; what is too small for an outline gets a line below it. */
export function drawPath(pen, frame, path) {
  if (!path) return;
  const { plane, ink } = frame;
  pen.strokeStyle = pen.fillStyle = ink.match;
  pen.lineWidth = 2;
  let before = null;
  let steps = -Infinity;
  for (const part of path.parts) {
    if (part.end_ns < frame.view[0] || part.start_ns > frame.view[1] || part.lane === null) continue;
    const top = frame.top(part.lane);
    if (top === null) continue;
    const left = Math.max(plane.left - 3, frame.x(part.start_ns));
    const right = Math.min(plane.left + plane.width + 3, frame.x(part.end_ns));
    const height = frame.heightOf(frame.data.lanes[part.lane]) - 3;
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

// What lies over the tracks: axis, names, losses, arrows, marks of what is selected and measured.

import { timeFormat } from "../shared/format.js";
import { piecesIn, firstAbove } from "./data.js";
import { roundStep } from "../shared/zoom.js";

const TICK_MIN_PX = 110;
const TICK_NARROW_PX = 70;
/** Arrows that are drawn at once: more would hide the tracks. */
const ARROWS_MAX = 90;
const ARROW_PIECES_MAX = 3;
const ARROW_TAIL_PX = 30;
/** Names that are drawn at once. */
const LABELS_MAX = 900;
const LETTER_PX = 6.3;
const FONT = "11px system-ui, sans-serif";

/** "1.25 ms", with as many digits as a reader can use. */
export function formatTime(ns) {
  const size = Math.abs(ns);
  if (size >= 1e9) return `${(ns / 1e9).toFixed(size < 1e10 ? 3 : 2)} s`;
  if (size >= 1e6) return `${(ns / 1e6).toFixed(size < 1e7 ? 3 : 2)} ms`;
  if (size >= 1e3) return `${(ns / 1e3).toFixed(size < 1e4 ? 3 : 2)} µs`;
  return `${Math.round(ns)} ns`;
}

/** A moment: with the digits that distinguish it from its neighbours in the view. */
export function formatMoment(ns, viewNs) {
  const digits = Math.max(3, Math.min(9, Math.ceil(-Math.log10(Math.max(viewNs, 1) / 1e9)) + 3));
  return `${(ns / 1e9).toFixed(digits)} s`;
}

/** Moments at which the axis has a tick, and from where on it counts. */
function ticks({ view: [from, to], plane, startNs }) {
  const step = roundStep(((to - from) * (plane.width < 500 ? TICK_NARROW_PX : TICK_MIN_PX)) / Math.max(plane.width, 1));
  const base = step < 1e-6 * to ? Math.floor((startNs + from) / (step * 1000)) * step * 1000 : 0;
  const times = [];
  for (let time = Math.ceil((startNs + from) / step) * step; time <= startNs + to; time += step) times.push(time);
  return { step, base, times };
}

/** Where the lines of ticks go through all tracks. */
export function tickPlaces(frame) {
  return ticks(frame).times.map((time) => frame.x(time - frame.startNs));
}

/**
 * Ticks. Far in, seconds would have more digits than there is room for: then they count from a moment that
 * the axis names at its left.
 */
export function drawAxis(pen, frame) {
  const { plane, ink, view, startNs } = frame;
  const { step, base, times } = ticks(frame);
  const format = timeFormat(Math.max(startNs + view[1] - base, step), step);
  pen.font = "12px system-ui, sans-serif";
  pen.textBaseline = "middle";
  if (base > 0) {
    pen.fillStyle = ink.soft;
    pen.fillText(`${formatMoment(base, step)} +`, 8, plane.top - 13);
  }
  for (const time of times) {
    const x = Math.round(frame.x(time - startNs));
    pen.fillStyle = ink.line;
    pen.fillRect(x, plane.top - 5, 1, 5);
    const text = format(time - base);
    const width = pen.measureText(text).width;
    pen.fillStyle = ink.soft;
    if (x - width / 2 >= plane.left - 4) pen.fillText(text, Math.min(plane.left + plane.width - width, x - width / 2), plane.top - 13);
  }
}

/** A function's name without the path of its module, where there is no room for that: its end distinguishes it. */
function shortened(text, letters) {
  if (text.length <= letters || !text.includes("::")) return text;
  let plain = text;
  for (let before = null; before !== plain; ) {
    before = plain;
    plain = plain.replace(/<[^<>]*>/g, "");
  }
  return plain.split("::").filter((part) => part !== "").slice(-2).join("::") || text;
}

/** Names of slices, cut to their room. */
export function drawLabels(pen, frame, labels) {
  const { plane, ink, data } = frame;
  pen.font = FONT;
  pen.textBaseline = "middle";
  const drawn = labels.length > LABELS_MAX ? labels.sort((a, b) => b.to - b.from - (a.to - a.from)).slice(0, LABELS_MAX) : labels;
  for (const label of drawn) {
    const letters = Math.floor((label.to - label.from - 6) / LETTER_PX);
    if (letters < 2) continue;
    const text = shortened(label.text ?? data.names[label.name], letters);
    const shown = text.length > letters ? `${text.slice(0, letters - 1)}…` : text;
    const weight = data.weights[label.kind];
    pen.fillStyle = label.isMark || weight === 2 ? ink.soft : ink.onStrong;
    pen.fillText(shown, plane.left + label.from + 4, label.y);
  }
}

/** Bands across the tracks where events are missing. */
export function drawLosses(pen, frame) {
  const { view, plane, height, ink, data } = frame;
  let last = -1;
  for (const [from, to, , events] of data.losses) {
    if (to < view[0] || from > view[1]) continue;
    const left = Math.max(plane.left, frame.x(from));
    const right = Math.min(plane.left + plane.width, Math.max(left + 2, frame.x(to)));
    pen.globalAlpha = 0.75;
    pen.fillStyle = ink.hatch;
    pen.fillRect(left, plane.top, right - left, height - plane.top);
    pen.globalAlpha = 1;
    if (right - left > 90 && left > last) {
      pen.font = FONT;
      pen.fillStyle = ink.warning;
      pen.fillText(`${events.toLocaleString("en-US")} events lost`, left + 6, height - 10);
      last = left + 90;
    }
  }
}

/** Arrows from what woke a task to the task, and from the call that sent a message to the one that received it; none if they are too many. */
export function drawArrows(pen, frame) {
  const { data } = frame;
  return drawArrowsOf(pen, frame, data.wakes, (piece) => data.wakesNow(piece)) + drawArrowsOf(pen, frame, data.mpiMessages, (piece) => data.messagesNow(piece));
}

function drawArrowsOf(pen, frame, list, now) {
  const { view, ink } = frame;
  const pieces = piecesIn({ pieces: list }, ...view);
  if (pieces.length === 0 || pieces.length > ARROW_PIECES_MAX) return 0;
  const found = pieces.map(now).filter((piece) => piece !== null);
  const ranges = found.map((piece) => [piece, firstAbove(piece.time, view[0]), firstAbove(piece.time, view[1])]);
  const count = ranges.reduce((sum, [, from, to]) => sum + to - from, 0);
  if (count > ARROWS_MAX) return 0;
  pen.strokeStyle = pen.fillStyle = ink.arrow;
  let drawn = 0;
  for (const [piece, first, end] of ranges) {
    for (let index = first; index < end; index += 1) {
      if (piece.from[index] > 0 && piece.to[index] > 0) drawn += drawArrow(pen, frame, piece.time[index], piece.way?.[index] ?? 0, piece.from[index] - 1, piece.to[index] - 1);
    }
  }
  return drawn;
}

/** An arrow that ends at `time` and started `way` ns before. */
function drawArrow(pen, frame, time, way, from, to) {
  const y0 = frame.middle(from);
  const y1 = frame.middle(to);
  if (y0 === null || y1 === null || y0 === y1) return 0;
  const { plane, height } = frame;
  if ((y0 < plane.top && y1 < plane.top) || (y0 > height && y1 > height)) return 0;
  const x = Math.round(frame.x(time)) + 0.5;
  const x0 = way === 0 ? x : frame.x(time - way);
  const down = y1 > y0 ? 1 : -1;
  const tip = y1 - down * 3;
  const isFromSight = y0 > plane.top && y0 < height;
  // Of an arrow that comes from a track out of sight the last part is enough.
  const tail = isFromSight ? y0 : y1 - down * ARROW_TAIL_PX;
  const seen = (y) => Math.max(plane.top, Math.min(height, y));
  const at = (y) => x0 + ((x - x0) * (y - y0)) / (tip - y0);
  pen.globalAlpha = isFromSight ? 0.75 : 0.45;
  pen.lineWidth = 1.25;
  pen.beginPath();
  pen.moveTo(at(seen(tail)), seen(tail));
  pen.lineTo(at(seen(tip)), seen(tip));
  pen.stroke();
  if (tip > plane.top && tip < height) {
    pen.save();
    pen.translate(x, tip);
    pen.rotate(Math.atan2(tip - y0, x - x0));
    pen.beginPath();
    pen.moveTo(2, 0);
    pen.lineTo(-5, -3.5);
    pen.lineTo(-5, 3.5);
    pen.fill();
    pen.restore();
    if (isFromSight) {
      pen.beginPath();
      pen.arc(x0, y0, 2, 0, 7);
      pen.fill();
    }
  }
  pen.globalAlpha = 1;
  return 1;
}

/** A frame around what is chosen, and around what it is measured against. */
export function drawChosen(pen, frame, chosen, other) {
  for (const [item, colour] of [[chosen, frame.ink.mark], [other, frame.ink.match]]) {
    if (!item) continue;
    const top = frame.top(item.track.number);
    if (top === null) continue;
    const left = Math.max(frame.plane.left - 2, frame.x(item.start));
    const right = Math.min(frame.plane.left + frame.plane.width + 2, Math.max(left + 3, frame.x(item.end)));
    if (right < frame.plane.left || left > frame.plane.left + frame.plane.width) continue;
    pen.strokeStyle = colour;
    pen.lineWidth = 2;
    pen.strokeRect(left - 1, top + 0.5, right - left + 2, frame.heightOf(item.track) - 3);
  }
}

/** From what ended a wait, or called, to what is chosen. */
export function drawCause(pen, frame, chosen, cause) {
  const y0 = frame.middle(cause.track.number);
  const y1 = frame.middle(chosen.track.number);
  if (y0 === null || y1 === null || y0 === y1) return;
  // A wait ends when it is woken; what is called begins after its caller.
  const isWait = frame.data.weights[chosen.kind] === 2;
  const [x0, x1] = [frame.x(cause.time), frame.x(isWait ? chosen.end : chosen.start)];
  const down = y1 > y0 ? 1 : -1;
  pen.strokeStyle = pen.fillStyle = frame.ink.mark;
  pen.lineWidth = 2;
  pen.beginPath();
  pen.arc(x0, y0, 3, 0, 7);
  pen.fill();
  pen.beginPath();
  pen.moveTo(x0, y0);
  pen.bezierCurveTo(Math.max(x0, x1 - 40), y0, x1, y1 - down * 40, x1, y1 - down * 7);
  pen.stroke();
  pen.beginPath();
  pen.moveTo(x1, y1 - down * 2);
  pen.lineTo(x1 - 4.5, y1 - down * 10);
  pen.lineTo(x1 + 4.5, y1 - down * 10);
  pen.fill();
}

/** How far apart two chosen ones begin. */
export function drawDistance(pen, frame, chosen, other) {
  const [from, to] = chosen.start <= other.start ? [chosen, other] : [other, chosen];
  drawSpan(pen, frame, from.start, to.start, formatTime(to.start - from.start), frame.ink.match);
}

/** The ruler, or the range that it left. */
export function drawRuler(pen, frame, [a, b]) {
  const [from, to] = a < b ? [a, b] : [b, a];
  const { plane, height, ink } = frame;
  const left = Math.max(plane.left, frame.x(from));
  const right = Math.min(plane.left + plane.width, frame.x(to));
  if (right < plane.left || left > plane.left + plane.width) return;
  pen.fillStyle = ink.accent;
  pen.globalAlpha = 0.1;
  pen.fillRect(left, plane.top, right - left, height - plane.top);
  pen.globalAlpha = 1;
  drawSpan(pen, frame, from, to, formatTime(to - from), ink.accent);
}

function drawSpan(pen, frame, from, to, text, colour) {
  const { plane, height, ink, view } = frame;
  if (to < view[0] || from > view[1]) return;
  const [x0, x1] = [frame.x(from), frame.x(to)].map((x) => Math.max(plane.left, Math.min(plane.left + plane.width, x)));
  const y = plane.top + 11;
  pen.fillStyle = colour;
  pen.fillRect(x0, plane.top, 1, height - plane.top);
  pen.fillRect(x1, plane.top, 1, height - plane.top);
  pen.fillRect(x0, y, x1 - x0, 1);
  pen.font = "600 12px system-ui, sans-serif";
  const width = pen.measureText(text).width + 12;
  const left = Math.max(plane.left + 2, Math.min(plane.left + plane.width - width - 2, (x0 + x1 - width) / 2));
  pen.fillRect(left, y - 9, width, 18);
  pen.fillStyle = ink.panel;
  pen.textBaseline = "middle";
  pen.fillText(text, left + 6, y + 1);
}

/** Names of tracks and headings, at the left. */
export function drawNames(pen, frame, rows) {
  const { plane, ink, folded, opened, hoverRow } = frame;
  pen.textBaseline = "middle";
  let isBelowPinned = true;
  for (const row of rows) {
    const y = frame.rowY(row);
    if (row.isPinned && isBelowPinned) {
      isBelowPinned = false;
      pen.fillStyle = ink.panel;
      pen.fillRect(0, plane.top, plane.left - 1, frame.pinnedHeight);
      pen.fillStyle = ink.accent;
      pen.fillRect(0, plane.top + frame.pinnedHeight - 2, plane.left + plane.width, 1);
    }
    if (row.heading) {
      pen.fillStyle = ink.paper;
      pen.fillRect(0, y, plane.left + plane.width, row.height);
      pen.fillStyle = ink.line;
      pen.fillRect(0, y + row.height - 1, plane.left + plane.width, 1);
      pen.font = "600 12.5px system-ui, sans-serif";
      pen.fillStyle = ink.ink;
      const heading = `${folded.has(row.heading.name) ? "▸" : "▾"} ${row.heading.name}`;
      pen.fillText(heading, 8, y + row.height / 2);
      const headingWidth = pen.measureText(heading).width;
      pen.font = FONT;
      pen.fillStyle = ink.soft;
      const count = row.tracks.toLocaleString("en-US");
      if (8 + headingWidth + 16 + pen.measureText(count).width < plane.left) right(pen, count, plane.left - 12, y + row.height / 2);
      continue;
    }
    pen.font = "12px system-ui, sans-serif";
    pen.fillStyle = hoverRow === row ? ink.ink : ink.soft;
    const { name, children, number, parent } = row.track;
    const indent = plane.left > 150 ? 18 : 14;
    const left = indent + (parent === null ? 0 : 10);
    let room = plane.left - left - 8;
    if (children > 0) pen.fillText(opened.has(number) ? "▾" : "▸", indent - 11, y + row.height / 2);
    if (row.isPinned || hoverRow === row) {
      drawPin(pen, plane.left - 11, y + row.height / 2, row.isPinned ? ink.accent : ink.soft);
      pen.fillStyle = hoverRow === row ? ink.ink : ink.soft;
      room -= 12;
    } else if (children > 0) {
      const more = `+${children.toLocaleString("en-US")}`;
      room -= pen.measureText(more).width + 6;
      right(pen, more, plane.left - 12, y + row.height / 2);
    }
    // What lies below a track need not repeat its name.
    const above = parent === null ? "" : frame.data.tracks[parent].name;
    clipped(pen, name.startsWith(above) ? name.slice(above.length).trim() : name, left, y + row.height / 2, room);
    if (row.track.most !== undefined) {
      pen.font = "10px system-ui, sans-serif";
      pen.fillText(compact(row.track.most), plane.left - 40, y + 8);
      pen.fillText(compact(row.track.least), plane.left - 40, y + row.height - 8);
    }
  }
}

/** A pin: the track stays at the top. */
function drawPin(pen, x, y, colour) {
  pen.fillStyle = colour;
  pen.beginPath();
  pen.arc(x, y - 2, 3.5, 0, 7);
  pen.fill();
  pen.fillRect(x - 0.75, y, 1.5, 6);
}

/** A text that ends at `x`. */
function right(pen, text, x, y) {
  pen.fillText(text, x - pen.measureText(text).width, y);
}

function compact(value) {
  return Intl.NumberFormat("en-US", { notation: "compact", maximumSignificantDigits: 3 }).format(value);
}

/** A text that is cut in its middle if there is no room: its end distinguishes tracks as often as its start does. */
function clipped(pen, text, x, y, room) {
  let letters = text.length;
  let shown = text;
  while (letters > 3 && pen.measureText(shown).width > room) {
    letters -= 1;
    const tail = Math.floor(letters / 3);
    shown = `${text.slice(0, letters - tail)}…${text.slice(-tail)}`;
  }
  pen.fillText(shown, x, y);
}

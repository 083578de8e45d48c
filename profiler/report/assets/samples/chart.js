// A stack chart: whole stacks over time, of one track. Each column of pixels shows one sample of its time; equal functions beside
// each other are one box.

import { formatCount } from "../shared/format.js";
import { oncePerFrame } from "../shared/frames.js";

const CHART_ROW_PX = 18;
const LETTER_PX = 6.6;
const LABEL_MIN_PX = 24;
/** A sample stands for as many periods at most; what comes after is a gap. */
const PERIODS_MAX = 3;

export class StackChart {
  /** `on` holds select(fn), hover(fn, samples, x, y), leave(). */
  constructor(box, on) {
    this.box = box;
    this.canvas = box.querySelector("canvas");
    this.note = box.querySelector("p");
    this.on = on;
    this.boxes = [];
    this.draw = oncePerFrame(() => this.drawNow());
    this.canvas.addEventListener("pointermove", (event) => this.hovered(event));
    this.canvas.addEventListener("pointerleave", () => on.leave());
    this.canvas.addEventListener("click", (event) => {
      const found = this.at(event.offsetX, event.offsetY);
      if (found) on.select(found.fn);
    });
    new ResizeObserver(() => this.draw()).observe(box);
  }

  /** `samples` are `{time, node}` of one track in order of time, `window` the time that is drawn, `periodNs` between two samples. */
  show(content) {
    this.content = content;
    this.draw();
  }

  drawNow() {
    if (!this.content || this.box.clientWidth === 0) return;
    const { canvas, content } = this;
    const ratio = window.devicePixelRatio || 1;
    const width = canvas.parentElement.clientWidth;
    const chart = stackBoxes(content, width);
    const height = Math.max(60, chart.depth * CHART_ROW_PX + 2);
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.height = `${height}px`;
    const pen = canvas.getContext("2d");
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.font = "12px system-ui, sans-serif";
    pen.textBaseline = "middle";
    const ink = getComputedStyle(canvas).getPropertyValue("--ink");
    this.boxes = chart.boxes;
    for (const { fn, from, to, depth } of chart.boxes) {
      pen.fillStyle = content.fill(fn);
      pen.fillRect(from, depth * CHART_ROW_PX, Math.max(0.5, to - from - (to - from > 3 ? 0.5 : 0)), CHART_ROW_PX - 1);
      if (to - from < LABEL_MIN_PX) continue;
      const letters = Math.floor((to - from - 6) / LETTER_PX);
      pen.fillStyle = ink;
      pen.fillText(fn.short.length > letters ? `${fn.short.slice(0, Math.max(0, letters - 1))}…` : fn.short, from + 3, depth * CHART_ROW_PX + CHART_ROW_PX / 2);
    }
    const shown = `${formatCount(chart.drawn)} of ${formatCount(content.samples.length)} samples of ${content.track}`;
    this.note.textContent = content.samples.length === 0 ? "No samples here." : `${shown}${chart.drawn < content.samples.length ? ": one for each column of pixels; select a shorter range to see all" : ""}.`;
  }

  at(x, y) {
    const depth = Math.floor(y / CHART_ROW_PX);
    return this.boxes.find((box) => box.depth === depth && x >= box.from && x <= Math.max(box.to, box.from + 1)) ?? null;
  }

  hovered(event) {
    const found = this.at(event.offsetX, event.offsetY);
    if (found) this.on.hover(found.fn, found.samples, event.clientX, event.clientY);
    else this.on.leave();
  }
}

/** Boxes in pixels of a width: function, depth, from, to, samples that they are drawn from. */
export function stackBoxes({ samples, nodes, functions, window: [start, end], periodNs }, width) {
  const scale = width / Math.max(1, end - start);
  const columns = [];
  samples.forEach(({ time, node }, index) => {
    const from = (time - start) * scale;
    const next = samples[index + 1]?.time ?? Infinity;
    const to = Math.min((Math.min(next, time + PERIODS_MAX * periodNs) - start) * scale, width);
    const column = Math.floor(from);
    const last = columns[columns.length - 1];
    if (last && last.column === column) Object.assign(last, { node, to });
    else columns.push({ column, node, from, to });
  });
  const boxes = [];
  let open = [];
  let depth = 0;
  for (const { node, from, to } of columns) {
    const path = pathOfNode(nodes, node);
    depth = Math.max(depth, path.length);
    let same = 0;
    while (same < path.length && same < open.length && open[same].node === path[same] && from - open[same].to < 1.5) same += 1;
    open = open.slice(0, same);
    for (const box of open) Object.assign(box, { to, samples: box.samples + 1 });
    for (let level = same; level < path.length; level += 1) {
      const box = { node: path[level], fn: functions[nodes.fn[path[level]]], depth: level, from, to, samples: 1 };
      boxes.push(box);
      open.push(box);
    }
  }
  return { boxes, depth, drawn: columns.length };
}

/** Nodes from below the root to one. */
function pathOfNode(nodes, node) {
  const path = [];
  for (let at = node; at > 0; at = nodes.parent[at]) path.unshift(at);
  return path;
}

// Events over time: how often something happened up to each moment, or at what rate, and what a counter was. Follows
// the timeline's window. Long times without an event are marked and say what happened in them.

import { formatCount, formatDuration } from "../shared/format.js";
import { textElement } from "../shared/elements.js";
import { decodeSeries, firstAbove } from "./data.js";
import { formatMoment, formatTime } from "./overlay.js";

const HEIGHT_PX = 260;
const LEFT_PX = 76;
const BOTTOM_PX = 26;
const TOP_PX = 14;
/** Columns of which a rate is made. */
const RATE_COLUMNS = 160;

export class SeriesView {
  /** `view()` is the window of time, `go(from, to)` shows another one, `shown()` is called when the reader has chosen. */
  constructor(section, data, { view, go, shown }) {
    this.section = section;
    this.data = data;
    this.view = view;
    this.go = go;
    this.canvas = section.querySelector("canvas");
    this.note = section.querySelector(".series-note");
    this.list = section.querySelector(".series-gaps");
    this.select = section.querySelector("select");
    this.mode = "cumulative";
    this.fill();
    this.select.addEventListener("change", () => {
      this.choose(Number(this.select.value));
      shown();
    });
    for (const input of section.querySelectorAll("input[name=series-mode]")) {
      input.addEventListener("change", () => {
        this.setMode(input.value);
        shown();
      });
    }
    this.canvas.addEventListener("pointermove", (event) => this.hover(event));
    this.canvas.addEventListener("click", (event) => this.clicked(event));
    new ResizeObserver(() => this.draw()).observe(section);
  }

  fill() {
    const groups = new Map();
    this.data.series.forEach((series, index) => {
      if (!groups.has(series.group)) {
        const group = document.createElement("optgroup");
        group.label = series.group;
        groups.set(series.group, group);
      }
      const option = textElement("option", "", `${series.name || "(no name)"} (${formatCount(series.total)})`);
      option.value = String(index);
      groups.get(series.group).append(option);
    });
    this.select.replaceChildren(...groups.values());
    this.section.classList.toggle("empty", this.data.series.length === 0);
    if (this.data.series.length > 0) this.choose(0);
  }

  /** How events are drawn: "cumulative" or "rate". */
  setMode(mode) {
    const input = [...this.section.querySelectorAll("input[name=series-mode]")].find(({ value }) => value === mode);
    if (!input) return;
    input.checked = true;
    this.mode = mode;
    this.draw();
  }

  async choose(index) {
    const series = this.data.series[index];
    this.index = index;
    this.select.value = String(index);
    this.series = series;
    const shown = await this.data.fetchAs(series.piece, (bytes) => decodeSeries(bytes, series.piece, series.form));
    if (this.series !== series) return;
    this.points = shown.counts ? ofBuckets(shown.counts, this.data.durationNs) : shown;
    this.step = shown.counts ? this.data.durationNs / shown.counts.length : 0;
    this.listGaps();
    this.draw();
  }

  listGaps() {
    const rows = this.series.gaps.map(([from, to, what]) => {
      const row = document.createElement("li");
      const button = textElement("button", "link", `${formatDuration(to - from)} from ${formatMoment(this.data.startNs + from, 1e3)} on`);
      button.type = "button";
      button.addEventListener("click", () => this.go(from - (to - from) / 4, to + (to - from) / 4));
      row.append(button, textElement("span", "", ` ${what}`));
      return row;
    });
    this.list.replaceChildren(...rows);
    // For programs that drive the page.
    this.list.dataset.series = String(this.index);
  }

  /** Events up to a time, between the moments that are known. */
  until(time) {
    const { times, cumulative } = this.points;
    const index = firstAbove(times, time);
    if (!cumulative) return index;
    if (index === 0) return 0;
    if (index >= times.length) return cumulative[cumulative.length - 1];
    const part = (time - times[index - 1]) / (times[index] - times[index - 1]);
    return cumulative[index - 1] + part * (cumulative[index] - cumulative[index - 1]);
  }

  draw() {
    if (!this.points || this.section.clientWidth === 0) return;
    const { canvas, data } = this;
    const ratio = window.devicePixelRatio || 1;
    const width = canvas.parentElement.clientWidth;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(HEIGHT_PX * ratio);
    canvas.style.height = `${HEIGHT_PX}px`;
    const pen = canvas.getContext("2d");
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    const style = getComputedStyle(canvas);
    const ink = Object.fromEntries(["ink", "soft", "line", "accent", "spinning"].map((name) => [name, style.getPropertyValue(`--${name}`)]));
    const [from, to] = this.view();
    this.plane = { left: LEFT_PX, width: width - LEFT_PX - 8, top: TOP_PX, height: HEIGHT_PX - TOP_PX - BOTTOM_PX };
    const values = this.values(from, to);
    this.drawGaps(pen, ink, from, to);
    this.drawScale(pen, ink, values, from, to);
    this.drawCurve(pen, ink, values);
    const { values: kept } = this.points;
    // Of many values the page has some, and their number in all.
    const part = kept && kept.length > 0 ? this.series.total / kept.length : 1;
    const inside = (this.until(to) - this.until(from)) * part;
    const unit = kept ? "values" : "events";
    this.note.textContent = `${formatCount(Math.round(inside))} ${unit} in ${formatTime(to - from)}, ${this.rate(inside, to - from)}` + (this.step > 0 ? `; counted in steps of ${formatTime(this.step)}` : "") + (data.lossesInAll > 0 ? "; some events are missing" : "");
  }

  rate(events, ns) {
    const rate = (events * 1e9) / ns;
    return `${rate >= 100 ? formatCount(Math.round(rate)) : rate.toPrecision(3)} a second`;
  }

  /** Points of the curve: place from 0 to 1 and value; and the range of values. */
  values(from, to) {
    const points = [];
    const { values, times } = this.points;
    if (values) {
      const first = Math.max(0, firstAbove(times, from) - 1);
      const stride = Math.max(1, Math.floor((firstAbove(times, to) - first) / 4000));
      for (let index = first; index < times.length && times[index] <= to; index += stride) points.push([Math.max(0, (times[index] - from) / (to - from)), values[index]]);
      if (points.length > 0) points.push([1, points[points.length - 1][1]]);
    } else if (this.mode === "rate") {
      for (let column = 0; column < RATE_COLUMNS; column += 1) {
        const [a, b] = [column, column + 1].map((place) => from + ((to - from) * place) / RATE_COLUMNS);
        points.push([column / RATE_COLUMNS, ((this.until(b) - this.until(a)) * 1e9) / (b - a)]);
      }
      points.push([1, points[points.length - 1][1]]);
    } else {
      const columns = Math.max(200, this.plane.width);
      const base = this.until(from);
      for (let column = 0; column <= columns; column += 1) points.push([column / columns, this.until(from + ((to - from) * column) / columns) - base]);
    }
    const all = points.map(([, value]) => value);
    const least = Math.min(0, ...all);
    return { points, least, most: Math.max(least + 1e-9, ...all, this.mode === "cumulative" || values ? 1 : 0), isStep: Boolean(values) || this.mode === "rate" };
  }

  drawGaps(pen, ink, from, to) {
    const { plane } = this;
    for (const [start, end, what] of this.series.gaps) {
      if (end < from || start > to) continue;
      const left = plane.left + Math.max(0, (start - from) / (to - from)) * plane.width;
      const right = plane.left + Math.min(1, (end - from) / (to - from)) * plane.width;
      pen.fillStyle = ink.spinning;
      pen.globalAlpha = 0.18;
      pen.fillRect(left, plane.top, Math.max(1, right - left), plane.height);
      pen.globalAlpha = 1;
      if (right - left < 60) continue;
      pen.save();
      pen.beginPath();
      pen.rect(left, plane.top, right - left, plane.height);
      pen.clip();
      pen.fillStyle = ink.ink;
      pen.font = "11px system-ui, sans-serif";
      pen.fillText(`${formatTime(end - start)}: ${what}`, left + 4, plane.top + 12);
      pen.restore();
    }
  }

  drawScale(pen, ink, { least, most }, from, to) {
    const { plane, data } = this;
    pen.font = "12px system-ui, sans-serif";
    pen.textBaseline = "middle";
    const unit = this.mode === "rate" && !this.points.values ? "/s" : "";
    for (let step = 0; step <= 4; step += 1) {
      const value = least + ((most - least) * step) / 4;
      const y = plane.top + plane.height * (1 - step / 4);
      pen.fillStyle = ink.line;
      pen.fillRect(plane.left, Math.round(y), plane.width, 1);
      pen.fillStyle = ink.soft;
      const text = Intl.NumberFormat("en-US", { notation: "compact", maximumSignificantDigits: 3 }).format(value) + unit;
      pen.fillText(text, plane.left - pen.measureText(text).width - 6, y);
    }
    const places = plane.width > 500 ? 5 : 3;
    for (let step = 0; step < places; step += 1) {
      const time = from + ((to - from) * step) / (places - 1);
      const text = formatTime(data.startNs + time);
      const size = pen.measureText(text).width;
      const x = plane.left + (plane.width * step) / (places - 1);
      pen.fillText(text, Math.max(plane.left, Math.min(plane.left + plane.width - size, x - size / 2)), plane.top + plane.height + 14);
    }
  }

  drawCurve(pen, ink, { points, least, most, isStep }) {
    const { plane } = this;
    const y = (value) => plane.top + plane.height * (1 - (value - least) / (most - least));
    pen.beginPath();
    points.forEach(([place, value], index) => {
      const x = plane.left + place * plane.width;
      if (index === 0) pen.moveTo(x, y(value));
      else {
        if (isStep) pen.lineTo(x, y(points[index - 1][1]));
        pen.lineTo(x, y(value));
      }
    });
    pen.strokeStyle = ink.accent;
    pen.lineWidth = 1.5;
    pen.stroke();
  }

  timeAt(event) {
    const [from, to] = this.view();
    return from + ((event.offsetX - this.plane.left) / this.plane.width) * (to - from);
  }

  hover(event) {
    if (!this.plane) return;
    const time = this.timeAt(event);
    const gap = this.series.gaps.find(([from, to]) => time >= from && time <= to);
    this.canvas.title = gap ? `${formatTime(gap[1] - gap[0])} without: ${gap[2]}` : "";
    this.canvas.style.cursor = gap ? "zoom-in" : "default";
  }

  clicked(event) {
    const time = this.timeAt(event);
    const gap = this.series.gaps.find(([from, to]) => time >= from && time <= to);
    if (gap) this.go(gap[0] - (gap[1] - gap[0]) / 4, gap[1] + (gap[1] - gap[0]) / 4);
  }
}

/** Counts of buckets as ends of buckets and events up to them. */
function ofBuckets(counts, durationNs) {
  const times = new Float64Array(counts.length + 1);
  const cumulative = new Float64Array(counts.length + 1);
  for (let index = 0; index < counts.length; index += 1) {
    times[index + 1] = (durationNs * (index + 1)) / counts.length;
    cumulative[index + 1] = cumulative[index] + counts[index];
  }
  return { times, cumulative };
}

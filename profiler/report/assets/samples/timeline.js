// The timeline: a row for each process and each of its threads or for each vCPU, what it was doing in colour, and a range that the reader drags
// or moves by keys. Ranges are whole slices. What a range or a chosen track means is up to the caller.

import { formatCount, formatDuration, formatPercent, formatSamples, timeFormat } from "../shared/format.js";
import { textSpan } from "../shared/elements.js";
import { oncePerFrame } from "../shared/frames.js";
import { commonStates, RARE_FROM, STATES, trackRows } from "./profile.js";
import { countSlices, samplesIn } from "./sums.js";
import { roundStep, windowFrom, zoomWindow } from "../shared/zoom.js";

const TRACK_ROWS_FOLDED = 8;
/** The colour of each of STATES. */
const STATE_INKS = ["running", "spinning", "idle", "rare", "rare", "stolen", "in-vmm", "rare", "waiting"];
/** More rows than this are too many to read; those with most samples are shown. */
const TRACK_ROWS_MAX = 200;
const AXIS_PX = 22;
const TRACK_PX = 28;
const BAR_PX = 20;
const TICK_MIN_PX = 90;
/** A drag shorter than this is a click. */
const DRAG_MIN_PX = 4;
const ZOOM_STEP = 1.25;
/** Fewer slices than this are not worth zooming to. */
const VIEW_MIN_SLICES = 10;

export class Timeline {
  /** `on` holds tracks(set or null), range(slices or null), within(intervals or null) and view(). */
  constructor(section, profile, on) {
    this.section = section;
    this.profile = profile;
    this.on = on;
    this.draw = oncePerFrame(() => this.drawNow());
    this.canvas = section.querySelector("canvas");
    this.list = section.querySelector(".tracks");
    this.numbers = section.querySelector(".track-numbers");
    this.more = section.querySelector(".more");
    this.note = section.querySelector(".selection");
    this.clear = section.querySelector(".clear");
    this.time = profile.timeline;
    this.view = [0, this.time.slices];
    this.range = null;
    this.within = null;
    this.chosen = null;
    this.leftOut = null;
    this.drag = null;
    this.hover = null;
    this.unfolded = false;
    // What cannot be is not shown, neither as a column nor in the key: threads of a process neither spin nor idle for the profiler.
    this.common = commonStates(profile);
    for (const ink of new Set(STATE_INKS.slice(1))) {
      const has = ({ samples }) => samples.some((count, state) => count > 0 && STATE_INKS[state] === ink);
      section.querySelector(`.key .${ink}`).hidden = !profile.tracks.some(has);
    }
    section.classList.toggle("timeless", this.time.slices < 2);
    this.more.addEventListener("click", () => {
      this.unfolded = true;
      this.fill();
    });
    this.clear.addEventListener("click", () => this.setRange(null));
    this.listen();
    new ResizeObserver(() => this.draw()).observe(this.canvas.parentElement);
    this.fill();
  }

  listen() {
    const { canvas } = this;
    canvas.addEventListener("pointerdown", (event) => this.pressed(event));
    canvas.addEventListener("pointermove", (event) => this.moved(event));
    canvas.addEventListener("pointerup", (event) => this.released(event));
    canvas.addEventListener("pointercancel", () => this.cancel());
    canvas.addEventListener("pointerleave", () => {
      this.hover = null;
      this.draw();
    });
    canvas.addEventListener("wheel", (event) => this.wheeled(event), { passive: false });
    canvas.addEventListener("dblclick", () => this.setRange(null));
    canvas.addEventListener("keydown", (event) => this.keyPressed(event));
  }

  /** Makes the rows that are shown, in their order: those with most samples, and a process before its threads. */
  fill() {
    const ofTrack = this.profile.tracks.map((track) => track.samples.reduce((sum, count) => sum + count, 0));
    const rows = trackRows(this.profile);
    const samples = rows.map((row) => row.tracks.reduce((sum, track) => sum + ofTrack[track], 0));
    const most = rows.map((_, index) => index).sort((a, b) => samples[b] - samples[a]);
    const kept = this.unfolded ? most.slice(0, TRACK_ROWS_MAX) : most.slice(0, TRACK_ROWS_FOLDED);
    this.shown = kept.sort((a, b) => a - b).map((index) => rows[index]);
    this.counts = countSlices(this.profile, this.shown);
    this.list.replaceChildren(...this.shown.map((row) => this.rowButton(row)));
    this.more.hidden = this.unfolded || this.shown.length === rows.length;
    const next = Math.min(rows.length, TRACK_ROWS_MAX);
    const noun = this.profile.processes.length > 0 ? "processes and threads" : "tracks";
    this.more.textContent = next < rows.length ? `Show ${next} of ${formatCount(rows.length)} ${noun}` : `Show all ${formatCount(next)} ${noun}`;
    this.mark();
  }

  rowButton(row) {
    const item = document.createElement("li");
    const button = document.createElement("button");
    button.type = "button";
    button.dataset.track = row.tracks.join(" ");
    button.append(textSpan(row.isThread ? "track-name thread" : "track-name", row.name));
    const what = this.noun(row);
    button.title = `${row.label}: count only ${what}; with Ctrl, ${what} too`;
    button.addEventListener("click", (event) => this.choose(row.tracks, event.ctrlKey || event.metaKey));
    item.append(button);
    return item;
  }

  /** What the tracks of a row are. */
  noun({ tracks }) {
    return tracks.length > 1 && !this.profile.guest ? "these threads" : "this track";
  }

  choose(tracks, too) {
    const chosen = new Set(too ? (this.chosen ?? []) : []);
    const only = tracks.every((track) => this.chosen?.has(track)) && (too || this.chosen.size === tracks.length);
    if (only) tracks.forEach((track) => chosen.delete(track));
    else tracks.forEach((track) => chosen.add(track));
    this.chosen = chosen.size > 0 ? chosen : null;
    this.mark();
    this.on.tracks(this.chosen);
  }

  /** Counts exactly these tracks, or all for none. */
  chooseAll(tracks) {
    const known = tracks.filter((track) => track in this.profile.tracks);
    if (known.length === 0 && this.chosen === null) return;
    this.chosen = known.length > 0 ? new Set(known) : null;
    this.mark();
    this.on.tracks(this.chosen);
  }

  /** Tracks that do not count in the view of host and guest, or null. */
  leaveOut(tracks) {
    this.leftOut = tracks;
    this.mark();
  }

  /** Whether samples of a row count. */
  isCounted({ tracks }) {
    return tracks.some((track) => (this.chosen === null || this.chosen.has(track)) && !this.leftOut?.has(track));
  }

  /** Shows these slices. */
  show(slices) {
    this.view = slices;
    this.draw();
    this.on.view();
  }

  setRange(range) {
    this.range = range;
    this.within = null;
    this.mark();
    this.on.range(range);
  }

  /** Counts only what lies in the intervals of a `Within`. */
  setWithin(within) {
    this.range = null;
    this.within = within;
    this.mark();
    this.on.within(within);
  }

  /** A sentence where a range is described. */
  say(text) {
    this.note.textContent = text;
  }

  /** Brings marks and numbers in line with the choice of tracks and range. */
  mark() {
    const sums = this.shown.map((_, row) => this.sumRow(row, ...(this.range ?? [0, this.time.slices])));
    [...this.list.querySelectorAll("button")].forEach((button, row) => {
      const { label, tracks } = this.shown[row];
      const chosen = tracks.every((track) => this.chosen?.has(track));
      const shares = sums[row].states.map((count, index) => `${STATES[index]} ${formatPercent(count, sums[row].all)}`);
      const states = shares.filter((_, index) => this.common.includes(index) || sums[row].states[index] > 0).join(", ");
      button.setAttribute("aria-pressed", String(chosen));
      button.setAttribute("aria-label", `${label}: ${formatSamples(sums[row].all)}, ${states}. Count only ${this.noun(this.shown[row])}.`);
      button.classList.toggle("left-out", !this.isCounted({ tracks }));
    });
    const { common } = this;
    const head = document.createElement("p");
    head.className = "head";
    head.append(...common.map((index) => textSpan("share", STATES[index])), textSpan("samples", "samples"));
    this.numbers.style.setProperty("--states", String(common.length));
    this.numbers.replaceChildren(head, ...sums.map((sum) => {
      const row = document.createElement("div");
      common.forEach((index) => row.append(textSpan(`share ${STATES[index]}`, formatPercent(sum.states[index], sum.all))));
      row.append(textSpan("samples", formatCount(sum.all)));
      const rare = STATES.map((state, index) => ({ state, count: sum.states[index] })).slice(RARE_FROM).filter(({ count }) => count > 0);
      if (rare.length > 0) row.append(textSpan("rare", rare.map(({ state, count }) => `${formatPercent(count, sum.all)} ${state}`).join(", ")));
      return row;
    }));
    this.clear.hidden = this.range === null && this.within === null;
    this.sayRange(this.drag?.range ?? this.range);
    this.draw();
  }

  /** Samples of a row from one slice up to another: by state, and all. */
  sumRow(row, first, end) {
    const counts = this.counts[row];
    const count = STATES.length;
    const states = STATES.map(() => 0);
    for (let place = count * first; place < count * end; place += 1) states[place % count] += counts[place];
    return { states, all: states.reduce((sum, samples) => sum + samples, 0) };
  }

  /** Samples of all chosen tracks in a range. */
  countIn([first, end]) {
    const { cells } = this.time;
    let samples = 0;
    for (let cell = 0; cell < cells.slice.length; cell += 1) {
      if (cells.slice[cell] < first || cells.slice[cell] >= end || (this.chosen && !this.chosen.has(cells.track[cell])) || this.leftOut?.has(cells.track[cell])) continue;
      for (let entry = cells.start[cell]; entry < cells.start[cell + 1]; entry += 1) samples += this.time.entrySamples[entry];
    }
    return samples;
  }

  /** "1.25 s – 2.10 s (0.85 s), 812 samples". */
  describe(range) {
    const format = timeFormat(this.time.durationNs, this.time.sliceNs);
    const [from, to] = range.map((slice) => Math.min(slice * this.time.sliceNs, this.time.durationNs));
    return `${format(from)} – ${format(to)} (${format(to - from)})`;
  }

  sayRange(range) {
    if (range) this.say(`${this.describe(range)}, ${formatSamples(this.countIn(range))}`);
    else if (this.within) this.say(`${this.within.label}: ${this.within.isRange ? "" : "ran "}${formatDuration(this.within.ns)}, ${formatSamples(samplesIn(this.profile, { tracks: this.chosen, range: null, within: this.within, leftOut: this.leftOut }).length)}`);
    else this.say("");
  }

  sliceAt(x) {
    const [first, end] = this.view;
    return Math.max(0, Math.min(this.time.slices, first + ((end - first) * x) / this.width));
  }

  pressed(event) {
    if (event.button !== 0 || this.time.slices < 2) return;
    this.canvas.setPointerCapture(event.pointerId);
    const x = event.offsetX;
    const edge = this.edgeAt(x);
    // At an edge of the range, the other edge stays where it is.
    const anchor = edge === null ? this.sliceAt(x) : this.range[1 - edge];
    this.drag = { x, anchor, range: null, moved: edge !== null };
    event.preventDefault();
    this.canvas.focus({ preventScroll: true, focusVisible: false });
  }

  moved(event) {
    const x = event.offsetX;
    this.hover = x;
    this.canvas.classList.toggle("over-edge", this.edgeAt(x) !== null);
    if (this.drag && (this.drag.moved || Math.abs(x - this.drag.x) >= DRAG_MIN_PX)) {
      this.drag.moved = true;
      this.drag.range = this.rangeBetween(this.drag.anchor, this.sliceAt(x));
      this.sayRange(this.drag.range);
    }
    this.draw();
  }

  released(event) {
    if (!this.drag) return;
    this.moved(event);
    const { range, moved } = this.drag;
    this.drag = null;
    // A click outside of the range gives up the range, one inside keeps it.
    const at = this.sliceAt(event.offsetX);
    if (moved) this.setRange(range);
    else if (this.range && (at < this.range[0] || at >= this.range[1])) this.setRange(null);
    else this.draw();
  }

  cancel() {
    this.drag = null;
    this.sayRange(this.range);
    this.draw();
  }

  rangeBetween(a, b) {
    const first = Math.min(Math.floor(Math.min(a, b)), this.time.slices - 1);
    return [first, Math.max(first + 1, Math.ceil(Math.max(a, b) - 1e-6))];
  }

  edgeAt(x) {
    if (!this.range) return null;
    const near = this.range.findIndex((slice) => Math.abs(this.placeOf(slice) - x) <= 5);
    return near < 0 ? null : near;
  }

  placeOf(slice) {
    const [first, end] = this.view;
    return ((slice - first) / (end - first)) * this.width;
  }

  /** With Ctrl the wheel zooms, as a pinch does; sideways it moves; else it scrolls the page. */
  wheeled(event) {
    if (this.time.slices < 2) return;
    if (event.ctrlKey || event.metaKey) {
      event.preventDefault();
      this.zoomView(event.deltaY > 0 ? ZOOM_STEP : 1 / ZOOM_STEP, this.sliceAt(event.offsetX));
    } else if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      event.preventDefault();
      this.moveView((event.deltaX / this.width) * (this.view[1] - this.view[0]));
    }
  }

  /** Shows `factor` times as much, with one slice kept where it is. */
  zoomView(factor, fixed) {
    this.show(zoomWindow(this.view, factor, fixed, VIEW_MIN_SLICES, this.time.slices));
  }

  moveView(slices) {
    this.showFrom(this.view[0] + slices, this.view[1] - this.view[0]);
  }

  showFrom(first, length) {
    this.show(windowFrom(first, length, this.time.slices));
  }

  keyPressed(event) {
    if (event.altKey || event.ctrlKey || event.metaKey || this.time.slices < 2) return;
    const { slices } = this.time;
    const step = Math.max(1, Math.round((this.view[1] - this.view[0]) / 100));
    const range = this.range ?? [Math.floor(this.view[0]), Math.floor(this.view[0])];
    const middle = this.range ? (range[0] + range[1]) / 2 : (this.view[0] + this.view[1]) / 2;
    const move = (by) => {
      const length = Math.max(range[1] - range[0], step);
      const first = Math.max(0, Math.min(slices - length, range[0] + (this.range ? by : 0)));
      this.setRange([first, first + length]);
    };
    const stretch = (by) => this.setRange([range[0], Math.max(range[0] + 1, Math.min(slices, range[1] + by))]);
    const actions = {
      ArrowRight: () => (event.shiftKey ? stretch(step) : move(step)),
      ArrowLeft: () => (event.shiftKey ? stretch(-step) : move(-step)),
      Home: () => move(-slices),
      End: () => move(slices),
      "+": () => this.zoomView(1 / ZOOM_STEP, middle),
      "=": () => this.zoomView(1 / ZOOM_STEP, middle),
      "-": () => this.zoomView(ZOOM_STEP, middle),
      Enter: () => this.range && this.showFrom(range[0], Math.max(VIEW_MIN_SLICES, range[1] - range[0])),
      Backspace: () => this.setRange(null),
    };
    if (!actions[event.key]) return;
    event.preventDefault();
    actions[event.key]();
    const [first, end] = this.range ?? range;
    const length = this.view[1] - this.view[0];
    if (first < this.view[0]) this.showFrom(first, length);
    else if (end > this.view[1]) this.showFrom(end - length, length);
  }

  drawNow() {
    const { canvas } = this;
    this.width = canvas.parentElement.clientWidth;
    const height = AXIS_PX + this.shown.length * TRACK_PX;
    const ratio = window.devicePixelRatio || 1;
    canvas.width = Math.round(this.width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.height = `${height}px`;
    const context = canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    const style = getComputedStyle(canvas);
    const ink = Object.fromEntries(
      [...STATE_INKS, "track", "hatch", "line", "soft", "ink", "accent", "veil"].map((name) => [name, style.getPropertyValue(`--${name}`)]),
    );
    ink.none = hatchPattern(context, ink);
    this.drawAxis(context, ink, height);
    this.shown.forEach((_, row) => this.drawRow(context, ink, row, AXIS_PX + row * TRACK_PX + (TRACK_PX - BAR_PX) / 2));
    this.drawRange(context, ink, height);
  }

  drawAxis(context, ink, height) {
    const { sliceNs } = this.time;
    const [from, to] = this.view.map((slice) => slice * sliceNs);
    const step = roundStep(((to - from) * TICK_MIN_PX) / Math.max(this.width, 1));
    const format = timeFormat(to, step);
    context.font = "12px system-ui, sans-serif";
    context.textBaseline = "middle";
    for (let time = Math.ceil(from / step) * step; time <= to; time += step) {
      const x = Math.round(this.placeOf(time / sliceNs)) + 0.5;
      context.fillStyle = ink.line;
      context.fillRect(x - 0.5, AXIS_PX - 5, 1, height - AXIS_PX + 5);
      const text = format(time);
      const width = context.measureText(text).width;
      context.fillStyle = ink.soft;
      context.fillText(text, Math.max(0, Math.min(this.width - width, x - width / 2)), AXIS_PX / 2 - 2);
    }
  }

  /** Columns of pixels: the shares of what the row's tracks were doing; the empty rest had no samples. */
  drawRow(context, ink, row, top) {
    const counts = this.counts[row];
    const { sliceNs, rateHz, durationNs, slices } = this.time;
    const [first, end] = this.view;
    const left = Math.max(0, this.placeOf(0));
    const right = Math.min(this.width, this.placeOf(durationNs / sliceNs || slices));
    context.globalAlpha = this.isCounted(this.shown[row]) ? 1 : 0.3;
    context.fillStyle = ink.none;
    context.fillRect(left, top, right - left, BAR_PX);
    const columns = Math.min(Math.ceil(this.width), end - first);
    for (let column = 0; column < columns; column += 1) {
      const from = first + ((end - first) * column) / columns;
      const to = first + ((end - first) * (column + 1)) / columns;
      const sum = STATES.map(() => 0);
      for (let slice = Math.floor(from); slice < Math.min(Math.ceil(to), slices); slice += 1) {
        const part = Math.min(to, slice + 1) - Math.max(from, slice);
        for (let state = 0; state < sum.length; state += 1) sum[state] += counts[sum.length * slice + state] * part;
      }
      const taken = sum.reduce((all, samples) => all + samples, 0);
      if (taken === 0) continue;
      const wanted = ((Math.min(to * sliceNs, durationNs) - from * sliceNs) * rateHz) / 1e9;
      // Jitter moves a sample or two across the border of a column: that is no loss.
      const whole = wanted - taken > 2 ? wanted : taken;
      const x = Math.floor((this.width * column) / columns);
      const width = Math.ceil((this.width * (column + 1)) / columns) - x;
      let y = top + BAR_PX;
      STATES.forEach((_, index) => {
        const height = (sum[index] / whole) * BAR_PX;
        if (height <= 0) return;
        y -= height;
        context.fillStyle = ink[STATE_INKS[index]];
        context.fillRect(x, y, width, height);
      });
    }
    context.globalAlpha = 1;
  }

  drawRange(context, ink, height) {
    const range = this.drag?.range ?? this.range;
    if (range) {
      const [left, right] = range.map((slice) => this.placeOf(slice));
      context.fillStyle = ink.veil;
      context.fillRect(0, AXIS_PX, Math.max(0, left), height - AXIS_PX);
      context.fillRect(right, AXIS_PX, Math.max(0, this.width - right), height - AXIS_PX);
      context.fillStyle = ink.accent;
      context.fillRect(left - 1, AXIS_PX - 5, 2, height - AXIS_PX + 5);
      context.fillRect(right - 1, AXIS_PX - 5, 2, height - AXIS_PX + 5);
      context.fillRect(left, AXIS_PX - 5, right - left, 3);
    }
    if (this.hover !== null && !this.drag && this.time.slices > 1) {
      context.fillStyle = ink.ink;
      context.globalAlpha = 0.5;
      context.fillRect(Math.round(this.hover), AXIS_PX - 5, 1, height - AXIS_PX + 5);
      context.globalAlpha = 1;
    }
  }
}

/** Diagonal lines for times without samples, so that they look like nothing that was seen. */
function hatchPattern(context, ink) {
  const tile = document.createElement("canvas");
  tile.width = tile.height = 5;
  const pen = tile.getContext("2d");
  pen.fillStyle = ink.track;
  pen.fillRect(0, 0, 5, 5);
  pen.fillStyle = ink.hatch;
  for (let step = 0; step < 5; step += 1) pen.fillRect(step, 4 - step, 1, 1);
  return context.createPattern(tile, "repeat");
}

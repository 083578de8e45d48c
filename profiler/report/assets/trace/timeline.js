// The timeline: one canvas that draws the tracks in sight for the time in sight, and what pointer and keys do to it.

import { Layout } from "./layout.js";
import { Raster } from "./raster.js";
import { TraceColours } from "./colours.js";
import { Minimap, MINIMAP_PX } from "./minimap.js";
import { drawArrows, drawAxis, drawCause, drawChosen, drawDistance, drawLabels, drawLosses, drawNames, drawRuler, tickPlaces } from "./overlay.js";
import { linkOf } from "./pick.js";
import { oncePerFrame } from "../shared/frames.js";
import { windowFrom, zoomWindow } from "../shared/zoom.js";

/** Minimap and axis. */
const AXIS_PX = MINIMAP_PX + 30;
const NAMES_PX = 210;
const NAMES_NARROW_PX = 110;
const VIEW_MIN_NS = 20;
/** Room for the mark that pins a track, at the end of its name. */
const PIN_PX = 18;
/** A press that moves less than this is a click. */
const DRAG_MIN_PX = 4;
const ZOOM_STEP = 1.35;
const VIEWS_MAX = 100;
/** Fingers that are closer zoom out no further. */
const PINCH_MIN_PX = 20;

export class TraceTimeline {
  /** `on` holds click(x, y, event), double(x, y), hover(place or null), ruler(), view(). */
  constructor(box, data, on) {
    this.box = box;
    this.canvas = box.querySelector("canvas");
    this.spacer = box.querySelector(".trace-spacer");
    this.data = data;
    this.on = on;
    this.draw = oncePerFrame(() => {
      if (this.colours && this.box.clientWidth > 0) this.drawNow();
    });
    this.whole = data.durationNs;
    this.layout = new Layout(data);
    this.raster = new Raster(data);
    this.minimap = new Minimap(data);
    this.view = [0, this.whole];
    this.views = [];
    this.matches = null;
    this.chosen = null;
    this.other = null;
    this.ruler = null;
    this.paths = null;
    this.hover = null;
    /** @type {any} */
    this.drag = null;
    /** Where the tracks were scrolled to before only those of a path were shown. */
    this.scrollBefore = 0;
    /** Where fingers or a button press, by their numbers, and the times that were there when there were two. */
    this.fingers = new Map();
    this.pinch = null;
    this.listen();
    new ResizeObserver(() => this.draw()).observe(box);
  }

  setDark(dark) {
    this.colours = new TraceColours(this.data, dark);
    this.minimap.forget();
    this.ink = null;
    this.draw();
  }

  listen() {
    const { canvas, box } = this;
    canvas.addEventListener("wheel", (event) => this.wheeled(event), { passive: false });
    canvas.addEventListener("pointerdown", (event) => this.pressed(event));
    canvas.addEventListener("pointermove", (event) => this.moved(event));
    canvas.addEventListener("pointerup", (event) => this.released(event));
    canvas.addEventListener("pointercancel", (event) => this.lifted(event));
    canvas.addEventListener("pointerleave", () => {
      this.hover = null;
      this.on.hover(null);
      this.draw();
    });
    canvas.addEventListener("dblclick", (event) => event.offsetX >= this.plane.left && this.on.double(event.offsetX, event.offsetY));
    box.addEventListener("scroll", () => {
      this.on.scroll();
      this.draw();
    });
  }

  timeAt(x) {
    const { plane, view } = this;
    return view[0] + ((x - plane.left) / plane.width) * (view[1] - view[0]);
  }

  rowAt(y) {
    if (y < AXIS_PX) return null;
    const { layout, box } = this;
    const below = y - AXIS_PX - layout.pinnedHeight;
    if (below < 0) return layout.pinnedRows.find((row) => y - AXIS_PX < row.y + row.height) ?? null;
    return layout.at(below + box.scrollTop);
  }

  /** Shows a window of time. `isStep`: one can come back to the window before. */
  show(view, isStep = false) {
    if (isStep) this.views = [...this.views.slice(1 - VIEWS_MAX), this.view];
    const length = Math.max(Math.min(VIEW_MIN_NS, this.whole), Math.min(this.whole, view[1] - view[0]));
    this.view = windowFrom(view[0] - (length - (view[1] - view[0])) / 2, length, this.whole);
    this.on.view();
    this.draw();
  }

  setRuler(range) {
    this.ruler = range;
    this.on.ruler();
    this.draw();
  }

  back() {
    if (this.views.length > 0) this.show(this.views.pop());
  }

  zoom(factor, fixed = this.hover ? this.timeAt(this.hover.x) : (this.view[0] + this.view[1]) / 2) {
    this.view = zoomWindow(this.view, factor, fixed, VIEW_MIN_NS, this.whole);
    this.on.view();
    this.draw();
  }

  /** Moves by a part of what is shown. */
  move(part) {
    const length = this.view[1] - this.view[0];
    this.view = windowFrom(this.view[0] + part * length, length, this.whole);
    this.on.view();
    this.draw();
  }

  scroll(px) {
    this.box.scrollTop += px;
  }

  /** Brings a track in sight. */
  scrollTo(track) {
    this.layout.reveal(track);
    this.fit();
    if (this.layout.isPinned(track)) return;
    const top = this.layout.top[track.number];
    const height = this.box.clientHeight - AXIS_PX - this.layout.pinnedHeight;
    if (top < this.box.scrollTop || top + 40 > this.box.scrollTop + height) this.box.scrollTop = Math.max(0, top - height / 3);
    this.draw();
  }

  wheeled(event) {
    const overNames = event.offsetX < this.plane.left;
    if ((overNames || event.shiftKey) && !event.ctrlKey) {
      if (!overNames && event.deltaX === 0) {
        event.preventDefault();
        this.scroll(event.deltaY);
      }
      return;
    }
    event.preventDefault();
    if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) this.move(event.deltaX / this.plane.width);
    else this.zoom(2 ** (Math.max(-240, Math.min(240, event.deltaY)) / 220), this.timeAt(event.offsetX));
  }

  pressed(event) {
    if (event.button !== 0) return;
    this.canvas.focus({ preventScroll: true, focusVisible: false });
    const { offsetX: x, offsetY: y } = event;
    if (x < this.plane.left) {
      const row = this.rowAt(y);
      if (row?.track && x > this.plane.left - PIN_PX) this.layout.pin(row.track);
      else if (row?.heading) this.layout.fold(row.heading);
      else if (!row || !this.layout.open(row.track)) return;
      this.on.view();
      this.draw();
      return;
    }
    this.canvas.setPointerCapture(event.pointerId);
    this.fingers.set(event.pointerId, x);
    if (this.fingers.size === 2) {
      this.drag = null;
      this.pinch = [...this.fingers.values()].map((place) => this.timeAt(place));
      return;
    }
    if (y < MINIMAP_PX) {
      this.drag = { ...this.minimap.grab(x, this.plane, this.view, this.whole), isMinimap: true, moved: true };
      this.dragMinimap(x);
      event.preventDefault();
      return;
    }
    this.drag = { x, y, isRuler: y < AXIS_PX || event.shiftKey, view: this.view, scroll: this.box.scrollTop, time: this.timeAt(x), moved: false };
    event.preventDefault();
  }

  moved(event) {
    const { offsetX: x, offsetY: y } = event;
    if (this.fingers.has(event.pointerId)) this.fingers.set(event.pointerId, x);
    if (this.pinch) {
      this.pinched();
      return;
    }
    this.hover = { x, y };
    const row = x < this.plane.left ? this.rowAt(y) : null;
    const isPin = row?.track && x > this.plane.left - PIN_PX;
    this.canvas.style.cursor = row?.heading || row?.track?.children > 0 || isPin ? "pointer" : y < MINIMAP_PX && x >= this.plane.left ? "grab" : "";
    const { drag } = this;
    if (drag?.isMinimap) this.dragMinimap(x);
    else if (drag && (drag.moved || Math.hypot(x - drag.x, y - drag.y) >= DRAG_MIN_PX)) {
      drag.moved = true;
      if (drag.isRuler) this.ruler = [drag.time, Math.max(0, Math.min(this.whole, this.timeAt(x)))];
      else {
        const length = drag.view[1] - drag.view[0];
        this.view = windowFrom(drag.view[0] - ((x - drag.x) / this.plane.width) * length, length, this.whole);
        this.box.scrollTop = drag.scroll - (y - drag.y);
        this.on.view();
      }
    }
    this.on.hover(this.drag?.moved || x < this.plane.left ? null : { x, y, clientX: event.clientX, clientY: event.clientY });
    this.draw();
  }

  dragMinimap(x) {
    this.view = this.minimap.drag(this.drag, x, this.plane, this.whole, VIEW_MIN_NS);
    this.on.view();
    this.draw();
  }

  /** Two fingers keep the times that they were put on. */
  pinched() {
    const [a, b] = [...this.fingers.values()];
    const [from, to] = this.pinch;
    const { plane, whole } = this;
    const wanted = (Math.abs(to - from) / Math.max(PINCH_MIN_PX, Math.abs(b - a))) * plane.width;
    const length = Math.max(Math.min(VIEW_MIN_NS, whole), Math.min(whole, wanted));
    const middle = ((a + b) / 2 - plane.left) / plane.width;
    this.view = windowFrom((from + to) / 2 - middle * length, length, whole);
    this.on.view();
    this.draw();
  }

  /** A finger or button is gone; what it dragged, or null. */
  lifted(event) {
    const { drag } = this;
    this.fingers.delete(event.pointerId);
    this.pinch = null;
    this.drag = null;
    return drag;
  }

  released(event) {
    const drag = this.lifted(event);
    if (!drag || drag.isMinimap) return;
    if (!drag.moved) this.on.click(event.offsetX, event.offsetY, event);
    else if (drag.isRuler) {
      this.setRuler([Math.min(...this.ruler), Math.max(...this.ruler)]);
    }
    this.draw();
  }

  /** Sizes canvas and scroll bar. */
  fit() {
    const { canvas, box, layout } = this;
    const ratio = window.devicePixelRatio || 1;
    const [width, height] = [box.clientWidth, box.clientHeight];
    const left = width < 700 ? NAMES_NARROW_PX : NAMES_PX;
    this.plane = { left, top: AXIS_PX, width: Math.max(10, width - left) };
    this.spacer.style.height = `${Math.max(height, layout.height + layout.pinnedHeight + AXIS_PX)}px`;
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
      canvas.style.width = `${width}px`;
      canvas.style.height = `${height}px`;
    }
    return { ratio, width, height };
  }

  frame(height) {
    const { view, plane, layout, box, data, ink, whole } = this;
    const scale = plane.width / (view[1] - view[0]);
    const scroll = box.scrollTop;
    const pinned = new Map(layout.pinnedRows.map((row) => [row.track.number, plane.top + row.y]));
    const place = (number) => pinned.get(number) ?? (layout.top[number] >= 0 ? plane.top + layout.pinnedHeight + layout.top[number] - scroll : null);
    return {
      view,
      plane,
      height,
      scroll,
      ink,
      data,
      whole,
      startNs: data.startNs,
      folded: layout.folded,
      opened: layout.opened,
      pinnedHeight: layout.pinnedHeight,
      rowY: (row) => plane.top + row.y + (row.isPinned ? 0 : layout.pinnedHeight - scroll),
      hoverRow: this.hover ? this.rowAt(this.hover.y) : null,
      x: (time) => plane.left + (time - view[0]) * scale,
      top: place,
      middle: (number) => (place(number) === null ? null : place(number) + layout.heightOf(data.tracks[number]) / 2),
      heightOf: (track) => layout.heightOf(track),
    };
  }

  drawNow() {
    const { ratio, width, height } = this.fit();
    const pen = this.canvas.getContext("2d", { alpha: false, willReadFrequently: true });
    this.ink ??= readInk(this.canvas, pen);
    const { plane, ink, layout, raster, view, colours, data } = this;
    const frame = this.frame(height);
    const rows = [...layout.visible(frame.scroll, frame.scroll + height - AXIS_PX - layout.pinnedHeight), ...layout.pinnedRows];
    pen.setTransform(1, 0, 0, 1, 0, 0);
    pen.fillStyle = ink.panel;
    pen.fillRect(0, 0, this.canvas.width, this.canvas.height);
    const [left, top] = [Math.round(plane.left * ratio), Math.round(plane.top * ratio)];
    raster.begin(Math.max(1, this.canvas.width - left), Math.max(1, this.canvas.height - top), colours.track);
    // Lines of the axis lie below what is in the tracks, so that none looks like an edge of it.
    raster.lines(tickPlaces(frame).map((x) => Math.round((x - plane.left) * ratio)), colours.grid);
    let labels = [];
    let isWhole = true;
    let isBelowPinned = true;
    for (const row of rows) {
      const { track, height: rowHeight } = row;
      if (row.isPinned && isBelowPinned) {
        // Tracks that are scrolled under the pinned ones end there.
        isBelowPinned = false;
        raster.clear(Math.round(layout.pinnedHeight * ratio), colours.track);
        labels = labels.filter((label) => label.y > plane.top + layout.pinnedHeight);
      }
      if (!track) continue;
      const top = frame.rowY(row);
      const at = Math.round((top - plane.top) * ratio) + 1;
      const drawn = raster.track(track, at, Math.round((rowHeight - 3) * ratio), view, colours, this.matches);
      isWhole &&= drawn.isWhole;
      for (const label of drawn.labels) {
        label.from /= ratio;
        label.to /= ratio;
        label.y = top + rowHeight / 2;
        if (label.isMark && this.on.text) label.text = this.on.text(track, label);
        labels.push(label);
      }
    }
    pen.putImageData(raster.image, left, top);
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.save();
    pen.beginPath();
    pen.rect(plane.left, plane.top, plane.width, height - plane.top);
    pen.clip();
    drawLabels(pen, frame, labels);
    drawLosses(pen, frame);
    this.canvas.dataset.arrows = String(drawArrows(pen, frame));
    if (this.paths) this.paths(pen, frame);
    drawChosen(pen, frame, this.chosen, this.other);
    const cause = this.chosen && !data.isCounter(this.chosen.track) ? linkOf(data, this.chosen) : null;
    if (cause) drawCause(pen, frame, this.chosen, cause);
    pen.restore();
    drawNames(pen, frame, rows);
    pen.fillStyle = ink.panel;
    pen.fillRect(0, 0, width, AXIS_PX);
    this.minimap.draw(pen, frame, ratio, colours);
    drawAxis(pen, frame);
    if (this.chosen && this.other) drawDistance(pen, frame, this.chosen, this.other);
    if (this.ruler) drawRuler(pen, frame, this.ruler);
    pen.fillStyle = ink.line;
    pen.fillRect(plane.left - 1, AXIS_PX, 1, height - AXIS_PX);
    if (this.hover && this.hover.x >= plane.left) {
      pen.globalAlpha = 0.4;
      pen.fillStyle = ink.ink;
      pen.fillRect(Math.round(this.hover.x), AXIS_PX, 1, height - AXIS_PX);
      pen.globalAlpha = 1;
    }
    this.isWhole = isWhole;
    this.on.drawn(isWhole);
  }
}

function readInk(canvas, pen) {
  const style = getComputedStyle(canvas);
  const names = ["paper", "panel", "ink", "soft", "line", "accent", "match", "mark", "warning"];
  const ink = Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`)]));
  ink.arrow = style.getPropertyValue("--arrow");
  ink.onStrong = style.getPropertyValue("--on-strong");
  const tile = document.createElement("canvas");
  tile.width = tile.height = 6;
  const brush = tile.getContext("2d");
  brush.fillStyle = style.getPropertyValue("--loss");
  for (let step = 0; step < 6; step += 1) brush.fillRect(step, 5 - step, 2, 1);
  ink.hatch = pen.createPattern(tile, "repeat");
  return ink;
}

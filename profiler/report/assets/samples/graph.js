// The flame graph: lays boxes out for the zoom and width at hand, draws the rows in sight on a
// canvas, and turns pointer and keys into zooms. What a zoom or a hover means is up to the caller.

import { oncePerFrame } from "../shared/frames.js";

const ROW_PX = 20;
const CHAR_PADDING_PX = 5;
/** Narrower boxes are drawn as one strip with their neighbours. */
const BOX_MIN_PX = 0.75;
const FONT = '12px ui-monospace, "SF Mono", "Cascadia Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace';

export class FlameGraph {
  /** `on` holds zoom(box), hover(box, x, y), leave() and focus(box, x, y). */
  constructor(scroller, canvas, on) {
    this.scroller = scroller;
    this.canvas = canvas;
    this.spacer = scroller.querySelector(".graph-spacer");
    this.on = on;
    this.upwards = true;
    this.rows = [];
    this.matches = null;
    this.selected = null;
    this.hovered = null;
    this.focused = null;
    this.zoomed = null;
    this.dark = false;
    this.draw = oncePerFrame(() => this.drawNow());
    new ResizeObserver(() => this.layOut()).observe(scroller);
    scroller.addEventListener("scroll", () => this.draw());
    canvas.addEventListener("pointermove", (event) => this.pointerMoved(event));
    canvas.addEventListener("pointerleave", () => this.pointerLeft());
    canvas.addEventListener("click", (event) => this.clicked(event));
    canvas.addEventListener("keydown", (event) => this.keyPressed(event));
    canvas.addEventListener("blur", () => this.setFocused(null));
  }

  /** Shows another tree, zoomed to `box` of it. */
  show(box, { upwards, palette }) {
    this.upwards = upwards;
    this.palette = palette;
    this.zoomTo(box);
  }

  zoomTo(box) {
    this.zoomed = box;
    this.hovered = null;
    this.focused = this.focused ? box : null;
    this.layOut();
    this.scrollToZoomed();
  }

  /** The zoomed box and two of its callers stay in sight. */
  scrollToZoomed() {
    const before = Math.max(0, this.zoomed.depth - 2) * ROW_PX;
    const height = this.rows.length * ROW_PX;
    this.scroller.scrollTop = this.upwards ? height - this.scroller.clientHeight - before : before;
    this.draw();
  }

  /** Finds each box's place: callers of the zoomed box take the whole width, its callees their share. */
  layOut() {
    if (!this.zoomed) return;
    const width = this.scroller.clientWidth;
    // While another view of the page is shown this one has no size, and nothing to scroll.
    const isNew = !this.width && width > 0;
    this.width = width;
    this.rows = this.zoomed.path.map((box) => [{ box, x: 0, width }]);
    const scale = this.zoomed.total > 0 ? width / this.zoomed.total : 0;
    let row = this.rows[this.rows.length - 1];
    while (row.length > 0) {
      const next = [];
      for (const place of row) {
        if (place.box) placeChildren(place, scale, next);
      }
      if (next.length > 0) this.rows.push(next);
      row = next;
    }
    const height = this.rows.length * ROW_PX;
    this.scroller.style.setProperty("--graph-height", `${height}px`);
    this.spacer.style.height = `${Math.max(height, this.scroller.clientHeight)}px`;
    if (isNew) this.scrollToZoomed();
    this.draw();
  }

  drawNow() {
    const { canvas, scroller } = this;
    const ratio = window.devicePixelRatio || 1;
    const height = scroller.clientHeight;
    if (canvas.width !== Math.round(this.width * ratio) || canvas.height !== Math.round(height * ratio)) {
      canvas.width = Math.round(this.width * ratio);
      canvas.height = Math.round(height * ratio);
      canvas.style.width = `${this.width}px`;
      canvas.style.height = `${height}px`;
    }
    const context = canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, this.width, height);
    context.font = FONT;
    context.textBaseline = "middle";
    const style = getComputedStyle(scroller);
    const ink = {
      text: style.getPropertyValue("--ink"),
      faint: style.getPropertyValue("--graph-faint"),
      match: style.getPropertyValue("--match"),
      matchText: style.getPropertyValue("--match-ink"),
      mark: style.getPropertyValue("--mark"),
      charWidth: context.measureText("0").width,
    };
    this.rows.forEach((row, depth) => {
      const y = this.rowTop(depth) - scroller.scrollTop;
      if (y > -ROW_PX && y < height) row.forEach((place) => this.drawPlace(context, place, y, ink));
    });
  }

  drawPlace(context, place, y, ink) {
    const { box, x } = place;
    const width = Math.max(place.width - (place.width > 3 ? 1 : 0), 0.5);
    if (!box) {
      context.fillStyle = place.matched(this.matches) ? ink.match : ink.faint;
      context.fillRect(x, y, width, ROW_PX - 1);
      return;
    }
    const matched = this.matches?.[box.fn.index];
    const dimmed = (this.matches && !matched) || box.depth < this.zoomed.depth;
    context.globalAlpha = dimmed ? 0.45 : 1;
    context.fillStyle = this.matches && !matched ? ink.faint : matched ? ink.match : this.palette.fill(box, this.dark);
    context.fillRect(x, y, width, ROW_PX - 1);
    context.globalAlpha = dimmed ? 0.75 : 1;
    const text = fitText(box.fn, Math.floor((width - 2 * CHAR_PADDING_PX) / ink.charWidth));
    if (text) {
      context.fillStyle = matched ? ink.matchText : ink.text;
      context.fillText(text, x + CHAR_PADDING_PX, y + ROW_PX / 2, width - 2 * CHAR_PADDING_PX);
    }
    context.globalAlpha = 1;
    if (box.fn === this.selected) outline(context, x, y, width, ink.mark, 2);
    if (box === this.hovered) outline(context, x, y, width, ink.text, 1);
    if (box === this.focused) outline(context, x, y, width, ink.text, 2);
  }

  rowTop(depth) {
    const height = this.rows.length * ROW_PX;
    // A graph that grows upwards stands on the floor of its frame.
    const floor = Math.max(height, this.scroller.clientHeight);
    return this.upwards ? floor - (depth + 1) * ROW_PX : depth * ROW_PX;
  }

  /** The box at a place in the canvas, or null. */
  boxAt(x, y) {
    const height = Math.max(this.rows.length * ROW_PX, this.scroller.clientHeight);
    const fromTop = y + this.scroller.scrollTop;
    const depth = Math.floor((this.upwards ? height - fromTop : fromTop) / ROW_PX);
    const row = this.rows[depth] ?? [];
    return row.find((place) => x >= place.x && x < place.x + place.width)?.box ?? null;
  }

  /** Where a box is drawn, in the canvas, or null if it is not. */
  placeOf(box) {
    const place = (this.rows[box.depth] ?? []).find((candidate) => candidate.box === box);
    return place ? { x: place.x, width: place.width, y: this.rowTop(box.depth) - this.scroller.scrollTop, height: ROW_PX } : null;
  }

  pointerMoved(event) {
    const box = this.boxAt(event.offsetX, event.offsetY);
    if (box !== this.hovered) {
      this.hovered = box;
      this.canvas.classList.toggle("over-box", box !== null);
      this.draw();
    }
    if (box) this.on.hover(box, event.clientX, event.clientY);
    else this.on.leave();
  }

  pointerLeft() {
    this.hovered = null;
    this.draw();
    this.on.leave();
  }

  clicked(event) {
    const box = this.boxAt(event.offsetX, event.offsetY);
    if (box) this.on.zoom(box);
  }

  keyPressed(event) {
    const outwards = this.upwards ? "ArrowDown" : "ArrowUp";
    const inwards = this.upwards ? "ArrowUp" : "ArrowDown";
    const from = this.focused ?? this.zoomed;
    const row = (this.rows[from.depth] ?? []).filter((place) => place.box).map((place) => place.box);
    const beside = (step) => row[row.indexOf(from) + step];
    const widest = () => from.children.reduce((best, box) => (best && best.total >= box.total ? best : box), null);
    const targets = {
      [outwards]: () => from.parent,
      [inwards]: () => (from.depth < this.zoomed.depth ? this.zoomed.path[from.depth + 1] : widest()),
      ArrowLeft: () => beside(-1),
      ArrowRight: () => beside(1),
      Home: () => this.zoomed,
    };
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (targets[event.key]) {
      const target = targets[event.key]();
      if (target && this.placeOf(target)) this.setFocused(target);
      event.preventDefault();
    } else if (event.key === "Enter" || event.key === " ") {
      this.focused = from;
      this.on.zoom(from);
      event.preventDefault();
    } else if (event.key === "Backspace") {
      if (this.zoomed.parent) this.on.zoom(this.zoomed.parent);
      event.preventDefault();
    }
  }

  /** Moves the keyboard's mark, scrolls it into sight and calls `focus`. */
  setFocused(box) {
    this.focused = box;
    if (box) {
      const top = this.rowTop(box.depth);
      const { scrollTop, clientHeight } = this.scroller;
      if (top < scrollTop) this.scroller.scrollTop = top;
      else if (top + ROW_PX > scrollTop + clientHeight) this.scroller.scrollTop = top + ROW_PX - clientHeight;
      const place = this.placeOf(box);
      const frame = this.canvas.getBoundingClientRect();
      this.on.focus(box, frame.left + place.x + Math.min(place.width / 2, 160), frame.top + place.y + ROW_PX);
    } else {
      this.on.leave();
    }
    this.draw();
  }
}

/** Puts the children of a placed box into the next row; those too narrow share strips. */
function placeChildren(place, scale, next) {
  let x = place.x;
  let strip = null;
  for (const box of place.box.children) {
    const width = box.total * scale;
    if (width === 0) continue;
    if (width >= BOX_MIN_PX) {
      next.push({ box, x, width });
      strip = null;
    } else if (strip) {
      strip.width += width;
      strip.hidden.push(box);
    } else {
      const hidden = [box];
      strip = { box: null, x, width, hidden, matched: (flags) => flags && hidden.some((other) => flags[other.fn.index]) };
      next.push(strip);
    }
    x += width;
  }
}

/** The full name if it fits, else the short one, else its beginning, else nothing. */
function fitText(fn, chars) {
  if (fn.name.length <= chars) return fn.name;
  if (fn.short.length <= chars) return fn.short;
  return chars >= 3 ? `${fn.short.slice(0, chars - 1)}…` : "";
}

function outline(context, x, y, width, colour, lineWidth) {
  context.strokeStyle = colour;
  context.lineWidth = lineWidth;
  const inset = lineWidth / 2;
  context.strokeRect(x + inset, y + inset, Math.max(width - lineWidth, 0.5), ROW_PX - 1 - lineWidth);
}

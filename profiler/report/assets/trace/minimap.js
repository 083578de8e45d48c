// The whole trace in a strip above the axis: the cores' work, and a window on what is in sight that can be dragged and resized.

import { Raster } from "./raster.js";
import { windowFrom } from "../shared/zoom.js";

export const MINIMAP_PX = 26;
/** Tracks of cores that are drawn; more are thinner than can be seen. */
const CORES_MAX = 4;
/** A press that is closer to an edge of the window resizes it. */
const EDGE_PX = 6;
/** A window that is narrower has no edges to be grabbed. */
const EDGES_MIN_PX = 24;

export class Minimap {
  constructor(data) {
    this.data = data;
    this.raster = new Raster(data);
    this.cores = data.tracks.filter((track) => data.types[track.kind].label === "core" && track.count > 0 && !data.isCopy(track)).slice(0, CORES_MAX);
    this.forget();
  }

  /** Colours have changed. */
  forget() {
    this.drawnWidth = 0;
  }

  /** What a press moves: the window, its start or its end. A press outside moves the window there. */
  grab(x, plane, view, whole) {
    const [left, right] = view.map((time) => plane.left + (time / whole) * plane.width);
    const hasEdges = right - left >= EDGES_MIN_PX;
    if (hasEdges && Math.abs(x - left) <= EDGE_PX) return { part: "start", view, offset: 0 };
    if (hasEdges && Math.abs(x - right) <= EDGE_PX) return { part: "end", view, offset: 0 };
    const isInside = x >= left - EDGE_PX && x <= right + EDGE_PX;
    const time = ((x - plane.left) / plane.width) * whole;
    // The window keeps its length; the pointer keeps its place in it.
    const offset = isInside ? time - view[0] : (view[1] - view[0]) / 2;
    return { part: "window", view, offset };
  }

  /** The window after a drag to a place. */
  drag({ part, view, offset }, x, plane, whole, least) {
    const time = Math.max(0, Math.min(whole, ((x - plane.left) / plane.width) * whole));
    if (part === "start") return [Math.max(0, Math.min(time, view[1] - least)), view[1]];
    if (part === "end") return [view[0], Math.min(whole, Math.max(time, view[0] + least))];
    return windowFrom(time - offset, view[1] - view[0], whole);
  }

  draw(pen, { view, plane, ink, whole }, ratio, colours) {
    const width = Math.max(1, Math.round(plane.width * ratio));
    const height = Math.round((MINIMAP_PX - 4) * ratio);
    if (this.drawnWidth !== width) this.paint(width, height, whole, colours);
    pen.putImageData(this.raster.image, Math.round(plane.left * ratio), Math.round(2 * ratio));
    const [left, right] = view.map((time) => plane.left + (time / whole) * plane.width);
    const end = Math.max(left + 3, right);
    pen.fillStyle = ink.panel;
    pen.globalAlpha = 0.66;
    pen.fillRect(plane.left, 2, left - plane.left, MINIMAP_PX - 4);
    pen.fillRect(end, 2, plane.left + plane.width - end, MINIMAP_PX - 4);
    pen.globalAlpha = 1;
    pen.strokeStyle = pen.fillStyle = ink.accent;
    pen.lineWidth = 1.5;
    pen.strokeRect(left + 0.75, 1.75, Math.max(1.5, end - left - 1.5), MINIMAP_PX - 3.5);
    if (end - left >= EDGES_MIN_PX) {
      pen.fillRect(left, 8, 3, 10);
      pen.fillRect(end - 3, 8, 3, 10);
    }
  }

  /** Drawn once for a width and a theme, when all of it has been read. */
  paint(width, height, whole, colours) {
    this.raster.begin(width, height, colours.track);
    const each = Math.floor(height / Math.max(1, this.cores.length));
    const drawn = this.cores.map((track, place) => this.raster.track(track, place * each, each, [0, whole], colours, null));
    if (drawn.every(({ isWhole }) => isWhole)) this.drawnWidth = width;
  }
}

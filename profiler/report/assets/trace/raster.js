// Tracks as pixels. A column of pixels shows from below what was strong, middle and faint in its time; what is wider
// than a pixel fills its columns. However many events there are, a frame writes each pixel once.

import { firstAbove, piecesIn } from "./data.js";
import { darker } from "./colours.js";

/** Pieces of slices that a track may use for a frame; beyond, it is drawn a little coarser. */
const SLICE_PIECES_MAX = 6;
const LABEL_MIN_PX = 28;
const EDGE_MIN_PX = 4;

export class Raster {
  constructor(data) {
    this.data = data;
    this.width = 0;
    this.height = 0;
  }

  begin(width, height, background) {
    if (width !== this.width || height !== this.height) {
      this.width = width;
      this.height = height;
      this.image = new ImageData(width, height);
      this.pixels = new Uint32Array(this.image.data.buffer);
      this.cover = [0, 1, 2].map(() => new Float32Array(width));
      this.colour = [0, 1, 2].map(() => new Uint32Array(width));
      this.most = [0, 1, 2].map(() => new Float32Array(width));
      this.edge = new Uint8Array(width);
      this.low = new Float64Array(width);
      this.high = new Float64Array(width);
      this.last = new Float64Array(width);
    }
    this.pixels.fill(background);
  }

  /** Paints these columns from top to bottom. */
  lines(columns, pixel) {
    const { pixels, width } = this;
    for (const column of columns) {
      if (column < 0 || column >= width) continue;
      for (let at = column; at < pixels.length; at += width) pixels[at] = pixel;
    }
  }

  /** Empties the rows of pixels above `height`. */
  clear(height, pixel) {
    this.pixels.fill(pixel, 0, Math.min(height, this.height) * this.width);
  }

  /**
   * Paints a track into the rows of pixels from `top` on and returns what could have a label: first and last
   * column, name, kind. `matches` has a flag for each name, or is null.
   */
  track(track, top, height, view, colours, matches) {
    const { data, width } = this;
    const nsPerPixel = (view[1] - view[0]) / width;
    const labels = [];
    if (track.count === 0) return { labels, isWhole: true };
    if (data.isCounter(track)) return this.counter(track, top, height, view, colours);
    let place = data.levelFor(track, nsPerPixel);
    if (place === 0 && track.levels.length > 1 && piecesIn(track.levels[0], ...view).length > SLICE_PIECES_MAX) place = 1;
    const { found, isWhole } = this.pieces(track, place, view);
    for (let weight = 0; weight < 3; weight += 1) {
      this.cover[weight].fill(0);
      this.most[weight].fill(0);
    }
    this.edge.fill(0);
    const state = { view, nsPerPixel, colours, matches, labels };
    for (const piece of found) {
      if (piece.width === 0) this.slices(piece, state);
      else this.buckets(piece, state);
    }
    this.columns(top, height);
    return { labels, isWhole };
  }

  /** Decoded pieces of a level, or of the next coarser one that is there. */
  pieces(track, place, view) {
    const { data } = this;
    let first = null;
    for (let level = place; level < track.levels.length; level += 1) {
      const found = piecesIn(track.levels[level], ...view).map((piece) => data.now(track, track.levels[level], piece));
      const whole = found.every((piece) => piece !== null);
      first ??= found;
      if (whole) return { found, isWhole: level === place };
    }
    return { found: (first ?? []).filter((piece) => piece !== null), isWhole: false };
  }

  slices(piece, { view, nsPerPixel, colours, matches, labels }) {
    const { start, end, kind, name, count } = piece;
    const { weights } = this.data;
    const [from, to] = view;
    const { width, cover, colour, most, edge } = this;
    for (let index = firstAbove(end, from - nsPerPixel); index < count && start[index] < to; index += 1) {
      const weight = weights[kind[index]];
      let pixel = colours.of(kind[index], name[index]);
      if (matches && !matches[name[index]]) pixel = weight === 0 ? colours.fadedStrong : colours.faded;
      const x0 = (start[index] - from) / nsPerPixel;
      const x1 = (end[index] - from) / nsPerPixel;
      if (x1 - x0 >= 1.5) {
        const a = Math.max(0, Math.round(x0));
        const b = Math.min(width, Math.max(a + 1, Math.round(x1)));
        cover[weight].fill(1, a, b);
        colour[weight].fill(pixel, a, b);
        most[weight].fill(2, a, b);
        if (b - a >= EDGE_MIN_PX && x0 >= 0) edge[a] = 1;
        if (b - a >= LABEL_MIN_PX) labels.push({ from: a, to: b, name: name[index], kind: kind[index], index, piece });
        continue;
      }
      const isMark = start[index] === end[index];
      if (isMark) {
        const next = index + 1 < count ? (start[index + 1] - from) / nsPerPixel : width;
        const a = Math.max(0, Math.round(x0));
        if (next - x0 > LABEL_MIN_PX * 1.5 && a < width) labels.push({ from: a + 1, to: Math.min(width, Math.round(next)), name: name[index], kind: kind[index], isMark, index, piece });
      }
      const column = Math.floor(x0);
      const first = isMark ? 1 : Math.min(x1, column + 1) - x0;
      this.part(weight, column, first, pixel);
      if (!isMark && x1 > column + 1) this.part(weight, column + 1, x1 - column - 1, pixel);
    }
  }

  part(weight, column, part, pixel) {
    if (column < 0 || column >= this.width) return;
    this.cover[weight][column] += part;
    if (part >= this.most[weight][column]) {
      this.most[weight][column] = part;
      this.colour[weight][column] = pixel;
    }
  }

  buckets(piece, { view, nsPerPixel, colours, matches, labels }) {
    const { start, end, kind, name, count, cover } = piece;
    const { weights } = this.data;
    const [from, to] = view;
    const { width } = this;
    for (let index = firstAbove(end, from); index < count && start[index] < to; index += 1) {
      const main = weights[kind[index]];
      const x0 = (start[index] - from) / nsPerPixel;
      const x1 = (end[index] - from) / nsPerPixel;
      const a = Math.max(0, Math.floor(x0));
      const b = Math.min(width, Math.ceil(x1));
      for (let weight = main; weight < 3; weight += 1) {
        const share = cover[weight][index] / 255;
        if (share === 0) continue;
        let pixel = weight === main ? colours.of(kind[index], name[index]) : weight === 1 ? colours.byKind[4] : colours.byKind[5];
        if (matches && !(weight === main && matches[name[index]])) pixel = weight === 0 ? colours.fadedStrong : colours.faded;
        for (let column = a; column < b; column += 1) {
          this.part(weight, column, share * (Math.min(x1, column + 1) - Math.max(x0, column)), pixel);
        }
      }
      if (b - a >= LABEL_MIN_PX && cover[main][index] === 255) labels.push({ from: a, to: b, name: name[index], kind: kind[index] });
    }
  }

  columns(top, height) {
    const { width, pixels, cover, edge } = this;
    const [cover0, cover1, cover2] = cover;
    const [colour0, colour1, colour2] = this.colour;
    const bottom = Math.min(top + height, this.height) - 1;
    const cut = top + height - 1 - bottom;
    const rows = Math.min(height, bottom + 1 + cut);
    for (let x = 0; x < width; x += 1) {
      const c0 = cover0[x];
      const c1 = cover1[x];
      const c2 = cover2[x];
      if (c0 + c1 + c2 === 0) continue;
      // What is there is seen, however little of it.
      const h0 = c0 > 0 ? Math.min(rows, Math.max(3, Math.round(c0 * height))) : 0;
      const h1 = c1 > 0 ? Math.min(rows, h0 + Math.max(2, Math.round(c1 * height))) : h0;
      const isFull = c0 + c1 + c2 > 0.98;
      const h2 = Math.min(rows, isFull ? height : Math.max(h1 + Math.round(c2 * height), 2));
      const top2 = c2 > 0 ? colour2[x] : c1 > 0 ? colour1[x] : colour0[x];
      const shade = edge[x] === 1;
      const p0 = shade ? darker(colour0[x]) : colour0[x];
      const p1 = shade ? darker(colour1[x]) : colour1[x];
      const p2 = shade ? darker(top2) : top2;
      let at = (top + height - 1 - cut) * width + x;
      for (let row = cut; row < h2; row += 1, at -= width) pixels[at] = row < h0 ? p0 : row < h1 ? p1 : p2;
    }
  }

  /** Steps, from 0 or the lowest value up to the highest. */
  counter(track, top, height, view, colours) {
    const { data, width, pixels } = this;
    const coarsest = track.levels[track.levels.length - 1];
    const whole = coarsest.pieces.map((piece) => data.now(track, coarsest, piece));
    if (whole.some((piece) => piece === null)) return { labels: [], isWhole: false };
    if (track.most === undefined) {
      track.least = 0;
      track.most = 1;
      for (const piece of whole) {
        for (let index = 0; index < piece.count; index += 1) {
          track.least = Math.min(track.least, piece.low[index]);
          track.most = Math.max(track.most, piece.high[index]);
        }
      }
    }
    const nsPerPixel = (view[1] - view[0]) / width;
    const place = data.levelFor(track, nsPerPixel);
    const level = track.levels[place];
    // The piece before the view has the value at its start.
    const inside = level.pieces.filter(([, , , start], number) => start <= view[1] && (level.pieces[number + 1]?.[3] ?? Infinity) >= view[0]);
    const fine = inside.map((piece) => data.now(track, level, piece));
    const isWhole = fine.every((piece) => piece !== null);
    this.steps(isWhole ? fine : whole, view, nsPerPixel);
    const scale = (height - 3) / (track.most - track.least);
    for (let x = 0; x < width; x += 1) {
      if (Number.isNaN(this.last[x])) continue;
      const yOf = (value) => top + height - 1 - Math.round((value - track.least) * scale);
      const [line, high, low, zero] = [yOf(this.last[x]), yOf(this.high[x]), yOf(this.low[x]), yOf(0)];
      const put = (from, to, pixel) => {
        for (let y = Math.max(from, top, 0); y <= Math.min(to, top + height - 1, this.height - 1); y += 1) pixels[y * width + x] = pixel;
      };
      put(Math.min(line, zero), Math.max(line, zero), colours.counter);
      put(high, Math.max(low, high), colours.counterLine);
      put(line, line, colours.counterLine);
    }
    return { labels: [], isWhole };
  }

  steps(pieces, [from, to], nsPerPixel) {
    const { width, low, high, last } = this;
    last.fill(NaN);
    let value = NaN;
    let column = 0;
    const carry = (until) => {
      for (; column < until; column += 1) low[column] = high[column] = last[column] = value;
    };
    for (const piece of pieces) {
      for (let index = Math.max(0, firstAbove(piece.start, from) - 1); index < piece.count && piece.start[index] < to; index += 1) {
        const x = Math.max(0, Math.min(width - 1, Math.floor((piece.start[index] - from) / nsPerPixel)));
        carry(x);
        const before = column > x ? last[x] : value;
        const isSame = column > x;
        low[x] = Math.min(isSame ? low[x] : Infinity, piece.low[index], Number.isNaN(before) ? Infinity : before);
        high[x] = Math.max(isSame ? high[x] : -Infinity, piece.high[index], Number.isNaN(before) ? -Infinity : before);
        value = piece.last[index];
        last[x] = value;
        column = x + 1;
      }
    }
    carry(width);
  }
}

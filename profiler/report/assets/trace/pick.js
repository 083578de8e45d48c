// From a place of the timeline, or a track and a moment, to the slice that is there.

import { columnsOf, firstAbove, piecesIn, unfold } from "./data.js";

/**
 * The slice of a track at a time, or the nearest one within `reach`; null if there is none. An item has track,
 * start, end, name, kind, index, piece and the place of its piece.
 */
export async function sliceAt(data, track, time, reach) {
  if (track.count === 0) return null;
  const level = track.levels[0];
  let best = null;
  for (let place = 0; place < level.pieces.length; place += 1) {
    const [, , , start, end] = level.pieces[place];
    if (end < time - reach || start > time + reach) continue;
    const piece = await data.fetch(track, level, level.pieces[place]);
    const found = data.isCounter(track) ? stepAt(piece, time) : nearest(data, piece, time, reach);
    if (found && (best === null || found.distance < best.distance)) best = { ...found, piece, place };
  }
  return best && item(data, track, best.piece, best.place, best.index);
}

/** What holds the time is the best, but for what is faint: a mark that is near is meant rather than the time around it. */
function nearest(data, piece, time, reach) {
  let best = null;
  for (let index = Math.max(0, firstAbove(piece.end, time - reach) - 1); index < piece.count && piece.start[index] <= time + reach; index += 1) {
    const away = Math.max(piece.start[index] - time, time - piece.end[index], 0);
    const isEdge = piece.end[index] === time && piece.start[index] < time;
    const isFaint = data.weights[piece.kind[index]] === 2;
    const distance = isFaint ? Math.max(away, reach / 2) : away + (isEdge ? reach * 0.6 : 0);
    if (away <= reach && (best === null || distance < best.distance)) best = { index, distance };
  }
  return best;
}

/** The longest slice of a track that starts at a time; null if there is none. */
export async function exactly(data, track, time) {
  const level = track.levels[0];
  let best = null;
  for (let place = 0; place < level.pieces.length; place += 1) {
    const [, , , first, last] = level.pieces[place];
    if (last < time || first > time) continue;
    const piece = await data.fetch(track, level, level.pieces[place]);
    const index = firstAbove(piece.start, time) - 1;
    if (index >= 0 && piece.start[index] === time && (!best || piece.end[index] > best.end)) best = item(data, track, piece, place, index);
  }
  return best;
}

function stepAt(piece, time) {
  const index = firstAbove(piece.start, time) - 1;
  return index < 0 ? null : { index, distance: 0 };
}

/** @returns {any} A slice or step as others take it: its track, piece, place of the piece, index, times, and name and kind or value. */
export function item(data, track, piece, place, index) {
  const base = { track, piece, place, index, start: piece.start[index], end: piece.end?.[index] ?? piece.start[index] };
  if (data.isCounter(track)) {
    const next = piece.start[index + 1] ?? data.durationNs;
    return { ...base, end: next, value: piece.last[index], text: track.name };
  }
  return { ...base, name: piece.name[index], kind: piece.kind[index], text: data.names[piece.name[index]] };
}

/** The slice before or after one in its track. */
export async function neighbour(data, { track, place, index }, step) {
  const level = track.levels[0];
  let [at, next] = [place, index + step];
  if (next < 0) at -= 1;
  else if (next >= level.pieces[place][2]) at += 1;
  if (at < 0 || at >= level.pieces.length) return null;
  const piece = await data.fetch(track, level, level.pieces[at]);
  if (at !== place) next = step > 0 ? 0 : piece.count - 1;
  return item(data, track, piece, at, next);
}

/** Where the cause of an item is, or what it belongs to: track and time; null if the trace does not have it. */
export function linkOf(data, { track, piece, index, start }) {
  const type = data.types[track.kind];
  const place = type.columns.findIndex(({ show }) => show === "link");
  if (place < 0) return null;
  const { columns } = columnsOf(piece, type);
  const number = columns[place][index];
  return number === 0 ? null : { track: data.tracks[number - 1], time: start + unfold(columns[place + 1][index]) };
}

/** Tracks and times of what an item, a task that runs, has woken: at most `most`, and whether there are more. */
export async function wokenBy(data, { track, start, end }, most) {
  const found = [];
  for (const place of piecesIn({ pieces: data.wakes }, start, end)) {
    const { time, from, to } = await data.fetchWakes(place);
    for (let index = firstAbove(time, start - 1); index < time.length && time[index] <= end; index += 1) {
      if (from[index] - 1 !== track.number || to[index] === 0) continue;
      if (found.length === most) return { found, isMore: true };
      found.push({ track: data.tracks[to[index] - 1], time: time[index] });
    }
  }
  return { found, isMore: false };
}

export function textOf(data, { track, piece, index }) {
  const type = data.types[track.kind];
  return type.has_text ? columnsOf(piece, type).texts[index] : "";
}

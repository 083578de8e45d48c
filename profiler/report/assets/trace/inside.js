// What lies in a span, on its critical path or not: its child spans as a tree, the requests that its task submitted, and the
// segments of the connections that its task used.

import { REQUEST, SEGMENT, SPAN, TASK } from "./columns.js";
import { columnsOf, firstAbove, unfold } from "./data.js";
import { item } from "./pick.js";

/** Items of each sort that are listed; of more, the first ones. */
const INSIDE_MAX = 2_000;

/**
 * Calls `visit(piece, index)` for what of a track overlaps a time, in its order; stops when it returns false.
 * @param {(piece: any, index: number, place: number) => boolean | void} visit
 */
async function each(data, track, start, end, visit) {
  const level = track.levels[0];
  for (let place = 0; place < level.pieces.length; place += 1) {
    const [, , , first, last] = level.pieces[place];
    if (last < start || first > end) continue;
    const piece = columnsOf(await data.fetch(track, level, level.pieces[place]), data.types[track.kind]);
    for (let index = firstAbove(piece.end, start - 1); index < piece.count && piece.start[index] <= end; index += 1) {
      if (visit(piece, index, place) === false) return;
    }
  }
}

function ofType(data, label) {
  return data.tracks.filter((track) => data.types[track.kind].label === label && track.count > 0);
}

/** The spans whose parent is a span, theirs and so on: `{item, children}` each. */
export async function childrenOf(data, span) {
  const known = new Map([[key(span.track.number, span.start), { item: span, children: [] }]]);
  const found = [];
  for (const track of ofType(data, "span")) {
    await each(data, track, span.start, span.end, (piece, index, place) => {
      const parent = piece.columns[SPAN.parent][index];
      if (parent > 0) found.push({ parent: key(parent - 1, piece.start[index] + unfold(piece.columns[SPAN.parentTime][index])), item: item(data, track, piece, place, index), children: [] });
      return found.length < INSIDE_MAX * 4;
    });
  }
  // Of spans with one start, a parent is above its children.
  found.sort((a, b) => a.item.start - b.item.start || a.item.track.number - b.item.track.number);
  let count = 0;
  for (const node of found) {
    const above = known.get(node.parent);
    const own = key(node.item.track.number, node.item.start);
    if (!above || known.has(own) || count >= INSIDE_MAX) continue;
    above.children.push(node);
    known.set(own, node);
    count += 1;
  }
  return { children: known.get(key(span.track.number, span.start)).children, count };
}

function key(track, start) {
  return `${track} ${start}`;
}

/** The requests that the span's task submitted while the span was open, in order of their submission. */
export async function requestsOf(data, span) {
  const task = pathTask(data, span);
  const found = [];
  if (task === 0) return found;
  for (const track of ofType(data, "request")) {
    await each(data, track, span.start, span.end, (piece, index, place) => {
      if (piece.columns[REQUEST.task][index] === task && piece.start[index] >= span.start) found.push(item(data, track, piece, place, index));
    });
  }
  return found.sort((a, b) => a.start - b.start);
}

/** The segments of the connections on which the span's task waited while the span was open, in order of time. */
export async function segmentsOf(data, span) {
  const connections = await connectionsOf(data, span);
  const found = [];
  if (connections.size === 0) return found;
  const isSegment = ["segment received", "segment sent", "segment retransmitted"].map((label) => data.kindOf(label));
  for (const track of ofType(data, "segment")) {
    await each(data, track, span.start, span.end, (piece, index, place) => {
      if (isSegment.includes(piece.kind[index]) && connections.has(piece.columns[SEGMENT.connection][index])) found.push(item(data, track, piece, place, index));
    });
  }
  return found.sort((a, b) => a.start - b.start);
}

/** IDs of the connections. */
async function connectionsOf(data, span) {
  const task = pathTask(data, span);
  const connections = new Set();
  if (task === 0) return connections;
  const tasks = await data.fetchTasks();
  const waits = ["waiting to receive", "waiting to send"].map((label) => data.kindOf(label));
  await each(data, data.tracks[tasks.track[task - 1]], span.start, span.end, (piece, index) => {
    if (waits.includes(piece.kind[index]) && piece.columns[TASK.task][index] === task) connections.add(piece.columns[TASK.id][index]);
  });
  return connections;
}

/** Index of the task whose way the span's path follows, and one; 0 for none. */
function pathTask(data, { track, piece, index }) {
  return columnsOf(piece, data.types[track.kind]).columns[SPAN.path][index];
}

/** Items by track and name: how many, and how long in total, the most time first. */
export function groupItems(items, name) {
  const groups = new Map();
  for (const one of items) {
    const label = name(one);
    const group = groups.get(label) ?? { label, count: 0, ns: 0 };
    group.count += 1;
    group.ns += one.end - one.start;
    groups.set(label, group);
  }
  return [...groups.values()].sort((a, b) => b.ns - a.ns || b.count - a.count);
}

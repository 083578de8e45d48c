// Sums over what the reader selects. Their cost depends on nodes and entries, not on samples.

import { addUp, LAYERS, STATES } from "./profile.js";

/**
 * Adds up what the selection includes: `tracks` is a set of indices or null for all, `states` a set
 * of indices into STATES, `range` the first slice and the one after the last, or null for all; `within` has the intervals that
 * samples must lie in (and slices do not count then), or is null; `leftOut` has tracks that never count, or is null. `byState` has the samples of all states, also of those that do not count.
 */
export function sumSelection(profile, shape, selection) {
  const { nodes, timeline } = profile;
  const { cells, entryNode, entrySamples } = timeline;
  const own = new Float64Array(nodes.count);
  const [first, end] = selection.range ?? [0, Infinity];
  if (selection.within) for (const index of samplesIn(profile, selection)) own[timeline.samples.node[index]] += 1;
  for (let cell = 0; cell < cells.slice.length && !selection.within; cell += 1) {
    if (cells.slice[cell] < first || cells.slice[cell] >= end) continue;
    if (selection.tracks && !selection.tracks.has(cells.track[cell])) continue;
    if (selection.leftOut?.has(cells.track[cell])) continue;
    for (let entry = cells.start[cell]; entry < cells.start[cell + 1]; entry += 1) own[entryNode[entry]] += entrySamples[entry];
  }
  const byState = STATES.map(() => 0);
  for (let node = 0; node < nodes.count; node += 1) {
    byState[nodes.state[node]] += own[node];
    if (own[node] > 0 && !selection.states.has(nodes.state[node])) own[node] = 0;
  }
  return { ...sumOwn(shape, own), byState };
}

/** Indices of the samples in a selection of tracks, time and intervals, in order of time. */
export function samplesIn({ timeline }, { tracks, range, within, leftOut = null }) {
  const { samples, sliceNs } = timeline;
  const [from, to] = range ? range.map((slice) => slice * sliceNs) : [0, Infinity];
  const found = [];
  for (let index = 0; index < samples.time.length; index += 1) {
    const [time, track] = [samples.time[index], samples.track[index]];
    if ((tracks && !tracks.has(track)) || leftOut?.has(track)) continue;
    if (within ? within.has(time, track) : time >= from && time < to) found.push(index);
  }
  return found;
}

/** `own` is by node of the profile, `self` and `total` by node of the shape; `all` is 100 %. */
export function sumOwn({ nodes, place }, own) {
  const self = new Float64Array(nodes.count);
  const total = new Float64Array(nodes.count);
  for (let node = 0; node < own.length; node += 1) self[place[node]] += own[node];
  addUp(self, total, nodes.parent);
  return { own, self, total, all: total[0] };
}

/** What is left of sums in the nodes that are flagged. */
export function sumKept(shape, sums, keep) {
  return sumOwn(shape, sums.own.map((samples, node) => (keep[shape.place[node]] ? samples : 0)));
}

/** Flags the nodes at which the samples of a box end. */
export function keepUnder({ nodes }, box) {
  const keep = new Uint8Array(nodes.count);
  for (const { node, leaf } of box.members) {
    if (leaf === null) keep.fill(1, node, nodes.end[node]);
    else keep[leaf] = 1;
  }
  return keep;
}

/** Flags the nodes that have a function of the set on their way from the root, themselves included. */
export function keepMatches({ nodes }, flags) {
  const keep = new Uint8Array(nodes.count);
  for (let node = 1; node < nodes.count; node += 1) keep[node] = keep[nodes.parent[node]] | flags[nodes.fn[node]];
  return keep;
}

/** Self and total of each function that has any; a recursive function counts once for a sample. */
export function sumFunctions({ functions }, { nodes }, sums) {
  const rows = sumByKey(nodes, nodes.fn, sums.self, sums.total, functions.length);
  return rows.filter(({ key }) => functions[key].kind === "f").map(({ key, ...row }) => ({ ...row, fn: functions[key] }));
}

/** Self and total of each line of each function; callees that are left out count for the line that called. */
export function sumLines(profile, shape, sums) {
  const { nodes, functions, locations } = profile;
  const { lineOf, lines } = numberLines(profile);
  const self = new Float64Array(nodes.count);
  const total = new Float64Array(nodes.count);
  const shown = new Uint32Array(nodes.count);
  for (let node = 1; node < nodes.count; node += 1) {
    shown[node] = shape.hidden[nodes.fn[node]] ? shown[nodes.parent[node]] : node;
    self[shown[node]] += sums.own[node];
  }
  addUp(sums.own, total, nodes.parent);
  const rows = sumByKey(nodes, lineOf, self, total, lines.length);
  return rows
    .filter(({ key }) => functions[lines[key].fn].kind === "f" && !shape.hidden[lines[key].fn])
    .map(({ key, ...row }) => ({ ...row, fn: functions[lines[key].fn], location: locations[lines[key].location - 1] ?? null }));
}

/** A number for each pair of function and line, made once. */
function numberLines(profile) {
  if (profile.numbered) return profile.numbered;
  const { nodes, locations } = profile;
  const known = new Map();
  const lines = [];
  const lineOf = nodes.fn.map((fn, node) => {
    const key = fn * (locations.length + 1) + nodes.location[node];
    if (!known.has(key)) {
      known.set(key, lines.length);
      lines.push({ fn, location: nodes.location[node] });
    }
    return known.get(key);
  });
  profile.numbered = { lineOf, lines };
  return profile.numbered;
}

/** Sums by key over a tree; a key that lies below itself counts once in `total`. */
function sumByKey(nodes, keyOf, selfOf, totalOf, keys) {
  const self = new Float64Array(keys);
  const total = new Float64Array(keys);
  const open = new Uint32Array(keys);
  const path = [];
  for (let node = 1; node < nodes.count; node += 1) {
    if (totalOf[node] === 0) {
      node = nodes.end[node] - 1;
      continue;
    }
    while (path.length > 0 && nodes.end[path[path.length - 1]] <= node) open[keyOf[path.pop()]] -= 1;
    const key = keyOf[node];
    self[key] += selfOf[node];
    if (open[key] === 0) total[key] += totalOf[node];
    open[key] += 1;
    path.push(node);
  }
  const rows = [];
  for (let key = 0; key < keys; key += 1) {
    if (total[key] > 0) rows.push({ key, self: self[key], total: total[key] });
  }
  return rows;
}

/** The line of each function with most of its own samples, or, if it has none, with most of all; of equal ones the first in the source. */
export function hottestLines(lines) {
  const hottest = new Map();
  for (const line of lines) {
    const best = hottest.get(line.fn.index);
    if (line.location && (!best || isHotter(line, best))) hottest.set(line.fn.index, line);
  }
  return hottest;
}

function isHotter(line, best) {
  if (line.self !== best.self) return line.self > best.self;
  if (line.total !== best.total) return line.total > best.total;
  const [a, b] = [line.location, best.location];
  return a.file === b.file ? a.line < b.line : a.file < b.file;
}

/** Samples in which at least one function on the stack is in the set (flags by function). */
export function sumMatches({ nodes }, sums, flags) {
  let samples = 0;
  for (let node = 1; node < nodes.count; ) {
    if (flags[nodes.fn[node]]) {
      samples += sums.total[node];
      node = nodes.end[node];
    } else {
      node += 1;
    }
  }
  return samples;
}

/** Self samples of each group (crate, namespace, package, script or image), largest first: what colours stand for. */
export function sumGroups({ functions }, { nodes }, sums, groupOf) {
  const groups = new Map();
  for (let node = 1; node < nodes.count; node += 1) {
    const fn = functions[nodes.fn[node]];
    if (sums.self[node] === 0 || fn.kind !== "f") continue;
    groups.set(groupOf(fn), (groups.get(groupOf(fn)) ?? 0) + sums.self[node]);
  }
  return [...groups].map(([name, samples]) => ({ name, samples })).sort((a, b) => b.samples - a.samples);
}

/** Self samples of each mode that has a box, in the order of LAYERS: a mode in which nothing ended has a colour, too. */
export function sumModes({ functions }, { nodes }, sums) {
  const modes = LAYERS.map((name) => ({ name, samples: 0, isShown: false }));
  for (let node = 1; node < nodes.count; node += 1) {
    const mode = modes[functions[nodes.fn[node]].layer];
    if (!mode || sums.total[node] === 0) continue;
    mode.isShown = true;
    mode.samples += sums.self[node];
  }
  return modes.filter(({ isShown }) => isShown);
}

/** How many samples of each state each track has in each slice: `counts[track][STATES.length * slice + state]`. */
export function countSlices({ nodes, tracks, timeline }, rows) {
  const { cells, entryNode, entrySamples, slices } = timeline;
  const counts = rows.map(() => new Uint32Array(STATES.length * slices));
  const ofTrack = tracks.map((_, track) => counts.filter((_, row) => rows[row].tracks.includes(track)));
  for (let cell = 0; cell < cells.slice.length; cell += 1) {
    for (const count of ofTrack[cells.track[cell]]) {
      for (let entry = cells.start[cell]; entry < cells.start[cell + 1]; entry += 1) {
        count[STATES.length * cells.slice[cell] + nodes.state[entryNode[entry]]] += entrySamples[entry];
      }
    }
  }
  return counts;
}

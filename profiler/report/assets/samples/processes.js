// A guest's processes and threads: each is a choice of tracks, and a row of a table.

import { formatCount, formatPercent } from "../shared/format.js";
import { textSpan } from "../shared/elements.js";
import { samplesIn } from "./sums.js";

/** The entries that are no process, by the letter of their tracks; each is there if it has a track. */
const OTHERS = { i: "[idle task]", o: "[other threads]", "-": "[process unknown]" };

/**
 * Processes or threads as objects with name, label, number, owner (of a thread), isEntry (no process) and the set of their tracks.
 * They stand in for functions in a table, and have an index.
 */
export function subjects({ guest }, byThread) {
  const { threads, processes, thread: threadOf, kind } = guest;
  const groups = new Map();
  threadOf.forEach((thread, track) => {
    if (kind[track] === "h") return;
    const key = thread === null ? kind[track] : byThread ? thread : threads[thread].process;
    if (!groups.has(key)) groups.set(key, []);
    groups.get(key).push(track);
  });
  return [...groups].map(([key, tracks], index) => {
    const chosen = new Set(tracks);
    if (typeof key === "string") return { index, name: OTHERS[key], label: OTHERS[key], number: null, owner: "", threads: null, isEntry: true, tracks: chosen };
    if (!byThread) {
      const { name, pid } = processes[key];
      const count = new Set(tracks.map((track) => threadOf[track])).size;
      return { index, name, label: `${name} ${pid}`, number: pid, owner: "", threads: count, isEntry: false, tracks: chosen };
    }
    const { name, tid, process } = threads[key];
    const owner = `${processes[process].name} ${processes[process].pid}`;
    return { index, name, label: `${name} ${tid} of ${owner}`, number: tid, owner, threads: null, isEntry: false, tracks: chosen };
  });
}

/** Samples by track in a selection of time and states, whatever tracks are chosen. */
export function sumTracks(profile, selection) {
  const { nodes, tracks, timeline } = profile;
  const { cells, entryNode, entrySamples, samples } = timeline;
  const sums = new Float64Array(tracks.length);
  const all = { ...selection, tracks: null };
  if (selection.within) {
    for (const index of samplesIn(profile, all)) if (selection.states.has(nodes.state[samples.node[index]])) sums[samples.track[index]] += 1;
    return sums;
  }
  const [first, end] = selection.range ?? [0, Infinity];
  for (let cell = 0; cell < cells.slice.length; cell += 1) {
    if (cells.slice[cell] < first || cells.slice[cell] >= end || selection.leftOut?.has(cells.track[cell])) continue;
    for (let entry = cells.start[cell]; entry < cells.start[cell + 1]; entry += 1) {
      if (selection.states.has(nodes.state[entryNode[entry]])) sums[cells.track[cell]] += entrySamples[entry];
    }
  }
  return sums;
}

/** The rows of a table: those that have samples. */
export function subjectRows({ guest }, list, sums) {
  const rows = list.map((fn) => {
    const row = { fn, total: 0, self: 0, kernel: 0 };
    for (const track of fn.tracks) {
      row.total += sums[track];
      if (guest.kind[track] === "u") row.self += sums[track];
      if (guest.kind[track] === "k" || guest.kind[track] === "i") row.kernel += sums[track];
    }
    return row;
  });
  return rows.filter(({ total }) => total > 0);
}

/** Whether a choice of tracks is exactly that of a process or a thread. */
export function isChosen(fn, chosen) {
  return chosen !== null && chosen.size === fn.tracks.size && [...fn.tracks].every((track) => chosen.has(track));
}

/** A column of names. */
export function subjectColumn(label) {
  const cell = (element, { fn }) => {
    const button = document.createElement("button");
    button.type = "button";
    button.title = fn.label;
    button.append(textSpan("short", fn.name));
    element.append(button);
  };
  return { key: "name", label, className: "name", value: (row) => row.fn.name.toLowerCase(), cell };
}

/** A column of shares of all samples. */
export function subjectShareColumn(key, label, title) {
  const cell = (element, row, table) => (element.textContent = row[key] > 0 ? formatPercent(row[key], table.all) : "");
  return { key, label, title, className: "self", descending: true, value: (row) => row[key], cell };
}

/** A column of what a row has beside its name. */
export function textColumn(key, label, className) {
  const cell = (element, { fn }) => {
    const value = fn[key];
    element.title = value === null ? "" : String(value);
    element.textContent = value === null ? "" : key === "threads" ? formatCount(value) : String(value);
  };
  return { key, label, className, value: (row) => row.fn[key] ?? -1, cell };
}

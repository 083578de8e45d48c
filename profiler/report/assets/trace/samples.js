// From a span, a task or a range of time to the intervals in which its samples lie: the other view of the page shows those.

import { CORE, TASK } from "./columns.js";
import { columnsOf } from "./data.js";
import { visitsOf } from "./path.js";

/** Intervals that are handed over; of more, the first ones. */
const INTERVALS_MAX = 500_000;

/**
 * What `of` is about: a label and intervals `[from, to, core]` in nanoseconds of the samples' clock, with the name of the core, or
 * null for all. Null if it is none of the three.
 */
export async function samplesOf(data, of) {
  if (!of) return null;
  const shift = data.startNs - data.shiftNs;
  const moved = (intervals) => intervals.map(([from, to, core]) => [from + shift, to + shift, core]);
  if (of.range) return { label: "the selection of the trace", intervals: moved([[of.range[0], of.range[1], null]]), isRange: true };
  if (data.isSpan(of)) {
    const visits = await visitsOf(data, of);
    const intervals = visits.map(({ start, end, track }) => [start, end, track.name.replace(/ active spans.*$/, "")]);
    return { label: `span ${of.text}`, intervals: moved(intervals), isRange: false };
  }
  const task = taskOf(data, of);
  if (task === 0) return null;
  const tasks = await data.fetchTasks();
  return { label: `task ${data.taskName(tasks, task - 1)}`, intervals: moved(await runsOf(data, tasks, task)), isRange: false };
}

/** Index of the task that a slice belongs to, and one; 0 for none. */
function taskOf(data, { track, piece, index }) {
  const column = { task: TASK.task, core: CORE.task }[data.types[track.kind].label];
  return column === undefined ? 0 : columnsOf(piece, data.types[track.kind]).columns[column][index];
}

/** When and on which core a task ran. */
async function runsOf(data, tasks, task) {
  const track = data.tracks[tasks.track[task - 1]];
  const type = data.types[track.kind];
  const running = data.kindOf("running");
  const runs = [];
  for (const place of track.levels[0].pieces) {
    const piece = columnsOf(await data.fetch(track, track.levels[0], place), type);
    for (let index = 0; index < piece.count && runs.length < INTERVALS_MAX; index += 1) {
      if (piece.kind[index] !== running || piece.columns[TASK.task][index] !== task) continue;
      const core = piece.columns[TASK.core][index];
      runs.push([piece.start[index], piece.end[index], core > 0 ? data.tracks[core - 1].name : null]);
    }
  }
  return runs;
}

// From what is selected to what is beside it, to the track above or below, back to its cause and on to its effect.

import { CORE, REQUEST, TASK } from "./columns.js";
import { columnsOf, firstAbove } from "./data.js";
import { linkOf, neighbour, sliceAt, wokenBy } from "./pick.js";

/** How far before a poll its cause is looked for: a task that runs was runnable before, and waited before that. */
const CAUSE_STEPS_MAX = 3;
/** Tracks that are searched for one that has something in sight. */
const TRACKS_TRIED_MAX = 200;
/** Wakes after a request or segment among which the one is looked for that it caused. */
const WAKES_TRIED_MAX = 20_000;

/**
 * Track and time of the cause: what woke a task, which task submitted a request, what a poll of a core belongs to, who called a
 * function. Null if the trace does not have it.
 */
export async function causeOf(data, chosen) {
  if (data.isCounter(chosen.track)) return null;
  const type = data.types[chosen.track.kind].label;
  const { columns } = columnsOf(chosen.piece, data.types[chosen.track.kind]);
  if (type === "request") return taskAt(data, columns[REQUEST.task][chosen.index], chosen.start);
  if (type === "core") return linkOf(data, chosen) ?? taskAt(data, columns[CORE.task][chosen.index], chosen.start);
  if (type !== "task") return linkOf(data, chosen);
  const task = columns[TASK.task][chosen.index];
  let item = chosen;
  for (let steps = 0; item && steps < CAUSE_STEPS_MAX; steps += 1) {
    const own = columnsOf(item.piece, data.types[item.track.kind]).columns[TASK.task][item.index];
    if (own !== task) return null;
    const cause = linkOf(data, item);
    if (cause) return cause;
    item = await neighbour(data, item, -1);
  }
  return null;
}

/** Track and time of a task, given by its index and one. */
async function taskAt(data, task, time) {
  if (task === 0) return null;
  const tasks = await data.fetchTasks();
  return { track: data.tracks[tasks.track[task - 1]], time };
}

/**
 * Track and time of the effect: the task that a request or a segment woke when it completed or was received, the first task that a
 * poll woke, the poll after a wait. Null if the trace does not have it.
 */
export async function effectOf(data, chosen) {
  if (data.isCounter(chosen.track)) return null;
  const type = data.types[chosen.track.kind].label;
  if (type === "request" || type === "segment") return wokenByDevice(data, chosen);
  if (type !== "task") return null;
  if (data.isRun(chosen)) {
    const { found } = await wokenBy(data, chosen, 1);
    return found[0] ?? null;
  }
  let item = chosen;
  while (item && !data.isRun(item)) item = await neighbour(data, item, 1);
  return item && { track: item.track, time: item.start };
}

/** The task whose wait a request or segment ended: wakes after its end are those of its track, and of these the one that refers to it. */
async function wokenByDevice(data, chosen) {
  let left = WAKES_TRIED_MAX;
  for (const place of data.wakes) {
    if (place[4] < chosen.end) continue;
    const { time, from, to } = await data.fetchWakes(place);
    for (let index = firstAbove(time, chosen.end - 1); index < time.length && left > 0; index += 1, left -= 1) {
      if (from[index] - 1 !== chosen.track.number || to[index] === 0) continue;
      const track = data.tracks[to[index] - 1];
      const wait = await sliceAt(data, track, time[index] - 1, 0);
      const by = wait && linkOf(data, wait);
      if (by && by.track === chosen.track && by.time === chosen.start) return { track, time: time[index] };
    }
    if (left === 0) return null;
  }
  return null;
}

/** The slice before or after what is selected; if nothing is, one at the centre of the visible range. */
export async function beside(timeline, by) {
  const { data, chosen } = timeline;
  return chosen ? neighbour(data, chosen, by) : inTrack(timeline, 1);
}

/** What is nearest in the next track below or above that has something in sight. */
export async function inTrack(timeline, by) {
  const { data, chosen, view, layout, box } = timeline;
  const rows = layout.rows.filter(({ track }) => track?.count > 0);
  const first = rows.findIndex(({ y }) => y >= box.scrollTop);
  const at = rows.findIndex(({ track }) => track === chosen?.track);
  const isSeen = chosen && chosen.end >= view[0] && chosen.start <= view[1];
  const time = isSeen ? Math.max(chosen.start, view[0]) : (view[0] + view[1]) / 2;
  let place = at >= 0 ? at + by : Math.max(0, first);
  for (let tried = 0; tried < TRACKS_TRIED_MAX && rows[place]; tried += 1, place += by) {
    const { track } = rows[place];
    const found = (await sliceAt(data, track, time, 1)) ?? (await sliceAt(data, track, time, (view[1] - view[0]) / 2));
    if (found) return found;
  }
  return null;
}

// From what is chosen to what is beside it, to the lane above or below, and back to its cause.

import { linkOf, neighbour, sliceAt } from "./trace_pick.js";

/** How far before something its cause is looked for: a task that runs was ready before, and waited before that. */
const CAUSE_STEPS_MAX = 3;
/** Lanes that are looked into for one that has something in sight. */
const LANES_TRIED_MAX = 200;

/** Lane and time of who woke a task or called a function; null if nobody knows. */
export async function causeOf(data, chosen) {
  let item = chosen;
  for (let steps = 0; item && steps < CAUSE_STEPS_MAX; steps += 1) {
    const cause = data.isCounter(item.lane) ? null : linkOf(data, item);
    if (cause) return cause;
    item = await neighbour(data, item, -1);
  }
  return null;
}

/** The slice before or after what is chosen; if nothing is, one in the middle of what is in sight. */
export async function beside(timeline, by) {
  const { data, chosen } = timeline;
  return chosen ? neighbour(data, chosen, by) : inLane(timeline, 1);
}

/** What is nearest in the next lane below or above that has something in sight. */
export async function inLane(timeline, by) {
  const { data, chosen, view, layout, box } = timeline;
  const rows = layout.rows.filter(({ lane }) => lane?.count > 0);
  const first = rows.findIndex(({ y }) => y >= box.scrollTop);
  const at = rows.findIndex(({ lane }) => lane === chosen?.lane);
  const isSeen = chosen && chosen.end >= view[0] && chosen.start <= view[1];
  const time = isSeen ? Math.max(chosen.start, view[0]) : (view[0] + view[1]) / 2;
  let place = at >= 0 ? at + by : Math.max(0, first);
  for (let tried = 0; tried < LANES_TRIED_MAX && rows[place]; tried += 1, place += by) {
    const { lane } = rows[place];
    const found = (await sliceAt(data, lane, time, 1)) ?? (await sliceAt(data, lane, time, (view[1] - view[0]) / 2));
    if (found) return found;
  }
  return null;
}

// Samples in intervals of time, each of one track or of all: of a span, a task or a range that the trace has chosen.

export class Within {
  /**
   * `intervals` are `[from, to, core]` in nanoseconds with the name of the core or null for all; `tracks` are those of the profile.
   * A core is the track of the same name, "core 1" is "vcpu 1", and "main" the first thread of a process; where a core has no track,
   * samples of all tracks count, and the label has that. `isRange`: they are one range of time, not what ran.
   */
  constructor(label, intervals, tracks, isRange = false) {
    this.isRange = isRange;
    this.byTrack = new Map();
    const known = new Map();
    for (const [from, to, core] of intervals) {
      if (!known.has(core)) known.set(core, trackOf(core, tracks));
      const track = known.get(core);
      if (!this.byTrack.has(track)) this.byTrack.set(track, []);
      this.byTrack.get(track).push([from, to]);
    }
    const isLost = tracks.length > 1 && [...known].some(([core, track]) => core !== null && track === null);
    this.label = isLost ? `${label}, on all tracks` : label;
    for (const [track, list] of this.byTrack) this.byTrack.set(track, merged(list));
    const all = [...this.byTrack.values()].flat();
    this.from = all.reduce((least, [from]) => Math.min(least, from), Infinity);
    this.to = all.reduce((most, [, to]) => Math.max(most, to), -Infinity);
    this.ns = all.reduce((sum, [from, to]) => sum + to - from, 0);
  }

  has(time, track) {
    return isIn(this.byTrack.get(null), time) || isIn(this.byTrack.get(track), time);
  }
}

function trackOf(core, tracks) {
  if (core === null) return null;
  const wanted = [core, core.replace(/^core (\d+)$/, "vcpu $1")];
  const found = tracks.map(({ name }, index) => (wanted.includes(name) ? index : -1)).filter((index) => index >= 0);
  if (found.length === 0 && core === "main" && tracks.length > 0) return 0;
  return found.length === 1 ? found[0] : null;
}

/** Intervals in order that do not overlap. */
function merged(intervals) {
  const made = [];
  for (const [from, to] of intervals.sort((a, b) => a[0] - b[0])) {
    const last = made[made.length - 1];
    if (last && from <= last[1]) last[1] = Math.max(last[1], to);
    else made.push([from, to]);
  }
  return made;
}

function isIn(intervals, time) {
  if (!intervals) return false;
  let [low, high] = [0, intervals.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (intervals[middle][0] <= time) low = middle + 1;
    else high = middle;
  }
  return low > 0 && time <= intervals[low - 1][1];
}

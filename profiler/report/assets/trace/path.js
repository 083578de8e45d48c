// The critical path of a span: the way back from its end, through the waits of its task and what ended them. The parts follow
// each other without gaps and add up to the span's duration. profiler/core/src/trace/path has the same walk for the text; a test
// compares the two.

import { formatCount } from "../shared/format.js";
import { CAUSE, CORE, REQUEST, SPAN, TASK } from "./columns.js";
import { columnsOf, firstAbove, unfold } from "./data.js";
import { exactly, item } from "./pick.js";

/** Parts that are followed, and tasks from one to the next. */
const PARTS_MAX = 20_000;
const DEPTH_MAX = 16;

/**
 * A part: start, end, what it is (`what` for a step, `topic` for a sum), kind for its colour, track and the time at which something
 * of it can be selected, `depth` tasks away from the span's own, `wait` the wait of the span's own task that it lies in.
 * @typedef {{start: number, end: number, key: string, what: string, topic: string, kind: number, track: number | null, at: number,
 *   depth: number, wait: {start: number, topic: string, kind: number} | null}} Part
 */

/** The path of a span, an item of a track of spans. @returns {Promise<{span: any, start: number, end: number, parts: Part[], isCut: boolean}>} */
export async function pathOf(data, span) {
  const walk = new Walk(data, await data.fetchTasks());
  const columns = columnsOf(span.piece, data.types[span.track.kind]).columns;
  const task = columns[SPAN.path][span.index];
  if (task > 0) await walk.ofTask(task - 1, span.start, span.end, 0);
  else await walk.ofCores(span);
  return { span, start: span.start, end: span.end, parts: walk.parts.reverse(), isCut: walk.isCut };
}

class Walk {
  constructor(data, tasks) {
    this.data = data;
    this.tasks = tasks;
    /** From the last to the first. */
    this.parts = [];
    this.isCut = false;
    /** The wait of the span's own task that is followed. */
    this.wait = null;
  }

  /** What a task did from one moment to another, backwards. */
  async ofTask(task, start, end, depth) {
    const { data, tasks } = this;
    let now = end;
    while (now > start) {
      if (this.parts.length >= PARTS_MAX || depth > DEPTH_MAX) {
        this.isCut = true;
        this.unknown(start, now, depth);
        return;
      }
      const found = await this.before(task, now);
      if (!found || found.end < now) {
        const parent = tasks.parent[task];
        // Before it existed, what counts is the task that spawned it.
        if (parent > 0 && tasks.spawned[task] > 0 && tasks.spawned[task] - 1 >= now) {
          await this.ofTask(parent - 1, start, now, depth + 1);
          return;
        }
        const from = Math.max(found ? found.end : 0, start);
        this.unknown(from, now, depth);
        now = from;
        continue;
      }
      const from = Math.max(found.start, start);
      const label = data.kinds[found.kind].label;
      if (label === "running") this.run(found, task, from, now, depth);
      else if (label === "runnable") this.add({ ...this.of(found, from, now, depth), key: `ready ${task}`, what: `${data.taskName(tasks, task)} runnable`, topic: "runnable" });
      else await this.ofWait(found, task, from, now, depth);
      now = from;
    }
  }

  run(found, task, from, to, depth) {
    const { data, tasks } = this;
    const core = this.columns(found)[TASK.core][found.index];
    const name = core > 0 ? data.tracks[core - 1].name : "";
    this.add({ ...this.of(found, from, to, depth), key: `run ${task} ${core}`, what: `${data.taskName(tasks, task)} running on ${name}`, topic: `${data.names[tasks.name[task]]} running` });
  }

  /** What happened while a task waited. */
  async ofWait(found, task, from, to, depth) {
    if (depth === 0) this.wait = { start: found.start, topic: found.text, kind: found.kind };
    const columns = this.columns(found);
    const cause = columns[TASK.cause][found.index];
    const waker = columns[TASK.waker][found.index];
    const by = columns[TASK.by][found.index];
    const at = found.start + unfold(columns[TASK.byTime][found.index]);
    const waiting = `${this.data.taskName(this.tasks, task)} waiting: ${found.text}`;
    const part = { ...this.of(found, from, to, depth), key: `wait ${task} ${found.start}` };
    if (cause === CAUSE.request && by > 0) await this.ofRequest(this.data.tracks[by - 1], at, from, to, depth);
    else if (cause === CAUSE.task && waker > 0 && waker - 1 !== task) await this.ofTask(waker - 1, from, to, depth + 1);
    else if (cause === CAUSE.segment) this.add({ ...part, key: `network ${by} ${found.start}`, what: `${waiting}, ended by a segment`, topic: "peer", kind: this.data.kindOf("waiting to receive"), track: by > 0 ? by - 1 : part.track, at: by > 0 ? at : part.at });
    else if (cause === CAUSE.timer) this.add({ ...part, what: `${waiting}, ended by a timer`, topic: found.text, kind: this.data.kindOf("waiting for a timer") });
    else this.add({ ...part, what: `${waiting}, ended by an unknown cause`, topic: found.text });
    if (depth === 0) this.wait = null;
  }

  /** A request is what counts since its submission; before, the task that submitted it. */
  async ofRequest(track, submitted, start, end, depth) {
    const found = await exactly(this.data, track, submitted);
    if (!found) return;
    const columns = this.columns(found);
    const submit = Math.max(start, Math.min(end, submitted));
    const [bytes, task] = [columns[REQUEST.bytes][found.index], columns[REQUEST.task][found.index]];
    const device = `${trackName(track)} ${found.text}`;
    const more = [bytes > 0 ? `, ${formatCount(bytes)} bytes` : "", task > 0 ? `, submitted by ${this.data.taskName(this.tasks, task - 1)}` : ""].join("");
    this.add({ ...this.of(found, submit, end, depth), key: `request ${track.number} ${found.start}`, what: `${device} ${columns[REQUEST.id][found.index]}${more}`, topic: device });
    if (task > 0) await this.ofTask(task - 1, start, submit, depth + 1);
    else this.unknown(start, submit, depth);
  }

  /** A span outside of tasks: it runs while a core is in it. */
  async ofCores(span) {
    const visits = await visitsOf(this.data, span);
    let now = span.end;
    for (const visit of visits.reverse()) {
      const [from, to] = [Math.max(visit.start, span.start), Math.min(visit.end, now)];
      if (from >= to) continue;
      this.unknown(to, now, 0);
      const name = visit.track.name.replace(/ active spans.*$/, "");
      this.add({ ...this.of(visit, from, to, 0), key: `core ${name}`, what: `running on ${name}`, topic: "running outside of any task", kind: this.data.kindOf("poll") });
      now = from;
    }
    this.unknown(span.start, now, 0);
  }

  /** The latest poll, delay or wait of a task that began before a moment. */
  async before(task, now) {
    const { data } = this;
    const track = data.tracks[this.tasks.track[task]];
    const level = track.levels[0];
    let place = level.pieces.length - 1;
    while (place >= 0 && level.pieces[place][3] >= now) place -= 1;
    for (; place >= 0; place -= 1) {
      const piece = columnsOf(await data.fetch(track, level, level.pieces[place]), data.types[track.kind]);
      const owner = piece.columns[TASK.task];
      let index = firstAbove(piece.start, now - 1) - 1;
      while (index >= 0 && owner[index] !== task + 1) index -= 1;
      if (index >= 0) return item(data, track, piece, place, index);
    }
    return null;
  }

  columns(found) {
    return columnsOf(found.piece, this.data.types[found.track.kind]).columns;
  }

  of(found, start, end, depth) {
    return { start, end, kind: found.kind, track: found.track.number, at: found.start, depth };
  }

  unknown(start, end, depth) {
    this.add({ start, end, key: "unknown", what: "unknown", topic: "unknown", kind: this.data.kindOf("waiting"), track: null, at: start, depth });
  }

  /** Adds a part before the others; one that is the same as the part after it makes that longer. */
  add(part) {
    if (part.start >= part.end) return;
    const after = this.parts[this.parts.length - 1];
    if (after && after.key === part.key && after.depth === part.depth && after.wait?.start === this.wait?.start) after.start = part.start;
    else this.parts.push({ ...part, wait: this.wait });
  }
}

/** When cores were in a span, in order of time. */
export async function visitsOf(data, span) {
  const found = [];
  for (const track of data.tracks) {
    const type = data.types[track.kind];
    if (type.label !== "core" || !track.name.includes(" active spans")) continue;
    const level = track.levels[0];
    for (let place = 0; place < level.pieces.length; place += 1) {
      const [, , , first, last] = level.pieces[place];
      if (last < span.start || first > span.end) continue;
      const piece = columnsOf(await data.fetch(track, level, level.pieces[place]), type);
      for (let index = Math.max(0, firstAbove(piece.end, span.start - 1)); index < piece.count && piece.start[index] <= span.end; index += 1) {
        const isIt = piece.columns[CORE.span][index] - 1 === span.track.number && piece.start[index] + unfold(piece.columns[CORE.spanTime][index]) === span.start;
        if (isIt) found.push(item(data, track, piece, place, index));
      }
    }
  }
  return found.sort((a, b) => a.start - b.start);
}

/** The name of a track without the depth of its row. */
export function trackName(track) {
  return track.name.replace(/ · depth \d+$/, "");
}

/**
 * What the parts of a path add up to: by what the span's own task did or waited for, and by the cause. The largest first.
 * @param {Part[]} parts
 */
export function breakdown(parts) {
  const [own, causes] = [new Map(), new Map()];
  let open = null;
  const close = () => {
    if (open) addPart(own, open.wait.topic, open.wait.kind, open.ns);
    open = null;
  };
  for (const part of parts) {
    const ns = part.end - part.start;
    addPart(causes, part.topic, part.kind, ns);
    // Parts of the same wait are one wait.
    if (open && part.wait?.start !== open.wait.start) close();
    if (!part.wait) addPart(own, part.topic, part.kind, ns);
    else if (open) open.ns += ns;
    else open = { wait: part.wait, ns };
  }
  close();
  const sorted = (sums) => [...sums.values()].sort((a, b) => b.ns - a.ns);
  return { own: sorted(own), causes: sorted(causes) };
}

/**
 * The parts of a path in `count` columns of equal time: for each column the share of each kind.
 * @param {{start: number, end: number, parts: {start: number, end: number, kind: number}[]}} path
 */
export function pathColumns({ start, end, parts }, count) {
  const columns = Array.from({ length: count }, () => new Map());
  const scale = count / Math.max(1, end - start);
  for (const part of parts) {
    const [from, to] = [(part.start - start) * scale, (part.end - start) * scale];
    for (let column = Math.floor(from); column < count && column < to; column += 1) {
      const shares = columns[column];
      shares.set(part.kind, (shares.get(part.kind) ?? 0) + Math.min(to, column + 1) - Math.max(from, column));
    }
  }
  return columns;
}

function addPart(sums, what, kind, ns) {
  const sum = sums.get(what) ?? { what, kind, ns: 0, count: 0, max: 0 };
  sum.ns += ns;
  sum.count += 1;
  sum.max = Math.max(sum.max, ns);
  sums.set(what, sum);
}

/** Numbers of the tracks that a path goes through, its span's included. */
export function tracksOf(path) {
  return new Set([path.span.track.number, ...path.parts.map(({ track }) => track).filter((track) => track !== null)]);
}

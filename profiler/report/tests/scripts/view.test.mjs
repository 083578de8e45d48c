import assert from "node:assert/strict";
import test from "node:test";
import { stackBoxes } from "../../assets/samples/chart.js";
import { Layout } from "../../assets/trace/layout.js";
import { breakdown, pathColumns } from "../../assets/trace/path.js";
import { Within } from "../../assets/samples/within.js";

function layout() {
  const tracks = ["core 0", "reader #7", "writer #8", "calls"].map((name, number) => ({ name, number, kind: 0, parent: number === 3 ? 2 : null, children: number === 2 ? 1 : 0, group: number === 0 ? 0 : 1 }));
  return new Layout({ tracks, groups: [{ name: "Cores", first: 0, count: 1 }, { name: "Tasks", first: 1, count: 3 }], types: [{ label: "task" }], isCounter: () => false });
}

const shown = ({ rows }) => rows.map((row) => row.track?.name ?? row.heading.name);

test("only the tracks of a path are shown, also folded, closed and filtered ones, and all come back", () => {
  const made = layout();
  const before = shown(made);
  made.fold(made.data.groups[1]);
  made.setFilter("reader");
  made.setOnly(new Set([0, 3]));
  assert.deepEqual(shown(made), ["Cores", "core 0", "Tasks", "calls"]);
  made.reveal(made.data.tracks[1]);
  assert.deepEqual(shown(made), ["Cores", "core 0", "Tasks", "reader #7", "calls"]);
  made.setOnly(null);
  made.setFilter("");
  made.fold(made.data.groups[1]);
  assert.deepEqual(shown(made), before);
});

test("a pinned track is at the top and nowhere else", () => {
  const made = layout();
  made.pin(made.data.tracks[2]);
  assert.deepEqual([made.pinnedRows.map(({ track }) => track.name), shown(made)], [["writer #8"], ["Cores", "core 0", "Tasks", "reader #7"]]);
  made.pin(made.data.tracks[2]);
  assert.equal(made.pinnedHeight, 0);
});

test("the parts of one wait are one wait of the breakdown", () => {
  const wait = { start: 10, topic: "disk 0 I/O", kind: 2 };
  const part = (start, end, topic, own) => ({ start, end, topic, kind: 1, wait: own });
  const { own, causes } = breakdown([part(0, 10, "a running", null), part(10, 30, "disk 0 flush", wait), part(30, 40, "commit running", wait), part(40, 45, "a running", null)]);
  assert.deepEqual(own.map(({ what, ns, count, max }) => [what, ns, count, max]), [["disk 0 I/O", 30, 1, 30], ["a running", 15, 2, 10]]);
  assert.deepEqual(causes.map(({ what, ns }) => [what, ns]), [["disk 0 flush", 20], ["a running", 15], ["commit running", 10]]);
});

test("the columns of a path are full, and show the shares of all that lies in them", () => {
  const parts = [{ start: 10, end: 18, kind: 1 }, { start: 18, end: 20, kind: 2 }, { start: 20, end: 42, kind: 1 }];
  const columns = pathColumns({ start: 10, end: 42, parts }, 4);
  assert.deepEqual(columns.map((shares) => [...shares]), [[[1, 1]], [[2, 0.25], [1, 0.75]], [[1, 1]], [[1, 1]]]);
  assert.deepEqual(pathColumns({ start: 5, end: 5, parts: [] }, 1), [new Map()]);
});

test("samples lie in intervals of their own track", () => {
  const tracks = [{ name: "vcpu 0" }, { name: "vcpu 1" }];
  const within = new Within("task", [[10, 20, "core 1"], [15, 30, "core 1"], [100, 110, null]], tracks);
  assert.deepEqual([[12, 1], [12, 0], [30, 1], [31, 1], [105, 0]].map(([time, track]) => within.has(time, track)), [true, false, true, false, true]);
  assert.deepEqual([within.from, within.to, within.ns], [10, 110, 30]);
  // A core without a track leaves no sample out, and says so.
  const lost = new Within("task", [[0, 5, "core 9"]], tracks);
  assert.deepEqual([lost.has(3, 0), lost.label, within.label], [true, "task, on all tracks", "task"]);
  assert.deepEqual([0, 1].map((track) => new Within("task", [[0, 5, "main"]], tracks).has(3, track)), [true, false]);
});

test("equal functions beside each other are one box of the stack chart", () => {
  const nodes = { parent: [0, 0, 1, 1], fn: [0, 1, 2, 3] };
  const functions = ["root", "main", "read", "write"].map((short) => ({ short }));
  const samples = [{ time: 0, node: 2 }, { time: 10, node: 3 }, { time: 20, node: 3 }, { time: 90, node: 2 }];
  const { boxes, depth, drawn } = stackBoxes({ samples, nodes, functions, window: [0, 100], periodNs: 10 }, 100);
  assert.deepEqual(boxes.map(({ fn, depth: level, from, to }) => [fn.short, level, from, to]), [["main", 0, 0, 50], ["read", 1, 0, 10], ["write", 1, 10, 50], ["main", 0, 90, 100], ["read", 1, 90, 100]]);
  assert.deepEqual([depth, drawn], [2, 4]);
});

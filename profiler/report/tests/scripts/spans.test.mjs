import assert from "node:assert/strict";
import test from "node:test";
import { compareValues, fieldsOf, histogram } from "../../assets/trace/spans.js";
import { addTo } from "../../assets/trace/sums.js";

test("every duration is in one bar, and the bars cover all of them", () => {
  const durations = [1_000, 1_500, 9_000, 1_000_000, 5];
  const bars = histogram(durations, 10);
  assert.equal(bars.reduce((sum, { count }) => sum + count, 0), durations.length);
  assert.ok(bars[0].from <= 5 && bars[9].to >= 999_999);
  assert.equal(histogram([7, 7, 7]).length, 1);
  assert.deepEqual(histogram([]), []);
});

test("fields sort as numbers where they are numbers", () => {
  assert.ok(compareValues("9", "10") < 0);
  assert.ok(compareValues("a", "b") < 0);
  assert.ok(compareValues(3, 2) > 0);
  assert.deepEqual([...fieldsOf("id = 4\nname = a = b\nbroken")], [["id", "4"], ["name", "a = b"]]);
});

test("a selection cuts totals and the longest, and counts marks", () => {
  const piece = { count: 4, start: [0, 10, 30, 35], end: [10, 30, 30, 100], kind: [0, 0, 1, 0], name: [1, 1, 2, 1] };
  const sums = new Map();
  addTo(sums, { number: 4, group: 0 }, piece, 20, 50);
  const [first, mark] = [...sums.values()];
  assert.deepEqual([first.count, first.ns, first.longest], [2, 25, [15, 4, 35]]);
  assert.deepEqual([mark.count, mark.ns], [1, 0]);
});

import assert from "node:assert/strict";
import test from "node:test";
import { columnsWith, compareItems, matchesText, parseQuery } from "../../assets/trace/query.js";

const request = { columns: [{ label: "ID", show: "number" }, { label: "Bytes", show: "bytes" }, { label: "Submitted by", show: "task" }, { label: "", show: "linkTime" }] };

test("a number is looked for in the columns that show numbers", () => {
  assert.deepEqual(columnsWith(parseQuery("4,096"), request), [0, 1]);
  assert.deepEqual(columnsWith(parseQuery("4096 bytes"), request), [0, 1]);
  assert.equal(parseQuery("4,096").number, 4096);
  assert.deepEqual(columnsWith(parseQuery("id = 47"), request), [0]);
  assert.deepEqual(columnsWith(parseQuery("upload"), request), []);
});

test("a field is matched as a whole, whatever its case and its quotes", () => {
  const text = "id = 470\nclient = \"10.0.2.2\"\nbytes = 47";
  assert.ok(!matchesText(parseQuery("id = 47"), text));
  assert.ok(matchesText(parseQuery("bytes=47"), text));
  assert.ok(matchesText(parseQuery("Client = 10.0.2.2"), text));
  assert.ok(matchesText(parseQuery("10.0"), text));
  assert.ok(!matchesText(parseQuery("47"), ""));
});

test("tasks have numbers, and a regex is only that", () => {
  assert.equal(parseQuery("#28").task, 28);
  assert.equal(parseQuery("/#28/").task, null);
  assert.equal(parseQuery("  "), null);
  assert.ok(parseQuery("a[").test.test("xA[x"));
});

test("matches are in order of time, then of tracks", () => {
  const one = (start, track, index) => ({ start, track: { number: track }, place: 0, index });
  const sorted = [one(5, 2, 0), one(5, 1, 9), one(1, 7, 0), one(5, 1, 3)].sort(compareItems).map(({ start, track, index }) => [start, track.number, index]);
  assert.deepEqual(sorted, [[1, 7, 0], [5, 1, 3], [5, 1, 9], [5, 2, 0]]);
});

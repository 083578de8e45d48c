import assert from "node:assert/strict";
import test from "node:test";
import { formatDuration, formatPercent, quantile } from "../../assets/shared/format.js";

test("durations have three digits, as in the text", () => {
  const shown = [0, 999, 1_000, 14_230, 999_499, 999_500, 1_250_000, 12_340_000, 301_000_000, 999_500_000, 123_456_000_000].map(formatDuration);
  assert.deepEqual(shown, ["0 ns", "999 ns", "1.00 µs", "14.2 µs", "999 µs", "1.00 ms", "1.25 ms", "12.3 ms", "301 ms", "1.00 s", "123 s"]);
  assert.equal(formatDuration(null), "-");
  // Exactly between two, the even digit.
  assert.deepEqual([5_125, 5_375, 12_250, 12_750].map(formatDuration), ["5.12 µs", "5.38 µs", "12.2 µs", "12.8 µs"]);
});

test("a quantile is the smallest value that enough others do not exceed", () => {
  const hundred = Array.from({ length: 100 }, (_, index) => index + 1);
  assert.deepEqual([50, 99, 100].map((percent) => quantile(hundred, percent)), [50, 99, 100]);
  assert.equal(quantile([7], 50), 7);
  assert.equal(quantile([1, 2], 50), 1);
  assert.equal(quantile([], 50), null);
});

test("something is never nothing, and less than all is never all", () => {
  assert.deepEqual([formatPercent(1, 10_000_000), formatPercent(9_999_999, 10_000_000), formatPercent(0, 0)], ["<0.1 %", ">99.9 %", "-"]);
});

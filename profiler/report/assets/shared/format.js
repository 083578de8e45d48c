// Numbers, shares, times and places as a person reads them. The text report has the same rules.

const grouped = new Intl.NumberFormat("en-US");

export function formatCount(value) {
  return grouped.format(value);
}

/** One digit after the point; never 0.0 % for something, never 100.0 % for less than everything. */
export function formatPercent(part, whole) {
  if (whole === 0) return "-";
  const percent = (part * 100) / whole;
  if (part > 0 && percent < 0.05) return "<0.1 %";
  if (part < whole && percent >= 99.95) return ">99.9 %";
  return `${fixed(percent, 1)} %`;
}

/** A number with some digits after the point; one exactly between two gets the even digit, as in the text. */
function fixed(value, digits) {
  const scaled = value * 10 ** digits;
  // Only eighths are exactly between two.
  if ((value * 8) % 1 !== 0 || scaled % 1 !== 0.5) return value.toFixed(digits);
  const low = Math.floor(scaled);
  return ((low % 2 === 0 ? low : low + 1) / 10 ** digits).toFixed(digits);
}

export function formatSamples(value) {
  return `${formatCount(value)} ${value === 1 ? "sample" : "samples"}`;
}

/** @type {[number, string][]} */
const TIME_UNITS = [[1e9, "s"], [1e6, "ms"], [1e3, "µs"], [1, "ns"]];

/** The unit for times up to `longestNs`, and as many digits as distinguish times `stepNs` apart. */
export function timeFormat(longestNs, stepNs) {
  const [scale, unit] = TIME_UNITS.find(([scale]) => longestNs >= scale) ?? TIME_UNITS[3];
  const digits = Math.max(0, Math.ceil(-Math.log10(stepNs / scale) - 1e-9));
  return (ns) => `${(ns / scale).toFixed(digits)} ${unit}`;
}

/** `src/iface/interface.rs:512`, or "" where nothing is known. */
export function formatPlace(location) {
  if (!location) return "";
  return location.line ? `${location.file}:${location.line}` : location.file;
}

/** The last two parts of a path: enough to recognise it. */
export function formatShortPath(path) {
  const parts = path.split("/").filter(Boolean);
  return parts.length > 2 ? `…/${parts.slice(-2).join("/")}` : path;
}

/** A duration with three digits, as the text reports have it: "14.2 µs"; "-" for one that was not measured. */
export function formatDuration(ns) {
  if (ns === null || ns === undefined) return "-";
  if (ns < 1000) return `${Math.round(ns)} ns`;
  const [value, unit] = ns < 999_500 ? [ns / 1e3, "µs"] : ns < 999_500_000 ? [ns / 1e6, "ms"] : [ns / 1e9, "s"];
  if (value < 9.995) return `${fixed(value, 2)} ${unit}`;
  if (value < 99.95) return `${fixed(value, 1)} ${unit}`;
  return `${formatCount(Math.round(value))} ${unit}`;
}

/** The smallest of some sorted numbers that at least this share of them does not exceed; null for none. */
export function quantile(sorted, percent) {
  return sorted.length === 0 ? null : sorted[Math.max(0, Math.ceil((sorted.length * percent) / 100) - 1)];
}

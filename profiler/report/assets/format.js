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
  return `${percent.toFixed(1)} %`;
}

export function formatSamples(value) {
  return `${formatCount(value)} ${value === 1 ? "sample" : "samples"}`;
}

const TIME_UNITS = [[1e9, "s"], [1e6, "ms"], [1e3, "µs"], [1, "ns"]];

/** The unit for times up to `longestNs`, and as many digits as tell times `stepNs` apart. */
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

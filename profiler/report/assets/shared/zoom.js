// A window onto a longer whole: zooming and moving it, and the steps of its axis.

/** A window of `length` from `from` on, moved so that it lies in the whole. */
export function windowFrom(from, length, whole) {
  const start = Math.max(0, Math.min(whole - length, from));
  return [start, start + length];
}

/**
 * Shows `factor` times as much, at least `shortest`, with `fixed` kept where it is.
 * @param {number[]} window
 */
export function zoomWindow([from, to], factor, fixed, shortest, whole) {
  const length = Math.max(Math.min(shortest, whole), Math.min(whole, (to - from) * factor));
  return windowFrom(fixed - ((fixed - from) / (to - from)) * length, length, whole);
}

/** 1, 2 or 5 times a power of ten, at least as much as `least`. */
export function roundStep(least) {
  const power = 10 ** Math.floor(Math.log10(Math.max(least, 1)));
  return [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= least * 0.999999);
}

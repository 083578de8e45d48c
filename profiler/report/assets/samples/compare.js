// Whether a share changed: the same test as in profiler/report/src/samples/difference.rs.

/**
 * Points are percent of each side; `noise` is what they exceed by chance once in 22 times; the verdict is "noise", "unsure" or "clear".
 * The limits are in standard errors of independent samples: see variance.rs there.
 */
export function compareShares(a, allA, b, allB, [noise, clear]) {
  if (allA === 0 || allB === 0) return { points: 0, noise: 100, verdict: "noise" };
  const difference = b / allB - a / allA;
  const common = (a + b) / (allA + allB);
  const error = Math.sqrt(common * (1 - common) * (1 / allA + 1 / allB));
  const size = Math.abs(difference);
  const verdict = size < noise * error || size === 0 ? "noise" : size < clear * error ? "unsure" : "clear";
  return { points: difference * 100, noise: noise * error * 100, verdict };
}

export const VERDICTS = { noise: "within noise", unsure: "perhaps chance", clear: "clear" };

export function formatPoints(points) {
  const text = points.toFixed(1);
  return points > 0 ? `+${text}` : text.replace("-", "−");
}

/** Red for more, blue for less, grey for noise; the strength grows with the change up to `most` points. */
export function changeColour({ points, verdict }, most, dark) {
  if (verdict === "noise") return dark ? "hsl(220 6% 30%)" : "hsl(220 10% 88%)";
  const strength = Math.min(1, Math.sqrt(Math.abs(points) / Math.max(most, 0.1)));
  const hue = points > 0 ? 8 : 214;
  if (dark) return `hsl(${hue} ${30 + 35 * strength}% ${28 + 14 * strength}%)`;
  return `hsl(${hue} ${55 + 30 * strength}% ${90 - 28 * strength}%)`;
}

// What a box of the graph is, in full.

import { formatCount, formatDuration, formatPercent, formatPlace, formatSamples } from "../shared/format.js";
import { INLINED, LAYERS } from "./profile.js";

/**
 * What there is to say about a box, as pairs of a class and a text. `all` is everything that is
 * selected, `zoomed` the box that the graph shows.
 */
export function describeBox(box, { profile, shape, all, zoomed, leavesFirst }) {
  const { fn } = box;
  const whole = box.depth >= zoomed.depth ? zoomed.total : all;
  const lines = [["tip-name", fn.name], ["tip-share", `${formatPercent(box.total, whole)}  ${formatSamples(box.total)}`]];
  if (whole !== all) lines.push(["tip-more", `${formatPercent(box.total, all)} of all that is selected`]);
  if (box.parent?.parent && box.parent.total > 0 && box.parent !== zoomed) {
    lines.push(["tip-more", `${formatPercent(box.total, box.parent.total)} of ${box.parent.fn.short}`]);
  }
  if (!leavesFirst && box.self > 0 && box.self < box.total) {
    lines.push(["tip-more", `${formatPercent(box.self, whole)}  ${formatCount(box.self)} in the function itself`]);
  }
  if (fn.kind !== "f") return lines;
  const main = shape.nodes.main[box.mainNode];
  const place = formatPlace(profile.locations[profile.nodes.location[main] - 1]);
  if (place) lines.push(["tip-place", place]);
  lines.push(["tip-more", [LAYERS[fn.layer], fn.image, INLINED[shape.nodes.inlined[box.mainNode]]].filter(Boolean).join(" · ")]);
  const apartNs = box.members.reduce((most, { node }) => Math.max(most, shape.nodes.apart[node]), 0);
  if (apartNs > 0) lines.push(["tip-more", `merged by time: sampled up to ${formatDuration(apartNs)} apart`]);
  return lines;
}

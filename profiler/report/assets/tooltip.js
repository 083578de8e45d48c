// What a box of the graph is, in full, beside the pointer or the keyboard's mark.

import { formatCount, formatPercent, formatPlace, formatSamples } from "./format.js";
import { textElement } from "./elements.js";
import { INLINED } from "./profile.js";

const MARGIN_PX = 12;

export class Tooltip {
  constructor(element) {
    this.element = element;
  }

  show(lines, x, y) {
    const { element } = this;
    element.replaceChildren(...lines.map(([className, text]) => textElement("div", className, text)));
    element.hidden = false;
    const { width, height } = element.getBoundingClientRect();
    const left = Math.max(MARGIN_PX, Math.min(x + MARGIN_PX, window.innerWidth - width - MARGIN_PX));
    const below = y + MARGIN_PX;
    const top = below + height < window.innerHeight ? below : Math.max(MARGIN_PX, y - height - MARGIN_PX);
    element.style.left = `${left}px`;
    element.style.top = `${top}px`;
  }

  hide() {
    this.element.hidden = true;
  }
}

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
  lines.push(["tip-more", [fn.image, INLINED[shape.nodes.inlined[box.mainNode]]].filter(Boolean).join(" · ")]);
  return lines;
}

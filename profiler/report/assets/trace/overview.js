// What a reader sees first: the slowest and the median span of each name, one click from their critical paths.

import { formatCount, formatDuration } from "../shared/format.js";
import { textElement } from "../shared/elements.js";

/** `go(track, start)` selects a span; `all(name)` lists all of a name. */
export function fillOverview(element, data, { go, all }) {
  if (data.story.length === 0) {
    element.replaceChildren(textElement("p", "trace-nothing", "The trace has no spans with a start and an end. Click a slice, a mark or a gap for its details; drag in the time axis to add up a range; / searches."));
    return;
  }
  const intro = textElement("p", "trace-nothing", "The slowest and the median span of each name. Each opens with its critical path: what it ran, what it waited for, and what ended each wait.");
  element.replaceChildren(intro, ...data.story.map((row) => story(data, row, go, all)));
}

function story(data, { name, count, total, slowest, median }, go, all) {
  const box = textElement("section", "story", "");
  const head = textElement("h3", "", data.names[name] || "(no name)");
  head.append(textElement("span", "part", `  ${formatDuration(total)} in total`));
  box.append(head);
  const buttons = textElement("p", "story-buttons", "");
  const add = (label, [track, start, ns]) => {
    const button = textElement("button", "", `${label} ${formatDuration(ns)}`);
    button.type = "button";
    button.title = "Show its critical path";
    button.addEventListener("click", () => go(data.tracks[track], start));
    buttons.append(button);
  };
  add("Slowest", slowest);
  add("Median", median);
  const list = textElement("button", "link", `All ${formatCount(count)}`);
  list.type = "button";
  list.addEventListener("click", () => all(name));
  buttons.append(list);
  box.append(buttons);
  return box;
}

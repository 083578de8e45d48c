// Everything about what was clicked, and how far it is from something else.

import { formatCount } from "./format.js";
import { textElement } from "./elements.js";
import { columnsOf, unfold } from "./trace_data.js";
import { sliceAt, textOf, wokenBy } from "./trace_pick.js";
import { formatMoment, formatTime } from "./trace_overlay.js";

/** Tasks that are listed for one that woke them. */
const WOKEN_MAX = 12;

export class Details {
  /** `go(lane, time)` brings a slice of a lane in sight. */
  constructor(element, data, go) {
    this.element = element;
    this.data = data;
    this.go = go;
  }

  /** Shows an item, and its distance from another one if there is one. */
  show(item, other) {
    if (!item) {
      this.element.replaceChildren(textElement("p", "trace-nothing", "Click a slice, a mark or a gap: everything about it is shown here. Shift and a click on another one measure the distance."));
      return;
    }
    const parts = [this.one(item)];
    if (other) parts.push(this.distance(item, other), this.one(other));
    this.element.replaceChildren(...parts);
  }

  one(item) {
    const { data } = this;
    const box = textElement("section", "trace-item", "");
    const isCounter = data.isCounter(item.lane);
    box.append(textElement("h3", "", isCounter ? item.lane.name : this.title(item)));
    const list = document.createElement("dl");
    const add = (label, value) => {
      list.append(textElement("dt", "", label), typeof value === "string" ? textElement("dd", "", value) : wrap(value));
    };
    if (isCounter) add("Value", formatCount(item.value));
    else if (this.title(item) !== data.kinds[item.kind].label) add("Kind", data.kinds[item.kind].label);
    add("Lane", this.link(`${data.groups[item.lane.group].name} › ${item.lane.name}`, item.lane.number, item.start));
    add(item.end > item.start ? "Begin" : "When", formatMoment(data.startNs + item.start, 1));
    if (item.end > item.start) {
      add("End", formatMoment(data.startNs + item.end, 1));
      add("Length", `${formatTime(item.end - item.start)}  (${formatCount(item.end - item.start)} ns)`);
    }
    if (!isCounter) this.columns(item, add);
    if (data.isRun(item)) this.woken(item, add);
    box.append(list);
    const text = textOf(data, item);
    if (text) box.append(textElement("pre", "trace-text", text));
    return box;
  }

  title(item) {
    return titleOf(this.data, item);
  }

  /** What its type of lane says besides. */
  columns(item, add) {
    const { data } = this;
    const type = data.types[item.lane.kind];
    const { columns } = columnsOf(item.piece, type);
    type.columns.forEach(({ label, show }, column) => {
      const value = columns[column][item.index];
      if (show === "linkTime" || value === 0) return;
      if (show === "count" || show === "number") {
        const format = show === "count" ? formatCount : String;
        add(label, value > Number.MAX_SAFE_INTEGER ? `about ${value.toExponential(6)}` : format(value));
      } else if (show === "bytes") add(label, `${formatCount(value)} bytes`);
      else if (show === "name") add(label, data.names[value]);
      else if (show === "row") add(label, this.laneLink(value - 1, item.start));
      else if (show === "link") add(label, this.laneLink(value - 1, item.start + unfold(columns[column + 1][item.index])));
      else if (show.flags) add(label, show.flags.filter((_, bit) => (value >> bit) & 1).join(", "));
    });
  }

  /** Names what is there as soon as it is known. */
  laneLink(number, time) {
    const { data } = this;
    const lane = data.lanes[number];
    const moment = formatMoment(data.startNs + time, 1e3);
    const link = this.link(`${lane.name}, ${moment}`, number, time);
    if (!data.isCounter(lane)) {
      sliceAt(data, lane, time, 1).then((item) => {
        if (item?.text) link.textContent = `${lane.name}: ${item.text}, ${moment}`;
      });
    }
    return link;
  }

  /** Whom a task has woken while it ran. */
  async woken(item, add) {
    const { found, isMore } = await wokenBy(this.data, item, WOKEN_MAX);
    found.forEach(({ lane, time }, index) => add(index === 0 ? "Wakes" : "", this.laneLink(lane.number, time)));
    if (isMore) add("", "and more");
  }

  link(text, number, time) {
    const button = textElement("button", "link", text);
    button.type = "button";
    button.addEventListener("click", () => this.go(this.data.lanes[number], time));
    return button;
  }

  distance(item, other) {
    const box = textElement("section", "trace-distance", "");
    const [first, second] = item.start <= other.start ? [item, other] : [other, item];
    box.append(textElement("h3", "", "Distance"));
    const list = document.createElement("dl");
    const add = (label, from, to) => list.append(textElement("dt", "", label), textElement("dd", "", `${formatTime(to - from)}  (${formatCount(Math.round(to - from))} ns)`));
    add("Begin to begin", first.start, second.start);
    if (first.end > first.start || second.end > second.start) {
      add("End to begin", first.end, second.start);
      add("Begin to end", first.start, second.end);
      add("End to end", first.end, second.end);
    }
    box.append(list);
    return box;
  }
}

function wrap(element) {
  const cell = document.createElement("dd");
  cell.append(element);
  return cell;
}

/** What an item is called. A task that runs has the name of the core that it runs on. */
function titleOf(data, item) {
  const { label } = data.kinds[item.kind];
  if (data.isRun(item) && item.text) return `runs on ${item.text}`;
  return item.text || label;
}

/** One line about an item, for the pointer. */
export function describeItem(data, item) {
  const lines = [["tip-name", item.value === undefined ? titleOf(data, item) : `${item.lane.name} = ${formatCount(item.value)}`]];
  if (item.value === undefined && !titleOf(data, item).startsWith(data.kinds[item.kind].label)) lines.push(["tip-more", data.kinds[item.kind].label]);
  if (item.end > item.start) lines.push(["tip-share", formatTime(item.end - item.start)]);
  return lines;
}

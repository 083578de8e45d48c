// Everything about what was clicked, and how far it is from something else.

import { formatCount, formatDuration } from "../shared/format.js";
import { textElement } from "../shared/elements.js";
import { REQUEST, SEGMENT } from "./columns.js";
import { columnsOf, unfold } from "./data.js";
import { sliceAt, textOf, wokenBy } from "./pick.js";
import { childrenOf, groupItems, requestsOf, segmentsOf } from "./inside.js";
import { trackName } from "./path.js";
import { formatMoment, formatTime } from "./overlay.js";

/** Tasks that are listed for one that woke them. */
const WOKEN_MAX = 12;
/** Rows of a list at first, and more of them with each click. */
const DETAIL_ROWS = 50;

export class Details {
  /** `go(track, time)` brings a slice of a track in sight. */
  constructor(element, data, go) {
    this.element = element;
    this.data = data;
    this.go = go;
    this.serial = 0;
  }

  /** Shows an item, and its distance from another one if there is one. */
  async show(item, other) {
    const serial = ++this.serial;
    if (!item) {
      this.element.replaceChildren(textElement("p", "trace-nothing", "Click a slice, a mark or a gap for its details. Shift and a click on another one measure the distance."));
      return;
    }
    this.tasks = await this.data.fetchTasks();
    if (serial !== this.serial) return;
    const parts = [this.one(item)];
    if (other) parts.push(this.distance(item, other), this.one(other));
    this.element.replaceChildren(...parts);
  }

  one(item) {
    const { data } = this;
    const box = textElement("section", "trace-item", "");
    const isCounter = data.isCounter(item.track);
    box.append(textElement("h3", "", isCounter ? item.track.name : titleOf(data, item)));
    const list = document.createElement("dl");
    const add = (label, value) => {
      list.append(textElement("dt", "", label), typeof value === "string" ? textElement("dd", "", value) : wrap(value));
    };
    if (isCounter) add("Value", formatCount(item.value));
    else if (titleOf(data, item) !== data.kinds[item.kind].label) add("Kind", data.kinds[item.kind].label);
    add("Track", this.link(`${data.groups[item.track.group].name} › ${item.track.name}`, item.track.number, item.start));
    add(item.end > item.start ? "Start" : "Time", formatMoment(data.startNs + item.start, 1));
    if (item.end > item.start) {
      add("End", formatMoment(data.startNs + item.end, 1));
      if (this.isMeasured(item)) add("Duration", `${formatTime(item.end - item.start)}  (${formatCount(item.end - item.start)} ns)`);
    }
    if (!isCounter) this.columns(item, add);
    if (data.isRun(item)) this.woken(item, add);
    box.append(list);
    const text = textOf(data, item);
    if (text) box.append(textElement("pre", "trace-text", text));
    if (data.isSpan(item)) this.inside(item, box);
    return box;
  }

  /** A request without a submission or completion has no latency. */
  isMeasured({ track, piece, index }) {
    const { types } = this.data;
    return types[track.kind].label !== "request" || (columnsOf(piece, types[track.kind]).columns[REQUEST.remarks][index] & 6) === 0;
  }

  /** The columns of its type of track. */
  columns(item, add) {
    const { data } = this;
    const type = data.types[item.track.kind];
    const { columns } = columnsOf(item.piece, type);
    type.columns.forEach(({ label, show }, column) => {
      const value = columns[column][item.index];
      if (show === "linkTime" || value === 0 || label === "") return;
      if (show === "count" || show === "number") {
        const format = show === "count" ? formatCount : String;
        add(label, value > Number.MAX_SAFE_INTEGER ? `about ${value.toExponential(6)}` : format(value));
      } else if (show === "bytes") add(label, `${formatCount(value)} bytes`);
      else if (show === "name") add(label, data.names[value]);
      else if (show === "task") add(label, this.taskLink(value - 1, item.start));
      else if (show === "row") add(label, this.trackLink(value - 1, item.start));
      else if (show === "link") add(label, this.trackLink(value - 1, item.start + unfold(columns[column + 1][item.index])));
      else if (show.choice) add(label, show.choice[value] ?? String(value));
      else if (show.flags) add(label, show.flags.filter((_, bit) => (value >> bit) & 1).join(", "));
    });
  }

  taskLink(task, time) {
    return this.link(this.data.taskName(this.tasks, task), this.tasks.track[task] ?? 0, time);
  }

  /** Has the name of what is there as soon as it has been read. */
  trackLink(number, time) {
    const { data } = this;
    const track = data.tracks[number];
    const moment = formatMoment(data.startNs + time, 1e3);
    const link = this.link(`${track.name}, ${moment}`, number, time);
    if (!data.isCounter(track)) {
      sliceAt(data, track, time, 1).then((item) => {
        if (item?.text) link.textContent = `${track.name}: ${item.text}, ${moment}`;
      });
    }
    return link;
  }

  /** The tasks that a task has woken while it ran. */
  async woken(item, add) {
    const { found, isMore } = await wokenBy(this.data, item, WOKEN_MAX);
    found.forEach(({ track, time }, index) => add(index === 0 ? "Wakes" : "", this.trackLink(track.number, time)));
    if (isMore) add("", "and more");
  }

  /** Child spans, requests and segments of a span. */
  async inside(span, box) {
    const { data } = this;
    const serial = this.serial;
    const place = textElement("div", "trace-inside", "");
    box.append(place);
    const [tree, requests, segments] = await Promise.all([childrenOf(data, span), requestsOf(data, span), segmentsOf(data, span)]);
    if (serial !== this.serial) return;
    place.append(this.tree(tree));
    const deviceOf = (one) => `${trackName(one.track)} ${one.text}`;
    const bytesOf = (type, column) => ({ track, piece, index }) => columnsOf(piece, data.types[track.kind]).columns[column][index];
    place.append(this.items("Requests", span, requests, deviceOf, bytesOf("request", REQUEST.bytes)));
    place.append(this.items("Segments", span, segments, (one) => one.text, bytesOf("segment", SEGMENT.bytes)));
  }

  tree({ children, count }) {
    const box = textElement("section", "inside-tree", "");
    box.append(textElement("h3", "", `Child spans (${formatCount(count)})`));
    const list = (nodes) => {
      const element = document.createElement("ul");
      for (const node of nodes) {
        const row = document.createElement("li");
        row.append(this.link(node.item.text || "span", node.item.track.number, node.item.start), textElement("span", "part", ` ${formatDuration(node.item.end - node.item.start)}`));
        if (node.children.length > 0) row.append(list(node.children));
        element.append(row);
      }
      return element;
    };
    if (children.length > 0) box.append(list(children));
    return box;
  }

  /** Items of a span: what they add up to, then one by one. */
  items(title, span, items, name, bytes) {
    const box = document.createElement("details");
    box.className = "inside-items";
    const sums = groupItems(items, name).map(({ label, count }) => `${formatCount(count)} ${label}`).join(", ");
    box.append(textElement("summary", "", `${title} (${formatCount(items.length)})${sums ? `: ${sums}` : ""}`));
    const list = document.createElement("ul");
    const more = textElement("button", "more", "");
    more.type = "button";
    let shown = 0;
    const add = () => {
      for (const one of items.slice(shown, shown + DETAIL_ROWS)) {
        const row = document.createElement("li");
        const size = bytes(one);
        const took = one.end > one.start && this.isMeasured(one) ? `, ${formatDuration(one.end - one.start)}` : "";
        row.append(this.link(name(one), one.track.number, one.start), textElement("span", "part", ` at ${formatDuration(one.start - span.start)}${took}${size > 0 ? `, ${formatCount(size)} bytes` : ""}`));
        list.append(row);
      }
      shown = Math.min(items.length, shown + DETAIL_ROWS);
      more.hidden = shown === items.length;
      more.textContent = `Show more of ${formatCount(items.length - shown)}`;
    };
    more.addEventListener("click", add);
    add();
    box.append(list, more);
    return box;
  }

  link(text, number, time) {
    const button = textElement("button", "link", text);
    button.type = "button";
    button.addEventListener("click", () => this.go(this.data.tracks[number], time));
    return button;
  }

  distance(item, other) {
    const box = textElement("section", "trace-distance", "");
    const [first, second] = item.start <= other.start ? [item, other] : [other, item];
    box.append(textElement("h3", "", "Distance"));
    const list = document.createElement("dl");
    const add = (label, from, to) => list.append(textElement("dt", "", label), textElement("dd", "", `${formatTime(to - from)}  (${formatCount(Math.round(to - from))} ns)`));
    add("Start to start", first.start, second.start);
    if (first.end > first.start || second.end > second.start) {
      add("End to start", first.end, second.start);
      add("Start to end", first.start, second.end);
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
  if (data.isRun(item) && item.text) return `running on ${item.text}`;
  return item.text || label;
}

/** One line about an item, for the pointer. */
export function describeItem(data, item) {
  const lines = [["tip-name", item.value === undefined ? titleOf(data, item) : `${item.track.name} = ${formatCount(item.value)}`]];
  if (item.value === undefined && !titleOf(data, item).startsWith(data.kinds[item.kind].label)) lines.push(["tip-more", data.kinds[item.kind].label]);
  if (item.end > item.start) lines.push(["tip-share", formatTime(item.end - item.start)]);
  return lines;
}

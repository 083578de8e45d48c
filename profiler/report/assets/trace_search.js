// Search: names that match, where they are, and the next one from here.

import { formatCount } from "./format.js";
import { textElement } from "./elements.js";
import { columnsOf } from "./trace_data.js";
import { pattern } from "./trace_layout.js";
import { formatTime } from "./trace_overlay.js";
import { item } from "./trace_pick.js";

/** Rows of the list of matches. */
const LISTED_MAX = 200;
/** Messages whose texts are looked at. */
const MESSAGES_MAX = 200_000;

export class Search {
  /** `go(item)` brings one in sight. */
  constructor(element, data, go) {
    this.element = element;
    this.data = data;
    this.go = go;
    this.matches = null;
    this.lanes = [];
  }

  /** Flags of the names that match, or null for an empty search. `/…/` is a regex, and so is anything that can be one. */
  set(query) {
    const plain = query.trim();
    this.matches = null;
    this.uses = [];
    this.serial = (this.serial ?? 0) + 1;
    if (plain === "") {
      this.element.replaceChildren(textElement("p", "trace-nothing", "Type a part of a name of a task, function, span, device or wait."));
      return;
    }
    const test = pattern(plain.length > 2 && plain.startsWith("/") && plain.endsWith("/") ? plain.slice(1, -1) : plain);
    const { data } = this;
    this.test = test;
    this.matches = Uint8Array.from(data.names, (name) => (name !== "" && test.test(name) ? 1 : 0));
    this.named = data.lanes.filter((lane) => test.test(lane.name));
    this.uses = data.uses.filter(([name]) => this.matches[name]).sort((a, b) => b[2] - a[2]);
    this.list();
    this.findMessages(this.serial);
  }

  get count() {
    return this.uses.reduce((sum, [, , count]) => sum + count, 0);
  }

  list() {
    const { data } = this;
    const rows = this.uses.slice(0, LISTED_MAX).map(([name, kind, count, ns, lanes]) => {
      const parts = [data.kinds[kind].label, `${formatCount(count)} ×`, ns > 0 ? formatTime(ns) : ""];
      return this.row(data.names[name], parts, () => this.first(name, kind, lanes));
    });
    const lanes = this.named.slice(0, LISTED_MAX).map((lane) => this.row(lane.name, ["lane", `${formatCount(lane.count)} ×`, ""], () => this.go({ lane, start: 0, end: data.durationNs, isLane: true })));
    const body = document.createElement("ul");
    body.append(...rows, ...lanes);
    const left = this.uses.length + this.named.length - rows.length - lanes.length;
    const head = textElement("p", "trace-nothing", this.uses.length + this.named.length === 0 ? "No name matches." : `${formatCount(this.count)} slices and marks with ${formatCount(this.uses.length)} names, ${formatCount(this.named.length)} lanes. n goes to the next one.${left > 0 ? ` ${formatCount(left)} names are not listed.` : ""}`);
    this.element.replaceChildren(head, body);
  }

  row(name, parts, choose) {
    const row = document.createElement("li");
    const button = textElement("button", "trace-match", "");
    button.type = "button";
    button.append(textElement("span", "name", name), ...parts.map((part) => textElement("span", "part", part)));
    button.addEventListener("click", choose);
    row.append(button);
    return row;
  }

  async first(name, kind, lanes) {
    const found = await this.from(0, 1, (piece, index) => piece.name[index] === name && piece.kind[index] === kind, lanes);
    if (found) this.go(found);
  }

  /** The next match after a time, or before it. */
  async next(time, step) {
    if (!this.matches) return null;
    const lanes = new Set();
    for (const [, , , , some] of this.uses) {
      if (some.length === 0) return this.from(time, step, (piece, index) => this.matches[piece.name[index]] === 1, []);
      some.forEach((lane) => lanes.add(lane));
    }
    return this.uses.length === 0 ? null : this.from(time, step, (piece, index) => this.matches[piece.name[index]] === 1, [...lanes]);
  }

  /** The slice nearest after (or before) a time that passes; looks at the lanes given, or at all. */
  async from(time, step, passes, lanes) {
    const { data } = this;
    const looked = lanes.length > 0 ? lanes.map((number) => data.lanes[number]) : data.lanes;
    let best = null;
    for (const lane of looked) {
      if (data.isCounter(lane) || lane.count === 0) continue;
      const level = lane.levels[0];
      const order = level.pieces.map((_, place) => place);
      if (step < 0) order.reverse();
      for (const place of order) {
        const [, , , start, end] = level.pieces[place];
        if (step > 0 ? end <= time || (best && start >= best.start) : start >= time || (best && end <= best.start)) continue;
        const piece = await data.fetch(lane, level, level.pieces[place]);
        const index = scan(piece, time, step, passes);
        if (index < 0) continue;
        const isBetter = best === null || (step > 0 ? piece.start[index] < best.start : piece.start[index] > best.start);
        if (isBetter) best = item(data, lane, piece, place, index);
        break;
      }
    }
    return best;
  }

  /** Texts of messages are looked at besides; what is found comes at the end of the list. */
  async findMessages(serial) {
    const { data, test } = this;
    let left = MESSAGES_MAX;
    const rows = [];
    for (const lane of data.lanes) {
      const type = data.types[lane.kind];
      if (!type.has_text || type.label !== "message") continue;
      for (let place = 0; place < lane.levels[0].pieces.length && left > 0 && rows.length < LISTED_MAX; place += 1) {
        const piece = await data.fetch(lane, lane.levels[0], lane.levels[0].pieces[place]);
        const { texts } = columnsOf(piece, type);
        left -= piece.count;
        texts.forEach((text, index) => {
          if (rows.length >= LISTED_MAX || !test.test(text)) return;
          const found = item(data, lane, piece, place, index);
          rows.push(this.row(text.split("\n")[0], ["message", formatTime(data.startNs + found.start), ""], () => this.go(found)));
        });
      }
    }
    if (serial === this.serial && rows.length > 0) this.element.querySelector("ul").append(...rows);
  }
}

function scan(piece, time, step, passes) {
  if (step > 0) {
    for (let index = 0; index < piece.count; index += 1) if (piece.start[index] > time && passes(piece, index)) return index;
  } else {
    for (let index = piece.count - 1; index >= 0; index -= 1) if (piece.start[index] < time && passes(piece, index)) return index;
  }
  return -1;
}

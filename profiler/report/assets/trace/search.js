// Search: what matches, where it is, and the next one from here; after the last comes the first.

import { formatCount } from "../shared/format.js";
import { textElement } from "../shared/elements.js";
import { columnsOf } from "./data.js";
import { columnsWith, compareItems, matchesText, parseQuery } from "./query.js";
import { formatTime } from "./overlay.js";
import { item } from "./pick.js";

/** Rows of the list of matches. */
const LISTED_MAX = 200;
/** Slices whose texts and numbers are compared, and matches of these that are kept. */
const SLICES_MAX = 4_000_000;
const FOUND_MAX = 20_000;
/** A search that is typed waits for the next key before it reads texts and numbers. */
const READ_DELAY_MS = 120;

export class Search {
  /** `on` holds go(item) and counted(). */
  constructor(element, data, on) {
    this.element = element;
    this.data = data;
    this.on = on;
    this.serial = 0;
    this.clear();
  }

  clear() {
    this.query = null;
    this.matches = null;
    this.uses = [];
    this.named = [];
    this.found = [];
    this.isCut = false;
    this.isReading = false;
  }

  /** Starts a search. */
  set(text) {
    const serial = ++this.serial;
    this.clear();
    this.query = parseQuery(text);
    if (!this.query) {
      this.element.replaceChildren(textElement("p", "trace-nothing", "Type a part of a name of a task, function, span, device or wait; a task's number as #28; a number as 4,096; a field as id = 47."));
      return;
    }
    const { data } = this;
    const { test } = this.query;
    this.matches = Uint8Array.from(data.names, (name) => (name !== "" && test.test(name) ? 1 : 0));
    this.named = data.tracks.filter((track) => test.test(track.name));
    this.uses = data.uses.filter(([name]) => this.matches[name]).sort((a, b) => b[2] - a[2]);
    this.isReading = true;
    this.list();
    setTimeout(() => serial === this.serial && this.read(serial), READ_DELAY_MS);
  }

  get count() {
    return this.uses.reduce((sum, [, , count]) => sum + count, 0) + this.found.length;
  }

  list() {
    const { data } = this;
    const rows = this.uses.slice(0, LISTED_MAX).map(([name, kind, count, ns, tracks]) => {
      const parts = [data.kinds[kind].label, `${formatCount(count)} ×`, ns > 0 ? formatTime(ns) : ""];
      return this.row(data.names[name], parts, () => this.first(name, kind, tracks));
    });
    const found = this.found.slice(0, LISTED_MAX).map((one) => this.row(one.label, [one.kindLabel, formatTime(data.startNs + one.start), one.end > one.start ? formatTime(one.end - one.start) : ""], () => this.on.go(one)));
    const tracks = this.named.slice(0, LISTED_MAX).map((track) => this.row(track.name, ["track", `${formatCount(track.count)} ×`, ""], () => this.on.go({ track, start: 0, end: data.durationNs, isTrack: true })));
    const body = document.createElement("ul");
    body.append(...found, ...rows, ...tracks);
    const left = this.uses.length + this.found.length + this.named.length - rows.length - found.length - tracks.length;
    const parts = [`${formatCount(this.count)} matches`];
    if (this.named.length > 0) parts.push(`${formatCount(this.named.length)} tracks`);
    if (this.isReading) parts.push("reading fields and numbers …");
    if (this.isCut) parts.push(`fields and numbers of the first ${formatCount(SLICES_MAX)} slices only`);
    if (left > 0) parts.push(`${formatCount(left)} are not listed`);
    this.element.replaceChildren(textElement("p", "trace-nothing", `${parts.join("; ")}. n goes to the next one.`), body);
    this.on.counted();
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

  async first(name, kind, tracks) {
    const found = await this.from(null, 1, (piece, index) => piece.name[index] === name && piece.kind[index] === kind, tracks);
    if (found) this.on.go(found);
  }

  /**
   * The match after an item (or before it, for a negative step), from one end of the trace for null; after the last one comes the
   * first. `isAround` is true then. Null if nothing matches.
   */
  async next(position, step) {
    if (!this.query) return null;
    const found = (await this.beyond(position, step)) ?? (position && (await this.beyond(null, step)));
    return found && { found, isAround: position !== null && Math.sign(compareItems(found, position)) !== Math.sign(step) };
  }

  async beyond(position, step) {
    const isBeyond = (one) => position === null || Math.sign(compareItems(one, position)) === Math.sign(step);
    const read = step > 0 ? this.found.find(isBeyond) : this.found.findLast(isBeyond);
    const named = await this.fromNames(position, step);
    const both = [read, named].filter(Boolean).sort((a, b) => step * compareItems(a, b));
    return both[0] ?? null;
  }

  async fromNames(position, step) {
    if (this.uses.length === 0) return null;
    const isEverywhere = this.uses.some(([, , , , tracks]) => tracks.length === 0);
    const tracks = isEverywhere ? [] : [...new Set(this.uses.flatMap(([, , , , tracks]) => tracks))];
    return this.from(position, step, (piece, index) => this.matches[piece.name[index]] === 1, tracks);
  }

  /** The slice that passes and comes first after a position (or before it), in the tracks given or in all. */
  async from(position, step, passes, tracks) {
    const { data } = this;
    const looked = tracks.length > 0 ? tracks.map((number) => data.tracks[number]) : data.tracks.filter((track) => !data.isCopy(track));
    let best = null;
    for (const track of looked) {
      if (data.isCounter(track) || track.count === 0) continue;
      const found = await this.inTrack(track, position, step, passes, best);
      if (found) best = found;
    }
    return best;
  }

  async inTrack(track, position, step, passes, best) {
    const { data } = this;
    const level = track.levels[0];
    const end = step > 0 ? level.pieces.length : -1;
    for (let place = step > 0 ? 0 : level.pieces.length - 1; place !== end; place += step) {
      const [, , , start, last] = level.pieces[place];
      if (position && (step > 0 ? last < position.start : start > position.start)) continue;
      if (best && (step > 0 ? start > best.start : last < best.start)) return null;
      const piece = await data.fetch(track, level, level.pieces[place]);
      for (let index = step > 0 ? 0 : piece.count - 1; index >= 0 && index < piece.count; index += step) {
        if (position && step * (piece.start[index] - position.start) < 0) continue;
        if (!passes(piece, index)) continue;
        const one = { track, place, index, start: piece.start[index] };
        if (position && Math.sign(compareItems(one, position)) !== Math.sign(step)) continue;
        return best && step * compareItems(one, best) >= 0 ? null : item(data, track, piece, place, index);
      }
    }
    return null;
  }

  /** Compares texts and numbers of everything; what a name has found already is not counted once more. */
  async read(serial) {
    const { data, query } = this;
    const found = [];
    if (query.task !== null) found.push(...(await this.tasks(query.task)));
    let left = SLICES_MAX;
    for (const track of data.tracks) {
      const type = data.types[track.kind];
      const columns = columnsWith(query, type);
      if ((!type.has_text && columns.length === 0) || data.isCopy(track) || data.isCounter(track)) continue;
      for (let place = 0; place < track.levels[0].pieces.length && left > 0 && found.length < FOUND_MAX; place += 1) {
        const piece = await data.fetch(track, track.levels[0], track.levels[0].pieces[place]);
        if (serial !== this.serial) return;
        left -= piece.count;
        this.readPiece(found, track, columnsOf(piece, type), place, columns);
      }
    }
    this.isReading = false;
    this.isCut = left <= 0 || found.length >= FOUND_MAX;
    this.found = found.sort(compareItems);
    this.list();
  }

  readPiece(found, track, piece, place, columns) {
    const { data, query } = this;
    const isMessage = data.types[track.kind].label === "message";
    for (let index = 0; index < piece.count; index += 1) {
      const inText = piece.texts && matchesText(query, piece.texts[index]);
      if (!inText && !columns.some((column) => piece.columns[column][index] === query.number)) continue;
      if (this.matches[piece.name[index]] === 1) continue;
      const one = item(data, track, piece, place, index);
      const first = (piece.texts?.[index] ?? "").split("\n")[0];
      const fields = inText && !isMessage ? ` (${piece.texts[index].replaceAll("\n", ", ").slice(0, 120)})` : "";
      found.push({ ...one, label: isMessage && first ? first : `${one.text || data.kinds[one.kind].label}${fields}`, kindLabel: data.kinds[one.kind].label });
    }
  }

  /** The first slice of each task with a number. */
  async tasks(number) {
    const { data } = this;
    const tasks = await data.fetchTasks();
    const found = [];
    for (let task = 0; task < tasks.count; task += 1) {
      if (tasks.number[task] !== number) continue;
      const one = await this.inTrack(data.tracks[tasks.track[task]], null, 1, (piece, index) => columnsOf(piece, data.types[data.tracks[tasks.track[task]].kind]).columns[0][index] === task + 1, null);
      if (one) found.push({ ...one, label: data.taskName(tasks, task), kindLabel: "task" });
    }
    return found;
  }
}

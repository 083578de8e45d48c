// Wires the view of a trace: timeline, what is chosen, search, panels, and the address that keeps all of it.

import { formatCount } from "./format.js";
import { textElement } from "./elements.js";
import { Tooltip } from "./tooltip.js";
import { find, helpKey, isTyping, searchKey, startTabs, startTheme } from "./page.js";
import { columnsOf, TraceData } from "./trace_data.js";
import { formatMoment, formatTime } from "./trace_overlay.js";
import { TraceTimeline } from "./trace_timeline.js";
import { neighbour, sliceAt, textOf } from "./trace_pick.js";
import { describeItem, Details } from "./trace_details.js";
import { Search } from "./trace_search.js";
import { SeriesView } from "./trace_series.js";
import { TraceTable } from "./trace_tables.js";
import { drawPath, PathView } from "./trace_paths.js";

const REACH_PX = 4;
const ADDRESS_DELAY_MS = 400;
/** Zooming to a slice leaves this much of its length at either side. */
const MARGIN = 0.2;

// What is behind us in the file is not there yet: the page of a trace alone does without, for one with samples it is
// the other tab.
const hasSamples = find("#views") !== null;
if (hasSamples && document.readyState === "loading") {
  await new Promise((resolve) => document.addEventListener("DOMContentLoaded", resolve, { once: true }));
}
const data = new TraceData(find("#trace-index").textContent, () => timeline.draw());
const tooltip = new Tooltip(find("#tooltip"));
const timeline = new TraceTimeline(find("#trace-box"), data, {
  click: clicked,
  double: doubled,
  hover: hovered,
  ruler: () => sayRuler(),
  view: viewChanged,
  drawn,
  text: (lane, { piece, index }) => (data.types[lane.kind].has_text ? columnsOf(piece, data.types[lane.kind]).texts[index].split("\n")[0] : undefined),
});
const details = new Details(find("#trace-details"), data, (lane, time) => goTo(lane, time));
const search = new Search(find("#trace-found"), data, (item) => (item.isLane ? showLane(item.lane) : choose(item, true)));
const series = new SeriesView(find("#trace-series"), data, { view: () => timeline.view, go: (from, to) => timeline.show([from, to], true) });
const paths = new PathView(find("#trace-paths"), data, {
  shown: (path, isMoved) => showPath(path, isMoved),
  go: (from, to, lane) => {
    if (lane !== null) timeline.scrollTo(data.lanes[lane]);
    timeline.show([from - (to - from) * MARGIN, to + (to - from) * MARGIN], true);
  },
  colours: () => timeline.colours,
});
timeline.paths = (pen, frame) => panel === "trace-paths" && drawPath(pen, frame, paths.path);

let panel = "trace-details";
/** Serial number of the last press or hover that has to find its slice. */
let asked = 0;

async function itemAt(x, y) {
  const row = timeline.rowAt(y);
  if (!row?.lane || x < timeline.plane.left) return null;
  const nsPerPx = (timeline.view[1] - timeline.view[0]) / timeline.plane.width;
  return sliceAt(data, row.lane, timeline.timeAt(x), nsPerPx * REACH_PX);
}

async function clicked(x, y, event) {
  const serial = ++asked;
  const item = await itemAt(x, y);
  if (serial !== asked) return;
  if (event.shiftKey && timeline.chosen && item) measure(item);
  else choose(item, false);
}

function choose(item, isMoved) {
  timeline.chosen = item;
  timeline.other = null;
  details.show(item, null);
  if (item) {
    if (isMoved) reveal(item);
    openPanel("trace-details");
    find("#trace-spoken").textContent = describeItem(data, item).map(([, text]) => text).join(", ");
  }
  timeline.draw();
  keepAddress();
}

function measure(item) {
  timeline.other = item;
  details.show(timeline.chosen, item);
  openPanel("trace-details");
  timeline.draw();
}

/** Moves so that an item is in sight, and wide enough to be seen. */
function reveal(item) {
  timeline.scrollTo(item.lane);
  const [from, to] = timeline.view;
  const length = Math.max(item.end - item.start, 1);
  const isSeen = item.start >= from && item.end <= to && length * 300 > to - from;
  if (isSeen) return;
  const shown = Math.max(Math.min(to - from, length * 60), length * 1.5, 200);
  const middle = item.start + Math.min(length, shown) / 2;
  timeline.show([middle - shown / 2, middle + shown / 2], true);
}

async function goTo(lane, time) {
  const serial = ++asked;
  const item = await sliceAt(data, lane, time, 1);
  if (serial !== asked) return;
  if (item) choose(item, true);
  else showLane(lane);
}

function showLane(lane) {
  timeline.scrollTo(lane);
}

async function doubled(x, y) {
  const item = await itemAt(x, y);
  if (item) zoomTo(item);
}

function zoomTo(item) {
  const length = Math.max(item.end - item.start, 100);
  timeline.show([item.start - length * MARGIN, item.end + length * MARGIN], true);
}

async function hovered(place) {
  const serial = ++asked;
  if (!place) {
    tooltip.hide();
    return;
  }
  const row = timeline.rowAt(place.y);
  const item = await itemAt(place.x, place.y);
  if (serial !== asked) return;
  const lines = item ? describeItem(data, item) : row?.lane ? [["tip-name", row.lane.name]] : [];
  lines.push(["tip-more", formatMoment(data.startNs + timeline.timeAt(place.x), timeline.view[1] - timeline.view[0])]);
  const text = item && !data.isCounter(item.lane) ? textOf(data, item) : "";
  if (text) lines.push(["tip-more", text.slice(0, 400)]);
  tooltip.show(lines, place.clientX, place.clientY);
}

function viewChanged() {
  const [from, to] = timeline.view;
  // What is under the pointer is something else now.
  asked += 1;
  tooltip.hide();
  const isAll = to - from >= data.durationNs;
  find("#trace-window").textContent = `${isAll ? "All of it: " : ""}${formatMoment(data.startNs + from, to - from)} – ${formatMoment(data.startNs + to, to - from)}, ${formatTime(to - from)}`;
  // In full, for whoever drives the page by a program.
  find("#trace-window").dataset.ns = timeline.view.map((time) => Math.round(time)).join("-");
  if (panel === "trace-series") series.draw();
  keepAddress();
}

function sayRuler() {
  const { ruler } = timeline;
  find("#trace-ruler").hidden = ruler === null;
  if (ruler) find("#trace-ruler output").textContent = `Ruler: ${formatTime(ruler[1] - ruler[0])} from ${formatMoment(data.startNs + ruler[0], ruler[1] - ruler[0])} on`;
  timeline.draw();
}

/** The first frame that has everything it shows is when the page is open. */
function drawn(isWhole) {
  if (!isWhole || document.documentElement.dataset.ready) return;
  document.documentElement.dataset.ready = "trace";
  performance.mark("trace-ready");
}

function showPath(path, isMoved) {
  if (isMoved) {
    const length = path.end_ns - path.start_ns;
    timeline.scrollTo(data.lanes[path.lane]);
    timeline.show([path.start_ns - length * 0.08, path.end_ns + length * 0.08], true);
  }
  timeline.draw();
}

function openPanel(name) {
  const tab = find(`#trace-tabs [aria-controls=${name}]`);
  if (tab.getAttribute("aria-selected") !== "true") tab.click();
}

function setQuery(query) {
  find("#trace-search").value = query;
  search.set(query);
  timeline.matches = search.matches;
  find("#trace-matches").textContent = search.matches ? `${formatCount(search.count)} matches` : "";
  if (search.matches) openPanel("trace-found");
  timeline.draw();
  keepAddress();
}

/** From what is chosen, or else from the middle of the view. */
async function next(step) {
  const [from, to] = timeline.view;
  const { chosen } = timeline;
  const isNear = chosen && chosen.end >= from && chosen.start <= to;
  const found = await search.next(isNear ? chosen.start : (from + to) / 2, step);
  if (found) choose(found, true);
  else if (search.matches) find("#trace-matches").textContent = step > 0 ? "no match after this" : "no match before this";
}

async function step(by) {
  if (!timeline.chosen) return;
  const found = await neighbour(data, timeline.chosen, by);
  if (found) choose(found, true);
}

function giveUp() {
  if (timeline.ruler) {
    timeline.ruler = null;
    sayRuler();
  } else if (timeline.chosen) choose(null, false);
  else if (search.matches) setQuery("");
  document.activeElement?.blur?.();
}

const KEYS = {
  w: () => timeline.zoom(1 / 1.35),
  s: () => timeline.zoom(1.35),
  "+": () => timeline.zoom(1 / 1.35),
  "=": () => timeline.zoom(1 / 1.35),
  "-": () => timeline.zoom(1.35),
  a: () => timeline.move(-0.15),
  d: () => timeline.move(0.15),
  ArrowLeft: () => timeline.move(-0.1),
  ArrowRight: () => timeline.move(0.1),
  ArrowUp: () => timeline.scroll(-60),
  ArrowDown: () => timeline.scroll(60),
  PageUp: () => timeline.scroll(-400),
  PageDown: () => timeline.scroll(400),
  0: () => timeline.show([0, data.durationNs], true),
  Home: () => timeline.show([0, timeline.view[1] - timeline.view[0]], true),
  End: () => timeline.show([data.durationNs - timeline.view[1] + timeline.view[0], data.durationNs], true),
  Backspace: () => timeline.back(),
  f: () => timeline.chosen && zoomTo(timeline.chosen),
  n: () => next(1),
  N: () => next(-1),
  "[": () => step(-1),
  "]": () => step(1),
  l: () => find("#trace-filter").focus(),
};

function keyPressed(event) {
  if (find("#trace").hidden || helpKey(event) || event.ctrlKey || event.metaKey || event.altKey) return;
  if (searchKey(event, find("#trace-search"))) return;
  if (event.key === "Escape") giveUp();
  else if (event.key === "Enter" && event.target === find("#trace-search")) {
    event.target.blur();
    next(1);
  } else if (KEYS[event.key] && !isTyping(event) && !event.target.closest("[role=tablist], select, .table")) {
    event.preventDefault();
    KEYS[event.key]();
  }
}

/** Everything that says what is shown, after the `#`. */
let addressTimer = null;
function keepAddress() {
  if (addressTimer !== null || !isStarted) return;
  addressTimer = setTimeout(() => {
    addressTimer = null;
    const { view, chosen, box, layout } = timeline;
    const parts = new URLSearchParams();
    parts.set("t", view.map((time) => Math.round(time)).join("-"));
    if (box.scrollTop > 0) parts.set("y", String(Math.round(box.scrollTop)));
    if (find("#trace-search").value) parts.set("q", find("#trace-search").value);
    if (find("#trace-filter").value) parts.set("lanes", find("#trace-filter").value);
    if (chosen) parts.set("at", `${chosen.lane.number}-${chosen.start}`);
    if (layout.folded.size > 0) parts.set("folded", [...layout.folded].join(","));
    if (panel !== "trace-details") parts.set("panel", panel);
    history.replaceState(null, "", `#${parts}`);
  }, ADDRESS_DELAY_MS);
}

/** Shows what the address says, as far as it says something that can be. */
async function readAddress() {
  const parts = new URLSearchParams(location.hash.slice(1));
  if (parts.has("folded")) {
    timeline.layout.folded = new Set(parts.get("folded").split(","));
    timeline.layout.make();
  }
  if (parts.get("lanes")) setFilter(parts.get("lanes"));
  const [from, to] = (parts.get("t") ?? "").split("-").map(Number);
  if (to > from && from >= 0) timeline.show([from, to]);
  if (parts.get("q")) setQuery(parts.get("q"));
  timeline.fit();
  timeline.box.scrollTop = Number(parts.get("y") ?? 0) || 0;
  const [lane, time] = (parts.get("at") ?? "").split("-").map(Number);
  if (data.lanes[lane] && Number.isFinite(time)) choose(await sliceAt(data, data.lanes[lane], time, 1), false);
  const named = parts.get("panel");
  if (named && [...document.querySelectorAll("#trace-tabs [role=tab]")].some((tab) => tab.getAttribute("aria-controls") === named)) openPanel(named);
}

function setFilter(text) {
  find("#trace-filter").value = text;
  timeline.layout.setFilter(text);
  find("#trace-filter").classList.toggle("active", text !== "");
  fillGroups();
  timeline.draw();
  keepAddress();
}

/** A box for each group of lanes: on it is shown. */
function fillGroups() {
  const boxes = data.groups.map((group) => {
    const label = document.createElement("label");
    const input = document.createElement("input");
    input.type = "checkbox";
    const lanes = data.lanes.slice(group.first, group.first + group.count);
    input.checked = !lanes.every((lane) => timeline.layout.hidden.has(lane.number));
    input.addEventListener("change", () => {
      for (const lane of lanes) {
        if (input.checked) timeline.layout.hidden.delete(lane.number);
        else timeline.layout.hidden.add(lane.number);
      }
      timeline.layout.make();
      timeline.draw();
    });
    label.append(input, ` ${group.name} `, textElement("span", "share", formatCount(group.count)));
    return label;
  });
  find("#trace-groups").replaceChildren(...boxes);
}

/** A tab and a panel for each table. */
function fillTables() {
  const list = find("#trace-tabs");
  data.tables.forEach((table, index) => {
    const id = `trace-table-${index}`;
    const tab = textElement("button", "", table.name);
    tab.type = "button";
    tab.setAttribute("role", "tab");
    tab.setAttribute("aria-controls", id);
    list.append(tab);
    const box = textElement("div", "trace-table", "");
    box.id = id;
    box.hidden = true;
    box.setAttribute("role", "tabpanel");
    find("#trace-panels").append(box);
    new TraceTable(box, table, data, goTo);
  });
}

function listen() {
  document.addEventListener("keydown", keyPressed);
  find("#trace-search").addEventListener("input", (event) => setQuery(event.target.value));
  find("#trace-filter").addEventListener("input", (event) => setFilter(event.target.value));
  find("#trace-all").addEventListener("click", () => timeline.show([0, data.durationNs], true));
  find("#ruler-zoom").addEventListener("click", () => timeline.show(timeline.ruler, true));
  find("#ruler-clear").addEventListener("click", () => {
    timeline.ruler = null;
    sayRuler();
  });
  find("#ruler-samples").hidden = !hasSamples;
  find("#ruler-samples").addEventListener("click", () => {
    const range = timeline.ruler.map((time) => time + data.startNs - data.shiftNs);
    showView("report");
    document.dispatchEvent(new CustomEvent("samples-range", { detail: range }));
  });
  if (!hasSamples) find("#help-button").addEventListener("click", () => find("#help").showModal());
  window.addEventListener("hashchange", readAddress);
}

/** With samples there are two views of the page. */
function showView(name) {
  find(`#views [aria-controls=${name}]`)?.click();
}

/** The other view has made its choice of colours visible at the root of the page. */
function followTheme() {
  const root = document.documentElement;
  const apply = () => {
    timeline.setDark(root.dataset.theme === "dark");
    series.draw();
    paths.draw();
  };
  new MutationObserver(apply).observe(root, { attributes: true, attributeFilter: ["data-theme"] });
  if (hasSamples) {
    root.dataset.theme ??= window.matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
    apply();
  } else {
    startTheme(apply);
  }
}

let isStarted = false;
async function start() {
  find("#trace").hidden = false;
  document.body.dataset.view = "trace";
  if (hasSamples) {
    startTabs(find("#views"), (view) => {
      document.body.dataset.view = view === "trace" ? "trace" : "samples";
      timeline.draw();
    });
  }
  fillTables();
  fillGroups();
  listen();
  details.show(null, null);
  setQuery("");
  startTabs(find("#trace-tabs"), (name) => {
    panel = name;
    if (panel === "trace-series") series.draw();
    timeline.draw();
    keepAddress();
  });
  followTheme();
  paths.choose(0, false);
  viewChanged();
  await readAddress();
  isStarted = true;
}

start();

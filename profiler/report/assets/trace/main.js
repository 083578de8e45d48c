// Wires the view of a trace: timeline, selection, critical path, search, panels, and the address that keeps all of it.

import { formatCount, formatDuration } from "../shared/format.js";
import { Tooltip } from "../shared/tooltip.js";
import { find, helpKey, isTyping, searchKey, startTabs, startTheme } from "../shared/page.js";
import { Address, onAddress, read } from "../shared/address.js";
import { columnsOf, TraceData } from "./data.js";
import { formatMoment, formatTime } from "./overlay.js";
import { TraceTimeline } from "./timeline.js";
import { exactly, sliceAt, textOf } from "./pick.js";
import { beside, causeOf, effectOf, inTrack } from "./walk.js";
import { describeItem, Details } from "./details.js";
import { Search } from "./search.js";
import { SeriesView } from "./series.js";
import { RangeSums } from "./sums.js";
import { drawPath, PathView } from "./path_view.js";
import { fillOverview } from "./overview.js";
import { SpansView } from "./spans.js";
import { samplesOf } from "./samples.js";
import { TraceAddress } from "./address.js";
import { fillGroups, fillLegend, Tables } from "./panels.js";

const REACH_PX = 4;
/** What is looked for takes at least this part of the view. */
const PART_SEEN = 40;
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
  scroll: () => address.keep(),
  view: viewChanged,
  drawn,
  text: (track, { piece, index }) => (data.types[track.kind].has_text ? columnsOf(piece, data.types[track.kind]).texts[index].split("\n")[0] : undefined),
});
const details = new Details(find("#trace-details"), data, (track, time) => goTo(track, time));
const search = new Search(find("#trace-found"), data, {
  go: (item) => (item.isTrack ? showTrack(item.track) : choose(item, true)),
  counted: () => sayMatches(""),
});
const series = new SeriesView(find("#trace-series"), data, { view: () => timeline.view, go: (from, to) => timeline.show([from, to], true), shown: () => address.keep() });
const sums = new RangeSums(find("#trace-sums"), data, { range: () => timeline.ruler ?? timeline.view, go: goTo });
const paths = new PathView(find("#trace-paths"), data, {
  shown: (path) => pathShown(path),
  go: (part) => goToPart(part),
  colours: () => timeline.colours,
});
const spans = new SpansView(find("#trace-spans"), data, (track, start) => goToSpan(track, start));
const tables = new Tables(find("#trace-tables"), data, { go: goTo, shown: () => address.keep() });
timeline.paths = (pen, frame) => drawPath(pen, frame, paths.path);

let panel = "trace-overview";
const traceAddress = new TraceAddress({ data, timeline, series, paths, tables });
const address = new Address(() => ({ ...traceAddress.texts(panel), ...shownView() }));
/** Serial number of the last press or hover that has to find its slice. */
let asked = 0;

async function itemAt(x, y) {
  const row = timeline.rowAt(y);
  if (!row?.track || x < timeline.plane.left) return null;
  const nsPerPx = (timeline.view[1] - timeline.view[0]) / timeline.plane.width;
  return sliceAt(data, row.track, timeline.timeAt(x), nsPerPx * REACH_PX);
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
  if (panel === "trace-details") find("#trace-panels").scrollTop = 0;
  note("");
  if (item) {
    if (isMoved) reveal(item);
    // A reader who walks along a path sees its steps.
    if (panel !== "trace-paths") openPanel("trace-details");
    find("#trace-spoken").textContent = describeItem(data, item).map(([, text]) => text).join(", ");
    if (data.isSpan(item)) paths.follow(item);
  }
  timeline.draw();
  address.keep();
}

function measure(item) {
  timeline.other = item;
  details.show(timeline.chosen, item);
  openPanel("trace-details");
  timeline.draw();
  address.keep();
}

/** Moves so that an item is in sight, and wide enough to be seen. */
function reveal(item) {
  timeline.scrollTo(item.track);
  timeline.box.scrollIntoView({ block: "nearest" });
  const [from, to] = timeline.view;
  const length = item.end - item.start;
  // A mark has no length: the zoom stays as it is.
  const isWide = length === 0 || length * PART_SEEN > to - from;
  if (item.start >= from && item.end <= to && isWide) return;
  const shown = length === 0 ? to - from : Math.max(Math.min(to - from, (length * PART_SEEN) / 2), length * 1.5, 200);
  const middle = item.start + Math.min(length, shown) / 2;
  timeline.show([middle - shown / 2, middle + shown / 2], true);
}

async function goTo(track, time) {
  const serial = ++asked;
  const item = await sliceAt(data, track, time, 1);
  if (serial !== asked) return;
  if (item) choose(item, true);
  else showTrack(track);
}

function showTrack(track) {
  timeline.scrollTo(track);
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
  const lines = item ? describeItem(data, item) : row?.track ? [["tip-name", row.track.name]] : [];
  lines.push(["tip-more", formatMoment(data.startNs + timeline.timeAt(place.x), timeline.view[1] - timeline.view[0])]);
  const text = item && !data.isCounter(item.track) ? textOf(data, item) : "";
  if (text) lines.push(["tip-more", text.slice(0, 400)]);
  tooltip.show(lines, place.clientX, place.clientY);
}

function viewChanged() {
  const [from, to] = timeline.view;
  // What is under the pointer is something else now.
  asked += 1;
  tooltip.hide();
  const isAll = to - from >= data.durationNs;
  find("#trace-window").textContent = `${isAll ? "Whole trace: " : ""}${formatMoment(data.startNs + from, to - from)} – ${formatMoment(data.startNs + to, to - from)}, ${formatTime(to - from)}`;
  // In full, for programs that drive the page.
  find("#trace-window").dataset.ns = timeline.view.map((time) => Math.round(time)).join("-");
  if (panel === "trace-series") series.draw();
  sums.update();
  address.keep();
}

function sayRuler() {
  const { ruler } = timeline;
  find("#trace-ruler").hidden = ruler === null;
  if (ruler) find("#trace-ruler output").textContent = `Selection: ${formatTime(ruler[1] - ruler[0])} from ${formatMoment(data.startNs + ruler[0], ruler[1] - ruler[0])} on`;
  timeline.draw();
  sums.update();
  address.keep();
}

/** The first frame that has everything it shows is when the page is open. */
function drawn(isWhole) {
  if (!isWhole || document.documentElement.dataset.ready) return;
  document.documentElement.dataset.ready = "trace";
  performance.mark("trace-ready");
}

/** Selects a span and shows its critical path. */
async function goToSpan(track, start) {
  const serial = ++asked;
  const span = await exactly(data, track, start);
  if (serial !== asked || !span) return;
  openPanel("trace-paths");
  timeline.show([span.start - (span.end - span.start) * 0.08, span.end + (span.end - span.start) * 0.08], true);
  choose(span, false);
}

function pathShown(path) {
  find("#trace-path").hidden = path === null;
  if (path) {
    find("#trace-path output").textContent = `Critical path of ${path.span.text}: ${formatDuration(path.end - path.start)}`;
    onlyPath();
    timeline.scrollTo(path.span.track);
  } else {
    onlyPath();
  }
  address.keep();
}

/** Shows only the tracks of the path if the reader wants that. */
function onlyPath() {
  const isOnly = paths.path !== null && find("#path-only").checked;
  const { layout, box } = timeline;
  if (isOnly && layout.only === null) timeline.scrollBefore = box.scrollTop;
  layout.setOnly(isOnly ? paths.tracks : null);
  timeline.fit();
  box.scrollTop = isOnly ? 0 : (timeline.scrollBefore ?? box.scrollTop);
  timeline.draw();
  address.keep();
}

/** Selects what a part of the path is about. */
async function goToPart(part) {
  const serial = ++asked;
  const track = data.tracks[part.track];
  const item = (await exactly(data, track, part.at)) ?? (await sliceAt(data, track, part.at, 1));
  if (serial !== asked || !item) return;
  choose(item, false);
  timeline.scrollTo(track);
  const [from, to] = timeline.view;
  const length = part.end - part.start;
  const isSeen = part.start >= from && part.end <= to && length * PART_SEEN > to - from;
  if (!isSeen) timeline.show([part.start - Math.max(100, length), part.end + Math.max(100, length)], true);
}

/** A sentence above the timeline. */
function note(text) {
  find("#trace-note").textContent = text;
}

function openPanel(name) {
  const tab = find(`#trace-tabs [aria-controls=${name}]`);
  if (tab.getAttribute("aria-selected") !== "true") tab.click();
}

function setQuery(query) {
  find("#trace-search").value = query;
  search.set(query);
  timeline.matches = search.uses.length > 0 ? search.matches : null;
  sayMatches("");
  if (search.query) openPanel("trace-found");
  timeline.draw();
  address.keep();
}

function sayMatches(more) {
  const { query, count, isReading } = search;
  const matches = `${formatCount(count)} ${count === 1 ? "match" : "matches"}${isReading ? " …" : ""}`;
  find("#trace-matches").textContent = query ? `${count === 0 && !isReading ? "no match" : matches}${more}` : "";
}

/** From what is selected, or else from the start of the trace; after the last match comes the first. */
async function next(step) {
  if (!search.query) return;
  const serial = ++asked;
  const result = await search.next(timeline.chosen, step);
  if (serial !== asked) return;
  if (!result) {
    sayMatches("");
    return;
  }
  choose(result.found, true);
  sayMatches(result.isAround ? (step > 0 ? ", from the start again" : ", from the end again") : "");
}

async function goOn(found) {
  const item = await found;
  if (item) choose(item, true);
}

async function toCause() {
  if (!timeline.chosen) return;
  const cause = await causeOf(data, timeline.chosen);
  if (cause) goTo(cause.track, cause.time);
  else note("The trace has no cause of this.");
}

async function toEffect() {
  if (!timeline.chosen) return;
  const effect = await effectOf(data, timeline.chosen);
  if (effect) goTo(effect.track, effect.time);
  else note("The trace has no effect of this.");
}

/** Samples of the range, of what is selected, or of the span whose path is shown. */
async function showSamples(of) {
  if (!hasSamples) {
    note("The recording has no samples.");
    return;
  }
  const detail = await samplesOf(data, of);
  if (!detail) {
    note("Select a span, a task or a range of time: its samples are shown then.");
    return;
  }
  showView("report");
  document.dispatchEvent(new CustomEvent("samples-range", { detail }));
}

/** Shows or hides the tracks below the one of what is chosen, or its own. */
function openChosen() {
  if (!timeline.chosen) return;
  const { track } = timeline.chosen;
  timeline.layout.open(track.parent === null ? track : data.tracks[track.parent]);
  viewChanged();
  timeline.draw();
}

/** Pins the track of what is selected, or gives it back. */
function pinChosen() {
  if (!timeline.chosen) return;
  timeline.layout.pin(timeline.chosen.track);
  viewChanged();
  timeline.draw();
}

function giveUp() {
  if (timeline.ruler) timeline.setRuler(null);
  else if (timeline.chosen) choose(null, false);
  else if (paths.path) paths.follow(null);
  else if (search.query) setQuery("");
  /** @type {HTMLElement} */ (document.activeElement)?.blur?.();
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
  "[": () => goOn(beside(timeline, -1)),
  "]": () => goOn(beside(timeline, 1)),
  ",": () => goOn(inTrack(timeline, -1)),
  ".": () => goOn(inTrack(timeline, 1)),
  b: () => toCause(),
  e: () => toEffect(),
  j: () => paths.walk(1),
  k: () => paths.walk(-1),
  p: () => find("#path-only").click(),
  i: () => pinChosen(),
  v: () => showSamples(timeline.ruler ? { range: timeline.ruler } : timeline.chosen),
  o: () => openChosen(),
  l: () => find("#trace-filter").focus(),
};

/** Whether what has the focus makes something of the key itself: lists of all, tabs and tables of those that move. */
function hasKeys({ key, target }) {
  if (target.closest("select") !== null) return true;
  return key.length > 1 && target.closest("[role=tablist], .table, .trace-below, [type=checkbox], button") !== null;
}

function keyPressed(event) {
  if (find("#trace").hidden || helpKey(event) || event.ctrlKey || event.metaKey || event.altKey) return;
  if (searchKey(event, find("#trace-search"))) return;
  if (event.key === "Escape") giveUp();
  else if (event.key === "Enter" && event.target === find("#trace-search")) {
    event.target.blur();
    next(1);
  } else if (KEYS[event.key] && !isTyping(event) && !hasKeys(event)) {
    event.preventDefault();
    KEYS[event.key]();
  }
}

/** Shows what the address has. */
async function readAddress(url) {
  await traceAddress.show(read(url), {
    filter: setFilter,
    query: setQuery,
    choose: (item) => choose(item, false),
    measure,
    panel: (name) => {
      if ([...document.querySelectorAll("#trace-tabs [role=tab]")].some((tab) => tab.getAttribute("aria-controls") === name)) openPanel(name);
    },
  });
}

function setFilter(text) {
  find("#trace-filter").value = text;
  timeline.layout.setFilter(text);
  find("#trace-filter").classList.toggle("active", text !== "");
  fillGroups(data, timeline.layout, tracksChanged);
  timeline.draw();
  address.keep();
}

function tracksChanged() {
  timeline.layout.make();
  timeline.draw();
  address.keep();
}

function listen() {
  document.addEventListener("keydown", keyPressed);
  find("#trace-search").addEventListener("input", (event) => setQuery(event.target.value));
  find("#trace-filter").addEventListener("input", (event) => setFilter(event.target.value));
  find("#trace-all").addEventListener("click", () => timeline.show([0, data.durationNs], true));
  find("#ruler-zoom").addEventListener("click", () => timeline.show(timeline.ruler, true));
  find("#ruler-sums").addEventListener("click", () => openPanel("trace-sums"));
  find("#ruler-clear").addEventListener("click", () => {
    timeline.setRuler(null);
  });
  for (const id of ["#ruler-samples", "#path-samples"]) find(id).hidden = !hasSamples;
  find("#ruler-samples").addEventListener("click", () => showSamples({ range: timeline.ruler }));
  find("#path-samples").addEventListener("click", () => showSamples(paths.path.span));
  find("#path-clear").addEventListener("click", () => paths.follow(null));
  find("#path-only").addEventListener("change", onlyPath);
  if (!hasSamples) find("#help-button").addEventListener("click", () => find("#help").showModal());
  onAddress((url) => {
    showNamedView(url);
    readAddress(url);
  });
}

/** The view of a page that has two, for the address. */
function shownView() {
  return hasSamples ? { show: document.body.dataset.view === "trace" ? "" : "samples" } : {};
}

/** With samples there are two views of the page. */
function showView(name) {
  find(`#views [aria-controls=${name}]`)?.click();
}

function showNamedView(url) {
  if (hasSamples) showView(read(url).get("show") === "samples" ? "report" : "trace");
}

/** The other view has made its choice of colours visible at the root of the page. */
function followTheme() {
  const root = document.documentElement;
  const apply = () => {
    timeline.setDark(root.dataset.theme === "dark");
    series.draw();
    paths.draw();
    fillLegend(data, timeline.colours);
  };
  new MutationObserver(apply).observe(root, { attributes: true, attributeFilter: ["data-theme"] });
  if (hasSamples) {
    root.dataset.theme ??= window.matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
    apply();
  } else {
    startTheme(apply);
  }
}

async function start() {
  find("#trace").hidden = false;
  document.body.dataset.view = "trace";
  if (hasSamples) {
    startTabs(find("#views"), (view) => {
      document.body.dataset.view = view === "trace" ? "trace" : "samples";
      timeline.draw();
      address.keep();
    });
  }
  fillOverview(find("#trace-overview"), data, {
    go: goToSpan,
    all: (name) => {
      openPanel("trace-spans");
      spans.choose(name);
    },
  });
  fillGroups(data, timeline.layout, tracksChanged);
  listen();
  details.show(null, null);
  setQuery("");
  startTabs(find("#trace-tabs"), (name) => {
    panel = name;
    // Another panel starts at its top.
    find("#trace-panels").scrollTop = 0;
    if (panel === "trace-series") series.draw();
    if (panel === "trace-spans") spans.open();
    sums.update();
    timeline.draw();
    address.keep();
  });
  followTheme();
  showNamedView();
  viewChanged();
  if (location.hash !== "") await readAddress();
  address.start();
}

start();

// Wires the page: one state, and functions that bring everything that depends on a part of it in line.

import { formatCount, formatDuration, formatPercent, formatSamples } from "../shared/format.js";
import { textSpan } from "../shared/elements.js";
import { activeStates, coreOf, decodeProfile, STATES, tracksLabel } from "./profile.js";
import { shapeTree } from "./shape.js";
import { hottestLines, keepMatches, keepUnder, samplesIn, sumFunctions, sumGroups, sumKept, sumLines, sumMatches, sumModes, sumSelection } from "./sums.js";
import { boxAt, CallersFirst, followPath, LeavesFirst } from "./views.js";
import { matchFunctions } from "./search.js";
import { LayerPalette, Palette } from "./colours.js";
import { FlameGraph } from "./graph.js";
import { functionColumn, imageColumn, placeColumn, samplesColumn, SortedTable } from "./table.js";
import { isChosen, subjectShareColumn, subjectColumn, subjectRows, subjects, sumTracks, textColumn } from "./processes.js";
import { CallTree } from "./calltree.js";
import { Timeline } from "./timeline.js";
import { Within } from "./within.js";
import { StackChart } from "./chart.js";
import { Tooltip } from "../shared/tooltip.js";
import { describeBox } from "./describe.js";
import { Crumbs } from "./crumbs.js";
import { HidePanel } from "./hide.js";
import { find, findInputs, helpKey, isTyping, searchKey, startTabs, startTheme } from "../shared/page.js";
import { Address, controlTexts, list, onAddress, range, read, readTexts, setControls, writeTexts } from "../shared/address.js";

/** Rows of the graph that a screen of 800 pixels has room for. */
const ROWS_IN_SIGHT = 25;

const profile = decodeProfile(find("#profile").textContent);
const state = {
  tracks: null,
  /** Tracks of the host, while the view is the guest's. */
  leftOut: null,
  states: activeStates(profile),
  range: null,
  within: null,
  hidden: null,
  recursion: "keep",
  /** Of host and guest: "guest", "host" or "merged". */
  side: "guest",
  view: "flame",
  colour: "group",
  query: "",
  selected: null,
  panel: "tree",
  dark: false,
};

const address = new Address(addressTexts);
const tooltip = new Tooltip(find("#tooltip"));
const crumbs = new Crumbs(find("#crumbs"), zoom);
const graph = new FlameGraph(find("#graph"), find("#graph canvas"), {
  zoom,
  hover: (box, x, y) => tooltip.show(describe(box), x, y),
  leave: () => tooltip.hide(),
  focus: (box, x, y) => {
    const lines = describe(box);
    tooltip.show(lines, x, y);
    find("#spoken").textContent = lines.map(([, text]) => text).join(", ");
  },
});
const tree = new CallTree(find("#tree"), profile, {
  select,
  zoom: (path) => zoom(followPath(graph.zoomed.path[0], path)),
});
const functionTable = new SortedTable(
  find("#functions"),
  [
    samplesColumn("self", "Self", "Samples in which the function itself was running"),
    samplesColumn("total", "Total", "Samples in which the function was anywhere on the stack"),
    functionColumn(),
    placeColumn("Hottest line", (row) => row.location),
    imageColumn(),
  ],
  select,
);
const lineTable = new SortedTable(
  find("#lines"),
  [
    samplesColumn("self", "Self", "Samples in which this line itself was running"),
    samplesColumn("total", "Total", "Samples in which this line was running or had called"),
    placeColumn("Line", (row) => row.location),
    functionColumn(),
    imageColumn(),
  ],
  select,
);
const timeline = new Timeline(find("#timeline"), profile, {
  tracks: (tracks) => {
    state.tracks = tracks;
    sum();
  },
  range: (range) => {
    state.range = range;
    if (range || !timeline.within) state.within = null;
    sum();
  },
  within: (within) => {
    state.within = within;
    sum();
  },
  view: () => address.keep(),
});
const hidePanel = new HidePanel(find("#hide"), profile.functions, (hidden) => {
  state.hidden = hidden;
  reshape();
});

const chart = new StackChart(find("#chart"), {
  select,
  hover: (fn, samples, x, y) => tooltip.show([["tip-name", fn.name], ["tip-share", formatSamples(samples)]], x, y),
  leave: () => tooltip.hide(),
});

/** Of a guest with processes: the tables of these and of threads, in which a row is a choice of tracks. */
const subjectTables = profile.guest ? { processes: subjectTable("processes", "Process"), threads: subjectTable("threads", "Thread") } : {};

/** The tree of functions that is selected; made anew by `reshape`. */
let shape = shapeTree(profile, state);
/** What the selection adds up to, made anew by `sum`; and what of it the zoom leaves, by `refine`. */
let sums;
let zoomed;

/** Colours keep their meaning whatever is selected: what all tracks were running decides. */
const whole = shapeTree(profile, { hidden: null, recursion: "keep", side: "merged" });
const running = sumSelection(profile, whole, { tracks: null, range: null, states: activeStates(profile) });
const groupsBy = (field) => sumGroups(profile, whole, running, (fn) => fn[field]);
/** Of host and guest the guest's come first, which the page shows first. */
const guestRunning = sumSelection(profile, shape, { tracks: null, range: null, states: activeStates(profile), leftOut: profile.hostTracks });
const paletteGroups = (field) => {
  const ofGuest = sumGroups(profile, shape, guestRunning, (fn) => fn[field]);
  const known = new Set(ofGuest.map(({ name }) => name));
  return [...ofGuest, ...groupsBy(field).filter(({ name }) => !known.has(name))];
};
const palettes = Object.fromEntries(["group", "image"].map((field) => [field, new Palette(paletteGroups(field), (fn) => fn[field])]));
palettes.mode = new LayerPalette();

function subjectTable(id, label) {
  const byThread = id === "threads";
  const columns = [
    samplesColumn("total", "Samples", "Samples that the states and the range of time leave; a choice of tracks leaves out none here"),
    subjectShareColumn("self", "User", "Share of samples in the process's own code"),
    subjectShareColumn("kernel", "Kernel", "Share of samples in the kernel"),
    textColumn("number", byThread ? "TID" : "PID", "id"),
    subjectColumn(label),
    byThread ? textColumn("owner", "Process", "owner") : textColumn("threads", "Threads", "id"),
  ];
  const table = new SortedTable(find(`#${id}`), columns, (fn) => timeline.chooseAll(fn ? [...fn.tracks] : []));
  return { table, list: subjects(profile, byThread) };
}

function describe(box) {
  return describeBox(box, { profile, shape, all: sums.all, zoomed: graph.zoomed, leavesFirst: state.view === "leaves" });
}

/** The view of host and guest has changed: with it its tree, the tracks that count, and what colours stand for. */
function chooseSide(side) {
  state.side = side;
  state.leftOut = profile.hostTracks && side === "guest" ? profile.hostTracks : null;
  state.colour = side === "guest" ? "group" : "mode";
  find("#colour").value = state.colour;
  const apart = document.querySelector("#apart");
  if (apart) /** @type {HTMLElement} */ (apart).hidden = side !== "merged";
  timeline.leaveOut(state.leftOut);
}

/** Hidden functions, the merge of recursion or the view of host and guest have changed: the tree has. */
function reshape() {
  shape = shapeTree(profile, state);
  find("#hide-button").textContent = hidePanel.count > 0 ? `Hide (${hidePanel.count})` : "Hide";
  find("#hide-button").classList.toggle("active", hidePanel.count > 0);
  sum();
}

/** Tracks, states or time have changed: everything has. */
function sum() {
  sums = sumSelection(profile, shape, state);
  sayStates();
  find("#graph").classList.toggle("empty", sums.all === 0);
  draw();
}

/** What share of the samples that are selected each state has, whether it counts or not. */
function sayStates() {
  const all = sums.byState.reduce((sum, samples) => sum + samples, 0);
  for (const input of findInputs("input[name=state]")) {
    input.parentElement.querySelector(".share").textContent = formatPercent(sums.byState[STATES.indexOf(input.value)], all);
  }
}

/** The view or its colours have changed: the graph is drawn anew, zoomed where it was. */
function draw() {
  const View = state.view === "leaves" ? LeavesFirst : CallersFirst;
  const { root } = new View(profile, shape, sums);
  const sameOrder = graph.zoomed?.view instanceof View;
  const box = sameOrder ? followPath(root, graph.zoomed.path) : root;
  const palette = palettes[state.colour];
  graph.show(box, { upwards: state.view === "flame", palette });
  crumbs.show(box);
  drawLegend(palette, state.colour === "mode" ? sumModes(profile, shape, sums) : sumGroups(profile, shape, sums, palette.groupOf));
  drawChart(palette);
  refine();
}

/** Whole stacks over time: of the track that is chosen, or that has most samples of the selection. */
function drawChart(palette) {
  const isChart = state.view === "chart" && profile.timeline.samples !== null;
  find("#chart").hidden = !isChart;
  find("#graph").hidden = isChart;
  if (!isChart) return;
  const { samples, durationNs, sliceNs, rateHz } = profile.timeline;
  const counted = (index) => state.states.has(profile.nodes.state[samples.node[index]]);
  const indices = samplesIn(profile, state).filter(counted);
  const counts = new Map();
  const core = (index) => coreOf(profile.guest, samples.track[index]);
  for (const index of indices) counts.set(core(index), (counts.get(core(index)) ?? 0) + 1);
  const track = [...counts].sort((a, b) => b[1] - a[1])[0]?.[0] ?? 0;
  const { within, range } = state;
  const window = within ? [within.from, Math.max(within.to, within.from + 1)] : range ? range.map((slice) => slice * sliceNs) : [0, durationNs];
  chart.show({
    samples: indices.filter((index) => core(index) === track).map((index) => ({ time: samples.time[index], node: shape.place[samples.node[index]] })),
    nodes: shape.nodes,
    functions: profile.functions,
    window,
    periodNs: rateHz > 0 ? 1e9 / rateHz : sliceNs,
    track: profile.tracks[track]?.label ?? "",
    fill: (fn) => palette.fill({ fn }, state.dark),
  });
}

function zoom(box) {
  graph.zoomTo(box);
  crumbs.show(box);
  tooltip.hide();
  refine();
}

/** The zoom or the search has changed: the tables have. */
function refine() {
  const box = graph.zoomed;
  zoomed = box.parent ? sumKept(shape, sums, keepUnder(shape, box)) : sums;
  const matches = matchFunctions(profile.functions, state.query);
  graph.matches = matches;
  graph.draw();
  const functions = sumFunctions(profile, shape, zoomed);
  const shown = matches ? functions.filter(({ fn }) => matches[fn.index]).length : functions.length;
  const count = `${formatCount(shown)} ${shown === 1 ? "function" : "functions"}`;
  const samples = matches ? sumMatches(shape, zoomed, matches) : 0;
  find("#matches").textContent = matches ? `${formatPercent(samples, zoomed.all)}, ${formatSamples(samples)}, in ${count}` : "";
  find("#hide-matches").hidden = !matches || shown === 0;
  find("#functions-count").textContent = matches ? `${count} of ${formatCount(functions.length)}` : count;
  sayWhole(box);
  fillPanel(functions, matches);
  address.keep();
}

/** What 100 % is: everything that passes all filters but the search. */
function sayWhole(box) {
  const chosen = STATES.filter((_, index) => state.states.has(index));
  const parts = [`100 % = ${formatCount(zoomed.all)} ${chosen.join(" + ")} samples`];
  if (state.tracks) parts.push(` of ${chosenSubject()?.label ?? tracksLabel(profile, state.tracks)}`);
  if (state.within) parts.push(`, ${state.within.label}`);
  else if (state.range) parts.push(`, ${timeline.describe(state.range)}`);
  if (box.parent) parts.push(`, in ${box.fn.short}`);
  if (profile.hostTracks) parts.push({ guest: ", guest only", host: ", host only", merged: ", host and guest merged" }[state.side]);
  find("#whole").textContent = parts.join("");
}

/** The process or thread whose tracks are chosen. */
function chosenSubject() {
  const all = Object.values(subjectTables).flatMap(({ list }) => list);
  return all.find((fn) => isChosen(fn, state.tracks)) ?? null;
}

/** The table of processes or of threads. */
function fillSubjects({ table, list }) {
  const sums = sumTracks(profile, state);
  const rows = subjectRows(profile, list, sums);
  table.selected = list.find((fn) => isChosen(fn, state.tracks)) ?? null;
  table.show(rows, sums.reduce((all, samples) => all + samples, 0));
  find("#functions-count").textContent = `${formatCount(rows.filter(({ fn }) => !fn.isEntry).length)} ${state.panel}`;
}

/** Only the panel that is shown is filled. */
function fillPanel(functions, matches) {
  if (state.panel in subjectTables) {
    fillSubjects(subjectTables[state.panel]);
    return;
  }
  const all = zoomed.all;
  if (state.panel === "tree") {
    const kept = matches ? sumKept(shape, zoomed, keepMatches(shape, matches)) : zoomed;
    const View = state.view === "leaves" ? LeavesFirst : CallersFirst;
    tree.show(new View(profile, shape, kept).root, all, matches, shape.nodes);
    return;
  }
  const lines = sumLines(profile, shape, zoomed);
  if (state.panel === "functions") {
    const rows = matches ? functions.filter(({ fn }) => matches[fn.index]) : functions;
    const hottest = hottestLines(lines);
    functionTable.show(rows.map((row) => ({ ...row, location: hottest.get(row.fn.index)?.location ?? null })), all);
  } else {
    const only = state.selected;
    const rows = lines.filter(({ fn }) => (only ? fn === only : !matches || matches[fn.index]));
    lineTable.show(rows, all);
    find("#lines-of").hidden = only === null;
    find("#lines-of span").textContent = only ? `Lines of ${only.short}` : "";
  }
}

/** Marks one function everywhere. */
function select(fn) {
  state.selected = fn;
  graph.selected = fn;
  graph.draw();
  functionTable.select(fn);
  lineTable.select(fn);
  tree.select(fn);
  if (state.panel === "lines") refine();
  address.keep();
}

function drawLegend(palette, groups) {
  const field = find("#colour option:checked").dataset.field ?? state.colour;
  const own = groups.filter((group) => palette.slot(group.name) >= 0);
  const items = own.map((group) => {
    const item = legendItem(group.name, group.samples, palette.colour(palette.slot(group.name), state.dark));
    item.title = `Find everything in ${group.name}`;
    item.addEventListener("click", () => setQuery(`${field}:${group.name}`));
    return item;
  });
  const rest = groups.filter((group) => palette.slot(group.name) < 0);
  if (rest.length > 0) {
    const samples = rest.reduce((all, group) => all + group.samples, 0);
    const item = legendItem(rest.length === 1 ? "1 other" : `${rest.length} others`, samples, palette.colour(-1, state.dark));
    item.disabled = true;
    items.push(item);
  }
  find("#legend").replaceChildren(...items);
}

function legendItem(name, samples, colour) {
  const item = document.createElement("button");
  item.type = "button";
  const swatch = textSpan("swatch", "");
  swatch.style.backgroundColor = colour;
  item.append(swatch, textSpan("label", name), textSpan("share", formatPercent(samples, sums.all)));
  return item;
}

function setQuery(query) {
  state.query = query;
  find("#search").value = query;
  refine();
}

/** Back to how the page opened, but for tracks, states, time, what is hidden, and view. */
function reset() {
  state.query = "";
  find("#search").value = "";
  tree.forget();
  select(null);
  zoom(graph.zoomed.path[0]);
}

function keyPressed(event) {
  // Another view of the page has the keys.
  if (find("#report").hidden) return;
  if (helpKey(event) || event.ctrlKey || event.metaKey || event.altKey) return;
  if (searchKey(event, find("#search"))) return;
  if (event.key === "Escape") {
    // The first Escape gives up search and zoom, the next one the range of time.
    const idle = state.query === "" && state.selected === null && !graph.zoomed.parent;
    if (idle && (state.range || state.within)) timeline.setRange(null);
    reset();
    find("#search").blur();
  } else if (event.key === "Enter" && event.target === find("#search")) {
    find("#graph canvas").focus();
  } else if (event.key === "t" && !isTyping(event)) {
    find("#timeline canvas").focus();
  }
}

function listenToTools() {
  find("#search").addEventListener("input", (event) => setQuery(event.target.value));
  find("#reset").addEventListener("click", reset);
  find("#hide-matches").addEventListener("click", () => {
    const query = state.query;
    setQuery("");
    hidePanel.hideQuery(query);
  });
  find("#lines-of button").addEventListener("click", () => select(null));
  find("#help-button").addEventListener("click", () => find("#help").showModal());
  document.addEventListener("keydown", keyPressed);
  for (const input of findInputs("input[name=side]")) {
    input.addEventListener("change", () => {
      chooseSide(input.value);
      reshape();
    });
  }
  for (const input of findInputs("input[name=view]")) {
    input.addEventListener("change", () => {
      state.view = input.value;
      draw();
    });
  }
  find("#colour").addEventListener("change", (event) => {
    state.colour = event.target.value;
    draw();
  });
  find("#recursion").addEventListener("change", (event) => {
    state.recursion = event.target.value;
    reshape();
  });
  for (const input of findInputs("input[name=state]")) {
    const index = STATES.indexOf(input.value);
    input.parentElement.hidden = index > 0 && profile.tracks.every(({ samples }) => samples[index] === 0);
    // The address names only what differs from this.
    input.defaultChecked = state.states.has(index);
    input.checked = input.defaultChecked;
    input.addEventListener("change", () => {
      if (input.checked) state.states.add(index);
      else state.states.delete(index);
      sum();
    });
  }
  // One state is no choice.
  find(".states").hidden = findInputs("input[name=state]").filter((input) => !input.parentElement.hidden).length < 2;
}

/**
 * The other view of the page has selected a range of time, a span or a task: intervals in nanoseconds of the samples' clock. A page
 * without single samples has whole slices of time only, and shows to which of them a range is rounded.
 */
function rangeChosen({ label, intervals, isRange }) {
  const { sliceNs, slices, samples } = profile.timeline;
  if (samples) {
    timeline.setWithin(new Within(label, intervals, profile.tracks, isRange));
    find("#timeline").scrollIntoView();
    return;
  }
  if (!isRange || slices < 2) {
    timeline.say(`There are too many samples to show those of ${label}: select a range.`);
    return;
  }
  const [[from, to]] = intervals;
  const first = Math.max(0, Math.min(slices - 1, Math.floor(from / sliceNs)));
  timeline.setRange([first, Math.max(first + 1, Math.min(slices, Math.ceil(to / sliceNs)))]);
  timeline.say(`${timeline.note.textContent}, rounded to slices of ${formatDuration(sliceNs)}`);
}

/** What is shown, as texts for the address. */
function addressTexts() {
  const { range, view, chosen, time } = timeline;
  return {
    ...controlTexts(),
    range: range ? range.join("-") : "",
    around: view[0] > 0 || view[1] < time.slices ? view.map(Math.round).join("-") : "",
    tracks: chosen ? [...chosen].join(".") : "",
    images: writeTexts(hidePanel.images),
    mark: state.selected ? String(state.selected.index) : "",
    zoom: graph.zoomed.path.slice(1).map(({ fn }) => fn.index).join("."),
    table: state.panel === "tree" ? "" : state.panel,
  };
}

/** Shows what the address has, as far as the page has it. */
function readAddress(url) {
  const parts = read(url);
  setControls(parts);
  hidePanel.setImages(readTexts(parts.get("images")));
  const within = (slices) => slices && slices[1] <= timeline.time.slices && slices;
  timeline.show(within(range(parts.get("around"))) || [0, timeline.time.slices]);
  timeline.chooseAll(list(parts.get("tracks")));
  const slices = within(range(parts.get("range"))) || null;
  if (slices || timeline.range) timeline.setRange(slices);
  zoom(boxAt(graph.zoomed.path[0], list(parts.get("zoom"))));
  const [mark] = list(parts.get("mark"));
  select(profile.functions[mark] ?? null);
  const table = ["functions", "lines", ...Object.keys(subjectTables)].find((name) => name === parts.get("table")) ?? "tree";
  if (table !== state.panel) find(`#${table}-tab`).click();
}

/** Towers that are higher than the graph's box open with their root in sight: callers above. */
function chooseView() {
  const depth = shape.nodes.depth.reduce((most, depth) => Math.max(most, depth), 0);
  if (depth < ROWS_IN_SIGHT) return;
  for (const input of findInputs("input[name=view]")) input.defaultChecked = input.value === "icicle";
  state.view = "icicle";
}

function start() {
  chooseView();
  find("#report").hidden = document.body.dataset.view === "trace";
  document.addEventListener("samples-range", (event) => rangeChosen(/** @type {CustomEvent} */ (event).detail));
  hidePanel.fill(groupsBy("image"), running.all);
  listenToTools();
  if (profile.hostTracks) chooseSide(findInputs("input[name=side]").find((input) => input.checked)?.value ?? "guest");
  reshape();
  startTabs(find("#panels [role=tablist]"), (panel) => {
    state.panel = panel;
    refine();
  });
  startTheme((dark) => {
    state.dark = dark;
    graph.dark = dark;
    timeline.draw();
    draw();
  });
  if (location.hash !== "") readAddress();
  address.start();
  onAddress(readAddress);
}

start();

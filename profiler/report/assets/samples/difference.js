// Wires the page of a difference: track 0 is A, track 1 is B. Shares are of each recording's samples that
// count, so neither length nor rate matters; a zoom leaves samples out and 100 % as it is.

import { formatCount, formatPercent, formatSamples } from "../shared/format.js";
import { textElement, textSpan } from "../shared/elements.js";
import { activeStates, decodeProfile, RARE_FROM, STATES } from "./profile.js";
import { shapeTree } from "./shape.js";
import { keepUnder, sumFunctions, sumKept, sumOwn, sumSelection } from "./sums.js";
import { boxAt, CallersFirst, followPath, LeavesFirst } from "./views.js";
import { matchFunctions } from "./search.js";
import { FlameGraph } from "./graph.js";
import { specialColour } from "./colours.js";
import { functionColumn, imageColumn, SortedTable } from "./table.js";
import { changeColour, compareShares, formatPoints, VERDICTS } from "./compare.js";
import { Tooltip } from "../shared/tooltip.js";
import { Crumbs } from "./crumbs.js";
import { HidePanel } from "./hide.js";
import { find, findInputs, helpKey, searchKey, startTheme } from "../shared/page.js";
import { Address, controlTexts, list, onAddress, read, readTexts, setControls, writeTexts } from "../shared/address.js";

/** The strongest colour stands for at least this change. */
const POINTS_MIN = 1;

const profile = decodeProfile(find("#profile").textContent);
const state = { states: activeStates(profile), side: "guest", width: "b", view: "flame", hidden: null, recursion: "keep", query: "", selected: null, dark: false };

/** From one recording a side it is not known how much runs of the same program differ. */
const verdicts = profile.errors.has_runs ? VERDICTS : { ...VERDICTS, clear: "beyond the error of sampling" };

let shape = shapeTree(profile, state);
/** Sums of A, of B, and of what the graph's widths stand for. */
let sides;
let widths;
/** Points that have the strongest colour. */
let most = POINTS_MIN;

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
const table = new SortedTable(
  find("#functions"),
  [
    shareColumn("selfA", "Self A", 0),
    shareColumn("selfB", "Self B", 1),
    changeColumn("selfChange", "Change", "Change of self: B minus A, in points, and what chance exceeds once in 22 times"),
    shareColumn("totalA", "Total A", 0),
    shareColumn("totalB", "Total B", 1),
    changeColumn("totalChange", "Change", "Change of total: B minus A, in points, and what chance exceeds once in 22 times"),
    functionColumn(),
    imageColumn(),
  ],
  select,
);
table.sort = { key: "selfChange", descending: true };
const hidePanel = new HidePanel(find("#hide"), profile.functions, (hidden) => {
  state.hidden = hidden;
  reshape();
});

function shareColumn(key, label, side) {
  const cell = (element, row) => (element.textContent = formatPercent(row[key], sides[side].all));
  return { key, label, className: "share-of", descending: true, value: (row) => row[key], cell };
}

/** Sorts by size, whatever the sign: what changed most comes first. */
function changeColumn(key, label, title) {
  const cell = (element, row) => {
    const { points, noise, verdict } = row[key];
    const content = textSpan(`change is-${verdict}`, "");
    const bar = textSpan(points > 0 ? "up" : "down", formatPoints(points));
    bar.style.setProperty("--share", `${Math.min(100, (Math.abs(points) * 100) / most)}%`);
    content.append(bar, textSpan("error", `± ${noise.toFixed(1)}`), textSpan("verdict", { noise: "~", unsure: "?", clear: "" }[verdict]));
    element.title = verdicts[verdict];
    element.append(content);
  };
  return { key, label, title, className: "changed", descending: true, value: (row) => Math.abs(row[key].points), cell };
}

function changeOf(box) {
  return compareShares(samplesOf(box, 0), sides[0].all, samplesOf(box, 1), sides[1].all, errorsOf(box.fn, "total"));
}

/**
 * How many errors of independent samples a change of this function's share must exceed: for noise, and to be clear.
 * @returns {[number, number]}
 */
function errorsOf(fn, kind) {
  const { errors } = profile;
  const factor = errors[kind][fn.index] ?? 1;
  return [errors.noise * factor, errors.clear * factor];
}

function samplesOf(box, side) {
  return box.parent ? box.samplesIn(sides[side]) : sides[side].all;
}

function describe(box) {
  const change = changeOf(box);
  const lines = [["tip-name", box.fn.name]];
  lines.push(["tip-share", `${formatPoints(change.points)} points ± ${change.noise.toFixed(1)}, ${verdicts[change.verdict]}`]);
  ["A", "B"].forEach((name, side) => {
    const samples = samplesOf(box, side);
    lines.push(["tip-more", `${name}  ${formatPercent(samples, sides[side].all)}  ${formatSamples(samples)}`]);
  });
  if (box.fn.kind === "f") lines.push(["tip-more", box.fn.image]);
  return lines;
}

function reshape() {
  shape = shapeTree(profile, state);
  find("#hide-button").textContent = hidePanel.count > 0 ? `Hide (${hidePanel.count})` : "Hide";
  find("#hide-button").classList.toggle("active", hidePanel.count > 0);
  sum();
}

function sum() {
  sides = [0, 1].map((track) => sumSelection(profile, shape, { tracks: new Set([track]), states: state.states, range: null, within: null }));
  const functions = rowsOf(sides);
  most = functions.reduce((size, row) => Math.max(size, Math.abs(row.selfChange.points), Math.abs(row.totalChange.points)), POINTS_MIN);
  const chosen = STATES.filter((_, index) => state.states.has(index)).join(" + ");
  find("#whole").textContent = `100 % = ${formatCount(sides[0].all)} (A) and ${formatCount(sides[1].all)} (B) ${chosen} samples`;
  sayElided(functions);
  drawScale();
  draw();
}

/** Functions with their samples in A and B, and the changes of both shares. @param {any[]} sides */
function rowsOf([a, b]) {
  const rows = new Map();
  [a, b].forEach((sums, side) => {
    for (const { fn, self, total } of sumFunctions(profile, shape, sums)) {
      const row = rows.get(fn) ?? { fn, self: 0, total: 0, selfA: 0, selfB: 0, totalA: 0, totalB: 0 };
      row[side === 0 ? "selfA" : "selfB"] = self;
      row[side === 0 ? "totalA" : "totalB"] = total;
      rows.set(fn, row);
    }
  });
  for (const row of rows.values()) {
    row.selfChange = compareShares(row.selfA, sides[0].all, row.selfB, sides[1].all, errorsOf(row.fn, "own"));
    row.totalChange = compareShares(row.totalA, sides[0].all, row.totalB, sides[1].all, errorsOf(row.fn, "total"));
    // Among equal changes the larger total change comes first.
    row.self = Math.abs(row.totalChange.points);
  }
  return [...rows.values()];
}

/** What a graph as wide as B cannot show. */
function sayElided(rows) {
  const only = rows.filter((row) => row.totalB === 0 && row.totalA > 0);
  const samples = only.reduce((all, row) => all + row.selfA, 0);
  find("#elided").hidden = only.length === 0;
  find("#elided span").textContent =
    `${formatCount(only.length)} ${only.length === 1 ? "function is" : "functions are"} only in A, with ${formatPercent(samples, sides[0].all)} of its samples.`;
}

function draw() {
  const half = ({ own, all }) => own.map((samples) => (all > 0 ? samples / all / 2 : 0));
  const [halfA, halfB] = sides.map(half);
  const both = sumOwn(shape, halfA.map((share, node) => share + halfB[node]));
  widths = { a: sides[0], b: sides[1], both }[state.width];
  const View = state.view === "leaves" ? LeavesFirst : CallersFirst;
  const { root } = new View(profile, shape, widths, both);
  const box = graph.zoomed?.view instanceof View ? followPath(root, graph.zoomed.path) : root;
  const fill = (of, dark) => (of.fn.kind === "f" || of.fn.kind === "r" ? changeColour(changeOf(of), most, dark) : specialColour(of.fn.kind, dark));
  graph.show(box, { upwards: state.view === "flame", palette: { fill } });
  find("#graph").classList.toggle("empty", widths.all === 0);
  crumbs.show(box);
  refine();
}

function zoom(box) {
  graph.zoomTo(box);
  crumbs.show(box);
  tooltip.hide();
  refine();
}

function refine() {
  const box = graph.zoomed;
  const kept = box.parent ? sides.map((sums) => sumKept(shape, sums, keepUnder(shape, box))) : sides;
  const matches = matchFunctions(profile.functions, state.query);
  graph.matches = matches;
  graph.draw();
  const all = rowsOf(kept);
  const rows = matches ? all.filter(({ fn }) => matches[fn.index]) : all;
  table.show(rows, 0);
  const clear = rows.filter((row) => row.selfChange.verdict === "clear").length;
  const counted = `${formatCount(rows.length)} ${rows.length === 1 ? "function" : "functions"}`;
  find("#functions-count").textContent = `${counted}, ${formatCount(clear)} with a change of self that is ${verdicts.clear}`;
  find("#matches").textContent = matches ? counted : "";
  address.keep();
}

function select(fn) {
  state.selected = fn;
  graph.selected = fn;
  graph.draw();
  table.select(fn);
  address.keep();
}

/** What the colours stand for. */
function drawScale() {
  const swatch = (points, verdict, text) => {
    const item = textElement("span", "swatch-item", "");
    const colour = textSpan("swatch", "");
    colour.style.backgroundColor = changeColour({ points, verdict }, most, state.dark);
    item.append(colour, textSpan("label", text));
    return item;
  };
  const steps = [-most, -most / 4, most / 4, most];
  const items = steps.map((points) => swatch(points, "clear", `${formatPoints(points)} points`));
  items.splice(2, 0, swatch(0, "noise", "within noise"));
  find("#legend").replaceChildren(...items);
}

function setQuery(query) {
  state.query = query;
  find("#search").value = query;
  refine();
}

function setWidth(width) {
  state.width = width;
  find(`input[name=width][value=${width}]`).checked = true;
  draw();
}

function reset() {
  setQuery("");
  select(null);
  zoom(graph.zoomed.path[0]);
}

function keyPressed(event) {
  if (helpKey(event) || event.ctrlKey || event.metaKey || event.altKey) return;
  if (searchKey(event, find("#search"))) return;
  if (event.key === "Escape") {
    reset();
    find("#search").blur();
  } else if (event.key === "Enter" && event.target === find("#search")) {
    find("#graph canvas").focus();
  }
}

/** What is shown, as texts for the address. */
function addressTexts() {
  return {
    ...controlTexts(),
    images: writeTexts(hidePanel.images),
    mark: state.selected ? String(state.selected.index) : "",
    zoom: graph.zoomed.path.slice(1).map(({ fn }) => fn.index).join("."),
  };
}

/** Shows what the address has, as far as the page has it. */
function readAddress(url) {
  const parts = read(url);
  setControls(parts);
  hidePanel.setImages(readTexts(parts.get("images")));
  zoom(boxAt(graph.zoomed.path[0], list(parts.get("zoom"))));
  select(profile.functions[list(parts.get("mark"))[0]] ?? null);
}

function start() {
  find("#report").hidden = false;
  find("#search").addEventListener("input", (event) => setQuery(event.target.value));
  find("#reset").addEventListener("click", reset);
  find("#elided button").addEventListener("click", () => setWidth("a"));
  find("#help-button").addEventListener("click", () => find("#help").showModal());
  document.addEventListener("keydown", keyPressed);
  for (const input of findInputs("input[name=width]")) input.addEventListener("change", () => setWidth(input.value));
  for (const input of findInputs("input[name=view]")) {
    input.addEventListener("change", () => {
      state.view = input.value;
      draw();
    });
  }
  for (const input of findInputs("input[name=state]")) {
    const index = STATES.indexOf(input.value);
    input.parentElement.hidden = index >= RARE_FROM && profile.tracks.every(({ samples }) => samples[index] === 0);
    // The address names only what differs from this.
    input.defaultChecked = state.states.has(index);
    input.checked = input.defaultChecked;
    input.addEventListener("change", () => {
      if (input.checked) state.states.add(index);
      else state.states.delete(index);
      sum();
    });
  }
  find("#recursion").addEventListener("change", (event) => {
    state.recursion = event.target.value;
    reshape();
  });
  sum();
  const images = new Map();
  for (const { fn, selfB } of rowsOf(sides)) images.set(fn.image, (images.get(fn.image) ?? 0) + selfB);
  hidePanel.fill([...images].map(([name, samples]) => ({ name, samples })).sort((a, b) => b.samples - a.samples), sides[1].all);
  startTheme((dark) => {
    state.dark = dark;
    graph.dark = dark;
    drawScale();
    graph.draw();
  });
  if (location.hash !== "") readAddress();
  address.start();
  onAddress(readAddress);
}

start();

// Wires the page: one state, one function that brings everything in line with it.

import { formatCount, formatPercent, formatSamples } from "./format.js";
import { textSpan } from "./elements.js";
import { decodeProfile, STATES, sumFunctions, sumGroups, sumMatches, sumNodes } from "./profile.js";
import { CallersFirst, followPath, LeavesFirst } from "./views.js";
import { matchFunctions } from "./search.js";
import { groupColour, Palette } from "./colours.js";
import { FlameGraph } from "./graph.js";
import { FunctionTable } from "./table.js";
import { TrackBars } from "./tracks.js";
import { describeBox, Tooltip } from "./tooltip.js";
import { Crumbs } from "./crumbs.js";

const find = (selector) => document.querySelector(selector);
const profile = decodeProfile(find("#profile").textContent);
const state = { tracks: null, states: new Set([0]), view: "flame", colour: "group", query: "", selected: null, dark: false };

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
const table = new FunctionTable(find("#functions"), select);
const bars = new TrackBars(find("#tracks"), profile.tracks, (tracks) => {
  state.tracks = tracks;
  sum();
});

/** Colours keep their meaning whatever is selected: what all tracks were running decides. */
const running = sumNodes(profile, { tracks: null, states: new Set([0]) });
const paletteBy = (field) => {
  const groupOf = (fn) => fn[field];
  return new Palette(sumGroups(profile, running, groupOf), groupOf);
};
const palettes = { group: paletteBy("group"), image: paletteBy("image") };

/** What the current selection adds up to; made anew by `sum`. */
let sums;
let functions;

function describe(box) {
  return describeBox(box, profile, sums.all, state.view === "leaves");
}

/** Tracks or states have changed: everything has. */
function sum() {
  sums = sumNodes(profile, state);
  functions = sumFunctions(profile, sums);
  const chosen = STATES.filter((_, index) => state.states.has(index));
  const tracks = state.tracks ? ` of ${[...state.tracks].map((track) => profile.tracks[track].name).join(", ")}` : "";
  find("#whole").textContent = `100 % = ${formatCount(sums.all)} ${chosen.join(" + ")} samples${tracks}`;
  find("#graph").classList.toggle("empty", sums.all === 0);
  draw();
}

/** The view or its colours have changed: the graph is drawn anew, zoomed where it was. */
function draw() {
  const View = state.view === "leaves" ? LeavesFirst : CallersFirst;
  const { root } = new View(profile, sums);
  const sameOrder = graph.zoomed?.view instanceof View;
  const box = sameOrder ? followPath(root, graph.zoomed.path) : root;
  const palette = palettes[state.colour];
  graph.show(box, { upwards: state.view === "flame", palette });
  crumbs.show(box);
  drawLegend(palette, sumGroups(profile, sums, palette.groupOf));
  search();
}

function zoom(box) {
  graph.zoomTo(box);
  crumbs.show(box);
  tooltip.hide();
}

function search() {
  const matches = matchFunctions(profile.functions, state.query);
  graph.matches = matches;
  graph.draw();
  table.show(functions, sums.all, matches);
  const shown = matches ? functions.filter(({ fn }) => matches[fn.index]).length : functions.length;
  const count = `${formatCount(shown)} ${shown === 1 ? "function" : "functions"}`;
  const samples = matches ? sumMatches(profile, sums, matches) : 0;
  find("#matches").textContent = matches ? `${formatPercent(samples, sums.all)}, ${formatSamples(samples)}, in ${count}` : "";
  find("#functions-count").textContent = matches ? `${count} of ${formatCount(functions.length)}` : count;
}

/** Marks one function everywhere. */
function select(fn) {
  state.selected = fn;
  graph.selected = fn;
  graph.draw();
  table.select(fn);
}

function drawLegend(palette, groups) {
  const field = state.colour === "group" ? "crate" : "image";
  const own = groups.filter((group) => palette.slot(group.name) >= 0);
  const items = own.map((group) => {
    const item = legendItem(group.name, group.samples, palette.slot(group.name));
    item.title = `Find everything in ${group.name}`;
    item.addEventListener("click", () => setQuery(`${field}:${group.name}`));
    return item;
  });
  const rest = groups.filter((group) => palette.slot(group.name) < 0);
  if (rest.length > 0) {
    const samples = rest.reduce((all, group) => all + group.samples, 0);
    const item = legendItem(rest.length === 1 ? "1 other" : `${rest.length} others`, samples, -1);
    item.disabled = true;
    items.push(item);
  }
  find("#legend").replaceChildren(...items);
}

function legendItem(name, samples, slot) {
  const item = document.createElement("button");
  item.type = "button";
  const swatch = textSpan("swatch", "");
  swatch.style.backgroundColor = groupColour(slot, state.dark);
  item.append(swatch, textSpan("label", name), textSpan("share", formatPercent(samples, sums.all)));
  return item;
}

function setQuery(query) {
  state.query = query;
  find("#search").value = query;
  search();
}

/** Back to how the page opened, but for tracks, states and view. */
function reset() {
  setQuery("");
  select(null);
  zoom(graph.zoomed.path[0]);
}

function setDark(dark) {
  state.dark = dark;
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  find("#theme").textContent = dark ? "Light" : "Dark";
  find("#theme").setAttribute("aria-label", `Switch to ${dark ? "light" : "dark"} colours`);
  graph.dark = dark;
}

function keyPressed(event) {
  if (event.key === "/" && event.target !== find("#search")) {
    event.preventDefault();
    find("#search").focus();
    find("#search").select();
  } else if (event.key === "Escape") {
    reset();
    find("#search").blur();
  } else if (event.key === "Enter" && event.target === find("#search")) {
    find("#graph canvas").focus();
  }
}

function start() {
  const prefersDark = window.matchMedia("(prefers-color-scheme: dark)");
  setDark(prefersDark.matches);
  prefersDark.addEventListener("change", () => {
    setDark(prefersDark.matches);
    draw();
  });
  find("#theme").addEventListener("click", () => {
    setDark(!state.dark);
    draw();
  });
  find("#search").addEventListener("input", (event) => setQuery(event.target.value));
  find("#reset").addEventListener("click", reset);
  document.addEventListener("keydown", keyPressed);
  for (const input of document.querySelectorAll("input[name=view]")) {
    input.addEventListener("change", () => {
      state.view = input.value;
      draw();
    });
  }
  find("#colour").addEventListener("change", (event) => {
    state.colour = event.target.value;
    draw();
  });
  const everything = profile.tracks.reduce((all, track) => all + track.running + track.spinning + track.idle, 0);
  for (const input of document.querySelectorAll("input[name=state]")) {
    const index = STATES.indexOf(input.value);
    const samples = profile.tracks.reduce((all, track) => all + track[input.value], 0);
    input.parentElement.querySelector(".share").textContent = formatPercent(samples, everything);
    input.checked = state.states.has(index);
    input.addEventListener("change", () => {
      if (input.checked) state.states.add(index);
      else state.states.delete(index);
      sum();
    });
  }
  find("#report").hidden = false;
  sum();
}

start();

// The profile in the page, and sums over the tracks and states that the reader selects.
//
// Rust has already made a call tree of all samples (profiler/report/src/data.rs describes the
// columns). What is left here is adding up: its cost depends on the nodes, not on the samples.

export const STATES = ["running", "spinning", "idle"];
export const INLINED = ["", "inlined in some samples", "inlined into its caller"];

const DATA_VERSION = 1;

/** Turns the page's data into arrays by node and objects by function. */
export function decodeProfile(text) {
  const data = JSON.parse(text);
  if (data.version !== DATA_VERSION) throw new Error(`data of version ${data.version}, but this page reads ${DATA_VERSION}`);
  const string = (index) => data.strings[index];
  const locations = data.locations.file.map((file, index) => ({ file: string(file), line: data.locations.line[index] }));
  const location = (index) => (index === 0 ? null : locations[index - 1]);
  const functions = data.functions.name.map((name, index) => ({
    index,
    name: string(name),
    short: string(data.functions.short[index]),
    group: string(data.functions.group[index]),
    image: string(data.functions.image[index]),
    kind: data.functions.kind[index],
    location: location(data.functions.location[index]),
  }));

  const count = data.nodes.function.length;
  const nodes = {
    count,
    fn: Uint32Array.from(data.nodes.function),
    parent: new Uint32Array(count),
    end: new Uint32Array(count),
    state: new Uint8Array(count),
    location: (node) => location(data.nodes.location[node]),
    inlined: (node) => INLINED[data.nodes.inlined[node]],
  };
  const path = [0];
  for (let node = 1; node < count; node += 1) {
    const depth = data.nodes.depth[node];
    while (path.length > depth) nodes.end[path.pop()] = node;
    nodes.parent[node] = path[depth - 1];
    path.push(node);
    const kind = functions[nodes.fn[node]].kind;
    nodes.state[node] = kind === "s" ? 1 : kind === "i" ? 2 : nodes.state[nodes.parent[node]];
  }
  for (const node of path) nodes.end[node] = count;

  const tracks = data.tracks.map((track) => {
    let node = 0;
    return { ...track, name: string(track.name), node: Uint32Array.from(track.node, (step) => (node += step)) };
  });
  return { functions, nodes, tracks, merged: data.merged };
}

/**
 * Adds up what the selection includes: `tracks` is a set of indices or null for all, `states` a set
 * of indices into STATES. `self` and `total` are by node; `all` is their common 100 %.
 */
export function sumNodes(profile, selection) {
  const { nodes, tracks } = profile;
  const self = new Float64Array(nodes.count);
  const total = new Float64Array(nodes.count);
  tracks.forEach((track, index) => {
    if (selection.tracks && !selection.tracks.has(index)) return;
    track.node.forEach((node, position) => {
      if (selection.states.has(nodes.state[node])) self[node] += track.samples[position];
    });
  });
  for (let node = nodes.count - 1; node >= 0; node -= 1) {
    total[node] += self[node];
    if (node > 0) total[nodes.parent[node]] += total[node];
  }
  return { self, total, all: total[0] };
}

/** Self and total of each function that has any; a recursive function counts once for a sample. */
export function sumFunctions(profile, sums) {
  const { nodes, functions } = profile;
  const self = new Float64Array(functions.length);
  const total = new Float64Array(functions.length);
  const open = new Uint32Array(functions.length);
  const path = [];
  for (let node = 1; node < nodes.count; node += 1) {
    while (path.length > 0 && nodes.end[path[path.length - 1]] <= node) open[nodes.fn[path.pop()]] -= 1;
    const fn = nodes.fn[node];
    self[fn] += sums.self[node];
    if (open[fn] === 0) total[fn] += sums.total[node];
    open[fn] += 1;
    path.push(node);
  }
  return functions
    .filter((fn) => fn.kind === "f" && total[fn.index] > 0)
    .map((fn) => ({ fn, self: self[fn.index], total: total[fn.index] }));
}

/** Samples in which at least one function on the stack is in the set (flags by function). */
export function sumMatches(profile, sums, flags) {
  const { nodes } = profile;
  let samples = 0;
  for (let node = 1; node < nodes.count; ) {
    if (flags[nodes.fn[node]]) {
      samples += sums.total[node];
      node = nodes.end[node];
    } else {
      node += 1;
    }
  }
  return samples;
}

/** Self samples of each group (crate or image), largest first: what colours stand for. */
export function sumGroups(profile, sums, groupOf) {
  const groups = new Map();
  for (let node = 1; node < profile.nodes.count; node += 1) {
    const fn = profile.functions[profile.nodes.fn[node]];
    if (sums.self[node] === 0 || fn.kind !== "f") continue;
    groups.set(groupOf(fn), (groups.get(groupOf(fn)) ?? 0) + sums.self[node]);
  }
  return [...groups].map(([name, samples]) => ({ name, samples })).sort((a, b) => b.samples - a.samples);
}

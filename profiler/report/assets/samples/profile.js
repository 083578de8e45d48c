// The profile in the page: what Rust wrote (profiler/report/src/samples/page.rs describes the columns), as
// arrays. Nodes are those of the tree by line; shape.js makes the tree of functions from it.

export const STATES = ["running", "spinning", "idle", "never started", "paused", "stolen", "in the VMM", "state unknown", "waiting"];
/** The kinds of the functions that are parents of samples in a state. */
const STATE_KINDS = "rsinptvuw";
/** States from here on are rare: they are shown where a recording has them. */
export const RARE_FROM = 3;
/** The states in which code ran, or in which threads wait in a recording of that: shares of functions are of these. */
const ACTIVE = [STATES.indexOf("running"), STATES.indexOf("in the VMM"), STATES.indexOf("waiting")];
/** Whose code a function is, in a recording of host and guest. */
export const LAYERS = ["guest user", "guest kernel", "VMM", "host kernel"];
/** Layers from here on are the host's. */
const HOST_FROM = 2;
export const INLINED = ["", "inlined in some samples", "inlined into its caller"];

const DATA_VERSION = 3;

/** Turns the page's data into arrays by node, slice and entry, and objects by function. */
export function decodeProfile(text) {
  const data = JSON.parse(text);
  if (data.version !== DATA_VERSION) throw new Error(`data of version ${data.version}, but this page reads ${DATA_VERSION}`);
  const string = (index) => data.strings[index];
  const locations = data.locations.file.map((file, index) => ({ index, file: string(file), line: data.locations.line[index] }));
  const location = (index) => (index === 0 ? null : locations[index - 1]);
  const functions = data.functions.name.map((name, index) => ({
    index,
    name: string(name),
    short: string(data.functions.short[index]),
    group: string(data.functions.group[index]),
    image: string(data.functions.image[index]),
    kind: data.functions.kind[index],
    layer: layerOf(data.host, index),
    location: location(data.functions.location[index]),
  }));
  // What a sample without segments of the host is in the view of the host only.
  if (data.host) functions.push({ index: functions.length, name: "[guest]", short: "[guest]", group: "", image: "", kind: "g", layer: null, location: null });
  const nodes = decodeNodes(data.nodes, functions);
  for (const [node, apartNs] of data.host?.apart ?? []) nodes.apart[node] = apartNs;
  const tracks = data.tracks.map((track) => ({ ...track, name: string(track.name), label: string(track.name), samples: STATES.map(() => 0) }));
  const processes = data.processes.map((process) => ({ ...process, name: `${string(process.name)} ${process.pid}`, label: string(process.label) }));
  for (const { name, tracks: threads } of processes) {
    // The only thread of a process is the process.
    for (const track of threads) tracks[track].label = threads.length > 1 ? `${name}, ${tracks[track].name} ${tracks[track].id}` : name;
  }
  const profile = { functions, locations, nodes, tracks, processes, timeline: decodeTimeline(data.timeline), merged: data.merged, errors: data.errors, hostTracks: data.host ? new Set(data.host.tracks) : null, guest: data.guest ?? null };
  countWhole(profile);
  return profile;
}

/** The states in which code ran, of which there are samples; running ones are always among them. */
export function activeStates({ tracks }) {
  return new Set(ACTIVE.filter((state) => state === 0 || tracks.some(({ samples }) => samples[state] > 0)));
}

/** An index into LAYERS, or null of what has none. */
function layerOf(host, index) {
  const letter = host?.layers[index] ?? "-";
  return letter === "-" ? null : Number(letter);
}

/** Flags the functions that are the host's. */
export function isOfHost(functions) {
  return Uint8Array.from(functions, (fn) => (fn.layer !== null && fn.layer >= HOST_FROM ? 1 : 0));
}

/** Flags the functions that are the guest's: its code, and what stands for a broken stack of it. */
export function isOfGuest(functions) {
  return Uint8Array.from(functions, (fn) => ((fn.layer !== null && fn.layer < HOST_FROM) || (fn.kind === "b" && fn.layer === null) ? 1 : 0));
}

/** Indices of the states that have a column: running, and of the others those that a sample has. */
export function commonStates({ tracks }) {
  const indices = [...STATES.keys()].slice(0, RARE_FROM);
  return indices.filter((index) => index === 0 || tracks.some(({ samples }) => samples[index] > 0));
}

/** The track that a track is a part of: of a guest with processes those of a vCPU are divided by thread. */
export function coreOf(guest, track) {
  return guest ? guest.core[track] : track;
}

/** The tracks by vCPU. */
function tracksByCore(guest, count) {
  const cores = Array.from({ length: count }, () => []);
  for (let track = 0; track < count; track += 1) cores[coreOf(guest, track)].push(track);
  return cores;
}

/** The rows of the timeline: a process with all its threads, then each thread of several; a vCPU. */
export function trackRows({ tracks, processes, hostTracks, guest }) {
  const ofProcesses = new Set(processes.flatMap((process) => process.tracks));
  const byCore = tracksByCore(guest, tracks.length);
  const ofCores = tracks.map((track, index) => ({ name: track.name, label: track.label, tracks: byCore[index] }));
  const others = ofCores.filter((_, index) => !ofProcesses.has(index) && coreOf(guest, index) === index);
  const rows = processes.flatMap((process) => {
    const threads = process.tracks.map((track) => ({ name: `${tracks[track].name} ${tracks[track].id}`, label: tracks[track].label, tracks: [track], isThread: true }));
    return [{ name: process.name, label: process.label, tracks: process.tracks }, ...(threads.length > 1 ? threads : [])];
  });
  // Of host and guest the guest's come first.
  return hostTracks ? [...others, ...rows] : [...rows, ...others];
}

/** What a choice of tracks is called: processes of which all threads are chosen, and single tracks. */
export function tracksLabel(profile, chosen) {
  const whole = profile.processes.filter((process) => process.tracks.every((track) => chosen.has(track)));
  const named = new Set(whole.flatMap((process) => process.tracks));
  const cores = trackRows(profile).filter(({ tracks }) => profile.guest && tracks.every((track) => chosen.has(track) && !named.has(track)));
  for (const { tracks } of cores) tracks.forEach((track) => named.add(track));
  const rest = [...chosen].filter((track) => !named.has(track));
  if (profile.guest) return [...whole.map((process) => process.name), ...cores.map(({ label }) => label), ...(rest.length > 0 ? ["some threads"] : [])].join(", ");
  return [...whole.map((process) => process.name), ...rest.map((track) => profile.tracks[track].label)].join(", ");
}

function decodeNodes(columns, functions) {
  const count = columns.function.length;
  const nodes = {
    count,
    fn: Uint32Array.from(columns.function),
    /** Index of a location plus 1, or 0. */
    location: Uint32Array.from(columns.location),
    inlined: Uint8Array.from(columns.inlined),
    parent: new Uint32Array(count),
    end: new Uint32Array(count),
    state: new Uint8Array(count),
    /** Of segments that were merged by time: how far from the rest they were sampled at most, in ns. */
    apart: new Float64Array(count),
    /** Samples of the whole recording, whatever is selected. */
    self: new Float64Array(count),
    total: new Float64Array(count),
  };
  const path = [0];
  for (let node = 1; node < count; node += 1) {
    const depth = columns.depth[node];
    while (path.length > depth) nodes.end[path.pop()] = node;
    nodes.parent[node] = path[depth - 1];
    path.push(node);
    const { kind } = functions[nodes.fn[node]];
    const state = STATE_KINDS.indexOf(kind);
    nodes.state[node] = state > 0 ? state : nodes.state[nodes.parent[node]];
  }
  for (const node of path) nodes.end[node] = count;
  return nodes;
}

/**
 * Reads packed numbers one after the other: seven bits a byte, the lowest first. `length` is that of the bytes.
 * @param {string} packed
 */
function readNumbers(packed) {
  const bytes = atob(packed);
  let position = 0;
  const number = () => {
    let value = 0;
    for (let scale = 1; ; scale *= 128) {
      const byte = bytes.charCodeAt(position);
      position += 1;
      value += (byte & 127) * scale;
      if (byte < 128) return value;
    }
  };
  return { length: bytes.length, number, hasMore: () => position < bytes.length };
}

/** Entries of one slice and track are a cell; cells are in order of slice and track. */
function decodeTimeline({ slice_ns: sliceNs, slices, duration_ns: durationNs, rate_hz: rateHz, cells: packed, samples: exact }) {
  const { length, number, hasMore } = readNumbers(packed);
  const entryNode = new Uint32Array(length);
  const entrySamples = new Uint32Array(length);
  const cells = { slice: [], track: [], start: [] };
  let entries = 0;
  let slice = 0;
  while (hasMore()) {
    slice += number();
    cells.slice.push(slice);
    cells.track.push(number());
    cells.start.push(entries);
    const end = entries + number();
    for (let node = 0; entries < end; entries += 1) {
      const packedNode = number();
      node += Math.floor(packedNode / 2);
      entryNode[entries] = node;
      entrySamples[entries] = packedNode % 2 === 1 ? number() + 2 : 1;
    }
  }
  cells.start.push(entries);
  for (const column of Object.keys(cells)) cells[column] = Uint32Array.from(cells[column]);
  return { sliceNs, slices, durationNs, rateHz, cells, entryNode, entrySamples, samples: decodeSamples(exact) };
}

/** Every sample by itself: time, track, node. Null if the page does not hold them. */
function decodeSamples(packed) {
  if (packed === "") return null;
  const { number, hasMore } = readNumbers(packed);
  const [times, tracks, nodes] = [[], [], []];
  let time = 0;
  while (hasMore()) {
    time += number();
    times.push(time);
    tracks.push(number());
    nodes.push(number());
  }
  return { time: Float64Array.from(times), track: Uint32Array.from(tracks), node: Uint32Array.from(nodes) };
}

/** Samples of each node and of each track in the whole recording. */
function countWhole({ nodes, tracks, timeline }) {
  const { cells, entryNode, entrySamples } = timeline;
  for (let cell = 0; cell < cells.slice.length; cell += 1) {
    const track = tracks[cells.track[cell]];
    for (let entry = cells.start[cell]; entry < cells.start[cell + 1]; entry += 1) {
      const node = entryNode[entry];
      nodes.self[node] += entrySamples[entry];
      track.samples[nodes.state[node]] += entrySamples[entry];
    }
  }
  addUp(nodes.self, nodes.total, nodes.parent);
}

/** Totals from own samples: callers come before their callees. */
export function addUp(self, total, parent) {
  total.set(self);
  for (let node = total.length - 1; node > 0; node -= 1) total[parent[node]] += total[node];
}

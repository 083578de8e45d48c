// The tree of functions that the reader selects: lines merged, and, on request, recursion merged and
// functions left out whose callees then hang below their callers. It does not depend on which
// samples count, so a selection of time or tracks costs only new sums. Of host and guest it has what the view shows.

import { isOfGuest, isOfHost } from "./profile.js";

const KIND_ORDER = "rfbsinptvwugm";

/**
 * `place` has the node of this tree for each node of the profile. `hidden` flags functions or is
 * null; `recursion` is "keep", "direct" (f called by f is f) or "all" (f called by anything below f
 * is f, and so is what lies between, where it was). `side` is "guest", "host" or "merged": it does not matter where there is no host.
 */
export function shapeTree(profile, { hidden: chosen, recursion, side }) {
  const hidden = allHidden(profile, chosen, side);
  const guests = profile.hostTracks && side === "host" ? isOfGuest(profile.functions) : null;
  const grown = grow(profile, hidden, guests, recursion);
  const order = walk(profile, grown);
  const count = order.length;
  const rank = new Uint32Array(count);
  order.forEach((node, index) => (rank[node] = index));
  const nodes = {
    count,
    fn: new Uint32Array(count),
    parent: new Uint32Array(count),
    end: new Uint32Array(count),
    depth: new Uint32Array(count),
    /** The profile's node with most samples of those that are shown as this one. */
    main: new Uint32Array(count),
    /** An index into INLINED. */
    inlined: new Uint8Array(count),
    /** Of segments that were merged by time: how far from the rest they were sampled at most, in ns. */
    apart: new Float64Array(count),
  };
  order.forEach((node, index) => {
    nodes.fn[index] = grown.fn[node];
    nodes.parent[index] = rank[grown.parent[node]];
    nodes.depth[index] = index === 0 ? 0 : nodes.depth[nodes.parent[index]] + 1;
    nodes.main[index] = grown.main[node];
    nodes.inlined[index] = grown.inlined[node];
    nodes.apart[index] = grown.apart[node];
    nodes.end[index] = index + 1;
  });
  for (let node = count - 1; node > 0; node -= 1) {
    const parent = nodes.parent[node];
    nodes.end[parent] = Math.max(nodes.end[parent], nodes.end[node]);
  }
  return { nodes, place: grown.place.map((node) => rank[node]), hidden: guests ? hidden.map((flag, fn) => flag | guests[fn]) : hidden };
}

/** Flags what the reader hides, what the view does not show, and the parents of samples in the VMM and of waiting ones: those are samples of functions. */
function allHidden({ functions, hostTracks }, chosen, side) {
  const outside = hostTracks && side === "guest" ? isOfHost(functions) : null;
  return Uint8Array.from(functions, (fn) => (chosen?.[fn.index] || outside?.[fn.index] || fn.kind === "v" || fn.kind === "w" ? 1 : 0));
}

/**
 * Nodes in the order in which they are first met: callers before callees. `guests` flags functions whose own samples are `[guest]`, while
 * their callees hang below their callers; null for none.
 */
function grow(profile, hidden, guests, recursion) {
  const { nodes, functions } = profile;
  const grown = { fn: [0], parent: [0], total: [0], main: [0], inlined: [0], apart: [0], place: new Uint32Array(nodes.count) };
  const known = new Map();
  /** The node of this tree below which callees of a node of the profile hang. */
  const under = new Uint32Array(nodes.count);
  const guestBox = functions.length - 1;
  const nodeOf = (caller, fn, node) => {
    const key = caller * functions.length + fn;
    if (known.has(key)) return known.get(key);
    const place = grown.fn.length;
    known.set(key, place);
    grown.fn.push(fn);
    grown.parent.push(caller);
    grown.total.push(0);
    grown.main.push(node);
    grown.inlined.push(nodes.inlined[node]);
    grown.apart.push(0);
    return place;
  };
  // The innermost node of each function on the way to the node at hand, and how to restore it.
  const onPath = new Int32Array(functions.length).fill(-1);
  const path = [];
  for (let node = 1; node < nodes.count; node += 1) {
    while (path.length > 0 && path[path.length - 1].end <= node) {
      const { fn, before } = path.pop();
      onPath[fn] = before;
    }
    const caller = under[nodes.parent[node]];
    const fn = nodes.fn[node];
    if (guests?.[fn]) {
      under[node] = caller;
      grown.place[node] = nodes.self[node] > 0 ? nodeOf(caller, guestBox, node) : caller;
      if (nodes.self[node] > 0) grown.total[grown.place[node]] += nodes.self[node];
      continue;
    }
    let place = null;
    if (hidden[fn]) place = caller;
    else if (recursion === "direct" && grown.fn[caller] === fn) place = caller;
    else if (recursion === "all" && onPath[fn] >= 0) place = onPath[fn];
    const own = place === null;
    if (own) {
      place = nodeOf(caller, fn, node);
      grown.total[place] += nodes.total[node];
      if (nodes.total[node] > nodes.total[grown.main[place]]) grown.main[place] = node;
      if (grown.inlined[place] !== nodes.inlined[node]) grown.inlined[place] = 1;
      grown.apart[place] = Math.max(grown.apart[place], nodes.apart[node]);
    }
    grown.place[node] = place;
    under[node] = place;
    if (!hidden[fn]) {
      path.push({ end: nodes.end[node], fn, before: onPath[fn] });
      onPath[fn] = place;
    }
  }
  return grown;
}

/** The order of a walk, siblings by kind, then by samples of the whole recording. */
function walk({ functions }, { fn, parent, total }) {
  const count = fn.length;
  const first = new Int32Array(count).fill(-1);
  const next = new Int32Array(count).fill(-1);
  for (let node = count - 1; node > 0; node -= 1) {
    next[node] = first[parent[node]];
    first[parent[node]] = node;
  }
  const kind = (node) => KIND_ORDER.indexOf(functions[fn[node]].kind);
  const order = [];
  const waiting = [0];
  while (waiting.length > 0) {
    const node = waiting.pop();
    order.push(node);
    const children = [];
    for (let child = first[node]; child >= 0; child = next[child]) children.push(child);
    // The last is taken first.
    children.sort((a, b) => kind(b) - kind(a) || total[a] - total[b] || b - a);
    for (const child of children) waiting.push(child);
  }
  return order;
}

// The data of a trace: pieces of tracks, decoded when they are first looked at, and forgotten when others are.

/** Pieces and packs that are kept decoded. */
const PIECES_MAX = 320;
const PACKS_MAX = 96;

/** Reads numbers as `src/trace/page/pack.rs` wrote them. */
class Reader {
  constructor(bytes, at) {
    this.bytes = bytes;
    this.at = at;
  }

  /** Seven bits a byte, low ones first. */
  number() {
    const { bytes } = this;
    let byte = bytes[this.at++];
    if (byte < 128) return byte;
    let value = byte & 127;
    let scale = 128;
    do {
      byte = bytes[this.at++];
      value += (byte & 127) * scale;
      scale *= 128;
    } while (byte >= 128);
    return value;
  }

  numbers(count, into) {
    for (let index = 0; index < count; index += 1) into[index] = this.number();
    return into;
  }

  take(count) {
    this.at += count;
    return this.bytes.subarray(this.at - count, this.at);
  }
}

export function unfold(value) {
  return value % 2 ? -(value + 1) / 2 : value / 2;
}

export class TraceData {
  /** `onLoaded` is called when pieces that were requested are there; `packText(number)` returns the text of a pack. */
  constructor(text, onLoaded, packText = packOfPage) {
    const index = JSON.parse(text);
    this.startNs = index.startNs;
    this.durationNs = index.durationNs;
    this.shiftNs = index.shiftNs;
    this.kinds = index.kinds;
    this.types = index.types;
    this.groups = index.groups;
    this.names = index.names;
    this.uses = index.uses;
    this.sums = index.sums;
    this.sumsLeftOut = index.sumsLeftOut;
    this.wakes = index.wakes;
    this.mpiMessages = index.mpiMessages;
    this.series = index.series;
    this.tables = index.tables;
    this.tasks = index.tasks;
    this.story = index.story;
    this.losses = index.losses;
    this.lossesInAll = index.lossesInAll;
    this.taskTable = null;
    this.onLoaded = onLoaded;
    this.packText = packText;
    this.tracks = index.tracks.map(([kind, name, count, parent, levels], number) => ({
      number,
      kind,
      name,
      count,
      parent,
      children: 0,
      levels: levels.map(([shift, pieces]) => ({ width: shift < 0 ? 0 : 2 ** shift, pieces })),
    }));
    for (const { parent } of this.tracks) if (parent !== null) this.tracks[parent].children += 1;
    this.groups.forEach((group, number) => {
      for (let track = group.first; track < group.first + group.count; track += 1) this.tracks[track].group = number;
    });
    this.weights = Uint8Array.from(this.kinds, ({ weight }) => ["strong", "middle", "faint"].indexOf(weight));
    this.kindNumbers = new Map(this.kinds.map(({ label }, number) => [label, number]));
    this.counterKind = this.types.findIndex(({ label }) => label === "counter");
    this.decoded = new Map();
    this.packs = new Map();
  }

  isCounter(track) {
    return track.kind === this.counterKind;
  }

  /** Whether an item is a task that runs. */
  isRun({ track, kind }) {
    return this.types[track.kind].label === "task" && this.kinds[kind].label === "running";
  }

  /** Whether an item is a span of its own, not a visit of a core. */
  isSpan({ track }) {
    return this.types[track.kind].label === "span";
  }

  /** Whether a track shows once more what stands in others: visits of spans by cores, calls below their task. */
  isCopy({ kind, name, parent }) {
    const { label } = this.types[kind];
    return (label === "core" && name.includes(" active spans")) || (label === "call" && parent !== null);
  }

  /** The number of the kind with a label. */
  kindOf(label) {
    return this.kindNumbers.get(label) ?? 0;
  }

  /** Columns of all tasks, by index: name, number, track, parent and one, start and one. */
  async fetchTasks() {
    const [piece] = this.tasks;
    if (!piece) return { count: 0, name: [], number: [], track: [], parent: [], spawned: [] };
    // Kept for good: nearly everything refers to tasks.
    this.taskTable ??= this.pack(piece[0]).then((bytes) => decodeTasks(bytes, piece));
    return this.taskTable;
  }

  /** "connection #17". */
  taskName(tasks, task) {
    const [name, number] = [this.names[tasks.name[task]] ?? "", tasks.number[task]];
    return name === "" || name === `task ${number}` ? `task ${number}` : `${name} #${number}`;
  }

  /** A piece if it is there; else it is fetched. */
  now(track, level, piece) {
    const known = this.decoded.get(piece);
    if (known === undefined) {
      this.fetch(track, level, piece).then(() => this.onLoaded());
      return null;
    }
    if (known instanceof Promise) return null;
    this.touch(piece, known);
    return known;
  }

  /** A piece, when it is there. */
  async fetch(track, level, piece) {
    return this.fetchAs(piece, (bytes) =>
      this.isCounter(track) ? decodeSteps(bytes, piece, level.width) : level.width > 0 ? decodeBuckets(bytes, piece, level.width) : decodeSlices(bytes, piece),
    );
  }

  async fetchAs(piece, decode) {
    let known = this.decoded.get(piece);
    if (known === undefined) {
      known = this.pack(piece[0]).then((bytes) => {
        const made = decode(bytes);
        this.touch(piece, made);
        return made;
      });
      this.decoded.set(piece, known);
    }
    return known;
  }

  /** Wakes of a piece: times, tracks from (and one), tracks to (and one). */
  async fetchWakes(piece) {
    return this.fetchAs(piece, (bytes) => decodeWakes(bytes, piece));
  }

  /** The same if they are there. */
  wakesNow(piece) {
    return this.decodedNow(piece, () => this.fetchWakes(piece));
  }

  /** Messages between ranks of a piece, if they are there: as wakes, and how long before its receipt each was sent. */
  messagesNow(piece) {
    return this.decodedNow(piece, () => this.fetchAs(piece, (bytes) => decodeMessages(bytes, piece)));
  }

  decodedNow(piece, fetch) {
    const known = this.decoded.get(piece);
    if (known === undefined) fetch().then(() => this.onLoaded());
    return known === undefined || known instanceof Promise ? null : known;
  }

  touch(piece, made) {
    this.decoded.delete(piece);
    this.decoded.set(piece, made);
    trim(this.decoded, PIECES_MAX);
  }

  /** The bytes of a pack. */
  async pack(number) {
    let known = this.packs.get(number);
    if (known === undefined) known = unpack(this.packText(number));
    this.packs.delete(number);
    this.packs.set(number, known);
    trim(this.packs, PACKS_MAX);
    return known;
  }

  /** The first level that is no finer than a pixel; the slices themselves if there is none. */
  levelFor(track, nsPerPixel) {
    let chosen = 0;
    for (let level = 1; level < track.levels.length && track.levels[level].width <= nsPerPixel; level += 1) chosen = level;
    return chosen;
  }
}

/** Forgets the oldest entries of a map. */
function trim(map, most) {
  while (map.size > most) map.delete(map.keys().next().value);
}

/** What of a level lies in a window of time. */
export function piecesIn(level, from, to) {
  return level.pieces.filter(([, , , start, end]) => end >= from && start <= to);
}

async function packOfPage(number) {
  return (await packElement(number)).textContent;
}

async function unpack(whenRead) {
  const text = await whenRead;
  const decode = /** @type {any} */ (Uint8Array).fromBase64 ?? ((base64) => Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0)));
  const bytes = decode.call(Uint8Array, text);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/** The page is drawn before all of it has been read: a pack may be still to come. */
async function packElement(number) {
  for (;;) {
    const element = document.getElementById(`pack-${number}`);
    if (element && (element.nextSibling || document.readyState !== "loading")) return element;
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

function decodeSlices(bytes, [, offset, count, first]) {
  const reader = new Reader(bytes, offset);
  const start = reader.numbers(count, new Float64Array(count));
  const end = reader.numbers(count, new Float64Array(count));
  let at = first;
  for (let index = 0; index < count; index += 1) {
    at += start[index];
    start[index] = at;
    at += end[index];
    end[index] = at;
  }
  const kind = reader.take(count);
  const name = reader.numbers(count, new Uint32Array(count));
  return { width: 0, count, start, end, kind, name, bytes, columnsAt: reader.at };
}

/** The columns of a piece of slices, and its texts, by their type. */
export function columnsOf(piece, type) {
  if (!piece.columns) {
    const reader = new Reader(piece.bytes, piece.columnsAt);
    piece.columns = type.columns.map(() => reader.numbers(piece.count, new Float64Array(piece.count)));
    if (type.has_text) {
      const decoder = new TextDecoder();
      const lengths = reader.numbers(piece.count, new Float64Array(piece.count));
      piece.texts = Array.from(lengths, (length) => decoder.decode(reader.take(length)));
    }
  }
  return piece;
}

function decodeBuckets(bytes, [, offset, count, first], width) {
  const reader = new Reader(bytes, offset);
  const start = reader.numbers(count, new Float64Array(count));
  const end = reader.numbers(count, new Float64Array(count));
  let at = first / width;
  for (let index = 0; index < count; index += 1) {
    at += start[index];
    start[index] = at * width;
    at += end[index];
    end[index] = at * width;
  }
  const kind = reader.take(count);
  const name = reader.numbers(count, new Uint32Array(count));
  const cover = [reader.take(count), reader.take(count), reader.take(count)];
  return { width, count, start, end, kind, name, cover };
}

function decodeSteps(bytes, [, offset, count, first], width) {
  const reader = new Reader(bytes, offset);
  const scale = width || 1;
  const start = reader.numbers(count, new Float64Array(count));
  const last = reader.numbers(count, new Float64Array(count));
  const low = reader.numbers(count, new Float64Array(count));
  const high = reader.numbers(count, new Float64Array(count));
  let at = first / scale;
  let value = 0;
  for (let index = 0; index < count; index += 1) {
    at += start[index];
    start[index] = at * scale;
    value += unfold(last[index]);
    last[index] = value;
    low[index] = value - low[index];
    high[index] += value;
  }
  return { width, count, start, last, low, high };
}

function decodeTimes(reader, count, first) {
  const time = reader.numbers(count, new Float64Array(count));
  let at = first;
  for (let index = 0; index < count; index += 1) {
    at += time[index];
    time[index] = at;
  }
  return time;
}

function decodeWakes(bytes, [, offset, count, first]) {
  const reader = new Reader(bytes, offset);
  const time = decodeTimes(reader, count, first);
  return { count, time, from: reader.numbers(count, new Float64Array(count)), to: reader.numbers(count, new Float64Array(count)) };
}

function decodeMessages(bytes, [, offset, count, first]) {
  const reader = new Reader(bytes, offset);
  const time = decodeTimes(reader, count, first);
  const column = () => reader.numbers(count, new Float64Array(count));
  return { count, time, way: column(), from: column(), to: column() };
}

function decodeTasks(bytes, [, offset, count]) {
  const reader = new Reader(bytes, offset);
  const column = () => reader.numbers(count, new Float64Array(count));
  return { count, name: column(), number: column(), track: column(), parent: column(), spawned: column() };
}

/** Moments, counts of buckets or moments and values of a series. */
export function decodeSeries(bytes, [, offset, count], form) {
  const reader = new Reader(bytes, offset);
  const first = reader.numbers(count, new Float64Array(count));
  if (form === "buckets") return { counts: first };
  for (let index = 1; index < count; index += 1) first[index] += first[index - 1];
  if (form === "moments") return { times: first };
  const values = reader.numbers(count, new Float64Array(count));
  let value = 0;
  for (let index = 0; index < count; index += 1) {
    value += unfold(values[index]);
    values[index] = value;
  }
  return { times: first, values };
}

/** The first index whose value is above `limit`, in numbers that do not fall. */
export function firstAbove(numbers, limit) {
  let low = 0;
  let high = numbers.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (numbers[middle] > limit) high = middle;
    else low = middle + 1;
  }
  return low;
}

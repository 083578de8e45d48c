// Colours of a trace, as pixels: by kind, or by name.

/** Hue, saturation, lightness in light and in dark. */
const KIND_COLOURS = {
  running: [213, 62, 56, 54],
  spinning: [40, 74, 80, 32],
  idle: [215, 12, 90, 20],
  ready: [38, 82, 60, 50],
  wait: [220, 14, 92, 20],
  waitTimer: [220, 10, 94, 18],
  waitNotify: [265, 45, 93, 22],
  waitRequest: [160, 42, 90, 19],
  waitReceive: [205, 60, 92, 20],
  waitSend: [190, 55, 89, 19],
  waitAccept: [220, 10, 94, 18],
  waitResource: [12, 70, 92, 24],
  other: [220, 9, 66, 48],
  read: [150, 42, 50, 42],
  write: [272, 45, 64, 56],
  flush: [28, 78, 58, 50],
  transmit: [190, 55, 45, 42],
  receive: [213, 62, 58, 54],
  failed: [3, 72, 54, 54],
  warning: [38, 88, 50, 50],
  interrupt: [330, 52, 56, 52],
};
const HUES = [212, 28, 150, 272, 52, 185, 340, 100, 240, 8, 165, 300];

/** Colours of one theme as pixels of an image. */
export class TraceColours {
  constructor(data, dark) {
    this.dark = dark;
    this.byKind = Uint32Array.from(data.kinds, ({ colour }) => (colour === "name" ? 0 : kindPixel(colour, dark)));
    this.byName = Uint32Array.from(data.names, (name) => namePixel(name, dark));
    this.faded = hslPixel(220, 6, dark ? 26 : 90);
    this.fadedStrong = hslPixel(220, 6, dark ? 34 : 80);
    this.track = hslPixel(215, dark ? 14 : 20, dark ? 11.5 : 98);
    this.grid = hslPixel(215, dark ? 12 : 16, dark ? 17 : 91);
    this.counter = hslPixel(172, dark ? 38 : 45, dark ? 30 : 78);
    this.counterLine = hslPixel(172, 50, dark ? 52 : 36);
  }

  of(kind, name) {
    return this.byKind[kind] || this.byName[name];
  }
}

function kindPixel(colour, dark) {
  const [hue, saturation, light, night] = KIND_COLOURS[colour] ?? KIND_COLOURS.other;
  return hslPixel(hue, saturation * (dark ? 0.8 : 1), dark ? night : light);
}

/** A name has the same colour in every trace. */
function namePixel(name, dark) {
  let hash = 2166136261;
  for (let index = 0; index < name.length; index += 1) hash = Math.imul(hash ^ name.charCodeAt(index), 16777619);
  hash ^= hash >>> 15;
  const hue = HUES[(hash >>> 0) % HUES.length];
  const step = ((hash >>> 8) & 3) - 1.5;
  return dark ? hslPixel(hue, 36, 40 + step * 3) : hslPixel(hue, 58, 72 + step * 3);
}

function hslPixel(hue, saturation, lightness) {
  const [s, l] = [saturation / 100, lightness / 100];
  const part = (n) => {
    const k = (n + hue / 30) % 12;
    return Math.round(255 * (l - s * Math.min(l, 1 - l) * Math.max(-1, Math.min(k - 3, 9 - k, 1))));
  };
  return ((255 << 24) | (part(4) << 16) | (part(8) << 8) | part(0)) >>> 0;
}

/** A pixel as CSS has it. */
export function pixelStyle(pixel) {
  return `rgb(${pixel & 255} ${(pixel >> 8) & 255} ${(pixel >> 16) & 255})`;
}

/** A pixel a little nearer to black. */
export function darker(pixel) {
  const part = (shift) => (((pixel >>> shift) & 255) * 0.78) << shift;
  return ((255 << 24) | part(16) | part(8) | part(0)) >>> 0;
}

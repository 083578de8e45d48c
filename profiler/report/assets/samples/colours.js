// Colours by group (crate, namespace, package, script or image): the groups with most samples have one of their own. And colours by mode, of host and guest.

import { LAYERS } from "./profile.js";

/** Hues that stay apart for most kinds of colour vision when neighbours differ in lightness too. */
const HUES = [212, 28, 150, 272, 52, 185, 340, 100, 240, 8];

export class Palette {
  constructor(groups, groupOf) {
    this.groupOf = groupOf;
    this.rank = new Map(groups.slice(0, HUES.length).map((group, index) => [group.name, index]));
  }

  /** A slot of its own, or -1 for all the others. */
  slot(group) {
    return this.rank.get(group) ?? -1;
  }

  /** The colour of a slot; the shade moves the lightness a little. */
  colour(slot, dark, shade = 0) {
    return groupColour(slot, dark, shade);
  }

  /** The colour of a box; the function's index moves the lightness a little. */
  fill({ fn }, dark) {
    if (fn.kind === "f") return this.colour(this.slot(this.groupOf(fn)), dark, ((fn.index * 7) % 5) - 2);
    return specialColour(fn.kind, dark);
  }
}

/** Hue and saturation of each of LAYERS: blues for the guest, warm ones for the host; apart for most kinds of colour vision. */
const LAYER_HUES = [[205, 70], [235, 58], [38, 80], [8, 62]];

/** Colours by mode. */
export class LayerPalette extends Palette {
  constructor() {
    super(LAYERS.map((name) => ({ name })), (fn) => LAYERS[fn.layer] ?? "");
  }

  colour(slot, dark, shade = 0) {
    if (slot < 0) return groupColour(slot, dark, shade);
    const [hue, saturation] = LAYER_HUES[slot];
    // A kernel is darker than the processes above it.
    const isKernel = slot % 2 === 1;
    if (dark) return `hsl(${hue} ${saturation * 0.6}% ${(isKernel ? 29 : 36) + shade}%)`;
    return `hsl(${hue} ${saturation}% ${(isKernel ? 76 : 82) + shade}%)`;
  }
}

/** The colour of the report's own entries. */
export function specialColour(kind, dark) {
  const [hue, saturation] = { b: [0, 45], s: [42, 70], i: [220, 8], n: [256, 18], p: [256, 18], t: [12, 40], v: [176, 25], w: [256, 35], u: [220, 8], g: [205, 14], m: [220, 8], r: [220, 12] }[kind];
  return `hsl(${hue} ${saturation}% ${dark ? 32 : 84}%)`;
}

export function groupColour(slot, dark, shade = 0) {
  if (slot < 0) return dark ? `hsl(220 6% ${33 + shade}%)` : `hsl(220 10% ${84 + shade}%)`;
  const even = slot % 2 === 0;
  if (dark) return `hsl(${HUES[slot]} ${even ? 38 : 34}% ${(even ? 34 : 30) + shade}%)`;
  return `hsl(${HUES[slot]} ${even ? 68 : 62}% ${(even ? 80 : 76) + shade}%)`;
}

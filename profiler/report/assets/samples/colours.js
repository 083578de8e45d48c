// Colours by group (crate or image): the groups with most samples have one of their own.

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

  /** The colour of a box; the function's index moves the lightness a little. */
  fill({ fn }, dark) {
    if (fn.kind === "f") return groupColour(this.slot(this.groupOf(fn)), dark, ((fn.index * 7) % 5) - 2);
    return specialColour(fn.kind, dark);
  }
}

/** The colour of the report's own entries. */
export function specialColour(kind, dark) {
  const [hue, saturation] = { b: [0, 45], s: [42, 70], i: [220, 8], n: [256, 18], p: [256, 18], t: [12, 40], v: [176, 25], u: [220, 8], m: [220, 8], r: [220, 12] }[kind];
  return `hsl(${hue} ${saturation}% ${dark ? 32 : 84}%)`;
}

export function groupColour(slot, dark, shade = 0) {
  if (slot < 0) return dark ? `hsl(220 6% ${33 + shade}%)` : `hsl(220 10% ${84 + shade}%)`;
  const even = slot % 2 === 0;
  if (dark) return `hsl(${HUES[slot]} ${even ? 38 : 34}% ${(even ? 34 : 30) + shade}%)`;
  return `hsl(${HUES[slot]} ${even ? 68 : 62}% ${(even ? 80 : 76) + shade}%)`;
}

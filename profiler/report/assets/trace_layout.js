// Which tracks are shown, and where: headings that fold, tracks that open, a filter, tracks that are hidden or pinned, only those of a path.

const HEADING_PX = 26;
const LANE_PX = 20;
const NESTED_PX = 18;
const COUNTER_PX = 46;

/** Groups of more lanes than this are folded at first, but for those before. */
const LANES_OPEN_MAX = 400;

export class Layout {
  constructor(data) {
    this.data = data;
    this.folded = new Set();
    /** Numbers of lanes whose own lanes are shown below them. */
    this.opened = new Set();
    this.hidden = new Set();
    this.filter = null;
    /** Numbers of tracks that stay at the top, in their order. */
    this.pinned = [];
    /** Numbers of the only tracks that are shown, or null for all. */
    this.only = null;
    this.top = new Float64Array(data.lanes.length);
    let open = 0;
    for (const group of data.groups) {
      if (open > 0 && open + group.count > LANES_OPEN_MAX) this.folded.add(group.name);
      else open += group.count;
    }
    this.make();
  }

  /** Sets the filter: a text that is a regex if it can be one. */
  setFilter(text) {
    this.filter = text === "" ? null : pattern(text);
    this.make();
  }

  fold(group) {
    if (!this.folded.delete(group.name)) this.folded.add(group.name);
    this.make();
  }

  /** Shows or hides the lanes that belong to one; false if there are none. */
  open(lane) {
    if (lane.children === 0) return false;
    if (!this.opened.delete(lane.number)) this.opened.add(lane.number);
    this.make();
    return true;
  }

  /** Shows only these tracks, or all for null. */
  setOnly(numbers) {
    this.only = numbers;
    this.make();
  }

  /** Pins a track at the top, or gives it back. */
  pin(lane) {
    const place = this.pinned.indexOf(lane.number);
    if (place >= 0) this.pinned.splice(place, 1);
    else this.pinned.push(lane.number);
    this.make();
  }

  isPinned(lane) {
    return this.pinned.includes(lane.number);
  }

  make() {
    const { data, filter, only } = this;
    this.rows = [];
    this.top.fill(-1);
    let y = 0;
    this.pinnedRows = this.pinned.map((number) => {
      const lane = data.lanes[number];
      const row = { lane, y, height: this.heightOf(lane), isPinned: true };
      y += row.height;
      return row;
    });
    this.pinnedHeight = y > 0 ? y + 4 : 0;
    y = 0;
    for (const group of data.groups) {
      const lanes = data.lanes.slice(group.first, group.first + group.count);
      const passes = (lane) => {
        if (this.isPinned(lane)) return false;
        if (only) return only.has(lane.number);
        return !this.hidden.has(lane.number) && (!filter || filter.test(lane.name) || filter.test(group.name));
      };
      // Of lanes that are closed those that a filter names are shown nevertheless.
      const isOpen = (lane) => only || lane.parent === null || this.opened.has(lane.parent) || (filter && filter.test(lane.name) && !filter.test(data.lanes[lane.parent].name));
      const passing = lanes.filter(passes);
      const shown = passing.filter(isOpen);
      if (shown.length === 0) continue;
      this.rows.push({ heading: group, lanes: passing.filter(({ parent }) => only || parent === null).length, y, height: HEADING_PX });
      y += HEADING_PX;
      if (this.folded.has(group.name) && !only) continue;
      for (const lane of shown) {
        const height = this.heightOf(lane);
        this.rows.push({ lane, y, height });
        this.top[lane.number] = y;
        y += height;
      }
      y += 6;
    }
    this.height = y;
  }

  heightOf(lane) {
    if (this.data.isCounter(lane)) return COUNTER_PX;
    return ["call", "span", "request"].includes(this.data.types[lane.kind].label) ? NESTED_PX : LANE_PX;
  }

  /** Rows of which some part is between two heights. */
  visible(from, to) {
    let low = 0;
    let high = this.rows.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.rows[middle].y + this.rows[middle].height <= from) low = middle + 1;
      else high = middle;
    }
    const rows = [];
    for (; low < this.rows.length && this.rows[low].y < to; low += 1) rows.push(this.rows[low]);
    return rows;
  }

  at(y) {
    return this.visible(y, y + 1).find((row) => y >= row.y && y < row.y + row.height) ?? null;
  }

  /** Makes a lane one that is shown. */
  reveal(lane) {
    if (this.top[lane.number] >= 0 || this.isPinned(lane)) return;
    // Beside the tracks of a path, the one that the reader goes to.
    if (this.only) {
      this.setOnly(new Set([...this.only, lane.number]));
      return;
    }
    this.hidden.delete(lane.number);
    if (lane.parent !== null) this.opened.add(lane.parent);
    this.folded.delete(this.data.groups[lane.group].name);
    this.make();
    if (this.top[lane.number] < 0) this.setFilter("");
  }
}

/** A text in any case, or a regex. */
export function pattern(text) {
  try {
    return new RegExp(text, "i");
  } catch {
    return new RegExp(text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"), "i");
  }
}

/** The lanes under a heading. */
export function lanesOf(data, group) {
  return data.lanes.slice(group.first, group.first + group.count);
}

/** Whether all of them are hidden. */
export function isHidden(data, layout, group) {
  return lanesOf(data, group).every((lane) => layout.hidden.has(lane.number));
}

// Which tracks are shown, and where: headings that fold, tracks that open, a filter, tracks that are hidden or pinned, only those of a path.

const HEADING_PX = 26;
const TRACK_PX = 20;
const NESTED_PX = 18;
const COUNTER_PX = 46;

/** Groups of more tracks than this are folded at first, but for those before. */
const TRACKS_OPEN_MAX = 400;

export class Layout {
  constructor(data) {
    this.data = data;
    this.folded = new Set();
    /** Numbers of tracks whose own tracks are shown below them. */
    this.opened = new Set();
    this.hidden = new Set();
    this.filter = null;
    /** Numbers of tracks that stay at the top, in their order. */
    this.pinned = [];
    /** Numbers of the only tracks that are shown, or null for all. */
    this.only = null;
    this.top = new Float64Array(data.tracks.length);
    let open = 0;
    for (const group of data.groups) {
      if (open > 0 && open + group.count > TRACKS_OPEN_MAX) this.folded.add(group.name);
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

  /** Shows or hides the tracks that belong to one; false if there are none. */
  open(track) {
    if (track.children === 0) return false;
    if (!this.opened.delete(track.number)) this.opened.add(track.number);
    this.make();
    return true;
  }

  /** Shows only these tracks, or all for null. */
  setOnly(numbers) {
    this.only = numbers;
    this.make();
  }

  /** Pins a track at the top, or gives it back. */
  pin(track) {
    const place = this.pinned.indexOf(track.number);
    if (place >= 0) this.pinned.splice(place, 1);
    else this.pinned.push(track.number);
    this.make();
  }

  isPinned(track) {
    return this.pinned.includes(track.number);
  }

  make() {
    const { data, filter, only } = this;
    this.rows = [];
    this.top.fill(-1);
    let y = 0;
    this.pinnedRows = this.pinned.map((number) => {
      const track = data.tracks[number];
      const row = { track, y, height: this.heightOf(track), isPinned: true };
      y += row.height;
      return row;
    });
    this.pinnedHeight = y > 0 ? y + 4 : 0;
    y = 0;
    for (const group of data.groups) {
      const tracks = data.tracks.slice(group.first, group.first + group.count);
      const passes = (track) => {
        if (this.isPinned(track)) return false;
        if (only) return only.has(track.number);
        return !this.hidden.has(track.number) && (!filter || filter.test(track.name) || filter.test(group.name));
      };
      // Of tracks that are closed those that a filter names are shown nevertheless.
      const isOpen = (track) => only || track.parent === null || this.opened.has(track.parent) || (filter && filter.test(track.name) && !filter.test(data.tracks[track.parent].name));
      const passing = tracks.filter(passes);
      const shown = passing.filter(isOpen);
      if (shown.length === 0) continue;
      this.rows.push({ heading: group, tracks: passing.filter(({ parent }) => only || parent === null).length, y, height: HEADING_PX });
      y += HEADING_PX;
      if (this.folded.has(group.name) && !only) continue;
      for (const track of shown) {
        const height = this.heightOf(track);
        this.rows.push({ track, y, height });
        this.top[track.number] = y;
        y += height;
      }
      y += 6;
    }
    this.height = y;
  }

  heightOf(track) {
    if (this.data.isCounter(track)) return COUNTER_PX;
    return ["call", "span", "request"].includes(this.data.types[track.kind].label) ? NESTED_PX : TRACK_PX;
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

  /** Makes a track one that is shown. */
  reveal(track) {
    if (this.top[track.number] >= 0 || this.isPinned(track)) return;
    // Beside the tracks of a path, the one that the reader goes to.
    if (this.only) {
      this.setOnly(new Set([...this.only, track.number]));
      return;
    }
    this.hidden.delete(track.number);
    if (track.parent !== null) this.opened.add(track.parent);
    this.folded.delete(this.data.groups[track.group].name);
    this.make();
    if (this.top[track.number] < 0) this.setFilter("");
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

/** The tracks under a heading. */
export function tracksOfGroup(data, group) {
  return data.tracks.slice(group.first, group.first + group.count);
}

/** Whether all of them are hidden. */
export function isHidden(data, layout, group) {
  return tracksOfGroup(data, group).every((track) => layout.hidden.has(track.number));
}

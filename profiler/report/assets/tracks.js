// One bar for each track: running, spinning, idle. A click shows only that track.

import { formatCount, formatPercent } from "./format.js";
import { textSpan } from "./elements.js";
import { STATES } from "./profile.js";

const TRACKS_FOLDED = 8;

export class TrackBars {
  /** `onSelect` gets the set of chosen tracks, or null for all. */
  constructor(section, tracks, onSelect) {
    this.list = section.querySelector(".tracks");
    this.more = section.querySelector(".more");
    this.tracks = tracks;
    this.onSelect = onSelect;
    this.chosen = null;
    this.more.addEventListener("click", () => this.draw(true));
    this.draw(false);
  }

  draw(unfolded) {
    const shown = unfolded ? this.tracks : this.tracks.slice(0, TRACKS_FOLDED);
    this.list.replaceChildren(...shown.map((track, index) => this.row(track, index)));
    this.more.hidden = shown.length === this.tracks.length;
    this.more.textContent = `Show all ${formatCount(this.tracks.length)} tracks`;
    this.mark();
  }

  row(track, index) {
    const all = STATES.reduce((sum, state) => sum + track[state], 0);
    const row = document.createElement("li");
    const button = document.createElement("button");
    button.type = "button";
    const shares = STATES.map((state) => `${state} ${formatPercent(track[state], all)}`).join(", ");
    button.setAttribute("aria-label", `${track.name}: ${formatCount(all)} samples, ${shares}. Show only this track.`);
    button.title = "Show only this track";
    const bar = textSpan("bar", "");
    for (const state of STATES) {
      const part = textSpan(`part ${state}`, "");
      part.style.flexGrow = track[state];
      bar.append(part);
    }
    button.append(textSpan("track-name", track.name), bar);
    for (const state of STATES) button.append(textSpan(`share ${state}`, formatPercent(track[state], all)));
    button.append(textSpan("samples", formatCount(all)));
    button.addEventListener("click", () => this.choose(index));
    row.append(button);
    return row;
  }

  choose(index) {
    this.chosen = this.chosen?.has(index) ? null : new Set([index]);
    this.mark();
    this.onSelect(this.chosen);
  }

  mark() {
    [...this.list.children].forEach((row, index) => {
      const chosen = this.chosen?.has(index) ?? false;
      row.firstChild.setAttribute("aria-pressed", String(chosen));
      row.classList.toggle("left-out", this.chosen !== null && !chosen);
    });
  }
}

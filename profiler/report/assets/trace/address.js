// What of a trace is shown, as texts for the address: time, tracks, what is chosen and measured, and the panel with what it shows.

import { list, range } from "../shared/address.js";
import { find } from "../shared/page.js";
import { isHidden, tracksOfGroup } from "./layout.js";
import { sliceAt } from "./pick.js";

export class TraceAddress {
  constructor({ data, timeline, series, paths, tables }) {
    this.data = data;
    this.timeline = timeline;
    this.series = series;
    this.paths = paths;
    this.tables = tables;
  }

  texts(panel) {
    const { data, timeline, series, paths, tables } = this;
    const { view, chosen, other, ruler, box, layout } = timeline;
    const place = (item) => (item ? `${item.track.number}-${item.start}` : "");
    const hidden = data.groups.map((group, number) => (isHidden(data, layout, group) ? number : -1)).filter((number) => number >= 0);
    return {
      t: view[0] > 0 || view[1] < data.durationNs ? view.map(Math.round).join("-") : "",
      // What is not shown has no place to scroll to.
      y: box.clientHeight === 0 ? undefined : box.scrollTop > 0 ? String(Math.round(box.scrollTop)) : "",
      q: find("#trace-search").value,
      tracks: find("#trace-filter").value,
      at: place(chosen),
      to: place(other),
      ruler: ruler ? ruler.map(Math.round).join("-") : "",
      folded: data.groups.map(({ name }, number) => (layout.folded.has(name) ? number : -1)).filter((number) => number >= 0).join("."),
      hidden: hidden.join("."),
      open: [...layout.opened].join("."),
      pinned: layout.pinned.join("."),
      panel: panel === "trace-overview" ? "" : panel,
      sheet: tables.index > 0 ? String(tables.index) : "",
      series: series.index > 0 ? String(series.index) : "",
      mode: series.mode === "cumulative" ? "" : series.mode,
      path: place(paths.path?.span),
      only: find("#path-only").checked ? "" : "0",
    };
  }

  /** Shows what the address has, as far as it is in the trace; `on` holds filter, query, choose, measure and panel. */
  async show(parts, on) {
    const { data, timeline, series, paths, tables } = this;
    const { layout } = timeline;
    const groups = (key) => list(parts.get(key)).filter((number) => number in data.groups).map((number) => data.groups[number]);
    if (parts.has("folded")) layout.folded = new Set(groups("folded").map(({ name }) => name));
    layout.opened = new Set(list(parts.get("open")).filter((number) => data.tracks[number]?.children > 0));
    layout.hidden = new Set(groups("hidden").flatMap((group) => tracksOfGroup(data, group).map(({ number }) => number)));
    layout.pinned = list(parts.get("pinned")).filter((number) => number in data.tracks);
    find("#path-only").checked = parts.get("only") !== "0";
    on.filter(parts.get("tracks") ?? "");
    timeline.show(range(parts.get("t")) ?? [0, data.durationNs]);
    on.query(parts.get("q") ?? "");
    timeline.setRuler(range(parts.get("ruler")));
    timeline.fit();
    timeline.box.scrollTop = Number(parts.get("y") ?? 0) || 0;
    if (data.series[parts.get("series")]) series.choose(Number(parts.get("series")));
    if (parts.get("mode")) series.setMode(parts.get("mode"));
    if (data.tables[parts.get("sheet")]) tables.choose(Number(parts.get("sheet")));
    const span = await this.itemAt(parts.get("path"));
    await paths.follow(span && data.isSpan(span) ? span : null);
    const [chosen, other] = await Promise.all(["at", "to"].map((key) => this.itemAt(parts.get(key))));
    on.choose(chosen);
    if (chosen && other) on.measure(other);
    on.panel(parts.get("panel") ?? "trace-overview");
  }

  async itemAt(text) {
    const [track, time] = (text ?? "").split("-").map(Number);
    return this.data.tracks[track] && Number.isFinite(time) ? sliceAt(this.data, this.data.tracks[track], time, 1) : null;
  }
}

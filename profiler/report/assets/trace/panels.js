// What stands around the timeline and is made from the data: a check-mark for each group of tracks, the colours, the tables.

import { formatCount } from "../shared/format.js";
import { textElement } from "../shared/elements.js";
import { find } from "../shared/page.js";
import { isHidden, tracksOfGroup } from "./layout.js";
import { pixelStyle } from "./colours.js";
import { TraceTable } from "./tables.js";

/** A box for each group of tracks: on it is shown. */
export function fillGroups(data, layout, onChange) {
  const boxes = data.groups.map((group) => {
    const label = document.createElement("label");
    const input = document.createElement("input");
    input.type = "checkbox";
    input.checked = !isHidden(data, layout, group);
    input.addEventListener("change", () => {
      for (const track of tracksOfGroup(data, group)) {
        if (input.checked) layout.hidden.delete(track.number);
        else layout.hidden.add(track.number);
      }
      onChange();
    });
    label.append(input, ` ${group.name} `, textElement("span", "share", formatCount(tracksOfGroup(data, group).filter(({ parent }) => parent === null).length)));
    return label;
  });
  find("#trace-groups").replaceChildren(...boxes);
}

/** The colours of the kinds that are in the trace. */
export function fillLegend(data, colours) {
  const kinds = new Set([...data.uses.map(([, kind]) => kind), ...data.sums.map(([, , kind]) => kind)]);
  const rows = [...kinds].sort((a, b) => a - b).map((kind) => {
    const row = document.createElement("li");
    const { label, colour } = data.kinds[kind];
    if (colour === "name") {
      row.append(textElement("span", "swatch by-name", ""), ` ${label}: a colour by its name`);
    } else {
      const swatch = textElement("span", "swatch", "");
      swatch.style.backgroundColor = pixelStyle(colours.of(kind, 0));
      row.append(swatch, ` ${label}`);
    }
    return row;
  });
  if (data.losses.length > 0) {
    const row = document.createElement("li");
    row.append(textElement("span", "swatch lost", ""), " events lost");
    rows.push(row);
  }
  find("#trace-legend ul").replaceChildren(...rows);
}

/** The tables, of which one is shown; `go(track, time)` brings a moment in sight. */
export class Tables {
  constructor(section, data, { go, shown }) {
    this.data = data;
    this.box = section.querySelector(".trace-table");
    this.select = section.querySelector("select");
    this.go = go;
    this.index = 0;
    this.select.replaceChildren(...data.tables.map(({ name }, index) => {
      const option = textElement("option", "", name);
      option.value = String(index);
      return option;
    }));
    this.select.addEventListener("change", () => {
      this.choose(Number(this.select.value));
      shown();
    });
    this.choose(0);
  }

  choose(index) {
    const table = this.data.tables[index];
    if (!table) {
      this.box.replaceChildren(textElement("p", "trace-nothing", "The trace has nothing to be counted."));
      return;
    }
    this.index = index;
    this.select.value = String(index);
    new TraceTable(this.box, table, this.data, this.go);
  }
}

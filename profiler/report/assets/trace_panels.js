// What stands around the timeline and is made from the data: a check-mark for each group of lanes, a tab for each table.

import { formatCount } from "./format.js";
import { textElement } from "./elements.js";
import { find } from "./page.js";
import { isHidden, lanesOf } from "./trace_layout.js";
import { TraceTable } from "./trace_tables.js";

/** A box for each group of lanes: on it is shown. */
export function fillGroups(data, layout, onChange) {
  const boxes = data.groups.map((group) => {
    const label = document.createElement("label");
    const input = document.createElement("input");
    input.type = "checkbox";
    input.checked = !isHidden(data, layout, group);
    input.addEventListener("change", () => {
      for (const lane of lanesOf(data, group)) {
        if (input.checked) layout.hidden.delete(lane.number);
        else layout.hidden.add(lane.number);
      }
      onChange();
    });
    label.append(input, ` ${group.name} `, textElement("span", "share", formatCount(lanesOf(data, group).filter(({ parent }) => parent === null).length)));
    return label;
  });
  find("#trace-groups").replaceChildren(...boxes);
}

/** A tab and a panel for each table; `go(lane, time)` brings a moment in sight. */
export function fillTables(data, go) {
  data.tables.forEach((table, index) => {
    const id = `trace-table-${index}`;
    const tab = textElement("button", "", table.name);
    tab.type = "button";
    tab.id = `${id}-tab`;
    tab.setAttribute("role", "tab");
    tab.setAttribute("aria-controls", id);
    find("#trace-tabs").append(tab);
    const box = textElement("div", "trace-table", "");
    box.id = id;
    box.hidden = true;
    box.setAttribute("role", "tabpanel");
    box.setAttribute("aria-labelledby", tab.id);
    find("#trace-panels").append(box);
    new TraceTable(box, table, data, go);
  });
}

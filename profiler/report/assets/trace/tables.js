// Sums as tables that sort: tasks, waits, devices, spans, functions, and those of a range.

import { formatCount, formatDuration, formatPercent } from "../shared/format.js";
import { textElement } from "../shared/elements.js";

const ROWS_STEP = 50;

export class TraceTable {
  /** `go(track, time)` brings a moment in sight. */
  constructor(panel, table, data, go) {
    this.panel = panel;
    this.table = table;
    this.data = data;
    this.go = go;
    this.sort = { column: table.sort, descending: true };
    this.limit = ROWS_STEP;
    this.draw();
  }

  /** What a cell is sorted by; what was not measured comes last. */
  value(row, column) {
    const cell = row[column];
    if (cell === null) return -1;
    if (!Array.isArray(cell)) return cell;
    return this.table.columns[column][1] === "percent" && cell[1] > 0 ? cell[0] / cell[1] : cell[0];
  }

  draw() {
    const { table, sort } = this;
    const sign = sort.descending ? -1 : 1;
    const sorted = table.rows
      .map((row) => ({ row, key: this.value(row, sort.column) }))
      .sort((a, b) => (a.key < b.key ? -sign : a.key > b.key ? sign : 0));
    const element = textElement("table", "trace-sums", "");
    const head = document.createElement("thead");
    const heads = document.createElement("tr");
    heads.append(...table.columns.map(([label, cell], column) => this.head(label, cell, column)));
    head.append(heads);
    const body = document.createElement("tbody");
    body.append(...sorted.slice(0, this.limit).map(({ row }) => this.row(row)));
    element.append(head, body);
    const box = textElement("div", "table", "");
    box.append(element);
    const parts = [box];
    const rest = sorted.length - this.limit;
    if (rest > 0) {
      const more = textElement("button", "more", `Show ${Math.min(rest, ROWS_STEP)} more of ${formatCount(rest)}`);
      more.type = "button";
      more.addEventListener("click", () => {
        this.limit += ROWS_STEP;
        this.draw();
      });
      parts.push(more);
    }
    if (table.rows_left_out > 0) parts.push(textElement("p", "merged", `${formatCount(table.rows_left_out)} rows with less are left out.`));
    this.panel.replaceChildren(...parts);
  }

  head(label, cell, column) {
    const head = textElement("th", cell === "text" ? "" : "number", "");
    head.scope = "col";
    const { sort } = this;
    head.setAttribute("aria-sort", sort.column === column ? (sort.descending ? "descending" : "ascending") : "none");
    const button = textElement("button", "", label);
    button.type = "button";
    button.addEventListener("click", () => {
      const first = cell !== "text";
      this.sort = { column, descending: sort.column === column ? !sort.descending : first };
      this.draw();
    });
    head.append(button);
    return head;
  }

  row(row) {
    const element = document.createElement("tr");
    this.table.columns.forEach(([, show], column) => element.append(this.cell(row[column], show)));
    return element;
  }

  cell(value, show) {
    if (show === "text") {
      const cell = textElement("td", "", value);
      cell.title = value;
      return cell;
    }
    const cell = textElement("td", "number", "");
    if (show === "moment") {
      const [ns, track, start] = value ?? [null];
      if (track === undefined) cell.textContent = formatDuration(ns);
      else {
        const button = textElement("button", "link", formatDuration(ns));
        button.type = "button";
        button.title = "Show it in the timeline";
        button.addEventListener("click", () => this.go(this.data.tracks[track], start));
        cell.append(button);
      }
    } else if (show === "percent") cell.textContent = formatPercent(value[0], value[1]);
    else if (show === "ratio") cell.textContent = value.toFixed(2);
    else cell.textContent = show === "time" ? formatDuration(value) : formatCount(value);
    return cell;
  }
}

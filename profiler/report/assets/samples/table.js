// A table that sorts: rows are made for what is in sight, a page at a time. Its columns say what they
// show, so functions, lines and differences are the same table.

import { formatCount, formatPercent, formatPlace, formatShortPath } from "../shared/format.js";
import { textSpan } from "../shared/elements.js";
import { LAYERS } from "./profile.js";

const ROWS_STEP = 60;

export class SortedTable {
  /**
   * `columns` hold key, label, className, value(row) to sort by, cell(row, table), and descending where
   * that is the first order. `onSelect` gets the function of a row that was chosen, or null when it was
   * chosen again.
   */
  constructor(section, columns, onSelect) {
    this.columns = columns;
    this.head = section.querySelector("thead tr");
    this.body = section.querySelector("tbody");
    this.more = section.querySelector(".more");
    this.onSelect = onSelect;
    this.sort = { key: columns[0].key, descending: columns[0].descending ?? false };
    this.limit = ROWS_STEP;
    this.rows = [];
    this.selected = null;
    this.head.replaceChildren(...columns.map((column) => this.headCell(column)));
    this.more.addEventListener("click", () => {
      this.limit += ROWS_STEP;
      this.draw();
    });
    this.body.addEventListener("click", (event) => {
      const row = event.target.closest("tr");
      if (row) this.onSelect(this.selected?.index === Number(row.dataset.fn) ? null : this.shown[row.sectionRowIndex].fn);
    });
  }

  headCell({ key, label, className, title }) {
    const head = document.createElement("th");
    head.scope = "col";
    head.className = className;
    head.dataset.sort = key;
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = label;
    if (title) button.title = title;
    button.addEventListener("click", () => this.sortBy(key));
    head.append(button);
    return head;
  }

  /** Rows have at least `fn`; `all` is 100 %. */
  show(rows, all) {
    this.rows = rows;
    this.all = all;
    this.limit = ROWS_STEP;
    this.draw();
  }

  select(fn) {
    this.selected = fn;
    for (const row of this.body.rows) markRow(row, fn !== null && row.dataset.fn === String(fn.index));
  }

  sortBy(key) {
    const first = this.columns.find((column) => column.key === key).descending ?? false;
    this.sort = { key, descending: this.sort.key === key ? !this.sort.descending : first };
    this.draw();
  }

  draw() {
    const { key, descending } = this.sort;
    const { value } = this.columns.find((column) => column.key === key);
    const sign = descending ? -1 : 1;
    const keyed = this.rows.map((row) => ({ row, key: value(row) }));
    const largest = (a, b) => b.self - a.self || b.total - a.total || compareValues(a.fn.name, b.fn.name);
    keyed.sort((a, b) => compareValues(a.key, b.key) * sign || largest(a.row, b.row));
    this.shown = keyed.slice(0, this.limit).map(({ row }) => row);
    this.most = {};
    for (const row of this.rows) {
      for (const column of ["self", "total"]) this.most[column] = Math.max(this.most[column] ?? 0, row[column] ?? 0);
    }
    this.body.replaceChildren(...this.shown.map((row) => this.rowElement(row)));
    const rest = this.rows.length - this.shown.length;
    this.more.hidden = rest === 0;
    this.more.textContent = `Show ${Math.min(rest, ROWS_STEP)} more of ${formatCount(rest)}`;
    for (const head of this.head.cells) {
      head.setAttribute("aria-sort", head.dataset.sort === key ? (descending ? "descending" : "ascending") : "none");
    }
  }

  rowElement(row) {
    const element = document.createElement("tr");
    element.dataset.fn = row.fn.index;
    for (const column of this.columns) {
      const cell = document.createElement("td");
      cell.className = column.className;
      column.cell(cell, row, this);
      element.append(cell);
    }
    markRow(element, this.selected === row.fn);
    return element;
  }
}

function compareValues(a, b) {
  return a < b ? -1 : a > b ? 1 : 0;
}

function markRow(row, selected) {
  row.classList.toggle("selected", selected);
  row.querySelector("button").setAttribute("aria-pressed", String(selected));
}

/** A column of samples and their share, with a bar behind it; the longest is the column's largest. */
export function samplesColumn(key, label, title) {
  const cell = (element, row, table) => element.append(shareCell(row[key], table.all, table.most[key]));
  return { key, label, title, className: "number", descending: true, value: (row) => row[key], cell };
}

export function shareCell(part, all, most) {
  const content = document.createElement("div");
  content.className = "cell";
  const share = textSpan("share", formatPercent(part, all));
  share.style.setProperty("--share", `${most > 0 ? (part * 100) / most : 0}%`);
  content.append(textSpan("count", formatCount(part)), share);
  return content;
}

export function functionColumn(label = "Function") {
  const cell = (element, { fn }) => {
    const button = document.createElement("button");
    button.type = "button";
    button.title = fn.name;
    button.append(textSpan("short", fn.short));
    if (fn.short !== fn.name) button.append(textSpan("full", fn.name));
    element.append(button);
  };
  return { key: "name", label, className: "name", value: (row) => row.fn.name.toLowerCase(), cell };
}

/** A long path gives way to its line. */
export function placeColumn(label, locationOf) {
  const cell = (element, row) => {
    const location = locationOf(row);
    element.title = formatPlace(location);
    const content = document.createElement("div");
    if (location) content.append(textSpan("path", formatShortPath(location.file)), textSpan("line", location.line ? `:${location.line}` : ""));
    element.append(content);
  };
  const value = (row) => {
    const location = locationOf(row);
    return location ? `${location.file.toLowerCase()}:${String(location.line).padStart(9, "0")}` : "";
  };
  return { key: "place", label, className: "place", value, cell };
}

export function imageColumn() {
  const cell = (element, { fn }) => {
    const text = [LAYERS[fn.layer], fn.image].filter(Boolean).join(" · ");
    element.title = text;
    element.textContent = text;
  };
  return { key: "image", label: "Image", className: "image", value: (row) => row.fn.image.toLowerCase(), cell };
}

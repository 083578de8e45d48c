// The table of functions: sortable, filtered by the search, a page of rows at a time.

import { formatCount, formatPercent, formatPlace, formatShortPath } from "./format.js";
import { textSpan } from "./elements.js";

const ROWS_STEP = 100;

const SORT_KEYS = {
  self: (row) => row.self,
  total: (row) => row.total,
  name: (row) => row.fn.name.toLowerCase(),
  place: (row) => formatPlace(row.fn.location).toLowerCase(),
  image: (row) => row.fn.image.toLowerCase(),
};
const NUMBERS = ["self", "total"];

export class FunctionTable {
  /** `onSelect` gets the function of a row that was chosen, or null when it was chosen again. */
  constructor(section, onSelect) {
    this.body = section.querySelector("tbody");
    this.more = section.querySelector(".more");
    this.heads = [...section.querySelectorAll("th[data-sort]")];
    this.onSelect = onSelect;
    this.sort = { key: "self", descending: true };
    this.limit = ROWS_STEP;
    this.rows = [];
    this.selected = null;
    for (const head of this.heads) {
      head.querySelector("button").addEventListener("click", () => this.sortBy(head.dataset.sort));
    }
    this.more.addEventListener("click", () => {
      this.limit += ROWS_STEP;
      this.draw();
    });
    this.body.addEventListener("click", (event) => {
      const row = event.target.closest("tr");
      if (row) this.onSelect(this.selected?.index === Number(row.dataset.fn) ? null : this.shown[row.sectionRowIndex].fn);
    });
  }

  /** Rows are `{fn, self, total}`; `all` is 100 %; `matches` flags functions or is null. */
  show(rows, all, matches) {
    this.rows = rows;
    this.all = all;
    this.matches = matches;
    this.limit = ROWS_STEP;
    this.draw();
  }

  select(fn) {
    this.selected = fn;
    for (const row of this.body.rows) markRow(row, fn !== null && row.dataset.fn === String(fn.index));
  }

  sortBy(key) {
    const again = this.sort.key === key;
    this.sort = { key, descending: again ? !this.sort.descending : NUMBERS.includes(key) };
    this.draw();
  }

  draw() {
    const { key, descending } = this.sort;
    const value = SORT_KEYS[key];
    const sign = descending ? -1 : 1;
    const filtered = this.matches ? this.rows.filter((row) => this.matches[row.fn.index]) : [...this.rows];
    filtered.sort((a, b) => compareValues(value(a), value(b)) * sign || b.self - a.self || b.total - a.total);
    this.shown = filtered.slice(0, this.limit);
    this.most = {
      self: filtered.reduce((most, row) => Math.max(most, row.self), 0),
      total: filtered.reduce((most, row) => Math.max(most, row.total), 0),
    };
    this.body.replaceChildren(...this.shown.map((row) => this.rowElement(row)));
    const rest = filtered.length - this.shown.length;
    this.more.hidden = rest === 0;
    this.more.textContent = `Show ${Math.min(rest, ROWS_STEP)} more of ${formatCount(rest)}`;
    for (const head of this.heads) {
      head.setAttribute("aria-sort", head.dataset.sort === key ? (descending ? "descending" : "ascending") : "none");
    }
  }

  rowElement({ fn, self, total }) {
    const row = document.createElement("tr");
    row.dataset.fn = fn.index;
    row.append(
      numberCell(self, this.all, this.most.self),
      numberCell(total, this.all, this.most.total),
      this.nameCell(fn),
      this.placeCell(fn.location),
      this.imageCell(fn.image),
    );
    markRow(row, this.selected === fn);
    return row;
  }

  nameCell(fn) {
    const cell = document.createElement("td");
    cell.className = "name";
    const button = document.createElement("button");
    button.type = "button";
    button.title = fn.name;
    button.append(textSpan("short", fn.short));
    if (fn.short !== fn.name) button.append(textSpan("full", fn.name));
    cell.append(button);
    return cell;
  }

  /** A long path gives way to its line. */
  placeCell(location) {
    const cell = document.createElement("td");
    cell.className = "place";
    cell.title = formatPlace(location);
    const content = document.createElement("div");
    if (location) content.append(textSpan("path", formatShortPath(location.file)), textSpan("line", location.line ? `:${location.line}` : ""));
    cell.append(content);
    return cell;
  }

  imageCell(image) {
    const cell = document.createElement("td");
    cell.className = "image";
    cell.title = image;
    cell.textContent = image;
    return cell;
  }
}

function compareValues(a, b) {
  return a < b ? -1 : a > b ? 1 : 0;
}

function markRow(row, selected) {
  row.classList.toggle("selected", selected);
  row.querySelector("button").setAttribute("aria-pressed", String(selected));
}

/** Samples, and their share with a bar behind it; the longest bar is the column's largest. */
function numberCell(part, all, most) {
  const cell = document.createElement("td");
  cell.className = "number";
  const content = document.createElement("div");
  content.className = "cell";
  const share = textSpan("share", formatPercent(part, all));
  share.style.setProperty("--share", `${most > 0 ? (part * 100) / most : 0}%`);
  content.append(textSpan("count", formatCount(part)), share);
  cell.append(content);
  return cell;
}

// The call tree as rows that open: the same boxes as the graph's, with numbers. The heaviest way down is
// open until the reader opens or closes something.

import { formatCount, formatPercent, formatPlace, formatShortPath } from "../shared/format.js";
import { textSpan } from "../shared/elements.js";
import { shareCell } from "./table.js";

/** Callees shown at first, and added by each "more". */
const CHILDREN_STEP = 6;
const ROWS_MAX = 2_000;
const DEPTH_OPENED_MAX = 48;
/** Rows are indented by their level up to here; deeper ones say their level. */
const INDENT_LEVELS = 40;

export class CallTree {
  /** `on` holds select(fn or null) and zoom(path of functions). */
  constructor(section, profile, on) {
    this.body = section.querySelector("tbody");
    this.on = on;
    this.profile = profile;
    this.open = new Set();
    this.touched = false;
    this.limits = new Map();
    this.selected = null;
    this.current = null;
    this.body.addEventListener("click", (event) => this.clicked(event));
    this.body.addEventListener("dblclick", (event) => this.zoomTo(this.rowOf(event.target)));
    this.body.addEventListener("keydown", (event) => this.keyPressed(event));
  }

  /** `root` is a box, `all` is 100 %, `matches` flags functions or is null. */
  show(root, all, matches, nodes) {
    const searched = matches !== null && matches !== this.matches;
    this.root = root;
    this.all = all;
    this.matches = matches;
    this.nodes = nodes;
    this.limits.clear();
    // What was searched for should be in sight.
    if (!this.touched || searched) this.openHeaviest("", root, !this.touched);
    this.draw();
  }

  /** Back to the heaviest way. */
  forget() {
    this.touched = false;
    this.current = null;
  }

  openHeaviest(key, box, alone) {
    if (alone) this.open.clear();
    let [at, path] = [box, key];
    for (let depth = 0; at && depth < DEPTH_OPENED_MAX; depth += 1) {
      if (path !== "") this.open.add(path);
      const heaviest = sortedChildren(at)[0];
      path = heaviest ? childKey(path, heaviest) : "";
      at = heaviest;
    }
  }

  select(fn) {
    this.selected = fn;
    for (const row of this.body.rows) this.mark(row);
  }

  draw() {
    this.rows = [];
    this.list(this.root, "", 1);
    const focused = this.body.contains(document.activeElement);
    this.body.replaceChildren(...this.rows.map((row, index) => this.rowElement(row, index)));
    if (!this.rows.some((row) => row.key === this.current)) this.current = this.rows[0]?.key ?? null;
    this.setCurrent(this.current, focused);
  }

  list(box, key, level) {
    const children = sortedChildren(box);
    const limit = this.limits.get(key) ?? CHILDREN_STEP;
    children.slice(0, limit).forEach((child, index) => {
      if (this.rows.length >= ROWS_MAX) return;
      const path = childKey(key, child);
      const opens = child.children.length > 0;
      const open = opens && this.open.has(path);
      this.rows.push({ key: path, parent: key, box: child, level, opens, open, position: index + 1, of: children.length });
      if (open) this.list(child, path, level + 1);
    });
    const rest = children.slice(limit);
    if (rest.length === 0 || this.rows.length >= ROWS_MAX) return;
    const total = rest.reduce((sum, child) => sum + child.total, 0);
    this.rows.push({ key: `${key}/more`, parent: key, more: rest.length, total, level, of: children.length, position: limit + 1 });
  }

  rowElement(row, index) {
    const element = document.createElement("tr");
    element.dataset.row = index;
    element.tabIndex = -1;
    element.setAttribute("aria-level", row.level);
    element.setAttribute("aria-posinset", row.position);
    element.setAttribute("aria-setsize", row.of);
    if (row.opens) element.setAttribute("aria-expanded", String(row.open));
    element.append(this.totalCell(row), this.selfCell(row), this.nameCell(row), this.placeCell(row));
    if (row.box) element.dataset.fn = row.box.fn.index;
    this.mark(element);
    return element;
  }

  totalCell({ box, total }) {
    const cell = tableCell("number");
    cell.append(shareCell(box?.total ?? total, this.all, this.all));
    return cell;
  }

  selfCell({ box }) {
    const cell = tableCell("self");
    if (box?.self > 0) {
      cell.title = `${formatCount(box.self)} in the function itself`;
      cell.textContent = formatPercent(box.self, this.all);
    }
    return cell;
  }

  nameCell(row) {
    const cell = tableCell("name");
    const content = document.createElement("div");
    content.style.setProperty("--level", String(Math.min(row.level, INDENT_LEVELS) - 1));
    if (row.more) {
      content.append(textSpan("twisty", "…"), textSpan("full", `${formatCount(row.more)} more`));
    } else {
      const { fn } = row.box;
      cell.title = fn.name;
      if (row.level > INDENT_LEVELS) content.append(textSpan("full", `level ${row.level} `));
      content.append(textSpan("twisty", row.opens ? (row.open ? "▾" : "▸") : ""), textSpan(fn.kind === "f" ? "short" : "short entry", fn.short));
      if (fn.short !== fn.name) content.append(textSpan("full", fn.name));
    }
    cell.append(content);
    return cell;
  }

  placeCell({ box }) {
    const cell = tableCell("place");
    const location = box && box.fn.kind === "f" ? this.profile.locations[this.profile.nodes.location[this.nodes.main[box.mainNode]] - 1] : null;
    cell.title = formatPlace(location);
    const content = document.createElement("div");
    if (location) content.append(textSpan("path", formatShortPath(location.file)), textSpan("line", location.line ? `:${location.line}` : ""));
    cell.append(content);
    return cell;
  }

  mark(element) {
    const { box } = this.rows[element.dataset.row];
    element.classList.toggle("selected", Boolean(box) && box.fn === this.selected);
    element.classList.toggle("matched", Boolean(box && this.matches?.[box.fn.index]));
  }

  rowOf(target) {
    return this.rows[target.closest("tr")?.dataset.row] ?? null;
  }

  clicked(event) {
    const row = this.rowOf(event.target);
    if (!row) return;
    this.current = row.key;
    if (row.more) this.showMore(row);
    else if (event.target.closest(".twisty")) this.toggle(row, !row.open);
    else {
      this.on.select(row.box.fn === this.selected ? null : row.box.fn);
      this.setCurrent(row.key, true);
    }
  }

  showMore(row) {
    this.limits.set(row.parent, (this.limits.get(row.parent) ?? CHILDREN_STEP) * 4);
    this.draw();
  }

  toggle(row, open) {
    if (!row.opens) return;
    this.touched = true;
    if (open) this.open.add(row.key);
    else this.open.delete(row.key);
    this.draw();
  }

  zoomTo(row) {
    if (row?.box) this.on.zoom(row.box.path);
  }

  setCurrent(key, focus) {
    this.current = key;
    const index = this.rows.findIndex((row) => row.key === key);
    [...this.body.rows].forEach((element, at) => (element.tabIndex = at === index ? 0 : -1));
    if (focus && index >= 0) this.body.rows[index].focus();
  }

  keyPressed(event) {
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    const index = this.rows.findIndex((row) => row.key === this.current);
    const row = this.rows[index];
    if (!row) return;
    const go = (to) => this.rows[to] && this.setCurrent(this.rows[to].key, true);
    const actions = {
      ArrowDown: () => go(index + 1),
      ArrowUp: () => go(index - 1),
      Home: () => go(0),
      End: () => go(this.rows.length - 1),
      ArrowRight: () => (row.more ? this.showMore(row) : row.opens && !row.open ? this.toggle(row, true) : row.open && go(index + 1)),
      ArrowLeft: () => (row.open ? this.toggle(row, false) : go(this.rows.findIndex((other) => other.key === row.parent))),
      "*": () => {
        if (!row.box) return;
        this.touched = true;
        this.openHeaviest(row.key, row.box, false);
        this.draw();
      },
      Enter: () => (row.more ? this.showMore(row) : this.zoomTo(row)),
      " ": () => row.box && this.on.select(row.box.fn === this.selected ? null : row.box.fn),
    };
    if (!actions[event.key]) return;
    event.preventDefault();
    event.stopPropagation();
    actions[event.key]();
  }
}

function tableCell(className) {
  const cell = document.createElement("td");
  cell.className = className;
  return cell;
}

function childKey(key, box) {
  return `${key}/${box.fn.index}`;
}

/** Heaviest first. */
function sortedChildren(box) {
  return [...box.children].sort((a, b) => b.total - a.total);
}

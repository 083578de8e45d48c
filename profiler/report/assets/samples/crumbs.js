// The way from the root to the zoomed box, each step a button.

const STEPS_MAX = 6;
const STEPS_LAST = 3;

export class Crumbs {
  constructor(list, onZoom) {
    this.list = list;
    this.onZoom = onZoom;
  }

  show(box, unfolded = false) {
    const path = box.path;
    const folded = !unfolded && path.length > STEPS_MAX;
    const first = folded ? path.slice(0, 1) : path;
    const last = folded ? path.slice(-STEPS_LAST) : [];
    const items = first.map((step) => this.item(step, step === box));
    if (folded) {
      const hidden = path.length - first.length - last.length;
      items.push(crumb(`… ${hidden} callers`, `Show ${hidden} callers`, false, () => this.show(box, true)));
    }
    items.push(...last.map((step) => this.item(step, step === box)));
    this.list.replaceChildren(...items);
  }

  item(step, current) {
    return crumb(step.parent ? step.fn.short : "All", step.fn.name, current, () => this.onZoom(step));
  }
}

function crumb(text, title, current, onClick) {
  const item = document.createElement("li");
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = text;
  button.title = title;
  if (current) button.setAttribute("aria-current", "true");
  button.addEventListener("click", onClick);
  item.append(button);
  return item;
}

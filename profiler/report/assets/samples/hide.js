// What is left out of the stacks: images by check-marks, functions by a search. Their callees stay.

import { formatPercent } from "../shared/format.js";
import { textSpan } from "../shared/elements.js";
import { matchFunctions } from "./search.js";

export class HidePanel {
  /** `onChange` gets flags by function, or null for nothing hidden. */
  constructor(panel, functions, onChange) {
    this.panel = panel;
    this.functions = functions;
    this.onChange = onChange;
    this.images = new Set();
    this.list = panel.querySelector(".images");
    this.field = panel.querySelector("input[type=text]");
    this.field.addEventListener("change", () => this.changed());
    panel.querySelector(".show-all").addEventListener("click", () => this.clear());
    // A popover is above everything: its place has to be found for it.
    panel.addEventListener("toggle", () => {
      const { left, bottom } = document.querySelector(`[popovertarget=${panel.id}]`).getBoundingClientRect();
      const { width, height } = panel.getBoundingClientRect();
      panel.style.left = `${Math.max(8, Math.min(left, window.innerWidth - width - 8))}px`;
      panel.style.top = `${Math.max(8, Math.min(bottom + 6, window.innerHeight - height - 8))}px`;
    });
    this.list.addEventListener("change", (event) => {
      const { image } = event.target.dataset;
      if (event.target.checked) this.images.delete(image);
      else this.images.add(image);
      this.changed();
    });
  }

  /** `images` are names and self samples, most first; `all` is 100 %. */
  fill(images, all) {
    this.list.replaceChildren(...images.map(({ name, samples }) => {
      const item = document.createElement("li");
      const label = document.createElement("label");
      const box = document.createElement("input");
      box.type = "checkbox";
      box.checked = !this.images.has(name);
      box.dataset.image = name;
      label.append(box, textSpan("label", name || "(unknown image)"), textSpan("share", formatPercent(samples, all)));
      item.append(label);
      return item;
    }));
  }

  get count() {
    return this.images.size + (this.field.value.trim() === "" ? 0 : 1);
  }

  changed() {
    const flags = matchFunctions(this.functions, this.field.value) ?? new Uint8Array(this.functions.length);
    for (const fn of this.functions) {
      if (fn.kind !== "f") flags[fn.index] = 0;
      else if (this.images.has(fn.image)) flags[fn.index] = 1;
    }
    this.onChange(flags.includes(1) ? flags : null);
  }

  /** Leaves out exactly these images. */
  setImages(names) {
    if (names.length === 0 && this.images.size === 0) return;
    this.images = new Set(names);
    for (const box of this.list.querySelectorAll("input")) box.checked = !this.images.has(box.dataset.image);
    this.changed();
  }

  hideQuery(query) {
    this.field.value = [this.field.value.trim(), query.trim()].filter(Boolean).join(", ");
    this.changed();
  }

  clear() {
    this.images.clear();
    this.field.value = "";
    for (const box of this.list.querySelectorAll("input")) box.checked = true;
    this.changed();
  }
}

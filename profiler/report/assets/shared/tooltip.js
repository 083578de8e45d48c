// Text beside the pointer or the keyboard's mark.

import { textElement } from "./elements.js";

const MARGIN_PX = 12;

export class Tooltip {
  constructor(element) {
    this.element = element;
  }

  show(lines, x, y) {
    const { element } = this;
    element.replaceChildren(...lines.map(([className, text]) => textElement("div", className, text)));
    element.hidden = false;
    const { width, height } = element.getBoundingClientRect();
    const left = Math.max(MARGIN_PX, Math.min(x + MARGIN_PX, window.innerWidth - width - MARGIN_PX));
    const below = y + MARGIN_PX;
    const top = below + height < window.innerHeight ? below : Math.max(MARGIN_PX, y - height - MARGIN_PX);
    element.style.left = `${left}px`;
    element.style.top = `${top}px`;
  }

  hide() {
    this.element.hidden = true;
  }
}

"use strict";
// Zoom and search of a flame graph that a browser opens directly. What it changes is in the document already: without it the image is whole.
(() => {
  const svg = document.currentScript.ownerSVGElement;
  const LETTER = 7;
  const boxes = [...svg.querySelectorAll("g")].map((group) => {
    const [rect, label, title] = ["rect", "text", "title"].map((name) => group.querySelector(name));
    const number = (name) => Number(rect.getAttribute(name));
    const name = title.textContent.split("\n")[0];
    const short = group.getAttribute("data-short") || name;
    return { group, rect, label, name, short, top: number("y"), left: number("x"), width: number("width") };
  });
  if (boxes.length === 0) return;
  const root = boxes[0];
  const all = { left: root.left, width: root.width };
  let zoomed = root;

  function control(text, x, y, action) {
    const label = document.createElementNS(svg.namespaceURI, "text");
    label.setAttribute("x", x);
    label.setAttribute("y", y);
    label.setAttribute("class", "s");
    label.textContent = text;
    if (action) {
      label.setAttribute("tabindex", "0");
      label.setAttribute("role", "button");
      label.style.cursor = "pointer";
      label.addEventListener("click", action);
      label.addEventListener("keydown", (event) => event.key === "Enter" && action());
    }
    svg.append(label);
    return label;
  }

  function fitted(box, width) {
    const letters = Math.floor((width - 8) / LETTER);
    if (letters < 3) return "";
    const text = [...(box.name.length > letters ? box.short : box.name)];
    return text.length > letters ? text.slice(0, letters - 1).join("") + "\u2026" : text.join("");
  }

  /** Stretches a box, with all that it calls and all that calls it, over the whole width. */
  function zoom(box) {
    zoomed = box;
    const scale = all.width / box.width;
    for (const other of boxes) {
      const isCaller = other.top >= box.top && other.left <= box.left + 0.05
        && other.left + other.width >= box.left + box.width - 0.8;
      const left = isCaller ? all.left : all.left + (other.left - box.left) * scale;
      const width = isCaller ? all.width : other.width * scale;
      const isShown = isCaller || (other.top < box.top && left >= all.left - 0.5 && left + width <= all.left + all.width + 1);
      other.group.style.display = isShown ? "" : "none";
      if (!isShown) continue;
      other.group.style.opacity = isCaller && other.top > box.top ? 0.6 : 1;
      other.rect.setAttribute("x", left);
      other.rect.setAttribute("width", width);
      const text = fitted(other, width);
      if (!other.label && text) {
        other.label = document.createElementNS(svg.namespaceURI, "text");
        other.label.setAttribute("y", other.top + 13);
        other.group.append(other.label);
      }
      if (other.label) {
        other.label.setAttribute("x", left + 4);
        other.label.textContent = text;
      }
    }
    reset.style.display = box === root ? "none" : "";
  }

  /** Marks the boxes whose name matches, and shows their share: a box under another that matches does not count again. */
  function search(text) {
    let pattern = null;
    try {
      pattern = text ? new RegExp(text, "i") : null;
    } catch {
      found.textContent = "no regular expression: " + text;
      return;
    }
    const counted = [];
    for (const box of boxes) {
      const matches = pattern !== null && box !== root && pattern.test(box.name);
      box.rect.classList.toggle("m", matches);
      const isInside = (other) => box.left >= other.left - 0.05 && box.left + box.width <= other.left + other.width + 0.8;
      if (matches && !counted.some(isInside)) counted.push(box);
    }
    const share = counted.reduce((sum, box) => sum + box.width, 0) / all.width;
    found.textContent = pattern === null ? "" : `${text}: ${(share * 100).toFixed(1)} %`;
  }

  const ask = () => {
    const text = prompt("Search function names (a regular expression; empty: none)", "");
    if (text !== null) search(text);
  };
  const right = all.left + all.width;
  control("search", right - 6 * LETTER, 46, ask);
  const reset = control("whole graph", right - 19 * LETTER, 46, () => zoom(root));
  const found = control("", right, Number(svg.getAttribute("height")) - 9);
  found.setAttribute("text-anchor", "end");
  reset.style.display = "none";
  for (const box of boxes) {
    box.group.style.cursor = "pointer";
    box.group.addEventListener("click", () => zoom(box === zoomed ? root : box));
  }
  addEventListener("keydown", (event) => {
    if (event.key === "Escape") {
      zoom(root);
      search("");
    } else if (event.key === "/" || (event.key === "f" && (event.ctrlKey || event.metaKey))) {
      event.preventDefault();
      ask();
    }
  });
})();

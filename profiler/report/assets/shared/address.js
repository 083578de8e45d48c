// The address of the page keeps what is shown, so that a link shows the same to another reader.

const DELAY_MS = 300;

export class Address {
  /**
   * `write` gives what a view shows, an object of texts by key; an empty text is what is shown without any, and none
   * leaves the key as it is.
   */
  constructor(write) {
    this.write = write;
    this.timer = null;
    this.isStarted = false;
  }

  /** From now on changes are kept. */
  start() {
    this.isStarted = true;
  }

  /** Something has changed. */
  keep() {
    if (this.timer !== null || !this.isStarted) return;
    this.timer = setTimeout(() => {
      this.timer = null;
      // Keys of the other view of the page stay.
      const parts = read();
      for (const [key, text] of Object.entries(this.write())) {
        if (text === undefined) continue;
        if (text === "") parts.delete(key);
        else parts.set(key, text);
      }
      const hash = parts.toString();
      history.replaceState(null, "", hash === "" ? location.pathname + location.search : `#${hash}`);
    }, DELAY_MS);
  }
}

/** The parts of the address, by key. */
export function read(url = location.href) {
  return new URLSearchParams(new URL(url).hash.slice(1));
}

/** Calls `show` with the address that the reader has gone to. Until then another one may have been kept already. */
export function onAddress(show) {
  window.addEventListener("hashchange", ({ newURL }) => show(newURL));
}

/** Two numbers as `numbers` wrote them; null if it did not, or if they are no range. */
export function range(text) {
  const [from, to] = (text ?? "").split("-").map(Number);
  return to > from && from >= 0 ? [from, to] : null;
}

/** A list of numbers. */
export function list(text) {
  return (text ?? "").split(".").filter((part) => part !== "").map(Number);
}

/** Some texts, whatever is in them. */
export function writeTexts(texts) {
  return texts.size > 0 ? JSON.stringify([...texts]) : "";
}

/** The texts that `writeTexts` wrote; none if it did not. */
export function readTexts(text) {
  try {
    return JSON.parse(text ?? "[]").map(String);
  } catch {
    return [];
  }
}

/** Controls of samples that are kept, and the event that one of them has changed. */
const CONTROLS = {
  // In front of the colours, which it sets.
  side: ["input[name=side]", "change"],
  view: ["input[name=view]", "change"],
  width: ["input[name=width]", "change"],
  recursion: ["#recursion", "change"],
  colours: ["#colour", "change"],
  count: ["input[name=state]", "change"],
  leave: ["#hide .pattern input", "change"],
  find: ["#search", "input"],
};

/** What of a control is chosen or typed, and what is in a page that has just been opened. */
function valuesOf(elements) {
  const [first] = elements;
  if (first.matches("[type=radio], [type=checkbox]")) {
    const join = (field) => elements.filter((element) => element[field]).map((element) => element.value).join(",") || "none";
    return [join("checked"), join("defaultChecked")];
  }
  if (first.matches("select")) return [first.value, first.options[0].value];
  return [first.value, ""];
}

/** The controls of this page as texts. */
export function controlTexts() {
  const texts = {};
  for (const [key, [selector]] of Object.entries(CONTROLS)) {
    const elements = /** @type {HTMLInputElement[]} */ ([...document.querySelectorAll(selector)]);
    if (elements.length === 0) continue;
    const [now, before] = valuesOf(elements);
    texts[key] = now === before ? "" : now;
  }
  return texts;
}

/** Whether controls can have a value: of a list of several, each. */
function isPossible(elements, value) {
  const [first] = elements;
  if (value === null) return false;
  if (first.matches("[type=checkbox]")) return value === "none" || value.split(",").every((part) => elements.some((element) => element.value === part));
  if (first.matches("[type=radio]")) return elements.some((element) => element.value === value);
  return !first.matches("select") || [...first.options].some((option) => option.value === value);
}

/** Sets the controls to what the address has, as if the reader had. */
export function setControls(parts) {
  for (const [key, [selector, type]] of Object.entries(CONTROLS)) {
    const elements = /** @type {HTMLInputElement[]} */ ([...document.querySelectorAll(selector)]);
    if (elements.length === 0) continue;
    const [now, before] = valuesOf(elements);
    const wanted = isPossible(elements, parts.get(key)) ? parts.get(key) : before;
    if (wanted === now) continue;
    for (const element of elements) {
      if (!element.matches("[type=radio], [type=checkbox]")) element.value = wanted;
      else if (wanted.split(",").includes(element.value) === element.checked) continue;
      else element.checked = !element.checked;
      // Of radio buttons only the one that is chosen sends an event.
      if (element.type !== "radio" || element.checked) element.dispatchEvent(new Event(type, { bubbles: true }));
    }
  }
}

// What a search matches: parts of functions' names, or whole crates, images, files or modes.

import { LAYERS } from "./profile.js";

/**
 * Flags by function, or null for an empty search. Parts are separated by commas, one of them must
 * match. `crate:`, `image:`, `file:` and `mode:` search in those; `*` stands for anything, and a name with it is
 * matched as a whole.
 */
export function matchFunctions(functions, query) {
  const tests = query.toLowerCase().split(",").map((part) => part.trim()).filter(Boolean).map(matchOne);
  if (tests.length === 0) return null;
  return Uint8Array.from(functions, (fn) => (fn.kind !== "r" && tests.some((test) => test(fn)) ? 1 : 0));
}

function matchOne(wanted) {
  const [, field, rest] = /^(crate|image|file|mode):(.*)$/.exec(wanted) ?? [null, "name", wanted];
  const anywhere = !rest.includes("*");
  return {
    name: (fn) => (anywhere ? fn.name.toLowerCase().includes(rest) : matchStars(fn.name.toLowerCase(), rest)),
    crate: (fn) => matchStars(fn.group.toLowerCase(), rest),
    image: (fn) => matchStars(fn.image.toLowerCase(), rest),
    file: (fn) => (fn.location?.file ?? "").toLowerCase().includes(rest),
    mode: (fn) => fn.kind === "f" && matchStars((LAYERS[fn.layer] ?? "").toLowerCase(), rest),
  }[field];
}

/** Whether a text is the pattern, in which `*` stands for any text; never looks at a character twice. */
function matchStars(text, pattern) {
  const parts = pattern.split("*");
  if (parts.length === 1) return text === pattern;
  const [first, last] = [parts[0], parts[parts.length - 1]];
  if (text.length < first.length + last.length || !text.startsWith(first) || !text.endsWith(last)) return false;
  let at = first.length;
  for (const part of parts.slice(1, -1)) {
    const found = text.indexOf(part, at);
    if (found < 0 || found + part.length > text.length - last.length) return false;
    at = found + part.length;
  }
  return true;
}

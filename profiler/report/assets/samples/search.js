// What a search matches: parts of functions' names, or whole crates (or what else colours stand for), images, files or modes.

import { LAYERS } from "./profile.js";

/** What a function's group may be. Any of the words searches in all groups: a page of several languages has several. */
const GROUP_WORDS = ["crate", "namespace", "package", "script", "library"];
const SEARCH_FIELD = new RegExp(`^(${GROUP_WORDS.join("|")}|image|file|mode):(.*)$`);

/**
 * Flags by function, or null for an empty search. Parts are separated by commas, one of them must
 * match. `image:`, `file:` and `mode:` search in those, each of GROUP_WORDS in the function's group; `*` stands for anything, and a name with it is
 * matched as a whole.
 */
export function matchFunctions(functions, query) {
  const tests = query.toLowerCase().split(",").map((part) => part.trim()).filter(Boolean).map(matchOne);
  if (tests.length === 0) return null;
  return Uint8Array.from(functions, (fn) => (fn.kind !== "r" && tests.some((test) => test(fn)) ? 1 : 0));
}

function matchOne(wanted) {
  const [, field, rest] = SEARCH_FIELD.exec(wanted) ?? [null, "name", wanted];
  const anywhere = !rest.includes("*");
  return {
    name: (fn) => (anywhere ? fn.name.toLowerCase().includes(rest) : matchStars(fn.name.toLowerCase(), rest)),
    group: (fn) => matchStars(fn.group.toLowerCase(), rest),
    image: (fn) => matchStars(fn.image.toLowerCase(), rest),
    file: (fn) => (fn.location?.file ?? "").toLowerCase().includes(rest),
    mode: (fn) => fn.kind === "f" && matchStars((LAYERS[fn.layer] ?? "").toLowerCase(), rest),
  }[GROUP_WORDS.includes(field) ? "group" : field];
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

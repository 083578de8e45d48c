// What a search is for: a part of a name or text, a number, the value of a field or column, the number of a task.

import { pattern } from "./layout.js";

/**
 * `/…/` is a regex, and so is anything that can be one; `#28` is a task; `4,096` is also a number; `id = 47` is also a field.
 * @typedef {{test: RegExp, task: number | null, number: number | null, key: string | null, value: string}} Query
 * @returns {Query | null} null for an empty search.
 */
export function parseQuery(text) {
  const plain = text.trim();
  if (plain === "") return null;
  const isRegex = plain.length > 2 && plain.startsWith("/") && plain.endsWith("/");
  const query = { test: pattern(isRegex ? plain.slice(1, -1) : plain), task: null, number: null, key: null, value: "" };
  if (isRegex) return query;
  const task = /^#(\d+)$/.exec(plain);
  if (task) query.task = Number(task[1]);
  const number = plain.replace(/ bytes$/i, "").replaceAll(",", "");
  if (/^\d+$/.test(number)) query.number = Number(number);
  const field = /^([^=]+?)\s*=\s*(.+)$/.exec(plain);
  if (field) {
    query.key = field[1].trim().toLowerCase();
    query.value = field[2].trim();
    const value = query.value.replaceAll(",", "");
    if (/^\d+$/.test(value)) query.number = Number(value);
  }
  return query;
}

/** Whether fields or a message, one a line, have what a query is for. */
export function matchesText({ test, key, value }, text) {
  if (text === "") return false;
  if (key === null) return test.test(text);
  return text.split("\n").some((line) => {
    const at = line.indexOf(" = ");
    return at > 0 && line.slice(0, at).toLowerCase() === key && unquoted(line.slice(at + 3)).toLowerCase() === unquoted(value).toLowerCase();
  });
}

function unquoted(text) {
  return text.replace(/^"(.*)"$/, "$1");
}

/** Columns in which a query's number is looked for: all that show numbers, or the one that it names. */
export function columnsWith({ key, number }, type) {
  if (number === null) return [];
  const shown = type.columns.map(({ label, show }, column) => ({ label: label.toLowerCase(), show, column }));
  return shown.filter(({ label, show }) => ["count", "number", "bytes"].includes(show) && label !== "" && (key === null || label === key)).map(({ column }) => column);
}

/** The order in which matches are visited: by time, then from the upper track to the lower one. */
export function compareItems(a, b) {
  return a.start - b.start || a.track.number - b.track.number || a.place - b.place || a.index - b.index;
}

// What a search matches: a part of a function's name, or all of a crate, an image or a file.

/** Flags by function, or null for an empty search. `crate:`, `image:` and `file:` ask for those. */
export function matchFunctions(functions, query) {
  const wanted = query.trim().toLowerCase();
  if (wanted === "") return null;
  const [, field, rest] = /^(crate|image|file):(.*)$/.exec(wanted) ?? [null, "name", wanted];
  const matches = {
    name: (fn) => fn.name.toLowerCase().includes(rest),
    crate: (fn) => fn.group.toLowerCase() === rest,
    image: (fn) => fn.image.toLowerCase() === rest,
    file: (fn) => (fn.location?.file ?? "").toLowerCase().includes(rest),
  }[field];
  return Uint8Array.from(functions, (fn) => (fn.kind !== "r" && matches(fn) ? 1 : 0));
}

// What every page has: light and dark, the list of keys, tabs.

/** @type {(selector: string) => any} */
export const find = (selector) => document.querySelector(selector);

/** All inputs that a selector finds. @type {(selector: string) => HTMLInputElement[]} */
export const findInputs = (selector) => /** @type {any} */ ([...document.querySelectorAll(selector)]);

/** Follows the system's choice of colours until the reader makes one; `onChange` gets whether it is dark. */
export function startTheme(onChange) {
  const prefersDark = window.matchMedia("(prefers-color-scheme: dark)");
  let dark = prefersDark.matches;
  const apply = () => {
    document.documentElement.dataset.theme = dark ? "dark" : "light";
    find("#theme").textContent = dark ? "Light" : "Dark";
    find("#theme").setAttribute("aria-label", `Switch to ${dark ? "light" : "dark"} colours`);
    onChange(dark);
  };
  prefersDark.addEventListener("change", () => {
    dark = prefersDark.matches;
    apply();
  });
  find("#theme").addEventListener("click", () => {
    dark = !dark;
    apply();
  });
  apply();
}

/** Whether keys are text for an input. */
export function isTyping(event) {
  return event.target.matches("input[type=search], input[type=text]");
}

/** `/` goes to the search. True if the key was that. */
export function searchKey(event, search) {
  if (event.key !== "/" || isTyping(event)) return false;
  event.preventDefault();
  search.focus();
  search.select();
  return true;
}

/** `?` opens the list of keys, Escape closes it. True if the key was meant for it. */
export function helpKey(event) {
  if (event.key === "Escape" && find("#help").open) {
    find("#help").close();
    return true;
  }
  if (event.key !== "?" || isTyping(event)) return find("#help").open;
  event.preventDefault();
  find("#help").showModal();
  return true;
}

/** Tabs as ARIA has them: arrows move between them. `onChange` gets the name of the tab that is shown. */
export function startTabs(list, onChange) {
  const tabs = [...list.querySelectorAll("[role=tab]")];
  const show = (tab, focus) => {
    for (const other of tabs) {
      other.setAttribute("aria-selected", String(other === tab));
      other.tabIndex = other === tab ? 0 : -1;
      find(`#${other.getAttribute("aria-controls")}`).hidden = other !== tab;
    }
    if (focus) tab.focus();
    onChange(tab.getAttribute("aria-controls"));
  };
  for (const tab of tabs) tab.addEventListener("click", () => show(tab, false));
  list.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    show(tabs[(tabs.indexOf(event.target) + step + tabs.length) % tabs.length], true);
  });
  show(tabs[0], false);
}

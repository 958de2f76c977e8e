// What the page shows stands in the address after `#`, so that it can be sent to a colleague: filters, the span of time
// and the decision that is open.

const listeners = [];
/** How long what changes all the time has to stand still. */
const SOON_MS = 300;
/** What the address does not have yet. */
let late = {};
let writing = 0;

/** What stands in the address, by name; what is absent is "". */
export function shown(name) {
  return params().get(name) ?? "";
}

function params() {
  return new URLSearchParams(location.hash.slice(1));
}

/** Changes the address. With `push`, the browser's back button undoes it. */
export function show(changes, push = false) {
  const next = params();
  for (const [name, value] of Object.entries({ ...late, ...changes })) {
    if (value) next.set(name, value);
    else next.delete(name);
  }
  late = {};
  const address = `#${next}`;
  if (address === location.hash || (address === "#" && !location.hash)) return;
  if (push) history.pushState(null, "", address);
  else history.replaceState(null, "", address);
  for (const listener of listeners) listener();
}

/**
 * As `show`, once nothing has changed for a moment, or with what else is shown. A browser drops changes of the address
 * beyond some 200 in 10 s, whatever they are, and a wheel alone makes more.
 */
export function showSoon(changes) {
  Object.assign(late, changes);
  clearTimeout(writing);
  writing = setTimeout(() => show({}), SOON_MS);
}

/** Calls back whenever the address has changed. */
export function onShown(listener) {
  listeners.push(listener);
}

addEventListener("hashchange", () => listeners.forEach((listener) => listener()));
addEventListener("popstate", () => listeners.forEach((listener) => listener()));

/** The address that leads to a decision. */
export const decisionAddress = (id) => `#decision=${encodeURIComponent(id)}`;

// What the page shows stands in the address after `#`, so that it can be sent to a colleague: filters, the span of time
// and the decision that is open.

const listeners = [];

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
  for (const [name, value] of Object.entries(changes)) {
    if (value) next.set(name, value);
    else next.delete(name);
  }
  const address = `#${next}`;
  if (address === location.hash || (address === "#" && !location.hash)) return;
  if (push) history.pushState(null, "", address);
  else history.replaceState(null, "", address);
  for (const listener of listeners) listener();
}

/** Calls back whenever the address has changed. */
export function onShown(listener) {
  listeners.push(listener);
}

addEventListener("hashchange", () => listeners.forEach((listener) => listener()));
addEventListener("popstate", () => listeners.forEach((listener) => listener()));

/** The address that leads to a decision. */
export const decisionAddress = (id) => `#decision=${encodeURIComponent(id)}`;

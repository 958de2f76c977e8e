// The filters of the decisions: a form, and the same in the address.

import { onShown, show, shown } from "./address.js";
import { byId, el } from "./dom.js";
import { CODES } from "./reasons.js";

const DECISION_ID = /^[0-9a-f]+-[0-9a-f]+-[0-9a-f]+$/;
const NAMES = ["verdict", "reason", "route", "lock", "owner", "find"];

/** Keeps form and address the same; calls back when they change. */
export function bindFilters(changed) {
  const form = byId("filters");
  form.elements.reason.append(...CODES.map((code) => el("option", { value: code }, code)));
  let shows = "";
  const follow = () => {
    for (const name of NAMES) choose(form.elements[name], shown(name));
    const now = JSON.stringify(filters());
    if (now === shows) return;
    shows = now;
    byId("clear-filters").disabled = !anyFilter();
    changed();
  };
  form.addEventListener("input", () => show(Object.fromEntries(NAMES.map((name) => [name, form.elements[name].value]))));
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("reset", (event) => {
    event.preventDefault();
    show(Object.fromEntries(NAMES.map((name) => [name, ""])));
  });
  onShown(follow);
  follow();
}

function choose(control, value) {
  // A route that is gone can still stand in an address.
  if (control.tagName === "SELECT" && ![...control.options].some((option) => option.value === value)) {
    control.append(el("option", { value }, value));
  }
  if (control.value !== value) control.value = value;
}

/** Offers these routes to choose from. */
export function offerRoutes(names) {
  const select = byId("filters").elements.route;
  const offered = new Set([...select.options].map((option) => option.value));
  select.append(...names.filter((name) => !offered.has(name)).map((name) => el("option", { value: name }, name)));
}

/** The filters in force. */
export const filters = () => Object.fromEntries(NAMES.map((name) => [name, shown(name)]));

export const anyFilter = () => NAMES.some((name) => shown(name) !== "");

/** Whether a decision passes. Texts need only occur, whatever their case. */
export function passes(decision, wanted) {
  const has = (value, text) => !text || String(value ?? "").toLowerCase().includes(text.toLowerCase());
  return verdictPasses(decision, wanted.verdict)
    && (!wanted.reason || decision.reason === wanted.reason)
    && (!wanted.route || decision.route === wanted.route)
    && has(decision.lock, wanted.lock)
    && has(decision.owner, wanted.owner)
    && has(`${decision.id} ${decision.client} ${decision.method} ${decision.path} ${decision.revision}`, wanted.find);
}

function verdictPasses(decision, verdict) {
  switch (verdict) {
    case "reject": return decision.verdict === "reject" && !decision.forwarded;
    case "shadow": return decision.verdict === "reject" && decision.forwarded;
    case "pass":
    case "admit": return decision.verdict === verdict;
    default: return verdict === "";
  }
}

/** What the proxy is asked, to find older decisions than those this page has; it compares texts as a whole. */
export function question(wanted) {
  const query = new URLSearchParams({ limit: "500" });
  for (const name of ["reason", "route", "lock", "owner"]) if (wanted[name]) query.set(name, wanted[name]);
  if (wanted.verdict) query.set("verdict", wanted.verdict === "shadow" ? "reject" : wanted.verdict);
  if (["reject", "shadow"].includes(wanted.verdict)) query.set("forwarded", wanted.verdict === "shadow");
  if (DECISION_ID.test(wanted.find)) query.set("id", wanted.find);
  return `/decisions?${query}`;
}

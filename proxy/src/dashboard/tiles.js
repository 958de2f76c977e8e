// The strip at the top: what somebody wants to know first.

import { byId, el, sync, visible } from "./dom.js";
import { holderOf, isFree, silentSince } from "./model.js";
import { ageOf, sourceState } from "./tables.js";
import { duration, now } from "./time.js";

const LATELY_MS = 5 * 60000;

export function showTiles(model) {
  const tiles = [storeTile(model), fencingTile(model), lockTile(model), refusalTile(model), barrierTile(model), workerTile(model)];
  sync(byId("tiles"), tiles, (tile) => tile.title, ({ title, grade, value, second, note, link }) => el("a", { class: `tile ${grade}`, href: link },
    el("span", { class: "tile-title" }, title), el("strong", { title: value }, el("span", { class: "sign", "aria-hidden": "true" }, SIGNS[grade]), value), second ? el("span", { class: "tile-second" }, second) : null, el("span", { class: "tile-note", title: note }, note)));
}

/** What stands in a tile until what it tells is known: "0" would be an all-clear that nobody has given. */
const unknown = (title, link) => ({ title, grade: "calm", value: "…", note: "", link });

const SIGNS = { good: "✓ ", warn: "▲ ", bad: "✗ ", calm: "" };

function storeTile({ sources, outages }) {
  const link = "#sources-title";
  if (sources === null) return unknown("Lock stores", link);
  if (sources.length === 0) return { title: "Lock stores", grade: "calm", value: "–", note: "", link };
  const states = sources.map((source) => ({ source, state: sourceState(source, outages) }));
  const worst = states.find(({ state }) => state[0] === "bad") ?? states.find(({ state }) => state[0] === "warn");
  if (worst) return { title: "Lock stores", grade: worst.state[0], value: worst.state[1].split(":")[0], note: `${visible(worst.source.source)}, age ${ageText(worst.source)}`, link };
  const used = states.filter(({ state }) => state[0] === "good").map(({ source }) => source);
  if (used.length === 0) return { title: "Lock stores", grade: "calm", value: "not in use", note: "nothing is read from any", link };
  const oldest = Math.max(...used.map((source) => ageOf(source) ?? 0));
  return { title: "Lock stores", grade: "good", value: used.length === 1 ? "answers" : `all ${used.length} answer`, note: `news at most ${duration(oldest)} old`, link };
}

const ageText = (source) => (ageOf(source) === null ? "unknown" : duration(ageOf(source)));

/** Is anything let through that the fence should stop? */
function fencingTile({ routes, dangers }) {
  const link = "#routes-title";
  if (routes === null || dangers === null) return unknown("Fencing", link);
  if (routes.length === 0) return { title: "Fencing", grade: "calm", value: "–", note: "", link };
  const open = routes.filter((route) => route.mode !== "enforce");
  const names = (routes) => routes.map((route) => `${visible(route.name)} (${route.mode})`).join(", ");
  if (dangers.length) return { title: "Fencing", grade: "bad", value: "weakened", note: dangers.join(", "), link };
  if (open.length) return { title: "Fencing", grade: "warn", value: `${routes.length - open.length} of ${routes.length}`, second: "routes enforce", note: names(open), link };
  return { title: "Fencing", grade: "good", value: "enforced", note: routes.length === 1 ? "on its one route" : `on all ${routes.length} routes`, link };
}

/** The timeline tells who holds what, but not of each lock where there are very many, and of none that was not read yet. */
function lockTile({ locks, since, tracked, truncated, outages, cutOffSince }) {
  const [title, link] = ["Locks", "#timeline-title"];
  if (since === null || tracked === null) return unknown(title, link);
  const rows = [...locks.values()];
  const held = rows.filter(holderOf).length;
  const text = (count) => count.toLocaleString("en");
  if (truncated) return { title, grade: "calm", value: `${text(tracked)} tracked`, note: `${text(held)} held of ${text(locks.size)} shown`, link };
  const free = rows.filter(isFree).length;
  const unread = Math.max(0, tracked - held - free);
  const notes = [free || !unread ? `${text(free)} without a holder` : "", unread ? `${text(unread)} not read yet` : ""];
  const second = rows.some(({ source }) => silentSince({ outages, cutOffSince }, source) !== null) ? "as last known" : "";
  return { title, grade: "calm", value: `${text(held)} held`, second, note: notes.filter(Boolean).join(", "), link };
}

/** What the proxy has counted: of a flood, not each decision comes to this page. */
function refusalTile({ refusedLately }) {
  const link = "#decisions";
  const title = "Refused, last 5 min";
  if (refusedLately === null) return unknown(title, link);
  const { reject, would_reject: wouldReject } = refusedLately;
  const sum = (counts) => Object.values(counts).reduce((sum, count) => sum + count, 0);
  const codes = [...new Set([...Object.keys(reject), ...Object.keys(wouldReject)])];
  const of = (code) => (reject[code] ?? 0) + (wouldReject[code] ?? 0);
  const note = codes.length ? `mostly ${codes.sort((a, b) => of(b) - of(a))[0]}` : "nothing in the last 5 min";
  const [refused, wouldBe] = [sum(reject), sum(wouldReject)].map((count) => count.toLocaleString("en"));
  // In shadow mode nothing is refused.
  const second = wouldBe === "0" ? "" : `${wouldBe} would be refused (shadow)`;
  return { title, grade: "calm", value: `${refused} refused`, second, note, link };
}

function barrierTile({ locks, since }) {
  const [title, link] = ["Waiting at the barrier", "#handoffs-title"];
  if (since === null) return unknown(title, link);
  const waits = [...locks.values()].flatMap((lock) => lock.waits);
  const open = waits.filter((wait) => wait.ended_ms === null);
  const waiting = open.reduce((sum, wait) => sum + wait.waiting, 0);
  const late = waits.filter((wait) => wait.outcome === "timed-out" && now() - wait.ended_ms < LATELY_MS).length;
  const longest = Math.max(0, ...open.map((wait) => now() - wait.began_ms));
  const note = waiting ? `for ${duration(longest)}` : late ? `${late} gave up in the last 5 min` : "no handoff is under way";
  return { title, grade: waiting || late ? "warn" : "calm", value: waiting.toLocaleString("en"), note, link };
}

function workerTile({ routes }) {
  const [title, link] = ["At the worker", "#routes-title"];
  if (routes === null) return unknown(title, link);
  const sum = (what) => routes.reduce((sum, route) => sum + (route[what] ?? 0), 0);
  const orphans = sum("orphans");
  return { title, grade: orphans ? "warn" : "calm", value: `${sum("in_flight") - sum("waiting")} in flight`, note: orphans ? `${orphans} ${orphans === 1 ? "orphan" : "orphans"} may still run` : "no orphans", link };
}

/** A setting that weakens the fence says so in its value or its name, and one of them in another word. */
const weakens = (key, value) => value.startsWith("dangerous_") || (key === "partial_requests" && value === "harmless")
  || (/(^|\.)dangerous_/.test(key) && value === "true");

/** The settings in force that weaken the fence, each with the routes that have it: `on_unavailable = dangerous_admit (shards)`. */
export function dangersOf({ settings }) {
  const routes = new Map();
  for (const [table, values] of Object.entries(settings)) {
    for (const [key, value] of Object.entries(values)) {
      if (!weakens(key, value)) continue;
      const danger = `${key} = ${value}`;
      routes.set(danger, [...(routes.get(danger) ?? []), ...(table ? [visible(table.replace(/^route\./, ""))] : [])]);
    }
  }
  return [...routes].map(([danger, names]) => (names.length ? `${danger} (${names.join(", ")})` : danger));
}

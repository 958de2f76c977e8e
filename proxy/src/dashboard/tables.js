// The tables below: handoffs, routes, shadow mode, lock stores; and the timeline's own.

import { decisionAddress } from "./address.js";
import { mark } from "./chart.js";
import { byId, el, name, sync } from "./dom.js";
import { handoffs, refusedText, refusedUnder, tailOf } from "./model.js";
import { ownerClass } from "./owners.js";
import { rateText, timesTexts } from "./rates.js";
import { duration, now, time } from "./time.js";

const HANDOFFS_AT_FIRST = 20;
const HANDOFFS_MORE = 100;
const HANDOFFS_MAX = 520;
const TENURES_MAX = 300;
const SHADOW_KINDS_MAX = 50;

const cell = (...content) => el("td", {}, ...content);
const number = (value, className = "") => el("td", { class: `number ${className}` }, value === null || value === undefined ? "–" : ["number", "bigint"].includes(typeof value) ? value.toLocaleString("en") : value);
const owner = (lock, { owner: who, first }) => el("span", { class: `${ownerClass(who, lock)} one-line` }, el("i", { class: "swatch", "aria-hidden": "true" }), name(who, 24), el("span", { class: "revision" }, ` @${first}`));

let handoffsMost = HANDOFFS_AT_FIRST;

/** Shows more handoffs, from now on. */
export function showMoreHandoffs(model) {
  handoffsMost = Math.min(handoffsMost + HANDOFFS_MORE, HANDOFFS_MAX);
  showHandoffs(model);
}

export function showHandoffs(model) {
  const { newest, all } = handoffs(model.locks.values(), handoffsMost);
  byId("handoffs-count").textContent = all > newest.length ? `${newest.length} of ${all.toLocaleString("en")} shown` : "";
  byId("more-handoffs").hidden = all === newest.length || newest.length === HANDOFFS_MAX;
  byId("handoffs-empty").hidden = newest.length > 0;
  sync(byId("handoffs"), newest, ({ lock, to }) => `${lock.source} ${lock.lock} ${to.first}`, (handoff) => el("tr", {},
    cell(name(handoff.lock.lock, 40)), cell(owner(handoff.lock, handoff.from)), cell(owner(handoff.lock, handoff.to)), cell(time(handoff.when)),
    number(handoff.gap < 1 ? "none" : duration(handoff.gap)), number(waitText(handoff), handoff.timedOut ? "bad" : ""),
    number(handoff.wait === null ? "–" : handoff.drained),
    number(handoff.tail === null ? "–" : `${duration(handoff.tail)}, ${refusedUnder(handoff.from, "refused")}`, handoff.tail === null ? "" : "zombie")));
}

function waitText(handoff) {
  if (handoff.wait === null) return "none";
  const gaveUp = handoff.timedOut ? ", gave up" : "";
  const waiting = handoff.waiting ? `${handoff.waiting} waiting of ` : "";
  return `${duration(handoff.wait)}${gaveUp}, ${waiting}${handoff.requests} req.`;
}

/** What a mode means for whoever looks. */
const MODES = {
  enforce: ["good", "refuses"],
  shadow: ["warn", "refuses nothing, only counts"],
};

export function showRoutes({ trouble, rates }) {
  byId("generation").textContent = `configuration ${trouble.generation}`;
  sync(byId("routes"), trouble.routes, (route) => route.name, (route) => {
    const [grade, meaning] = MODES[route.mode] ?? ["warn", "not fenced"];
    const rejected = Object.values(route.requests.reject).reduce((sum, count) => sum + count, 0);
    const watches = route.mode === "shadow";
    const lately = rates.lately(route.name);
    const reasons = Object.entries(route.requests.reject).filter(([, count]) => count > 0).map(([reason, count]) => `${count} ${reason}`).join("\n");
    return el("tr", {},
      cell(name(route.name, 40), el("br"), el("span", { class: "muted" }, route.host ? name(route.host, 40) : null, name(route.path, 60))),
      cell(el("span", { class: `badge ${grade}`, title: meaning }, route.mode), el("br"), el("span", { class: "muted one-line" }, "for ", time(route.since_ms, "for"))),
      ...ratesOf(route, rates, lately),
      cell(name(route.key, 60), el("br"), route.key === null ? null : el("span", { class: "muted one-line", title: "Layout, lock store, freshness and max_age" },
        `${route.layout} in `, name(route.source, 30), `, ${route.freshness}, ${route.max_age_seconds} s`)),
      cell(name(route.upstream, 60), el("br"), el("span", { class: "muted one-line" }, lately === null ? "" : timesTexts(lately.worker).join(", "))),
      number(route.requests.admit),
      el("td", { class: `number refused${watches && rejected ? " warned" : ""}`, title: reasons || null },
        watches && rejected ? [refusedText(0, rejected), el("br"), "(shadow)"] : rejected.toLocaleString("en")),
      number(route.requests.pass, route.requests.pass > 0 ? "warned" : ""), number(route.in_flight - route.waiting), number(route.waiting, route.waiting > 0 ? "warned" : ""),
      number(route.orphans, route.orphans > 0 ? "warned" : ""), number(route.handoffs), number(route.cut));
  });
}

/** Requests per second, and how long verdicts take. */
function ratesOf(route, rates, lately) {
  if (lately === null) return [number("…"), number("…")];
  const refused = lately.refused > 0 ? `${rateText(lately.refused)}/s ${route.mode === "shadow" ? "would be refused" : "refused"}` : null;
  return [
    el("td", { class: "number rate" }, rates.sparkline(route.name), `${rateText(lately.requests)}/s`, refused ? [el("br"), el("span", { class: "muted" }, refused)] : null),
    el("td", { class: "number" }, timesTexts(lately.verdict).flatMap((text) => [text, el("br")])),
  ];
}

export function showShadow(report) {
  const routes = report.routes.filter((route) => route.mode === "shadow");
  const kinds = routes.flatMap((route) => route.refusals.map((refusal) => ({ ...refusal, route: route.route })))
    .sort((a, b) => b.count - a.count);
  const rows = kinds.slice(0, SHADOW_KINDS_MAX);
  byId("shadow").hidden = rows.length === 0;
  showMoreKinds(kinds.slice(SHADOW_KINDS_MAX), routes.reduce((sum, route) => sum + route.other, 0));
  sync(byId("shadow-rows"), rows, (row) => JSON.stringify([row.route, row.reason, row.owner, row.lock, row.owner === null ? row.client : null]), (row) => el("tr", {},
    cell(name(row.route, 40)), cell(el("span", { class: "verdict" }, mark(row.reason, true), ` ${row.reason}`)),
    row.owner === null ? cell(el("span", { class: "muted" }, "none, from "), name(row.client, 40)) : cell(name(row.owner, 40)),
    cell(name(row.lock, 60)), cell(`${row.method} `, name(row.path, 60)), number(row.count), cell(time(row.last_ms)),
    cell(row.decision ? el("a", { href: decisionAddress(row.decision) }, el("code", {}, row.decision)) : "–")));
}

/** Says what has no row; `other` requests are of kinds that the proxy does not tell apart. */
function showMoreKinds(kinds, other) {
  byId("shadow-more").hidden = kinds.length === 0 && other === 0;
  const requests = kinds.reduce((sum, kind) => sum + kind.count, other);
  byId("shadow-more-count").textContent =
    `${other ? "at least " : ""}${several(kinds.length, "more kind")}, ${several(requests, "request")}`;
}

const several = (count, what) => `${count.toLocaleString("en")} ${what}${count === 1 ? "" : "s"}`;

/** How a store is, in few words and a grade. */
export function sourceState(source, outages) {
  const outage = outages.find((outage) => outage.source === source.source && outage.ended_ms === null);
  if (source.distrusted_through !== null) return ["bad", `went back: distrusted through revision ${source.distrusted_through}`];
  if (source.up === null) return ["calm", "not in use"];
  if (!source.up) return ["bad", outage ? outage.kind : "down"];
  return outage ? ["warn", outage.kind] : ["good", "answers"];
}

/** How old what is known of a store is by now. */
export const ageOf = (source) => (source.read_ms === null ? null : now() - source.read_ms);

export function showSources({ sources, outages }) {
  sync(byId("sources"), sources ?? [], (source) => source.source, (source) => {
    const [grade, state] = sourceState(source, outages);
    return el("tr", {},
      cell(name(source.source, 40)), cell(el("span", { class: `badge ${grade}` }, state)),
      number(ageOf(source) === null ? "never read" : duration(ageOf(source))), number(source.revision),
      number(source.tracked_locks), number(source.watch_restarts, source.watch_restarts > 0 ? "noted" : ""),
      cell(source.members.length ? el("ul", { class: "members" }, source.members.map(member)) : "–"), cell(name(source.last_error, 200, "wrap")));
  });
}

function member({ endpoint, version, error, problems }) {
  // An old version goes on working.
  const works = !error && problems.every(({ problem }) => problem === "old-version");
  return el("li", {}, el("span", { class: works ? "good" : "bad", "aria-hidden": "true" }, works ? "✓ " : "✗ "),
    name(endpoint, 60), " ", error ? name(error, 120, "wrap") : el("span", { class: "muted" }, version ?? "version unknown"),
    problems.filter(({ text }) => text !== error).map(({ text }) => [" ", name(text, 300, "wrap")]));
}

/** The timeline in rows and columns; only while it is open. */
export function showTenures(model) {
  if (!byId("as-table").open) return;
  const tenures = [...model.locks.values()].flatMap((lock) => lock.tenures.map((tenure) => ({ lock, tenure })))
    .sort((a, b) => b.tenure.began_ms - a.tenure.began_ms).slice(0, TENURES_MAX);
  sync(byId("tenures"), tenures, ({ lock, tenure }) => `${lock.source} ${lock.lock} ${tenure.first}`, ({ lock, tenure }) => el("tr", {},
    cell(name(lock.lock, 60)), cell(name(tenure.owner, 40)),
    cell(tenure.last === tenure.first ? String(tenure.first) : `${tenure.first} to ${tenure.last}`),
    cell(time(tenure.began_ms)), cell(tenure.ended_ms === null ? "holds it" : time(tenure.ended_ms), tenure.end === "untracked" ? ", not tracked since" : null),
    number(refusedUnder(tenure)), cell(tailOf(tenure) === null ? "–" : `${duration(tailOf(tenure))} after its end`)));
}

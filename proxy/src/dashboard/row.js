// Draws one lock's row of the timeline: what nobody saw, outages, barrier waits, gaps, tenures, the tails of tenures that
// ended and still sent, and the refusals on top.

import { shorten, svg, visible } from "./dom.js";
import { ownerClass } from "./owners.js";
import { CATEGORIES, categoryOf } from "./reasons.js";
import { decisionAddress } from "./address.js";
import { hasEnded, hasEndedBy, silentSince, tailOf, tenureOf } from "./model.js";
import { duration, now } from "./time.js";

export const ROW_HEIGHT = 54;
const BAR = { y: 7, height: 19 };
/** Below the bar: one lane for each tail that overlaps others in time; the last one takes the rest. */
const TAILS = [{ y: 32, height: 8 }, { y: 43, height: 8 }];
const NO_TENURE_Y = 47;
const LETTER = 6.7;
/** Dots nearer than this become one. */
const DOT_STEP = 7;

/**
 * Draws into `parent` (an SVG element of that width). Returns what can be pointed at, in drawing order:
 * `{ x0, x1, y0, y1, kind, … }`.
 */
export function drawRow(parent, lock, { view, model, width, chosen }) {
  const row = { lock, view, model, width, chosen, nodes: [], hits: [] };
  drawGrid(row);
  drawUnseen(row);
  drawOutages(row);
  drawWaits(row);
  drawTenures(row);
  const tails = drawTails(row, stillSending(row));
  drawNow(row);
  drawDots(row, tails);
  parent.replaceChildren(...row.nodes);
  return row.hits;
}

/** From and to in pixels, cut to a little more than what is in sight; `null` if out of sight. */
function extent({ view, width }, beganMs, endedMs) {
  const x0 = view.x(beganMs, width);
  const x1 = view.x(endedMs ?? now(), width);
  if (x1 < 0 || x0 > width) return null;
  return { x0: Math.max(x0, -4), x1: Math.min(Math.max(x1, x0 + 1), width + 4) };
}

function rect(className, { x0, x1 }, y, height, more = {}) {
  return svg("rect", { class: className, x: x0.toFixed(1), y, width: Math.max(1, x1 - x0).toFixed(1), height, ...more });
}

function drawGrid({ view, width, nodes }) {
  const lines = view.ticks(width).ticks.map((tick) => `M${view.x(tick, width).toFixed(1)} 0v${ROW_HEIGHT}`);
  nodes.push(svg("path", { class: "grid", d: lines.join("") }));
}

function drawUnseen(row) {
  if (row.model.since === null) return;
  const unseen = extent(row, 0, row.model.since);
  if (unseen) row.nodes.push(rect("unseen", unseen, 0, ROW_HEIGHT));
}

function drawOutages(row) {
  for (const outage of row.model.outages) {
    if (outage.source !== row.lock.source) continue;
    const at = extent(row, outage.began_ms, outage.ended_ms);
    if (!at) continue;
    row.nodes.push(rect("outage", at, 0, ROW_HEIGHT));
    row.hits.push({ ...at, y0: 0, y1: ROW_HEIGHT, kind: "outage", outage });
  }
}

function drawWaits(row) {
  for (const wait of row.lock.waits) {
    const at = extent(row, wait.began_ms, wait.ended_ms);
    if (!at) continue;
    row.nodes.push(rect(wait.outcome === "timed-out" ? "wait timed-out" : "wait", at, 0.5, 30));
    row.hits.push({ ...at, y0: 0, y1: 30, kind: "wait", wait });
  }
}

/** Draws gaps and tenures. */
function drawTenures(row) {
  const { lock, nodes, hits } = row;
  let narrow = null;
  lock.tenures.forEach((tenure, index) => {
    const next = lock.tenures[index + 1];
    if (hasEnded(tenure)) drawGap(row, tenure, next);
    const at = extent(row, tenure.began_ms, tenure.ended_ms ?? silentSince(row.model, lock.source));
    if (!at) return;
    // Very short tenures that stand close together are drawn as one: what is drawn stays bounded.
    if (at.x1 - at.x0 < 2 && narrow && at.x0 - narrow.x1 < 2) {
      narrow.x1 = at.x1;
      narrow.count += 1;
      narrow.node.setAttribute("width", Math.max(1, narrow.x1 - narrow.x0).toFixed(1));
      return;
    }
    const bar = drawBar(row, tenure, at);
    nodes.push(bar.group);
    const hit = { ...at, y0: BAR.y, y1: BAR.y + BAR.height, kind: "tenure", tenure, count: 1, node: bar.node };
    hits.push(hit);
    narrow = at.x1 - at.x0 < 2 ? hit : null;
  });
}

function drawGap(row, tenure, next) {
  if (next && next.began_ms - tenure.ended_ms < 1) return;
  const at = extent(row, tenure.ended_ms, next?.began_ms ?? null);
  if (!at || at.x1 - at.x0 < 2) return;
  const middle = BAR.y + BAR.height / 2;
  row.nodes.push(svg("path", { class: "gap-line", d: `M${at.x0.toFixed(1)} ${middle}H${at.x1.toFixed(1)}` }));
  const label = `nobody for ${duration((next?.began_ms ?? now()) - tenure.ended_ms)}`;
  const [from, to] = [Math.max(at.x0, 0), Math.min(at.x1, row.width)];
  if (to - from > (label.length + 2) * LETTER) {
    row.nodes.push(svg("text", { class: "gap-text", x: ((from + to) / 2).toFixed(1), y: middle - 3 }, label));
  }
  row.hits.push({ ...at, y0: BAR.y, y1: BAR.y + BAR.height, kind: "gap", from: tenure, to: next });
}

function drawBar(row, tenure, at) {
  const node = rect("bar", at, BAR.y, BAR.height, { rx: at.x1 - at.x0 > 6 ? 3 : 0 });
  const group = svg("g", {
    class: `tenure ${ownerClass(tenure.owner, row.lock)}${tenure.ended_ms === null ? " current" : ""}${tenure.began_seen === false ? " began-unseen" : ""}`,
    "data-owner": shorten(visible(tenure.owner), 256), "data-first": tenure.first, "data-ended": tenure.ended_ms,
  }, node);
  const x = Math.max(at.x0, 0) + 6;
  const text = barText(tenure, Math.floor((Math.min(at.x1, row.width) - x - 3) / LETTER));
  if (text) group.append(svg("text", { class: "bar-text", x: x.toFixed(1), y: BAR.y + 14 }, text));
  return { group, node };
}

/** Owner and revision, as much as there is room for; the revision first gives way last. */
function barText(tenure, letters) {
  const revision = `@${tenure.first}${tenure.last === tenure.first ? "" : `–${tenure.last}`}`;
  const owner = visible(tenure.owner);
  if (letters >= owner.length + 1 + revision.length) return `${owner} ${revision}`;
  if (letters >= revision.length + 5) return `${shorten(owner, letters - revision.length - 1)} ${revision}`;
  if (letters >= revision.length) return revision;
  return letters >= 4 ? shorten(owner, letters) : "";
}

/**
 * The tenures that ended and were refused afterwards, the earlier ones first: with the time of their last refusal, and of
 * the first that is in sight.
 */
function stillSending({ lock, model, view }) {
  const ended = lock.tenures.filter((tenure) => tailOf(tenure) !== null);
  const tails = new Map(ended.map((tenure) => [tenure, { last: tenure.last_refused_ms, dot: Infinity }]));
  // A refusal may be here before the news of its lock.
  for (const { revision, time_ms: at } of model.refusals(lock)) {
    const tenure = tenureOf(lock, revision);
    if (!tenure || !hasEndedBy(tenure, at)) continue;
    const tail = tails.get(tenure) ?? { last: at, dot: Infinity };
    tail.last = Math.max(tail.last, at);
    if (at >= view.from) tail.dot = Math.min(tail.dot, at);
    tails.set(tenure, tail);
  }
  return [...tails].sort(([a], [b]) => (a.first < b.first ? -1 : 1));
}

/** Continues tenures that ended to their last refusal. Returns the lane of each. */
function drawTails(row, tenures) {
  const lanes = new Map();
  const free = TAILS.map(() => -Infinity);
  for (const [tenure, { last, dot }] of tenures) {
    const fits = free.findIndex((taken) => taken <= tenure.ended_ms);
    const lane = fits === -1 ? TAILS.length - 1 : fits;
    free[lane] = Math.max(free[lane], last);
    lanes.set(tenure, TAILS[lane]);
    const at = extent(row, tenure.ended_ms, last);
    if (at) drawTail(row, tenure, { ...at, dot: row.view.x(dot, row.width) }, TAILS[lane]);
  }
  return lanes;
}

function drawTail(row, tenure, at, { y, height }) {
  // To the dot's centre and a little more, so that the last dot sits on it.
  const reach = { x0: at.x0, x1: at.x1 + 5 };
  const group = svg("g", { class: `tail ${ownerClass(tenure.owner, row.lock)}`, "data-owner": shorten(visible(tenure.owner), 256), "data-first": tenure.first });
  group.append(svg("path", { class: "tail-stem", d: `M${at.x0.toFixed(1)} ${BAR.y + BAR.height}V${y + height}` }));
  group.append(rect("tail-bar", reach, y, height), rect("hatched", reach, y, height));
  const text = `${barText(tenure, 24)} has ended`;
  const x = Math.max(at.x0, 0) + 4;
  // Only where no dot hides it.
  if (Math.min(at.x1, at.dot - 6, row.width) - x > text.length * 5.5) {
    group.append(rect("tail-plate", { x0: x - 2, x1: x + text.length * 5.5 }, y, height));
    group.append(svg("text", { class: "tail-text", x: x.toFixed(1), y: y + 7 }, text));
  }
  row.nodes.push(group);
  row.hits.push({ ...reach, y0: y - 1, y1: y + height + 1, kind: "tail", tenure });
}

function drawNow({ view, width, nodes }) {
  const x = view.x(now(), width);
  if (x >= 0 && x <= width) nodes.push(svg("path", { class: "now", d: `M${x.toFixed(1)} 0V${ROW_HEIGHT}` }));
}

function drawDots(row, tails) {
  for (const dot of gatherDots(row, tails).values()) {
    const { decision, x, y, count } = dot;
    const category = categoryOf(decision.reason);
    const classes = ["dot", `cat-${category}`, decision.forwarded ? "shadowed" : "", count > 1 ? "several" : "", dot.chosen ? "chosen" : ""];
    const title = `${decision.reason}${decision.forwarded ? ", but forwarded" : ""}${count > 1 ? `, ${count} ${decision.forwarded ? "that would be refused" : "refusals"}` : ""}`;
    row.nodes.push(svg("a", {
      href: decisionAddress(decision.id), tabindex: -1, "aria-label": `${title}, decision ${decision.id}`, "data-decision": decision.id,
    }, svg("path", {
      class: classes.filter(Boolean).join(" "), d: CATEGORIES[category].path,
      transform: `translate(${x.toFixed(1)} ${y})${count > 1 ? " scale(1.35)" : ""}`,
    })));
    row.hits.push({ x0: x - 7, x1: x + 7, y0: y - 7, y1: y + 7, kind: "dot", decision, count });
  }
}

function gatherDots({ lock, view, model, width, chosen }, tails) {
  const dots = new Map();
  for (const decision of model.refusals(lock)) {
    const at = view.x(decision.time_ms, width);
    if (at < 0 || at > width) continue;
    const tenure = tenureOf(lock, decision.revision);
    const y = dotY(tenure, decision, tails);
    const step = `${Math.floor(at / DOT_STEP)} ${y} ${categoryOf(decision.reason)} ${decision.forwarded}`;
    const isChosen = decision.id === chosen;
    const dot = dots.get(step);
    if (!dot) dots.set(step, { decision, x: at, y, count: 1, chosen: isChosen });
    else {
      dot.count += 1;
      dot.chosen ||= isChosen;
      dot.decision = isChosen ? decision : dot.decision;
    }
  }
  return dots;
}

/** On the bar of the tenure that was claimed; on its tail, once it has ended; below, if no tenure was. */
function dotY(tenure, decision, tails) {
  if (!tenure) return NO_TENURE_Y;
  const ended = hasEndedBy(tenure, decision.time_ms);
  const lane = ended ? tails.get(tenure) : BAR;
  // At the lower edge of a bar, where its text stays readable.
  return lane === BAR ? BAR.y + BAR.height : lane.y + lane.height / 2;
}

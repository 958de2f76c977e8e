// What the pointer is on, in a few lines beside it.

import { byId, el, shorten, visible } from "./dom.js";
import { refusedUnder, tailOf } from "./model.js";
import { meaningOf } from "./reasons.js";
import { clock, duration, now } from "./time.js";

export function showTip({ hit, lock }, x, y) {
  const tip = byId("tip");
  tip.replaceChildren(...linesOf(hit, lock).map((line, index) => el(index === 0 ? "strong" : "span", {}, el("bdi", {}, line))));
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(4, Math.min(x + 14, innerWidth - width - 8))}px`;
  tip.style.top = `${y + 18 + height > innerHeight ? y - height - 12 : y + 18}px`;
}

export function hideTip() {
  byId("tip").hidden = true;
}

const short = (text) => shorten(visible(text), 80);

function linesOf(hit) {
  switch (hit.kind) {
    case "dot": return dotLines(hit);
    case "tail": return tailLines(hit.tenure);
    case "gap": return gapLines(hit);
    case "wait": return waitLines(hit.wait);
    case "outage": return [`store ${short(hit.outage.source)}: ${hit.outage.kind}`, period(hit.outage)];
    default: return tenureLines(hit);
  }
}

/** `14:03:22.100 to 14:03:25.400, 3.3 s`. */
function period({ began_ms: began, ended_ms: ended }) {
  return `${clock(began, true)} to ${ended === null ? "now" : clock(ended, true)}, ${duration((ended ?? now()) - began)}`;
}

function tenureLines({ tenure, count }) {
  if (count > 1) return [`${count} short tenures`, "zoom in to tell them apart"];
  const revision = tenure.last === tenure.first ? `revision ${tenure.first}` : `revisions ${tenure.first} to ${tenure.last}`;
  const lines = [short(tenure.owner), revision, period(tenure)];
  if (tenure.began_seen === false) lines.push("it began some time before fencepost first saw it");
  if (tenure.end === "untracked") lines.push("its lock is not tracked since then");
  if (tenure.refused + tenure.would_be_refused > 0) lines.push(`${refusedUnder(tenure, "refused")} under it`);
  return lines;
}

function tailLines(tenure) {
  const lines = [`${short(tenure.owner)} @${tenure.first} has ended`];
  if (tailOf(tenure) !== null) lines.push(`but was still sending ${duration(tailOf(tenure))} later`, `${refusedUnder(tenure, "refused")}, last at ${clock(tenure.last_refused_ms, true)}`);
  return lines;
}

function gapLines({ from, to }) {
  return ["nobody holds it", period({ began_ms: from.ended_ms, ended_ms: to?.began_ms ?? null })];
}

function waitLines(wait) {
  const outcome = wait.outcome === "timed-out" ? "gave up" : wait.outcome === "entered" ? "went in" : "waiting";
  const lines = [`barrier wait: ${outcome}`, `${short(wait.owner)} @${wait.revision}`, period(wait), `${wait.requests} requests waited for ${wait.drained} of the earlier tenure`];
  if (wait.waiting) lines.push(`${wait.waiting} of them still wait`);
  return lines;
}

function dotLines({ decision, count }) {
  const lines = [decision.reason, clock(decision.time_ms, true), `${decision.owner === null ? "no owner" : short(decision.owner)} @${decision.revision ?? "–"}`];
  lines.push(decision.forwarded ? "shadow mode: it was forwarded" : meaningOf(decision.reason));
  if (count > 1) lines.push(`${count} ${decision.forwarded ? "that would be refused" : "refusals"} here; click for one, zoom in for all`);
  return lines;
}

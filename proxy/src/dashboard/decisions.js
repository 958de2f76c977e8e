// The table of decisions: live, filtered, bounded.

import { decisionAddress, show } from "./address.js";
import { mark } from "./chart.js";
import { byId, el, name, svg, tightName } from "./dom.js";
import { ask, Refused } from "./feed.js";
import { anyFilter, bindFilters, filters, passes, question } from "./filters.js";
import { refusedText } from "./model.js";
import { claimedClass } from "./owners.js";
import { time } from "./time.js";

const ROWS_AT_FIRST = 100;
const ROWS_MAX = 500;
/** How often the table follows, while little and while much happens. */
const CALM_MS = 200;
const BUSY_MS = 1000;
const BUSY = 50;
/** How often a screen reader is told of new refusals. */
const NEWS_MS = 10000;
const TYPING_MS = 400;
const ASK_AGAIN_MS = 2000;

export class Decisions {
  paused = false;
  #model;
  #most = ROWS_AT_FIRST;
  /** Older ones that were asked for, because of the filters in force; `null` before they are there. */
  #found = null;
  /** Why the proxy does not take the filters in force; `null` if it has not said so. */
  #notTaken = null;
  #run = 0;
  #arrived = 0;
  #missed = 0;
  #timer = null;
  #news = { since: -Infinity, refused: 0, wouldBe: 0, reasons: new Set() };
  #newsTimer = null;

  constructor(model) {
    this.#model = model;
    bindFilters(() => this.#filtersChanged());
    byId("pause").addEventListener("click", () => this.togglePause());
    byId("more").addEventListener("click", () => {
      this.#most = ROWS_MAX;
      this.render();
    });
    byId("reason-legend").addEventListener("click", (event) => {
      const reason = event.target.closest("button")?.dataset.reason;
      if (reason) show({ reason: filters().reason === reason ? "" : reason });
    });
  }

  togglePause() {
    this.paused = !this.paused;
    this.render();
  }

  #showPause() {
    const button = byId("pause");
    button.setAttribute("aria-pressed", this.paused);
    button.textContent = this.paused ? `Resume (${this.#missed.toLocaleString("en")} new)` : "Pause";
  }

  /** A decision has come. The table follows soon. */
  arrived(decision) {
    this.#arrived += 1;
    if (decision.verdict === "reject") this.#note(decision);
    if (this.paused) this.#miss([decision]);
    if (this.#timer !== null) return;
    // When many come at once, the page has better things to do than to redraw the table for each.
    this.#timer = setTimeout(() => {
      const busy = this.#arrived > BUSY;
      this.#timer = busy ? setTimeout(() => this.#follow(), BUSY_MS - CALM_MS) : null;
      if (!busy) this.#follow();
    }, CALM_MS);
  }

  #follow() {
    this.#timer = null;
    this.#arrived = 0;
    if (this.paused) this.#showPause();
    else this.render();
  }

  /** These of the past have come. */
  caughtUp(decisions) {
    if (this.paused) {
      this.#miss(decisions);
      this.#showPause();
    } else this.render();
  }

  #miss(decisions) {
    const wanted = filters();
    this.#missed += decisions.filter((decision) => passes(decision, wanted)).length;
  }

  /** Has a screen reader hear of a refusal: at once, or with all that come until it may hear of some again. */
  #note(decision) {
    this.#news[decision.forwarded ? "wouldBe" : "refused"] += 1;
    this.#news.reasons.add(decision.reason);
    this.#newsTimer ??= setTimeout(() => this.#tell(), Math.max(0, this.#news.since + NEWS_MS - performance.now()));
  }

  #tell() {
    const { refused, wouldBe, reasons } = this.#news;
    byId("news").textContent = `new: ${refusedText(refused, wouldBe, "refused")}: ${[...reasons].join(", ")}`;
    this.#news = { since: performance.now(), refused: 0, wouldBe: 0, reasons: new Set() };
    this.#newsTimer = null;
  }

  #filtersChanged() {
    this.#run += 1;
    this.#found = null;
    this.#notTaken = null;
    this.#most = ROWS_AT_FIRST;
    this.render();
    const run = this.#run;
    if (anyFilter()) setTimeout(() => this.#askOlder(run), TYPING_MS);
  }

  async #askOlder(run) {
    if (run !== this.#run) return;
    try {
      const answer = await ask(question(filters()));
      if (run !== this.#run) return;
      this.#found = answer.decisions;
      this.render();
    } catch (error) {
      if (run !== this.#run) return;
      if (error instanceof Refused && error.status === 400) {
        // A link may have any words. It will not take these later, either.
        this.#notTaken = error.message;
        this.render();
        return;
      }
      // What the page has is shown; that the proxy is away is said elsewhere.
      setTimeout(() => this.#askOlder(run), ASK_AGAIN_MS);
    }
  }

  /** Those that pass the filters, newest first. */
  #chosen() {
    const wanted = filters();
    const chosen = [];
    const { decisions } = this.#model;
    for (let at = decisions.length - 1; at >= 0 && chosen.length <= ROWS_MAX; at -= 1) {
      if (passes(decisions[at], wanted)) chosen.push(decisions[at]);
    }
    const seen = new Set(chosen.map((decision) => decision.id));
    const older = (this.#found ?? []).filter((decision) => !seen.has(decision.id) && passes(decision, wanted));
    if (older.length) chosen.push(...older);
    return older.length ? chosen.sort((a, b) => b.time_ms - a.time_ms) : chosen;
  }

  /** Brings the table up to date: then nothing is held back. */
  render() {
    this.#missed = 0;
    this.#showPause();
    const chosen = this.#chosen();
    const shown = chosen.slice(0, this.#most);
    reconcile(byId("decision-rows"), shown, decisionRow);
    byId("more").hidden = chosen.length <= shown.length || this.#most === ROWS_MAX;
    this.#sayIfEmpty(chosen.length);
    const more = chosen.length > ROWS_MAX ? `the newest ${ROWS_MAX}` : `${chosen.length}`;
    const lost = this.#model.lost ? `; ${this.#model.lost.toLocaleString("en")} more came too fast and are left out of this page` : "";
    byId("decisions-count").textContent = chosen.length ? `${more}${anyFilter() ? " that pass the filters" : ""}${lost}` : "";
  }

  /** Who has held a lock may have become known after a row was made: then the row takes the colour that its lane has. */
  recolour() {
    for (const row of byId("decision-rows").children) {
      const decision = decisionOf.get(row);
      const owner = row.querySelector(".who");
      const className = owner && whoClass(decision);
      if (owner && owner.className !== className) owner.className = className;
    }
  }

  #sayIfEmpty(count) {
    const empty = byId("decisions-empty");
    const answered = this.#found !== null || this.#notTaken !== null;
    const known = anyFilter() ? answered : this.#model.toldOfPast;
    empty.hidden = count > 0 || !known;
    if (empty.hidden) return;
    if (this.#notTaken !== null) {
      empty.replaceChildren("Fencepost does not take these filters: ", name(this.#notTaken, 400, "wrap"), ".");
      return;
    }
    empty.textContent = anyFilter()
      ? "No decision passes the filters."
      : "Nothing was refused yet. Refusals appear here as they happen, with a sample of what was admitted.";
  }
}

/** Has `body` show these decisions. Rows never change once `rowOf` has made them: only new ones are made, and old ones removed. */
export function reconcile(body, decisions, rowOf) {
  const rows = new Map([...body.children].map((row) => [row.dataset.id, row]));
  const wanted = new Set(decisions.map((decision) => decision.id));
  for (const [id, row] of rows) if (!wanted.has(id)) row.remove();
  let at = body.firstElementChild;
  for (const decision of decisions) {
    const row = rows.get(decision.id);
    if (row && row === at) at = at.nextElementSibling;
    else body.insertBefore(row ?? rowOf(decision), at);
  }
}

const decisionOf = new WeakMap();
const whoClass = (decision) => `${claimedClass(decision.owner, decision)} who`;

function decisionRow(decision) {
  const owner = decision.owner === null
    ? el("span", { class: "muted" }, "none")
    : el("span", { class: whoClass(decision) }, el("i", { class: "swatch", "aria-hidden": "true" }), tightName(decision.owner, 40));
  const row = el("tr", { "data-id": decision.id },
    el("td", { class: "c-time" }, el("a", { href: decisionAddress(decision.id) }, time(decision.time_ms), el("span", { class: "visually-hidden" }, `, decision ${decision.id}`))),
    el("td", { class: "c-reason" }, verdict(decision)),
    el("td", { class: "c-lock" }, tightName(decision.lock, 60)),
    el("td", { class: "c-owner" }, el("span", { class: "holder" }, owner, presentedRevision(decision.revision))),
    el("td", { class: "c-request wide" }, `${decision.method} `, name(decision.path, 60), el("span", { class: "muted" }, ` ${decision.status ?? ""}`)),
    el("td", { class: "c-client wide" }, name(decision.client, 40)),
    el("td", { class: "c-route wide" }, name(decision.route, 30)),
    el("td", { class: "c-id wide" }, el("code", {}, decision.id), copyButton(decision.id)));
  decisionOf.set(row, decision);
  return row;
}

/** Room that one with more digits than a store gets to is first to give up: whoever makes one up does not hide the owner with it. */
const DIGITS = 13;

function presentedRevision(revision) {
  const text = String(revision ?? "–");
  return text.length <= DIGITS ? el("span", { class: "revision" }, ` @${text}`) : el("span", { class: "revision long", title: text }, ` @${text}`);
}

/** Why, or that it was admitted; what was forwarded all the same is marked. */
export function verdict(decision) {
  if (decision.verdict === "admit") return el("span", { class: "verdict admitted" }, "✓ admitted");
  return el("span", { class: "verdict" }, mark(decision.reason, decision.forwarded), ` ${decision.reason}`, forwardedBadge(decision));
}

function forwardedBadge(decision) {
  if (decision.verdict === "pass") return el("span", { class: "badge bad", title: "A setting that weakens the fence let it past" }, "let past");
  if (!decision.forwarded) return null;
  return el("span", { class: "badge warn", title: "Shadow mode: it would have been refused, and was forwarded" }, "forwarded");
}

const COPY = svg("svg", { viewBox: "0 0 16 16", width: 13, height: 13, "aria-hidden": "true" },
  svg("path", { class: "icon", d: "M5.5 5.5v-4h9v9h-4M1.5 5.5h9v9h-9z" }));

/** Copies text to the clipboard; where the browser forbids that, selects it. */
export function copyButton(text) {
  const button = el("button", { type: "button", class: "copy", "aria-label": `Copy ${text}`, title: "Copy" }, COPY.cloneNode(true));
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "✓";
      setTimeout(() => button.replaceChildren(COPY.cloneNode(true)), 1500);
    } catch {
      getSelection().selectAllChildren(button.previousElementSibling);
    }
  });
  return button;
}

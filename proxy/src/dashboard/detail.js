// The drawer: a decision, or a tenure, with all that is known of it.

import { decisionAddress, onShown, show, shown } from "./address.js";
import { copyButton, reconcile, verdict } from "./decisions.js";
import { byId, el, name, shorten, sync, visible } from "./dom.js";
import { ask } from "./feed.js";
import { hasEnded, hasEndedBy, lockId, refusedUnder, tailOf, tenureOf } from "./model.js";
import { claimedClass, ownerClass } from "./owners.js";
import { adviceOf, meaningOf } from "./reasons.js";
import { duration, exact, now, time } from "./time.js";

const NAME_MAX = 1024;
const REFUSALS_MAX = 30;

export class Detail {
  #model;
  #timeline;
  #view;
  #id = "";
  /** Whether the proxy could not be asked for it. */
  #unanswered = false;
  /** The tenure that is shown, if one is: the id of its lock and its first revision, and where it is written. */
  #tenure = null;

  constructor(model, timeline, view) {
    this.#model = model;
    this.#timeline = timeline;
    this.#view = view;
    byId("detail-close").addEventListener("click", () => this.close());
    byId("detail").addEventListener("keydown", (event) => {
      if (event.key === "Escape") this.close();
    });
    onShown(() => {
      if (shown("decision") !== this.#id) this.follow();
    });
  }

  /** Shows what the address says. */
  async follow() {
    const id = shown("decision");
    this.#id = id;
    this.#unanswered = false;
    this.#tenure = null;
    this.#timeline.cursor.decision = id || null;
    this.#timeline.draw();
    if (!id) {
      this.#hide();
      return;
    }
    let decision;
    let unanswered = false;
    try {
      decision = this.#model.decision(id) ?? await this.#find(id);
    } catch {
      unanswered = true;
    }
    if (id !== this.#id) return;
    this.#unanswered = unanswered;
    if (decision) this.#showDecision(decision);
    else this.#showMissing(el("code", {}, shorten(visible(id), 80)));
  }

  async #find(id) {
    return (await ask(`/decisions?limit=1&id=${encodeURIComponent(id)}`)).decisions[0];
  }

  /** The proxy answers again. */
  retry() {
    if (this.#unanswered) this.follow();
  }

  #showMissing(id) {
    this.#open("Decision", this.#unanswered
      ? [el("p", {}, "Fencepost could not be asked about the decision ", id, "."), this.#button("Ask again", () => this.follow())]
      : [el("p", {}, "The proxy no longer keeps the decision ", id, ". It may stand in the log: search there for its id.")]);
  }

  close() {
    if (this.#id) show({ decision: "" });
    else this.#hide();
  }

  #hide() {
    this.#tenure = null;
    // The focus goes back to where it was by itself.
    if (byId("detail").open) byId("detail").close();
  }

  #open(title, content) {
    const drawer = byId("detail");
    if (!drawer.open) drawer.show();
    byId("detail-title").textContent = title;
    byId("detail-body").replaceChildren(...content.filter(Boolean));
    drawer.scrollTop = 0;
    byId("detail-title").focus();
  }

  #showDecision(decision) {
    const lock = decision.lock === null ? undefined : this.#model.locks.get(lockId(decision.source, decision.lock));
    const refused = decision.verdict === "reject";
    this.#open(titleOf(decision), [
      el("p", { class: "detail-verdict" }, verdict(decision)),
      refused ? el("p", {}, meaningOf(decision.reason)) : null,
      refused ? el("p", { class: "advice" }, el("strong", {}, "What to do: "), adviceOf(decision.reason)) : null,
      decision.forwarded && refused ? el("p", { class: "advice warn" }, "The route is in shadow mode: this request was forwarded all the same.") : null,
      decision.verdict === "pass" ? el("p", { class: "advice warn" }, "A setting of the route that weakens the fence, whose value begins with dangerous_, let this request past. Nobody knows whether its sender holds the lock alone.") : null,
      facts(decisionFacts(decision, lock)),
      lock ? this.#button("Show in the timeline", () => this.#reveal(decision, lock)) : null,
      decision.lock === null ? null : this.#button("Only this lock", () => this.#filter({ lock: decision.lock })),
      decision.owner === null ? null : this.#button("Only this owner", () => this.#filter({ owner: decision.owner })),
    ]);
  }

  /** Shows one tenure of a lock. */
  showTenure(lock, { first }) {
    this.#id = "";
    this.#unanswered = false;
    show({ decision: "" });
    const [about, refusals] = [el("div"), el("ul", { class: "refusals" })];
    this.#tenure = { lock: lockId(lock.source, lock.lock), first, about, refusals };
    this.refresh();
    this.#open("Tenure", [about, refusals, this.#button("Only this lock", () => this.#filter({ lock: lock.lock }))]);
  }

  /** Brings what is written of a tenure up to date: it may have ended, and more of its requests may have been refused. */
  refresh() {
    if (this.#tenure === null) return;
    const { about, refusals, first } = this.#tenure;
    const lock = this.#model.locks.get(this.#tenure.lock);
    const tenure = lock && tenureOf(lock, first);
    const refused = tenure ? this.#model.refusals(lock).filter((decision) => tenureOf(lock, decision.revision) === tenure) : [];
    const newest = refused.slice(-REFUSALS_MAX).reverse();
    const parts = {
      gone: tenure ? null : el("p", {}, "The timeline tells of this tenure no longer."),
      advice: tenure && tailOf(tenure) !== null ? el("p", { class: "advice" }, `This tenure has ended, and its holder was still sending ${duration(tailOf(tenure))} later.`) : null,
      facts: tenure ? facts(tenureFacts(lock, tenure, tailOf(tenure))) : null,
      heading: newest.length ? el("h3", {}, "Its refusals, newest first") : null,
    };
    sync(about, Object.entries(parts).filter(([, part]) => part), ([key]) => key, ([, part]) => part);
    reconcile(refusals, newest, refusalLine);
  }

  #button(text, action) {
    const button = el("button", { type: "button" }, text);
    button.addEventListener("click", action);
    return button;
  }

  /** Where the drawer hides what it speaks of, it makes room. */
  #makeRoom() {
    if (innerWidth < 1200) this.close();
  }

  #filter(changes) {
    this.#makeRoom();
    show(changes);
    byId("decisions").scrollIntoView({ block: "start" });
  }

  #reveal(decision, lock) {
    this.#makeRoom();
    this.#timeline.cursor.decision = decision.id;
    byId("lock-find").value = "";
    this.#timeline.changed();
    this.#view.reveal(decision.time_ms);
    requestAnimationFrame(() => this.#timeline.moveTo(lockId(lock.source, lock.lock)));
    byId("timeline").scrollIntoView({ block: "nearest" });
  }
}

function titleOf({ verdict, forwarded }) {
  switch (verdict) {
    case "reject": return forwarded ? "Would be refused" : "Refused";
    case "pass": return "Let past";
    default: return "Admitted";
  }
}

function facts(pairs) {
  return el("dl", { class: "facts" }, pairs.filter(Boolean).map(([term, fact]) => el("div", {}, el("dt", {}, term), el("dd", {}, fact))));
}

function decisionFacts(decision, lock) {
  const tenure = lock && tenureOf(lock, decision.revision);
  const ended = tenure && hasEndedBy(tenure, decision.time_ms);
  return [
    ["Decision", [el("code", {}, decision.id), copyButton(decision.id)]],
    ["When", [exact(decision.time_ms), el("span", { class: "muted" }, " · ", time(decision.time_ms))]],
    ["Lock", name(decision.lock, NAME_MAX)],
    ["Owner", decision.owner === null ? "none was sent" : el("span", { class: claimedClass(decision.owner, decision) }, el("i", { class: "swatch", "aria-hidden": "true" }), name(decision.owner, NAME_MAX))],
    ["Revision", decision.revision === null ? "none was sent" : String(decision.revision)],
    ended ? ["Its tenure", `ended ${duration(decision.time_ms - tenure.ended_ms)} before this request was decided`] : null,
    ["Request", [`${decision.method} `, name(decision.path, NAME_MAX)]],
    ["Answer", decision.forwarded ? "forwarded" : `${decision.status ?? "–"}, nothing was forwarded`],
    ["Client", name(decision.client, NAME_MAX)],
    decision.peer === null ? null : ["Certificate", decision.peer === "" ? "names nobody" : el("code", {}, visible(decision.peer))],
    ["Route", [name(decision.route, NAME_MAX), el("span", { class: "muted" }, ` · ${decision.mode}`)]],
    decision.source === null ? null : ["Store", name(decision.source, NAME_MAX)],
    decision.age_ms === null ? null : ["Age of the news", duration(decision.age_ms)],
    decision.waited_ms ? ["From arrival to decision", duration(decision.waited_ms)] : null,
    decision.request_id ? ["Request", el("code", {}, visible(decision.request_id))] : null,
    decision.traceparent ? ["Trace", el("code", {}, visible(decision.traceparent))] : null,
  ];
}

function refusalLine(decision) {
  return el("li", { "data-id": decision.id }, el("a", { href: decisionAddress(decision.id) }, time(decision.time_ms)), " ", verdict(decision));
}

function endOf(tenure) {
  if (tenure.ended_ms === null) return "it holds the lock now";
  return hasEnded(tenure) ? exact(tenure.ended_ms) : `the lock is not tracked since ${exact(tenure.ended_ms)}`;
}

function tenureFacts(lock, tenure, tail) {
  return [
    ["Lock", name(lock.lock, NAME_MAX)],
    ["Owner", el("span", { class: ownerClass(tenure.owner, lock) }, el("i", { class: "swatch", "aria-hidden": "true" }), name(tenure.owner, NAME_MAX))],
    ["Revision", tenure.last === tenure.first ? String(tenure.first) : `${tenure.first} to ${tenure.last}`],
    ["Began", `${tenure.began_seen === false ? "before " : ""}${exact(tenure.began_ms)}`],
    ["Ended", endOf(tenure)],
    ["Held for", duration((tenure.ended_ms ?? now()) - tenure.began_ms)],
    ["Refused", refusedUnder(tenure)],
    tail === null ? null : [tenure.refused ? "Last refused" : "Last that would be", exact(tenure.last_refused_ms)],
    ["Routes", lock.routes.map((route) => visible(route)).join(", ")],
    ["Layout", lock.layout],
  ];
}

// The ownership timeline: one row per lock. Only rows in sight are drawn, at most once per frame.

import { byId, el, name, shorten, svg, tightName, visible } from "./dom.js";
import { hasEnded, holderOf, latestOf, refusedText, silentSince, tailOf } from "./model.js";
import { ownerClass } from "./owners.js";
import { clock, duration, now, time, zone } from "./time.js";
import { drawRow, ROW_HEIGHT } from "./row.js";

const ROWS_BEYOND_SIGHT = 2;
/** With less room than this, a lock's name stands above its bars. */
const NARROW = 700;
const LABEL_WIDTH = 250;
const NARROW_LABEL_HEIGHT = 20;
/** For how long a refusal keeps a lock on top. */
const LATELY_MS = 5 * 60000;

export class Timeline {
  /** Ids of locks, in the order in which they are shown. */
  order = [];
  /** The id of the lock that the keyboard is at, and of the decision. */
  cursor = { lock: null, decision: null };
  #model;
  #view;
  #rows = new Map();
  #asked = false;
  #reorder = true;
  #drawnAt = 0;
  #box = byId("timeline");
  #parent = byId("rows");

  constructor(model, view) {
    this.#model = model;
    this.#view = view;
    view.onChange(() => this.draw());
    this.#box.addEventListener("scroll", () => this.draw(), { passive: true });
    new ResizeObserver(() => view.resized()).observe(this.#box);
    for (const id of ["lock-find", "lock-order"]) byId(id).addEventListener("input", () => this.changed());
  }

  get width() {
    return Math.max(50, this.#box.clientWidth - (this.narrow ? 0 : LABEL_WIDTH));
  }

  get narrow() {
    return this.#box.clientWidth < NARROW;
  }

  get rowHeight() {
    return ROW_HEIGHT + (this.narrow ? NARROW_LABEL_HEIGHT : 0);
  }

  /** Locks have come, gone or changed. */
  changed() {
    this.#reorder = true;
    this.draw();
  }

  /** Time has passed: locks may want less. */
  aged() {
    if (byId("lock-order").value === "need") this.changed();
  }

  /** Draws in the next frame. */
  draw() {
    if (this.#asked) return;
    this.#asked = true;
    requestAnimationFrame(() => {
      this.#asked = false;
      this.#draw();
    });
  }

  /** Draws if the present has moved by a pixel. */
  advance() {
    if (this.#view.end === null && now() - this.#drawnAt >= Math.max(250, this.#view.span / this.width)) this.draw();
  }

  #draw() {
    this.#drawnAt = now();
    if (this.#reorder) this.#sort();
    this.#sayHowMany();
    for (const part of [this.#box, byId("chart-row")]) part.classList.toggle("narrow", this.narrow);
    const height = this.rowHeight;
    this.#parent.style.height = `${this.order.length * height}px`;
    this.#drawAxis();
    const first = Math.max(0, Math.floor(this.#box.scrollTop / height) - ROWS_BEYOND_SIGHT);
    const last = Math.ceil((this.#box.scrollTop + this.#box.clientHeight) / height) + ROWS_BEYOND_SIGHT;
    const inSight = new Set(this.order.slice(first, last));
    for (const [id, row] of this.#rows) {
      if (!inSight.has(id)) {
        row.node.remove();
        this.#rows.delete(id);
      }
    }
    this.order.slice(first, last).forEach((id, index) => this.#drawRow(id, (first + index) * height));
  }

  #sort() {
    this.#reorder = false;
    const wanted = byId("lock-find").value.toLowerCase();
    const matches = (lock) => !wanted || lock.lock.toLowerCase().includes(wanted)
      || lock.tenures.some((tenure) => tenure.owner.toLowerCase().includes(wanted));
    const locks = [...this.#model.locks].filter(([, lock]) => matches(lock));
    const byName = ([, a], [, b]) => COLLATOR.compare(a.lock, b.lock) || COLLATOR.compare(a.source, b.source);
    const order = byId("lock-order").value;
    if (order === "latest") locks.sort((a, b) => latestOf(b[1]) - latestOf(a[1]) || byName(a, b));
    else if (order === "name") locks.sort(byName);
    else {
      const needs = new Map(locks.map(([id, lock]) => [id, needOf(lock, this.#model.refusals(lock))]));
      locks.sort((a, b) => needs.get(a[0]) - needs.get(b[0]) || byName(a, b));
    }
    this.order = locks.map(([id]) => id);
    this.#sayIfEmpty(wanted);
    if (!this.order.includes(this.cursor.lock)) this.cursor.lock = null;
  }

  #sayIfEmpty(wanted) {
    const empty = byId("timeline-empty");
    empty.hidden = this.order.length > 0;
    if (this.order.length > 0) return;
    if (wanted && this.#model.locks.size > 0) {
      empty.replaceChildren(...(this.#model.truncated ? this.#notAmongThese() : ["No lock or owner is called that."]));
      return;
    }
    empty.replaceChildren(
      el("strong", {}, "No lock is known yet. "),
      "A lock with a fixed key appears as soon as its store was read; one whose key depends on the path, with its first request: send one with ",
      el("code", {}, "Fence-Owner"), " and ", el("code", {}, "Fence-Revision"), ". If nothing comes, look at the lock stores below.",
    );
  }

  /** Of a lock that has no row, the proxy tells what it knows to whoever asks by the key. */
  #notAmongThese() {
    const key = byId("lock-find").value;
    return [
      `No lock or owner is called that among the ${this.#model.locks.size.toLocaleString("en")} locks that were heard of last. Others have no row here: `,
      "if it is one of them, fencepost tells of ", el("a", { href: `/locks/${encodeURIComponent(key)}` }, name(key, 120)), ".",
    ];
  }

  #sayHowMany() {
    const { locks, tracked, truncated } = this.#model;
    const all = truncated ? Math.max(tracked ?? 0, locks.size) : locks.size;
    const [shown, known] = [this.order.length, all].map((count) => count.toLocaleString("en"));
    const text = shown === known ? `${known} ${all === 1 ? "lock" : "locks"}` : `${shown} of ${known} locks`;
    byId("timeline-count").textContent = all === 0 ? "" : text;
  }

  #drawRow(id, top) {
    const lock = this.#model.locks.get(id);
    const row = this.#rows.get(id) ?? this.#makeRow(id);
    row.node.style.top = `${top}px`;
    row.node.classList.toggle("chosen", id === this.cursor.lock);
    row.drawing.setAttribute("aria-label", summary(lock, this.#model.refusals(lock)));
    const label = rowLabel(lock, this.#model);
    if (!label.isEqualNode(row.label)) {
      row.label.replaceWith(label);
      row.label = label;
    }
    const { width } = this;
    row.drawing.setAttribute("width", width);
    row.hits = drawRow(row.drawing, lock, { view: this.#view, model: this.#model, width, chosen: this.cursor.decision });
  }

  #makeRow(id) {
    const label = el("div");
    const drawing = svg("svg", { role: "group", height: ROW_HEIGHT });
    const node = el("div", { class: "row" }, label, drawing);
    const row = { node, label, drawing, hits: [] };
    this.#parent.append(node);
    this.#rows.set(id, row);
    return row;
  }

  #drawAxis() {
    const { width } = this;
    const { step, ticks } = this.#view.ticks(width);
    const axis = byId("axis");
    axis.setAttribute("width", width);
    axis.setAttribute("height", 22);
    byId("zone").textContent = `local time, ${zone()}`;
    axis.replaceChildren(...ticks.flatMap((tick) => {
      const x = this.#view.x(tick, width);
      const text = step < 1000 ? clock(tick, true).slice(6) : step < 60000 ? clock(tick) : dayOrTime(tick, step);
      return [
        svg("path", { class: "grid", d: `M${x.toFixed(1)} 16v6` }),
        x > 24 && x < width - 28 ? svg("text", { x: x.toFixed(1), y: 13 }, text) : null,
      ].filter(Boolean);
    }));
  }

  /** What lies at a place of the window: the topmost, with its lock. */
  hitAt(clientX, clientY) {
    for (const [id, row] of this.#rows) {
      const box = row.drawing.getBoundingClientRect();
      if (clientY < box.top || clientY >= box.bottom || clientX < box.left || clientX > box.right) continue;
      const lock = this.#model.locks.get(id);
      if (!lock) return undefined; // It has gone since it was drawn.
      const [x, y] = [clientX - box.left, clientY - box.top];
      const hit = row.hits.findLast((hit) => hit.x0 <= x && x <= hit.x1 && hit.y0 <= y && y <= hit.y1);
      return { id, lock, hit };
    }
    return undefined;
  }

  /** Where in the span a place of the window is: from 0 to 1. */
  partAt(clientX) {
    const right = this.#box.getBoundingClientRect().left + this.#box.clientLeft + this.#box.clientWidth;
    return Math.min(1, Math.max(0, 1 - (right - clientX) / this.width));
  }

  /** Puts the keyboard's cursor on a lock, and scrolls to it. */
  moveTo(id) {
    this.cursor.lock = id;
    const top = this.order.indexOf(id) * this.rowHeight;
    const room = this.#box.clientHeight - this.rowHeight - 24;
    if (top < this.#box.scrollTop) this.#box.scrollTop = top;
    else if (top > this.#box.scrollTop + room) this.#box.scrollTop = top - room;
    this.draw();
  }
}

const COLLATOR = new Intl.Collator("en", { numeric: true });

function dayOrTime(tick, step) {
  const midnight = clock(tick).startsWith("00:00:00");
  if (step >= 86400000 || midnight) return new Date(tick).toLocaleDateString("en", { month: "short", day: "numeric" });
  return clock(tick).slice(0, 5);
}

/** How much a lock wants to be looked at: 0 most, for refusals of late; then waiting requests; then no holder. */
function needOf(lock, refusals) {
  if (now() - (refusals.at(-1)?.time_ms ?? -Infinity) < LATELY_MS) return 0;
  if (lock.waits.some((wait) => wait.ended_ms === null)) return 1;
  return holderOf(lock) ? 3 : 2;
}

/** What is known of who holds a lock that nobody is known to hold. */
function withoutHolder({ tenures }) {
  if (tenures.length === 0) return "no holder seen";
  return hasEnded(tenures.at(-1)) ? "nobody" : "not tracked";
}

function rowLabel(lock, model) {
  const holder = holderOf(lock);
  const state = holder
    ? el("span", { class: `${ownerClass(holder.owner, lock)} who` }, el("i", { class: "swatch", "aria-hidden": "true" }), tightName(holder.owner, 60))
    : el("span", { class: "free" }, withoutHolder(lock));
  const isSilent = silentSince(model, lock.source) !== null;
  const since = isSilent ? null : holder ? holder.began_ms : lock.tenures.at(-1)?.ended_ms;
  return el("div", { class: "label" },
    el("span", { class: "lock-name", title: `${visible(lock.lock)} in ${lock.source}` }, tightName(lock.lock, 120)),
    el("span", { class: "holder" }, isSilent ? el("span", { class: "one-line" }, "last known:\u00a0") : null, state, el("span", { class: "held-for" }, holder ? ` @${holder.first}` : "", since ? [" · ", time(since, "for")] : null)));
}

/** A row in words, for those who cannot see it. */
function summary(lock, refusals) {
  const holder = holderOf(lock);
  const held = holder ? `held by ${shorten(visible(holder.owner), 60)}, revision ${holder.first}, for ${duration(now() - holder.began_ms)}` : withoutHolder(lock);
  const forwarded = refusals.filter((decision) => decision.forwarded).length;
  const tails = lock.tenures.filter((tenure) => tailOf(tenure) !== null).length;
  const zombies = tails ? `; ${tails} ended tenures were still sending` : "";
  return `${shorten(visible(lock.lock), 120)}: ${held}; ${lock.tenures.length} tenures, ${refusedText(refusals.length - forwarded, forwarded, "refused")} as far as is known${zombies}`;
}

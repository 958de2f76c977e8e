// Refusals over time, stacked by kind, below the timeline and in its span; what would be refused is pale.

import { byId, el, svg } from "./dom.js";
import { refusedText } from "./model.js";
import { CATEGORIES, categoryOf, CODES } from "./reasons.js";
import { duration } from "./time.js";

const HEIGHT = 64;
const KINDS = Object.keys(CATEGORIES);
/** Columns are as wide as one of these times. */
const STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600, 14400, 86400].map((seconds) => seconds * 1000);

export class Chart {
  #model;
  #view;
  #width;
  #asked = false;

  /** `width` says how wide the timeline's drawing is. */
  constructor(model, view, width) {
    this.#model = model;
    this.#width = width;
    this.#view = view;
    view.onChange(() => this.draw());
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

  #draw() {
    const width = this.#width();
    const view = this.#view;
    const step = STEPS.find((step) => (step / view.span) * width >= 5) ?? STEPS.at(-1);
    const columns = this.#columns(step);
    const peak = Math.max(1, ...[...columns.values()].map((column) => column.reduce((sum, count) => sum + count, 0)));
    const wide = Math.max(1, (step / view.span) * width - 1);
    const rects = [];
    for (const [at, counts] of columns) {
      let y = HEIGHT;
      counts.forEach((count, kind) => {
        if (count === 0) return;
        const height = Math.max(1.5, (count / peak) * (HEIGHT - 6));
        y -= height;
        rects.push(svg("rect", { class: `cat-${KINDS[kind >> 1]}${kind & 1 ? " shadowed" : ""}`, x: view.x(at, width).toFixed(1), y: y.toFixed(1), width: wide.toFixed(1), height: height.toFixed(1) }));
      });
    }
    const chart = byId("chart");
    chart.setAttribute("width", width);
    chart.setAttribute("height", HEIGHT);
    chart.replaceChildren(svg("path", { class: "grid", d: `M0 ${HEIGHT - 0.5}H${width}` }), ...rects);
    const heardAll = this.#model.heardAll(view.from, view.to);
    byId("chart-peak").textContent = columns.size ? `most: ${heardAll ? "" : "at least "}${peak} in ${duration(step)}` : `none ${heardAll ? "" : "seen "}in this span`;
    this.#legend(heardAll);
  }

  /** By the beginning of each column: how many of each kind were refused, and how many would be. */
  #columns(step) {
    const columns = new Map();
    this.#model.eachSecond(this.#view.from, this.#view.to, (ms, counts) => {
      const at = Math.floor(ms / step) * step;
      const column = columns.get(at) ?? KINDS.flatMap(() => [0, 0]);
      for (const [reason, pair] of counts) {
        const kind = KINDS.indexOf(categoryOf(reason));
        pair.forEach((count, forwarded) => (column[2 * kind + forwarded] += count));
      }
      columns.set(at, column);
    });
    return columns;
  }

  #legend(heardAll) {
    const sums = this.#model.reasons(this.#view.from, this.#view.to);
    const reasons = [...sums].sort(([a], [b]) => CODES.indexOf(a) - CODES.indexOf(b));
    const signature = JSON.stringify([heardAll, reasons]);
    const list = byId("reason-legend");
    if (list.dataset.shows === signature) return;
    list.dataset.shows = signature;
    const kept = new Map([...list.querySelectorAll("button")].map((button) => [button.dataset.reason, button]));
    const buttons = reasons.map(([reason, count]) => el("li", {}, update(kept.get(reason) ?? reasonButton(reason), count)));
    list.replaceChildren(...(heardAll || reasons.length === 0 ? [] : [el("li", {}, "at least, as this page has not heard of all:")]), ...buttons);
    const words = reasons.map(([reason, [refused, wouldBe]]) => `${reason}: ${refusedText(refused, wouldBe)}`).join("; ");
    const bound = heardAll ? "" : ", at least, as this page has not heard of all";
    byId("chart-summary").textContent = `Refusals in the span of ${duration(this.#view.span)}${bound}: ${words || "none"}.`;
  }
}

function reasonButton(reason) {
  return el("button", { type: "button", "data-reason": reason }, mark(reason), ` ${reason} `, el("b", {}));
}

function update(button, count) {
  button.querySelector("b").textContent = refusedText(...count);
  return button;
}

/** The shape and colour of a reason. */
export function mark(reason, forwarded = false) {
  const category = categoryOf(reason);
  return svg("svg", { viewBox: "-7 -7 14 14", width: 13, height: 13, "aria-hidden": "true" },
    svg("path", { class: `dot cat-${category}${forwarded ? " shadowed" : ""}`, d: CATEGORIES[category].path }));
}

// The span of time that timeline and chart show, and where a time lies in it.

import { now } from "./time.js";

const MINUTE = 60000;
const SPAN_MIN = 1000;
const SPAN_MAX = 14 * 24 * 60 * MINUTE;
/** Room for what happens next, as a part of the span. */
const AHEAD = 0.03;

/** The spans that have a button. */
export const SPANS = [[MINUTE, "1 min"], [5 * MINUTE, "5 min"], [15 * MINUTE, "15 min"], [60 * MINUTE, "1 h"], [6 * 60 * MINUTE, "6 h"]];

export class View {
  span = 5 * MINUTE;
  /** The right edge; `null` as long as it follows the present. */
  end = null;
  /** Whether a person chose the span: if not, it grows with what there is to show. */
  chosen = false;
  #listeners = [];

  onChange(listener) {
    this.#listeners.push(listener);
  }

  get to() {
    return this.end ?? now() + this.span * AHEAD;
  }

  get from() {
    return this.to - this.span;
  }

  /** Where a time lies, in pixels from the left of something that is `width` wide. */
  x(ms, width) {
    return ((ms - this.from) / this.span) * width;
  }

  /** Shows so many milliseconds. */
  setSpan(span) {
    this.chosen = true;
    this.span = clamp(span);
    this.#changed();
  }

  /** Makes the span larger (`factor` > 1) or smaller, around a point from 0 (left edge) to 1. */
  zoom(factor, around = 1) {
    const fixed = this.from + this.span * around;
    this.chosen = true;
    this.span = clamp(this.span * factor);
    if (this.end !== null) this.end = fixed + this.span * (1 - around);
    this.#changed();
  }

  /** Moves by a part of the span; past the present, it follows it again. */
  pan(part) {
    const end = this.to + this.span * part;
    this.end = end >= now() + this.span * AHEAD ? null : end;
    this.chosen = true;
    this.#changed();
  }

  /** Stands still. */
  hold() {
    this.end = this.to;
    this.#changed();
  }

  /** Goes with the present again. */
  follow() {
    this.end = null;
    this.#changed();
  }

  /** Makes sure that a time is in sight. */
  reveal(ms) {
    if (ms >= this.from && ms <= this.to) return;
    const end = ms + this.span / 2;
    this.end = end >= now() ? null : end;
    this.#changed();
  }

  /** Shows everything since then. */
  fit(sinceMs) {
    this.chosen = true;
    this.end = null;
    this.span = clamp(Math.max(5000, (now() - sinceMs) * (1 + 3 * AHEAD)));
    this.#changed();
  }

  /** As long as nobody chose: a round span of up to an hour that shows everything since then. */
  suggest(sinceMs) {
    if (this.chosen) return;
    const minutes = Math.max(0, now() - sinceMs) / MINUTE;
    this.span = (SUGGESTED.find((span) => span >= minutes) ?? 60) * MINUTE;
  }

  /** Round times in the span, far enough apart to be labelled. */
  ticks(width) {
    const least = (this.span / Math.max(width, 1)) * 84;
    const step = STEPS.find((step) => step >= least) ?? STEPS.at(-1);
    const offset = new Date(this.to).getTimezoneOffset() * MINUTE;
    const ticks = [];
    for (let at = Math.ceil((this.from - offset) / step) * step + offset; at <= this.to; at += step) ticks.push(at);
    return { step, ticks };
  }

  /** What is drawn has another width. */
  resized() {
    this.#changed();
  }

  #changed() {
    for (const listener of this.#listeners) listener();
  }
}

const SUGGESTED = [1, 2, 3, 5, 7, 10, 15, 20, 30, 45, 60];
/** What may lie between two labels of the axis. */
const STEPS = [100, 200, 500, 1000, 2000, 5000, 10000, 15000, 30000]
  .concat([1, 2, 5, 10, 15, 30, 60, 120, 180, 360, 720, 1440, 2880].map((minutes) => minutes * MINUTE));

const clamp = (span) => Math.min(SPAN_MAX, Math.max(SPAN_MIN, span));

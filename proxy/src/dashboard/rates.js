// What each route does of late, from the differences of what `/routes` has counted: the proxy itself keeps no past.

import { el, svg } from "./dom.js";
import { duration } from "./time.js";

/** Rates and times are those of this span, and readings are this far apart at least. */
const LATELY_MS = 60000;
const STEP_MS = 5000;
const KEPT_MS = 5 * 60000;
/** Two readings nearer than that would make a rate of chance. */
const LEAST_MS = 1000;
const [WIDTH, HEIGHT] = [84, 20];

export class Rates {
  /** By the route's name, oldest first. */
  #readings = new Map();
  #process = null;

  /** Takes in an answer of `/routes`. What another process has counted is forgotten. */
  take({ now_ms: at, process, routes }) {
    const before = this.#process === process.started_ms ? this.#readings : new Map();
    this.#process = process.started_ms;
    this.#readings = new Map(routes.map((route) => [route.name, withLatest(before.get(route.name) ?? [], reading(at, route))]));
  }

  /** Requests and refusals per second of a route, and its times, in the last minute; `null` before there are two readings. */
  lately(route) {
    const readings = this.#readings.get(route) ?? [];
    const latest = readings.at(-1);
    const first = readings.find(({ at }) => at >= latest.at - LATELY_MS);
    const seconds = first ? (latest.at - first.at) / 1000 : 0;
    if (seconds * 1000 < LEAST_MS) return null;
    const quantiles = (times) => [0.5, 0.99].map((part) => quantile(first[times], latest[times], part));
    return {
      requests: (latest.requests - first.requests) / seconds,
      refused: (latest.refused - first.refused) / seconds,
      verdict: quantiles("verdict"),
      worker: quantiles("worker"),
    };
  }

  /** Draws the requests per second of a route in up to five minutes, the refused ones in another colour. */
  sparkline(route) {
    const readings = this.#readings.get(route) ?? [];
    const steps = readings.slice(1).map((to, index) => {
      const from = readings[index];
      const rate = (what) => (to[what] - from[what]) / (to.at - from.at);
      return { from: from.at, to: to.at, requests: rate("requests"), refused: rate("refused") };
    });
    const peak = Math.max(...steps.map((step) => step.requests));
    if (!(peak > 0)) return null;
    const span = Math.max(LATELY_MS, readings.at(-1).at - readings[0].at);
    const x = (at) => (WIDTH * (1 - (readings.at(-1).at - at) / span)).toFixed(1);
    const y = (rate) => (HEIGHT - (rate / peak) * (HEIGHT - 1)).toFixed(1);
    const area = (what) => `M${x(steps[0].from)} ${HEIGHT}${steps.map((step) => `V${y(step[what])}H${x(step.to)}`).join("")}V${HEIGHT}Z`;
    return svg("svg", { class: "spark", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, width: WIDTH, height: HEIGHT, "aria-hidden": "true" },
      svg("path", { class: "grid", d: `M0 ${HEIGHT - 0.5}H${WIDTH}` }),
      svg("path", { d: area("requests") }), svg("path", { class: "spark-refused", d: area("refused") }));
  }
}

function reading(at, { since_ms: since, requests, verdict_seconds: verdict, upstream_seconds: worker }) {
  const refused = Object.values(requests.reject).reduce((sum, count) => sum + count, 0);
  return { at, since, requests: requests.admit + refused + requests.pass, refused, verdict, worker };
}

/** The latest one makes way for the next, unless it is a step from the one before. In another mode a route counts anew. */
function withLatest(readings, latest) {
  const kept = readings.filter(({ at, since }) => since === latest.since && at < latest.at && at >= latest.at - KEPT_MS);
  const [before, last] = kept.slice(-2);
  if (last && last.at - before.at < STEP_MS) kept.pop();
  return [...kept, latest];
}

/** The bound that so large a part of the times between two readings did not exceed; `null` if there were none. */
function quantile(first, latest, part) {
  const counts = Object.entries(latest).map(([bound, count]) => [bound, count - (first[bound] ?? 0)]);
  const value = ([bound]) => (bound.startsWith(">") ? Infinity : Number(bound));
  const rising = counts.filter(([, count]) => count > 0).sort((a, b) => value(a) - value(b));
  let left = part * rising.reduce((sum, [, count]) => sum + count, 0);
  return rising.find(([, count]) => (left -= count) <= 0)?.[0] ?? null;
}

/** `12`, `0.25`: three digits are enough to compare rates. */
export const rateText = (rate) => (rate === 0 ? "0" : rate < 0.01 ? "< 0.01" : rate.toLocaleString("en", { maximumSignificantDigits: rate < 100 ? 2 : 3 }));

/** A median and a 99th percentile: `p50 ≤ 20 µs` and `p99 ≤ 5 ms`; empty if there were no times. */
export const timesTexts = ([p50, p99]) => (p50 === null ? [] : [`p50 ${boundText(p50)}`, `p99 ${boundText(p99)}`]);

const boundText = (bound) => (bound.startsWith(">") ? `> ${seconds(bound.slice(1))}` : `≤ ${seconds(bound)}`);

function seconds(text) {
  const ms = Number(text) * 1000;
  if (ms < 1) return `${Math.round(ms * 1000)} µs`;
  return ms < 10 ? `${ms} ms` : duration(ms);
}

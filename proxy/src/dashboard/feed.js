// The way to the proxy: two event streams and a few questions asked again and again. When it breaks, everything is
// begun anew, after a pause that grows. A page that nobody sees lets go of its streams: browsers allow few connections.

import { proxySays } from "./time.js";

const POLL_MS = 2000;
const RETRY_MS = [500, 1000, 2000, 4000, 8000, 15000];
const ANSWER_WITHIN_MS = 10000;
const HIDDEN_MS = 5000;

/** Asks the proxy for a JSON document. */
export async function ask(path) {
  const answer = await fetch(path, { headers: { accept: "application/json" }, signal: AbortSignal.timeout(ANSWER_WITHIN_MS), cache: "no-store" });
  if (!answer.ok) throw new Refused(`${path.split("?")[0]}: ${answer.status}`);
  const document = await answer.json();
  proxySays(document.now_ms);
  return document;
}

/** As `ask`; `null` if the proxy answers that it cannot tell: that is no reason to give up the rest. */
async function askIfThere(path) {
  try {
    return await ask(path);
  } catch (error) {
    if (error instanceof Refused) return null;
    throw error;
  }
}

class Refused extends Error {}

/** Keeps a page fed. `page` has a method for each kind of news. */
export class Feed {
  #page;
  #streams = [];
  #opened = 0;
  #attempt = 0;
  #timers = new Set();
  #run = 0;
  #generation = null;
  #shadow = false;

  constructor(page) {
    this.#page = page;
    // A page that was left may be kept for "back", with its streams, which would leave none for the next one.
    addEventListener("pagehide", () => this.#stop("asleep"));
    addEventListener("pageshow", (event) => {
      if (event.persisted) this.connect();
    });
    let hiding = 0;
    document.addEventListener("visibilitychange", () => {
      clearTimeout(hiding);
      if (document.hidden) hiding = setTimeout(() => this.#stop("asleep"), HIDDEN_MS);
      else if (this.#streams.length === 0) this.connect();
    });
  }

  /** Begins, or begins anew. */
  connect() {
    this.#stop(this.#attempt === 0 ? "connecting" : "again");
    const run = this.#run;
    this.#opened = 0;
    this.#stream(run, "/timeline", {
      timeline: (data) => {
        proxySays(data.now_ms);
        this.#page.timeline(data);
      },
      lock: (data) => this.#page.lock(data),
      outages: (data) => this.#page.outages(data),
    });
    this.#stream(run, "/decisions", {
      decision: (data) => this.#page.decision(data),
      lost: (data) => this.#page.lost(data.lost),
    }, () => this.#backfill(run));
    this.#poll(run);
  }

  #stream(run, path, handlers, onOpen = () => {}) {
    const stream = new EventSource(path);
    this.#streams.push(stream);
    stream.onopen = () => {
      if (run !== this.#run) return;
      this.#opened += 1;
      if (this.#opened === 2) {
        this.#attempt = 0;
        this.#page.state("live");
      }
      onOpen();
    };
    stream.onerror = () => this.#broken(run);
    for (const [event, handle] of Object.entries(handlers)) {
      stream.addEventListener(event, (message) => {
        if (run === this.#run) handle(JSON.parse(message.data));
      });
    }
  }

  /** What was decided before the stream began; what comes twice is told apart by its id. */
  async #backfill(run) {
    try {
      const past = await ask("/decisions?limit=1000");
      if (run === this.#run) this.#page.past(past);
    } catch {
      this.#broken(run);
    }
  }

  async #poll(run) {
    if (run !== this.#run) return;
    const began = performance.now();
    try {
      const [locks, routes] = await Promise.all([ask("/locks"), askIfThere("/routes")]);
      if (run !== this.#run) return;
      this.#page.sources(locks.sources);
      if (routes) {
        this.#page.routes(routes);
        await this.#askSeldom(run, routes);
      }
    } catch {
      this.#broken(run);
      return;
    }
    // A proxy with very many locks is not asked more often than is good for it.
    const pause = Math.max(POLL_MS, 10 * (performance.now() - began));
    this.#later(pause, () => this.#poll(run));
  }

  async #askSeldom(run, routes) {
    if (routes.generation !== this.#generation) {
      const config = await askIfThere("/config");
      if (run !== this.#run) return;
      if (config) {
        this.#generation = routes.generation;
        this.#page.config(config);
      }
    }
    const shadow = routes.routes.some((route) => route.mode === "shadow");
    if (shadow || this.#shadow) {
      const report = await askIfThere("/shadow");
      if (report && run === this.#run) this.#page.shadow(report);
    }
    this.#shadow = shadow;
  }

  #broken(run) {
    if (run !== this.#run) return;
    const pause = RETRY_MS[Math.min(this.#attempt, RETRY_MS.length - 1)] * (0.75 + Math.random() / 2);
    this.#attempt += 1;
    this.#stop("cut-off", pause);
    this.#later(pause, () => this.connect());
  }

  #stop(state, pause) {
    this.#run += 1;
    for (const stream of this.#streams) stream.close();
    this.#streams = [];
    for (const timer of this.#timers) clearTimeout(timer);
    this.#timers.clear();
    this.#page.state(state, pause);
  }

  #later(ms, step) {
    const timer = setTimeout(() => {
      this.#timers.delete(timer);
      step();
    }, ms);
    this.#timers.add(timer);
  }
}

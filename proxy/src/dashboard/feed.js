// The way to the proxy: two event streams and a few questions asked again and again. When it breaks, everything is
// begun anew, after a pause that grows. A page that nobody sees lets go of its streams: browsers allow few connections.

import { now, proxySays } from "./time.js";

const POLL_MS = 2000;
/** A proxy with very many routes is not asked more often than is good for it. */
const POLLED_BYTES_PER_MS = 4000;
/** What is later than that is behind. */
const BEHIND_MS = 5000;
const LOOK_MS = 1000;
/** Decisions of a flood wait for their turn, so that all else has its own; of more than these, the oldest are left out. */
const TURN_MS = 100;
const WAITING_MAX = 1000;
const RETRY_MS = [500, 1000, 2000, 4000, 8000, 15000];
const ANSWER_WITHIN_MS = 10000;
const HIDDEN_MS = 5000;

/** Reads JSON. What JavaScript could not tell from the numbers beside it becomes a `BigInt`: anybody may present such a revision. */
function read(text) {
  return /[:[,]\s*\d{16}/.test(text) ? JSON.parse(text, exactly) : JSON.parse(text);
}

function exactly(key, value, context) {
  return Number.isInteger(value) && !Number.isSafeInteger(value) && context?.source ? BigInt(context.source) : value;
}

/** Asks the proxy for a JSON document. */
export async function ask(path) {
  return (await askSized(path)).document;
}

/** As `ask`, with how long the document is. */
async function askSized(path) {
  const signal = AbortSignal.timeout(ANSWER_WITHIN_MS);
  const text = await answerOf(path, signal).catch((error) => {
    // What an answer that is given up fails with depends on the browser, and on how much of it there was.
    throw signal.aborted ? new Late(path) : error;
  });
  const document = read(text);
  proxySays(document.now_ms);
  return { document, bytes: text.length };
}

async function answerOf(path, signal) {
  const answer = await fetch(path, { headers: { accept: "application/json" }, signal, cache: "no-store" });
  if (!answer.ok) throw new Refused(answer.status, await answer.text());
  return answer.text();
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

/** The proxy has answered, and says why it does not tell. */
export class Refused extends Error {
  constructor(status, text) {
    super(text.trim());
    this.status = status;
  }
}

class Late extends Error {}

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
  #group = false;
  /** Decisions that were not looked at yet, as they came, and how many were left out. */
  #waiting = [];
  #leftOut = 0;
  /** Until when each question should have its next answer, and until when the decisions are known to come late. */
  #due = new Map();
  #lateUntil = 0;
  /** When the proxy was heard last, whatever it said. */
  #heard = 0;
  #behind = false;

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
    this.#group = false;
    this.#generation = null; // A process that was started anew counts from 1 again, whatever it was configured with.
    this.#stream(run, "/timeline", {
      timeline: (data) => {
        proxySays(data.now_ms);
        this.#page.timeline(data);
      },
      lock: (data) => this.#page.lock(data),
      outages: (data) => this.#page.outages(data),
    });
    this.#stream(run, "/decisions", {
      lost: (data) => this.#page.lost(data.lost),
    }, () => this.#backfill(run)).addEventListener("decision", (message) => this.#wait(run, message.data));
    for (const path of ["/sources", "/routes"]) this.#due.set(path, performance.now() + BEHIND_MS);
    this.#poll(run, "/sources", (document) => this.#page.sources(document.sources));
    this.#poll(run, "/routes", async (routes) => {
      this.#page.routes(routes);
      await this.#askSeldom(run, routes);
    });
    this.#look();
  }

  #stream(run, path, handlers, onOpen = () => {}) {
    const stream = new EventSource(path);
    this.#streams.push(stream);
    stream.onopen = () => {
      if (run !== this.#run) return;
      this.#heard = performance.now();
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
        if (run !== this.#run) return;
        this.#heard = performance.now();
        handle(read(message.data));
      });
    }
    return stream;
  }

  /** Has a decision wait for its turn. */
  #wait(run, data) {
    if (run !== this.#run) return;
    this.#heard = performance.now();
    if (this.#waiting.length === 0) this.#later(TURN_MS, () => this.#takeTurn());
    this.#waiting.push(data);
    if (this.#waiting.length > 2 * WAITING_MAX) this.#leftOut += this.#waiting.splice(0, WAITING_MAX).length;
  }

  #takeTurn() {
    const excess = Math.max(0, this.#waiting.length - WAITING_MAX);
    const decisions = this.#waiting.slice(excess).map(read);
    if (this.#leftOut + excess > 0) this.#page.lost(this.#leftOut + excess);
    this.#waiting = [];
    this.#leftOut = 0;
    for (const decision of decisions) this.#page.decision(decision);
    if (now() - decisions.at(-1).time_ms > BEHIND_MS) this.#lateUntil = performance.now() + 2 * LOOK_MS;
  }

  /** Looks whether the page is behind, for as long as it is connected. */
  #look() {
    const time = performance.now();
    const behind = time < this.#lateUntil || [...this.#due.values()].some((due) => due < time);
    if (this.#opened >= 2 && behind !== this.#behind) {
      this.#behind = behind;
      this.#page.state(behind ? "behind" : "live");
    }
    this.#later(LOOK_MS, () => this.#look());
  }

  /** What was decided before the stream began; what comes twice is told apart by its id. */
  async #backfill(run) {
    try {
      const past = await ask("/decisions?limit=1000");
      if (run === this.#run) this.#page.past(past);
    } catch (error) {
      this.#missed(run, error);
      if (run === this.#run) this.#later(POLL_MS, () => this.#backfill(run));
    }
  }

  /** Asks, and asks again: how soon does not depend on how long the answer took, which tells how busy this page was, too. */
  async #poll(run, path, take) {
    let pause = POLL_MS;
    try {
      const { document, bytes } = await askSized(path);
      if (run !== this.#run) return;
      this.#heard = performance.now();
      pause = Math.max(pause, bytes / POLLED_BYTES_PER_MS);
      this.#due.set(path, performance.now() + pause + BEHIND_MS);
      await take(document);
    } catch (error) {
      if (!(error instanceof Refused)) this.#missed(run, error);
    }
    if (run === this.#run) this.#later(pause, () => this.#poll(run, path, take));
  }

  /** An answer did not come. That it is late does not make the connection a broken one, as long as anything else is heard. */
  #missed(run, error) {
    const elseHeard = performance.now() - this.#heard < BEHIND_MS;
    if (!(error instanceof Late && elseHeard)) this.#broken(run);
  }

  async #askSeldom(run, routes) {
    if (routes.generation !== this.#generation) {
      const config = await askIfThere("/config");
      if (run !== this.#run) return;
      if (config) {
        this.#generation = routes.generation;
        this.#page.config(config);
        if (config.settings.group && !this.#group) {
          this.#group = true;
          this.#poll(run, "/group", (group) => this.#page.group(group));
        }
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
    this.#waiting = [];
    this.#leftOut = 0;
    this.#due.clear();
    this.#lateUntil = 0;
    this.#behind = false;
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

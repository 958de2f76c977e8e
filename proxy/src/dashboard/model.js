// What the page knows. Bounded everywhere: a page may stay open for weeks.

import { Rates } from "./rates.js";
import { now } from "./time.js";

/** As many as the proxy has rows for; one more, and the lock goes that has been quiet for longest. */
const LOCKS_MAX = 1000;
const DECISIONS_MAX = 5000;
const REFUSALS_PER_LOCK_MAX = 1000;
/** Of all locks together: whoever makes up locks makes up as many as they like. */
const REFUSALS_MAX = 20000;
const SECONDS_MAX = 2 * 3600;
const GAPS_MAX = 100;

/** What tells a lock from others: its key, within its source. */
export const lockId = (source, lock) => `${source ?? ""}\n${lock}`;

export class Model {
  /** The locks of the timeline, by `lockId`, those that have been quiet for longest first. */
  locks = new Map();
  /** Whether locks were left out of it for others. */
  truncated = false;
  outages = [];
  /** Since when the proxy is not heard; `null` while it is. */
  cutOffSince = null;
  /** Since when the proxy looks, in milliseconds since the epoch; `null` before it said so. */
  since = null;
  /** The newest decisions, oldest first. */
  decisions = [];
  /** Whether the proxy has told of the decisions before this page was there. */
  toldOfPast = false;
  /** Decisions that came faster than this page could take them, or the proxy keep them for it. */
  lost = 0;
  /** These are `null` before the proxy told them. How many requests it refused, or would have, of late, by the reason: */
  refusedLately = null;
  sources = null;
  routes = null;
  /** What they do of late. */
  rates = new Rates();
  /** What `/routes` says of the process and of what is wrong with it. */
  trouble = null;
  /** What `/group` says; stays `null` where there is none. */
  group = null;
  /** The settings in force that weaken the fence. */
  dangers = null;
  #ids = new Map();
  /** By `lockId`, and how many they are in all. */
  #refusals = new Map();
  #refusalsKept = 0;
  #seconds = new Map();
  /** The times of which this page did not hear all decisions, oldest first, and since when it hears none; `null` while it hears them. */
  #gaps = [];
  #deafSince = -Infinity;

  /** Takes in how the stores are. That their news was fresh is soon long ago: it is kept as a time, and not as an age. */
  setSources(sources) {
    const readAt = (age) => (age === null ? null : now() - age * 1000);
    this.sources = sources.map((source) => ({ ...source, read_ms: readAt(source.age_seconds) }));
  }

  setTimeline(timeline) {
    // Another process knows nothing of what the one before decided.
    if (this.since !== null && this.since !== timeline.since_ms) this.#forget(timeline.since_ms);
    const quietFirst = [...timeline.locks].sort((a, b) => latestOf(a) - latestOf(b));
    this.locks = new Map(quietFirst.map((lock) => [lockId(lock.source, lock.lock), lock]));
    this.outages = timeline.outages;
    this.since = timeline.since_ms;
    this.truncated = timeline.truncated;
  }

  setLock(lock) {
    const id = lockId(lock.source, lock.lock);
    this.locks.delete(id); // What is set anew comes last.
    this.locks.set(id, lock);
    if (this.locks.size <= LOCKS_MAX) return;
    this.locks.delete(this.locks.keys().next().value);
    this.truncated = true;
  }

  /** How many locks the proxy keeps current, on the timeline or not; `null` before it told. */
  get tracked() {
    return this.sources && this.sources.reduce((sum, source) => sum + source.tracked_locks, 0);
  }

  /** Takes in a decision; says whether it was new. */
  add(decision) {
    if (this.#ids.has(decision.id)) return false;
    this.#ids.set(decision.id, decision);
    this.decisions.push(decision);
    if (decision.verdict === "reject") this.#count(decision);
    if (this.decisions.length > DECISIONS_MAX * 1.2) this.#forgetOldest();
    return true;
  }

  /** Takes in the answer to what was decided before, newest first; returns the decisions that were new. */
  addPast({ decisions, kept, capacity, not_all_until_ms: notAllUntil, now_ms: answered }) {
    this.toldOfPast = true;
    const areAllKept = decisions.length === kept && kept < capacity;
    const oldest = decisions.at(-1)?.time_ms ?? answered;
    const missed = Math.max(areAllKept ? -Infinity : oldest, notAllUntil ?? -Infinity);
    if (this.#deafSince !== null && this.#deafSince < missed) this.#miss(this.#deafSince, missed);
    this.#deafSince = null;
    const added = decisions.toReversed().filter((decision) => this.add(decision));
    this.decisions.sort((a, b) => a.time_ms - b.time_ms);
    for (const refusals of this.#refusals.values()) refusals.sort((a, b) => a.time_ms - b.time_ms);
    return added;
  }

  /** From now on, until it is told of the past, the page hears of no decision. */
  deafen() {
    this.#deafSince ??= this.#newest;
  }

  /** So many decisions did not come to this page. */
  lose(count) {
    this.lost += count;
    this.#miss(this.#newest, now());
  }

  get #newest() {
    return this.decisions.at(-1)?.time_ms ?? -Infinity;
  }

  #miss(from, to) {
    const last = this.#gaps.at(-1);
    // What is missed of a flood is missed again and again.
    if (last && from <= last.to + 1000) Object.assign(last, { from: Math.min(last.from, from), to: Math.max(last.to, to) });
    else this.#gaps.push({ from, to });
    if (this.#gaps.length > GAPS_MAX) this.#forget(this.#gaps[1].to);
  }

  /** Before that time, what is known is not all any more. */
  #forget(ms) {
    this.#gaps = [{ from: -Infinity, to: ms }, ...this.#gaps.filter((gap) => gap.to > ms)];
  }

  /** Whether this page has heard of all decisions between two times. */
  heardAll(fromMs, toMs) {
    const deaf = this.#deafSince !== null && this.#deafSince < toMs;
    return !deaf && !this.#gaps.some(({ from, to }) => from <= toMs && to >= fromMs);
  }

  #forgetOldest() {
    for (const old of this.decisions.splice(0, this.decisions.length - DECISIONS_MAX)) this.#ids.delete(old.id);
  }

  #count(decision) {
    const second = Math.floor(decision.time_ms / 1000);
    const counts = this.#seconds.get(second) ?? new Map();
    counts.set(decision.reason, added(counts.get(decision.reason), decision.forwarded ? [0, 1] : [1, 0]));
    this.#seconds.set(second, counts);
    if (this.#seconds.size > SECONDS_MAX) {
      const [oldest] = this.#seconds.keys();
      this.#seconds.delete(oldest);
      this.#forget((oldest + 1) * 1000);
    }
    if (decision.lock === null) return;
    const id = lockId(decision.source, decision.lock);
    const refusals = this.#refusals.get(id) ?? [];
    refusals.push(decision);
    this.#refusals.set(id, refusals);
    this.#refusalsKept += 1;
    if (refusals.length > REFUSALS_PER_LOCK_MAX * 1.2) {
      this.#refusalsKept -= refusals.splice(0, refusals.length - REFUSALS_PER_LOCK_MAX).length;
    }
    if (this.#refusalsKept > REFUSALS_MAX * 1.2) this.#forgetOldestRefusals();
  }

  /** Looks at all of them, and so many at a time go that this is seldom. */
  #forgetOldestRefusals() {
    const oldestFirst = [...this.#refusals.values()].flat().sort((a, b) => a.time_ms - b.time_ms);
    const old = new Set(oldestFirst.slice(0, -REFUSALS_MAX));
    for (const [id, refusals] of this.#refusals) {
      const kept = refusals.filter((decision) => !old.has(decision));
      if (kept.length) this.#refusals.set(id, kept);
      else this.#refusals.delete(id);
    }
    this.#refusalsKept -= old.size;
  }

  /** When the first thing happened that is still known; what was there when the proxy began to look does not count. */
  get firstEvent() {
    const times = [...this.locks.values()].flatMap((lock) => lock.tenures.flatMap((tenure) => [tenure.began_ms, tenure.ended_ms]));
    times.push(...this.outages.map((outage) => outage.began_ms), this.decisions[0]?.time_ms);
    const first = times.filter((at) => at > this.since + 1000).reduce((least, at) => Math.min(least, at), Infinity);
    return Number.isFinite(first) ? first : this.since ?? now();
  }

  /** A decision that this page knows: it knows refusals for longer than others. */
  decision(id) {
    return this.#ids.get(id) ?? [...this.#refusals.values()].flat().find((refusal) => refusal.id === id);
  }

  /** The refusals of a lock that this page knows, oldest first. */
  refusals(lock) {
    return this.#refusals.get(lockId(lock.source, lock.lock)) ?? [];
  }

  /** How many requests were refused, and how many would have been, by reason, between two times. */
  reasons(fromMs, toMs) {
    const sum = new Map();
    this.eachSecond(fromMs, toMs, (_, counts) => {
      for (const [reason, count] of counts) sum.set(reason, added(sum.get(reason), count));
    });
    return sum;
  }

  /** Calls back with each second between two times in which something was refused, in no order. */
  eachSecond(fromMs, toMs, callback) {
    for (const [second, counts] of this.#seconds) {
      if (second * 1000 >= fromMs - 999 && second * 1000 <= toMs) callback(second * 1000, counts);
    }
  }
}

const added = ([a, b] = [0, 0], [c, d]) => [a + c, b + d];

/**
 * How many were refused, and how many would be, their routes doing no more than watch: `3`, `31 would be`, or `3, 31 would be`; and with
 * the word: `3 refused`, `31 would be refused`, or `3 refused, 31 would be`.
 */
export function refusedText(refused, wouldBe, word = "") {
  const numbers = [refused, wouldBe].map((count) => count.toLocaleString("en"));
  const behind = word && ` ${word}`;
  if (!wouldBe) return `${numbers[0]}${behind}`;
  return refused ? `${numbers[0]}${behind}, ${numbers[1]} would be` : `${numbers[1]} would be${behind}`;
}

/** The same of the requests that came under a tenure. */
export const refusedUnder = (tenure, word) => refusedText(tenure.refused, tenure.would_be_refused, word);

/** The tenure that a revision belongs to. Tenures stand in the order of their revisions. */
export function tenureOf({ tenures }, revision) {
  if (revision === null || revision === undefined) return undefined;
  let [low, high] = [0, tenures.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (tenures[middle].first <= revision) low = middle + 1;
    else high = middle;
  }
  const tenure = tenures[low - 1];
  return tenure && revision <= tenure.last ? tenure : undefined;
}

/** Whether a tenure is known to have ended, and not only to be tracked no longer. */
export const hasEnded = (tenure) => tenure.ended_ms !== null && tenure.end !== "untracked";

/** The tenure that holds a lock now, if any. */
export function holderOf(lock) {
  const last = lock.tenures.at(-1);
  return last && last.ended_ms === null ? last : undefined;
}

/** Since when a lock store has not answered, or has gone back, or the page is cut off; `null` if its news is of now. Nothing is known of later. */
export function silentSince({ outages, cutOffSince }, source) {
  const outage = outages.find((outage) => outage.source === source && outage.ended_ms === null);
  const times = [outage?.began_ms, cutOffSince].filter(Number.isFinite);
  return times.length ? Math.min(...times) : null;
}

/** Whether nobody held a lock when it was heard of last. */
export const isFree = ({ tenures }) => tenures.length === 0 || hasEnded(tenures.at(-1));

/** When the last thing happened to a lock. */
export function latestOf(lock) {
  const times = lock.tenures.slice(-3).flatMap((tenure) => [tenure.began_ms, tenure.ended_ms ?? 0, tenure.last_refused_ms ?? 0]);
  const waits = lock.waits.slice(-1).map((wait) => wait.ended_ms ?? now());
  return Math.max(0, ...times, ...waits);
}

/** How each tenure gave way to the next: the newest of them, newest first, and how many there are in `all`. */
export function handoffs(locks, most) {
  const pairs = [];
  for (const lock of locks) {
    for (let at = 1; at < lock.tenures.length; at += 1) {
      const [from, to] = [lock.tenures[at - 1], lock.tenures[at]];
      if (hasEnded(from)) pairs.push({ lock, from, to });
    }
  }
  pairs.sort((a, b) => b.to.began_ms - a.to.began_ms);
  return { newest: pairs.slice(0, most).map(handoff), all: pairs.length };
}

function handoff({ lock, from, to }) {
  const waits = lock.waits.filter((wait) => to.first <= wait.revision && wait.revision <= to.last);
  const began = Math.min(...waits.map((wait) => wait.began_ms));
  const ended = Math.max(...waits.map((wait) => wait.ended_ms ?? now()));
  return {
    lock, from, to,
    when: to.began_ms,
    gap: Math.max(0, to.began_ms - from.ended_ms),
    wait: waits.length ? ended - began : null,
    waiting: waits.reduce((sum, wait) => sum + wait.waiting, 0),
    timedOut: waits.some((wait) => wait.outcome === "timed-out"),
    requests: waits.reduce((sum, wait) => sum + wait.requests, 0),
    drained: waits.reduce((sum, wait) => sum + wait.drained, 0),
    tail: tailOf(from),
  };
}

/** Whether a tenure had ended by then: what is refused within the millisecond of its end comes after it. */
export const hasEndedBy = (tenure, ms) => hasEnded(tenure) && tenure.ended_ms <= ms;

/** How long a tenure was still sending after its end: how long the zombie lived. `null` if it was not. */
export function tailOf(tenure) {
  if (!tenure.last_refused_ms || !hasEndedBy(tenure, tenure.last_refused_ms)) return null;
  return tenure.last_refused_ms - tenure.ended_ms;
}

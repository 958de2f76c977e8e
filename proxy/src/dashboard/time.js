// Times as people read them. "Now" is the proxy's: the browser's clock may be wrong.

import { el } from "./dom.js";

/** What differs by less is an answer that was under way for a while; by more, one of the clocks was set. */
const STEP_MS = 2000;

let ahead = null;

/** Learns how far the proxy's clock is ahead of this browser's. Either may be set while the page is open. */
export function proxySays(nowMs) {
  if (!Number.isFinite(nowMs)) return;
  const said = nowMs - Date.now();
  if (ahead === null || Math.abs(said - ahead) >= STEP_MS) ahead = said;
}

/** The proxy's present time, in milliseconds since the epoch. */
export const now = () => Date.now() + (ahead ?? 0);

/** `240 ms`, `4.2 s`, `3 min 20 s`, `2 h 5 min`. */
export function duration(ms) {
  if (ms === null || ms === undefined) return "–";
  const seconds = Math.max(0, ms) / 1000;
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 9.95) return `${seconds.toFixed(1)} s`;
  if (seconds < 100) return `${Math.round(seconds)} s`;
  const parts = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  const first = parts.findIndex(([size]) => seconds >= size);
  return parts.slice(first, first + 2).map(([size, unit], index) => {
    const above = index === 0 ? Infinity : parts[first][0];
    return `${Math.floor((seconds % above) / size)} ${unit}`;
  }).filter((part, index) => index === 0 || !part.startsWith("0 ")).join(" ");
}

/** `4 s ago`. */
export function ago(ms) {
  const seconds = Math.round((now() - ms) / 1000);
  return seconds < 1 ? "just now" : `${duration(seconds * 1000)} ago`;
}

const two = (number) => String(number).padStart(2, "0");

/** `2026-01-31 14:03:22.123 UTC+1`, in the browser's time zone. */
export function exact(ms) {
  const date = new Date(ms);
  const day = `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
  return `${day} ${clock(ms, true)} ${zone()}`;
}

/** `14:03:22`, with milliseconds if asked. */
export function clock(ms, withMs = false) {
  const date = new Date(ms);
  const time = `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
  return withMs ? `${time}.${String(date.getMilliseconds()).padStart(3, "0")}` : time;
}

/** `UTC+5:30`. */
export function zone() {
  const minutes = -new Date().getTimezoneOffset();
  if (minutes === 0) return "UTC";
  const part = Math.abs(minutes) % 60;
  return `UTC${minutes < 0 ? "−" : "+"}${Math.floor(Math.abs(minutes) / 60)}${part ? `:${two(part)}` : ""}`;
}

/** A time that stays relative (see `tick`) and tells the exact one on hover: `4 s ago`, or how long it is `"for"`. */
export function time(ms, form = "ago") {
  if (ms === null || ms === undefined) return el("span", { class: "muted" }, "–");
  const stamp = new Date(ms);
  return el("time", { datetime: Number.isNaN(stamp.getTime()) ? null : stamp.toISOString(), title: exact(ms), "data-ms": ms, "data-form": form }, relative(ms, form));
}

const relative = (ms, form) => (form === "for" ? duration(Math.round((now() - ms) / 1000) * 1000) : ago(ms));

/** Brings all relative times on the page up to date. */
export function tick() {
  for (const node of document.querySelectorAll("time[data-ms]")) {
    const text = relative(Number(node.dataset.ms), node.dataset.form);
    if (node.textContent !== text) node.textContent = text;
  }
}

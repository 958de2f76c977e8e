// fencepost's dashboard. This file puts the parts together: the feed tells the model, and whoever shows something of it
// is asked to draw, at most once per frame.

import { onShown, show, shown, showSoon } from "./address.js";
import { Chart } from "./chart.js";
import { Decisions } from "./decisions.js";
import { Detail } from "./detail.js";
import { byId } from "./dom.js";
import { Feed } from "./feed.js";
import { offerRoutes } from "./filters.js";
import { showGroup } from "./group.js";
import { Model } from "./model.js";
import { showHandoffs, showMoreHandoffs, showRoutes, showShadow, showSources, showTenures } from "./tables.js";
import { bindTheme } from "./theme.js";
import { dangersOf, showTiles } from "./tiles.js";
import { duration, exact, now, tick } from "./time.js";
import { showAbout, showTrouble } from "./trouble.js";
import { Timeline } from "./timeline.js";
import { listen, markButtons } from "./timeline_input.js";
import { View } from "./view.js";

const model = new Model();
const view = new View();
const timeline = new Timeline(model, view);
const chart = new Chart(model, view, () => timeline.width);
const decisions = new Decisions(model);
const detail = new Detail(model, timeline, view);

/** Draws the timeline and all that follows from it, soon: many locks may change at once, and often. */
function drawSoon() {
  timeline.changed();
  drawTablesSoon();
}

let asked = false;
let cost = 0;
function drawTablesSoon() {
  if (asked) return;
  asked = true;
  setTimeout(() => {
    asked = false;
    const began = performance.now();
    showHandoffs(model);
    decisions.recolour();
    showTenures(model);
    showSources(model);
    showTiles(model);
    detail.refresh();
    cost = performance.now() - began;
  }, Math.max(250, 10 * cost));
}

const page = {
  timeline(document) {
    model.setTimeline(document);
    view.suggest(document.since_ms);
    markButtons(view);
    drawSoon();
  },
  lock(lock) {
    model.setLock(lock);
    drawSoon();
  },
  outages(outages) {
    model.outages = outages;
    drawSoon();
  },
  decision(decision) {
    if (!model.add(decision)) return;
    decisions.arrived(decision);
    timeline.draw();
  },
  past(document) {
    decisions.caughtUp(model.addPast(document));
    timeline.draw();
    detail.retry();
  },
  lost(count) {
    model.lose(count);
  },
  sources(sources) {
    model.setSources(sources);
    showSources(model);
    showTrouble(model);
    showTiles(model);
    timeline.draw();
  },
  routes(document) {
    model.routes = document.routes;
    model.refusedLately = document.refused_lately;
    model.trouble = document;
    model.rates.take(document);
    showAbout(document);
    showTrouble(model);
    showRoutes(model);
    offerRoutes(document.routes.map((route) => route.name));
    showTiles(model);
  },
  shadow: showShadow,
  config(document) {
    model.dangers = dangersOf(document);
    showTiles(model);
  },
  group(document) {
    model.group = document;
    showGroup(document);
    showTrouble(model);
  },
  state: showState,
};

const WORDS = { live: "live", behind: "behind", connecting: "connecting", again: "connecting", "cut-off": "cut off", asleep: "asleep" };

function showState(state, pause) {
  if (state !== "live" && state !== "behind") model.deafen();
  if (state === "live") model.cutOffSince = null;
  if (state === "cut-off") model.cutOffSince ??= now();
  const { cutOffSince } = model;
  const pill = byId("connection");
  pill.textContent = WORDS[state];
  pill.dataset.state = cutOffSince === null ? state : "cut-off";
  document.body.classList.toggle("old-news", cutOffSince !== null);
  byId("retry").hidden = cutOffSince === null;
  const banner = byId("cut-off");
  banner.hidden = cutOffSince === null;
  if (cutOffSince === null) banner.textContent = "";
  else if (banner.textContent === "") {
    banner.textContent = `Cut off from fencepost since ${exact(cutOffSince)}: what stands below is old. This page connects again by itself.`;
  }
  if (state === "cut-off" && cutOffSince !== null) pill.textContent = `cut off, next try in ${duration(pause)}`;
}

const feed = new Feed(page);
byId("retry").addEventListener("click", () => feed.connect());

listen(timeline, view, model, ({ lock, hit }) => {
  if (hit.kind === "dot") show({ decision: hit.decision.id }, true);
  else if (hit.kind === "tenure" || hit.kind === "tail") detail.showTenure(lock, hit.tenure);
});
view.onChange(() => {
  markButtons(view);
  showSoon({ span: view.chosen ? String(Math.round(view.span)) : "" });
});
if (Number(shown("span")) > 0) view.setSpan(Number(shown("span")));
markButtons(view);

// Links to decisions keep the filters that are in force; links within the page do not touch them at all.
document.addEventListener("click", (event) => {
  const address = event.target.closest?.("a")?.getAttribute("href") ?? "";
  if (!address.startsWith("#") || event.ctrlKey || event.metaKey || event.shiftKey || event.defaultPrevented) return;
  event.preventDefault();
  const id = new URLSearchParams(address.slice(1)).get("decision");
  if (id) {
    show({ decision: id }, true);
    return;
  }
  const target = byId(address.slice(1));
  target?.scrollIntoView({ block: "start" });
  target?.focus();
});

const KEYS = { p: () => decisions.togglePause(), "/": () => byId("filters").elements.find.focus() };
// Not anywhere on the page: whoever speaks to a computer says letters by accident (WCAG 2.1.4).
for (const part of ["timeline", "decisions"]) {
  byId(part).addEventListener("keydown", (event) => {
    if (event.target.closest("input, select, textarea") || event.ctrlKey || event.metaKey || event.altKey) return;
    const action = KEYS[event.key];
    if (!action) return;
    action();
    event.preventDefault();
  });
}
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || event.target.closest("input, select, textarea")) return;
  detail.close();
  event.preventDefault();
});

byId("keys-button").addEventListener("click", () => {
  const hidden = byId("keys").toggleAttribute("hidden");
  byId("keys-button").setAttribute("aria-expanded", !hidden);
});
byId("more-handoffs").addEventListener("click", () => showMoreHandoffs(model));
byId("as-table").addEventListener("toggle", () => showTenures(model));

// Times pass even when nothing happens, and whether or not anything is heard of the proxy.
setInterval(() => {
  if (document.hidden) return;
  tick();
  drawTablesSoon();
  if (model.since !== null) view.suggest(model.since);
  markButtons(view);
  timeline.aged();
  timeline.advance();
  chart.draw();
}, 1000);
setInterval(() => timeline.advance(), 250);

bindTheme();
showTiles(model);
onShown(() => timeline.draw());
chart.draw();
detail.follow();
feed.connect();

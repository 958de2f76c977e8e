// Mouse, touch and keyboard on the timeline.

import { byId } from "./dom.js";
import { SPANS } from "./view.js";
import { el } from "./dom.js";
import { hideTip, showTip } from "./tip.js";

/** Fingers that move less than this have clicked. */
const CLICK_PIXELS = 5;

/** `open` is told what was chosen: what `Timeline.hitAt` returns. */
export function listen(timeline, view, model, open) {
  pointers(byId("timeline"), timeline, view, open);
  wheel(byId("timeline"), timeline, view);
  keys(byId("timeline"), timeline, view, model, open);
  buttons(view);
}

function pointers(box, timeline, view, open) {
  const down = new Map();
  let moved = 0;
  box.addEventListener("pointerdown", (event) => {
    if (event.button !== 0 || event.clientX > box.getBoundingClientRect().left + box.clientWidth) return;
    if (down.size === 0) moved = 0;
    down.set(event.pointerId, event.clientX);
  });
  addEventListener("pointermove", (event) => {
    const before = down.get(event.pointerId);
    if (before === undefined) return;
    const others = [...down].filter(([id]) => id !== event.pointerId).map(([, x]) => x);
    down.set(event.pointerId, event.clientX);
    moved += Math.abs(event.clientX - before);
    if (moved < CLICK_PIXELS) return;
    hideTip();
    if (others.length === 0) view.pan((before - event.clientX) / timeline.width);
    else pinch(timeline, view, others[0], before, event.clientX);
  });
  for (const end of ["pointerup", "pointercancel"]) addEventListener(end, (event) => down.delete(event.pointerId));
  box.addEventListener("pointermove", (event) => {
    if (down.size > 0 || event.pointerType === "touch") return;
    const at = timeline.hitAt(event.clientX, event.clientY);
    if (at?.hit) showTip(at, event.clientX, event.clientY);
    else hideTip();
    box.classList.toggle("pointing", Boolean(at?.hit) && at.hit.kind !== "outage");
  });
  box.addEventListener("pointerleave", hideTip);
  // Not "click": rows are drawn anew all the time, and there is none when what was pressed is gone by the release.
  box.addEventListener("pointerup", (event) => {
    if (!down.has(event.pointerId) || down.size > 1 || moved >= CLICK_PIXELS) return;
    const at = timeline.hitAt(event.clientX, event.clientY);
    if (!at) return;
    timeline.moveTo(at.id);
    hideTip();
    if (at.hit) open(at);
  });
  // What was done by the release is not done again; a screen reader clicks without a pointer.
  box.addEventListener("click", (event) => {
    if (event.detail !== 0) event.preventDefault();
  });
}

function pinch(timeline, view, still, before, after) {
  const [was, is] = [Math.abs(before - still), Math.abs(after - still)];
  if (was > 10 && is > 10) view.zoom(was / is, timeline.partAt((still + after) / 2));
}

function wheel(box, timeline, view) {
  box.addEventListener("wheel", (event) => {
    if (event.ctrlKey || event.metaKey) view.zoom(Math.exp(event.deltaY / 300), timeline.partAt(event.clientX));
    else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) view.pan((event.deltaX || event.deltaY) / timeline.width);
    else return;
    event.preventDefault();
  }, { passive: false });
}

function keys(box, timeline, view, model, open) {
  const chooseLock = (step) => {
    const at = timeline.order.indexOf(timeline.cursor.lock);
    const next = timeline.order[Math.min(timeline.order.length - 1, Math.max(0, at === -1 ? 0 : at + step))];
    if (next === undefined) return;
    timeline.cursor.decision = null;
    timeline.moveTo(next);
    say(timeline, model);
  };
  const chooseRefusal = (step) => {
    if (timeline.cursor.lock === null) chooseLock(0);
    const lock = model.locks.get(timeline.cursor.lock);
    if (!lock) return;
    const refusals = model.refusals(lock);
    const at = refusals.findIndex((decision) => decision.id === timeline.cursor.decision);
    const next = refusals[at === -1 ? refusals.length - 1 : Math.min(refusals.length - 1, Math.max(0, at + step))];
    if (!next) return;
    timeline.cursor.decision = next.id;
    view.reveal(next.time_ms);
    timeline.draw();
    say(timeline, model);
  };
  const openChosen = () => {
    const lock = model.locks.get(timeline.cursor.lock);
    if (!lock) return;
    const decision = model.decision(timeline.cursor.decision);
    const tenure = lock.tenures.at(-1);
    if (decision) open({ lock, hit: { kind: "dot", decision } });
    else if (tenure) open({ lock, hit: { kind: "tenure", tenure } });
  };
  const actions = {
    ArrowLeft: () => view.pan(-0.1), ArrowRight: () => view.pan(0.1),
    ArrowUp: () => chooseLock(-1), ArrowDown: () => chooseLock(1),
    "+": () => view.zoom(1 / 1.5, 0.5), "=": () => view.zoom(1 / 1.5, 0.5), "-": () => view.zoom(1.5, 0.5), "_": () => view.zoom(1.5, 0.5),
    ",": () => chooseRefusal(-1), ".": () => chooseRefusal(1),
    Home: () => view.fit(model.firstEvent), f: () => view.fit(model.firstEvent), End: () => view.follow(),
    Enter: openChosen,
  };
  box.addEventListener("keydown", (event) => {
    const action = actions[event.key];
    if (!action || event.ctrlKey || event.metaKey || event.altKey || event.target !== box) return;
    event.preventDefault();
    action();
  });
}

/** Tells a screen reader where the cursor is. */
function say(timeline, model) {
  const decision = model.decision(timeline.cursor.decision);
  const index = timeline.order.indexOf(timeline.cursor.lock);
  const row = byId("rows").querySelector(".row.chosen svg");
  byId("news").textContent = decision
    ? `${decision.reason}, ${new Date(decision.time_ms).toLocaleTimeString()}, decision ${decision.id}`
    : `${index + 1} of ${timeline.order.length}. ${row?.getAttribute("aria-label") ?? ""}`;
}

function buttons(view) {
  byId("zoom-in").addEventListener("click", () => view.zoom(1 / 1.5, 0.5));
  byId("zoom-out").addEventListener("click", () => view.zoom(1.5, 0.5));
  byId("to-now").addEventListener("click", () => (view.end === null ? view.hold() : view.follow()));
  const spans = SPANS.map(([span, text]) => {
    const button = el("button", { type: "button", "data-span": span }, text);
    button.addEventListener("click", () => view.setSpan(span));
    return button;
  });
  byId("spans").replaceChildren(...spans);
}

/** Shows which span is on, and whether the view follows the present. */
export function markButtons(view) {
  for (const button of byId("spans").children) button.setAttribute("aria-pressed", Number(button.dataset.span) === view.span);
  byId("to-now").setAttribute("aria-pressed", view.end === null);
}

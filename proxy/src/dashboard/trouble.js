// Which process this is, and what is wrong with it: in the header, and in a list above all else.

import { byId, el, shorten, sync, visible } from "./dom.js";
import { groupTrouble } from "./group.js";
import { duration, now } from "./time.js";

const TEXT_MAX = 1200;
const LINES_MAX = 4;
const NAMES_MAX = 8;

/** Host, version, uptime and configuration. The tab's title has the host: whoever runs several has several tabs. */
export function showAbout({ process, generation }) {
  const { host, version, commit, started_ms: started, configuration } = process;
  const shown = visible(host);
  document.title = `${shown} · fencepost`;
  const build = commit === "unknown" ? version : `${version} (${commit})`;
  const parts = [`fencepost ${build}`, `up ${duration(now() - started)}`, `${visible(configuration)}, generation ${generation}`];
  const about = byId("about");
  about.replaceChildren(el("b", {}, el("bdi", {}, shown)), ` · ${parts.join(" · ")}`);
  about.title = parts.join("\n");
}

/** Bad news, the worst first, each with what follows from it. */
export function showTrouble({ trouble, sources, group }) {
  const all = [...groupTrouble(group), ...storesDown(sources ?? [], trouble?.routes ?? []), ...(trouble ? ofProcess(trouble) : [])];
  const sorted = all.sort((a, b) => Number(a.grade === "warn") - Number(b.grade === "warn"));
  byId("trouble").hidden = sorted.length === 0;
  sync(byId("trouble"), sorted, ({ text }) => text, ({ grade, text }) => el("li", { class: grade }, shorten(visible(text).replaceAll("\\u{a}", "\n"), TEXT_MAX)));
}

function storesDown(sources, routes) {
  return sources.flatMap((source) => {
    const enforced = routes.filter((route) => route.source === source.source && route.mode === "enforce");
    const which = enforced.length ? ` (${someNames(enforced)})` : "";
    if (source.distrusted_through !== null) {
      const text = `Lock store ${source.source} went back: nothing is admitted until a tenure begins above revision ${source.distrusted_through}, or an operator accepts its state.`;
      return [{ grade: "bad", text }];
    }
    if (source.up !== false) return [];
    const follows = enforced.length ? `enforced routes${which} answer 503 unverifiable` : "no route enforces by it";
    const why = source.last_error ? ` Last error: ${source.last_error}.` : "";
    return [{ grade: "bad", text: `Lock store ${source.source} does not answer: ${follows}.${why}` }];
  });
}

function someNames(routes) {
  const names = routes.slice(0, NAMES_MAX).map((route) => route.name).join(", ");
  return routes.length > NAMES_MAX ? `${names} and ${routes.length - NAMES_MAX} more` : names;
}

function someOf(lines, more) {
  const rest = lines.length - LINES_MAX;
  return [...lines.slice(0, LINES_MAX), ...(rest > 0 ? [`${rest} ${more}.`] : [])].join("\n");
}

function ofProcess({ file_rejected: isRejected, rejected, state_dir_failing: isFailing, warnings, layout_hints: hints, generation }) {
  const news = [];
  if (isFailing) news.push({ grade: "bad", text: "The state_dir cannot be written: no new tenure is let in." });
  if (isRejected) {
    news.push({ grade: "bad", text: [`The configuration file was rejected; generation ${generation} stays in force, and a restart may fail.`, someOf(rejected, "more problems are in the log")].join("\n") });
  }
  if (hints.length) {
    const lines = hints.map(({ source, lock, hint }) => `Lock ${lock} of store ${source}: ${hint}.`);
    news.push({ grade: "bad", text: someOf(lines, "more locks seem to have another layout: /routes lists them") });
  }
  if (warnings.length) news.push({ grade: "warn", text: someOf(warnings, "more warnings are in the log") });
  return news;
}

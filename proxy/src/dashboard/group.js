// The group of this process: its members, and the tenures that wait for them.

import { byId, el, name, shorten, sync, visible } from "./dom.js";
import { duration } from "./time.js";

/** What is shorter passes before anybody could do anything about it. */
const WAIT_SHOWN_SECONDS = 1;
const ID_SHOWN = 8;

const cell = (...content) => el("td", {}, ...content);
const number = (value) => el("td", { class: "number" }, value);
const seconds = (value) => (value === null ? "–" : duration(value * 1000));
/** A service that embeds the fence names no host. */
const hostName = (host) => name(host || null, 40);
const memberId = (id) => el("code", { title: id }, id === null ? "–" : id.slice(0, ID_SHOWN));

const STATES = { stands: "good", lapsed: "bad", cut: "bad", live: "good", left: "calm", "given-up": "bad" };

export function showGroup(group) {
  byId("group").hidden = false;
  byId("group-name").textContent = `${group.group}, member_ttl ${seconds(group.member_ttl_seconds)}`;
  const self = { ...group, state: group.standing, age_seconds: group.write_age_seconds, over_in_seconds: null, unanswered_asks: null };
  sync(byId("members"), [self, ...group.members], (member) => (member === self ? "self" : member.member), (member) => el("tr", {},
    cell(memberId(member.member), member === self ? el("span", { class: "muted" }, " this one") : null),
    cell(hostName(member.host)), cell(el("span", { class: `badge ${STATES[member.state]}` }, member.state)),
    number(seconds(member.age_seconds)), number(seconds(member.over_in_seconds)), cell(name(member.version, 40)),
    el("td", { class: `number ${member.unanswered_asks > 0 ? "warned" : ""}` }, member.unanswered_asks ?? "–")));
  byId("asks").hidden = group.asks.length === 0;
  sync(byId("ask-rows"), group.asks, ({ lock, revision }) => `${lock} ${revision}`, ({ lock, revision, age_seconds: age, waits_for: waits }) => el("tr", {},
    cell(name(lock, 60)), number(String(revision)), number(seconds(age)),
    cell(waits === null ? "being asked" : waits.map(({ member, host, over_in_seconds: over }) => el("div", {}, hostName(host), " ", memberId(member), over === null ? null : `, over in ${seconds(over)}`)))));
}

/** What is wrong with the part of this process in its group. */
export function groupTrouble(group) {
  if (!group) return [];
  const news = [];
  if (group.standing !== "stands") {
    const why = group.problem ? ` Last error: ${group.problem}.` : "";
    news.push({ grade: "bad", text: `This member of group ${group.group} does not stand: enforced routes answer 503 out-of-group.${why}` });
  }
  for (const { lock, revision, waits_for: waits } of group.asks.filter((ask) => ask.age_seconds >= WAIT_SHOWN_SECONDS)) {
    const whom = (waits ?? []).map(({ member, host }) => [host ? shorten(visible(host), 40) : "member", member.slice(0, ID_SHOWN)].join(" ")).join(", ");
    news.push({ grade: "warn", text: `A new tenure of lock ${shorten(visible(lock), 60)} (revision ${revision}) waits for ${whom || "the members of the group"}: /group tells more.` });
  }
  return news;
}

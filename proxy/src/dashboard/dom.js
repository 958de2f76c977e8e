// Makes elements. Whatever comes from outside (owners, locks, paths, errors) becomes a text node, never markup.

const SVG = "http://www.w3.org/2000/svg";

/** An HTML element; `null`, `undefined` and `false` among attributes and children are left out. */
export function el(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** An SVG element. */
export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat(2).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

/** The element with that id. */
export const byId = (id) => document.getElementById(id);

// Control and format characters (among them those that turn the direction of writing), private ones, lone surrogates,
// and every space but the common one: all that is invisible, or moves what stands beside it.
const INVISIBLE = /[\p{C}\p{Zl}\p{Zp}]|[^\S ]/gu;

/** Text with its invisible characters spelt out: `\u{202e}`. */
export function visible(text) {
  return String(text).replace(INVISIBLE, (character) => `\\u{${character.codePointAt(0).toString(16)}}`);
}

/** Up to `most` characters: if there are more, the first and the last, with `…` between them. Names that share a path differ at its end. */
export function shorten(text, most) {
  if (text.length <= most) return text;
  const last = Math.floor((most - 1) / 2);
  return `${text.slice(0, Math.max(1, most - 1 - last))}…${text.slice(text.length - last)}`;
}

/** A name from outside, isolated from the direction of what surrounds it. The whole of it is in the title. */
export function name(text, most = 96, className = "") {
  if (text === null || text === undefined) return el("span", { class: "muted" }, "–");
  const whole = visible(text);
  return el("bdi", { class: `name ${className}`.trim(), title: shorten(whole, 1200) }, shorten(whole, most));
}

/** How much of the end of a name stays where there is no room for all of it. */
const END = 8;

/** As `name`, for where there may be less room than it takes: then the middle gives way. */
export function tightName(text, most) {
  const whole = name(text, most);
  const shown = whole.textContent;
  if (shown.length <= 2 * END) return whole;
  whole.classList.add("tight");
  whole.replaceChildren(el("span", {}, shown.slice(0, -END)), el("span", {}, shown.slice(-END)));
  return whole;
}

/**
 * Brings the children of `parent` in line with `items`: an element keeps its place (and the focus within it) as long as
 * its item stays, and only cells that differ are replaced.
 */
export function sync(parent, items, keyOf, render) {
  const old = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  let at = parent.firstElementChild;
  for (const item of items) {
    const key = keyOf(item);
    const fresh = render(item);
    fresh.dataset.key = key;
    const kept = old.get(key);
    old.delete(key);
    const node = kept ? patch(kept, fresh) : fresh;
    if (node === at) at = at.nextElementSibling;
    else parent.insertBefore(node, at);
  }
  for (const gone of old.values()) gone.remove();
}

function patch(kept, fresh) {
  if (kept.isEqualNode(fresh)) return kept;
  kept.className = fresh.className;
  const cells = [...kept.childNodes];
  const news = [...fresh.childNodes];
  if (cells.length !== news.length) {
    kept.replaceChildren(...news);
    return kept;
  }
  cells.forEach((cell, index) => {
    if (!cell.isEqualNode(news[index])) cell.replaceWith(news[index]);
  });
  return kept;
}

// A colour for each owner. It follows from the name alone, so it is the same on every page and after every reload. Two
// owners may share one: their names stand beside it everywhere.

const COLOURS = 10;

/** The class that gives an element the colour of that owner. */
export function ownerClass(owner) {
  // `shard-1` and `shard-2` are neighbours, and neighbours differ: it is such names that share a lock.
  const [, stem, number] = /^(.*?)([0-9]{0,9})$/s.exec(owner);
  return `owner owner-${(hash(stem) + Number(number)) % COLOURS}`;
}

/** FNV-1a over the UTF-16 code units. */
function hash(text) {
  let hash = 0x811c9dc5;
  for (let index = 0; index < text.length; index += 1) {
    hash = Math.imul(hash ^ text.charCodeAt(index), 0x01000193) >>> 0;
  }
  return (hash ^ (hash >>> 15)) >>> 0;
}

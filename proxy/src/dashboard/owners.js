// A colour for each owner. It follows from the name, so it is the same on every page and after every reload, but where
// two owners of one lock would share one: then the second has the next that is free on its lane.

const COLOURS = 10;
const LANES_MAX = 1000;

/** The colours of each lane's owners. */
const lanes = new Map();

/** The class that gives an element the colour of an owner who has held a lock: anything with its `source` and `lock`. */
export function ownerClass(owner, lock) {
  const id = laneOf(lock);
  const lane = lanes.get(id) ?? new Map();
  lanes.set(id, lane);
  if (lanes.size > LANES_MAX) lanes.delete(lanes.keys().next().value);
  if (!lane.has(owner)) {
    const taken = new Set(lane.values());
    let colour = preferred(owner);
    // Of more than ten owners, some share one.
    for (let tries = 0; taken.has(colour) && tries < COLOURS; tries += 1) colour = (colour + 1) % COLOURS;
    if (lane.size >= COLOURS) return `owner owner-${colour}`;
    lane.set(owner, colour);
  }
  return `owner owner-${lane.get(owner)}`;
}

/** As `ownerClass`, of one who may have made up the name, and takes no colour from others. */
export const claimedClass = (owner, lock) => `owner owner-${lanes.get(laneOf(lock))?.get(owner) ?? preferred(owner)}`;

const laneOf = ({ source, lock }) => `${source ?? ""}\n${lock}`;

function preferred(owner) {
  // `shard-1` and `shard-2` are neighbours, and neighbours differ: it is such names that share a lock.
  const [, stem, number] = /^(.*?)([0-9]{0,9})$/s.exec(owner);
  return (hash(stem) + Number(number)) % COLOURS;
}

/** FNV-1a over the UTF-16 code units. */
function hash(text) {
  let hash = 0x811c9dc5;
  for (let index = 0; index < text.length; index += 1) {
    hash = Math.imul(hash ^ text.charCodeAt(index), 0x01000193) >>> 0;
  }
  return (hash ^ (hash >>> 15)) >>> 0;
}

// What each reason means and what to do about it, in the words of the README.

/**
 * Kinds of reasons. Each has a colour (app.css) and a shape, so that nothing is told by colour alone.
 * Shapes are paths around the origin, 4 pixels to each side.
 */
export const CATEGORIES = {
  superseded: { title: "superseded", path: "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0" },
  token: { title: "token is wrong", path: "M0 -5L5 0L0 5L-5 0z" },
  early: { title: "does not hold it", path: "M0 -5L5 4L-5 4z" },
  unsure: { title: "could not tell", path: "M-4 -4h8v8h-8z" },
};

const REASONS = {
  "stale-tenure": ["superseded", "The tenure has ended and another owner holds the lock.",
    "The fence did its work. The sender is a zombie: find out why it did not notice that it had lost the lock, and stop it."],
  "replayed-tenure": ["superseded", "The tenure has ended; the same owner holds the lock again under a later revision.",
    "The fence did its work: this is a delayed write of an earlier tenure. If the owner sends this all the time, it does not refresh its token after it takes the lock."],
  "not-owner": ["superseded", "That revision belongs to another owner.",
    "The sender must stop. If it believes that it holds the lock, look at how it gets its owner name and its revision."],
  "token-missing": ["token", "The request has no owner or no revision.",
    "The client does not send Fence-Owner and Fence-Revision, or something on the way removes them."],
  "token-malformed": ["token", "The token cannot be read: given twice, named in Connection, or not a revision.",
    "Fix the client: one Fence-Owner, one Fence-Revision, a decimal number without sign or leading zero."],
  "lock-not-allowed": ["token", "The path or Fence-Lock names no lock of the route.",
    "Fix the client's path or Fence-Lock, or the route's lock template."],
  "identity-mismatch": ["token", "The sender is not the owner that it claims to be: its certificate names another, or none.",
    "Look at the names of its certificate (peer, in the decision) and at the route's identity. If both are right, somebody sends the token of another: find out who."],
  "unknown-revision": ["token", "No holder of the lock has that revision.",
    "The client must send the revision that the store gave to its own tenure, not one that it counted or read elsewhere."],
  "ahead-of-store": ["token", "The store has not reached that revision.",
    "Was the revision taken from another store, or was the store restored from a backup?"],
  "no-owner": ["early", "Nobody holds the lock.",
    "The sender must take the lock first. If nobody takes it, look at the masters."],
  "not-yet-owner": ["early", "The sender is still in the queue for the lock.",
    "The sender must wait until it holds the lock."],
  "unverifiable": ["unsure", "The store does not answer, or the record cannot be read.",
    "Look at the lock stores below: members, age and the last error."],
  "store-regressed": ["unsure", "The store shows less than it did before.",
    "Was it restored from a backup? When its state is right: POST /sources/{name}/accept-regression."],
  "handoff-timeout": ["unsure", "Requests of an earlier holder were still at the worker after handoff_timeout.",
    "Look at what the worker is doing. If orphans are known not to run any more: POST /locks/{key}/clear-orphans."],
  "out-of-group": ["unsure", "This proxy has not reached the other members of its group for too long.",
    "Look at the group below, and at the way from this proxy to the lock store."],
  "draining": ["unsure", "The proxy is about to stop.",
    "Nothing to do: clients try again."],
};

/** All reasons, those first that speak of a superseded sender. */
export const CODES = Object.keys(REASONS);

/** The kind of a reason; of one that this page does not know, the least alarming. */
export const categoryOf = (code) => REASONS[code]?.[0] ?? "unsure";

/** What a reason means. */
export const meaningOf = (code) => REASONS[code]?.[1] ?? "This page does not know that reason.";

/** What to do about it. */
export const adviceOf = (code) => REASONS[code]?.[2] ?? "See the README of this version.";

//! The watched cache over a store in memory, on virtual time: what is admitted, what it costs, and
//! what happens when the store fails, forgets or goes back.

mod batches;
mod confirming;
mod denied;
mod ended;
mod long_histories;
mod panics;
mod regression;
mod reloads;
mod restored;
mod static_locks;
mod store_faults;
mod templated;
mod unwatched;
mod walk;
mod watch_down;
mod world;

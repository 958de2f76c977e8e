//! What the steps of each request take: judging, the gate, taking the token off the headers,
//! finding the route.
//!
//! `bin/instructions` counts instructions with callgrind and compares with `instructions.toml`;
//! `cargo bench --package fencepost-benches` measures time. This depends on no crate that does I/O,
//! so that a machine without anything built has the counts within a minute. Whole requests are
//! counted by a benchmark of the proxy (`proxy/benches/request_cost.rs`).

mod callgrind;
mod cases;
mod counts;
// The file alone, and not the crate, which would bring a hundred others with it.
#[path = "../../fence/src/token.rs"]
pub mod token;

pub use callgrind::instructions_of;
pub use cases::Case;
pub use counts::{Change, Counts, compiler, held_against, of_this_machine};

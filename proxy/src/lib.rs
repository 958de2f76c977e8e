//! fencepost: a reverse proxy that lets a request through only while its sender still holds the
//! lock.
//!
//! In the order of a request's way: [`server`] accepts connections; [`stack`] is the way itself, on
//! one screen: `routing` → `fencing` → `gate`, then [`upstream`]; `refusal` writes what a refused
//! request is told. [`run`] puts it all up and takes it down again.

// Nobody may read what is said: see `output`.
#![warn(clippy::print_stdout, clippy::print_stderr)]

pub mod about;
pub mod access_log;
pub mod active_config;
pub mod admin;
pub mod at_gate;
pub mod check;
pub mod cli;
pub mod client_tls;
pub mod dashboard;
pub mod decision;
pub mod demo;
mod descriptors;
pub mod drain;
mod etcd_access;
pub mod explain;
pub mod fence_call;
pub mod fencing;
mod file_reader;
pub mod gate;
pub mod generation;
pub mod identity;
mod in_place;
pub mod layout_hint;
pub mod let_past;
pub mod lock_sources;
pub mod log_throttle;
pub mod logging;
pub mod metrics;
pub mod observe;
pub mod output;
pub mod panics;
pub mod process;
pub mod ready;
pub mod recording;
pub mod refusal;
pub mod reload;
pub mod request_context;
pub mod request_id;
pub mod routes;
pub mod routing;
mod run;
pub mod server;
pub mod server_tls;
pub mod service_manager;
mod signals;
pub mod stack;
pub mod state;
pub mod tenure_log;
pub mod thread_liveness;
pub mod tls_files;
pub mod upstream;
pub mod upstreams;
pub mod wire;
pub mod worker_permit;

pub use fencepost_fence::token;
pub use reload::{ConfigFile, Origin};
pub use run::{Bound, RunError, Surroundings, bind, run};
pub use signals::terminated;

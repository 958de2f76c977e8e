//! The fencepost binary from outside: real etcd of both versions, real lock clients, real HTTP
//! clients, and a worker that writes down what reaches it.
//!
//! The vocabulary:
//!
//! - `fencepost`: the program
//! - `store`: the lock store as masters use it
//! - `scene`: program, store and a worker, with a ledger of what may have reached the worker
//! - `refusal`: what a refusal looks like
//! - `page`: the dashboard in a real browser
//! - `frames`: a raw HTTP/2 client
//! - `programs`: other people's clients

mod fencepost;
mod frames;
mod page;
mod programs;
mod refusal;
mod scene;
mod store;

mod lock_header;
mod story;
mod tokens;

mod lock_clients;
mod no_bridge;
mod takeovers;

mod cut_network;
mod fence_call;
mod gate;
mod group;
mod remembering;

mod outages;
mod put_back;
mod record_stores;
mod secure_store;
mod steady_state;
mod stopped;
mod under_way;

mod foreign_clients;
mod hosts;
mod hygiene;
mod identity;
mod limits;
mod proxies;
mod rewrites;
mod secrets;
mod targets;
mod transport;
mod unread_heads;
mod upstream_tls;

mod access_log;
mod admin;
mod cli;
mod dashboard;
mod dashboard_news;
mod drain;
mod first_hour;
mod observed;
mod reload;
mod reload_locks;
mod systemd;
mod turning;

mod tls;

mod compose;
mod deploy;
mod deploy_group;
mod prometheus;
mod recipes;

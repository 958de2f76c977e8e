//! A tower layer that lets a request through only while its sender still holds the lock: what fencepost does before a worker,
//! inside of one.
//!
//! Leader election and leases cannot stop a paused or cut-off master from waking up and writing. A service that puts
//! [`FenceLayer`] before its handlers refuses such writes: each request says who sent it and under which revision of the lock
//! (`Fence-Owner`, `Fence-Revision`; `fencepost-hold` puts them on), and that is held against the lock record in etcd. Rules,
//! refusals and reasons are those of the proxy, and come from the same code.
//!
//! ```no_run
//! use std::convert::Infallible;
//!
//! use fencepost_fence::{Fence, RequestBody, WorkerPermit};
//! use http::{Request, Response};
//! use tower::{ServiceBuilder, service_fn};
//!
//! async fn apply<B>(request: Request<RequestBody<B>>) -> Result<Response<String>, Infallible> {
//!     let permit = request.extensions().get::<WorkerPermit>().expect("the layer has put it there").clone();
//!     let written = tokio::task::spawn_blocking(move || {
//!         // Until the closure ends and drops its guard, no request of a later holder is let in.
//!         format!("written by {} under {}", permit.owner(), permit.revision())
//!     });
//!     Ok(Response::new(written.await.expect("it does not panic")))
//! }
//!
//! # fn example<B>() -> Result<(), Box<dyn std::error::Error>> {
//! // One for a process. Its cache works on a thread of its own.
//! let fence = Fence::etcd(["http://127.0.0.1:2379"]).build()?;
//! let layer = fence.lock("/shards/2/lock").layer()?;
//! let service = ServiceBuilder::new().layer(layer).service(service_fn(apply::<B>));
//! # let _ = service;
//! # Ok(())
//! # }
//! ```
//!
//! `examples/server` is a whole server over hyper, with a readiness probe:
//! `cargo run --package fencepost-fence --example server -- http://127.0.0.1:2379 /shards/2/lock 127.0.0.1:8080`.
//! [`Fence::locks_below`] finds the lock in each request; [`LayerBuilder`] has the settings, [`FenceBuilder`] TLS and users.
//!
//! # What it promises
//!
//! Within one process, under one [`Fence`]:
//!
//! 1. **A superseded request never reaches the handler.** Once it is known that a tenure has ended, no request of it is let in.
//! 2. **An admitted token is its holder's**, as of a quorum read that was sent no longer than `max_age` (5 s) before; with
//!    [`LayerBuilder::linearizable`], one that was sent after the request arrived.
//! 3. **Tenures do not overlap.** A request of a new holder waits until none of an earlier holder runs, in the order of arrival,
//!    for `handoff_timeout` (10 s) at most; then it gets `503 handoff-timeout`, and the barrier still stands.
//! 4. **Who holds the lock is never called stale.** Where what is known cannot decide, etcd is asked; without etcd the answer is
//!    `503 unverifiable`, after `confirm_timeout` (2 s) at most.
//! 5. **A request's body is whole within its tenure or fails** with [`BodyError::Cut`]. What came before is a part; do not use it
//!    as the whole.
//!
//! # When a request runs
//!
//! From the moment it is let in until *all* of this is over: the handler's future has ended or been dropped, its response body
//! has ended or been dropped, its request body has been dropped, and every clone of its [`WorkerPermit`] is gone. Whatever a handler
//! begins and does not wait for has to hold a clone:
//!
//! - tasks, blocking calls, and connections to a database on which something still runs;
//! - an upgraded connection (WebSocket): without a guard it counts no longer once the response to the upgrade has been sent;
//! - a commit that is under way when the future is dropped, see below.
//!
//! **A client that leaves** has its handler's future dropped by most servers, at whatever `.await` it is. The request stops to
//! count with that, though a statement may be on its way to a database, and the database may carry it out later. With
//! [`LayerBuilder::detached`] handlers go on to their end instead, as requests do behind the proxy; or let what must not be torn run
//! in a task of its own that holds a guard:
//!
//! ```
//! # use fencepost_fence::WorkerPermit;
//! # async fn commit() {}
//! # async fn handle(permit: WorkerPermit) {
//! let work = tokio::spawn(async move {
//!     let _permit = permit;
//!     commit().await;
//! });
//! // Dropping this does not end the task.
//! work.await.expect("it does not panic");
//! # }
//! ```
//!
//! **A panic** ends a request, and nobody knows what it left behind: it counts for another `orphan_timeout` (30 s). It is seen by
//! whatever of the request a panic drops; a layer that catches panics belongs outside of this one.
//!
//! **A response** counts until its last piece has been taken. A client that reads slowly holds up the next holder, so give
//! slow readers a timeout in your server. Responses of type `text/event-stream`, and all with [`LayerBuilder::streaming`], are cut
//! when their tenure ends, whether or not their clients read.
//!
//! **Blocking work** before a handler's first `.await` belongs in `spawn_blocking`, as anywhere in tokio. Here it holds up others, too: those
//! that have waited for an earlier tenure are let in one after the other, each when the handler before it has come to its first `.await`, or
//! to its end.
//!
//! While etcd cannot be reached, bodies under way pause as soon as what is known is older than `max_age`, and are cut after
//! `handoff_timeout`: nobody knows whether they are still their holder's. Handlers themselves are not stopped; those who
//! like to stop early wait for [`WorkerPermit::ended`].
//!
//! # What it cannot promise
//!
//! - **A crash forgets everything.** What a process that was killed had sent to a database may arrive there after the next
//!   process has let in the next holder. The proxy has a `state_dir` and outlives its worker; this has neither.
//!   Where that matters, check [`WorkerPermit::revision`] in the transaction that writes.
//! - **Each process has gates of its own.** Two that serve the same database, also the old and the new one of a rolling update,
//!   do not wait for each other: only the judging of tokens holds. The same is so for two [`Fence`]s in one process.
//! - Anything about requests that reach a handler past the layer, and about work that holds no [`WorkerPermit`].
//! - Who sends a request: a token is no secret. Put the layer behind whatever authenticates.
//! - Work inside of a dependency that goes on after its call has returned, or been dropped.
//! - What leans on etcd's linearizable reads (promise 2), under etcd before 3.4.42, 3.5.28 and 3.6.9, which can answer one with old
//!   data after process pauses (etcd-io/etcd#20418). Promises 1 and 3 do not lean on them.
//!
//! # What a refused client sees
//!
//! `application/problem+json` (RFC 9457) and `Fence-Reason`, as from the proxy: 428 `token-missing`, 400 `token-malformed` and
//! `lock-not-allowed`, 412 `stale-tenure`, `replayed-tenure` and the others, 503 with `Retry-After` for `unverifiable`,
//! `store-regressed` and `handoff-timeout`; gRPC requests get their status in headers. `fencepost-hold` turns them into typed errors.
//! What is left of a refused request's body is read and thrown away, up to 16 MiB or 5 s, for clients that write everything before
//! they read. [`Rejection`] has all reasons. Middleware outside of the layer finds [`Refused`] in the extensions of the response; a `tracing`
//! event of level `debug` has the rest. Headers of these names are taken off a handler's own responses.
//!
//! `POST /.well-known/fence`, with the headers of a token, closes the door behind a predecessor: 204 means that no
//! request of an earlier tenure runs or will be let in. A new master calls it before it reads the worker's state. The layer answers
//! it, or [`FenceLayer::fence_call`] does elsewhere.
//!
//! # Where to put it
//!
//! Inside of whatever authenticates, limits, catches panics or traces; outside of whatever does the work. Each
//! request that waits has one readied clone of the inner service, so a limit of concurrency within counts those that wait. Handlers
//! get a [`RequestBody`] and may need to be generic over it, or to box it. It runs in any tokio runtime with its timer enabled.

pub mod claim;
mod discard;
mod endless;
pub mod enter;
mod etcd;
mod fence;
mod fence_call;
mod layer;
mod lock;
pub mod permit;
mod readings;
pub mod refusal;
mod request_body;
mod response_body;
mod rules;
mod shared;
pub mod tenure;
pub mod token;

pub use fencepost_locks::{KeyValue, MemoryStore, SpawnError, Write};
pub use fencepost_policy::{InvalidLockKey, Layout, LockKey, Owner, Rejection, Revision};
pub use fencepost_tls::TlsError;

pub use self::endless::is_event_stream;
pub use self::etcd::{FenceBuilder, InvalidFence};
pub use self::fence::Fence;
pub use self::fence_call::{FENCE_PATH, FenceCall};
pub use self::layer::{FenceLayer, Fenced, Refused};
pub use self::lock::LayerBuilder;
pub use self::permit::WorkerPermit;
pub use self::request_body::{BodyError, RequestBody};
pub use self::response_body::ResponseBody;
pub use self::rules::InvalidLock;

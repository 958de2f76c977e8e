//! A tower layer that lets a request through only while its sender still holds the lock: what
//! fencepost does before a worker, inside of one.
//!
//! Leader election and leases cannot stop a paused or cut-off master from waking up and writing. A
//! service that puts [`FenceLayer`] before its handlers refuses such writes. Each request presents
//! its owner and the revision of its lock (`Fence-Owner`, `Fence-Revision`; `fencepost-hold` adds
//! them), and the layer compares both with the lock record in etcd. The proxy runs the same code.
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
//!         // Until the closure ends and drops its permit, no request of a later holder is let in.
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
//!
//! ```sh
//! cargo run --package fencepost-fence --example server -- http://127.0.0.1:2379 /shards/2/lock 127.0.0.1:8080
//! ```
//!
//! [`Fence::locks_below`] finds the lock in each request; [`LayerBuilder`] has the settings,
//! [`FenceBuilder`] TLS and users.
//!
//! # What it promises
//!
//! Within one process, under one [`Fence`]:
//!
//! 1. **A superseded request never reaches the handler.** Once the fence knows that a tenure has
//!    ended, it lets in no request of it.
//! 2. **An admitted token is its holder's**, as of a quorum read that was sent no longer than
//!    `max_age` (5 s) before; with [`LayerBuilder::linearizable`], as of one that was sent after
//!    the request arrived.
//! 3. **Tenures do not overlap.** A request of a new holder waits, in the order of arrival, until
//!    no request of an earlier holder runs. After `handoff_timeout` (10 s) it gets `503
//!    handoff-timeout`, and the barrier still stands.
//! 4. **The holder is never called stale.** Where the cache cannot decide, the fence asks etcd.
//!    Without an answer within `confirm_timeout` (2 s), the request gets `503 unverifiable`.
//! 5. **A request's body is whole within its tenure or fails** with [`BodyError::Cut`]. Do not use
//!    a part as the whole.
//!
//! # When a request runs
//!
//! A request runs from the moment it is let in until *all* of this is over: the handler's future
//! and the response body have ended or been dropped, the request body has been dropped, and every
//! clone of its [`WorkerPermit`] is gone. Whatever a handler begins and does not wait for has to
//! hold a clone:
//!
//! - tasks, blocking calls, and connections to a database on which something still runs;
//! - an upgraded connection (WebSocket): without a permit it no longer counts once the response to
//!   the upgrade has been sent;
//! - a commit that is under way when the future is dropped, see below.
//!
//! **A client that leaves**: most servers then drop the handler's future, at whatever `.await` it
//! is. The request ends with that, though a statement may be on its way to a database, which may
//! carry it out later. With [`LayerBuilder::detached`] handlers go on to their end instead, as
//! requests do behind the proxy. Or run what must not be torn in a task of its own that holds a
//! permit:
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
//! **A panic** ends a request, and nobody knows what it left behind: the request counts for another
//! `orphan_timeout` (30 s). The permit notices a panic that drops it; put a layer that catches
//! panics outside of this one.
//!
//! **A response** counts until its last piece has been taken. A client that reads slowly holds up
//! the next holder, so give slow readers a timeout in your server. Responses of type
//! `text/event-stream`, and all with [`LayerBuilder::streaming`], are cut when their tenure ends,
//! whether or not their clients read. A task of its own reads their bodies.
//!
//! **Blocking work** before a handler's first `.await` belongs in `spawn_blocking`, as anywhere in
//! tokio. Here it also holds up the queue: after a barrier has opened, each request enters when the
//! handler before it has come to its first `.await`, or to its end.
//!
//! While etcd cannot be reached, bodies under way pause as soon as the news of their lock is older
//! than `max_age`, and are cut after `handoff_timeout`. Handlers themselves are not stopped; one
//! that can stop early waits for [`WorkerPermit::ended`].
//!
//! # What it cannot promise
//!
//! - **A crash forgets everything.** What a killed process had sent to a database may arrive there
//!   after the next process has let in the next holder. The proxy has a `state_dir` and outlives
//!   its worker; this layer has neither. Where that matters, check [`WorkerPermit::revision`] in
//!   the transaction that writes.
//! - **Each process has gates of its own**, and so has each [`Fence`]. Two that serve the same
//!   database, such as the old and the new process of a rolling update, do not wait for each other:
//!   only the judging of tokens holds.
//! - Anything about requests that reach a handler past the layer, and about work that holds no
//!   [`WorkerPermit`].
//! - Who sends a request: a token is no secret. Put the layer behind authentication.
//! - Work inside of a dependency that goes on after its call has returned, or been dropped.
//! - Promise 2 under etcd before 3.4.42, 3.5.28 and 3.6.9, whose linearizable reads can return old
//!   data after process pauses (etcd-io/etcd#20418). Promises 1 and 3 do not depend on them.
//!
//! # What a refused client sees
//!
//! `application/problem+json` (RFC 9457) and `Fence-Reason`, as from the proxy: 428
//! `token-missing`, 400 `token-malformed` and `lock-not-allowed`, 412 `stale-tenure`,
//! `replayed-tenure` and the others, 503 with `Retry-After` for `unverifiable`, `store-regressed`
//! and `handoff-timeout`; gRPC requests get their status in headers. `fencepost-hold` turns them
//! into typed errors. The layer reads the rest of a refused request's body and throws it away, up
//! to 16 MiB or 5 s, for clients that write everything before they read. [`Rejection`] has all
//! reasons. Middleware outside of the layer finds [`Refused`] in the extensions of the response; a
//! `tracing` event of level `debug` has the rest. The layer takes headers of these names off a
//! handler's own responses.
//!
//! `POST /.well-known/fence`, with the headers of a token, closes the door behind a predecessor:
//! 204 means that no request of an earlier tenure runs or will be let in. A new master calls it
//! before it reads the worker's state. The layer answers it, or [`FenceLayer::fence_call`] does
//! elsewhere.
//!
//! # Where to put it
//!
//! Put it inside of what authenticates, limits, catches panics or traces, and outside of what does
//! the work. Each request that waits has one readied clone of the inner service, so a concurrency
//! limit within counts requests that wait. Handlers get a [`RequestBody`] and may need to be
//! generic over it, or to box it. The layer runs in any tokio runtime with its timer enabled.

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

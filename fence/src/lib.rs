#![doc = include_str!("../README.md")]

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

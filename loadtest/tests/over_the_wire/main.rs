//! The loadtest's binary against real servers: fencepost, a worker that nothing fences, and a
//! server that is told what to do.

mod behind_fencepost;
mod by_tls;
mod compare;
mod drive;
mod moving;
mod pipelines;
mod support;
mod without_a_fence;

//! The programs that the tests here start: fencepost, and the loadtest itself.

mod fencepost;
mod loadtest;

pub(crate) use fencepost::{Fencepost, fencepost_binary};
pub(crate) use loadtest::{ReportFile, Run, Running, loadtest};

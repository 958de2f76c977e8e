//! Which connections were turned away or ended by a limit.

use std::sync::atomic::{AtomicU64, Ordering};

/// The limit that ended a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Closing {
    /// `connections_max`: it had waited longest without a request, and room was needed.
    Room,
    /// `header_timeout`.
    Header,
    /// `idle_timeout`.
    Idle,
    /// `body_timeout`: its client sent nothing of a body, or read nothing of an answer.
    Body,
    /// `body_rate_min`: its client read an answer too slowly.
    Pace,
    /// `requests_per_connection_max`.
    Requests,
    /// `h2_resets_max`.
    Resets,
    /// `h2_control_frames_max`.
    ControlFrames,
}

impl Closing {
    /// All of them.
    pub const ALL: [Closing; 8] = [
        Closing::Room,
        Closing::Header,
        Closing::Idle,
        Closing::Body,
        Closing::Pace,
        Closing::Requests,
        Closing::Resets,
        Closing::ControlFrames,
    ];

    /// The key of the configuration that has the limit.
    pub fn limit(self) -> &'static str {
        match self {
            Closing::Room => "connections_max",
            Closing::Header => "header_timeout",
            Closing::Idle => "idle_timeout",
            Closing::Body => "body_timeout",
            Closing::Pace => "body_rate_min",
            Closing::Requests => "requests_per_connection_max",
            Closing::Resets => "h2_resets_max",
            Closing::ControlFrames => "h2_control_frames_max",
        }
    }
}

/// Counts what limits did to the connections of a server.
#[derive(Debug, Default)]
pub(super) struct Tally {
    closed: [AtomicU64; Closing::ALL.len()],
    /// By `connections_per_client_max`, as soon as they were accepted.
    refused: AtomicU64,
}

impl Tally {
    pub(super) fn close(&self, closing: Closing) {
        self.closed[closing as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn refuse(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn closed(&self, closing: Closing) -> u64 {
        self.closed[closing as usize].load(Ordering::Relaxed)
    }

    pub(super) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }
}

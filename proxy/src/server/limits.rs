//! How long a slow client is waited for, and which limits can close a connection.

use std::time::Duration;

pub use fencepost_config::Limits;

/// How long a client may keep us waiting in all, in the middle of a body of which `bytes` have
/// moved. `None`: for ever, as long as it is not silent.
pub(super) fn patience(limits: &Limits, bytes: u64) -> Option<Duration> {
    let millis = bytes.saturating_mul(1_000).checked_div(limits.body_rate_min)?;
    Some(limits.body_timeout.saturating_add(Duration::from_millis(millis)))
}

/// The limit that closed a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Closing {
    /// `connections_max`: it had been idle the longest, and another client waited.
    Room,
    /// `header_timeout`.
    Header,
    /// `idle_timeout`.
    Idle,
    /// `body_timeout`: its client read nothing of a response.
    Body,
    /// `body_rate_min`: its client read a response too slowly.
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

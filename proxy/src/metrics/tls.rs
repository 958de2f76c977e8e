//! What operators count of TLS.

use fencepost_tls::{Dated, Expiry};
use prometheus::{IntCounter, IntCounterVec, IntGaugeVec};

use super::Registering;
use crate::server::HandshakeFailure;

/// What TLS files are for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TlsUse {
    /// A listener, named by its address.
    Listener,
    /// The admin listener, named by its address.
    Admin,
    /// Connections to the worker of a route, named by the route.
    Upstream,
    /// Connections to a lock source, named as in the configuration.
    Source,
}

impl TlsUse {
    /// As a label has it.
    pub fn name(self) -> &'static str {
        match self {
            TlsUse::Listener => "listener",
            TlsUse::Admin => "admin",
            TlsUse::Upstream => "upstream",
            TlsUse::Source => "source",
        }
    }
}

/// What came of TLS files that had changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TlsReload {
    /// They are in force.
    Reloaded,
    /// They are of no use, and what was in force stays.
    Failed,
}

impl TlsReload {
    const ALL: [TlsReload; 2] = [TlsReload::Reloaded, TlsReload::Failed];

    fn name(self) -> &'static str {
        match self {
            TlsReload::Reloaded => "reloaded",
            TlsReload::Failed => "failed",
        }
    }
}

/// The metrics of TLS.
#[derive(Debug, Clone)]
pub struct TlsMetrics {
    expiry: IntGaugeVec,
    reloads: IntCounterVec,
    handshake_failures: IntCounterVec,
}

/// Counts the handshakes of one listener that came to nothing.
#[derive(Debug, Clone)]
pub struct HandshakeCounters([IntCounter; HandshakeFailure::ALL.len()]);

impl HandshakeCounters {
    /// Counts one.
    pub fn failed(&self, why: HandshakeFailure) {
        self.0[why as usize].inc();
    }
}

impl TlsMetrics {
    pub(super) fn new(made: &Registering<'_>) -> Result<TlsMetrics, prometheus::Error> {
        Ok(TlsMetrics {
            expiry: made.gauges(
                "fencepost_certificate_expiry_timestamp_seconds",
                "When the first certificate or revocation list, or the last authority, in force ends, in seconds since the epoch.",
                &["use", "name", "what"],
            )?,
            reloads: made.counters(
                "fencepost_tls_reloads_total",
                "Changes of TLS files by what came of them.",
                &["use", "name", "outcome"],
            )?,
            handshake_failures: made.counters(
                "fencepost_tls_handshake_failures_total",
                "Handshakes with clients that came to nothing.",
                &["use", "name", "reason"],
            )?,
        })
    }

    /// Notes when what is in force ends, the soonest of each kind.
    pub fn set_expiries(&self, of: TlsUse, name: &str, expiries: &[Expiry]) {
        for outcome in TlsReload::ALL {
            self.reloads.with_label_values(&[of.name(), name, outcome.name()]); // From 0, so that the first counts.
        }
        for what in Dated::ALL {
            let labels = [of.name(), name, what.name()];
            let soonest = expiries
                .iter()
                .filter(|expiry| expiry.what == what)
                .map(|expiry| expiry.not_after)
                .min();
            match soonest {
                Some(end) => self
                    .expiry
                    .with_label_values(&labels)
                    .set(i64::try_from(end).unwrap_or(i64::MAX)),
                // An error means that there was none before.
                None => drop(self.expiry.remove_label_values(&labels)),
            }
        }
    }

    /// The counters of one listener.
    pub fn handshakes(&self, of: TlsUse, name: &str) -> HandshakeCounters {
        let counter = |why: HandshakeFailure| {
            self.handshake_failures.with_label_values(&[of.name(), name, why.code()])
        };
        HandshakeCounters(HandshakeFailure::ALL.map(counter))
    }

    /// Counts a change of files.
    pub fn reloaded(&self, of: TlsUse, name: &str, outcome: TlsReload) {
        self.reloads.with_label_values(&[of.name(), name, outcome.name()]).inc();
    }

    /// Shows nothing any more of files that nobody uses.
    pub fn forget(&self, of: TlsUse, name: &str) {
        // An error means that there was nothing to show.
        for what in Dated::ALL {
            let _ = self.expiry.remove_label_values(&[of.name(), name, what.name()]);
        }
        for outcome in TlsReload::ALL {
            let _ = self.reloads.remove_label_values(&[of.name(), name, outcome.name()]);
        }
    }
}

//! What is spoken.

use std::sync::{Arc, LazyLock};

use rustls::SupportedProtocolVersion;
use rustls::crypto::CryptoProvider;
use rustls::version::{TLS12, TLS13};

/// The ciphers and key exchanges: ring's, which are those of Mozilla's profiles, and no more.
pub(crate) fn provider() -> Arc<CryptoProvider> {
    static PROVIDER: LazyLock<Arc<CryptoProvider>> =
        LazyLock::new(|| Arc::new(rustls::crypto::ring::default_provider()));
    Arc::clone(&PROVIDER)
}

pub(crate) const TLS12_AND_13: &[&SupportedProtocolVersion] = &[&TLS13, &TLS12];
pub(crate) const TLS13_ONLY: &[&SupportedProtocolVersion] = &[&TLS13];

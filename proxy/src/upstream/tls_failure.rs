//! What went wrong with TLS to a worker, in words that say what to look at.

use std::error::Error;
use std::fmt;
use std::io;
use std::sync::Arc;

use fencepost_tls::Called;

const CALLED: Called = Called {
    ca: "upstream_tls.ca",
    crl: "upstream_tls.crl",
    certificate: "our certificate, or wants one",
};

/// Why there is no TLS with a worker: what is wrong, and with whose certificate.
#[derive(Debug, Clone)]
pub struct TlsFailure {
    cause: Arc<io::Error>,
}

impl TlsFailure {
    pub(super) fn of(cause: io::Error) -> TlsFailure {
        TlsFailure { cause: Arc::new(cause) }
    }

    /// Whether the connection was lost, without a word of TLS on why.
    pub(super) fn is_loss(&self) -> bool {
        self.cause.get_ref().is_none_or(|cause| !cause.is::<rustls::Error>())
    }
}

impl fmt::Display for TlsFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.cause.get_ref().and_then(|cause| cause.downcast_ref()) {
            Some(error) => {
                let words = CALLED.explain(error);
                f.write_str(words.as_deref().unwrap_or("the handshake failed"))
            }
            None if self.cause.kind() == io::ErrorKind::UnexpectedEof => {
                f.write_str("it closed the connection in the handshake")
            }
            None => f.write_str("the connection was lost in the handshake"),
        }
    }
}

impl Error for TlsFailure {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&self.cause)
    }
}

//! Certificates, keys, authorities and revocation lists as files: read, checked, and followed as they change.

mod names;

pub use names::{NamesError, PeerNames};

//! Certificates, keys, authorities and revocation lists as files: read, checked, and followed as
//! they change.
//!
//! [`ServerTls`] and [`ClientTls`] are made from files, and hand out what rustls takes. Their owner
//! checks the files for changes now and then ([`Followed::look`]). Usable contents are in force
//! from then on, for new connections. Unusable contents are reported, and the earlier ones stay in
//! force.
//!
//! The protocol settings are Mozilla's "intermediate" profile without its finite-field suites, or
//! its "modern" one: TLS 1.2 and 1.3, or 1.3 alone. Both always have forward secrecy and
//! authenticated encryption.

mod client;
mod contents;
mod crypto;
mod error;
mod expiry;
mod followed;
mod identity;
mod names;
mod pinned;
mod server;
mod trust;
mod trust_entry;
mod verifier;
mod words;

pub use client::{ClientFiles, ClientTls, refuses_certificate};
pub use contents::read_up_to;
pub use error::{FileRole, Flaw, TlsError};
pub use expiry::{Dated, Expiry};
pub use followed::{Followed, Look};
pub use identity::IdentityFiles;
pub use names::{NamesError, PeerNames};
pub use server::{ClientCertificates, MinVersion, ServerFiles, ServerTls};
pub use trust_entry::TrustEntry;
pub use words::{Called, tls_behind};

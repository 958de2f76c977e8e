//! Certificates, keys, authorities and revocation lists as files: read, checked, and followed as
//! they change.
//!
//! Made from files, [`ServerTls`] and [`ClientTls`] are shown as what rustls takes. Whoever has one
//! looks at its files now and then ([`Followed::look`]): what can be used is in force from then on,
//! for connections to come; what can't is said, and what was in force stays.
//!
//! What is spoken is Mozilla's "intermediate" profile without its finite-field suites, or its
//! "modern" one: TLS 1.2 and 1.3, or 1.3 alone; forward secrecy and authenticated encryption
//! always.

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

pub use client::{ClientFiles, ClientTls, refuses_certificate};
pub use contents::read_up_to;
pub use error::{FileRole, Flaw, TlsError};
pub use expiry::{Dated, Expiry};
pub use followed::{Followed, Look};
pub use identity::IdentityFiles;
pub use names::{NamesError, PeerNames};
pub use server::{ClientCertificates, MinVersion, ServerFiles, ServerTls};
pub use trust_entry::TrustEntry;

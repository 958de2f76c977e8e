//! Reads whom we trust: the certificates of a trust file, and what their issuers have revoked.
//! Verifies no peer: [`PeerVerifier`](crate::verifier::PeerVerifier) does.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::{CertificateDer, CertificateRevocationListDer};
use rustls::{DistinguishedName, RootCertStore};
use x509_parser::oid_registry::OID_X509_EXT_AUTHORITY_KEY_IDENTIFIER;
use x509_parser::prelude::{CertificateRevocationList, FromDer, X509Certificate};

use crate::contents::Contents;
use crate::error::{FileRole, Flaw, TlsError};
use crate::expiry::{Dated, Expiry, seconds};
use crate::pinned::{Peer, Pinned};
use crate::trust_entry::{NoAuthority, Standing, TrustEntry};

/// A trust file and a file of revocation lists, read for one kind of peer.
pub(crate) struct Trust {
    pub(crate) authorities: Arc<RootCertStore>,
    /// Every certificate of the file, in the file's order.
    pub(crate) entries: Arc<[TrustEntry]>,
    pub(crate) crls: Vec<CertificateRevocationListDer<'static>>,
    /// The issuers of all that is trusted.
    pub(crate) issuers: Vec<DistinguishedName>,
    pub(crate) expiries: Vec<Expiry>,
}

impl Trust {
    pub(crate) fn read(
        contents: &Contents,
        ca: &Path,
        crl: Option<&Path>,
        peer: Peer,
    ) -> Result<Trust, TlsError> {
        let ca = contents.of(ca, FileRole::Authorities)?;
        let certificates: Vec<CertificateDer<'static>> = ca.objects(Flaw::NoCertificate)?;
        let ends = Expiry::of_certificates(&ca, Dated::Authority, &certificates)?;
        // An operator has to act when none of them is left. A system's file has some that ended
        // years ago, which nobody can renew. One that has begun is enough, too. An authority's own
        // time does not matter to webpki (RFC 5280, section 6.1.1).
        let first = ends.iter().map(|end| end.not_before).min();
        let last = ends.into_iter().max_by_key(|end| end.not_after);
        let mut expiries: Vec<Expiry> = last
            .zip(first)
            .map(|(last, not_before)| Expiry { not_before, ..last })
            .into_iter()
            .collect();
        let mut crls = Vec::new();
        if let Some(crl) = crl {
            let crl = contents.of(crl, FileRole::Crl)?;
            crls = crl.objects(Flaw::NoCrl)?;
            expiries.extend(Expiry::of_crls(&crl, &crls)?);
            crls = newest_first(crls);
        }
        let unusable =
            |index, reason: String| ca.error(Flaw::Certificate { number: index + 1, reason });
        let mut authorities = RootCertStore::empty();
        let mut issuers: Vec<Vec<u8>> = Vec::new();
        let mut entries = Vec::new();
        for (index, certificate) in certificates.iter().enumerate() {
            let (_, one) = X509Certificate::from_der(certificate)
                .map_err(|_| unusable(index, "it cannot be read".to_owned()))?;
            let pinned = || Pinned::new(certificate, &one, peer, crl.is_some());
            let (standing, issuer) = match NoAuthority::of(&one) {
                None => {
                    authorities
                        .add(certificate.clone())
                        .map_err(|error| unusable(index, error.to_string()))?;
                    let is_self_signed = one.subject().as_raw() == one.issuer().as_raw();
                    let not_after = seconds(one.validity().not_after);
                    (
                        Standing::Authority { itself: is_self_signed.then(pinned), not_after },
                        one.subject(),
                    )
                }
                Some(why) => (Standing::Pinned(pinned(), why), one.issuer()),
            };
            if !issuers.iter().any(|known| known == issuer.as_raw()) {
                issuers.push(issuer.as_raw().to_vec());
            }
            let (file, subject) = (ca.path.to_owned(), one.subject().to_string());
            entries.push(TrustEntry { file, number: index + 1, subject, standing });
        }
        Ok(Trust {
            authorities: Arc::new(authorities),
            entries: entries.into(),
            crls,
            issuers: issuers.into_iter().map(DistinguishedName::from).collect(),
            expiries,
        })
    }

    /// Whether an entry is trusted as an issuer: webpki does not work without one.
    pub(crate) fn has_authority(&self) -> bool {
        !self.authorities.is_empty()
    }
}

/// Groups the lists by authority and puts each authority's newest first, because a verifier uses
/// the first list that covers a certificate.
fn newest_first(
    lists: Vec<CertificateRevocationListDer<'static>>,
) -> Vec<CertificateRevocationListDer<'static>> {
    // By its name and its key, those that were met so far. Of several by one name, the first of the
    // file stays that.
    let mut authorities = HashMap::new();
    let mut place = |list: &CertificateRevocationListDer<'_>| {
        let (_, list) = CertificateRevocationList::from_der(list).ok()?;
        let key = list
            .extensions()
            .iter()
            .find(|extension| extension.oid == OID_X509_EXT_AUTHORITY_KEY_IDENTIFIER);
        let authority = (list.issuer().as_raw().to_vec(), key.map(|key| key.value.to_vec()));
        let next = authorities.len();
        let of_authority = *authorities.entry(authority).or_insert(next);
        Some((of_authority, Reverse((list.last_update().timestamp(), list.crl_number().cloned()))))
    };
    let mut lists: Vec<_> = lists.into_iter().map(|list| (place(&list), list)).collect();
    lists.sort_by(|(one, _), (other, _)| one.cmp(other));
    lists.into_iter().map(|(_, list)| list).collect()
}

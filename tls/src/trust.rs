//! Whom we believe: authorities and what they have revoked.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use rustls::RootCertStore;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer};
use x509_parser::oid_registry::OID_X509_EXT_AUTHORITY_KEY_IDENTIFIER;
use x509_parser::prelude::{CertificateRevocationList, FromDer};

use crate::contents::Contents;
use crate::error::{FileRole, Flaw, TlsError};
use crate::expiry::{Dated, Expiry};

/// Authorities and what they have revoked, as files say.
pub(crate) struct Trust {
    pub(crate) roots: Arc<RootCertStore>,
    pub(crate) crls: Vec<CertificateRevocationListDer<'static>>,
    pub(crate) expiries: Vec<Expiry>,
}

impl Trust {
    pub(crate) fn read(contents: &Contents, ca: &Path, crl: Option<&Path>) -> Result<Trust, TlsError> {
        let ca = contents.of(ca, FileRole::Authorities)?;
        let authorities: Vec<CertificateDer<'static>> = ca.objects(Flaw::NoCertificate)?;
        let ends = Expiry::of_certificates(&ca, Dated::Authority, &authorities)?;
        // Somebody is to do something when none of them is left. A system's file of them has some that ended years ago, which nobody can renew.
        // One that has begun is enough, too. All of them are believed: nobody asks for the time of an authority (RFC 5280, section 6.1.1).
        let first = ends.iter().map(|end| end.not_before).min();
        let last = ends.into_iter().max_by_key(|end| end.not_after);
        let mut expiries: Vec<Expiry> =
            last.zip(first).map(|(last, not_before)| Expiry { not_before, ..last }).into_iter().collect();
        let mut roots = RootCertStore::empty();
        for (index, authority) in authorities.into_iter().enumerate() {
            let unusable = |error: rustls::Error| Flaw::Certificate { number: index + 1, reason: error.to_string() };
            roots.add(authority).map_err(|error| ca.error(unusable(error)))?;
        }
        let mut crls = Vec::new();
        if let Some(crl) = crl {
            let crl = contents.of(crl, FileRole::Crl)?;
            crls = crl.objects(Flaw::NoCrl)?;
            expiries.extend(Expiry::of_crls(&crl, &crls)?);
            crls = newest_first(crls);
        }
        Ok(Trust { roots: Arc::new(roots), crls, expiries })
    }
}

/// The lists of each authority, the newest first: whoever verifies a certificate believes the first that is for it.
fn newest_first(lists: Vec<CertificateRevocationListDer<'static>>) -> Vec<CertificateRevocationListDer<'static>> {
    // By its name and its key, those that were met so far. Of several by one name, the first of the file stays that.
    let mut authorities = HashMap::new();
    let mut place = |list: &CertificateRevocationListDer<'_>| {
        let (_, list) = CertificateRevocationList::from_der(list).ok()?;
        let key = list.extensions().iter().find(|extension| extension.oid == OID_X509_EXT_AUTHORITY_KEY_IDENTIFIER);
        let authority = (list.issuer().as_raw().to_vec(), key.map(|key| key.value.to_vec()));
        let next = authorities.len();
        let of_authority = *authorities.entry(authority).or_insert(next);
        Some((of_authority, Reverse((list.last_update().timestamp(), list.crl_number().cloned()))))
    };
    let mut lists: Vec<_> = lists.into_iter().map(|list| (place(&list), list)).collect();
    lists.sort_by(|(one, _), (other, _)| one.cmp(other));
    lists.into_iter().map(|(_, list)| list).collect()
}

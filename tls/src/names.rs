//! The names in a certificate of the peer that presents it.

use rustls::pki_types::CertificateDer;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

/// The names in a certificate that a client has proved to be its own, in the certificate's order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PeerNames {
    /// URIs of the subject alternative name, such as a SPIFFE id.
    pub uris: Vec<String>,
    /// DNS names of the subject alternative name.
    pub dns: Vec<String>,
    /// Common names of the subject.
    pub common_names: Vec<String>,
}

/// Why a certificate has no names for us.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the certificate cannot be read")]
pub struct NamesError;

impl PeerNames {
    /// The names in an end entity's certificate. Nothing is verified here: the handshake has done
    /// that.
    ///
    /// # Errors
    /// If it is not an X.509 certificate, or has two subject alternative names (RFC 5280, section
    /// 4.2).
    pub fn of(certificate: &CertificateDer<'_>) -> Result<PeerNames, NamesError> {
        let (_, parsed) = X509Certificate::from_der(certificate).map_err(|_| NamesError)?;
        let mut names = PeerNames::default();
        let common_names = parsed.subject().iter_common_name();
        names.common_names =
            common_names.filter_map(|name| name.as_str().ok().map(str::to_owned)).collect();
        let Some(alternative) = parsed.subject_alternative_name().map_err(|_| NamesError)? else {
            return Ok(names);
        };
        for name in &alternative.value.general_names {
            if let GeneralName::URI(uri) = name {
                names.uris.push((*uri).to_owned());
            } else if let GeneralName::DNSName(name) = name {
                names.dns.push((*name).to_owned());
            }
        }
        Ok(names)
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DnType, KeyPair, SanType};

    use super::*;

    #[test]
    fn a_certificate_is_read_for_its_uris_its_dns_names_and_its_common_name() {
        let mut params = CertificateParams::new(vec!["shard-1.example".to_owned()]).unwrap();
        params
            .subject_alt_names
            .push(SanType::URI("spiffe://example.org/shard-1".try_into().unwrap()));
        params.distinguished_name.push(DnType::CommonName, "shard-1");
        let certificate = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
        let names = PeerNames::of(certificate.der()).unwrap();
        assert_eq!(names.uris, ["spiffe://example.org/shard-1"]);
        assert_eq!(names.dns, ["shard-1.example"]);
        assert_eq!(names.common_names.last().map(String::as_str), Some("shard-1"));
    }

    #[test]
    fn what_is_no_certificate_has_no_names() {
        assert_eq!(
            PeerNames::of(&CertificateDer::from(vec![0x30, 0x03, 1, 2, 3])),
            Err(NamesError)
        );
    }
}

//! Verifies the certificate that the other side of a connection presents, for clients and servers
//! alike. Builds no chain itself: webpki does, and [`TrustEntry`] knows the certificates that are
//! trusted for themselves.

use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_name;
use rustls::crypto::{verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, Error, SignatureScheme};

use crate::crypto::provider;
use crate::trust_entry::TrustEntry;

/// How many of the certificates that a peer sends with its own are looked at: the first, since
/// those nearest to its own come first. No chain has more (webpki).
///
/// Of many that could each have issued any other, webpki tries up to 200,000 chains before it gives
/// up. Any peer can send them, and the thread does nothing else meanwhile.
const INTERMEDIATES_MAX: usize = 6;

/// Trusts what an authority has issued, by webpki's rules, and the certificates that the trust file
/// names for themselves.
#[derive(Debug)]
pub(crate) struct PeerVerifier<V: ?Sized> {
    /// webpki, which knows the authorities; `None`: the trust file has none.
    authorities: Option<Arc<V>>,
    entries: Arc<[TrustEntry]>,
}

impl<V: ?Sized> PeerVerifier<V> {
    pub(crate) fn new(authorities: Option<Arc<V>>, entries: Arc<[TrustEntry]>) -> PeerVerifier<V> {
        PeerVerifier { authorities, entries }
    }

    /// Asks webpki first, so that its answer stays what it is without the other entries. Its
    /// refusal stands, unless the certificate is an entry that is trusted for itself.
    fn verify(
        &self,
        certificate: &CertificateDer<'_>,
        now: UnixTime,
        by_authorities: impl FnOnce(&V) -> Result<(), Error>,
    ) -> Result<By, Error> {
        let refusal = match self.authorities.as_deref().map(by_authorities) {
            Some(Ok(())) => return Ok(By::Authority),
            Some(Err(refusal)) => refusal,
            None => CertificateError::UnknownIssuer.into(),
        };
        let pinned =
            self.entries.iter().find_map(|entry| entry.pinned(certificate)).ok_or(refusal)?;
        pinned.check(now.as_secs())?;
        Ok(By::Itself)
    }
}

/// What a certificate is trusted by.
enum By {
    Authority,
    Itself,
}

fn few<'c, 'd>(intermediates: &'c [CertificateDer<'d>]) -> &'c [CertificateDer<'d>] {
    &intermediates[..intermediates.len().min(INTERMEDIATES_MAX)]
}

impl ServerCertVerifier for PeerVerifier<WebPkiServerVerifier> {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let by_authorities = |webpki: &WebPkiServerVerifier| {
            webpki
                .verify_server_cert(end_entity, few(intermediates), server_name, ocsp_response, now)
                .map(drop)
        };
        match self.verify(end_entity, now, by_authorities)? {
            By::Authority => {} // webpki has compared the names.
            By::Itself => {
                verify_server_name(&ParsedCertificate::try_from(end_entity)?, server_name)?
            }
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(
            message,
            certificate,
            signed,
            &provider().signature_verification_algorithms,
        )
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(
            message,
            certificate,
            signed,
            &provider().signature_verification_algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        provider().signature_verification_algorithms.supported_schemes()
    }
}

/// Verifies clients, and knows what to ask them for.
#[derive(Debug)]
pub(crate) struct ClientVerifier {
    pub(crate) peers: PeerVerifier<dyn ClientCertVerifier>,
    /// The issuers that a client may pick its certificate by.
    pub(crate) issuers: Vec<DistinguishedName>,
    /// Whether a client without a certificate is refused.
    pub(crate) required: bool,
}

impl ClientCertVerifier for ClientVerifier {
    fn client_auth_mandatory(&self) -> bool {
        self.required
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &self.issuers
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let by_authorities = |webpki: &(dyn ClientCertVerifier + 'static)| {
            webpki.verify_client_cert(end_entity, few(intermediates), now).map(drop)
        };
        self.peers.verify(end_entity, now, by_authorities).map(|_| ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(
            message,
            certificate,
            signed,
            &provider().signature_verification_algorithms,
        )
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(
            message,
            certificate,
            signed,
            &provider().signature_verification_algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        provider().signature_verification_algorithms.supported_schemes()
    }
}

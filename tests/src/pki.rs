//! A public key infrastructure of our own: authorities, certificates, keys and revocation lists, as
//! PEM.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CertifiedIssuer,
    DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, KeyIdMethod, KeyPair,
    KeyUsagePurpose, RevokedCertParams, SanType, SerialNumber, date_time_ymd,
};

/// An authority that issues certificates and revokes them.
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    /// Of its own certificate.
    serial: SerialNumber,
    next_serial: AtomicU64,
}

/// Whom a certificate is for, and from when until when.
#[derive(Clone, Debug, Default)]
pub struct Subject<'s> {
    /// The common name; `None`: no name but the alternative ones.
    pub common_name: Option<&'s str>,
    /// Subject alternative names: an IP address, a DNS name, or a URI if it has `://` in it.
    pub names: &'s [&'s str],
    /// The begin of its time; `None`: long before the test.
    pub not_before: Option<SystemTime>,
    /// The end of its time; `None`: long after the test.
    pub not_after: Option<SystemTime>,
}

/// What a certificate says of its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// `CA:TRUE`, without a key usage, as `openssl req -x509` writes it.
    Authority,
    /// `CA:TRUE`, with a key usage that lacks `keyCertSign`.
    AuthorityThatMayNotSign,
    /// `CA:FALSE`.
    EndEntity,
    /// No basic constraints.
    Nothing,
}

/// A certificate with its key.
#[derive(Clone)]
pub struct Issued {
    /// The certificate alone, in PEM.
    pub certificate: String,
    /// Its key, in PEM.
    pub key: String,
    serial: SerialNumber,
}

impl Authority {
    /// An authority that signs its own certificate.
    pub fn new(name: &str) -> Authority {
        Authority::made(name, CertificateParams::default())
    }

    /// An authority whose own certificate ends at this time.
    pub fn until(name: &str, not_after: SystemTime) -> Authority {
        let mut params = CertificateParams::default();
        params.not_after = date_time_ymd(1970, 1, 1) + since_1970(not_after);
        Authority::made(name, params)
    }

    /// An authority whose own certificate begins at this time.
    pub fn from(name: &str, not_before: SystemTime) -> Authority {
        let mut params = CertificateParams::default();
        params.not_before = date_time_ymd(1970, 1, 1) + since_1970(not_before);
        Authority::made(name, params)
    }

    /// A self-signed certificate whose key issues others, whether or not the certificate says that
    /// it may.
    pub fn claiming(claim: Claim, subject: &Subject<'_>) -> Authority {
        Authority::self_signed(claimed(claim, subject))
    }

    /// Like [`claiming`](Self::claiming), signed by this authority.
    pub fn issue_issuer(&self, claim: Claim, subject: &Subject<'_>) -> Authority {
        let serial = self.fresh_serial();
        let mut params = claimed(claim, subject);
        params.serial_number = Some(serial.clone());
        let issuer = CertifiedIssuer::signed_by(params, new_key(), &self.issuer);
        let issuer = issuer.expect("an authority can sign a certificate");
        Authority { issuer, serial, next_serial: AtomicU64::new(1) }
    }

    fn made(name: &str, mut params: CertificateParams) -> Authority {
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params.distinguished_name = named(name);
        Authority::self_signed(params)
    }

    fn self_signed(mut params: CertificateParams) -> Authority {
        // None that it issues.
        let serial = SerialNumber::from(0x5e1f_u64);
        params.serial_number = Some(serial.clone());
        let issuer = CertifiedIssuer::self_signed(params, new_key())
            .expect("a key can sign its certificate");
        Authority { issuer, serial, next_serial: AtomicU64::new(1) }
    }

    /// Its own certificate and key, for a peer that presents them.
    pub fn own(&self) -> Issued {
        Issued {
            certificate: self.issuer.pem(),
            key: self.issuer.key().serialize_pem(),
            serial: self.serial.clone(),
        }
    }

    /// Its own certificate, in PEM.
    pub fn certificate(&self) -> String {
        self.issuer.pem()
    }

    /// A certificate for servers and clients alike.
    pub fn issue(&self, subject: &Subject<'_>) -> Issued {
        let mut params = params_of(subject);
        let serial = self.fresh_serial();
        params.serial_number = Some(serial.clone());
        let key = new_key();
        let certificate =
            params.signed_by(&key, &self.issuer).expect("an authority can sign a certificate");
        Issued { certificate: certificate.pem(), key: key.serialize_pem(), serial }
    }

    fn fresh_serial(&self) -> SerialNumber {
        SerialNumber::from(self.next_serial.fetch_add(1, Ordering::Relaxed))
    }

    /// A certificate for a server at `127.0.0.1`, `::1` and `localhost`.
    pub fn issue_for_localhost(&self) -> Issued {
        self.issue(&Subject {
            common_name: Some("localhost"),
            names: &["localhost", "127.0.0.1", "::1"],
            ..Subject::default()
        })
    }

    /// The list of what is revoked, in PEM; its next is due long after the test.
    pub fn crl(&self, revoked: &[&Issued]) -> String {
        self.crl_until(revoked, SystemTime::now() + Duration::from_secs(365 * 86_400))
    }

    /// The list of what is revoked, in PEM, with the time at which the next list is due.
    pub fn crl_until(&self, revoked: &[&Issued], next_update: SystemTime) -> String {
        let revoked = revoked.iter().map(|issued| RevokedCertParams {
            serial_number: issued.serial.clone(),
            revocation_time: date_time_ymd(2001, 1, 1),
            reason_code: None,
            invalidity_date: None,
        });
        let params = CertificateRevocationListParams {
            this_update: date_time_ymd(2001, 1, 1),
            next_update: date_time_ymd(1970, 1, 1) + since_1970(next_update),
            crl_number: self.fresh_serial(),
            issuing_distribution_point: None,
            revoked_certs: revoked.collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        let list = params.signed_by(&self.issuer).expect("an authority can sign a list");
        list.pem().expect("a list can be written as PEM")
    }
}

impl Issued {
    /// Writes `NAME.pem` and `NAME.key` into a directory, each replaced at once; the paths of both.
    pub fn write(&self, directory: &Path, name: &str) -> (PathBuf, PathBuf) {
        let (certificate, key) =
            (directory.join(format!("{name}.pem")), directory.join(format!("{name}.key")));
        replace_file(&certificate, &self.certificate);
        replace_file(&key, &self.key);
        (certificate, key)
    }
}

/// Replaces a file at once: a reader finds either the old contents or the new.
pub fn replace_file(path: &Path, contents: &str) {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".new");
    fs::write(&beside, contents).expect("a file can be written");
    fs::rename(&beside, path).expect("a file can be renamed");
}

fn claimed(claim: Claim, subject: &Subject<'_>) -> CertificateParams {
    let mut params = params_of(subject);
    params.is_ca = match claim {
        Claim::Authority | Claim::AuthorityThatMayNotSign => {
            IsCa::Ca(BasicConstraints::Unconstrained)
        }
        Claim::EndEntity => IsCa::ExplicitNoCa,
        Claim::Nothing => IsCa::NoCa,
    };
    if claim == Claim::AuthorityThatMayNotSign {
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    }
    params
}

fn params_of(subject: &Subject<'_>) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = subject.common_name.map(named).unwrap_or_default();
    params.subject_alt_names = subject.names.iter().map(|name| alternative(name)).collect();
    params.extended_key_usages =
        vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    params.not_before = match subject.not_before {
        Some(begin) => date_time_ymd(1970, 1, 1) + since_1970(begin),
        None => date_time_ymd(2000, 1, 1),
    };
    if let Some(end) = subject.not_after {
        params.not_after = date_time_ymd(1970, 1, 1) + since_1970(end);
    }
    params
}

fn new_key() -> KeyPair {
    KeyPair::generate().expect("the system has random numbers")
}

fn named(common_name: &str) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, common_name);
    name
}

fn alternative(name: &str) -> SanType {
    let text = || name.try_into().expect("an alternative name is ASCII");
    if name.contains("://") {
        return SanType::URI(text());
    }
    name.parse().map_or_else(|_| SanType::DnsName(text()), SanType::IpAddress)
}

fn since_1970(time: SystemTime) -> Duration {
    time.duration_since(SystemTime::UNIX_EPOCH).expect("no test goes back before 1970")
}

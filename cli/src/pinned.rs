//! The first contact with a scheduler of which only the fingerprint of its authority is known. Nothing is sent before the
//! whole chain and the name were checked against it.

use crate::failure::{Failure, io_cause};
use crate::url::Url;
use base64::Engine as _;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, ClientConnection, DigitallySignedStruct, Error, RootCertStore};
use sha2::{Digest, Sha256};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use systole_shared::secret::hex;

const ANSWER_MAX: Duration = Duration::from_secs(10);

#[derive(Debug)]
struct Pinned {
    fingerprint: String,
    provider: Arc<CryptoProvider>,
    found: Mutex<Option<CertificateDer<'static>>>,
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let authority = intermediates
            .iter()
            .find(|certificate| hex(&Sha256::digest(certificate)) == self.fingerprint)
            .ok_or(Error::InvalidCertificate(CertificateError::UnknownIssuer))?
            .clone()
            .into_owned();
        let mut roots = RootCertStore::empty();
        roots.add(authority.clone())?;
        let checked = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&self.provider))
            .build()
            .map_err(|error| Error::General(error.to_string()))?
            .verify_server_cert(end_entity, &[], server_name, ocsp_response, now)?;
        *self.found.lock().unwrap_or_else(PoisonError::into_inner) = Some(authority);
        Ok(checked)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, cert, dss, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, cert, dss, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// The authority of the scheduler at this address, PEM, if it has this fingerprint and stands for the address.
pub fn authority(url: &Url, fingerprint: &str) -> Result<Vec<u8>, Failure> {
    let unexpected = |error: String| Failure::unexpected(format!("TLS: {error}"));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let pinned = Arc::new(Pinned {
        fingerprint: fingerprint.to_owned(),
        provider: Arc::clone(&provider),
        found: Mutex::default(),
    });
    let config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(|error| unexpected(error.to_string()))?
        .dangerous()
        .with_custom_certificate_verifier(Arc::clone(&pinned) as Arc<dyn ServerCertVerifier>)
        .with_no_client_auth();
    let name = ServerName::try_from(url.host.clone())
        .map_err(|_| Failure::usage(format!("{url}: {:?} is no host name and no address", url.host)))?;
    let mut tls = ClientConnection::new(Arc::new(config), name).map_err(|error| unexpected(error.to_string()))?;
    let mut tcp = connect(url)?;
    while tls.is_handshaking() {
        tls.complete_io(&mut tcp).map_err(|error| refused(url, &error))?;
    }
    let found = pinned.found.lock().unwrap_or_else(PoisonError::into_inner).take();
    let authority = found.ok_or_else(|| unexpected("no certificate was shown".into()))?;
    Ok(pem(&authority).into_bytes())
}

fn connect(url: &Url) -> Result<TcpStream, Failure> {
    let addresses = (url.host.as_str(), url.port)
        .to_socket_addrs()
        .map_err(|error| Failure::no_scheduler(url, &io_cause(&error)))?;
    let mut cause = "the host has no address".to_owned();
    for address in addresses {
        match TcpStream::connect_timeout(&address, ANSWER_MAX) {
            Ok(tcp) => {
                let limited = tcp
                    .set_read_timeout(Some(ANSWER_MAX))
                    .and_then(|()| tcp.set_write_timeout(Some(ANSWER_MAX)));
                limited.map_err(|error| Failure::no_scheduler(url, &io_cause(&error)))?;
                return Ok(tcp);
            }
            Err(error) => cause = io_cause(&error),
        }
    }
    Err(Failure::no_scheduler(url, &cause))
}

/// What to tell of a handshake that failed. Nothing secret was sent.
fn refused(url: &Url, error: &std::io::Error) -> Failure {
    let tls = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>());
    let text = match tls {
        Some(Error::InvalidCertificate(CertificateError::UnknownIssuer)) => format!(
            "the scheduler at {url} has not the authority with this fingerprint. The line is of another cluster or of before \
             --tls-new-ca, or somebody is in between. Nothing was sent; get a new line with `systole join-command`"
        ),
        Some(Error::InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
        )) => format!(
            "the certificate of {url} is not for the name {}; start the scheduler with --tls-name {}, or use another address",
            url.host, url.host
        ),
        Some(Error::InvalidCertificate(
            CertificateError::Expired
            | CertificateError::ExpiredContext { .. }
            | CertificateError::NotValidYet
            | CertificateError::NotValidYetContext { .. },
        )) => {
            format!("the certificate of {url} is not valid at the time that this machine has; set its clock: {error}")
        }
        Some(Error::InvalidMessage(_)) => {
            format!("{url} does not speak TLS; start the scheduler with --tls-self-signed")
        }
        Some(other) => format!("{url}: {other}"),
        None => return Failure::no_scheduler(url, &io_cause(error)),
    };
    Failure::refused(text)
}

fn pem(certificate: &CertificateDer<'_>) -> String {
    let base64 = base64::engine::general_purpose::STANDARD.encode(certificate);
    let lines: Vec<&str> = base64
        .as_bytes()
        .chunks(64)
        .map(|line| std::str::from_utf8(line).unwrap_or_default())
        .collect();
    format!(
        "-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n",
        lines.join("\n")
    )
}

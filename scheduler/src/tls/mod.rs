//! TLS of the one port: a certificate from files, or one that the cluster's own authority signs.

mod authority;
mod names;
mod own;

pub use authority::Authority;
pub use own::{OwnCertificate, renew};

use crate::config::{Tls, TlsFiles};
use crate::store::{Db, StoreError};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use tokio_rustls::TlsAcceptor;

/// The certificate of the authority, for clients of this machine. It is there while the scheduler of this folder uses it.
pub const CA_FILE: &str = "ca.pem";

/// What a replica serves with.
#[derive(Default)]
pub struct Serving {
    /// `None`: plaintext.
    pub acceptor: Option<TlsAcceptor>,
    /// Where the cluster signs its own certificates.
    pub own: Option<Arc<OwnCertificate>>,
}

/// Files are looked at first: a wrong path must not need a database to be told.
pub fn from_files(tls: Option<&Tls>) -> Result<Option<TlsAcceptor>, String> {
    match tls {
        Some(Tls::Files(files)) => of_files(files).map(Some),
        _ => Ok(None),
    }
}

/// With the authority of this cluster, where that is wanted.
pub async fn serving(
    tls: Option<&Tls>,
    files: Option<TlsAcceptor>,
    db: &Db,
    folder: &Path,
    listen: SocketAddr,
) -> Result<Serving, StoreError> {
    let ca_file = folder.join(CA_FILE);
    let Some(Tls::SelfSigned(wanted)) = tls else {
        // Clients take it as a sign that there is TLS, and by whom.
        drop(std::fs::remove_file(ca_file));
        return Ok(Serving {
            acceptor: files,
            own: None,
        });
    };
    let authority = Authority::open(db, folder, wanted.new_ca).await?;
    crate::auth::first::leave_file(folder, &ca_file, authority.pem())?;
    let own = Arc::new(OwnCertificate::new(authority, wanted, listen).map_err(StoreError::Schema)?);
    let config = rustls::ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(|error| StoreError::Other(format!("TLS: {error}")))?
        .with_no_client_auth()
        .with_cert_resolver(Arc::clone(&own) as Arc<dyn rustls::server::ResolvesServerCert>);
    Ok(Serving {
        acceptor: Some(acceptor(config)),
        own: Some(own),
    })
}

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn acceptor(mut config: rustls::ServerConfig) -> TlsAcceptor {
    // tonic's own server offers h2 only; plain HTTP clients would fail on /healthz.
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    TlsAcceptor::from(Arc::new(config))
}

/// Reads certificate and key.
fn of_files(files: &TlsFiles) -> Result<TlsAcceptor, String> {
    use rustls::pki_types::pem::PemObject as _;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer};
    let certs = CertificateDer::pem_file_iter(&files.cert)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| format!("--tls-cert {}: {error}", files.cert.display()))?;
    if certs.is_empty() {
        return Err(format!("--tls-cert {}: holds no certificate", files.cert.display()));
    }
    let key = PrivateKeyDer::from_pem_file(&files.key)
        .map_err(|error| format!("--tls-key {}: {error}", files.key.display()))?;
    let config = rustls::ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(|error| format!("TLS: {error}"))?
        .with_no_client_auth()
        .with_single_cert(certs, key)
        .map_err(|error| format!("--tls-cert and --tls-key do not fit together: {error}"))?;
    Ok(acceptor(config))
}

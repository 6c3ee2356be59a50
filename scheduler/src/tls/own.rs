//! The certificate of one replica: signed by the cluster's authority, in memory only, and made anew in time or when this
//! machine's addresses change. Connections that are open are not touched by that.

use super::authority::{Authority, at};
use super::names;
use crate::config::SelfSigned;
use crate::context::Context;
use crate::loops;
use rcgen::{CertificateParams, ExtendedKeyUsagePurpose, KeyPair, KeyUsagePurpose};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;
use systole_shared::clock::now_ms;
use systole_shared::policy::certificate::{BACKDATED_MS, renewal_due};

/// How often a replica looks whether its certificate still fits.
const LOOK_EVERY: Duration = Duration::from_secs(60);

pub struct OwnCertificate {
    authority: Authority,
    names: Vec<String>,
    listen: SocketAddr,
    lifetime: Duration,
    current: RwLock<Issued>,
}

struct Issued {
    key: Arc<CertifiedKey>,
    names: BTreeSet<String>,
    issued_ms: i64,
    until_ms: i64,
}

impl OwnCertificate {
    pub fn new(authority: Authority, wanted: &SelfSigned, listen: SocketAddr) -> Result<Self, String> {
        let names = names::all(&wanted.names, listen);
        let issued = issue(&authority, names, wanted.lifetime)?;
        Ok(Self {
            authority,
            names: wanted.names.clone(),
            listen,
            lifetime: wanted.lifetime,
            current: RwLock::new(issued),
        })
    }

    pub fn authority(&self) -> &Authority {
        &self.authority
    }

    /// Where another machine reaches this replica, the likeliest first: `https://NAME:PORT`.
    pub fn outward(&self) -> Vec<String> {
        let url = |name: String| match name.parse() {
            Ok(ip) => format!("https://{}", SocketAddr::new(ip, self.listen.port())),
            Err(_) => format!("https://{name}:{}", self.listen.port()),
        };
        names::outward(&self.names, self.listen).into_iter().map(url).collect()
    }

    /// Makes a new one if that is due, or if the names of this machine are others.
    fn look(&self) -> Result<bool, String> {
        let names = names::all(&self.names, self.listen);
        {
            let current = self.current.read().unwrap_or_else(PoisonError::into_inner);
            if current.names == names && !renewal_due(current.issued_ms, current.until_ms, now_ms()) {
                return Ok(false);
            }
        }
        let issued = issue(&self.authority, names, self.lifetime)?;
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = issued;
        Ok(true)
    }
}

impl std::fmt::Debug for OwnCertificate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OwnCertificate").finish_non_exhaustive()
    }
}

impl ResolvesServerCert for OwnCertificate {
    fn resolve(&self, _client: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let current = self.current.read().unwrap_or_else(PoisonError::into_inner);
        Some(Arc::clone(&current.key))
    }
}

/// Keeps the certificate fresh until the replica drains.
pub async fn renew(ctx: Arc<Context>) {
    let Some(own) = ctx.own_certificate.clone() else {
        return;
    };
    let every = LOOK_EVERY.min(own.lifetime / 10);
    while loops::pause(&ctx, every).await {
        match own.look() {
            Ok(false) => {}
            Ok(true) => tracing::info!("the server certificate was renewed"),
            Err(error) => tracing::error!(error, "the server certificate could not be renewed; tried again"),
        }
    }
}

fn issue(authority: &Authority, names: BTreeSet<String>, lifetime: Duration) -> Result<Issued, String> {
    let unexpected = |error: &dyn std::fmt::Display| format!("server certificate: {error}");
    let mut params = CertificateParams::new(Vec::from_iter(names.clone()))
        .map_err(|error| format!("--tls-name: {error}; give host names and addresses"))?;
    // The names are in the extension that counts.
    params.distinguished_name = rcgen::DistinguishedName::new();
    params
        .distinguished_name
        .push(rcgen::DnType::CommonName, "systole scheduler");
    params.use_authority_key_identifier_extension = true;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let issued_ms = now_ms();
    let until_ms = issued_ms.saturating_add(i64::try_from(lifetime.as_millis()).unwrap_or(i64::MAX));
    params.not_before = at(issued_ms - BACKDATED_MS);
    params.not_after = at(until_ms);
    let key = KeyPair::generate().map_err(|error| unexpected(&error))?;
    let certificate = params
        .signed_by(&key, authority.issuer())
        .map_err(|error| unexpected(&error))?;
    let secret = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let signing = rustls::crypto::ring::sign::any_supported_type(&secret).map_err(|error| unexpected(&error))?;
    // With the authority, so that somebody who knows its fingerprint alone can check the chain.
    let chain = vec![certificate.der().clone(), authority.der().clone()];
    Ok(Issued {
        key: Arc::new(CertifiedKey::new(chain, signing)),
        names,
        issued_ms,
        until_ms,
    })
}

//! The certificate authority of a cluster. Its certificate is in the database, where the replicas agree on it; its key
//! is in a file of each replica that signs, and never in the database: who reads a dump cannot pose as a scheduler.

use crate::auth::first::{cannot, leave_file, neighbour, write_private};
use crate::auth::hex;
use crate::store::{Db, StoreError};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use sha2::{Digest, Sha256};
use std::path::Path;
use systole_shared::policy::certificate::BACKDATED_MS;
use time::OffsetDateTime;

/// The key of the authority, readable by the owner alone.
const KEY_FILE: &str = "ca.key";
const SETTING: &str = "ca_certificate";
const VALID_MS: i64 = 20 * 366 * 24 * 3_600_000;

pub struct Authority {
    pem: String,
    der: CertificateDer<'static>,
    fingerprint: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    /// That of this cluster. The first replica makes it; with `new_ca` it is made anew.
    pub async fn open(db: &Db, folder: &Path, new_ca: bool) -> Result<Self, StoreError> {
        let cluster_id = db.setting("cluster_id", uuid::Uuid::new_v4().to_string()).await?;
        let path = folder.join(KEY_FILE);
        let on_disk = std::fs::read_to_string(&path).ok();
        if !new_ca && let Some(pem) = db.known_setting(SETTING).await? {
            let key = on_disk
                .filter(|key| belongs(&pem, key))
                .or_else(|| neighbour(folder, &path, |key| belongs(&pem, key)))
                .ok_or_else(|| elsewhere(&path))?;
            leave_file(folder, &path, &key)?;
            return Self::of(pem, &key, &cluster_id);
        }
        // A key that is there already may be that of another cluster behind the same address, and stays good for it.
        let key = match on_disk.and_then(|text| KeyPair::from_pem(&text).ok()) {
            Some(key) if !new_ca => key,
            _ => KeyPair::generate().map_err(unexpected)?,
        };
        let pem = params(&cluster_id)?.self_signed(&key).map_err(unexpected)?.pem();
        let key = key.serialize_pem();
        // The file first: a certificate whose key was lost would be of no use to anybody.
        let temporary = write_private(folder, &path, key.trim_end())?;
        if new_ca {
            db.replace_setting(SETTING, pem.clone()).await?;
        } else if db.setting(SETTING, pem.clone()).await? != pem {
            drop(std::fs::remove_file(&temporary));
            return Err(elsewhere(&path));
        }
        std::fs::rename(&temporary, &path).map_err(|error| cannot(&path, &error))?;
        Self::of(pem, &key, &cluster_id)
    }

    fn of(pem: String, key: &str, cluster_id: &str) -> Result<Self, StoreError> {
        let der = CertificateDer::from_pem_slice(pem.as_bytes())
            .map_err(|error| StoreError::Schema(format!("the database's setting {SETTING}: {error}")))?;
        let key = KeyPair::from_pem(key).map_err(unexpected)?;
        Ok(Self {
            fingerprint: hex(&Sha256::digest(&der)),
            issuer: Issuer::new(params(cluster_id)?, key),
            der,
            pem,
        })
    }

    pub fn pem(&self) -> &str {
        &self.pem
    }

    pub fn der(&self) -> &CertificateDer<'static> {
        &self.der
    }

    /// SHA-256 of the certificate, hex.
    pub fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    pub(super) fn issuer(&self) -> &Issuer<'static, KeyPair> {
        &self.issuer
    }
}

/// Whether this is the key of the certificate.
fn belongs(pem: &str, key: &str) -> bool {
    let (Ok(der), Ok(key)) = (CertificateDer::from_pem_slice(pem.as_bytes()), KeyPair::from_pem(key)) else {
        return false;
    };
    let public = key.public_key_raw();
    der.windows(public.len()).any(|part| part == public)
}

/// The same for each replica and each start: what is signed later must name the very issuer of the certificate.
fn params(cluster_id: &str) -> Result<CertificateParams, StoreError> {
    let mut params = CertificateParams::new(Vec::new()).map_err(unexpected)?;
    params
        .distinguished_name
        .push(DnType::CommonName, format!("systole CA {cluster_id}"));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let now = systole_shared::clock::now_ms();
    params.not_before = at(now - BACKDATED_MS);
    params.not_after = at(now + VALID_MS);
    Ok(params)
}

pub(super) fn at(ms: i64) -> OffsetDateTime {
    OffsetDateTime::from_unix_timestamp(ms.div_euclid(1000)).unwrap_or(OffsetDateTime::UNIX_EPOCH)
}

fn elsewhere(path: &Path) -> StoreError {
    StoreError::Schema(format!(
        "--tls-self-signed: this cluster has a certificate authority, and {} is not its key. Copy ca.key from the token folder of \
         the scheduler that made it (chmod 600), or start once with --tls-new-ca: then every other machine must be told the new one",
        path.display()
    ))
}

fn unexpected(error: rcgen::Error) -> StoreError {
    StoreError::Other(format!("certificate: {error}"))
}

//! Gives this host's token another secret from time to time. The old one is good until the new one was used, and both
//! are on disk meanwhile: a host is never without a secret that is valid, wherever it is interrupted.

use crate::credential::Credential;
use crate::link::Link;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use systole_shared::clock::now_ms;
use systole_shared::secret;
use tonic::{Code, Status};

/// The wall clock may be set: it is looked at again after this.
const LOOK_EVERY: Duration = Duration::from_secs(3600);
/// After a try that failed.
const TRY_AGAIN: Duration = Duration::from_secs(60);
/// Replicas hear of a new secret within a poll.
const PAUSE: Duration = Duration::from_secs(1);
const TRIES: u32 = 15;

/// Until the process ends, or somebody has put another credential in its place.
pub async fn run(link: Arc<Link>, data_dir: PathBuf, mut credential: Credential, every: Duration) {
    let every_ms = i64::try_from(every.as_millis()).unwrap_or(i64::MAX);
    loop {
        let left = if credential.next_secret.is_some() {
            0 // Interrupted half-way.
        } else {
            credential.since_ms.saturating_add(every_ms).saturating_sub(now_ms())
        };
        // A clock that was ahead must not put it off for years.
        let left = Duration::from_millis(u64::try_from(left).unwrap_or(0)).min(every);
        if !left.is_zero() {
            tokio::time::sleep(left.min(LOOK_EVERY)).await;
            continue;
        }
        match Credential::load(&data_dir) {
            Ok(Some(on_disk)) if on_disk == credential => {}
            _ => {
                tracing::warn!("the credential in the data directory is another one now; restart the runner to use it");
                return;
            }
        }
        match rotate(&link, &data_dir, &mut credential).await {
            Ok(()) => tracing::info!(token = credential.name, "this host's token has a new secret"),
            Err(error) => {
                tracing::warn!(
                    token = credential.name,
                    error,
                    "this host's token could not be given a new secret"
                );
                tokio::time::sleep(TRY_AGAIN.min(every)).await;
            }
        }
    }
}

async fn rotate(link: &Link, data_dir: &Path, credential: &mut Credential) -> Result<(), String> {
    let next = match &credential.next_secret {
        Some(next) => next.clone(),
        None => {
            let next = secret::of_random("systole_runner", rand::random());
            let pending = Credential {
                next_secret: Some(next.clone()),
                ..credential.clone()
            };
            pending.save(data_dir).map_err(|error| error.to_string())?;
            *credential = pending;
            next
        }
    };
    let hash = secret::hash(&next);
    let text = |status: Status| format!("{:?}: {}", status.code(), status.message());
    let mut replaced = match link.rotate_token(&credential.secret, &hash).await {
        Ok(replaced) => replaced,
        // It may have been replaced already, by a call whose answer was lost.
        Err(status) if status.code() == Code::Unauthenticated => false,
        Err(status) => return Err(text(status)),
    };
    let mut tries = 0;
    while !replaced {
        replaced = match link.rotate_token(&next, &hash).await {
            Ok(replaced) => replaced,
            Err(status) if status.code() == Code::Unauthenticated && tries < TRIES => false,
            Err(status) => return Err(text(status)),
        };
        if !replaced {
            tries += 1;
            if tries > TRIES {
                return Err("the schedulers do not agree on it".into());
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
    let done = Credential {
        secret: next,
        next_secret: None,
        since_ms: now_ms(),
        ..credential.clone()
    };
    // The schedulers know no other any more, whatever the disk says.
    link.set_token(&done.secret).map_err(|error| error.to_string())?;
    done.save(data_dir).map_err(|error| error.to_string())?;
    *credential = done;
    Ok(())
}

//! Who may call what. Tokens are 32 random bytes, stored as SHA-256 and compared in constant time.

pub mod first;
pub mod guard;
pub mod rules;
mod stream;

pub use first::{TokenFiles, first_tokens, leave_callback_secret};
pub use systole_shared::secret::{hash, hex};

use crate::clock::boottime_ms;
use crate::store::tokens::TokenRow;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, RwLock};
use subtle::ConstantTimeEq as _;
use systole_shared::policy::access::Role;

/// How often the last use of tokens is written.
pub const USED_WRITE_MS: i64 = 60_000;
/// Tokens are found by this much of their hash. It tells nothing: nobody can choose a secret by its hash.
const PREFIX: usize = 16;

/// Who calls.
#[derive(Clone, Debug)]
pub struct Actor {
    pub name: String,
    pub role: Role,
    /// The one host that it speaks for; `None`: any.
    pub host: Option<String>,
    /// It came with the secret that is to replace the token's present one.
    pub by_next_secret: bool,
}

/// Why a token is not accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refused {
    Missing,
    Unknown,
    /// The name of the token.
    Expired(String),
}

#[derive(Debug)]
struct Known {
    hash: String,
    actor: Actor,
    /// By the clock of this machine that nobody sets; taken from the database's clock when it was read.
    deadline: Option<i64>,
    uses: Arc<Uses>,
}

/// Whether it was used since that was last written, and when that was.
#[derive(Debug)]
struct Uses {
    fresh: AtomicBool,
    written_ms: AtomicI64,
}

impl Default for Uses {
    fn default() -> Self {
        Self {
            fresh: AtomicBool::new(false),
            written_ms: AtomicI64::new(-USED_WRITE_MS),
        }
    }
}

/// The tokens that are valid, as last read.
#[derive(Debug, Default)]
pub struct Tokens {
    known: RwLock<HashMap<String, Vec<Known>>>,
    /// Reads of the tokens that began, and the latest of those that are known here.
    reads: AtomicI64,
    known_read: AtomicI64,
}

/// When a read of the tokens began, among all of this replica.
#[derive(Clone, Copy, Debug)]
pub struct TokenRead(i64);

impl Tokens {
    /// To be called before the tokens are read.
    pub fn begin_read(&self) -> TokenRead {
        TokenRead(self.reads.fetch_add(1, Ordering::SeqCst) + 1)
    }

    /// What a read found. One that began before another one that is known already is passed over: a token that was made or revoked
    /// meanwhile counts at once, and goes on counting.
    pub fn set(&self, read: TokenRead, rows: Vec<TokenRow>) {
        let now = boottime_ms();
        let mut guard = match self.known.write() {
            Ok(guard) => guard,
            Err(poisoned) => poisoned.into_inner(),
        };
        // Under the lock, so that nobody comes between.
        if self.known_read.fetch_max(read.0, Ordering::SeqCst) > read.0 {
            return;
        }
        let uses: HashMap<&str, &Arc<Uses>> = guard
            .values()
            .flatten()
            .map(|known| (known.hash.as_str(), &known.uses))
            .collect();
        let mut fresh: HashMap<String, Vec<Known>> = HashMap::new();
        for row in rows {
            // A role of a later version is left out: nobody here knows what it may do.
            let (Some(role), None) = (Role::parse(&row.role), row.revoked_at_ms) else {
                continue;
            };
            let deadline = row.expires_at_ms.map(|at| now + (at - row.now_ms));
            let secrets = [(Some(row.hash), false), (row.next_hash, true)];
            for (hash, by_next_secret) in secrets {
                let Some((hash, prefix)) = hash.and_then(|hash| {
                    let prefix = hash.get(..PREFIX)?.to_owned();
                    Some((hash, prefix))
                }) else {
                    continue;
                };
                let known = Known {
                    deadline,
                    uses: uses
                        .get(hash.as_str())
                        .map_or_else(Arc::default, |uses| Arc::clone(uses)),
                    actor: Actor {
                        name: row.name.clone(),
                        role,
                        host: row.host.clone(),
                        by_next_secret,
                    },
                    hash,
                };
                fresh.entry(prefix).or_default().push(known);
            }
        }
        *guard = fresh;
    }

    /// Who this `authorization` header belongs to.
    pub fn authenticate(&self, header: Option<&str>) -> Result<Actor, Refused> {
        let token = header.and_then(|h| h.strip_prefix("Bearer ")).ok_or(Refused::Missing)?;
        let hash = hash(token);
        let known = match self.known.read() {
            Ok(known) => known,
            Err(poisoned) => poisoned.into_inner(),
        };
        // All candidates are compared whole, so that the time does not tell how nearly one matched.
        let mut found = None;
        for candidate in known.get(&hash[..PREFIX]).map(Vec::as_slice).unwrap_or_default() {
            if bool::from(candidate.hash.as_bytes().ct_eq(hash.as_bytes())) {
                found = Some(candidate);
            }
        }
        let found = found.ok_or(Refused::Unknown)?;
        if found.deadline.is_some_and(|deadline| boottime_ms() >= deadline) {
            return Err(Refused::Expired(found.actor.name.clone()));
        }
        if !found.uses.fresh.load(Ordering::Relaxed) {
            found.uses.fresh.store(true, Ordering::Relaxed);
        }
        Ok(found.actor.clone())
    }

    /// Those used since this was last told of them, each at most once in [`USED_WRITE_MS`].
    pub fn take_used(&self) -> Vec<String> {
        let now = boottime_ms();
        let known = match self.known.read() {
            Ok(known) => known,
            Err(poisoned) => poisoned.into_inner(),
        };
        known
            .values()
            .flatten()
            .filter(|known| now - known.uses.written_ms.load(Ordering::Relaxed) >= USED_WRITE_MS)
            .filter(|known| known.uses.fresh.swap(false, Ordering::Relaxed))
            .map(|known| {
                known.uses.written_ms.store(now, Ordering::Relaxed);
                known.actor.name.clone()
            })
            .collect()
    }
}

/// A new secret: a prefix that people recognise, and 32 random bytes.
pub fn new_secret(prefix: &str) -> String {
    systole_shared::secret::of_random(prefix, rand::random())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &str, role: &str, secret: &str) -> TokenRow {
        TokenRow {
            name: name.into(),
            role: role.into(),
            hash: hash(secret),
            ..TokenRow::default()
        }
    }

    #[test]
    fn only_a_whole_known_token_is_accepted() {
        let tokens = Tokens::default();
        let token = new_secret("systole_admin");
        tokens.set(tokens.begin_read(), vec![row("admin", "admin", &token)]);
        let header = format!("Bearer {token}");
        assert_eq!(
            tokens.authenticate(Some(&header)).map(|actor| actor.role),
            Ok(Role::Admin)
        );
        let cut = &header[..header.len() - 1];
        for wrong in [None, Some(""), Some("Bearer "), Some(token.as_str()), Some(cut)] {
            assert!(tokens.authenticate(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_role_of_a_later_version_may_do_nothing() {
        let tokens = Tokens::default();
        tokens.set(tokens.begin_read(), vec![row("x", "superuser", "x")]);
        assert!(tokens.authenticate(Some("Bearer x")).is_err());
    }

    #[test]
    fn an_expired_token_is_named_and_a_revoked_one_is_unknown() {
        let tokens = Tokens::default();
        let expired = TokenRow {
            expires_at_ms: Some(1_000),
            now_ms: 1_000,
            ..row("old", "viewer", "a")
        };
        let valid = TokenRow {
            expires_at_ms: Some(100_000),
            now_ms: 1_000,
            ..row("new", "viewer", "b")
        };
        let revoked = TokenRow {
            revoked_at_ms: Some(1),
            ..row("gone", "viewer", "c")
        };
        tokens.set(tokens.begin_read(), vec![expired, valid, revoked]);
        let who = |secret: &str| tokens.authenticate(Some(&format!("Bearer {secret}"))).map(|a| a.name);
        assert_eq!(who("a"), Err(Refused::Expired("old".into())));
        assert_eq!(who("b"), Ok("new".into()));
        assert_eq!(who("c"), Err(Refused::Unknown));
    }

    #[test]
    fn a_read_that_began_earlier_undoes_nothing() {
        let tokens = Tokens::default();
        let early = tokens.begin_read();
        let late = tokens.begin_read();
        tokens.set(late, vec![row("new", "viewer", "new")]);
        tokens.set(early, Vec::new());
        assert!(tokens.authenticate(Some("Bearer new")).is_ok());
        tokens.set(tokens.begin_read(), Vec::new());
        assert!(tokens.authenticate(Some("Bearer new")).is_err());
    }

    #[test]
    fn a_use_is_told_once_a_minute_at_most() {
        let tokens = Tokens::default();
        let rows = || vec![row("a", "viewer", "a"), row("b", "viewer", "b")];
        tokens.set(tokens.begin_read(), rows());
        assert!(tokens.authenticate(Some("Bearer a")).is_ok());
        // Reading the tokens again forgets no use.
        tokens.set(tokens.begin_read(), rows());
        assert_eq!(tokens.take_used(), ["a"]);
        assert!(tokens.authenticate(Some("Bearer a")).is_ok());
        assert!(tokens.authenticate(Some("Bearer b")).is_ok());
        assert_eq!(tokens.take_used(), ["b"], "a was told within the same minute");
    }
}

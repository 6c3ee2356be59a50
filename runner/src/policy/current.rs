//! The policy that holds now. It is read again when an agent connects and at SIGHUP, so that a change needs no end of the tasks.

use super::{Policy, load};
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

#[derive(Debug)]
struct Held {
    named: Option<PathBuf>,
    policy: Option<Arc<Policy>>,
}

#[derive(Debug)]
pub struct Current(RwLock<Held>);

impl Current {
    /// `named`: instead of the default file, which need not exist.
    pub fn load(named: Option<&Path>) -> Result<Self, String> {
        Ok(Self(RwLock::new(Held {
            named: named.map(Path::to_owned),
            policy: load::load(named)?.map(Arc::new),
        })))
    }

    pub fn get(&self) -> Option<Arc<Policy>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).policy.clone()
    }

    /// Reads it again, from another file if one is given. With a bad file the old policy stays, which is said: to go on without
    /// one would open the host.
    pub fn reload(&self, named: Option<&Path>) {
        let mut held = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let named = named.map(Path::to_owned).or_else(|| held.named.clone());
        match load::load(named.as_deref()) {
            Ok(policy) => {
                if policy.as_ref() != held.policy.as_deref() {
                    tracing::info!(
                        file = policy.as_ref().map(|policy| policy.path.display().to_string()),
                        "the host's policy has changed"
                    );
                }
                *held = Held {
                    named,
                    policy: policy.map(Arc::new),
                };
            }
            Err(error) => tracing::error!("{error}; the policy stays as it was"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_taken_over_and_a_mistake_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("runner.toml");
        let write = |text: &str| std::fs::write(&path, text).unwrap();
        write("[allow]\nshell = false\n");
        let current = Current::load(Some(&path)).unwrap();
        let shell = || current.get().map(|policy| policy.allow.shell);
        assert_eq!(shell(), Some(false));
        write("[allow]\nshell = true\n");
        current.reload(None);
        assert_eq!(shell(), Some(true));
        write("[allow]\nshell = 5\n");
        current.reload(None);
        assert_eq!(shell(), Some(true));
        std::fs::remove_file(&path).unwrap();
        current.reload(None);
        assert_eq!(shell(), Some(true), "a named file that is gone opens nothing");
        assert!(Current::load(Some(&path)).is_err());
    }
}

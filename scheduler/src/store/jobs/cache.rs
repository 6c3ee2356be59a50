//! What was read before, up to a bound: two generations, of which the older is forgotten as a whole. What is asked for
//! again moves to the younger one.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError};

#[derive(Debug)]
struct Generations<K, V> {
    young: HashMap<K, Arc<V>>,
    old: HashMap<K, Arc<V>>,
}

/// At most twice `half` values.
#[derive(Debug)]
pub struct Cache<K, V> {
    half: usize,
    kept: Mutex<Generations<K, V>>,
}

impl<K: Hash + Eq + Clone, V> Cache<K, V> {
    pub fn new(half: usize) -> Self {
        Self {
            half,
            kept: Mutex::new(Generations {
                young: HashMap::new(),
                old: HashMap::new(),
            }),
        }
    }

    /// The value that is kept, if it is `right`; else it is made, and kept in its place.
    pub fn get<E>(
        &self,
        key: &K,
        right: impl Fn(&V) -> bool,
        make: impl FnOnce() -> Result<V, E>,
    ) -> Result<Arc<V>, E> {
        if let Some(value) = self.find(key).filter(|value| right(value)) {
            return Ok(value);
        }
        // Not under the lock: two that make the same at once make it twice.
        let value = Arc::new(make()?);
        self.put(key.clone(), Arc::clone(&value));
        Ok(value)
    }

    fn find(&self, key: &K) -> Option<Arc<V>> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(value) = kept.young.get(key) {
            return Some(Arc::clone(value));
        }
        let value = kept.old.remove(key)?;
        Self::add(&mut kept, self.half, key.clone(), Arc::clone(&value));
        Some(value)
    }

    fn put(&self, key: K, value: Arc<V>) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        Self::add(&mut kept, self.half, key, value);
    }

    fn add(kept: &mut Generations<K, V>, half: usize, key: K, value: Arc<V>) {
        if kept.young.len() >= half && !kept.young.contains_key(&key) {
            kept.old = std::mem::take(&mut kept.young);
        }
        kept.young.insert(key, value);
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.young.len() + kept.old.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn what_is_asked_for_stays_and_the_rest_is_forgotten() {
        let cache: Cache<u32, u32> = Cache::new(4);
        let made = Cell::new(0);
        let get = |key: u32| {
            let value = cache.get(
                &key,
                |_| true,
                || {
                    made.set(made.get() + 1);
                    Ok::<_, ()>(key * 10)
                },
            );
            assert_eq!(value.as_deref(), Ok(&(key * 10)));
        };
        for key in 1..=100 {
            get(key);
            // One that every round asks for.
            get(0);
            assert!(cache.len() <= 8, "{}", cache.len());
        }
        assert_eq!(made.get(), 101, "0 was made once");
        get(1);
        assert_eq!(made.get(), 102, "1 was forgotten");
    }

    #[test]
    fn what_is_not_right_any_more_is_made_anew_and_an_error_is_not_kept() {
        let cache: Cache<u32, u32> = Cache::new(4);
        assert_eq!(cache.get(&1, |_| true, || Err("no")), Err("no"));
        for wanted in [5, 5, 6] {
            let value = cache.get(&1, |value| *value == wanted, || Ok::<_, ()>(wanted));
            assert_eq!(value.as_deref(), Ok(&wanted));
        }
    }
}

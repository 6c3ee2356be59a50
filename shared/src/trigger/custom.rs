//! Trigger kinds beyond the built-in ones: a trait, and a registry that a program which embeds the scheduler extends ([`register`]).

use super::dst::Dst;
use super::rrule::Rrule;
use super::schedule::{Local, Times};
use super::window::{Window, WindowSpec};
use super::zone::Zone;
use crate::error::Invalid;
use crate::task::spec::check_word;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Arc, LazyLock, RwLock};

/// What a kind may build on beside its own settings.
#[derive(Clone, Debug)]
pub struct Context {
    pub zone: Zone,
    pub dst: Dst,
    /// The trigger's `start_at`, else its creation.
    pub start_ms: i64,
}

/// A kind of trigger, known by its name.
pub trait TriggerKind: Debug + Send + Sync {
    /// What `custom = { kind = "…" }` says.
    fn name(&self) -> &str;

    /// Makes a schedule of the settings; what is wrong with them is said with the name of the field.
    fn build(&self, settings: &Value, context: &Context) -> Result<Arc<dyn Times>, Invalid>;
}

/// The kinds that a scheduler knows.
#[derive(Clone, Debug)]
pub struct Registry(BTreeMap<String, Arc<dyn TriggerKind>>);

/// That of the process, which its schedulers go by.
static SHARED: LazyLock<RwLock<Arc<Registry>>> = LazyLock::new(|| RwLock::new(Arc::new(Registry::built_in())));

/// Adds a kind for all schedulers of this process, before their first start; a name that is taken is refused. All replicas of a
/// cluster must have the same ones: a trigger of a kind that one does not know goes to the state ERROR there.
pub fn register(kind: Arc<dyn TriggerKind>) -> Result<(), Invalid> {
    check_word(kind.name(), "custom.kind")?;
    // Poisoned only by a panic of what follows, which puts whole registries in place or nothing.
    let mut shared = SHARED.write().unwrap_or_else(std::sync::PoisonError::into_inner);
    if shared.knows(kind.name()) {
        let message = format!("there is a trigger kind {:?} already", kind.name());
        return Err(Invalid::new("custom.kind", message));
    }
    let mut registry = Registry::clone(&shared);
    registry.register(kind);
    *shared = Arc::new(registry);
    Ok(())
}

impl Registry {
    /// That of the process.
    pub fn shared() -> Arc<Self> {
        Arc::clone(&SHARED.read().unwrap_or_else(std::sync::PoisonError::into_inner))
    }

    pub fn knows(&self, kind: &str) -> bool {
        self.0.contains_key(kind)
    }

    /// `rrule` and `interval_in_window`, which have keys of their own in files too.
    pub fn built_in() -> Self {
        let mut registry = Self(BTreeMap::new());
        registry.register(Arc::new(RruleKind));
        registry.register(Arc::new(WindowKind));
        registry
    }

    /// Adds a kind, or replaces the one of its name.
    pub fn register(&mut self, kind: Arc<dyn TriggerKind>) {
        self.0.insert(kind.name().to_owned(), kind);
    }

    pub fn build(&self, kind: &str, settings: &Value, context: &Context) -> Result<Arc<dyn Times>, Invalid> {
        match self.0.get(kind) {
            Some(found) => found.build(settings, context),
            None => {
                let known: Vec<&str> = self.0.keys().map(String::as_str).collect();
                let message = format!("there is no trigger kind {kind:?} here; known are {}", known.join(", "));
                Err(Invalid::new("custom.kind", message))
            }
        }
    }
}

impl Default for Registry {
    fn default() -> Self {
        Self::built_in()
    }
}

/// `{ rule = "FREQ=…" }`.
#[derive(Debug)]
struct RruleKind;

impl TriggerKind for RruleKind {
    fn name(&self) -> &str {
        "rrule"
    }

    fn build(&self, settings: &Value, context: &Context) -> Result<Arc<dyn Times>, Invalid> {
        let Some(text) = settings.get("rule").and_then(Value::as_str) else {
            return Err(Invalid::new(
                "rrule",
                "rule is missing; write for example \"FREQ=WEEKLY;BYDAY=MO\"",
            ));
        };
        let start = context.zone.wall(context.start_ms.div_euclid(1_000));
        let rule = Rrule::parse(text, start, |at| context.zone.wall(at))?;
        Ok(Local::new(rule, context.zone.clone(), context.dst))
    }
}

/// `{ every = "15m", from = "08:00", until = "18:00", weekdays = ["mon"] }`.
#[derive(Debug)]
struct WindowKind;

impl TriggerKind for WindowKind {
    fn name(&self) -> &str {
        "interval_in_window"
    }

    fn build(&self, settings: &Value, context: &Context) -> Result<Arc<dyn Times>, Invalid> {
        let spec: WindowSpec = serde_json::from_value(settings.clone())
            .map_err(|error| Invalid::new("interval_in_window", error.to_string()))?;
        Ok(Local::new(Window::new(&spec)?, context.zone.clone(), context.dst))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn context() -> Context {
        Context {
            zone: Zone::parse("Europe/Berlin").expect("zone"),
            dst: Dst::default(),
            // 2026-11-30T00:00:00+01:00
            start_ms: 1_795_993_200_000,
        }
    }

    #[test]
    fn built_in_kinds_fire_in_their_zone() {
        let registry = Registry::built_in();
        let rrule = json!({"rule": "FREQ=MONTHLY;BYDAY=1SU;BYHOUR=12;BYMINUTE=0;BYSECOND=0"});
        let rrule = registry.build("rrule", &rrule, &context()).expect("rrule");
        // Sunday, 2026-12-06T12:00+01:00.
        assert_eq!(rrule.next_after(context().start_ms), Some(1_796_554_800_000));
        let window = json!({"every": "15m", "from": "08:00", "until": "18:00", "weekdays": ["tue"]});
        let window = registry
            .build("interval_in_window", &window, &context())
            .expect("window");
        // Tuesday, 2026-12-01T08:00+01:00.
        assert_eq!(window.next_after(context().start_ms), Some(1_796_108_400_000));
    }

    /// Full hours of a made-up clock: a kind of one's own is a few lines.
    #[derive(Debug)]
    struct Hours(i64);

    impl Times for Hours {
        fn next_after(&self, after_ms: i64) -> Option<i64> {
            Some((after_ms.div_euclid(self.0) + 1) * self.0)
        }
    }

    #[derive(Debug)]
    struct HoursKind;

    impl TriggerKind for HoursKind {
        fn name(&self) -> &str {
            "hours"
        }

        fn build(&self, settings: &Value, _: &Context) -> Result<Arc<dyn Times>, Invalid> {
            match settings.get("n").and_then(Value::as_i64) {
                Some(n) if n > 0 => Ok(Arc::new(Hours(n * 3_600_000))),
                _ => Err(Invalid::new("custom.n", "write a number of hours")),
            }
        }
    }

    #[test]
    fn a_registered_kind_is_built_and_an_unknown_one_names_the_known() {
        let mut registry = Registry::built_in();
        let error = registry
            .build("hours", &json!({"n": 2}), &context())
            .expect_err("unknown");
        assert!(error.message.contains("interval_in_window, rrule"), "{error}");
        registry.register(Arc::new(HoursKind));
        let hours = registry.build("hours", &json!({"n": 2}), &context()).expect("hours");
        assert_eq!(hours.next_after(0), Some(7_200_000));
        assert_eq!(hours.count(0, 86_400_000, 100), 12);
        assert_eq!(
            registry.build("hours", &json!({}), &context()).expect_err("no n").field,
            "custom.n"
        );
    }

    #[test]
    fn a_kind_is_known_in_the_whole_process_and_no_name_is_taken_twice() {
        assert!(!Registry::shared().knows("hours"));
        register(Arc::new(HoursKind)).expect("registered");
        assert!(Registry::shared().knows("hours") && !Registry::built_in().knows("hours"));
        assert_eq!(register(Arc::new(HoursKind)).expect_err("twice").field, "custom.kind");
        assert!(register(Arc::new(RruleKind)).is_err(), "a built-in one is not replaced");
    }

    #[test]
    fn settings_that_are_wrong_name_their_field() {
        let registry = Registry::built_in();
        for (kind, settings, field) in [
            ("rrule", json!({}), "rrule"),
            ("rrule", json!({"rule": "FREQ=NEVER"}), "rrule"),
            ("interval_in_window", json!({"every": "15m"}), "interval_in_window"),
            (
                "interval_in_window",
                json!({"every": "15m", "from": "1", "until": "18:00"}),
                "interval_in_window.from",
            ),
            (
                "interval_in_window",
                json!({"every": "15m", "from": "08:00", "until": "18:00", "days": []}),
                "interval_in_window",
            ),
        ] {
            assert_eq!(
                registry.build(kind, &settings, &context()).expect_err(kind).field,
                field
            );
        }
    }
}

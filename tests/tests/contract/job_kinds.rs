//! Kinds of triggers and routes of one's own, as a program that embeds the scheduler adds them: the example of `docs/schedules.md`.

use super::jobs::{apply, definition, get, job, ledger, put, start};
use serde_json::{Value, json};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Once};
use systole_proto::v1;
use systole_shared::error::Invalid;
use systole_shared::policy::route::{self, Asked, Host, RoutePolicy};
use systole_shared::trigger::custom::{self, Context, TriggerKind};
use systole_shared::trigger::schedule::Times;
use systole_tests::replica::Replica;
use systole_tests::wait::until;
use systole_tests::{SimRunner, TestDb, on_both_databases};

on_both_databases!(
    a_registered_kind_fires_as_it_says,
    a_kind_that_panics_or_goes_back_fails_alone,
    a_registered_route_chooses_the_host,
);

/// `custom = { kind = "pulse", ms = 700 }`: the instants that can be divided by that.
#[derive(Debug)]
struct PulseKind;

#[derive(Debug)]
struct Pulse {
    ms: i64,
}

impl TriggerKind for PulseKind {
    fn name(&self) -> &str {
        "pulse"
    }

    fn build(&self, settings: &Value, _: &Context) -> Result<Arc<dyn Times>, Invalid> {
        match settings.get("ms").and_then(Value::as_i64) {
            Some(ms) if ms >= 100 => Ok(Arc::new(Pulse { ms })),
            _ => Err(Invalid::new("custom.ms", "write a number of milliseconds, 100 or more")),
        }
    }
}

impl Times for Pulse {
    fn next_after(&self, after_ms: i64) -> Option<i64> {
        Some((after_ms.div_euclid(self.ms) + 1) * self.ms)
    }
}

/// One that is well until it is not.
#[derive(Debug)]
struct MoodyKind;

#[derive(Debug)]
struct Moody {
    panics: bool,
    mood: &'static AtomicBool,
}

/// Of each test its own, since kinds are the process's.
static MOODS: [AtomicBool; 2] = [AtomicBool::new(false), AtomicBool::new(false)];

impl TriggerKind for MoodyKind {
    fn name(&self) -> &str {
        "moody"
    }

    fn build(&self, settings: &Value, _: &Context) -> Result<Arc<dyn Times>, Invalid> {
        let is = |word: &str| settings.get(word).and_then(Value::as_bool).unwrap_or_default();
        Ok(Arc::new(Moody {
            panics: is("panics"),
            mood: &MOODS[usize::from(is("postgres"))],
        }))
    }
}

impl Times for Moody {
    fn next_after(&self, after_ms: i64) -> Option<i64> {
        let bad = self.mood.load(Ordering::Relaxed);
        assert!(!(bad && self.panics), "in a bad mood");
        Some(if bad {
            after_ms
        } else {
            (after_ms.div_euclid(1_000) + 1) * 1_000
        })
    }
}

/// `route = "longest_name"`.
#[derive(Debug)]
struct LongestName;

impl RoutePolicy for LongestName {
    fn name(&self) -> &'static str {
        "longest_name"
    }

    fn choose(&self, _: Asked<'_>, hosts: &[Host]) -> usize {
        (0..hosts.len()).max_by_key(|&at| hosts[at].name.len()).unwrap_or(0)
    }
}

/// As the `main` of such a program does before it starts a scheduler.
fn register() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        custom::register(Arc::new(PulseKind)).expect("a new name");
        custom::register(Arc::new(MoodyKind)).expect("a new name");
        route::register(&LongestName).expect("a new name");
        assert!(route::register(&LongestName).is_err());
    });
}

fn kind(settings: &Value) -> Value {
    json!({"blocking": "concurrent", "max_concurrent": 100, "trigger": [{"name": "t", "custom": settings}]})
}

async fn a_registered_kind_fires_as_it_says(db: TestDb) {
    register();
    let replica = Replica::start(&db).await;
    let wrong = |settings: Value| v1::ApplyRequest {
        jobs: vec![definition(&job("a", &kind(&settings)), "")],
        ..v1::ApplyRequest::default()
    };
    let result = apply(&mut replica.jobs(), wrong(json!({"kind": "pulse", "ms": 5})))
        .await
        .remove(0);
    assert_eq!(
        result.error.map(|error| error.field).as_deref(),
        Some("trigger[0].custom.ms")
    );
    let result = apply(&mut replica.jobs(), wrong(json!({"kind": "puls", "ms": 700})))
        .await
        .remove(0);
    assert!(
        result.error.is_some_and(|error| error.message.contains("pulse")),
        "those that are known are named"
    );
    put(&replica, job("a", &kind(&json!({"kind": "pulse", "ms": 700})))).await;
    assert_eq!(get(&replica, "a").await.triggers[0].kind, "custom");
    let rows = until("it has fired", || async {
        let rows = ledger(&replica, "a").await;
        (rows.len() >= 4).then_some(rows)
    })
    .await;
    // Newest first: one after the other, none left out.
    for pair in rows.windows(2) {
        assert_eq!(pair[0].scheduled_at_ms - pair[1].until_ms, 700, "{rows:?}");
    }
    assert!(rows.iter().all(|row| row.scheduled_at_ms % 700 == 0), "{rows:?}");
    replica.stop().await;
}

async fn a_kind_that_panics_or_goes_back_fails_alone(db: TestDb) {
    register();
    let replica = Replica::start(&db).await;
    let postgres = db.postgres.is_some();
    for (name, settings) in [
        ("panics", json!({"kind": "moody", "panics": true, "postgres": postgres})),
        ("back", json!({"kind": "moody", "postgres": postgres})),
        ("good", json!({"kind": "pulse", "ms": 500})),
    ] {
        put(&replica, job(name, &kind(&settings))).await;
    }
    MOODS[usize::from(postgres)].store(true, Ordering::Relaxed);
    for (name, words) in [("panics", "panicked"), ("back", "must be later")] {
        let status = until("it is in ERROR", || async {
            let status = get(&replica, name).await.triggers.remove(0);
            (status.state == "ERROR").then_some(status)
        })
        .await;
        assert!(status.error.contains(words), "{status:?}");
    }
    let before = ledger(&replica, "good").await.len();
    until("the other one fires on", || async {
        (ledger(&replica, "good").await.len() > before + 1).then_some(())
    })
    .await;
    replica.stop().await;
}

async fn a_registered_route_chooses_the_host(db: TestDb) {
    register();
    let mut config = Replica::config(&db);
    config.timing.lost_after = std::time::Duration::from_secs(600);
    let replica = Replica::start_with(config).await;
    let mut runners = ["a", "the-longest", "b"].map(|name| SimRunner::new(&replica, name, 0));
    for runner in &mut runners {
        runner.idle().await;
    }
    put(&replica, job("j", &json!({"route": "longest_name"}))).await;
    for _ in 0..2 {
        let task = start(&replica, "j").await.task_id;
        assert_eq!(runners[1].take().await.task_id, task);
        let result = runners[1].success(task);
        runners[1].ended(result).await;
    }
    let wrong = v1::ApplyRequest {
        jobs: vec![definition(&job("k", &json!({"route": "shortest_name"})), "")],
        ..v1::ApplyRequest::default()
    };
    let error = apply(&mut replica.jobs(), wrong)
        .await
        .remove(0)
        .error
        .expect("refused");
    assert_eq!(error.field, "route");
    assert!(error.message.contains("longest_name"), "{error:?}");
    replica.stop().await;
}

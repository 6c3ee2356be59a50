//! Times that lie ahead though nothing that is stored can lie there: they were written while the database's clock was wrong, and
//! would be waited for when it is right again. They are moved to where they were meant, seen from now: a wait keeps its length.
//!
//! What somebody asked for by its time (`run_at`, the end of a pause or a cordon) is meant as it is and stays.

use super::db::{Class, Db};
use super::error::StoreError;
use super::sql::Sql;
use systole_shared::policy::clock::CLOCK_TOLERANCE_MS;

/// Rows of one step.
pub const STEP_MAX: u64 = 1_000;

/// So long after now.
macro_rules! after {
    ($ms:literal) => {
        concat!("(SELECT {now} + 0) + CAST(", $ms, " AS BIGINT)")
    };
}
/// The time is that which is believed, and not before it either: everything would lie ahead. `$2`: the latest that is believed, a tolerance
/// after now.
macro_rules! is_believed {
    () => {
        "(SELECT {now} + 0) BETWEEN CAST($2 AS BIGINT) - 120000 AND CAST($2 AS BIGINT)"
    };
}
macro_rules! callbacks {
    ($ms:literal) => {
        concat!("status = 'pending' AND next_at_ms > ", after!($ms))
    };
}
macro_rules! alarms_tried {
    ($ms:literal) => {
        concat!(
            "status IN ('pending', 'held') AND status = 'pending' AND next_at_ms > ",
            after!($ms)
        )
    };
}
macro_rules! alarms_raised {
    ($ms:literal) => {
        concat!("status IN ('pending', 'held') AND raised_at_ms > ", after!($ms))
    };
}
/// Retries, tasks with a delay, and those that were only stamped with their moment (no transaction takes 15 s): not those whose
/// time somebody named. Each spec has the delay of its retries, and one with a second delay its own.
macro_rules! created {
    ($those:literal, $ms:literal) => {
        concat!(
            "status = 1 AND ", $those, " AND run_at_ms > ", after!($ms), " AND created_at_ms > ", after!($ms),
            " AND (retry_of IS NOT NULL OR run_at_ms - created_at_ms <= 15000 OR spec LIKE '%\"delay_ms\":%\"delay_ms\":%')"
        )
    };
}
macro_rules! orphaned {
    ($ms:literal) => {
        concat!(
            "orphaned_at_ms IS NOT NULL AND status IN (3, 4, 9) AND orphaned_at_ms > ",
            after!($ms)
        )
    };
}
macro_rules! triggers {
    ($ms:literal) => {
        concat!(
            "due_ms IS NOT NULL AND due_ms = next_ms AND kind = 'fixed_delay' AND phase = 'waiting' AND due_ms > ",
            after!($ms),
            " AND judged_ms > ",
            after!($ms)
        )
    };
}

/// `$1`: the tolerance; `$2`: the longest wait between two tries of a delivery.
static ANY: Sql = Sql::new(
    "any_ahead",
    concat!(
        "SELECT (EXISTS (SELECT 1 FROM callback WHERE ",
        callbacks!("$2"),
        ") \
           OR EXISTS (SELECT 1 FROM alarm WHERE ",
        alarms_tried!("$2"),
        ") \
           OR EXISTS (SELECT 1 FROM alarm WHERE ",
        alarms_raised!("$1"),
        ") \
           OR EXISTS (SELECT 1 FROM task WHERE ",
        created!("waiting_ms IS NULL", "$1"),
        ") \
           OR EXISTS (SELECT 1 FROM task WHERE ",
        created!("waiting_ms IS NOT NULL", "$1"),
        ") \
           OR EXISTS (SELECT 1 FROM task WHERE ",
        orphaned!("$1"),
        ") \
           OR EXISTS (SELECT 1 FROM job_trigger WHERE ",
        triggers!("$1"),
        ") \
           OR EXISTS (SELECT 1 FROM slot WHERE taken_at_ms > ",
        after!("$1"),
        ") \
           OR EXISTS (SELECT 1 FROM output_fetch WHERE touched_at_ms > ",
        after!("$1"),
        ") \
           OR EXISTS (SELECT 1 FROM runner WHERE seen_ms > ",
        after!("$1"),
        ")) AS found"
    ),
);

/// The steps. `$1`: what lies further ahead than this; `$3`: [`STEP_MAX`].
macro_rules! step {
    ($name:literal, $update:literal, $keys:literal, $close:literal, $($rows:tt)+) => {
        Sql::new(
            $name,
            concat!($update, " AND ", $keys, " WHERE ", $($rows)+, " AND ", is_believed!(), " LIMIT $3 {skip_locked}", $close),
        )
    };
}
static CALLBACKS: Sql = step!(
    "mend_callbacks",
    "UPDATE callback SET next_at_ms = {now} WHERE status = 'pending'",
    "task_id {among_query:SELECT task_id FROM callback",
    "}",
    callbacks!("$1")
);
static ALARMS_TRIED: Sql = step!(
    "mend_alarms_tried",
    "UPDATE alarm SET next_at_ms = {now} WHERE status = 'pending'",
    "id {among_query:SELECT id FROM alarm",
    "}",
    alarms_tried!("$1")
);
static ALARMS_RAISED: Sql = step!(
    "mend_alarms_raised",
    "UPDATE alarm SET next_at_ms = CASE WHEN status = 'held' THEN {now} + next_at_ms - raised_at_ms ELSE {now} END, raised_at_ms = {now} \
     WHERE status IN ('pending', 'held')",
    "id {among_query:SELECT id FROM alarm",
    "}",
    alarms_raised!("$1")
);
static DELAYED: Sql = step!(
    "mend_delayed",
    "UPDATE task SET run_at_ms = {now} + run_at_ms - created_at_ms, created_at_ms = {now} WHERE status + 0 = 1",
    "id {among_query:SELECT id FROM task",
    "}",
    created!("waiting_ms IS NULL", "$1")
);
static WAITING: Sql = step!(
    "mend_waiting",
    "UPDATE task SET run_at_ms = {now} + run_at_ms - created_at_ms, created_at_ms = {now}, waiting_ms = {now} \
     WHERE status + 0 = 1 AND waiting_ms IS NOT NULL",
    "id {among_query:SELECT id FROM task",
    "}",
    created!("waiting_ms IS NOT NULL", "$1")
);
static ORPHANED: Sql = step!(
    "mend_orphaned",
    "UPDATE task SET orphaned_at_ms = {now} WHERE status + 0 IN (3, 4, 9)",
    "id {among_query:SELECT id FROM task",
    "}",
    orphaned!("$1")
);
/// Its next slot lies its delay after now. No slot is passed by that.
static TRIGGERS: Sql = step!(
    "mend_triggers",
    "UPDATE job_trigger SET next_ms = {now} + next_ms - judged_ms, due_ms = {now} + next_ms - judged_ms, judged_ms = {now} \
     WHERE phase = 'waiting'",
    "id {among_query:SELECT id FROM job_trigger",
    "}",
    triggers!("$1")
);
static PLACES: Sql = step!(
    "mend_places",
    "UPDATE slot SET taken_at_ms = {now} WHERE TRUE",
    "(resource, n) IN (SELECT resource, n FROM slot",
    ")",
    "taken_at_ms > ",
    after!("$1")
);
static FETCHES: Sql = step!(
    "mend_fetches",
    "UPDATE output_fetch SET touched_at_ms = {now} WHERE TRUE",
    "id {among_query:SELECT id FROM output_fetch",
    "}",
    "touched_at_ms > ",
    after!("$1")
);
/// Of a runner that beats the next beat says more. One that is dead is silent from now on, by the database's clock.
static RUNNERS: Sql = step!(
    "mend_runners",
    "UPDATE runner SET seen_ms = {now} WHERE TRUE",
    "(host, slot) IN (SELECT host, slot FROM runner",
    ")",
    "seen_ms > ",
    after!("$1")
);

pub static STATEMENTS: &[&Sql] = &[
    &ANY,
    &CALLBACKS,
    &ALARMS_TRIED,
    &ALARMS_RAISED,
    &DELAYED,
    &WAITING,
    &ORPHANED,
    &TRIGGERS,
    &PLACES,
    &FETCHES,
    &RUNNERS,
];

/// What may lie ahead.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    pub what: &'static str,
    sql: &'static Sql,
    /// Told by the longest wait between two tries, since nothing says when it was written.
    by_wait: bool,
}

const fn kind(what: &'static str, sql: &'static Sql) -> Kind {
    Kind {
        what,
        sql,
        by_wait: false,
    }
}

/// All of it; what was raised before what was tried, so that a silence keeps its length.
pub static KINDS: &[Kind] = &[
    kind("runners", &RUNNERS),
    kind("orphaned tasks", &ORPHANED),
    kind("delayed tasks", &DELAYED),
    kind("waiting tasks", &WAITING),
    kind("triggers", &TRIGGERS),
    kind("places", &PLACES),
    kind("alarms", &ALARMS_RAISED),
    Kind {
        by_wait: true,
        ..kind("tries of alarms", &ALARMS_TRIED)
    },
    Kind {
        by_wait: true,
        ..kind("callbacks", &CALLBACKS)
    },
    kind("fetches of output", &FETCHES),
];

#[derive(sqlx::FromRow)]
struct Found {
    found: bool,
}

fn bound_ms(by_wait: bool, longest_ms: i64) -> i64 {
    if by_wait {
        longest_ms.saturating_add(CLOCK_TOLERANCE_MS)
    } else {
        CLOCK_TOLERANCE_MS
    }
}

impl Db {
    /// Without a write, so that an idle database stays idle. `longest_ms`: between two tries of a delivery.
    pub async fn any_ahead(&self, longest_ms: i64) -> Result<bool, StoreError> {
        let row: Found = self
            .read("any_ahead", move |tx| {
                let args = vec![bound_ms(false, 0).into(), bound_ms(true, longest_ms).into()];
                Box::pin(async move { tx.one(&ANY, args).await })
            })
            .await?;
        Ok(row.found)
    }

    /// One step; returns how many rows it moved. What somebody has in hand is left to him: he writes another time.
    pub async fn mend_ahead(&self, kind: Kind, until_ms: i64, longest_ms: i64) -> Result<u64, StoreError> {
        self.write("mend_ahead", Class::Api, move |tx| {
            let limit = i64::try_from(STEP_MAX).unwrap_or(i64::MAX);
            let args = vec![bound_ms(kind.by_wait, longest_ms).into(), until_ms.into(), limit.into()];
            Box::pin(async move { tx.exec(kind.sql, args).await })
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_guard_of_a_step_is_the_tolerance_to_both_sides() {
        assert_eq!(CLOCK_TOLERANCE_MS * 2, 120_000);
        assert!(KINDS.iter().all(|kind| kind.sql.text().contains("- 120000 AND")));
    }
}

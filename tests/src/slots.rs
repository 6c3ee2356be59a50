//! Whether every slot of every trigger has exactly one verdict: the ledger as it is stored, against the slots that the schedules say.

use crate::TestDb;
use std::collections::{BTreeMap, HashMap, HashSet};
use systole_shared::trigger::custom::Registry;
use systole_shared::trigger::definition::{Environment, TriggerSpec};
use systole_shared::trigger::zone::Zone;

/// A row of the ledger.
#[derive(Clone, Debug)]
pub struct Row {
    pub trigger_id: i64,
    pub from_ms: i64,
    pub to_ms: i64,
    pub fires: usize,
    pub verdict: String,
    pub reason: String,
    pub into_ms: i64,
    pub task_id: i64,
}

/// What was looked at.
#[derive(Debug, Default)]
pub struct Checked {
    pub slots: usize,
    pub fired: usize,
    /// Slots that did not fire by themselves.
    pub others: usize,
}

fn number(text: &str) -> i64 {
    text.parse().unwrap_or_else(|_| panic!("a number: {text:?}"))
}

pub fn ledger(db: &TestDb) -> HashMap<i64, Vec<Row>> {
    let text = db.sql(
        "SELECT trigger_id || '|' || scheduled_ms || '|' || until_ms || '|' || fires || '|' || verdict || '|' || reason || '|' || \
           COALESCE(into_ms, 0) || '|' || COALESCE(task_id, 0) FROM occurrence WHERE trigger_id IS NOT NULL AND parent_root = 0 \
           ORDER BY trigger_id, scheduled_ms",
    );
    let mut found: HashMap<i64, Vec<Row>> = HashMap::new();
    for line in text.lines() {
        let fields: Vec<&str> = line.split('|').collect();
        let row = Row {
            trigger_id: number(fields[0]),
            from_ms: number(fields[1]),
            to_ms: number(fields[2]),
            fires: fields[3].parse().expect("a number"),
            verdict: fields[4].into(),
            reason: fields[5].into(),
            into_ms: number(fields[6]),
            task_id: number(fields[7]),
        };
        found.entry(row.trigger_id).or_default().push(row);
    }
    found
}

/// Looks at all triggers with times of their own, and their slots up to this instant, which all must have been judged.
pub fn check(db: &TestDb, until_ms: i64) -> Checked {
    let ledger = ledger(db);
    let mut checked = Checked::default();
    let triggers = db.sql(
        "SELECT t.id || '|' || j.name || '|' || t.created_at_ms || '|' || t.definition FROM job_trigger AS t JOIN job AS j ON j.id = t.job_id",
    );
    for line in triggers.lines() {
        let fields: Vec<&str> = line.splitn(4, '|').collect();
        let (id, name, created_ms) = (number(fields[0]), fields[1], number(fields[2]));
        let spec: TriggerSpec = serde_json::from_str(fields[3]).expect("a definition");
        let trigger = spec
            .compile(&Environment {
                job: name,
                created_ms,
                default_zone: &Zone::utc(),
                calendars: &BTreeMap::new(),
                registry: &Registry::built_in(),
            })
            .expect("a trigger");
        let mut at = trigger.first_cursor(created_ms).expect("it goes forward").judged_ms;
        let mut slots = Vec::new();
        while let Some(slot) = trigger
            .next_after(at)
            .expect("it goes forward")
            .filter(|&slot| slot <= until_ms)
        {
            slots.push(slot);
            at = slot;
        }
        let nothing = Vec::new();
        let rows = ledger.get(&id).unwrap_or(&nothing);
        for slot in &slots {
            let verdicts: Vec<&Row> = rows
                .iter()
                .filter(|row| row.from_ms <= *slot && *slot <= row.to_ms)
                .collect();
            assert_eq!(
                verdicts.len(),
                1,
                "{name}: slot {slot} of {} to {until_ms}: {verdicts:?}",
                slots[0]
            );
        }
        let mut tasks = HashSet::new();
        for row in rows.iter().filter(|row| row.to_ms <= until_ms) {
            let inside = slots
                .iter()
                .filter(|slot| (row.from_ms..=row.to_ms).contains(*slot))
                .count();
            assert_eq!(row.fires, inside, "{name}: {row:?}");
            if row.verdict == "fired" {
                assert!(row.task_id != 0 && tasks.insert(row.task_id), "{name}: {row:?}");
                checked.fired += 1;
            } else {
                checked.others += row.fires;
            }
            if row.verdict == "coalesced" {
                let into = rows
                    .iter()
                    .find(|other| other.from_ms == row.into_ms)
                    .expect("what it went into");
                // It was to fire for them; its job may have had no room for it.
                let no_room = matches!(into.reason.as_str(), "blocked" | "backlog_full" | "discarded");
                assert!(into.verdict == "fired" || no_room, "{name}: {row:?} {into:?}");
            }
        }
        checked.slots += slots.len();
    }
    // Verdicts without their task, tasks without their verdict, slots with two tasks.
    let wrong = db.sql(
        "SELECT (SELECT count(*) FROM occurrence AS o WHERE o.verdict = 'fired' AND o.trigger_id IS NOT NULL AND NOT EXISTS \
             (SELECT 1 FROM task AS t WHERE t.id = o.task_id AND t.trigger_id = o.trigger_id AND t.scheduled_ms = o.scheduled_ms)) || '|' || \
           (SELECT count(*) FROM task AS t WHERE t.trigger_id IS NOT NULL AND t.retry_of IS NULL AND t.set_id IS NULL AND t.status <> 8 \
             AND NOT EXISTS (SELECT 1 FROM occurrence AS o WHERE o.task_id = t.id AND o.verdict = 'fired')) || '|' || \
           (SELECT count(*) FROM (SELECT trigger_id FROM task WHERE trigger_id IS NOT NULL AND retry_of IS NULL AND set_id IS NULL \
             GROUP BY trigger_id, scheduled_ms HAVING count(*) > 1) AS x)",
    );
    assert_eq!(wrong, "0|0|0");
    checked
}

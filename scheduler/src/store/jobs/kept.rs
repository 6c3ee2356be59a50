//! Calendars and concurrency groups: what several jobs share.

use super::super::db::{Tx, batch};
use super::super::error::StoreError;
use super::super::sql::Sql;
use super::NameJson;

static CALENDARS: Sql = Sql::new(
    "calendars",
    "SELECT name, version, definition, ics, changed_at_ms, changed_by FROM calendar ORDER BY name LIMIT 1000",
);
static CALENDARS_BY_NAME: Sql = Sql::new(
    "calendars_by_name",
    "SELECT c.name, c.version, c.definition, c.ics, c.changed_at_ms, c.changed_by FROM calendar AS c \
     JOIN {each:$1} ON {is:c.name,e.value->>'name'} ORDER BY c.name",
);
static PUT_CALENDAR: Sql = Sql::new(
    "put_calendar",
    "INSERT INTO calendar (name, version, definition, ics, changed_at_ms, changed_by) VALUES ($1, 1, $2, $3, {now}, $4) \
     ON CONFLICT (name) DO UPDATE SET version = calendar.version + 1, definition = excluded.definition, ics = excluded.ics, \
       changed_at_ms = excluded.changed_at_ms, changed_by = excluded.changed_by WHERE calendar.version = $5",
);
static GROUPS: Sql = Sql::new(
    "groups",
    "SELECT name, version, places, changed_at_ms, changed_by FROM concurrency_group ORDER BY name LIMIT 1000",
);
static LOCK_GROUPS: Sql = Sql::new(
    "lock_groups",
    "SELECT g.name, g.version, g.places, g.changed_at_ms, g.changed_by FROM concurrency_group AS g JOIN {each:$1} ON {is:g.name,e.value->>'name'} \
     ORDER BY g.name {for_update_of:g}",
);
static LOCK_CALENDARS: Sql = Sql::new(
    "lock_calendars",
    "SELECT c.name, c.version, c.definition, c.ics, c.changed_at_ms, c.changed_by FROM calendar AS c \
     JOIN {each:$1} ON {is:c.name,e.value->>'name'} ORDER BY c.name {for_update_of:c}",
);
/// Those that leave out times by calendars.
static WITH_CALENDARS: Sql = Sql::new(
    "triggers_with_calendars",
    "SELECT j.name AS job, t.name, t.definition FROM job_trigger AS t JOIN job AS j ON j.id = t.job_id \
     WHERE t.definition LIKE '%\"exclude_calendars\"%' ORDER BY j.name, t.name",
);
static IN_GROUP: Sql = Sql::new(
    "jobs_in_group",
    "SELECT name FROM job WHERE concurrency_group = $1 ORDER BY name LIMIT 10000",
);
static DELETE_CALENDAR: Sql = Sql::new("delete_calendar", "DELETE FROM calendar WHERE name = $1");
static DELETE_GROUP: Sql = Sql::new("delete_group", "DELETE FROM concurrency_group WHERE name = $1");
static PUT_GROUP: Sql = Sql::new(
    "put_group",
    "INSERT INTO concurrency_group (name, version, places, changed_at_ms, changed_by) VALUES ($1, 1, $2, {now}, $3) \
     ON CONFLICT (name) DO UPDATE SET version = concurrency_group.version + 1, places = excluded.places, changed_at_ms = excluded.changed_at_ms, \
       changed_by = excluded.changed_by WHERE concurrency_group.version = $4",
);

pub static STATEMENTS: &[&Sql] = &[
    &CALENDARS,
    &CALENDARS_BY_NAME,
    &PUT_CALENDAR,
    &GROUPS,
    &LOCK_GROUPS,
    &LOCK_CALENDARS,
    &WITH_CALENDARS,
    &IN_GROUP,
    &DELETE_CALENDAR,
    &DELETE_GROUP,
    &PUT_GROUP,
];

#[derive(Clone, Debug, sqlx::FromRow)]
pub struct CalendarRow {
    pub name: String,
    pub version: i64,
    pub definition: String,
    pub ics: Option<String>,
    pub changed_at_ms: i64,
    pub changed_by: String,
}

#[derive(Clone, Debug, sqlx::FromRow)]
pub struct GroupRow {
    pub name: String,
    pub version: i64,
    pub places: i64,
    pub changed_at_ms: i64,
    pub changed_by: String,
}

pub async fn calendars(tx: &mut Tx) -> Result<Vec<CalendarRow>, StoreError> {
    tx.all(&CALENDARS, vec![]).await
}

pub async fn calendars_by_name(tx: &mut Tx, names: &[&str]) -> Result<Vec<CalendarRow>, StoreError> {
    if names.is_empty() {
        return Ok(Vec::new());
    }
    tx.all(&CALENDARS_BY_NAME, vec![super::names_json(names)?]).await
}

/// Over this version, 0: there is none.
pub async fn put_calendar(
    tx: &mut Tx,
    name: &str,
    definition: &str,
    ics: Option<String>,
    by: &str,
    version: i64,
) -> Result<(), StoreError> {
    let args = vec![name.into(), definition.into(), ics.into(), by.into(), version.into()];
    expect_one(tx.exec(&PUT_CALENDAR, args).await?, name)
}

/// Nothing was written, since somebody else was faster: again from the beginning.
fn expect_one(written: u64, name: &str) -> Result<(), StoreError> {
    match written {
        1 => Ok(()),
        _ => Err(StoreError::Collision(format!("{name} is stored by somebody else"))),
    }
}

pub async fn groups(tx: &mut Tx) -> Result<Vec<GroupRow>, StoreError> {
    tx.all(&GROUPS, vec![]).await
}

/// Reads and locks groups, in the order of their names; before the jobs in them.
pub async fn lock_groups(tx: &mut Tx, names: &[String]) -> Result<Vec<GroupRow>, StoreError> {
    if names.is_empty() {
        return Ok(Vec::new());
    }
    let names: Vec<NameJson<'_>> = names.iter().map(|name| NameJson { name }).collect();
    tx.all(&LOCK_GROUPS, vec![batch(&names)?]).await
}

/// Over this version, 0: there is none.
pub async fn put_group(tx: &mut Tx, name: &str, places: i64, by: &str, version: i64) -> Result<(), StoreError> {
    let args = vec![name.into(), places.into(), by.into(), version.into()];
    expect_one(tx.exec(&PUT_GROUP, args).await?, name)
}

/// Reads and locks calendars, in the order of their names; after triggers, before jobs.
pub async fn lock_calendars(tx: &mut Tx, names: &[&str]) -> Result<Vec<CalendarRow>, StoreError> {
    if names.is_empty() {
        return Ok(Vec::new());
    }
    tx.all(&LOCK_CALENDARS, vec![super::names_json(names)?]).await
}

/// A trigger that leaves out times by calendars.
#[derive(Clone, Debug, sqlx::FromRow)]
pub struct WithCalendars {
    pub job: String,
    pub name: String,
    pub definition: String,
}

pub async fn triggers_with_calendars(tx: &mut Tx) -> Result<Vec<WithCalendars>, StoreError> {
    tx.all(&WITH_CALENDARS, vec![]).await
}

#[derive(sqlx::FromRow)]
struct OnlyName {
    name: String,
}

/// At most 10,000, by name.
pub async fn jobs_in_group(tx: &mut Tx, group: &str) -> Result<Vec<String>, StoreError> {
    let rows: Vec<OnlyName> = tx.all(&IN_GROUP, vec![group.into()]).await?;
    Ok(rows.into_iter().map(|row| row.name).collect())
}

pub async fn delete_calendar(tx: &mut Tx, name: &str) -> Result<(), StoreError> {
    tx.exec(&DELETE_CALENDAR, vec![name.into()]).await.map(drop)
}

pub async fn delete_group(tx: &mut Tx, name: &str) -> Result<(), StoreError> {
    tx.exec(&DELETE_GROUP, vec![name.into()]).await.map(drop)
}

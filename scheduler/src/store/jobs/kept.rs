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
       changed_at_ms = excluded.changed_at_ms, changed_by = excluded.changed_by",
);
static GROUPS: Sql = Sql::new(
    "groups",
    "SELECT name, places, changed_at_ms, changed_by FROM concurrency_group ORDER BY name LIMIT 1000",
);
static GROUP: Sql = Sql::new(
    "group",
    "SELECT name, places, changed_at_ms, changed_by FROM concurrency_group WHERE name = $1",
);
static LOCK_GROUPS: Sql = Sql::new(
    "lock_groups",
    "SELECT g.name, g.places, g.changed_at_ms, g.changed_by FROM concurrency_group AS g JOIN {each:$1} ON {is:g.name,e.value->>'name'} \
     ORDER BY g.name {for_update_of:g}",
);
static PUT_GROUP: Sql = Sql::new(
    "put_group",
    "INSERT INTO concurrency_group (name, places, changed_at_ms, changed_by) VALUES ($1, $2, {now}, $3) \
     ON CONFLICT (name) DO UPDATE SET places = excluded.places, changed_at_ms = excluded.changed_at_ms, \
       changed_by = excluded.changed_by",
);

pub static STATEMENTS: &[&Sql] = &[
    &CALENDARS,
    &CALENDARS_BY_NAME,
    &PUT_CALENDAR,
    &GROUPS,
    &GROUP,
    &LOCK_GROUPS,
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

pub async fn put_calendar(
    tx: &mut Tx,
    name: &str,
    definition: &str,
    ics: Option<String>,
    by: &str,
) -> Result<(), StoreError> {
    let args = vec![name.into(), definition.into(), ics.into(), by.into()];
    tx.exec(&PUT_CALENDAR, args).await.map(drop)
}

pub async fn groups(tx: &mut Tx) -> Result<Vec<GroupRow>, StoreError> {
    tx.all(&GROUPS, vec![]).await
}

pub async fn group(tx: &mut Tx, name: &str) -> Result<Option<GroupRow>, StoreError> {
    tx.opt(&GROUP, vec![name.into()]).await
}

/// Reads and locks groups, in the order of their names; before the jobs in them.
pub async fn lock_groups(tx: &mut Tx, names: &[String]) -> Result<Vec<GroupRow>, StoreError> {
    if names.is_empty() {
        return Ok(Vec::new());
    }
    let names: Vec<NameJson<'_>> = names.iter().map(|name| NameJson { name }).collect();
    tx.all(&LOCK_GROUPS, vec![batch(&names)?]).await
}

pub async fn put_group(tx: &mut Tx, name: &str, places: i64, by: &str) -> Result<(), StoreError> {
    tx.exec(&PUT_GROUP, vec![name.into(), places.into(), by.into()])
        .await
        .map(drop)
}

//! Requests for output that only a runner has, on their way to it, and its bytes on their way back. Whoever asks may talk
//! to another replica than the runner, so both lie in the database: a row for each reader, and a few pieces in front of it.

use super::db::{Class, Db, Tx};
use super::error::StoreError;
use super::output::Stream;
use super::sql::Sql;
use std::sync::Arc;

static FORGOTTEN: Sql = Sql::new(
    "fetch_forgotten",
    "SELECT id FROM output_fetch WHERE touched_at_ms < {now} - $1 ORDER BY id LIMIT 100",
);
static COUNT: Sql = Sql::new("fetch_count", "SELECT count(*) AS n FROM output_fetch");
static ASK: Sql = Sql::new(
    "fetch_ask",
    "INSERT INTO output_fetch (task_id, host, stream, start_byte, end_byte, touched_at_ms) \
     VALUES ($1, $2, CAST($3 AS SMALLINT), $4, $5, {now}) RETURNING id AS n",
);
static HOSTS: Sql = Sql::new(
    "fetch_hosts",
    "SELECT DISTINCT host FROM output_fetch WHERE taken = FALSE ORDER BY host LIMIT 1000",
);
static TAKE: Sql = Sql::new(
    "fetch_take",
    "UPDATE output_fetch SET taken = TRUE, touched_at_ms = {now} WHERE taken = FALSE AND id = (SELECT id FROM output_fetch \
       WHERE host = $1 AND taken = FALSE ORDER BY id LIMIT 1) RETURNING id, task_id, stream, start_byte, end_byte",
);
static OPEN: Sql = Sql::new(
    "fetch_open",
    "SELECT id AS n FROM output_fetch WHERE id = $1 AND host = $2 {for_update}",
);
static WAITING: Sql = Sql::new(
    "fetch_waiting",
    "SELECT count(*) AS n FROM output_fetch_chunk WHERE fetch_id = $1",
);
static PUT: Sql = Sql::new(
    "fetch_put",
    "INSERT INTO output_fetch_chunk (fetch_id, start_byte, data) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING",
);
static FAIL: Sql = Sql::new("fetch_fail", "UPDATE output_fetch SET error = $2 WHERE id = $1");
static STATE: Sql = Sql::new("fetch_state", "SELECT taken, error FROM output_fetch WHERE id = $1");
static NEXT: Sql = Sql::new(
    "fetch_next",
    "SELECT start_byte, data FROM output_fetch_chunk WHERE fetch_id = $1 ORDER BY start_byte LIMIT 4",
);
static CONSUME: Sql = Sql::new(
    "fetch_consume",
    "DELETE FROM output_fetch_chunk WHERE fetch_id = $1 AND start_byte <= $2",
);
static TOUCH: Sql = Sql::new(
    "fetch_touch",
    "UPDATE output_fetch SET touched_at_ms = {now} WHERE id = $1",
);
static DROP_CHUNKS: Sql = Sql::new(
    "fetch_drop_chunks",
    "DELETE FROM output_fetch_chunk WHERE fetch_id = $1",
);
static DROP: Sql = Sql::new("fetch_drop", "DELETE FROM output_fetch WHERE id = $1");

pub static STATEMENTS: &[&Sql] = &[
    &FORGOTTEN,
    &COUNT,
    &ASK,
    &HOSTS,
    &TAKE,
    &OPEN,
    &WAITING,
    &PUT,
    &FAIL,
    &STATE,
    &NEXT,
    &CONSUME,
    &TOUCH,
    &DROP_CHUNKS,
    &DROP,
];

/// Readers of full outputs at once, in the whole cluster.
const FETCHES_MAX: i64 = 32;
/// Pieces that lie in front of one reader.
const WAITING_MAX: i64 = 8;
/// A request that its reader has not touched for this long is left over from a replica that died, ms.
const FORGOTTEN_MS: i64 = 120_000;

#[derive(sqlx::FromRow)]
struct Number {
    n: i64,
}

#[derive(sqlx::FromRow)]
struct OnlyId {
    id: i64,
}

#[derive(sqlx::FromRow)]
struct OnlyHost {
    host: String,
}

/// What a host is asked for.
#[derive(Clone, Debug, PartialEq, Eq, sqlx::FromRow)]
pub struct Order {
    pub id: i64,
    pub task_id: i64,
    pub stream: i16,
    pub start_byte: i64,
    pub end_byte: i64,
}

#[derive(sqlx::FromRow)]
struct StateRow {
    taken: bool,
    error: Option<String>,
}

#[derive(sqlx::FromRow)]
struct ChunkRow {
    start_byte: i64,
    data: Vec<u8>,
}

/// What has come for a reader.
#[derive(Clone, Debug, Default)]
pub struct Come {
    /// The host has the request.
    pub taken: bool,
    pub error: Option<String>,
    /// In order, with their offsets.
    pub pieces: Vec<(u64, Vec<u8>)>,
}

/// What becomes of a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Put {
    Taken,
    /// The reader is slow: the same again later.
    Wait,
    /// Nobody reads any more.
    Gone,
}

fn unsigned(n: i64) -> u64 {
    u64::try_from(n).unwrap_or(0)
}

fn signed(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

pub(super) async fn read_asked(tx: &mut Tx) -> Result<Vec<String>, StoreError> {
    let rows: Vec<OnlyHost> = tx.all(&HOSTS, vec![]).await?;
    Ok(rows.into_iter().map(|row| row.host).collect())
}

impl Db {
    /// Asks a host for these bytes. `None`: too many readers.
    pub async fn ask_fetch(
        &self,
        task_id: i64,
        host: String,
        stream: Stream,
        range: std::ops::Range<u64>,
    ) -> Result<Option<i64>, StoreError> {
        self.write("fetch", Class::Api, move |tx| {
            let (host, range) = (host.clone(), range.clone());
            Box::pin(async move {
                let forgotten: Vec<OnlyId> = tx.all(&FORGOTTEN, vec![FORGOTTEN_MS.into()]).await?;
                for row in forgotten {
                    tx.exec(&DROP_CHUNKS, vec![row.id.into()]).await?;
                    tx.exec(&DROP, vec![row.id.into()]).await?;
                }
                let count: Number = tx.one(&COUNT, vec![]).await?;
                if count.n >= FETCHES_MAX {
                    return Ok(None);
                }
                let args = vec![
                    task_id.into(),
                    host.into(),
                    stream.number().into(),
                    signed(range.start).into(),
                    signed(range.end).into(),
                ];
                Ok(Some(tx.one::<Number>(&ASK, args).await?.n))
            })
        })
        .await
    }

    /// Hosts that are asked for something and have not taken it yet.
    pub async fn asked_hosts(&self) -> Result<Vec<String>, StoreError> {
        self.read("fetch", |tx| Box::pin(read_asked(tx))).await
    }

    /// Gives the host the oldest request that it has not taken yet.
    pub async fn take_fetch(&self, host: String) -> Result<Option<Order>, StoreError> {
        self.write("fetch", Class::Api, move |tx| {
            let host = host.clone();
            Box::pin(async move { tx.opt(&TAKE, vec![host.into()]).await })
        })
        .await
    }

    /// A piece from the host; or why there will be none.
    pub async fn put_fetched(
        &self,
        id: i64,
        host: String,
        offset: u64,
        data: Arc<Vec<u8>>,
        error: String,
    ) -> Result<Put, StoreError> {
        self.write("fetch", Class::Api, move |tx| {
            let (host, data, error) = (host.clone(), Arc::clone(&data), error.clone());
            Box::pin(async move {
                let open: Option<Number> = tx.opt(&OPEN, vec![id.into(), host.into()]).await?;
                if open.is_none() {
                    return Ok(Put::Gone);
                }
                if !error.is_empty() {
                    tx.exec(&FAIL, vec![id.into(), error.into()]).await?;
                    return Ok(Put::Taken);
                }
                let waiting: Number = tx.one(&WAITING, vec![id.into()]).await?;
                if waiting.n >= WAITING_MAX {
                    return Ok(Put::Wait);
                }
                let args = vec![id.into(), signed(offset).into(), data.as_ref().clone().into()];
                tx.exec(&PUT, args).await?;
                Ok(Put::Taken)
            })
        })
        .await
    }

    /// What has come for a reader, without taking it away. `None`: the request is gone.
    pub async fn look_fetched(&self, id: i64) -> Result<Option<Come>, StoreError> {
        self.read("fetch", move |tx| {
            Box::pin(async move {
                // State before pieces: those that came before an error are then seen.
                let Some(state) = tx.opt::<StateRow>(&STATE, vec![id.into()]).await? else {
                    return Ok(None);
                };
                let rows: Vec<ChunkRow> = tx.all(&NEXT, vec![id.into()]).await?;
                Ok(Some(Come {
                    taken: state.taken,
                    error: state.error,
                    pieces: rows
                        .into_iter()
                        .map(|row| (unsigned(row.start_byte), row.data))
                        .collect(),
                }))
            })
        })
        .await
    }

    /// The reader has everything up to the piece at this offset.
    pub async fn consume_fetched(&self, id: i64, offset: u64) -> Result<(), StoreError> {
        self.write("fetch", Class::Api, move |tx| {
            Box::pin(async move {
                tx.exec(&CONSUME, vec![id.into(), signed(offset).into()]).await?;
                tx.exec(&TOUCH, vec![id.into()]).await.map(drop)
            })
        })
        .await
    }

    /// The reader is served, or gone.
    pub async fn end_fetch(&self, id: i64) -> Result<(), StoreError> {
        self.write("fetch", Class::Api, move |tx| {
            Box::pin(async move {
                tx.exec(&DROP_CHUNKS, vec![id.into()]).await?;
                tx.exec(&DROP, vec![id.into()]).await.map(drop)
            })
        })
        .await
    }
}

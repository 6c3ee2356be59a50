//! Output: bytes by offset. Storing the same bytes again changes nothing.

use super::db::{Class, Db, Tx};
use super::error::StoreError;
use super::sql::Sql;
use std::sync::Arc;
use systole_shared::limits::{OUTPUT_MAX_BYTES_DEFAULT, OUTPUT_MAX_BYTES_MAX, OUTPUT_MAX_BYTES_MIN};
use systole_shared::task::output::{Stored, place};

static STORED: Sql = Sql::new(
    "output_stored",
    "SELECT stored_bytes, total_bytes, gap_start, gap_bytes FROM output WHERE task_id = $1 AND stream = CAST($2 AS SMALLINT) {for_update}",
);
static PUT_CHUNK: Sql = Sql::new(
    "put_chunk",
    "INSERT INTO output_chunk (task_id, stream, start_byte, data, seen_at_ms) \
     VALUES ($1, CAST($2 AS SMALLINT), $3, $4, {now} - $5) ON CONFLICT DO NOTHING",
);
static BEGIN_STREAM: Sql = Sql::new(
    "begin_stream",
    "INSERT INTO output (task_id, stream, stored_bytes) VALUES ($1, CAST($2 AS SMALLINT), 0) ON CONFLICT DO NOTHING",
);
static PUT_STORED: Sql = Sql::new(
    "put_stored",
    "INSERT INTO output (task_id, stream, stored_bytes, total_bytes, gap_start, gap_bytes) \
     VALUES ($1, CAST($2 AS SMALLINT), $3, $4, $5, $6) \
     ON CONFLICT (task_id, stream) DO UPDATE SET stored_bytes = excluded.stored_bytes, \
       total_bytes = COALESCE(excluded.total_bytes, output.total_bytes), gap_start = excluded.gap_start, \
       gap_bytes = excluded.gap_bytes",
);
/// What lies wholly in the gap. A chunk at its edge stays: what of it is not to be read, the row of the stream says.
static SHED_CHUNKS: Sql = Sql::new(
    "shed_chunks",
    "DELETE FROM output_chunk WHERE task_id = $1 AND stream = CAST($2 AS SMALLINT) AND start_byte >= $3 AND start_byte < $4 \
       AND start_byte + length(data) <= $4",
);
static OUTPUT_MAX: Sql = Sql::new("output_max", "SELECT id, output_max_bytes FROM task WHERE id = $1");
static TASK_OF_HOST: Sql = Sql::new(
    "task_of_host",
    "SELECT id, output_max_bytes FROM task WHERE id = $1 AND host = $2",
);
static READ_CHUNKS: Sql = Sql::new(
    "read_chunks",
    "SELECT start_byte, data, seen_at_ms FROM output_chunk WHERE task_id = $1 AND stream = CAST($2 AS SMALLINT) AND start_byte > $3 \
     ORDER BY start_byte LIMIT $4",
);
/// Nearly always the last one that begins at or before the byte; only where a tail was filled in do chunks overlap.
static CHUNK_AT: Sql = Sql::new(
    "chunk_at",
    "SELECT start_byte, data, seen_at_ms FROM output_chunk WHERE task_id = $1 AND stream = CAST($2 AS SMALLINT) AND start_byte <= $3 \
       AND start_byte + length(data) > $3 ORDER BY start_byte DESC LIMIT 1",
);
static SEEN_SINCE: Sql = Sql::new(
    "seen_since",
    "SELECT min(start_byte) AS n FROM output_chunk WHERE task_id = $1 AND stream = CAST($2 AS SMALLINT) AND seen_at_ms >= $3",
);
static SIZES: Sql = Sql::new(
    "output_sizes",
    "SELECT stream, stored_bytes, total_bytes, gap_start, gap_bytes FROM output WHERE task_id = $1 ORDER BY stream",
);
static TOTAL: Sql = Sql::new(
    "output_total",
    "SELECT CAST(COALESCE(sum(stored_bytes), 0) AS BIGINT) AS bytes FROM output",
);

pub static STATEMENTS: &[&Sql] = &[
    &STORED,
    &PUT_CHUNK,
    &BEGIN_STREAM,
    &PUT_STORED,
    &SHED_CHUNKS,
    &OUTPUT_MAX,
    &TASK_OF_HOST,
    &READ_CHUNKS,
    &CHUNK_AT,
    &SEEN_SINCE,
    &SIZES,
    &TOTAL,
];

/// Chunks that one read returns at most.
const CHUNKS_PER_READ_MAX: i64 = 16;

/// The two streams of a child, as they are numbered in the contract and in the database.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stream {
    Stdout = 1,
    Stderr = 2,
}

impl Stream {
    pub fn number(self) -> i64 {
        self as i64
    }

    pub fn from_number(number: i32) -> Option<Self> {
        match number {
            1 => Some(Self::Stdout),
            2 => Some(Self::Stderr),
            _ => None,
        }
    }
}

#[derive(Clone, Debug)]
pub struct Chunk {
    pub task_id: i64,
    pub stream: Stream,
    pub start: u64,
    /// How long ago its bytes were seen first.
    pub age_ms: i64,
    pub data: Vec<u8>,
}

/// Which bytes of a stream are stored, and how long it is once that is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Size {
    pub stored: Stored,
    pub total: Option<u64>,
}

#[derive(sqlx::FromRow)]
struct SizeRow {
    stored_bytes: i64,
    total_bytes: Option<i64>,
    gap_start: i64,
    gap_bytes: i64,
}

impl SizeRow {
    fn size(&self) -> Size {
        let gap_start = unsigned(self.gap_start);
        Size {
            stored: Stored {
                gap_start,
                gap_end: gap_start + unsigned(self.gap_bytes),
                end: unsigned(self.stored_bytes.saturating_add(self.gap_bytes)),
            },
            total: self.total_bytes.map(unsigned),
        }
    }
}

#[derive(sqlx::FromRow)]
struct StreamSizeRow {
    stream: i16,
    #[sqlx(flatten)]
    size: SizeRow,
}

#[derive(sqlx::FromRow)]
struct ChunkRow {
    start_byte: i64,
    data: Vec<u8>,
    seen_at_ms: Option<i64>,
}

#[derive(sqlx::FromRow)]
struct Number {
    n: Option<i64>,
}

/// Bytes of a stream, and when they were seen first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    pub data: Vec<u8>,
    pub seen_at_ms: Option<i64>,
}

#[derive(sqlx::FromRow)]
struct TaskLimit {
    #[expect(dead_code, reason = "without it a row of nothing but NULL is no row")]
    id: i64,
    output_max_bytes: Option<i64>,
}

impl TaskLimit {
    fn max(&self) -> u64 {
        self.output_max_bytes.map_or(OUTPUT_MAX_BYTES_DEFAULT, unsigned)
    }
}

#[derive(sqlx::FromRow)]
struct Bytes {
    bytes: i64,
}

fn unsigned(n: i64) -> u64 {
    u64::try_from(n).unwrap_or(0)
}

fn signed(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

/// What an upload is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Upload {
    Stored(Stored),
    /// No such task.
    NoTask,
}

/// The limit of the task of a piece.
#[derive(Clone, Copy, Debug)]
pub enum Max {
    Known(u64),
    /// Looked up when it matters: small output is always within it.
    Unknown,
}

/// Stores what of a piece is to be stored (see [`place`]). `total` is the length of the stream once the child has ended.
pub async fn append(tx: &mut Tx, chunk: &Chunk, max: Max, total: Option<u64>) -> Result<Stored, StoreError> {
    let (task_id, stream) = (chunk.task_id, chunk.stream);
    let key = || vec![task_id.into(), stream.number().into()];
    let mut row: Option<SizeRow> = tx.opt(&STORED, key()).await?;
    if row.is_none() {
        // Made first and then locked: an upload and a result may bring the same bytes at once.
        tx.exec(&BEGIN_STREAM, key()).await?;
        row = tx.opt(&STORED, key()).await?;
    }
    let before = row.map(|row| row.size()).unwrap_or_default();
    let end = chunk.start.saturating_add(chunk.data.len() as u64);
    let max = match max {
        Max::Known(max) => max,
        Max::Unknown if end <= OUTPUT_MAX_BYTES_MIN => OUTPUT_MAX_BYTES_MAX,
        Max::Unknown => {
            let task: Option<TaskLimit> = tx.opt(&OUTPUT_MAX, vec![task_id.into()]).await?;
            task.map_or(OUTPUT_MAX_BYTES_DEFAULT, |task| task.max())
        }
    };
    let placed = place(before.stored, max, chunk.start..end);
    if let Some(write) = placed.write {
        let at = |offset: u64| usize::try_from(offset - chunk.start).unwrap_or(usize::MAX);
        let fresh = chunk.data.get(at(write.start)..at(write.end)).unwrap_or_default();
        tx.exec(
            &PUT_CHUNK,
            vec![
                task_id.into(),
                stream.number().into(),
                signed(write.start).into(),
                fresh.to_vec().into(),
                chunk.age_ms.into(),
            ],
        )
        .await?;
    }
    if placed.shed {
        let gap = [placed.stored.gap_start, placed.stored.gap_end].map(|offset| signed(offset).into());
        tx.exec(&SHED_CHUNKS, key().into_iter().chain(gap).collect()).await?;
    }
    if placed.stored != before.stored || (total.is_some() && before.total.is_none()) {
        let numbers = [
            Some(placed.stored.bytes()),
            total,
            Some(placed.stored.gap_start),
            Some(placed.stored.gap_bytes()),
        ]
        .map(|number| number.map(signed).into());
        tx.exec(&PUT_STORED, key().into_iter().chain(numbers).collect()).await?;
    }
    Ok(placed.stored)
}

impl Db {
    /// Stores chunks of tasks that were given to this host, each answered by itself.
    pub async fn upload(&self, host: String, chunks: Arc<Vec<Chunk>>) -> Result<Vec<Upload>, StoreError> {
        self.write("upload", Class::Api, move |tx| {
            let (host, chunks) = (host.clone(), Arc::clone(&chunks));
            Box::pin(async move {
                let mut answers = Vec::with_capacity(chunks.len());
                for chunk in chunks.iter() {
                    let task: Option<TaskLimit> = tx
                        .opt(&TASK_OF_HOST, vec![chunk.task_id.into(), host.as_str().into()])
                        .await?;
                    answers.push(match task {
                        None => Upload::NoTask,
                        Some(task) => Upload::Stored(append(tx, chunk, Max::Known(task.max()), None).await?),
                    });
                }
                Ok(answers)
            })
        })
        .await
    }

    /// Bytes of a stream from `offset`, a bounded piece that ends before `end`.
    pub async fn read_output(
        &self,
        task_id: i64,
        stream: Stream,
        offset: u64,
        end: u64,
    ) -> Result<Vec<Part>, StoreError> {
        let rows = self
            .read("output", move |tx| {
                Box::pin(async move {
                    let first: Option<ChunkRow> = tx
                        .opt(
                            &CHUNK_AT,
                            vec![task_id.into(), stream.number().into(), signed(offset).into()],
                        )
                        .await?;
                    let mut rows: Vec<ChunkRow> = tx
                        .all(
                            &READ_CHUNKS,
                            vec![
                                task_id.into(),
                                stream.number().into(),
                                signed(offset).into(),
                                CHUNKS_PER_READ_MAX.into(),
                            ],
                        )
                        .await?;
                    if let Some(first) = first {
                        rows.insert(0, first);
                    }
                    Ok(rows)
                })
            })
            .await?;
        let mut parts = Vec::new();
        let mut at = offset;
        for row in rows {
            let start = unsigned(row.start_byte);
            let row_end = (start + row.data.len() as u64).min(end);
            if row_end <= at {
                continue;
            }
            if start > at {
                break; // The gap; later bytes must not slide into it.
            }
            let within = |offset: u64| usize::try_from(offset - start).unwrap_or(usize::MAX);
            parts.push(Part {
                data: row.data.get(within(at)..within(row_end)).unwrap_or_default().to_vec(),
                seen_at_ms: row.seen_at_ms,
            });
            at = row_end;
        }
        Ok(parts)
    }

    /// Where what was seen at or after this time begins; `None`: there is nothing such.
    pub async fn seen_since(&self, task_id: i64, stream: Stream, since_ms: i64) -> Result<Option<u64>, StoreError> {
        let row: Number = self
            .read("output", move |tx| {
                let args = vec![task_id.into(), stream.number().into(), since_ms.into()];
                Box::pin(async move { tx.one(&SEEN_SINCE, args).await })
            })
            .await?;
        Ok(row.n.map(unsigned))
    }

    /// Sizes of stdout and stderr.
    pub async fn output_sizes(&self, task_id: i64) -> Result<[Size; 2], StoreError> {
        let rows: Vec<StreamSizeRow> = self
            .read("output", move |tx| {
                Box::pin(async move { tx.all(&SIZES, vec![task_id.into()]).await })
            })
            .await?;
        let mut sizes = [Size::default(); 2];
        for row in rows {
            if let Some(size) = usize::try_from(row.stream - 1).ok().and_then(|at| sizes.get_mut(at)) {
                *size = row.size.size();
            }
        }
        Ok(sizes)
    }

    /// Stored bytes of all tasks.
    pub async fn output_total(&self) -> Result<u64, StoreError> {
        let row: Bytes = self
            .read("output", |tx| Box::pin(async move { tx.one(&TOTAL, vec![]).await }))
            .await?;
        Ok(unsigned(row.bytes))
    }
}

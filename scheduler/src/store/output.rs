//! Output: bytes by offset. Storing the same bytes again changes nothing.

use super::db::{Class, Db, Tx};
use super::error::StoreError;
use super::sql::Sql;
use std::sync::Arc;
use systole_shared::limits::OUTPUT_STREAM_BYTES_MAX;

static STORED: Sql = Sql::new(
    "output_stored",
    "SELECT stored_bytes, total_bytes FROM output WHERE task_id = $1 AND stream = CAST($2 AS SMALLINT) {for_update}",
);
static PUT_CHUNK: Sql = Sql::new(
    "put_chunk",
    "INSERT INTO output_chunk (task_id, stream, start_byte, data) VALUES ($1, CAST($2 AS SMALLINT), $3, $4) ON CONFLICT DO NOTHING",
);
static BEGIN_STREAM: Sql = Sql::new(
    "begin_stream",
    "INSERT INTO output (task_id, stream, stored_bytes) VALUES ($1, CAST($2 AS SMALLINT), 0) ON CONFLICT DO NOTHING",
);
static PUT_STORED: Sql = Sql::new(
    "put_stored",
    "INSERT INTO output (task_id, stream, stored_bytes, total_bytes) VALUES ($1, CAST($2 AS SMALLINT), $3, $4) \
     ON CONFLICT (task_id, stream) DO UPDATE SET stored_bytes = excluded.stored_bytes, \
       total_bytes = COALESCE(excluded.total_bytes, output.total_bytes)",
);
static TASK_OF_HOST: Sql = Sql::new("task_of_host", "SELECT id FROM task WHERE id = $1 AND host = $2");
static READ_CHUNKS: Sql = Sql::new(
    "read_chunks",
    "SELECT start_byte, data FROM output_chunk WHERE task_id = $1 AND stream = CAST($2 AS SMALLINT) AND start_byte >= $3 \
     ORDER BY start_byte LIMIT $4",
);
static CHUNK_BEFORE: Sql = Sql::new(
    "chunk_before",
    "SELECT start_byte, data FROM output_chunk WHERE task_id = $1 AND stream = CAST($2 AS SMALLINT) AND start_byte < $3 \
     ORDER BY start_byte DESC LIMIT 1",
);
static SIZES: Sql = Sql::new(
    "output_sizes",
    "SELECT stream, stored_bytes, total_bytes FROM output WHERE task_id = $1 ORDER BY stream",
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
    &TASK_OF_HOST,
    &READ_CHUNKS,
    &CHUNK_BEFORE,
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
    pub data: Vec<u8>,
}

/// How far a stream is stored, and how long it is once that is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Size {
    pub stored: u64,
    pub total: Option<u64>,
}

#[derive(sqlx::FromRow)]
struct SizeRow {
    stored_bytes: i64,
    total_bytes: Option<i64>,
}

#[derive(sqlx::FromRow)]
struct StreamSizeRow {
    stream: i16,
    stored_bytes: i64,
    total_bytes: Option<i64>,
}

#[derive(sqlx::FromRow)]
struct ChunkRow {
    start_byte: i64,
    data: Vec<u8>,
}

#[derive(sqlx::FromRow)]
struct OnlyId {
    #[expect(dead_code, reason = "only its presence is asked for")]
    id: i64,
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
    /// Stored up to here.
    To(u64),
    /// The stored limit of the stream is reached.
    Full(u64),
    /// No such task.
    NoTask,
}

/// Appends a chunk: what is stored already is cut off, a gap is not stored. `total` is the length of the
/// stream once the child has ended.
pub async fn append(
    tx: &mut Tx,
    task_id: i64,
    stream: Stream,
    start: u64,
    data: &[u8],
    total: Option<u64>,
) -> Result<Upload, StoreError> {
    let key = || vec![task_id.into(), stream.number().into()];
    let mut row: Option<SizeRow> = tx.opt(&STORED, key()).await?;
    if row.is_none() {
        // Made first and then locked: an upload and a result may bring the same bytes at once.
        tx.exec(&BEGIN_STREAM, key()).await?;
        row = tx.opt(&STORED, key()).await?;
    }
    let stored = row.as_ref().map_or(0, |row| unsigned(row.stored_bytes));
    let mut new_stored = stored;
    if start <= stored && stored < OUTPUT_STREAM_BYTES_MAX {
        let skip = usize::try_from(stored - start).unwrap_or(usize::MAX);
        let room = usize::try_from(OUTPUT_STREAM_BYTES_MAX - stored).unwrap_or(usize::MAX);
        if let Some(fresh) = data.get(skip..).filter(|fresh| !fresh.is_empty()) {
            let fresh = &fresh[..fresh.len().min(room)];
            tx.exec(
                &PUT_CHUNK,
                vec![
                    task_id.into(),
                    stream.number().into(),
                    signed(stored).into(),
                    fresh.to_vec().into(),
                ],
            )
            .await?;
            new_stored = stored + fresh.len() as u64;
        }
    }
    let known_total = row.as_ref().and_then(|row| row.total_bytes);
    if new_stored != stored || (total.is_some() && known_total.is_none()) {
        tx.exec(
            &PUT_STORED,
            vec![
                task_id.into(),
                stream.number().into(),
                signed(new_stored).into(),
                total.map(signed).into(),
            ],
        )
        .await?;
    }
    Ok(if new_stored >= OUTPUT_STREAM_BYTES_MAX {
        Upload::Full(new_stored)
    } else {
        Upload::To(new_stored)
    })
}

impl Db {
    /// Stores chunks of tasks that were given to this host, each answered by itself.
    pub async fn upload(&self, host: String, chunks: Arc<Vec<Chunk>>) -> Result<Vec<Upload>, StoreError> {
        self.write("upload", Class::Api, move |tx| {
            let (host, chunks) = (host.clone(), Arc::clone(&chunks));
            Box::pin(async move {
                let mut answers = Vec::with_capacity(chunks.len());
                for chunk in chunks.iter() {
                    let known: Option<OnlyId> = tx
                        .opt(&TASK_OF_HOST, vec![chunk.task_id.into(), host.as_str().into()])
                        .await?;
                    answers.push(match known {
                        None => Upload::NoTask,
                        Some(_) => append(tx, chunk.task_id, chunk.stream, chunk.start, &chunk.data, None).await?,
                    });
                }
                Ok(answers)
            })
        })
        .await
    }

    /// Bytes of a stream from `offset`, a bounded piece.
    pub async fn read_output(&self, task_id: i64, stream: Stream, offset: u64) -> Result<Vec<u8>, StoreError> {
        let rows = self
            .read("output", move |tx| {
                Box::pin(async move {
                    let before: Option<ChunkRow> = tx
                        .opt(
                            &CHUNK_BEFORE,
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
                    if let Some(before) = before {
                        rows.insert(0, before);
                    }
                    Ok(rows)
                })
            })
            .await?;
        let mut bytes = Vec::new();
        let mut at = offset;
        for row in rows {
            let start = unsigned(row.start_byte);
            let end = start + row.data.len() as u64;
            if end <= at {
                continue;
            }
            if start > at {
                break; // A gap does not occur; if it did, later bytes must not slide into it.
            }
            let skip = usize::try_from(at - start).unwrap_or(usize::MAX);
            bytes.extend_from_slice(row.data.get(skip..).unwrap_or_default());
            at = end;
        }
        Ok(bytes)
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
                *size = Size {
                    stored: unsigned(row.stored_bytes),
                    total: row.total_bytes.map(unsigned),
                };
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

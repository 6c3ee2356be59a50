//! The one file that names both drivers: pools, connections, transactions, parameters and rows.
//!
//! Every transaction runs in a task of its own, to its end, whatever becomes of the caller: a handler
//! that is dropped half-way must not leave a connection inside a transaction. Transactions are named,
//! bounded in time, and repeated when they collided.

use super::error::StoreError;
use super::latency::Commits;
use super::sql::{Dialect, Sql, render};
use super::sqlite_file;
use futures_util::future::BoxFuture;
use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions, PgRow};
use sqlx::sqlite::{
    SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions, SqliteRow, SqliteSynchronous,
};
use sqlx::{Connection as _, FromRow, Postgres, Sqlite};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

/// Longest life of one transaction, its wait for a connection included.
const TRANSACTION_MAX: Duration = Duration::from_secs(15);
/// Longest wait for a connection.
const ACQUIRE_MAX: Duration = Duration::from_secs(3);
/// Longest wait for the lock of an SQLite file that another process holds.
const SQLITE_BUSY_MAX: Duration = Duration::from_secs(5);
/// How often a transaction is repeated after a collision.
const COLLISIONS_MAX: u32 = 8;
/// Connections that only read an SQLite file.
const SQLITE_READERS: u32 = 4;

/// A parameter of a statement.
#[derive(Clone, Debug)]
pub enum Arg {
    Int(i64),
    OptInt(Option<i64>),
    Text(String),
    OptText(Option<String>),
    Bytes(Vec<u8>),
}

impl From<i64> for Arg {
    fn from(value: i64) -> Self {
        Self::Int(value)
    }
}
impl From<Option<i64>> for Arg {
    fn from(value: Option<i64>) -> Self {
        Self::OptInt(value)
    }
}
impl From<&str> for Arg {
    fn from(value: &str) -> Self {
        Self::Text(value.to_owned())
    }
}
impl From<String> for Arg {
    fn from(value: String) -> Self {
        Self::Text(value)
    }
}
impl From<Option<String>> for Arg {
    fn from(value: Option<String>) -> Self {
        Self::OptText(value)
    }
}
impl From<Vec<u8>> for Arg {
    fn from(value: Vec<u8>) -> Self {
        Self::Bytes(value)
    }
}

/// A batch: one TEXT parameter that holds a JSON array.
pub fn batch<T: serde::Serialize>(items: &[T]) -> Result<Arg, StoreError> {
    serde_json::to_string(items)
        .map(Arg::Text)
        .map_err(|error| StoreError::Data(error.to_string()))
}

/// A row type that both drivers can fill.
pub trait Row: Send + Unpin + for<'r> FromRow<'r, PgRow> + for<'r> FromRow<'r, SqliteRow> {}
impl<T> Row for T where T: Send + Unpin + for<'r> FromRow<'r, PgRow> + for<'r> FromRow<'r, SqliteRow> {}

/// Heartbeats have connections of their own, so that submissions and reads never starve them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    Beats,
    Api,
}

enum Conn {
    Pg(PoolConnection<Postgres>),
    Lite(PoolConnection<Sqlite>),
}

/// A connection, inside a transaction or not.
pub struct Tx {
    conn: Conn,
    open: bool,
    faults: Arc<Faults>,
}

/// For tests: lets the n-th statement from now fail as if the connection broke before it.
#[derive(Debug, Default)]
pub struct Faults {
    countdown: AtomicI64,
    fired: AtomicI64,
}

impl Faults {
    /// 1 = the next statement. 0 switches it off.
    pub fn fail_nth(&self, n: i64) {
        self.fired.store(0, Ordering::SeqCst);
        self.countdown.store(n, Ordering::SeqCst);
    }

    /// True when the fault has happened.
    pub fn fired(&self) -> bool {
        self.fired.load(Ordering::SeqCst) > 0
    }

    fn check(&self, name: &str) -> Result<(), StoreError> {
        if self.countdown.load(Ordering::Relaxed) <= 0 {
            return Ok(());
        }
        if self.countdown.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.fired.fetch_add(1, Ordering::SeqCst);
            return Err(StoreError::Unreachable(format!("injected fault before {name}")));
        }
        Ok(())
    }
}

macro_rules! bound {
    ($query:expr, $args:expr) => {{
        let mut query = $query;
        for arg in $args {
            query = match arg {
                Arg::Int(value) => query.bind(value),
                Arg::OptInt(value) => query.bind(value),
                Arg::Text(value) => query.bind(value),
                Arg::OptText(value) => query.bind(value),
                Arg::Bytes(value) => query.bind(value),
            };
        }
        query
    }};
}

impl Tx {
    pub fn dialect(&self) -> Dialect {
        match self.conn {
            Conn::Pg(_) => Dialect::Postgres,
            Conn::Lite(_) => Dialect::Sqlite,
        }
    }

    /// A missing parameter is read as NULL by one of the databases; here it is an error on both.
    fn prepare(&self, sql: &'static Sql, args: &[Arg]) -> Result<&'static str, StoreError> {
        if sql.params != args.len() {
            return Err(StoreError::Other(format!(
                "{}: {} parameters for {}",
                sql.name,
                args.len(),
                sql.params
            )));
        }
        self.faults.check(sql.name)?;
        Ok(sql.render(self.dialect()))
    }

    async fn fetch<R: Row>(
        &mut self,
        text: impl sqlx::SqlSafeStr + Send,
        args: Vec<Arg>,
    ) -> Result<Vec<R>, sqlx::Error> {
        match &mut self.conn {
            Conn::Pg(conn) => {
                bound!(sqlx::query_as::<Postgres, R>(text), args)
                    .fetch_all(&mut **conn)
                    .await
            }
            Conn::Lite(conn) => {
                bound!(sqlx::query_as::<Sqlite, R>(text), args)
                    .fetch_all(&mut **conn)
                    .await
            }
        }
    }

    pub async fn all<R: Row>(&mut self, sql: &'static Sql, args: Vec<Arg>) -> Result<Vec<R>, StoreError> {
        let text = self.prepare(sql, &args)?;
        self.fetch(text, args).await.map_err(|error| named(sql, error))
    }

    pub async fn opt<R: Row>(&mut self, sql: &'static Sql, args: Vec<Arg>) -> Result<Option<R>, StoreError> {
        Ok(self.all(sql, args).await?.into_iter().next())
    }

    pub async fn one<R: Row>(&mut self, sql: &'static Sql, args: Vec<Arg>) -> Result<R, StoreError> {
        self.opt(sql, args)
            .await?
            .ok_or_else(|| StoreError::Other(format!("{}: no row", sql.name)))
    }

    /// Rows changed.
    pub async fn exec(&mut self, sql: &'static Sql, args: Vec<Arg>) -> Result<u64, StoreError> {
        let text = self.prepare(sql, &args)?;
        let done = match &mut self.conn {
            Conn::Pg(conn) => bound!(sqlx::query::<Postgres>(text), args)
                .execute(&mut **conn)
                .await
                .map(|done| done.rows_affected()),
            Conn::Lite(conn) => bound!(sqlx::query::<Sqlite>(text), args)
                .execute(&mut **conn)
                .await
                .map(|done| done.rows_affected()),
        };
        done.map_err(|error| named(sql, error))
    }

    /// Runs a text built at run time from fixed parts (never from values), such as a list filter.
    pub async fn all_text<R: Row>(&mut self, text: String, args: Vec<Arg>) -> Result<Vec<R>, StoreError> {
        self.faults.check("list")?;
        let text = sqlx::AssertSqlSafe(render(&text, self.dialect()));
        Ok(self.fetch(text, args).await?)
    }

    async fn raw(&mut self, text: &'static str) -> Result<(), sqlx::Error> {
        match &mut self.conn {
            Conn::Pg(conn) => sqlx::raw_sql(text).execute(&mut **conn).await.map(drop),
            Conn::Lite(conn) => sqlx::raw_sql(text).execute(&mut **conn).await.map(drop),
        }
    }

    async fn begin(&mut self) -> Result<(), StoreError> {
        self.faults.check("BEGIN")?;
        self.open = true;
        let text = match self.conn {
            Conn::Pg(_) => "BEGIN",
            // Takes the write lock first: a transaction that reads and then writes could not wait for it.
            Conn::Lite(_) => "BEGIN IMMEDIATE",
        };
        self.raw(text).await.map_err(|error| {
            let error = StoreError::from(error);
            if matches!(error, StoreError::Busy(_)) {
                self.open = false;
            }
            error
        })
    }

    async fn commit(&mut self) -> Result<(), StoreError> {
        self.faults.check("COMMIT")?;
        match self.raw("COMMIT").await {
            Ok(()) => {
                self.open = false;
                Ok(())
            }
            Err(error) => Err(match StoreError::from(error) {
                StoreError::Unreachable(text) | StoreError::Damaged(text) | StoreError::Other(text) => {
                    StoreError::CommitUnknown(text)
                }
                certain => certain,
            }),
        }
    }

    async fn rollback(&mut self) {
        if self.raw("ROLLBACK").await.is_ok() {
            self.open = false;
        }
    }
}

impl Drop for Tx {
    fn drop(&mut self) {
        // Still inside a transaction, or in an unknown state: nobody may use this connection again.
        if self.open {
            match &mut self.conn {
                Conn::Pg(conn) => conn.close_on_drop(),
                Conn::Lite(conn) => conn.close_on_drop(),
            }
        }
    }
}

fn named(sql: &Sql, error: sqlx::Error) -> StoreError {
    match StoreError::from(error) {
        StoreError::Data(text) => StoreError::Data(format!("{}: {text}", sql.name)),
        StoreError::Other(text) => StoreError::Other(format!("{}: {text}", sql.name)),
        other => other,
    }
}

enum Pools {
    Pg {
        beats: PgPool,
        api: PgPool,
    },
    Lite {
        writer: SqlitePool,
        readers: SqlitePool,
        /// Held until the database is closed; then another process may open the file.
        lock: std::sync::Mutex<Option<sqlite_file::Lock>>,
    },
}

/// A database, open and ready.
pub struct Db {
    pools: Pools,
    options: Option<PgConnectOptions>,
    path: Option<PathBuf>,
    pub faults: Arc<Faults>,
    pub commits: Arc<Commits>,
}

impl Db {
    /// Opens `sqlite:PATH` (created when missing) or `postgres://…`.
    pub async fn open(url: &str, connections: u32) -> Result<Self, StoreError> {
        let faults = Arc::new(Faults::default());
        if let Some(path) = sqlite_file::of(url) {
            let pools = open_sqlite(&path).await?;
            return Ok(Self {
                pools,
                options: None,
                path: Some(path),
                faults,
                commits: Arc::default(),
            });
        }
        if url.starts_with("postgres://") || url.starts_with("postgresql://") {
            let options = PgConnectOptions::from_str(url)
                .map_err(|error| StoreError::Schema(format!("the database URL is wrong: {error}")))?
                .application_name("systole")
                // Half a second of slack for every statement: a stuck lock must not hold a beat for long.
                .options([
                    ("statement_timeout", "10s"),
                    ("lock_timeout", "5s"),
                    ("idle_in_transaction_session_timeout", "10s"),
                    ("tcp_keepalives_idle", "10"),
                    ("tcp_keepalives_interval", "5"),
                    // Making a plan, and compiling it, takes longer than most statements here: once is enough.
                    ("jit", "off"),
                    ("plan_cache_mode", "force_generic_plan"),
                    // Rows are reached by key (see `sql`). What must read a whole table still can.
                    ("enable_seqscan", "off"),
                ]);
            // The same, without exception, for beats: whatever one of them costs, each runner pays each time.
            let by_key = options
                .clone()
                .options([("enable_hashjoin", "off"), ("enable_mergejoin", "off")]);
            // One plain connection first: its error says what is wrong, a pool would only say "timed out".
            let first = tokio::time::timeout(ACQUIRE_MAX, sqlx::postgres::PgConnection::connect_with(&options))
                .await
                .map_err(|_| StoreError::Unreachable(format!("no answer within {} s", ACQUIRE_MAX.as_secs())))??;
            drop(first.close().await);
            let (beats, api) = (connections.div_ceil(2), connections / 2);
            return Ok(Self {
                pools: Pools::Pg {
                    beats: open_postgres(&by_key, beats.max(1)).await?,
                    api: open_postgres(&options, api.max(1)).await?,
                },
                options: Some(options),
                path: None,
                faults,
                commits: Arc::default(),
            });
        }
        Err(StoreError::Schema(format!(
            "{:?} is no database URL; write sqlite:/path/to/systole.db or postgres://user:password@host/name",
            url.split('@').next_back().unwrap_or("")
        )))
    }

    /// On another machine, as far as its address tells: then its clock is another one, too.
    pub fn is_elsewhere(&self) -> bool {
        self.options.as_ref().is_some_and(|options| {
            let host = options.get_host();
            let here = options.get_socket().is_some()
                || host.starts_with('/')
                || host == "localhost"
                || host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback());
            !here
        })
    }

    pub fn dialect(&self) -> Dialect {
        match self.pools {
            Pools::Pg { .. } => Dialect::Postgres,
            Pools::Lite { .. } => Dialect::Sqlite,
        }
    }

    /// For the notification listener, which has a connection of its own.
    pub fn postgres_options(&self) -> Option<&PgConnectOptions> {
        self.options.as_ref()
    }

    pub fn sqlite_path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// Brings the schema up to date. Safe when several replicas do it at once; a schema newer than this
    /// binary is refused.
    pub async fn migrate(&self) -> Result<(), StoreError> {
        let done = match &self.pools {
            Pools::Pg { api, .. } => sqlx::migrate!("../migrations/postgres").run(api).await,
            Pools::Lite { writer, .. } => sqlx::migrate!("../migrations/sqlite").run(writer).await,
        };
        done.map_err(|error| match error {
            sqlx::migrate::MigrateError::VersionMissing(version) => StoreError::Schema(format!(
                "the database has schema version {version}, which is newer than this systole knows. Start a newer systole, or give this one a database of its own; nothing was changed"
            )),
            sqlx::migrate::MigrateError::VersionMismatch(version) => StoreError::Schema(format!(
                "schema version {version} of the database is not the one this systole knows: it was made by a development version or changed by hand; nothing was changed"
            )),
            sqlx::migrate::MigrateError::Execute(error) => StoreError::from(error),
            sqlx::migrate::MigrateError::ExecuteMigration(error, version) => match StoreError::from(error) {
                damaged @ StoreError::Damaged(_) => damaged,
                other => StoreError::Schema(format!("the schema could not be brought up to date to version {version}: {other}")),
            },
            other => StoreError::Schema(format!("the schema could not be brought up to date: {other}")),
        })
    }

    /// Runs `body` in one transaction, to its end, and repeats it when it collided with another.
    pub async fn write<T, F>(&self, name: &'static str, class: Class, body: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: for<'t> Fn(&'t mut Tx) -> BoxFuture<'t, Result<T, StoreError>> + Send + Sync + 'static,
    {
        let source = self.source(class, true);
        let commits = Arc::clone(&self.commits);
        run_to_the_end(name, async move {
            let began = Instant::now();
            let mut collisions = 0;
            loop {
                let mut tx = source.acquire().await?;
                match transaction(&mut tx, &body).await {
                    Err(error) if error.is_collision() && collisions < COLLISIONS_MAX => {
                        collisions += 1;
                        tracing::debug!(transaction = name, collisions, %error, "repeated");
                        tokio::time::sleep(Duration::from_millis(u64::from(collisions) * 3)).await;
                    }
                    done => {
                        if done.is_ok() {
                            commits.add(class, began.elapsed());
                        }
                        return done;
                    }
                }
            }
        })
        .await
    }

    /// Runs reads on one connection, each statement by itself.
    pub async fn read<T, F>(&self, name: &'static str, body: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: for<'t> Fn(&'t mut Tx) -> BoxFuture<'t, Result<T, StoreError>> + Send + Sync + 'static,
    {
        let source = self.source(Class::Api, false);
        run_to_the_end(name, async move {
            let mut tx = source.acquire().await?;
            body(&mut tx).await
        })
        .await
    }

    fn source(&self, class: Class, write: bool) -> Source {
        let pool = match &self.pools {
            Pools::Pg { beats, api } => SourcePool::Pg(if class == Class::Beats { beats } else { api }.clone()),
            Pools::Lite { writer, readers, .. } => SourcePool::Lite(if write { writer } else { readers }.clone()),
        };
        Source {
            pool,
            faults: Arc::clone(&self.faults),
        }
    }

    pub async fn close(&self) {
        match &self.pools {
            Pools::Pg { beats, api } => {
                beats.close().await;
                api.close().await;
            }
            Pools::Lite { writer, readers, lock } => {
                readers.close().await;
                writer.close().await;
                if let Ok(mut lock) = lock.lock() {
                    lock.take();
                }
            }
        }
    }
}

enum SourcePool {
    Pg(PgPool),
    Lite(SqlitePool),
}

struct Source {
    pool: SourcePool,
    faults: Arc<Faults>,
}

impl Source {
    /// What waits for a connection, or opens one, is a future of many KiB. It is made only when there is no free one, and
    /// boxed: every future around it would carry it, and is moved several times for each transaction.
    async fn acquire(&self) -> Result<Tx, StoreError> {
        let conn = match &self.pool {
            SourcePool::Pg(pool) => Conn::Pg(match pool.try_acquire() {
                Some(conn) => conn,
                None => Box::pin(pool.acquire()).await?,
            }),
            SourcePool::Lite(pool) => Conn::Lite(match pool.try_acquire() {
                Some(conn) => conn,
                None => Box::pin(pool.acquire()).await?,
            }),
        };
        Ok(Tx {
            conn,
            open: false,
            faults: Arc::clone(&self.faults),
        })
    }
}

async fn transaction<T, F>(tx: &mut Tx, body: &F) -> Result<T, StoreError>
where
    F: for<'t> Fn(&'t mut Tx) -> BoxFuture<'t, Result<T, StoreError>>,
{
    tx.begin().await?;
    match body(tx).await {
        Ok(value) => match tx.commit().await {
            Ok(()) => Ok(value),
            Err(error) => {
                if !matches!(error, StoreError::CommitUnknown(_)) {
                    tx.rollback().await;
                }
                Err(error)
            }
        },
        Err(error) => {
            tx.rollback().await;
            Err(error)
        }
    }
}

/// The caller may go away; the work goes on to its end, within a bound.
async fn run_to_the_end<T: Send + 'static>(
    name: &'static str,
    work: impl Future<Output = Result<T, StoreError>> + Send + 'static,
) -> Result<T, StoreError> {
    let bounded = tokio::time::timeout(TRANSACTION_MAX, work);
    match tokio::spawn(bounded).await {
        Ok(Ok(done)) => done,
        // It may have been the COMMIT that hung.
        Ok(Err(_)) => Err(StoreError::CommitUnknown(format!(
            "{name}: no answer within {} s",
            TRANSACTION_MAX.as_secs()
        ))),
        Err(error) => Err(StoreError::Other(format!("{name}: {error}"))),
    }
}

async fn open_postgres(options: &PgConnectOptions, connections: u32) -> Result<PgPool, StoreError> {
    // min = max: a pool that shrinks and grows under load makes every storm worse.
    let pool = PgPoolOptions::new()
        .max_connections(connections)
        .min_connections(connections)
        .acquire_timeout(ACQUIRE_MAX)
        .idle_timeout(None)
        .test_before_acquire(false)
        .connect_lazy_with(options.clone());
    Ok(pool)
}

async fn open_sqlite(path: &Path) -> Result<Pools, StoreError> {
    let lock = sqlite_file::claim(path)?;
    let options = SqliteConnectOptions::new()
        .filename(path)
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        // An acknowledged write survives a power cut; group commits make it cheap.
        .synchronous(SqliteSynchronous::Full)
        .busy_timeout(SQLITE_BUSY_MAX)
        .pragma("cache_size", "-32768")
        .pragma("temp_store", "2");
    let writer = SqlitePoolOptions::new()
        .max_connections(1)
        .min_connections(1)
        .acquire_timeout(SQLITE_BUSY_MAX + ACQUIRE_MAX)
        .idle_timeout(None)
        .max_lifetime(None)
        .test_before_acquire(false)
        .connect_with(options.clone())
        .await
        .map_err(|error| sqlite_file::describe(path, error.into()))?;
    let readers = SqlitePoolOptions::new()
        .max_connections(SQLITE_READERS)
        .acquire_timeout(ACQUIRE_MAX)
        .idle_timeout(None)
        .max_lifetime(None)
        .test_before_acquire(false)
        .connect_lazy_with(options.read_only(true).create_if_missing(false));
    Ok(Pools::Lite {
        writer,
        readers,
        lock: std::sync::Mutex::new(Some(lock)),
    })
}

//! A copy of an SQLite database while it is in use. Neither the writer nor the pool of readers is taken for it: a large
//! database takes minutes, and a transaction of the others has seconds.

use super::audit::audit;
use super::db::{Class, Db};
use super::error::StoreError;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{Connection as _, Executor as _, Row as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Longest wait for a lock. A reader of a WAL file waits for nobody, unless it is just being recovered.
const BUSY_MAX: Duration = Duration::from_secs(5);

impl Db {
    /// Where the copy is made: beside the database, so that it is as private and as local.
    pub fn copy_path(&self) -> Option<PathBuf> {
        let mut name = self.sqlite_path()?.as_os_str().to_owned();
        name.push(".backup");
        Some(name.into())
    }

    /// What a scheduler left that ended in the middle of a backup.
    pub fn remove_unfinished_copy(&self) {
        if let Some(path) = self.copy_path() {
            match std::fs::remove_file(&path) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    tracing::warn!(path = %path.display(), %error, "an unfinished backup could not be removed");
                }
                _ => {}
            }
        }
    }

    /// Where the database is, without its password; `None` for SQLite.
    pub fn postgres_url(&self) -> Option<String> {
        let options = self.postgres_options()?;
        let user = options.get_username();
        let name = options.get_database().unwrap_or(user);
        Some(match options.get_socket() {
            // In a URL the folder of a socket is a parameter.
            Some(folder) => format!("postgresql://{user}@/{name}?host={}", folder.display()),
            None => format!(
                "postgresql://{user}@{}:{}/{name}",
                options.get_host(),
                options.get_port()
            ),
        })
    }

    pub async fn audit_backup(&self, by: String, reason: String) -> Result<(), StoreError> {
        self.write("audit_backup", Class::Api, move |tx| {
            let (by, reason) = (by.clone(), reason.clone());
            Box::pin(async move { audit(tx, &by, "backup", "database", &reason).await })
        })
        .await
    }
}

async fn open(path: &Path) -> Result<SqliteConnection, StoreError> {
    let options = SqliteConnectOptions::new()
        .filename(path)
        .read_only(true)
        .create_if_missing(false)
        .busy_timeout(BUSY_MAX);
    Ok(SqliteConnection::connect_with(&options).await?)
}

/// Writes all of the database, as it is at this moment, to an empty file; and reads that through.
pub async fn copy(from: &Path, to: &Path) -> Result<(), StoreError> {
    let text = to
        .to_str()
        .ok_or_else(|| StoreError::Other(format!("the path {} is not UTF-8", to.display())))?;
    let mut source = open(from).await?;
    // Not the pages as they are: a copy without free pages, of one moment, while others go on writing.
    let copied = source.execute(sqlx::query("VACUUM INTO $1").bind(text)).await;
    drop(source.close().await);
    copied?;
    let mut copy = open(to).await?;
    let verdict = copy.fetch_one("PRAGMA integrity_check(1)").await;
    let verdict: String = verdict.and_then(|row| row.try_get(0))?;
    drop(copy.close().await);
    if verdict == "ok" {
        Ok(())
    } else {
        Err(StoreError::Other(format!(
            "the copy is not a sound database ({verdict}). The database itself may be damaged: stop the scheduler and run \
             `sqlite3 {} 'PRAGMA integrity_check'`",
            from.display()
        )))
    }
}

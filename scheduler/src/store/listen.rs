//! NOTIFY and LISTEN of PostgreSQL: messages between replicas. SQLite has one replica and needs none.

use super::db::{Class, Db};
use super::error::StoreError;
use super::sql::Sql;
use sqlx::postgres::{PgListener, PgPoolOptions};
use std::time::Duration;

static NOTIFY: Sql = Sql::new("notify", "SELECT pg_notify('systole_wake', $1)::text AS done");

#[derive(sqlx::FromRow)]
struct Done {
    #[expect(dead_code, reason = "pg_notify returns nothing; the column only carries the call")]
    done: Option<String>,
}

impl Db {
    /// Tells the other replicas. Not part of any other transaction: NOTIFY serialises commits.
    pub async fn notify(&self, payload: String) -> Result<(), StoreError> {
        self.write("notify", Class::Api, move |tx| {
            let payload = payload.clone();
            Box::pin(async move { tx.one::<Done>(&NOTIFY, vec![payload.into()]).await.map(drop) })
        })
        .await
    }

    /// A listening connection of its own. `None` on SQLite.
    pub async fn listen(&self) -> Result<Option<Listener>, StoreError> {
        let Some(options) = self.postgres_options() else {
            return Ok(None);
        };
        let pool = PgPoolOptions::new()
            .max_connections(1)
            .acquire_timeout(Duration::from_secs(3))
            .connect_lazy_with(options.clone().application_name("systole listener"));
        let mut listener = PgListener::connect_with(&pool).await?;
        listener.listen("systole_wake").await?;
        Ok(Some(Listener { listener }))
    }
}

pub struct Listener {
    listener: PgListener,
}

impl Listener {
    /// The next message. An error means that the connection is gone and messages may have been missed.
    pub async fn next(&mut self) -> Result<String, StoreError> {
        match self.listener.try_recv().await? {
            Some(notification) => Ok(notification.payload().to_owned()),
            None => Err(StoreError::Unreachable("the listening connection was lost".into())),
        }
    }

    /// Proves that the connection lives: a half-open one says nothing by itself.
    pub async fn ping(&mut self) -> Result<(), StoreError> {
        let ping = sqlx::query("SELECT 1").execute(&mut self.listener);
        match tokio::time::timeout(Duration::from_secs(5), ping).await {
            Ok(done) => Ok(done.map(drop)?),
            Err(_) => Err(StoreError::Unreachable(
                "the listening connection does not answer".into(),
            )),
        }
    }
}

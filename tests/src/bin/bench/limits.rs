//! (a) What the machine itself can do.

use crate::Result;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;
use systole_tests::postgres::Cluster;

/// Processes of this command spawned and waited for, per second, by two threads.
pub fn spawn_limit(argv: &[&str], count: usize) -> f64 {
    let argv: Vec<String> = argv.iter().map(|&arg| arg.to_owned()).collect();
    let began = Instant::now();
    let threads: Vec<_> = (0..2)
        .map(|_| {
            let argv = argv.clone();
            std::thread::spawn(move || {
                for _ in 0..count / 2 {
                    let done = Command::new(&argv[0]).args(&argv[1..]).stdin(Stdio::null()).status();
                    assert!(done.is_ok_and(|status| status.success()));
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().expect("thread");
    }
    count as f64 / began.elapsed().as_secs_f64()
}

pub fn xargs(count: usize) -> Result<f64> {
    let began = Instant::now();
    let done = Command::new("sh")
        .args(["-c", &format!("seq {count} | xargs -P2 -n1 /bin/true")])
        .status()?;
    assert!(done.success());
    Ok(count as f64 / began.elapsed().as_secs_f64())
}

/// What PostgreSQL itself does: claim and complete in batches of 100, four clients.
pub async fn postgres_limit() -> Result<f64> {
    let cluster = Cluster::shared();
    let name = cluster.create_database();
    cluster.sql(
        &name,
        "CREATE TABLE q (id BIGINT PRIMARY KEY, status SMALLINT NOT NULL, at BIGINT NOT NULL, body TEXT NOT NULL);
         CREATE INDEX q_open ON q (at, id) WHERE status = 1;
         INSERT INTO q SELECT n, 1, n, 'x' FROM generate_series(1, 100000) AS n;",
    );
    cluster.sql(&name, "VACUUM ANALYZE q");
    let pool = sqlx::postgres::PgPoolOptions::new()
        .max_connections(4)
        .connect(&cluster.url(&name))
        .await?;
    let done = Arc::new(AtomicU64::new(0));
    let began = Instant::now();
    let clients: Vec<_> = (0..4)
        .map(|_| {
            let (pool, done) = (pool.clone(), Arc::clone(&done));
            tokio::spawn(async move {
                loop {
                    let claimed = sqlx::query(
                        "WITH p AS MATERIALIZED (SELECT id FROM q WHERE status = 1 ORDER BY at, id LIMIT 100 FOR UPDATE SKIP LOCKED) \
                         UPDATE q SET status = 2 FROM p WHERE q.id = p.id RETURNING q.id",
                    )
                    .fetch_all(&pool)
                    .await
                    .expect("claim");
                    if claimed.is_empty() {
                        return;
                    }
                    let ids: Vec<i64> = claimed.iter().map(|row| sqlx::Row::get(row, 0)).collect();
                    sqlx::query("UPDATE q SET status = 3 WHERE id = ANY($1)").bind(&ids).execute(&pool).await.expect("complete");
                    done.fetch_add(ids.len() as u64, Ordering::Relaxed);
                }
            })
        })
        .collect();
    for client in clients {
        client.await?;
    }
    Ok(done.load(Ordering::Relaxed) as f64 / began.elapsed().as_secs_f64())
}

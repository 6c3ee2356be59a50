//! (f) What a claim costs, against the backlog and against dead rows.

use crate::Result;
use crate::report::{Report, median};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use systole_scheduler::lanes::Lanes;
use systole_scheduler::store::claims::{self, LanePlan, Offer};
use systole_scheduler::store::{Class, Db};
use systole_tests::postgres::Cluster;

/// What a claim of 8 costs: median ms after the hints have settled.
pub async fn claim_cost(db: &Db, lane: i64, lanes: &Lanes, settle: Duration, naive: bool) -> Result<f64> {
    let group = lanes.group(&[], &systole_shared::policy::lane::Labels::new());
    let mut costs = Vec::new();
    let began = Instant::now();
    let mut slot = 0;
    while began.elapsed() < settle + Duration::from_secs(2) {
        lanes.wake(&[lane], []);
        let mut plan = lanes.plan([group], []);
        if naive {
            for LanePlan { from_ms, .. } in plan.lanes.values_mut().flatten() {
                *from_ms = 0;
            }
        }
        slot += 8;
        let offers: Vec<Offer> = (slot..slot + 8)
            .map(|slot| Offer {
                host: "c".into(),
                slot,
                start_no: 1,
                group,
            })
            .collect();
        let plan = Arc::new(plan);
        let plan_in = Arc::clone(&plan);
        let timed = Instant::now();
        let claimed = db
            .write("bench", Class::Beats, move |tx| {
                let (offers, plan) = (offers.clone(), Arc::clone(&plan_in));
                Box::pin(async move { claims::claim(tx, &offers, &plan).await })
            })
            .await?;
        let cost = timed.elapsed().as_secs_f64() * 1_000.0;
        if claimed.runs.len() < 8 {
            return Err(format!(
                "a claim of 8 got {} tasks: what it costs says nothing",
                claimed.runs.len()
            )
            .into());
        }
        lanes.learn(&plan, &claimed);
        if began.elapsed() >= settle {
            costs.push(cost);
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(median(costs))
}

/// Claim cost against the backlog, and against dead rows that nobody vacuumed.
pub async fn claims_section(report: &mut Report) -> Result<()> {
    let cluster = Cluster::shared();
    let mut base = f64::NAN;
    for (label, queued, finished, snapshot) in [
        ("10,000 queued", 10_000, 0, false),
        ("1,000,000 queued", 1_000_000, 0, false),
        ("1,000,000 finished, not vacuumed", 10_000, 1_000_000, false),
        ("1,000,000 finished, old snapshot open", 10_000, 1_000_000, true),
    ] {
        let name = cluster.create_database();
        let db = Db::open(&cluster.url(&name), 8).await?;
        db.migrate().await?;
        let lane = systole_shared::policy::lane::Lane {
            queue: "default".into(),
            require: HashMap::<String, String>::new().into_iter().collect(),
            priority: 5,
        };
        let lane_id = db.lane_id(&lane).await?;
        cluster.sql(&name, "ALTER TABLE task SET (autovacuum_enabled = off)");
        let insert = |count: usize, at: &str| {
            cluster.sql(
                &name,
                &format!(
                    "INSERT INTO task (status, lane_id, priority, name, spec, submitted_by, created_at_ms, eligible_at_ms) \
                     SELECT 2, {lane_id}, 5, 't', '{{\"command\":[\"true\"],\"name\":\"t\",\"queue\":\"default\"}}', 'bench', 1, {at} \
                     FROM generate_series(1, {count}) AS n"
                ),
            )
        };
        let mut holder = None;
        if finished > 0 {
            insert(finished, "n");
            if snapshot {
                let pool = sqlx::postgres::PgPoolOptions::new()
                    .max_connections(1)
                    .connect(&cluster.url(&name))
                    .await?;
                let mut conn = pool.acquire().await?;
                sqlx::raw_sql("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM task")
                    .execute(&mut *conn)
                    .await?;
                holder = Some((pool, conn));
            }
            cluster.sql(
                &name,
                "UPDATE task SET status = 6, outcome_kind = 'success', ended_at_ms = 1 WHERE status = 2",
            );
        }
        insert(queued, "10000000 + n");
        cluster.sql(&name, "ANALYZE task");
        let lanes = Lanes::default();
        lanes.freeze(&db.frozen().await?);
        lanes.add(lane_id, lane.clone());
        let cost = claim_cost(&db, lane_id, &lanes, Duration::from_secs(7), false).await?;
        let note = if base.is_nan() {
            base = cost;
            String::new()
        } else {
            let mut note = format!("{:.2} times the first", cost / base);
            if finished > 0 {
                let naive = claim_cost(&db, lane_id, &lanes, Duration::ZERO, true).await?;
                note.push_str(&format!("; without hints {:.1} times", naive / base));
            }
            note
        };
        report.add(format!("claim of 8, {label}"), cost, "ms", note);
        drop(holder);
        db.close().await;
    }
    Ok(())
}

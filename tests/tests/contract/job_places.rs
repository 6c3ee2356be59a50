//! Who of a job runs, and who waits: the policies of jobs, as the database enforces them.

use super::jobs::{apply, definition, get, job, ledger, put, start};
use serde_json::json;
use systole_proto::v1;
use systole_proto::v1::TaskState as S;
use systole_tests::replica::Replica;
use systole_tests::wait::until;
use systole_tests::{SimRunner, TestDb, on_both_databases};

on_both_databases!(
    runs_of_a_serial_job_follow_each_other,
    a_full_backlog_refuses_further_runs,
    discard_later_names_the_run_that_is_in_the_way,
    cover_early_waits_until_the_old_run_is_seen_ended,
    concurrent_runs_are_as_many_as_allowed,
    a_group_bounds_several_jobs_together,
    a_serial_job_waits_while_a_lost_child_may_live,
    a_fenced_child_is_dead_by_the_time_its_runner_is_lost,
    a_person_may_declare_a_host_dead,
    a_host_that_is_forgotten_as_dead_frees_the_places_of_its_jobs,
    a_cancel_of_a_waiting_run_frees_nothing_and_lets_the_next_one_pass,
    a_deleted_job_cancels_what_waits,
    a_delete_that_is_cut_off_deletes_nothing_and_cancels_nothing,
    a_retry_whose_job_is_gone_never_starts,
    a_place_that_was_forgotten_is_freed,
);

async fn end(runner: &mut SimRunner, task: i64) {
    let result = runner.success(task);
    runner.ended(result).await;
}

async fn runs_of_a_serial_job_follow_each_other(db: TestDb) {
    let replica = Replica::start(&db).await;
    put(&replica, job("a", &json!({}))).await;
    let ids = [
        start(&replica, "a").await,
        start(&replica, "a").await,
        start(&replica, "a").await,
    ];
    assert_eq!(ids.map(|run| run.waiting), [false, true, true]);
    let (mut one, mut two) = (SimRunner::new(&replica, "h1", 0), SimRunner::new(&replica, "h2", 0));
    for run in ids {
        assert_eq!(one.take().await.task_id, run.task_id);
        // The other runner has nothing to do.
        assert_eq!(two.idle().await.command(), v1::Command::GoOn);
        assert_eq!(get(&replica, "a").await.running, [run.task_id]);
        end(&mut one, run.task_id).await;
    }
    assert!(get(&replica, "a").await.running.is_empty());
    replica.stop().await;
}

async fn a_full_backlog_refuses_further_runs(db: TestDb) {
    let replica = Replica::start(&db).await;
    put(&replica, job("a", &json!({"max_waiting": 1}))).await;
    start(&replica, "a").await;
    start(&replica, "a").await;
    let request = v1::TriggerJobRequest {
        job: "a".into(),
        ..v1::TriggerJobRequest::default()
    };
    let refused = replica.jobs().trigger(request).await.expect_err("full");
    assert!(refused.message().contains("max_waiting"), "{refused}");
    assert_eq!(get(&replica, "a").await.waiting, 1);
    replica.stop().await;
}

async fn discard_later_names_the_run_that_is_in_the_way(db: TestDb) {
    let replica = Replica::start(&db).await;
    put(
        &replica,
        job(
            "a",
            &json!({"blocking": "discard_later", "trigger": [{"name": "t", "fixed_rate": "1s"}]}),
        ),
    )
    .await;
    let mut runner = SimRunner::new(&replica, "h", 0);
    let task = runner.take().await.task_id;
    let rows = until("a fire is blocked", || async {
        let rows = ledger(&replica, "a").await;
        (rows.len() >= 3).then_some(rows)
    })
    .await;
    assert!(
        rows[..2]
            .iter()
            .all(|row| row.reason == "blocked" && row.blocked_by == task),
        "{rows:?}"
    );
    let request = v1::TriggerJobRequest {
        job: "a".into(),
        ..v1::TriggerJobRequest::default()
    };
    let refused = replica.jobs().trigger(request).await.expect_err("it runs");
    assert!(refused.message().contains(&task.to_string()), "{refused}");
    end(&mut runner, task).await;
    let next = runner.take().await.task_id;
    assert!(next > task);
    replica.stop().await;
}

async fn cover_early_waits_until_the_old_run_is_seen_ended(db: TestDb) {
    let replica = Replica::start(&db).await;
    put(&replica, job("a", &json!({"blocking": "cover_early"}))).await;
    let old = start(&replica, "a").await.task_id;
    let mut runner = SimRunner::new(&replica, "h", 0);
    assert_eq!(runner.take().await.task_id, old);
    runner.running(old).await;
    let dropped = start(&replica, "a").await.task_id;
    let new = start(&replica, "a").await.task_id;
    assert_eq!(
        replica
            .until_state(dropped, S::Skipped)
            .await
            .outcome
            .expect("outcome")
            .kind,
        "skipped"
    );
    replica.until_state(old, S::Terminating).await;
    // Until the child is seen ended, the new one waits.
    assert_eq!(replica.state(new).await, S::Created);
    assert_eq!(runner.running(old).await.command(), v1::Command::Reset);
    let mut result = runner.result(old, "signal", None);
    result.stopped_by = v1::StoppedBy::Reset.into();
    runner.ended(result).await;
    let ended = replica.task(old).await;
    assert_eq!(ended.state(), S::Terminated);
    assert_eq!(runner.take().await.task_id, new);
    let rows = ledger(&replica, "a").await;
    let of_dropped = rows.iter().find(|row| row.task_id == dropped).expect("its verdict");
    assert_eq!((of_dropped.reason.as_str(), of_dropped.blocked_by), ("discarded", new));
    replica.stop().await;
}

async fn concurrent_runs_are_as_many_as_allowed(db: TestDb) {
    let replica = Replica::start(&db).await;
    put(
        &replica,
        job("a", &json!({"blocking": "concurrent", "max_concurrent": 2})),
    )
    .await;
    let mut waiting = Vec::new();
    for _ in 0..4 {
        waiting.push(start(&replica, "a").await.waiting);
    }
    assert_eq!(waiting, [false, false, true, true]);
    // More places: those that wait get them.
    put(
        &replica,
        job("a", &json!({"blocking": "concurrent", "max_concurrent": 3})),
    )
    .await;
    until("a third one has a place", || async {
        (get(&replica, "a").await.running.len() == 3).then_some(())
    })
    .await;
    replica.stop().await;
}

async fn a_group_bounds_several_jobs_together(db: TestDb) {
    let replica = Replica::start(&db).await;
    let request = v1::ApplyRequest {
        groups: vec![definition(&json!({"name": "warehouse", "limit": 1}), "")],
        jobs: ["a", "b"]
            .map(|name| definition(&job(name, &json!({"concurrency_group": "warehouse"})), ""))
            .to_vec(),
        ..v1::ApplyRequest::default()
    };
    let results = apply(&mut replica.jobs(), request).await;
    assert!(results.iter().all(|result| result.error.is_none()), "{results:?}");
    let first = start(&replica, "a").await;
    let second = start(&replica, "b").await;
    assert_eq!((first.waiting, second.waiting), (false, true));
    let mut runner = SimRunner::new(&replica, "h", 0);
    assert_eq!(runner.take().await.task_id, first.task_id);
    end(&mut runner, first.task_id).await;
    assert_eq!(runner.take().await.task_id, second.task_id);
    let groups = replica
        .jobs()
        .list_groups(v1::ListGroupsRequest {})
        .await
        .expect("groups");
    assert_eq!(groups.into_inner().groups[0].running, [second.task_id]);
    replica.stop().await;
}

/// A run whose runner is lost; another one waits behind it.
async fn lost(replica: &Replica, more: &serde_json::Value) -> (SimRunner, i64, i64) {
    put(replica, job("a", more)).await;
    let first = start(replica, "a").await.task_id;
    let mut runner = SimRunner::new(replica, "h", 0);
    assert_eq!(runner.take().await.task_id, first);
    runner.running(first).await;
    let second = start(replica, "a").await.task_id;
    let task = replica.until_state(first, S::Failed).await;
    assert_eq!(task.outcome.expect("outcome").kind, "runner_lost");
    (runner, first, second)
}

async fn a_serial_job_waits_while_a_lost_child_may_live(db: TestDb) {
    let replica = Replica::start(&db).await;
    let (mut runner, first, second) = lost(&replica, &json!({})).await;
    let held = get(&replica, "a").await;
    assert_eq!(held.running, [first]);
    assert_eq!((held.unproven[0].task_id, held.unproven[0].host.as_str()), (first, "h"));
    assert_eq!(replica.state(second).await, S::Created);
    // Its host is back, and still has the child.
    assert_eq!(runner.running(first).await.command(), v1::Command::Reset);
    assert_eq!(replica.state(second).await, S::Created);
    // The child has ended.
    end(&mut runner, first).await;
    assert_eq!(runner.take().await.task_id, second);
    replica.stop().await;
}

async fn a_fenced_child_is_dead_by_the_time_its_runner_is_lost(db: TestDb) {
    let replica = Replica::start(&db).await;
    let more = json!({"on_disconnect": "kill", "kill_grace": "100ms"});
    let (_, _, second) = lost(&replica, &more).await;
    replica.until_state(second, S::Queued).await;
    replica.stop().await;
}

async fn a_person_may_declare_a_host_dead(db: TestDb) {
    let replica = Replica::start(&db).await;
    let (_, first, second) = lost(&replica, &json!({})).await;
    let request = v1::DeclareDeadRequest {
        host: "h".into(),
        reason: "burnt".into(),
    };
    let done = replica
        .jobs()
        .declare_dead(request)
        .await
        .expect("declare")
        .into_inner();
    assert_eq!(done.task_ids, [first]);
    assert_eq!(replica.state(second).await, S::Queued);
    replica.stop().await;
}

async fn a_host_that_is_forgotten_as_dead_frees_the_places_of_its_jobs(db: TestDb) {
    let replica = Replica::start(&db).await;
    let (_, _, second) = lost(&replica, &json!({})).await;
    let remove = |dead| v1::RemoveHostRequest {
        host: "h".into(),
        dead,
        ..v1::RemoveHostRequest::default()
    };
    // Without the word that it is dead nothing proves that the child is.
    until("it is silent for long enough", || async {
        replica.admin().remove(remove(false)).await.ok()
    })
    .await;
    assert_eq!(replica.state(second).await, S::Created);
    replica
        .admin()
        .remove(remove(true))
        .await
        .expect("its places are freed");
    assert_eq!(replica.state(second).await, S::Queued);
    let again = replica
        .admin()
        .remove(remove(true))
        .await
        .expect_err("nothing is left of it");
    assert!(again.message().contains("there is no host \"h\""), "{again}");
    replica.stop().await;
}

async fn a_cancel_of_a_waiting_run_frees_nothing_and_lets_the_next_one_pass(db: TestDb) {
    let replica = Replica::start(&db).await;
    put(&replica, job("a", &json!({}))).await;
    let first = start(&replica, "a").await.task_id;
    let second = start(&replica, "a").await.task_id;
    let third = start(&replica, "a").await.task_id;
    replica.cancel(second).await;
    assert_eq!(replica.state(second).await, S::Terminated);
    assert_eq!(get(&replica, "a").await.running, [first]);
    let mut runner = SimRunner::new(&replica, "h", 0);
    assert_eq!(runner.take().await.task_id, first);
    end(&mut runner, first).await;
    assert_eq!(runner.take().await.task_id, third);
    replica.stop().await;
}

async fn a_deleted_job_cancels_what_waits(db: TestDb) {
    let replica = Replica::start(&db).await;
    put(&replica, job("a", &json!({}))).await;
    let first = start(&replica, "a").await.task_id;
    let second = start(&replica, "a").await.task_id;
    let mut runner = SimRunner::new(&replica, "h", 0);
    assert_eq!(runner.take().await.task_id, first);
    let request = v1::DeleteJobsRequest {
        names: vec!["a".into()],
        reason: String::new(),
        ..v1::DeleteJobsRequest::default()
    };
    let deleted = replica
        .jobs()
        .delete(request)
        .await
        .expect("delete")
        .into_inner()
        .results;
    assert_eq!(deleted[0].cancelled, [second]);
    assert_eq!(replica.state(second).await, S::Terminated);
    // A new job of this name waits for the old one's run.
    put(&replica, job("a", &json!({}))).await;
    assert!(start(&replica, "a").await.waiting);
    end(&mut runner, first).await;
    replica.until_state(first, S::Finished).await;
    until("the new job runs", || async {
        (get(&replica, "a").await.waiting == 0).then_some(())
    })
    .await;
    replica.stop().await;
}

/// A job with a run whose second attempt is an hour away, and one that waits behind it.
async fn with_a_retry(replica: &Replica) -> (i64, i64) {
    let retry = json!({"policy": "fixed", "max_retries": 3, "delay": "1h"});
    put(replica, job("a", &json!({"retry": retry}))).await;
    let first = start(replica, "a").await.task_id;
    let mut runner = SimRunner::new(replica, "h", 0);
    assert_eq!(runner.take().await.task_id, first);
    let result = runner.result(first, "exit_code", Some(1));
    runner.ended(result).await;
    let retry = replica.until_state(first, S::Failed).await.retried_by;
    assert_eq!(replica.state(retry).await, S::Created);
    (retry, start(replica, "a").await.task_id)
}

fn delete_a() -> v1::DeleteJobsRequest {
    v1::DeleteJobsRequest {
        names: vec!["a".into()],
        reason: "not needed".into(),
        ..v1::DeleteJobsRequest::default()
    }
}

/// What a scheduler that dies in the middle of a delete leaves: all of it, or nothing of it.
async fn a_delete_that_is_cut_off_deletes_nothing_and_cancels_nothing(db: TestDb) {
    let replica = Replica::start(&db).await;
    let (retry, waiting) = with_a_retry(&replica).await;
    // The database refuses the cancel of the retry, as it would after the connection was lost.
    let refuse = format!("NEW.id = {retry} AND NEW.cancelled_by IS NOT NULL");
    match db.postgres {
        Some(_) => db.sql(&format!(
            "CREATE FUNCTION cut_off() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF {refuse} THEN RAISE EXCEPTION 'cut off'; END IF; \
               RETURN NEW; END $$; CREATE TRIGGER cut_off BEFORE UPDATE ON task FOR EACH ROW EXECUTE FUNCTION cut_off()"
        )),
        None => db.sql(&format!(
            "CREATE TRIGGER cut_off BEFORE UPDATE ON task WHEN {refuse} BEGIN SELECT RAISE(ABORT, 'cut off'); END"
        )),
    };
    let done = replica.jobs().delete(delete_a()).await;
    assert!(
        done.is_err() || done.is_ok_and(|done| done.into_inner().results[0].error.is_some()),
        "it cannot be deleted"
    );
    assert_eq!(get(&replica, "a").await.waiting, 1);
    assert_eq!(
        [replica.state(retry).await, replica.state(waiting).await],
        [S::Created; 2]
    );
    db.sql(match db.postgres {
        Some(_) => "DROP TRIGGER cut_off ON task",
        None => "DROP TRIGGER cut_off",
    });
    let done = replica.jobs().delete(delete_a()).await.expect("deleted").into_inner();
    let mut cancelled = done.results[0].cancelled.clone();
    cancelled.sort_unstable();
    assert_eq!(cancelled, [retry, waiting]);
    for id in cancelled {
        let task = replica.task(id).await;
        assert_eq!(task.state(), S::Terminated);
        assert!(
            !task.cancelled_by.is_empty() && task.cancel_reason == "not needed",
            "{task:?}"
        );
    }
    replica.stop().await;
}

/// A retry that is made while its job is deleted is seen by neither of the two.
async fn a_retry_whose_job_is_gone_never_starts(db: TestDb) {
    let replica = Replica::start(&db).await;
    let (retry, waiting) = with_a_retry(&replica).await;
    db.sql("DELETE FROM job_trigger");
    db.sql("DELETE FROM job");
    db.sql(&format!("UPDATE task SET run_at_ms = 1 WHERE id = {retry}"));
    for id in [retry, waiting] {
        let task = replica.until_state(id, S::Terminated).await;
        assert!(task.outcome.expect("outcome").message.contains("deleted"));
    }
    // Neither could have been given to anybody, at any time.
    let ever = db.sql(&format!(
        "SELECT count(*) FROM task WHERE id IN ({retry}, {waiting}) AND eligible_at_ms IS NOT NULL"
    ));
    assert_eq!(ever, "0");
    assert_eq!(db.sql("SELECT count(*) FROM slot"), "0");
    // What is of no job is not touched.
    let mut later = systole_tests::replica::command(&["true"]);
    later.delay_ms = 100;
    let plain = replica.submit(later).await;
    replica.until_state(plain, S::Queued).await;
    replica.stop().await;
}

async fn a_place_that_was_forgotten_is_freed(db: TestDb) {
    let replica = Replica::start(&db).await;
    put(&replica, job("a", &json!({}))).await;
    db.sql("INSERT INTO slot (resource, n, root_id, taken_at_ms) VALUES ('job:a', 0, 999999, 0)");
    let run = start(&replica, "a").await;
    replica.until_state(run.task_id, S::Queued).await;
    replica.stop().await;
}

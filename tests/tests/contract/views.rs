//! Lists and watches, and who may call at all.

use systole_proto::v1;
use systole_proto::v1::TaskState as S;
use systole_tests::replica::{Replica, command};
use systole_tests::{SimRunner, TestDb, on_both_databases};

on_both_databases!(
    a_watch_by_filter_misses_none_of_a_large_batch,
    lists_page_newest_first_and_filter,
    a_watch_tells_every_end,
    every_call_needs_a_token,
);

async fn a_watch_by_filter_misses_none_of_a_large_batch(db: TestDb) {
    let replica = Replica::start(&db).await;
    let mut watch = replica
        .tasks()
        .watch(v1::WatchRequest::default())
        .await
        .expect("watch")
        .into_inner();
    let items = vec![
        v1::SubmitItem {
            spec: Some(command(&["true"])),
            key: String::new(),
        };
        2_500
    ];
    let request = v1::SubmitRequest {
        items,
        reason: String::new(),
    };
    let ids: std::collections::HashSet<i64> = replica
        .tasks()
        .submit(request)
        .await
        .expect("submit")
        .into_inner()
        .results
        .iter()
        .map(|result| result.id)
        .collect();
    let mut seen = std::collections::HashSet::new();
    while seen.len() < ids.len() {
        let message = tokio::time::timeout(systole_tests::wait::WAIT_MAX, watch.message());
        let task = message
            .await
            .expect("in time")
            .expect("state")
            .and_then(|m| m.task)
            .expect("task");
        seen.insert(task.id);
    }
    assert_eq!(seen, ids);
    drop(watch);
    replica.stop().await;
}

async fn lists_page_newest_first_and_filter(db: TestDb) {
    let replica = Replica::start(&db).await;
    let mut ids = Vec::new();
    for index in 0..25 {
        let spec = v1::TaskSpec {
            name: if index % 5 == 0 { "five".into() } else { String::new() },
            tags: if index % 2 == 0 { vec!["even".into()] } else { vec![] },
            ..command(&["true", &"x".repeat(index * 500)])
        };
        ids.push(replica.submit(spec).await);
    }
    replica.cancel(ids[3]).await;
    let list = |filter: v1::TaskFilter, limit: u32| {
        let mut tasks = replica.tasks();
        async move {
            let mut all = Vec::new();
            let mut page_token = String::new();
            loop {
                let request = v1::ListRequest {
                    filter: Some(filter.clone()),
                    limit,
                    page_token,
                };
                let page = tasks.list(request).await.expect("list").into_inner();
                assert!(page.tasks.len() <= usize::try_from(limit).expect("small"));
                all.extend(page.tasks.iter().map(|task| task.id));
                page_token = page.next_page_token;
                if page_token.is_empty() {
                    return all;
                }
            }
        }
    };
    let newest_first: Vec<i64> = ids.iter().rev().copied().collect();
    assert_eq!(list(v1::TaskFilter::default(), 10).await, newest_first);
    let named = v1::TaskFilter {
        name: "five".into(),
        ..Default::default()
    };
    assert_eq!(list(named, 2).await.len(), 5);
    let tagged = v1::TaskFilter {
        tag: "even".into(),
        ..Default::default()
    };
    assert_eq!(list(tagged, 100).await.len(), 13);
    let cancelled = v1::TaskFilter {
        states: vec![S::Terminated.into()],
        ..Default::default()
    };
    assert_eq!(list(cancelled, 100).await, [ids[3]]);
    for (limit, token) in [(1_001, ""), (1, "x")] {
        let request = v1::ListRequest {
            filter: None,
            limit,
            page_token: token.into(),
        };
        let refused = replica.tasks().list(request).await.expect_err("refused");
        assert_eq!(refused.code(), tonic::Code::InvalidArgument);
    }
    replica.stop().await;
}

async fn a_watch_tells_every_end(db: TestDb) {
    let replica = Replica::start(&db).await;
    let id = replica.submit(command(&["true"])).await;
    let request = v1::WatchRequest {
        ids: vec![id],
        ..Default::default()
    };
    let mut watch = replica.tasks().watch(request).await.expect("watch").into_inner();
    assert_eq!(
        watch
            .message()
            .await
            .expect("state")
            .and_then(|m| m.task)
            .expect("task")
            .state(),
        S::Queued
    );
    let matching = v1::WatchRequest::default();
    let mut all = replica.tasks().watch(matching).await.expect("watch").into_inner();
    let mut runner = SimRunner::new(&replica, "a", 0);
    runner.take().await;
    let result = runner.success(id);
    runner.ended(result).await;
    let mut last = S::Unspecified;
    while let Some(message) = watch.message().await.expect("state") {
        last = message.task.expect("task").state();
    }
    assert_eq!(last, S::Finished);
    let other = replica.submit(command(&["true"])).await;
    replica.cancel(other).await;
    loop {
        let task = all.message().await.expect("state").and_then(|m| m.task).expect("task");
        if task.id == other && task.state() == S::Terminated {
            break;
        }
    }
    let missing = v1::WatchRequest {
        ids: vec![9_999],
        ..Default::default()
    };
    let mut missing = replica.tasks().watch(missing).await.expect("watch").into_inner();
    assert_eq!(
        missing.message().await.expect_err("no such task").code(),
        tonic::Code::NotFound
    );
    drop((watch, all, missing));
    replica.stop().await;
}

async fn every_call_needs_a_token(db: TestDb) {
    use systole_tests::replica::Token;
    let replica = Replica::start(&db).await;
    let wrong = Token(Some("Bearer systole_admin_0000".parse().expect("header")));
    for token in [Token(None), wrong] {
        let mut tasks = replica.tasks_with(token);
        let refused = tasks.count(v1::CountRequest::default()).await.expect_err("refused");
        assert_eq!(refused.code(), tonic::Code::Unauthenticated);
    }
    // A runner may beat, and nothing else.
    let mut tasks = replica.tasks_with(replica.runner_token());
    let refused = tasks.count(v1::CountRequest::default()).await.expect_err("refused");
    assert_eq!(refused.code(), tonic::Code::PermissionDenied);
    replica.stop().await;
}

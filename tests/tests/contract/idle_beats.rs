//! The beats of many idle slots in one call.

use std::time::Duration;
use systole_proto::v1;
use systole_tests::replica::{Replica, command};
use systole_tests::wait::until;
use systole_tests::{SimRunner, TestDb, on_both_databases};
use tonic::{Code, Status, Streaming};

on_both_databases!(
    one_task_answers_one_of_the_idle_slots_and_the_others_go_on_waiting,
    idle_slots_in_one_call_are_answered_at_the_end_of_their_parking,
    a_beat_that_is_refused_leaves_the_others_of_its_call_alone,
    a_beat_by_itself_supersedes_the_one_that_waits_among_others,
    idle_slots_whose_call_goes_away_are_given_nothing,
    a_call_of_many_beats_takes_idle_slots_of_one_host_only,
);

/// Longer than any of these tests.
const LONG_MS: u64 = 60_000;

fn slots(replica: &Replica, count: u32) -> Vec<SimRunner> {
    (0..count).map(|slot| SimRunner::new(replica, "a", slot)).collect()
}

async fn together(runners: &mut [SimRunner], ms: u64) -> Result<Streaming<v1::HeartbeatIdleResponse>, Status> {
    let beats = runners.iter_mut().map(|runner| runner.idle_of_many(ms)).collect();
    let mut client = runners[0].client.clone();
    let answer = client.heartbeat_idle(v1::HeartbeatIdleRequest { beats }).await?;
    Ok(answer.into_inner())
}

/// The next message.
async fn next(stream: &mut Streaming<v1::HeartbeatIdleResponse>) -> Vec<v1::IdleAnswer> {
    let message = stream.message().await.expect("the stream lives");
    message.expect("an answer").answers
}

/// All that comes until the stream ends.
async fn rest(stream: &mut Streaming<v1::HeartbeatIdleResponse>) -> Vec<v1::IdleAnswer> {
    let mut all = Vec::new();
    while let Some(message) = stream.message().await.expect("the stream lives") {
        all.extend(message.answers);
    }
    all.sort_by_key(|answer| answer.slot);
    all
}

async fn parked(replica: &Replica, count: usize) {
    until("the beats are parked", || async {
        (replica.running.context.parked_beats() == count).then_some(())
    })
    .await;
}

/// A beat may be held back for this long.
async fn slow_beats(db: &TestDb) -> Replica {
    let mut config = Replica::config(db);
    config.timing.beat = Duration::from_millis(LONG_MS);
    config.timing.lost_after = Duration::from_millis(3 * LONG_MS);
    Replica::start_with(config).await
}

async fn one_task_answers_one_of_the_idle_slots_and_the_others_go_on_waiting(db: TestDb) {
    let replica = slow_beats(&db).await;
    let mut runners = slots(&replica, 3);
    let mut stream = together(&mut runners, LONG_MS).await.expect("taken");
    parked(&replica, 3).await;
    for left in [2, 1, 0] {
        let id = replica.submit(command(&["true"])).await;
        let answers = next(&mut stream).await;
        let [answer] = answers.as_slice() else {
            panic!("one slot is answered: {answers:?}");
        };
        let run = answer.answer.as_ref().and_then(|answer| answer.run.as_ref());
        assert_eq!(run.expect("RUN_NEW").task_id, id);
        parked(&replica, left).await;
        let runner = &mut runners[answer.slot as usize];
        assert_eq!(answer.seq, runner.beat.seq);
        let result = runner.success(id);
        runner.ended(result).await;
    }
    assert!(
        rest(&mut stream).await.is_empty(),
        "the stream ends with its last answer"
    );
    replica.stop().await;
}

async fn idle_slots_in_one_call_are_answered_at_the_end_of_their_parking(db: TestDb) {
    let replica = slow_beats(&db).await;
    let mut runners = slots(&replica, 40);
    let mut stream = together(&mut runners, 300).await.expect("taken");
    let answers = rest(&mut stream).await;
    assert_eq!(answers.len(), 40);
    for (slot, answer) in (0..).zip(&answers) {
        let go_on = answer.answer.as_ref().expect("not refused");
        assert_eq!((answer.slot, answer.seq, go_on.seq), (slot, 1, 1));
        assert_eq!(go_on.command(), v1::Command::GoOn);
        assert!(!go_on.cluster_id.is_empty());
    }
    replica.stop().await;
}

async fn a_beat_that_is_refused_leaves_the_others_of_its_call_alone(db: TestDb) {
    let replica = slow_beats(&db).await;
    let mut runners = slots(&replica, 3);
    runners[1].idle().await;
    // Another process with the same name.
    runners[1].beat.instance_id = "another".into();
    let mut stream = together(&mut runners, LONG_MS).await.expect("taken");
    let answers = next(&mut stream).await;
    assert!(
        matches!(answers.as_slice(), [refused] if refused.slot == 1 && refused.answer.is_none()),
        "{answers:?}"
    );
    parked(&replica, 2).await;
    let why = runners[1].try_idle().await.expect_err("by itself it is told why");
    assert_eq!(why.code(), Code::AlreadyExists);
    replica.stop().await;
}

async fn a_beat_by_itself_supersedes_the_one_that_waits_among_others(db: TestDb) {
    let replica = slow_beats(&db).await;
    let mut runners = slots(&replica, 2);
    let mut stream = together(&mut runners, LONG_MS).await.expect("taken");
    parked(&replica, 2).await;
    let mut alone = runners[0].clone();
    let given = tokio::spawn(async move { alone.take().await.task_id });
    let answers = next(&mut stream).await;
    assert!(
        matches!(answers.as_slice(), [old] if old.slot == 0 && old.answer.as_ref().is_some_and(|answer| answer.run.is_none())),
        "{answers:?}"
    );
    let ids = [
        replica.submit(command(&["true"])).await,
        replica.submit(command(&["true"])).await,
    ];
    let second = next(&mut stream).await;
    let run = second[0]
        .answer
        .as_ref()
        .and_then(|answer| answer.run.as_ref())
        .expect("RUN_NEW");
    let mut got = [given.await.expect("no panic"), run.task_id];
    got.sort_unstable();
    assert_eq!(got, ids, "each task is given once");
    replica.stop().await;
}

async fn idle_slots_whose_call_goes_away_are_given_nothing(db: TestDb) {
    let replica = slow_beats(&db).await;
    let mut runners = slots(&replica, 3);
    let stream = together(&mut runners, LONG_MS).await.expect("taken");
    parked(&replica, 3).await;
    drop(stream);
    parked(&replica, 0).await;
    let id = replica.submit(command(&["true"])).await;
    assert_eq!(replica.state(id).await, v1::TaskState::Queued);
    assert_eq!(runners[2].take().await.task_id, id);
    replica.stop().await;
}

async fn a_call_of_many_beats_takes_idle_slots_of_one_host_only(db: TestDb) {
    let replica = slow_beats(&db).await;
    let refused = async |change: fn(&mut v1::HeartbeatRequest)| {
        let mut runners = slots(&replica, 2);
        let mut beats: Vec<_> = runners.iter_mut().map(|runner| runner.idle_of_many(LONG_MS)).collect();
        change(&mut beats[1]);
        let call = runners[0]
            .client
            .heartbeat_idle(v1::HeartbeatIdleRequest { beats })
            .await;
        let status = call.expect_err("refused");
        assert_eq!(status.code(), Code::InvalidArgument, "{status:?}");
        status.message().to_owned()
    };
    assert!(refused(|beat| beat.host = "b".into()).await.contains("beats[1].host"));
    assert!(refused(|beat| beat.park_ms = 0).await.contains("beats[1].status"));
    assert!(refused(|beat| beat.leaving = true).await.contains("by itself"));
    assert!(refused(|beat| beat.unanswered = 1).await.contains("by itself"));
    let busy = refused(|beat| {
        beat.status = v1::RunnerStatus::Running.into();
        beat.task_id = 1;
    });
    assert!(busy.await.contains("by itself"));
    let mut client = replica.beats();
    let nobody = client.heartbeat_idle(v1::HeartbeatIdleRequest::default()).await;
    assert!(nobody.expect_err("refused").message().contains("1 to 256"));
    assert_eq!(replica.running.context.parked_beats(), 0);
    replica.stop().await;
}

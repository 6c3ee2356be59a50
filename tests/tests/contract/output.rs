//! Output beyond its limit: which bytes are stored, and what readers are told.

use systole_proto::v1;
use systole_proto::v1::TaskState as S;
use systole_tests::output::{HALF, MAX, bytes, chunk, limited, upload};
use systole_tests::replica::{Replica, command};
use systole_tests::wait::until;
use systole_tests::{SimRunner, TestDb, on_both_databases};

on_both_databases!(
    of_a_long_stream_head_and_tail_are_stored_and_the_gap_is_told,
    the_tail_goes_with_the_stream_and_what_is_sent_twice_changes_nothing,
    a_follower_whose_offset_is_in_the_gap_goes_on_at_the_tail,
    a_limit_outside_its_range_is_refused,
    bytes_have_the_time_when_they_were_seen,
    a_task_may_have_its_output_kept_for_less_or_more_time,
);

/// What a reader gets: the bytes, and the gaps as `(offset, bytes)`.
async fn read(replica: &Replica, id: i64, offset: u64, follow: bool) -> (Vec<u8>, Vec<(u64, u64)>) {
    let request = v1::ReadOutputRequest {
        task_id: id,
        stream: v1::OutputStream::Stdout.into(),
        offset,
        follow,
        ..Default::default()
    };
    let mut stream = replica.tasks().read_output(request).await.expect("read").into_inner();
    let (mut all, mut gaps, mut at) = (Vec::new(), Vec::new(), offset);
    while let Some(piece) = stream.message().await.expect("piece") {
        if let Some(gap) = piece.gap {
            assert_eq!((gap.offset, gap.offset + gap.bytes), (at, piece.offset));
            gaps.push((gap.offset, gap.bytes));
        } else {
            assert_eq!(piece.offset, at);
        }
        at = piece.offset + piece.data.len() as u64;
        all.extend(piece.data);
    }
    (all, gaps)
}

async fn of_a_long_stream_head_and_tail_are_stored_and_the_gap_is_told(db: TestDb) {
    let replica = Replica::start(&db).await;
    let id = replica.submit(limited()).await;
    let mut runner = SimRunner::new(&replica, "a", 0);
    runner.take().await;
    upload(&mut runner, vec![chunk(id, 0, HALF)]).await;
    let size = 1_000_000;
    let answer = upload(&mut runner, vec![chunk(id, size - HALF, size)]).await;
    assert_eq!((answer.stored_to, answer.gap_end), (size, size - HALF));
    let mut result = runner.success(id);
    result.stdout_bytes = size;
    runner.ended(result).await;
    let task = replica.task(id).await;
    assert_eq!((task.stdout_bytes, task.stdout_dropped_bytes), (MAX, size - MAX));
    let gap = task.stdout_gap.expect("a gap");
    assert_eq!((gap.offset, gap.bytes), (HALF, size - MAX));
    let (all, gaps) = read(&replica, id, 0, false).await;
    assert!(all == [bytes(0, HALF), bytes(size - HALF, size)].concat());
    assert_eq!(gaps, [(HALF, size - MAX)]);
    let (rest, gaps) = read(&replica, id, size - 10, true).await;
    assert_eq!((rest, gaps), (bytes(size - 10, size), vec![]));
    replica.stop().await;
}

async fn the_tail_goes_with_the_stream_and_what_is_sent_twice_changes_nothing(db: TestDb) {
    let replica = Replica::start(&db).await;
    let id = replica.submit(limited()).await;
    let mut runner = SimRunner::new(&replica, "a", 0);
    runner.take().await;
    // In pieces that fit no edge, each twice, and now and then an old one again.
    let mut at = 0;
    let mut sent: Vec<(u64, u64)> = Vec::new();
    while at < 5 * MAX {
        let to = at + 1_111;
        for (from, to) in [(at, to), (at, to), sent.get(sent.len() / 2).copied().unwrap_or((0, 1))] {
            upload(&mut runner, vec![chunk(id, from, to)]).await;
        }
        sent.push((at, to));
        at = to;
        let task = replica.task(id).await;
        assert_eq!(task.stdout_bytes, at.min(MAX));
        let (all, gaps) = read(&replica, id, 0, false).await;
        let tail_from = if at > MAX { at - HALF } else { HALF.min(at) };
        assert!(
            all == [bytes(0, HALF.min(at)), bytes(tail_from, at)].concat(),
            "after {at}"
        );
        assert_eq!(gaps.len(), usize::from(at > MAX));
    }
    // A flood is left out for now, and when the end is known the tail is filled, from behind.
    let size = at + 100_000;
    upload(&mut runner, vec![chunk(id, size - 100, size)]).await;
    let (all, _) = read(&replica, id, 0, false).await;
    assert!(all == [bytes(0, HALF), bytes(size - 100, size)].concat());
    for (from, to) in [
        (3_000, 100),
        (6_000, 3_000),
        (HALF + 500, 6_000),
        (6_000, 3_000),
        (90_000, 50),
    ] {
        upload(&mut runner, vec![chunk(id, size - from, size - to)]).await;
    }
    let (all, gaps) = read(&replica, id, 0, false).await;
    assert!(all == [bytes(0, HALF), bytes(size - HALF, size)].concat());
    assert_eq!(gaps, [(HALF, size - MAX)]);
    for offset in [size - HALF, size - 5_999, size - 3_000, size - 99] {
        assert!(
            read(&replica, id, offset, false).await.0 == bytes(offset, size),
            "{offset}"
        );
    }
    replica.stop().await;
}

async fn a_follower_whose_offset_is_in_the_gap_goes_on_at_the_tail(db: TestDb) {
    let replica = Replica::start(&db).await;
    let id = replica.submit(limited()).await;
    let mut runner = SimRunner::new(&replica, "a", 0);
    runner.take().await;
    upload(&mut runner, vec![chunk(id, 0, MAX)]).await;
    upload(&mut runner, vec![chunk(id, 50_000, 50_100)]).await;
    let request = v1::ReadOutputRequest {
        task_id: id,
        stream: v1::OutputStream::Stdout.into(),
        offset: HALF + 7,
        follow: true,
        ..Default::default()
    };
    let mut stream = replica.tasks().read_output(request).await.expect("read").into_inner();
    let piece = stream.message().await.expect("piece").expect("the gap");
    let gap = piece.gap.expect("the gap");
    assert_eq!((gap.offset, gap.bytes), (HALF + 7, 50_000 - HALF - 7));
    let piece = stream.message().await.expect("piece").expect("the tail");
    assert_eq!((piece.offset, piece.data), (50_000, bytes(50_000, 50_100)));
    // And on, live.
    upload(&mut runner, vec![chunk(id, 50_100, 50_200)]).await;
    let piece = stream.message().await.expect("piece").expect("what is new");
    assert_eq!((piece.offset, piece.data), (50_100, bytes(50_100, 50_200)));
    let mut result = runner.success(id);
    result.stdout_bytes = 50_200;
    runner.ended(result).await;
    assert!(stream.message().await.expect("end").is_none());
    assert_eq!(replica.state(id).await, S::Finished);
    replica.stop().await;
}

async fn a_limit_outside_its_range_is_refused(db: TestDb) {
    let replica = Replica::start(&db).await;
    for (output, field) in [
        (
            v1::OutputPolicy {
                max_bytes: 1,
                ..Default::default()
            },
            "output.max_bytes",
        ),
        (
            v1::OutputPolicy {
                on_limit: 9,
                ..Default::default()
            },
            "output.on_limit",
        ),
        (
            v1::OutputPolicy {
                keep_ms: u64::MAX,
                ..Default::default()
            },
            "output.keep_ms",
        ),
    ] {
        let item = v1::SubmitItem {
            spec: Some(v1::TaskSpec {
                output: Some(output),
                ..command(&["true"])
            }),
            key: String::new(),
        };
        let request = v1::SubmitRequest {
            items: vec![item],
            reason: String::new(),
        };
        let refused = match replica.tasks().submit(request).await {
            Ok(answer) => answer.into_inner().results.remove(0).error.expect("refused").field,
            Err(status) => status
                .metadata()
                .get("systole-error-field")
                .and_then(|field| field.to_str().ok())
                .unwrap_or_default()
                .to_owned(),
        };
        assert!(refused.ends_with(field), "{refused}");
    }
    replica.stop().await;
}

async fn bytes_have_the_time_when_they_were_seen(db: TestDb) {
    let replica = Replica::start(&db).await;
    let id = replica.submit(limited()).await;
    let mut runner = SimRunner::new(&replica, "a", 0);
    runner.take().await;
    let aged = |from, to, age_ms| v1::OutputChunk {
        age_ms,
        ..chunk(id, from, to)
    };
    let hour = 3_600_000;
    let before = systole_shared::clock::now_ms();
    upload(
        &mut runner,
        vec![aged(0, 100, 2 * hour), aged(100, 300, hour), aged(300, 310, 0)],
    )
    .await;
    let after = systole_shared::clock::now_ms();
    let read = async |since_ms: i64, times: bool| {
        let request = v1::ReadOutputRequest {
            task_id: id,
            stream: v1::OutputStream::Stdout.into(),
            since_ms: u64::try_from(since_ms).expect("after 1970"),
            times,
            ..Default::default()
        };
        let mut stream = replica.tasks().read_output(request).await.expect("read").into_inner();
        let mut pieces = Vec::new();
        while let Some(piece) = stream.message().await.expect("piece") {
            assert_eq!(piece.gap, None);
            pieces.push((piece.offset, piece.data, piece.seen_at_ms));
        }
        pieces
    };
    let all = read(0, true).await;
    let cuts: Vec<(u64, usize)> = all.iter().map(|(offset, data, _)| (*offset, data.len())).collect();
    assert_eq!(cuts, [(0, 100), (100, 200), (300, 10)]);
    for ((_, _, seen_at_ms), age) in all.iter().zip([2 * hour, hour, 0]) {
        let (seen, age) = (
            i64::try_from(*seen_at_ms).expect("small"),
            i64::try_from(age).expect("small"),
        );
        // The database has a clock of its own.
        assert!((before - age - 2_000..=after - age + 2_000).contains(&seen), "{seen}");
    }
    // Without the wish, one piece and no time.
    assert_eq!(read(0, false).await, [(0, bytes(0, 310), 0)]);
    let late = read(after - 90 * 60_000, false).await;
    assert_eq!(late, [(100, bytes(100, 310), 0)]);
    assert_eq!(read(after - 60_000, true).await.len(), 1);
    assert_eq!(read(after + 60_000, true).await, []);
    replica.stop().await;
}

async fn a_task_may_have_its_output_kept_for_less_or_more_time(db: TestDb) {
    let mut config = Replica::config(&db);
    config.retention.keep = std::time::Duration::from_secs(3);
    config.retention.period = std::time::Duration::from_millis(100);
    let replica = Replica::start_with(config).await;
    let mut runner = SimRunner::new(&replica, "a", 0);
    let mut ids = Vec::new();
    for keep_ms in [1, 0, 3_600_000] {
        let spec = v1::TaskSpec {
            output: Some(v1::OutputPolicy {
                keep_ms,
                ..Default::default()
            }),
            ..command(&["true"])
        };
        let id = replica.submit(spec).await;
        runner.take().await;
        let mut result = runner.success(id);
        result.stdout_bytes = 1_000;
        result.output = vec![chunk(id, 0, 1_000)];
        runner.ended(result).await;
        ids.push(id);
    }
    let get = async |id: i64| {
        let request = v1::GetRequest { ids: vec![id] };
        let response = replica.tasks().get(request).await.expect("get").into_inner();
        response.results[0].task.clone()
    };
    until("the output of the first is gone, and the task is not", || async {
        get(ids[0])
            .await
            .is_some_and(|task| task.stdout_bytes == 0)
            .then_some(())
    })
    .await;
    assert_eq!(get(ids[0]).await.expect("still there").stdout_dropped_bytes, 1_000);
    assert_eq!(read(&replica, ids[0], 0, true).await, (vec![], vec![(0, 1_000)]));
    until("the two that want no more are gone", || async {
        (get(ids[0]).await.is_none() && get(ids[1]).await.is_none()).then_some(())
    })
    .await;
    assert_eq!(get(ids[2]).await.expect("kept with its output").stdout_bytes, 1_000);
    assert!(read(&replica, ids[2], 0, true).await.0 == bytes(0, 1_000));
    replica.stop().await;
}

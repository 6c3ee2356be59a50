//! Full output, from the host that has it to somebody who reads, over any replica.

use systole_proto::v1;
use systole_tests::output::{HALF, bytes, ended_with_a_gap, next_fetch, put_fetched};
use systole_tests::replica::Replica;
use systole_tests::wait::until;
use systole_tests::{SimRunner, TestDb, on_both_databases};
use tonic::{Code, Status, Streaming};

on_both_databases!(
    what_is_not_stored_is_fetched_from_its_host,
    a_host_that_has_it_no_more_says_so,
    nothing_is_sent_to_a_reader_who_is_gone,
    a_slow_reader_makes_his_host_wait,
);

const SIZE: u64 = 8_000_000;

async fn read(replica: &Replica, id: i64) -> Streaming<v1::ReadOutputResponse> {
    let request = v1::ReadOutputRequest {
        task_id: id,
        stream: v1::OutputStream::Stdout.into(),
        full: true,
        ..Default::default()
    };
    replica.tasks().read_output(request).await.expect("read").into_inner()
}

/// All that comes: bytes, gaps, and how it ended.
async fn rest(mut stream: Streaming<v1::ReadOutputResponse>) -> (Vec<u8>, Vec<(u64, u64)>, Option<Status>) {
    let (mut all, mut gaps, mut at) = (Vec::new(), Vec::new(), 0);
    loop {
        match stream.message().await {
            Ok(Some(piece)) => {
                let gap = piece.gap.map_or(0, |gap| gap.bytes);
                assert_eq!(piece.offset, at + gap, "no byte comes twice or in another place");
                if gap > 0 {
                    gaps.push((at, gap));
                }
                at = piece.offset + piece.data.len() as u64;
                all.extend(piece.data);
            }
            Ok(None) => return (all, gaps, None),
            Err(status) => return (all, gaps, Some(status)),
        }
    }
}

async fn what_is_not_stored_is_fetched_from_its_host(db: TestDb) {
    // The reader at one replica, the host at another, where databases have several.
    let replica = Replica::start(&db).await;
    let mut runner = SimRunner::new(&replica, "a", 0);
    let id = ended_with_a_gap(&replica, &mut runner, SIZE).await;
    assert_eq!(next_fetch(&mut runner, 0).await.fetch_id, 0, "nobody reads");
    let mut waiting = runner.clone();
    let waiting = tokio::spawn(async move { next_fetch(&mut waiting, 20_000).await });
    let reading = tokio::spawn(rest(read(&replica, id).await));
    let order = waiting.await.expect("a call");
    assert_eq!((order.task_id, order.offset, order.end), (id, HALF, SIZE - HALF));
    assert_eq!(order.stream(), v1::OutputStream::Stdout);
    // In pieces, one of them twice, and a part that the host itself has lost.
    let step = 200_000;
    let (mut at, lost) = (order.offset, 1_000_000..1_300_000);
    while at < order.end {
        let mut to = (at + step).min(order.end);
        if lost.contains(&at) {
            at = lost.end;
            continue;
        }
        if at < lost.start {
            to = to.min(lost.start);
        }
        for _ in 0..2 {
            while put_fetched(&mut runner, order.fetch_id, at, to).await.wait {
                tokio::time::sleep(std::time::Duration::from_millis(10)).await;
            }
            // Only the first one is sent again: a later one may find that all was read.
            if at != order.offset {
                break;
            }
        }
        at = to;
    }
    let (all, gaps, status) = reading.await.expect("a reader");
    assert!(status.is_none(), "{status:?}");
    assert_eq!(gaps, [(lost.start, lost.end - lost.start)]);
    assert!(all == [bytes(0, lost.start), bytes(lost.end, SIZE)].concat());
    // Nothing is left of it.
    assert_eq!(next_fetch(&mut runner, 0).await.fetch_id, 0);
    assert!(put_fetched(&mut runner, order.fetch_id, 0, 10).await.gone);
    replica.stop().await;
}

async fn a_host_that_has_it_no_more_says_so(db: TestDb) {
    let replica = Replica::start(&db).await;
    let mut runner = SimRunner::new(&replica, "a", 0);
    let id = ended_with_a_gap(&replica, &mut runner, SIZE).await;
    let reading = tokio::spawn(rest(read(&replica, id).await));
    let order = next_fetch(&mut runner, 20_000).await;
    // Another host has no business with it.
    let foreign = v1::PutFetchedRequest {
        host: "b".into(),
        fetch_id: order.fetch_id,
        offset: order.offset,
        data: vec![0; 10],
        error: String::new(),
    };
    assert!(
        runner
            .client
            .put_fetched(foreign)
            .await
            .expect("answer")
            .into_inner()
            .gone
    );
    let request = v1::PutFetchedRequest {
        host: "a".into(),
        fetch_id: order.fetch_id,
        error: "a does not have it".into(),
        ..Default::default()
    };
    runner.client.put_fetched(request).await.expect("answer");
    let (all, _, status) = reading.await.expect("a reader");
    let status = status.expect("an error");
    assert_eq!(
        (status.code(), status.message()),
        (Code::NotFound, "a does not have it")
    );
    assert!(all == bytes(0, HALF), "what comes before is read all the same");
    replica.stop().await;
}

async fn nothing_is_sent_to_a_reader_who_is_gone(db: TestDb) {
    let replica = Replica::start(&db).await;
    let mut runner = SimRunner::new(&replica, "a", 0);
    let id = ended_with_a_gap(&replica, &mut runner, SIZE).await;
    let stream = read(&replica, id).await;
    let order = next_fetch(&mut runner, 20_000).await;
    drop(stream);
    let (at, to) = (order.offset, order.offset + 1_000);
    until("the request is gone", || {
        let mut runner = runner.clone();
        async move {
            put_fetched(&mut runner, order.fetch_id, at, to)
                .await
                .gone
                .then_some(())
        }
    })
    .await;
    replica.stop().await;
}

async fn a_slow_reader_makes_his_host_wait(db: TestDb) {
    let replica = Replica::start(&db).await;
    let mut runner = SimRunner::new(&replica, "a", 0);
    let id = ended_with_a_gap(&replica, &mut runner, SIZE).await;
    let stream = read(&replica, id).await;
    let order = next_fetch(&mut runner, 20_000).await;
    // He does not read: what is on its way to him is bounded.
    let step = 100_000;
    let mut at = order.offset;
    loop {
        let to = (at + step).min(order.end);
        assert!(at < order.end, "all was taken though nobody reads");
        if put_fetched(&mut runner, order.fetch_id, at, to).await.wait {
            break;
        }
        at = to;
    }
    let reading = tokio::spawn(rest(stream));
    while at < order.end {
        let to = (at + step).min(order.end);
        let answer = put_fetched(&mut runner, order.fetch_id, at, to).await;
        assert!(!answer.gone);
        if answer.wait {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        } else {
            at = to;
        }
    }
    let (all, gaps, status) = reading.await.expect("a reader");
    assert!(status.is_none() && gaps.is_empty() && all == bytes(0, SIZE));
    replica.stop().await;
}

//! Output as runners send it, without processes: each offset has a byte of its own.

use crate::SimRunner;
use crate::replica::{Replica, command};
use systole_proto::v1;

/// What is stored of a stream of [`limited`] tasks: half of it from the begin, half from the end.
pub const MAX: u64 = 16 * 1024;
pub const HALF: u64 = MAX / 2;

/// The bytes that every test writes.
pub fn bytes(from: u64, to: u64) -> Vec<u8> {
    (from..to).map(|n| u8::try_from(n % 251).expect("small")).collect()
}

pub fn chunk(task_id: i64, from: u64, to: u64) -> v1::OutputChunk {
    v1::OutputChunk {
        task_id,
        stream: v1::OutputStream::Stdout.into(),
        offset: from,
        data: bytes(from, to),
        age_ms: 0,
    }
}

/// A task of which [`MAX`] is stored.
pub fn limited() -> v1::TaskSpec {
    v1::TaskSpec {
        output: Some(v1::OutputPolicy {
            max_bytes: MAX,
            ..Default::default()
        }),
        ..command(&["true"])
    }
}

/// Sends chunks as this host and returns the answer to the last of them.
pub async fn upload_as(runner: &mut SimRunner, host: &str, chunks: Vec<v1::OutputChunk>) -> v1::UploadOutputResult {
    let request = v1::UploadOutputRequest {
        host: host.into(),
        chunks,
        ..Default::default()
    };
    let answer = runner.client.upload_output(request).await.expect("upload").into_inner();
    answer.results.last().cloned().expect("a result for each")
}

/// As [`upload_as`] the runner's own host, which must work.
pub async fn upload(runner: &mut SimRunner, chunks: Vec<v1::OutputChunk>) -> v1::UploadOutputResult {
    let host = runner.beat.host.clone();
    let last = upload_as(runner, &host, chunks).await;
    assert_eq!(last.error, None);
    last
}

/// A task that wrote `size` bytes and ended well; only its host has the middle of them.
pub async fn ended_with_a_gap(replica: &Replica, runner: &mut SimRunner, size: u64) -> i64 {
    let id = replica.submit(limited()).await;
    runner.take().await;
    for (from, to) in [(0, HALF), (size - HALF, size)] {
        upload(runner, vec![chunk(id, from, to)]).await;
    }
    let mut result = runner.success(id);
    result.stdout_bytes = size;
    runner.ended(result).await;
    id
}

/// Asks what the runner's host is to send of what is not stored.
pub async fn next_fetch(runner: &mut SimRunner, park_ms: u64) -> v1::NextFetchResponse {
    let request = v1::NextFetchRequest {
        host: runner.beat.host.clone(),
        instance_id: runner.beat.instance_id.clone(),
        park_ms,
    };
    runner.client.next_fetch(request).await.expect("answer").into_inner()
}

/// Sends these bytes to whoever reads.
pub async fn put_fetched(runner: &mut SimRunner, fetch_id: i64, from: u64, to: u64) -> v1::PutFetchedResponse {
    let request = v1::PutFetchedRequest {
        host: runner.beat.host.clone(),
        fetch_id,
        offset: from,
        data: bytes(from, to),
        error: String::new(),
    };
    runner.client.put_fetched(request).await.expect("answer").into_inner()
}

//! Output is stored once, however it comes.

use systole_proto::v1;
use systole_tests::output::upload_as;
use systole_tests::replica::{Replica, command};
use systole_tests::{SimRunner, TestDb, on_both_databases};

on_both_databases!(
    output_is_stored_once_whatever_is_sent_twice,
    an_upload_and_a_result_with_the_same_bytes_lose_nothing,
);

async fn read_all(replica: &Replica, id: i64, offset: u64) -> Vec<u8> {
    let request = v1::ReadOutputRequest {
        task_id: id,
        stream: v1::OutputStream::Stdout.into(),
        offset,
        follow: true,
        ..Default::default()
    };
    let mut stream = replica.tasks().read_output(request).await.expect("read").into_inner();
    let mut bytes = Vec::new();
    while let Some(piece) = stream.message().await.expect("piece") {
        assert_eq!(piece.offset, offset + bytes.len() as u64);
        bytes.extend(piece.data);
    }
    bytes
}

async fn output_is_stored_once_whatever_is_sent_twice(db: TestDb) {
    let replica = Replica::start(&db).await;
    let id = replica.submit(command(&["true"])).await;
    let mut runner = SimRunner::new(&replica, "a", 0);
    runner.take().await;
    let bytes: Vec<u8> = (0..=255).cycle().take(1_000).collect();
    let chunk = |from: usize, to: usize| v1::OutputChunk {
        age_ms: 0,
        task_id: id,
        stream: v1::OutputStream::Stdout.into(),
        offset: from as u64,
        data: bytes[from..to].to_vec(),
    };
    // In pieces, repeated, overlapping, with a gap that is refused, and for a task that does not exist.
    for (from, to, stored) in [(0, 400, 400), (0, 400, 400), (200, 700, 700), (900, 1_000, 700)] {
        let answer = upload_as(&mut runner, "a", vec![chunk(from, to)]).await;
        assert_eq!(answer.stored_to, stored, "{from}..{to}");
    }
    let nobodys = v1::OutputChunk {
        task_id: 999,
        ..chunk(0, 1)
    };
    let refused = upload_as(&mut runner, "", vec![nobodys]).await;
    assert_eq!(refused.error.expect("no task").code, "NOTFOUND_004");
    // Another host has no business with it.
    let refused = upload_as(&mut runner, "b", vec![chunk(700, 800)]).await;
    assert_eq!(refused.error.expect("not its task").code, "NOTFOUND_004");
    let mut result = runner.success(id);
    result.stdout_bytes = 1_000;
    result.output = vec![chunk(600, 1_000)];
    runner.ended(result).await;
    assert_eq!(read_all(&replica, id, 0).await, bytes);
    assert_eq!(read_all(&replica, id, 333).await, bytes[333..]);
    replica.stop().await;
}

async fn an_upload_and_a_result_with_the_same_bytes_lose_nothing(db: TestDb) {
    let replica = Replica::start(&db).await;
    let mut runner = SimRunner::new(&replica, "a", 0);
    for _ in 0..15 {
        let id = replica.submit(command(&["true"])).await;
        assert_eq!(runner.take().await.task_id, id);
        let chunk = |to: usize| v1::OutputChunk {
            age_ms: 0,
            task_id: id,
            stream: v1::OutputStream::Stdout.into(),
            offset: 0,
            data: vec![b'x'; to],
        };
        let upload = v1::UploadOutputRequest {
            chunks: vec![chunk(1)],
            host: "a".into(),
            ..Default::default()
        };
        let mut result = runner.success(id);
        result.stdout_bytes = 300;
        result.output = vec![chunk(300)];
        let mut client = runner.client.clone();
        let (uploaded, ended) = tokio::join!(client.upload_output(upload), runner.ended(result));
        uploaded.expect("upload");
        assert_eq!(ended.acknowledged, [id]);
        assert_eq!(read_all(&replica, id, 0).await.len(), 300);
    }
    replica.stop().await;
}

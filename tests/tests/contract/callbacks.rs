//! Callbacks: one row with the end of a task, and receivers that hang delay no others.

use std::time::Duration;
use systole_proto::v1;
use systole_proto::v1::TaskState as S;
use systole_tests::replica::{Replica, command};
use systole_tests::wait::until;
use systole_tests::{SimRunner, TestDb, on_both_databases};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

on_both_databases!(
    a_callback_row_is_written_with_the_end,
    receivers_that_hang_delay_no_other_delivery,
);

const HANGING: usize = 20;

/// Listens; what connects waits for an answer.
async fn listener() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}/hook", listener.local_addr().expect("address"));
    (listener, url)
}

async fn answer(listener: TcpListener) {
    loop {
        let (mut stream, _) = listener.accept().await.expect("accept");
        tokio::spawn(async move {
            let mut request = [0; 8_192];
            let read = stream.read(&mut request).await.unwrap_or(0);
            assert!(read > 0);
            let text = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
            drop(stream.write_all(text.as_bytes()).await);
        });
    }
}

async fn receivers_that_hang_delay_no_other_delivery(db: TestDb) {
    let mut config = Replica::config(&db);
    config.callbacks.timeout = Duration::from_secs(60);
    let replica = Replica::start_with(config).await;
    let mut runner = SimRunner::new(&replica, "a", 0);
    let mut hanging = Vec::new();
    for _ in 0..HANGING {
        hanging.push(listener().await);
    }
    // Three for each, the first of all receivers first.
    for (_, url) in hanging.iter().cycle().take(3 * HANGING) {
        ended(&replica, &mut runner, url).await;
    }
    let tried = || db.sql("SELECT count(*) FROM callback WHERE tries > 0");
    until("each of them has one", || async {
        (tried() == HANGING.to_string()).then_some(())
    })
    .await;

    let (good, url) = listener().await;
    let answers = tokio::spawn(answer(good));
    for _ in 0..20 {
        ended(&replica, &mut runner, &url).await;
    }
    until("the others are delivered", || async {
        let done = db.sql("SELECT count(*) FROM callback WHERE status = 'delivered'");
        (done == "20").then_some(())
    })
    .await;
    // They still hang, and none has more than one.
    assert_eq!(tried(), (HANGING + 20).to_string());
    assert_eq!(
        db.sql("SELECT count(*) FROM callback WHERE status = 'pending' AND last_error = ''"),
        (3 * HANGING).to_string()
    );
    answers.abort();
    // Their deliveries end with their connections.
    drop(hanging);
    replica.stop().await;
}

/// A task that ended, and whose end is to be told.
async fn ended(replica: &Replica, runner: &mut SimRunner, url: &str) {
    let spec = v1::TaskSpec {
        callback_url: url.into(),
        ..command(&["false"])
    };
    let id = replica.submit(spec).await;
    assert_eq!(runner.take().await.task_id, id);
    let result = runner.result(id, "exit_code", Some(1));
    runner.ended(result).await;
}

async fn a_callback_row_is_written_with_the_end(db: TestDb) {
    let mut config = Replica::config(&db);
    config.callbacks.allow_private = false;
    let replica = Replica::start_with(config).await;
    let spec = v1::TaskSpec {
        callback_url: "http://127.0.0.1:9/hook".into(),
        ..command(&["true"])
    };
    let failed = replica.submit(spec.clone()).await;
    let mut runner = SimRunner::new(&replica, "a", 0);
    runner.take().await;
    let result = runner.result(failed, "exit_code", Some(1));
    runner.ended(result).await;
    // A private address is refused for good, and the outcome does not depend on it.
    let task = until("the delivery is given up", || async {
        let task = replica.task(failed).await;
        (task.callback.as_ref()?.status == "failed").then_some(task)
    })
    .await;
    assert_eq!(task.state(), S::Failed);
    let callback = task.callback.expect("callback");
    assert!(callback.last_error.contains("private"), "{}", callback.last_error);
    assert!(callback.delivery_id.starts_with("msg_"));
    let finished = replica.submit(spec).await;
    runner.take().await;
    let result = runner.success(finished);
    runner.ended(result).await;
    replica.until_state(finished, S::Finished).await;
    replica.stop().await;
}

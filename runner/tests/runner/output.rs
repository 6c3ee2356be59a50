//! Output: all bytes, while the child runs and after.

use crate::fake::{Fake, eventually, spec};
use systole_proto::v1::{OutputStream, ResetReason, RunnerStatus};

#[tokio::test]
async fn output_is_sent_while_the_child_runs() {
    let mut fake = Fake::start().await;
    let _runner = fake.runner();
    // Without a newline: a stream of bytes, not of lines.
    fake.beat().await.run(
        1,
        &[
            "sh",
            "-c",
            "printf first; printf oops >&2; trap 'printf last; exit 4' TERM; sleep 300 & wait",
        ],
    );
    fake.beat_of(RunnerStatus::Running).await.go_on();
    eventually("both streams arrive", || {
        fake.uploaded(1, OutputStream::Stdout) == b"first" && fake.uploaded(1, OutputStream::Stderr) == b"oops"
    })
    .await;
    fake.beat().await.reset(1, ResetReason::Stop);
    let end = fake.end().await;
    let result = end.result();
    assert_eq!(fake.stdout(result), "firstlast");
    assert_eq!(result.output.len(), 1, "only what is new rides on the beat");
    assert_eq!(
        (result.stdout_bytes, result.stderr_bytes, result.exit_code),
        (9, 4, Some(4))
    );
}

#[tokio::test]
async fn a_large_output_is_stored_before_the_result_is_reported() {
    let mut fake = Fake::start().await;
    let _runner = fake.runner();
    let script = "head -c 3000000 /dev/urandom | tee copy; cp copy /dev/stderr; sha256sum copy >&2";
    let result = fake.run(1, spec(&["bash", "-c", script])).await;
    assert_eq!((result.kind.as_str(), result.stdout_bytes), ("success", 3_000_000));
    let stdout = fake.stream(&result, OutputStream::Stdout);
    let stderr = fake.stream(&result, OutputStream::Stderr);
    assert_eq!(stdout.len(), 3_000_000);
    assert!(stderr.len() as u64 == result.stderr_bytes && stderr[..3_000_000] == stdout[..]);
}

#[tokio::test]
async fn output_beyond_the_limit_is_counted_but_not_sent() {
    let mut fake = Fake::start().await;
    let _runner = fake.runner();
    let result = fake.run(1, spec(&["head", "-c", "9000000", "/dev/zero"])).await;
    assert_eq!(result.stdout_bytes, 9_000_000);
    assert_eq!(fake.stream(&result, OutputStream::Stdout).len(), 8 * 1024 * 1024);
}

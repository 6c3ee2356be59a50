//! Output: all bytes, while the child runs and after.

use crate::fake::{Fake, eventually, spec};
use systole_proto::v1;
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

/// Numbers that say where they stand: `seq -w`, eight bytes each.
fn numbers(from: u64, to: u64) -> Vec<u8> {
    (from..to).flat_map(|n| format!("{n:07}\n").into_bytes()).collect()
}

#[tokio::test]
async fn of_a_long_output_head_and_tail_are_stored_at_their_offsets() {
    let mut fake = Fake::start().await;
    let _runner = fake.runner();
    let result = fake.run(1, spec(&["seq", "-f", "%07.0f", "0", "2999999"])).await;
    assert_eq!((result.stdout_bytes, result.stderr_bytes), (24_000_000, 0));
    let stream = fake.stored(&result, OutputStream::Stdout);
    let half = 4 * 1024 * 1024;
    assert_eq!(
        (stream.stored.gap_start, stream.stored.gap_end, stream.stored.end),
        (half, 24_000_000 - half, 24_000_000)
    );
    let at = |offset: u64| usize::try_from(offset).expect("small");
    assert!(stream.bytes[..at(half)] == numbers(0, half / 8));
    assert!(stream.bytes[at(24_000_000 - half)..] == numbers(3_000_000 - half / 8, 3_000_000));
}

#[tokio::test]
async fn what_is_newest_of_a_flood_is_sent_while_it_goes_on() {
    let mut fake = Fake::start().await;
    let _runner = fake.runner();
    let script = "yes a-flood | head -c 40000000; echo now; trap 'echo bye; exit 0' TERM; sleep 300 & wait";
    fake.beat().await.run(1, &["sh", "-c", script]);
    fake.beat_of(RunnerStatus::Running).await.go_on();
    eventually("the newest bytes arrive", || {
        fake.uploaded(1, OutputStream::Stdout).ends_with(b"now\n")
    })
    .await;
    fake.beat().await.reset(1, ResetReason::Stop);
    let end = fake.end().await;
    let stream = fake.stored(end.result(), OutputStream::Stdout);
    assert_eq!(stream.stored.bytes(), 8 * 1024 * 1024, "the tail was filled up");
    assert!(stream.bytes.ends_with(b"now\nbye\n"));
}

#[tokio::test]
async fn a_task_may_ask_for_less_or_more_output() {
    let mut fake = Fake::start().await;
    let _runner = fake.runner();
    for (id, max) in [(1, 16 * 1024), (2, 20_000)] {
        let mut spec = spec(&["sh", "-c", "head -c 100000 /dev/zero | tr '\\0' x; printf end"]);
        spec.output = Some(v1::OutputPolicy {
            max_bytes: max,
            ..Default::default()
        });
        fake.store_at_most(id, max);
        let result = fake.run(id, spec).await;
        // All that is needed, and no more, is sent.
        let sent: usize = result.output.iter().map(|chunk| chunk.data.len()).sum();
        let stream = fake.stored(&result, OutputStream::Stdout);
        assert!(stream.bytes.ends_with(b"xend"));
        assert_eq!((stream.stored.bytes(), result.stdout_bytes), (max, 100_003));
        assert!(sent as u64 <= max, "{sent}");
    }
}

#[tokio::test]
async fn a_task_that_is_to_be_ended_for_its_output_is() {
    let mut fake = Fake::start().await;
    let _runner = fake.runner();
    let limited = |script: &str| {
        let mut spec = spec(&["sh", "-c", script]);
        spec.output = Some(v1::OutputPolicy {
            max_bytes: 20_000,
            on_limit: v1::OnOutputLimit::Kill.into(),
            keep_ms: 0,
        });
        spec
    };
    let endless = fake.run(1, limited("while :; do echo 0123456789; done")).await;
    assert_eq!(endless.stopped_by(), v1::StoppedBy::OutputLimit);
    assert_eq!((endless.kind.as_str(), endless.signal), ("signal", Some(15)));
    // Over before anybody looked: the same.
    let quick = fake.run(2, limited("head -c 20001 /dev/zero >&2")).await;
    assert_eq!(quick.stopped_by(), v1::StoppedBy::OutputLimit);
    assert_eq!((quick.kind.as_str(), quick.exit_code), ("success", Some(0)));
    let within = fake.run(3, limited("head -c 20000 /dev/zero")).await;
    assert_eq!(within.stopped_by(), v1::StoppedBy::Unspecified);
}

#[tokio::test]
async fn bytes_are_sent_as_they_are_whatever_they_mean() {
    let mut fake = Fake::start().await;
    let _runner = fake.runner();
    // NUL, invalid UTF-8, a progress bar, no newline at the end.
    let odd = fake
        .run(1, spec(&["printf", "a\\0b\\377\\300\\n 10%%\\r 20%%\\r\\033[31mx"]))
        .await;
    let expected = b"a\0b\xff\xc0\n 10%\r 20%\r\x1b[31mx";
    assert_eq!(fake.stream(&odd, OutputStream::Stdout), expected);
    // One line of 7 MiB, and characters that pieces and looks cut in two.
    let long = fake
        .run(2, spec(&["sh", "-c", "head -c 7340031 /dev/zero | tr '\\0' x; echo"]))
        .await;
    let line = fake.stream(&long, OutputStream::Stdout);
    assert!(line.len() == 7_340_032 && line.ends_with(b"x\n") && !line[..7_340_031].contains(&b'\n'));
    let script =
        "printf '\\342\\202'; sleep 0.5; printf '\\254'; i=0; while [ $i -lt 100001 ]; do printf €; i=$((i+1)); done";
    let split = fake.run(3, spec(&["bash", "-c", script])).await;
    assert!(fake.stdout(&split) == "€".repeat(100_002));
}

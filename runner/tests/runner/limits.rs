//! Limits of all processes of a task together, with real hogs and bombs. Where this user may not use the controllers of control
//! groups there is only the refusal to be seen.

use crate::fake::{Fake, spec};
use std::time::{Duration, Instant};
use systole_proto::v1;

fn shell(script: &str) -> v1::TaskSpec {
    spec(&["/bin/sh", "-c", script])
}

fn limited(spec: v1::TaskSpec, limits: v1::Limits) -> v1::TaskSpec {
    v1::TaskSpec {
        limits: Some(limits),
        ..spec
    }
}

/// Whether the host of this beat can hold a limit; then the test goes on. Otherwise the task is refused by name.
async fn can(fake: &mut Fake, name: &str, limits: v1::Limits) -> bool {
    let beat = fake.beat_of(v1::RunnerStatus::Idle).await;
    let facts: serde_json::Value = serde_json::from_str(&beat.request.host_facts).expect("JSON");
    beat.go_on();
    let can = facts["limits"]
        .as_str()
        .expect("a text")
        .split(' ')
        .any(|can| can == name);
    if !can {
        println!("this host cannot limit {name}; only the refusal is tested");
        let result = fake.run(99, limited(shell("true"), limits)).await;
        assert_eq!(result.kind, "start_failed");
        assert!(
            result.message.starts_with(&format!("limits.{name} is ")),
            "{}",
            result.message
        );
    }
    can
}

const HOG: &str = "head -c 300m /dev/zero | tail >/dev/null";

#[tokio::test]
async fn a_memory_hog_ends_as_out_of_memory() {
    let mut fake = Fake::start().await;
    let _runner = fake.runner();
    let limits = v1::Limits {
        memory_bytes: 32 << 20,
        ..v1::Limits::default()
    };
    if !can(&mut fake, "memory", limits).await {
        return;
    }
    // The main process itself, and a child of it of which the shell tells 137.
    for (task_id, (script, code, signal)) in (1..).zip([
        ("exec tail /dev/zero", None, Some(9)),
        ("tail /dev/zero; exit $?", Some(137), None),
        (&format!("{HOG} || exit 7; exit 8"), Some(7), None),
    ]) {
        let result = fake.run(task_id, limited(shell(script), limits)).await;
        assert_eq!(result.kind, "out_of_memory", "{script}: {}", result.message);
        assert_eq!((result.exit_code, result.signal), (code, signal), "{script}");
        assert!(
            result.message.starts_with("the limit of 32M was met, at most "),
            "{}",
            result.message
        );
        let detail = result.detail.expect("a detail");
        assert_eq!((detail.memory_limit_bytes, detail.oom_kills), (Some(32 << 20), 1));
        let peak = detail.usage.and_then(|usage| usage.peak_memory_bytes).expect("a peak");
        assert!((16 << 20..=32 << 20).contains(&peak), "{peak}");
    }
    // It went on and ended well: a success, and what happened is not kept back.
    let result = fake.run(9, limited(shell("tail /dev/zero; exit 0"), limits)).await;
    assert_eq!(result.kind, "success");
    assert_eq!(result.detail.expect("a detail").oom_kills, 1);
    // The counters are one task's own.
    let result = fake.run(10, limited(shell("exit 3"), limits)).await;
    assert_eq!(
        (result.kind.as_str(), result.detail.expect("a detail").oom_kills),
        ("exit_code", 0)
    );
}

#[tokio::test]
async fn a_fork_bomb_ends_as_its_own_failure() {
    let mut fake = Fake::start().await;
    let _runner = fake.runner();
    let limits = v1::Limits {
        pids: 24,
        ..v1::Limits::default()
    };
    if !can(&mut fake, "pids", limits).await {
        return;
    }
    let bomb = v1::TaskSpec {
        timeout_ms: 2_000,
        kill_grace_ms: Some(0),
        env: vec![v1::EnvVar {
            name: "CASE".into(),
            value: format!("bomb-{}", std::process::id()),
        }],
        // The sleepers stay when the shells find no room for another one.
        ..limited(shell("b() { sleep 5 & b & b & wait; }; while :; do b; done"), limits)
    };
    fake.beat_of(v1::RunnerStatus::Idle).await.run_spec(1, bomb);
    let case = format!("CASE=bomb-{}", std::process::id());
    let (mut most, begun) = (0, Instant::now());
    while begun.elapsed() < Duration::from_secs(1) || most <= 1 {
        assert!(begun.elapsed() < Duration::from_secs(20), "it does not start");
        most = most.max(crate::fake::processes_with(&case));
        // Others of the host start as ever.
        let other = std::process::Command::new("true").status().expect("started");
        assert!(other.success());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(most <= 24, "{most} processes");
    let beat = fake.end().await;
    let result = beat.result().clone();
    beat.acknowledge();
    assert!(
        ["exit_code", "signal"].contains(&result.kind.as_str()),
        "{}",
        result.kind
    );
    assert_eq!(result.detail.and_then(|detail| detail.tree_empty), Some(true));
    assert_eq!(crate::fake::processes_with(&case), 0);
    assert_eq!(fake.run(2, shell("true")).await.kind, "success");
}

#[tokio::test]
async fn a_share_of_the_processors_is_not_exceeded() {
    let mut fake = Fake::start().await;
    let _runner = fake.runner();
    let limits = v1::Limits {
        cpu_millis: 200,
        ..v1::Limits::default()
    };
    if !can(&mut fake, "cpus", limits).await {
        return;
    }
    let began = Instant::now();
    // So much work takes half a second of one processor at least, by its own clock.
    let script = "until [ \"$(cut -d' ' -f14 /proc/$$/stat)\" -ge 50 ]; do i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; done";
    let result = fake.run(1, limited(shell(script), limits)).await;
    assert_eq!(result.kind, "success", "{}", result.message);
    assert!(began.elapsed() >= Duration::from_millis(2_000), "{:?}", began.elapsed());
}

#[tokio::test]
async fn a_host_s_default_holds_for_a_task_that_asks_for_nothing() {
    let mut fake = Fake::start().await;
    let policy = "[allow]\nroot = true\n[default]\nmemory = \"24M\"\n[max]\nmemory = \"1G\"\n";
    std::fs::write(fake.dir.path().join("runner.toml"), policy).expect("written");
    let _runner = fake.runner();
    let limits = v1::Limits {
        memory_bytes: 1 << 30,
        ..v1::Limits::default()
    };
    if !can(&mut fake, "memory", limits).await {
        return;
    }
    let result = fake.run(1, shell("tail /dev/zero")).await;
    assert_eq!(result.kind, "out_of_memory", "{}", result.message);
    assert_eq!(result.detail.expect("a detail").memory_limit_bytes, Some(24 << 20));
    let above = v1::Limits {
        memory_bytes: (1 << 30) + 1,
        ..limits
    };
    let result = fake.run(2, limited(shell("true"), above)).await;
    assert_eq!(result.kind, "rejected");
    assert!(result.message.ends_with("(max.memory)"), "{}", result.message);
}

/// The kernel is to look at tasks before it looks at the runner.
#[tokio::test]
async fn tasks_do_not_inherit_the_runner_s_protection() {
    let mut fake = Fake::start().await;
    let _runner = fake.runner();
    let result = fake.run(1, spec(&["cat", "/proc/self/oom_score_adj"])).await;
    let own = std::fs::read_to_string("/proc/self/oom_score_adj").expect("/proc");
    let own: i32 = own.trim().parse().expect("a number");
    let of_task: i32 = fake.stdout(&result).trim().parse().expect("a number");
    assert!(of_task >= 0 && of_task >= own, "{of_task}, and the runner has {own}");
    // Whoever may lower it has lowered it.
    if std::fs::write("/proc/self/oom_score_adj", "-500").is_ok() {
        assert_eq!((own, of_task), (-500, 0));
    } else {
        println!("this user may not lower it");
    }
}

#[tokio::test]
async fn bytes_to_and_from_disks_are_told() {
    let mut fake = Fake::start().await;
    let _runner = fake.runner();
    let result = fake
        .run(1, shell("dd if=/dev/zero of=file bs=1M count=4 conv=fsync 2>/dev/null"))
        .await;
    let usage = result.detail.and_then(|detail| detail.usage).expect("usage");
    let written = usage.written_bytes.expect("told");
    // None where the folder is in memory.
    assert!(
        usage.read_bytes.is_some() && (written == 0 || written >= 4 << 20),
        "{written}"
    );
}

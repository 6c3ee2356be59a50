//! What a host does not allow is refused there, whatever a scheduler says; files of variables stay on the host.

use crate::fake::{Fake, spec};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use systole_proto::v1;

fn policy(fake: &Fake, text: &str) {
    // The tests may run as root.
    let text = text.replace("[allow]\n", "[allow]\nroot = true\n");
    std::fs::write(fake.dir.path().join("runner.toml"), text).expect("written");
}

fn file(path: &Path, text: &str, mode: u32) -> String {
    std::fs::write(path, text).expect("written");
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("changed");
    path.display().to_string()
}

#[tokio::test]
async fn a_task_outside_the_policy_is_rejected_and_nothing_of_it_runs() {
    let mut fake = Fake::start().await;
    let mark = fake.dir.path().join("ran");
    let secret = file(&fake.dir.path().join("secret.env"), "A=1\n", 0o600);
    policy(
        &fake,
        "[allow]\nprograms = [\"/usr/bin/touch\", \"/usr/bin/printenv\"]\nenv = [\"STAGE\"]\ndirs = [\"/usr\"]\n[max]\nopen_files = 100\n",
    );
    let _runner = fake.runner();
    let mark = mark.display().to_string();
    let touch = |change: &dyn Fn(&mut v1::TaskSpec)| {
        let mut spec = spec(&["touch", &mark]);
        change(&mut spec);
        spec
    };
    let env = |name: &str| v1::EnvVar {
        name: name.into(),
        value: "x".into(),
    };
    let cases: [(v1::TaskSpec, &str); 7] = [
        (spec(&["/bin/sh", "-c", &format!("touch {mark}")]), "(allow.programs)"),
        (spec(&["/usr/bin/env", "touch", &mark]), "(allow.programs)"),
        (touch(&|spec| spec.env = vec![env("LD_PRELOAD")]), "(allow.env)"),
        (touch(&|spec| spec.dir = "/usr/../etc".into()), "(allow.dirs)"),
        (touch(&|spec| spec.env_file.clone_from(&secret)), "(allow.env_files)"),
        (
            touch(&|spec| spec.env = vec![env("STAGE"), env("STAGE2")]),
            "(allow.env)",
        ),
        (
            touch(&|spec| {
                spec.limits = Some(v1::Limits {
                    open_files: 101,
                    ..v1::Limits::default()
                });
            }),
            "(max.open_files)",
        ),
    ];
    for (task_id, (spec, key)) in (1..).zip(cases) {
        let result = fake.run(task_id, spec).await;
        assert_eq!(result.kind, "rejected", "{}", result.message);
        assert!(result.message.contains("/runner.toml: "), "{}", result.message);
        assert!(result.message.ends_with(key), "{}", result.message);
        assert_eq!((result.started_at_ms, result.exit_code), (0, None));
    }
    assert!(!Path::new(&mark).exists());
    let mut allowed = touch(&|spec| spec.env = vec![env("STAGE")]);
    allowed.dir = "/usr/bin/..".into();
    assert_eq!(fake.run(100, allowed).await.kind, "success");
    assert!(Path::new(&mark).exists());
}

#[tokio::test]
async fn a_changed_policy_holds_from_the_next_start_of_the_agent() {
    let mut fake = Fake::start().await;
    policy(&fake, "[allow]\nshell = false\n");
    let runner = fake.runner();
    let shell = spec(&["sh", "-c", "true"]);
    assert_eq!(fake.run(1, shell.clone()).await.kind, "rejected");
    policy(&fake, "[allow]\nshell = true\n");
    // Its last beat, so that none of it is answered in the place of the next one's.
    let last = fake.beat_of(v1::RunnerStatus::Idle).await;
    runner.crash().await;
    drop(last);
    let _runner = fake.runner();
    assert_eq!(fake.run(2, shell).await.kind, "success");
}

#[tokio::test]
async fn a_root_runner_with_a_policy_starts_nothing_as_root_unless_it_says_so() {
    let mut fake = Fake::start().await;
    std::fs::write(fake.dir.path().join("runner.toml"), "").unwrap();
    let _runner = fake.runner();
    let result = fake.run(1, spec(&["true"])).await;
    if nix_root() {
        assert_eq!(result.kind, "rejected");
        assert!(result.message.ends_with("(allow.root)"), "{}", result.message);
        let other = v1::TaskSpec {
            user: "nobody".into(),
            ..spec(&["id", "-un"])
        };
        let result = fake.run(2, other.clone()).await;
        assert_eq!(
            (result.kind.as_str(), fake.stdout(&result).as_str()),
            ("success", "nobody\n")
        );
        // A group that the user is not in would be more than the user has.
        let result = fake
            .run(
                3,
                v1::TaskSpec {
                    group: "root".into(),
                    ..other
                },
            )
            .await;
        assert!(result.message.ends_with("(allow.groups)"), "{}", result.message);
    } else {
        assert_eq!(result.kind, "success");
    }
}

fn nix_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|meta| std::os::unix::fs::MetadataExt::uid(&meta) == 0)
}

#[tokio::test]
async fn variables_from_a_file_reach_the_child_and_nobody_else() {
    let mut fake = Fake::start().await;
    let _runner = fake.runner();
    let path = file(
        &fake.dir.path().join("x.env"),
        "# comment\nTOKEN='s3cr3t value'\nSTAGE=file\nHOME=/from/file\n",
        0o600,
    );
    let with_file = |command: &[&str]| v1::TaskSpec {
        env_file: path.clone(),
        env: vec![v1::EnvVar {
            name: "STAGE".into(),
            value: "said".into(),
        }],
        ..spec(command)
    };
    let result = fake.run(1, with_file(&["printenv", "TOKEN", "STAGE", "HOME"])).await;
    assert_eq!(
        fake.stdout(&result),
        "s3cr3t value\nsaid\n/from/file\n",
        "{}",
        result.message
    );
    // The journal and the folders of the runner do not have it.
    let result = fake.run(2, with_file(&["true"])).await;
    let told = format!("{result:?}");
    assert!(!told.contains("s3cr3t"), "{told}");
    let found = std::process::Command::new("grep")
        .args(["-rl", "s3cr3t"])
        .arg(fake.data_dir())
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&found.stdout), "");

    let bad = file(&fake.dir.path().join("bad.env"), "A=1\ns3cr3t\n", 0o600);
    let mut spec = with_file(&["true"]);
    spec.env_file = bad;
    let result = fake.run(3, spec).await;
    assert_eq!(result.kind, "start_failed");
    assert!(
        result.message.contains("bad.env on h, line 2: is not NAME=VALUE"),
        "{}",
        result.message
    );
    assert!(!result.message.contains("s3cr3t"));
}

#[tokio::test]
async fn a_task_cannot_read_through_it_what_its_user_cannot_read() {
    if !nix_root() {
        println!("only root can start a task of another user");
        return;
    }
    let mut fake = Fake::start().await;
    let _runner = fake.runner();
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let path = dir.path().join("x.env");
    for (task_id, mode, kind) in [(1, 0o600, "start_failed"), (2, 0o644, "success")] {
        let spec = v1::TaskSpec {
            env_file: file(&path, "A=s3cr3t\n", mode),
            user: "nobody".into(),
            ..spec(&["printenv", "A"])
        };
        let result = fake.run(task_id, spec).await;
        assert_eq!(result.kind, kind, "{mode:o}: {}", result.message);
        if mode == 0o600 {
            assert!(
                result.message.contains("by the user of the task: Permission denied"),
                "{}",
                result.message
            );
        } else {
            assert_eq!(fake.stdout(&result), "s3cr3t\n");
        }
    }
}

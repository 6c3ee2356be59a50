//! Jobs as their users meet them: files, the command line, a scheduler and a runner, on both databases.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::process::Stdio;
use systole_tests::System;
use systole_tests::system::{Said, until};

fn both() -> [System; 2] {
    [System::sqlite(), System::postgres()]
}

fn write(system: &System, name: &str, text: &str) {
    let path = system.path(name);
    std::fs::create_dir_all(path.parent().expect("folder")).expect("folder");
    std::fs::write(path, text).expect("written");
}

/// Runs a command line that must end so.
fn say(system: &System, code: i32, args: &[&str]) -> Said {
    let said = system.say(args);
    assert_eq!(said.code, Some(code), "{args:?}: {said:?}");
    said
}

fn json(system: &System, code: i32, args: &[&str]) -> Value {
    let mut all = vec!["-o", "json"];
    all.extend(args);
    let said = say(system, code, &all);
    serde_json::from_str(&said.stdout).unwrap_or_else(|error| panic!("{args:?}: {error}: {said:?}"))
}

/// Edits a job by a `sed` in place of the editor.
fn edit(system: &System, code: i32, job: &str, script: &str, more: &[&str]) -> Said {
    let mut args = vec!["job", "edit", job];
    args.extend(more);
    let output = system
        .command(&args)
        .env("EDITOR", format!("sed -i -e '{script}'"))
        .env("TMPDIR", system.folder.path())
        .env_remove("VISUAL")
        .output();
    let said: Said = output.expect("systole starts").into();
    assert_eq!(said.code, Some(code), "{said:?}");
    said
}

/// Files that an edit left behind.
fn left_behind(system: &System) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(system.folder.path())
        .expect("folder")
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|name| name.starts_with("systole-edit-"))
        .collect();
    names.sort();
    names
}

fn history(system: &System, job: &str) -> Vec<Value> {
    let found = json(system, 0, &["job", "history", job]);
    found["occurrences"].as_array().expect("a list").clone()
}

/// Nightly at a time that each day has, also that of a change to summer time; and yearly right after it, so that the nightly one is the
/// next one on New Year's Eve, too.
const HELLO: &str = r#"
[[job]]
name = "hello"
command = ["sh", "-c", "echo hello $SYSTOLE_DATA_WHO; exit ${SYSTOLE_DATA_CODE:-0}"]
data = { who = "world" }
timeout = "1m"

[[job.trigger]]
name = "nightly"
cron = "30 4 * * *"
zone = "Europe/Berlin"

[[job.trigger]]
name = "yearly"
cron = "31 3 1 1 *"
"#;

#[test]
fn a_job_lives_from_its_file_to_its_end() {
    for system in both() {
        let _scheduler = system.scheduler(0);
        let _runner = system.runner("w", 2, &[]);
        // A file to start from is right as it is; a wrong one is said with its place.
        say(&system, 0, &["job", "init", "first"]);
        say(&system, 0, &["job", "check", "first.toml"]);
        say(&system, 4, &["job", "init", "first"]);
        write(
            &system,
            "wrong.toml",
            "[[job]]\nname = \"x\"\nshell = \"true\"\ntimeout = 12\n",
        );
        let said = say(&system, 2, &["job", "check", "wrong.toml"]);
        assert!(
            said.stderr.contains("wrong.toml:4:11") && said.stderr.contains("12s"),
            "{said:?}"
        );

        write(&system, "jobs/hello.toml", HELLO);
        let said = say(&system, 10, &["job", "apply", "-f", "jobs", "--dry-run"]);
        assert!(
            said.stdout.contains("+ hello  new; next fires") && said.stderr.contains("Nothing was changed"),
            "{said:?}"
        );
        assert_eq!(
            say(&system, 0, &["job", "ls", "-o", "id"]).stdout,
            "",
            "a dry run stores nothing"
        );
        say(&system, 0, &["job", "apply", "-f", "jobs"]);
        let said = say(&system, 0, &["job", "apply", "-f", "jobs", "--dry-run"]);
        assert!(said.stdout.contains("= 1 unchanged"), "{said:?}");

        let said = say(&system, 0, &["job", "ls"]);
        assert!(
            said.stdout.contains("hello") && said.stdout.contains("active") && said.stdout.contains("nightly"),
            "{said:?}"
        );
        let shown = json(&system, 0, &["job", "show", "hello"]);
        assert_eq!(
            (&shown["version"], &shown["origin"], &shown["triggers"][0]["state"]),
            (&"1".into(), &"code".into(), &"WAITING".into()),
            "{shown}"
        );
        assert!(
            shown["source"].as_str().expect("source").ends_with("jobs/hello.toml"),
            "{shown}"
        );
        let said = say(&system, 0, &["job", "show", "hello"]);
        assert!(
            said.stdout.contains("cron = \"30 4 * * *\"") && said.stdout.contains("04:30 +0"),
            "{said:?}"
        );

        // The fires to come: of the job, of all, until a time.
        let coming = json(&system, 0, &["job", "next", "hello", "--until", "+72h"]);
        assert!(
            coming["coming"].as_array().is_some_and(|fires| fires.len() >= 2),
            "{coming}"
        );
        let coming = json(&system, 0, &["next", "--until", "+72h", "-n", "1"]);
        assert_eq!(coming["coming"][0]["trigger"], "nightly", "{coming}");

        // A pause says who, why and until when, holds back no run that somebody asks for, and ends.
        let said = say(
            &system,
            0,
            &["job", "pause", "hello", "--until", "+48h", "--reason", "restore test"],
        );
        assert!(said.stdout.starts_with("hello: paused until 20"), "{said:?}");
        assert_eq!(
            say(&system, 0, &["job", "pause", "hello"]).stdout,
            "hello: was paused already\n"
        );
        say(
            &system,
            0,
            &["job", "pause", "hello", "--until", "+48h", "--reason", "restore test"],
        );
        let said = say(&system, 0, &["job", "show", "hello"]);
        assert!(
            said.stdout.contains("paused by admin") && said.stdout.contains("restore test"),
            "{said:?}"
        );
        let said = say(&system, 0, &["why", "hello"]);
        assert!(said.stdout.contains("Lift it: systole job resume hello"), "{said:?}");
        say(&system, 1, &["job", "next", "hello", "--until", "+24h"]);
        let run = say(&system, 0, &["job", "trigger", "hello"]);
        assert_eq!(run.stdout, "hello world\n");
        let run = say(&system, 7, &["job", "run", "hello", "-d", "who=ann", "-d", "code=7"]);
        assert_eq!(run.stdout, "hello ann\n");
        assert_eq!(say(&system, 0, &["job", "resume", "hello"]).stdout, "hello: resumed\n");
        assert_eq!(
            say(&system, 0, &["job", "resume", "hello"]).stdout,
            "hello: was not paused\n"
        );
        say(&system, 2, &["job", "pause", "hello", "--until", "-1h"]);

        // One trigger alone.
        say(&system, 0, &["trigger", "pause", "hello/yearly", "--reason", "x"]);
        let listed = say(&system, 0, &["trigger", "ls", "--state", "PAUSED", "-o", "id"]);
        assert_eq!(listed.stdout, "hello/yearly\n");
        say(&system, 0, &["trigger", "resume", "hello/yearly"]);
        say(&system, 3, &["trigger", "pause", "hello/never"]);
        let said = say(&system, 0, &["trigger", "reset", "hello"]);
        assert_eq!(said.stdout, "hello: was not in ERROR\n");

        // What became of it.
        let mut rows = history(&system, "hello");
        rows.retain(|row| row["reason"] == "manual");
        assert_eq!(rows.len(), 2, "{rows:?}");
        assert_eq!(
            (&rows[0]["verdict"], &rows[0]["reason"], &rows[0]["state"]),
            (&"fired".into(), &"manual".into(), &"FAILED".into())
        );
        let at = rows[0]["scheduled_at"].as_str().expect("time").to_owned();
        let said = say(&system, 0, &["why", "hello", "--at", &at]);
        assert!(
            said.stdout.contains("Asked for") && said.stdout.contains("exit code 7"),
            "{said:?}"
        );
        let shown = json(&system, 0, &["job", "show", "hello"]);
        assert_eq!(shown["last_run"]["outcome"]["exit_code"], 7, "{shown}");
        assert!(say(&system, 0, &["job", "ls"]).stdout.contains("FAILED exit code 7"));
        let status = json(&system, 0, &["status", "--since", "1h"]);
        assert_eq!(status["occurrences"]["asked_for"], 2, "{status}");

        // And its end; its name is known no more.
        say(&system, 4, &["job", "rm", "hello", "--plan-version", "9"]);
        assert_eq!(
            say(&system, 0, &["job", "rm", "hello", "--plan-version", "1"]).stdout,
            "hello: deleted\n"
        );
        for args in [
            &["job", "rm", "hello"][..],
            &["job", "show", "hello"],
            &["job", "trigger", "hello"],
            &["job", "pause", "hello"],
            &["job", "edit", "hello"],
            &["why", "hello"],
            &["job", "next", "hello"],
            &["trigger", "reset", "hello/nightly"],
        ] {
            let said = say(&system, 3, args);
            assert!(said.stderr.contains("[NOTFOUND_001]"), "{args:?}: {said:?}");
        }
        assert_eq!(say(&system, 0, &["job", "ls", "-o", "id"]).stdout, "");
        // What it did, and who deleted it, is known as before.
        let mut rows = history(&system, "hello");
        rows.retain(|row| row["reason"] == "manual");
        assert_eq!(rows.len(), 2, "{rows:?}");
        let said = say(&system, 3, &["job", "show", "hello"]);
        assert!(said.stderr.contains("admin deleted it"), "{said:?}");
        say(&system, 3, &["job", "history", "never"]);
    }
}

#[test]
fn what_was_changed_by_hand_stays_until_its_file_changes_or_it_is_restored() {
    for system in both() {
        let _scheduler = system.scheduler(0);
        write(&system, "jobs/hello.toml", HELLO);
        write(&system, "jobs/other.toml", &HELLO.replace("\"hello\"", "\"other\""));
        say(&system, 0, &["job", "apply", "-f", "jobs"]);

        // Nothing typed, nothing stored, nothing left.
        let said = edit(&system, 0, "hello", "", &[]);
        assert!(said.stderr.contains("nothing was changed"), "{said:?}");
        let said = edit(&system, 0, "hello", "s/1m/2m/", &["--reason", "it takes longer"]);
        assert!(said.stdout.contains("timeout  \"1m\" → \"2m\""), "{said:?}");
        assert_eq!(left_behind(&system), Vec::<String>::new());
        assert_eq!(json(&system, 0, &["job", "show", "hello"])["origin"], "overridden");

        // The file did not change: what was done by hand stays, and the plan says so.
        let said = say(&system, 0, &["job", "apply", "-f", "jobs"]);
        assert!(said.stdout.contains("! hello  was changed by hand"), "{said:?}");
        let said = say(&system, 10, &["job", "diff", "hello"]);
        assert_eq!(said.stdout, "timeout  \"1m\" → \"2m\"\n");
        assert!(said.stderr.contains("its file → version 2"), "{said:?}");

        // Back to the file; the pause of the job is no part of it.
        say(&system, 0, &["job", "pause", "hello"]);
        say(&system, 10, &["job", "restore", "hello", "--dry-run"]);
        let said = say(&system, 0, &["job", "restore", "hello"]);
        assert!(said.stdout.contains("timeout  \"2m\" → \"1m\""), "{said:?}");
        let shown = json(&system, 0, &["job", "show", "hello"]);
        assert_eq!(
            (&shown["origin"], &shown["paused"]),
            (&"code".into(), &true.into()),
            "{shown}"
        );
        let said = say(&system, 0, &["job", "restore", "hello"]);
        assert!(said.stdout.contains("= 1 unchanged"), "{said:?}");
        let said = say(&system, 0, &["job", "diff", "hello"]);
        assert!(said.stderr.contains("it is as its file says"), "{said:?}");
        let same = json(&system, 0, &["job", "diff", "hello"]);
        assert_eq!(same["changes"], serde_json::json!([]), "{same}");

        // To an older version, by its number; all versions are kept, with who and why.
        say(&system, 0, &["job", "restore", "hello", "--version", "2"]);
        let versions = json(&system, 0, &["job", "history", "hello", "--versions"]);
        let list = versions["versions"].as_array().expect("list");
        let origins: Vec<&str> = list.iter().filter_map(|one| one["origin"].as_str()).collect();
        assert_eq!(origins, ["overridden", "code", "overridden", "code"], "{versions}");
        assert_eq!(
            (&list[2]["reason"], &list[2]["changed_by"]),
            (&"it takes longer".into(), &"admin".into())
        );
        assert!(
            say(&system, 0, &["job", "history", "hello", "--versions"])
                .stdout
                .contains("timeout")
        );
        say(&system, 0, &["job", "diff", "hello", "--from", "2", "--to", "4"]);
        say(&system, 10, &["job", "diff", "hello", "--from", "3", "--to", "4"]);
        let said = say(&system, 3, &["job", "restore", "hello", "--version", "99"]);
        assert!(said.stderr.contains("[NOTFOUND_005]"), "{said:?}");

        // The file changes: it counts, and what is given up for it is said.
        write(&system, "jobs/hello.toml", &HELLO.replace("\"1m\"", "\"3m\""));
        let said = say(&system, 0, &["job", "apply", "-f", "jobs"]);
        assert!(
            said.stdout.contains("~ hello  what was changed by hand is given up"),
            "{said:?}"
        );

        // A job that left the files fires on, until somebody says that it is to go.
        std::fs::remove_file(system.path("jobs/other.toml")).expect("removed");
        let said = say(&system, 0, &["job", "apply", "-f", "jobs"]);
        assert!(
            said.stdout.contains("- other  is in no file any more; it keeps firing"),
            "{said:?}"
        );
        say(&system, 2, &["job", "apply", "-f", "jobs/hello.toml", "--prune"]);
        say(&system, 10, &["job", "apply", "-f", "jobs", "--prune", "--dry-run"]);
        let said = say(&system, 0, &["job", "apply", "-f", "jobs", "--prune"]);
        assert!(said.stdout.contains("- other  deleted"), "{said:?}");

        // Deleted by mistake: its versions outlive it.
        say(&system, 3, &["job", "show", "other"]);
        let said = say(&system, 3, &["job", "restore", "other"]);
        assert!(
            said.stderr.contains("systole job restore other --version 1"),
            "{said:?}"
        );
        say(&system, 0, &["job", "restore", "other", "--version", "1"]);
        assert_eq!(json(&system, 0, &["job", "show", "other"])["origin"], "runtime");
        let said = say(&system, 3, &["job", "restore", "other"]);
        assert!(
            said.stderr.contains("comes from no file") && said.stderr.contains("[NOTFOUND_005]"),
            "{said:?}"
        );
    }
}

#[test]
fn what_was_typed_is_never_lost() {
    for system in both() {
        let _scheduler = system.scheduler(0);
        write(&system, "hello.toml", HELLO);
        say(&system, 0, &["job", "apply", "-f", "hello.toml"]);
        let file = |said: &Said| -> String {
            let names = left_behind(&system);
            assert_eq!(names.len(), 1, "{said:?}");
            assert!(
                said.stderr
                    .contains(&format!("--resume {}", system.path(&names[0]).display())),
                "{said:?}"
            );
            system.path(&names[0]).display().to_string()
        };
        // What is wrong is said with its place; the file goes on being edited, and is stored when it is right.
        let said = edit(&system, 2, "hello", "s/\"1m\"/90/", &[]);
        assert!(
            said.stderr.contains("timeout") && said.stderr.contains("nothing was stored"),
            "{said:?}"
        );
        let path = file(&said);
        let said = edit(&system, 0, "hello", "s/= 90/= \"90s\"/", &["--resume", &path]);
        assert!(said.stdout.contains("\"1m\" → \"90s\""), "{said:?}");
        std::fs::remove_file(&path).expect("it is the user's now");
        // What the scheduler alone can know to be wrong.
        let said = edit(
            &system,
            2,
            "hello",
            "s/^timeout/concurrency_group = \"none\"\\ntimeout/",
            &[],
        );
        assert!(said.stderr.contains("no concurrency group"), "{said:?}");
        std::fs::remove_file(file(&said)).expect("there");
        // Somebody else was faster: nothing of theirs is overwritten.
        let script = system.path("slow-editor");
        let faster = format!(
            "#!/bin/sh\nsed -i -e 's/90s/5m/' \"$1\"\nEDITOR=\"sed -i -e s/90s/4m/\" TMPDIR=/tmp {} job edit hello >&2\n",
            systole_tests::system::binary().display()
        );
        std::fs::write(&script, faster).expect("script");
        let output = system
            .command(&["job", "edit", "hello"])
            .env("EDITOR", format!("sh {}", script.display()))
            .env("TMPDIR", system.folder.path())
            .env_remove("VISUAL")
            .output();
        let said: Said = output.expect("systole starts").into();
        assert_eq!(said.code, Some(4), "{said:?}");
        assert!(said.stderr.contains("[CONFLICT_009]"), "{said:?}");
        let path = file(&said);
        assert!(std::fs::read_to_string(&path).expect("there").contains("5m"));
        assert_eq!(
            json(&system, 0, &["job", "show", "hello"])["definition"]["timeout"],
            "4m"
        );
        // An editor that fails stores nothing.
        std::fs::remove_file(&path).expect("there");
        let output = system
            .command(&["job", "edit", "hello"])
            .env("EDITOR", "false")
            .env("TMPDIR", system.folder.path())
            .env_remove("VISUAL")
            .output();
        let said: Said = output.expect("systole starts").into();
        assert_eq!(said.code, Some(4), "{said:?}");
        assert_eq!(json(&system, 0, &["job", "show", "hello"])["version"], "3");
    }
}

#[test]
fn a_plan_is_carried_out_only_as_it_was_shown() {
    for system in both() {
        let _scheduler = system.scheduler(0);
        write(&system, "hello.toml", HELLO);
        let plan = json(&system, 10, &["job", "apply", "-f", "hello.toml", "--dry-run"]);
        assert_eq!(plan["results"][0]["before_version"], "0", "{plan}");
        say(&system, 0, &["job", "apply", "-f", "hello.toml", "--plan-version", "0"]);
        write(&system, "hello.toml", &HELLO.replace("1m", "2m"));
        let plan = json(&system, 10, &["job", "apply", "-f", "hello.toml", "--dry-run"]);
        assert_eq!(plan["results"][0]["before_version"], "1", "{plan}");
        edit(&system, 0, "hello", "s/1m/9m/", &[]);
        let said = say(&system, 4, &["job", "apply", "-f", "hello.toml", "--plan-version", "1"]);
        assert!(said.stderr.contains("[CONFLICT_009]"), "{said:?}");
        assert_eq!(
            json(&system, 0, &["job", "show", "hello"])["definition"]["timeout"],
            "9m"
        );
        say(
            &system,
            2,
            &["job", "apply", "-f", "hello.toml", "--plan-version", "other=1"],
        );
        say(
            &system,
            0,
            &["job", "apply", "-f", "hello.toml", "--plan-version", "hello=2"],
        );
        assert_eq!(
            json(&system, 0, &["job", "show", "hello"])["definition"]["timeout"],
            "2m"
        );
    }
}

#[test]
fn ctrl_c_before_the_answer_leaves_no_run_behind() {
    for system in both() {
        let scheduler = system.scheduler(0);
        let _runner = system.runner("w", 1, &[]);
        write(
            &system,
            "slow.toml",
            "[[job]]\nname = \"slow\"\ncommand = [\"sleep\", \"600\"]\n",
        );
        say(&system, 0, &["job", "apply", "-f", "slow.toml"]);
        scheduler.signal(Signal::SIGSTOP);
        let child = system
            .command(&["job", "trigger", "slow"])
            .stdout(Stdio::piped())
            .stderr(std::fs::File::create(system.path("said")).expect("file"))
            .spawn()
            .expect("starts");
        let pid = Pid::from_raw(i32::try_from(child.id()).expect("pid"));
        // It listens for Ctrl-C before it asks: the handler is there when the signal is caught.
        until("it catches Ctrl-C", || {
            let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
            let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
            caught
                .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
                .is_some_and(|mask| mask & 2 != 0)
        });
        kill(pid, Signal::SIGINT).expect("signal");
        until("it says what it does", || {
            let said = std::fs::read_to_string(system.path("said")).unwrap_or_default();
            said.contains("cancelled as soon as the scheduler answers")
        });
        scheduler.signal(Signal::SIGCONT);
        let ended = child.wait_with_output().expect("ends");
        assert_eq!(ended.status.code(), Some(130));
        let rows = history(&system, "slow");
        assert_eq!(rows.len(), 1, "{rows:?}");
        let task = system.until(rows[0]["task"].as_str().expect("id"), &["TERMINATED"]);
        assert_eq!(task["outcome"]["kind"], "cancelled", "{task}");
    }
}

#[test]
fn many_runs_are_asked_for_at_once_and_nobody_waits() {
    for system in both() {
        let _scheduler = system.scheduler(0);
        write(
            &system,
            "jobs.toml",
            "[[job]]\nname = \"a\"\nshell = \"echo $SYSTOLE_DATA_N >> $OUT\"\nenv = { OUT = \"@\" }\n\
             [[job]]\nname = \"b\"\nshell = \"true\"\nblocking = \"discard_later\"\n"
                .replace('@', &system.path("out").display().to_string())
                .as_str(),
        );
        say(&system, 0, &["job", "apply", "-f", "jobs.toml"]);
        let asked = json(
            &system,
            3,
            &["job", "enqueue", "a", "none", "b", "-d", "n=7", "--key", "k"],
        );
        let results = asked["results"].as_array().expect("list");
        assert_eq!(
            (&results[0]["waiting"], &results[2]["waiting"]),
            (&false.into(), &false.into()),
            "{asked}"
        );
        assert!(
            results[1]["error"].as_str().expect("error").contains("NOTFOUND_001"),
            "{asked}"
        );
        // The same key again makes no second run; another one finds the job busy, or waits.
        let again = json(&system, 0, &["job", "enqueue", "a", "--key", "k"]);
        assert_eq!(
            (&again["results"][0]["id"], &again["results"][0]["existing"]),
            (&results[0]["id"], &true.into())
        );
        let said = say(&system, 4, &["job", "enqueue", "b"]);
        assert!(said.stderr.contains("[CONFLICT_001]"), "{said:?}");
        assert!(
            say(&system, 0, &["job", "enqueue", "a", "-d", "n=8"])
                .stdout
                .contains("waits for its turn")
        );
        let _runner = system.runner("w", 2, &[]);
        assert_eq!(system.until_lines("out", 2), ["7", "8"]);
    }
}

#[test]
fn calendars_and_groups_are_kept_while_they_are_used() {
    for system in both() {
        let _scheduler = system.scheduler(0);
        write(
            &system,
            "holidays.ics",
            "BEGIN:VCALENDAR\r\nVERSION:2.0\r\nPRODID:x\r\nBEGIN:VEVENT\r\nUID:1\r\nDTSTART;VALUE=DATE:20261224\r\nDTEND;VALUE=DATE:20261227\r\nRRULE:FREQ=YEARLY\r\nSUMMARY:Holidays\r\nEND:VEVENT\r\nEND:VCALENDAR\r\n",
        );
        let import = [
            "calendar",
            "import",
            "holidays",
            "holidays.ics",
            "--zone",
            "Europe/Berlin",
        ];
        let mut dry = import.to_vec();
        dry.push("--dry-run");
        say(&system, 10, &dry);
        let said = say(&system, 0, &import);
        assert!(said.stdout.contains("+ holidays (calendar)  new"), "{said:?}");
        assert!(say(&system, 0, &import).stdout.contains("= 1 unchanged"));
        write(&system, "bad.ics", "BEGIN:NOTHING\r\n");
        let said = say(&system, 2, &["calendar", "import", "x", "bad.ics"]);
        assert!(said.stderr.contains("bad.ics"), "{said:?}");
        write(
            &system,
            "jobs.toml",
            "[[concurrency_group]]\nname = \"tapes\"\nlimit = 2\n\
             [[job]]\nname = \"a\"\nshell = \"true\"\nconcurrency_group = \"tapes\"\n\
             [[job.trigger]]\nname = \"t\"\ncron = \"0 3 * * *\"\nzone = \"Europe/Berlin\"\nexclude_calendars = [\"holidays\"]\n",
        );
        say(&system, 0, &["job", "apply", "-f", "jobs.toml"]);
        let said = say(&system, 0, &["calendar", "show", "holidays"]);
        assert!(
            said.stdout.contains("used by      a/t") && said.stdout.contains("12-24 00:00 +01:00 until"),
            "{said:?}"
        );
        assert_eq!(
            json(&system, 0, &["calendar", "ls"])["calendars"][0]["used_by"][0],
            "a/t"
        );
        let said = say(&system, 0, &["concurrency-group", "ls"]);
        assert!(said.stdout.contains("tapes"), "{said:?}");
        for (args, user) in [
            (["calendar", "rm", "holidays"], "used by a/t"),
            (["concurrency-group", "rm", "tapes"], "used by a"),
        ] {
            let said = say(&system, 4, &args);
            assert!(
                said.stderr.contains(user) && said.stderr.contains("[CONFLICT_011]"),
                "{said:?}"
            );
        }
        // No fire falls on what is left out.
        let coming = json(&system, 0, &["job", "next", "a", "--until", "+8760h", "-n", "1000"]);
        let fires = coming["coming"].as_array().expect("list");
        assert!(fires.len() > 300);
        assert!(
            fires
                .iter()
                .all(|fire| !fire["at"].as_str().expect("time").contains("-12-25T")),
            "{coming}"
        );
        say(&system, 0, &["job", "rm", "a"]);
        say(&system, 0, &["calendar", "rm", "holidays"]);
        say(&system, 0, &["concurrency-group", "rm", "tapes"]);
        say(&system, 3, &["calendar", "rm", "holidays"]);
        say(&system, 3, &["calendar", "show", "holidays"]);
        say(&system, 3, &["concurrency-group", "rm", "tapes"]);
    }
}

#[test]
fn a_host_is_asked_what_it_would_miss() {
    for system in both() {
        let _scheduler = system.scheduler(0);
        let _runner = system.runner("db", 1, &["--label", "role=db"]);
        let job = |name: &str, more: &str| {
            format!("[[job]]\nname = \"{name}\"\nshell = \"true\"\n{more}\n[[job.trigger]]\nfixed_rate = \"10h\"\n")
        };
        let jobs = [
            job("any", ""),
            job("on-db", "require = { role = \"db\" }"),
            job("gpu", "require = { gpu = \"1\" }"),
            job("here", "route = \"pinned\"\nrunner = \"db\""),
            job("there", "route = \"pinned\"\nrunner = \"other\""),
            job("queue", "queue = \"tapes\""),
        ];
        write(&system, "jobs.toml", &jobs.concat());
        say(&system, 0, &["job", "apply", "-f", "jobs.toml"]);
        until("the host is known", || {
            system.say(&["next", "--runner", "db"]).code == Some(0)
        });
        let said = say(&system, 0, &["next", "--runner", "db", "--until", "+12h", "-o", "id"]);
        let mut names: Vec<&str> = said.stdout.lines().collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names, ["any", "here", "on-db"]);
        let said = say(&system, 3, &["next", "--runner", "nobody"]);
        assert!(said.stderr.contains("[NOTFOUND_006]"), "{said:?}");
    }
}

#[test]
fn a_scheduler_reads_its_folder_and_a_bad_file_stops_nothing() {
    for system in both() {
        write(&system, "jobs/hello.toml", HELLO);
        write(
            &system,
            "jobs/wrong.toml",
            "[[job]]\nname = \"half\"\nshell = \"true\"\n\n[[job]\n",
        );
        write(
            &system,
            "jobs/deep/mixed.yaml",
            "job:\n- name: good\n  shell: 'true'\n- name: bad\n  shell: 'true'\n  timeout: never\n",
        );
        std::fs::write(system.path("jobs/binary.toml"), b"\xff\xfe\x00").expect("written");
        let folder = system.path("jobs").display().to_string();
        let options = |folder: &str| ["--beat", "2s", "--lost-after", "6s", "--jobs", folder].map(str::to_owned);
        let start = |folder: &str| {
            let options = options(folder);
            system.scheduler_with(0, &options.iter().map(String::as_str).collect::<Vec<_>>())
        };
        let mut scheduler = start(&folder);
        until("what is right is stored", || {
            system.say(&["job", "ls", "-o", "id"]).stdout == "good\nhello\n"
        });
        assert_eq!(json(&system, 0, &["job", "show", "hello"])["origin"], "code");
        // Whoever looks sees what is wrong, with its place.
        until("the status says what is wrong", || {
            system.say(&["status"]).code == Some(1)
        });
        let status = json(&system, 1, &["status"]);
        let lines: Vec<&str> = status["attention"]
            .as_array()
            .expect("list")
            .iter()
            .filter_map(Value::as_str)
            .collect();
        for part in ["wrong.toml:5:", "mixed.yaml:6:", "binary.toml: cannot be read"] {
            assert!(
                lines
                    .iter()
                    .any(|line| line.starts_with("job files: ") && line.contains(part)),
                "{part}: {lines:?}"
            );
        }
        assert_eq!(lines.len(), 3, "{lines:?}");
        // A change by hand outlives the next start, since the file did not change; a job that was deleted comes back.
        edit(&system, 0, "hello", "s/1m/2m/", &[]);
        say(&system, 0, &["job", "pause", "good"]);
        say(&system, 0, &["job", "rm", "good"]);
        for name in ["wrong.toml", "deep/mixed.yaml", "binary.toml"] {
            std::fs::remove_file(system.path("jobs").join(name)).expect("removed");
        }
        write(
            &system,
            "jobs/good.toml",
            "[[job]]\nname = \"good\"\nshell = \"true\"\n",
        );
        scheduler.signal(Signal::SIGTERM);
        assert_eq!(scheduler.wait(std::time::Duration::from_secs(30)), Some(0));
        let mut scheduler = start(&folder);
        until("it is there again", || {
            system.say(&["job", "show", "good"]).code == Some(0)
        });
        let shown = json(&system, 0, &["job", "show", "hello"]);
        assert_eq!(
            (&shown["origin"], &shown["definition"]["timeout"]),
            (&"overridden".into(), &"2m".into()),
            "{shown}"
        );
        // The file changes: it counts from the next start on, the pause stays, and the log has one warning.
        say(&system, 0, &["job", "pause", "hello"]);
        write(&system, "jobs/hello.toml", &HELLO.replace("1m", "3m"));
        scheduler.signal(Signal::SIGTERM);
        assert_eq!(scheduler.wait(std::time::Duration::from_secs(30)), Some(0));
        let scheduler = start(&folder);
        until("the file counts", || {
            json(&system, 0, &["job", "show", "hello"])["definition"]["timeout"] == "3m"
        });
        let shown = json(&system, 0, &["job", "show", "hello"]);
        assert_eq!(
            (&shown["origin"], &shown["paused"]),
            (&"code".into(), &true.into()),
            "{shown}"
        );
        assert_eq!(
            scheduler.log().matches("made by hand is given up").count(),
            1,
            "{}",
            scheduler.log()
        );
    }
}

#[test]
fn a_folder_that_is_not_there_is_a_wrong_setting() {
    let system = System::sqlite();
    let output = system
        .command(&["scheduler", "--token-dir", "tokens", "--jobs", "nowhere"])
        .env("SYSTOLE_DATABASE", &system.db.url)
        .output();
    let said: Said = output.expect("systole starts").into();
    assert_eq!(said.code, Some(2), "{said:?}");
    assert!(said.stderr.contains("--jobs: nowhere"), "{said:?}");
}

/// An entry of each origin, the job that it becomes, and what a run of that writes.
const ORIGINS: [(&str, &str, &str, &str); 4] = [
    ("crontab", "tab", "echo", "100% it's\n"),
    ("systemd", "units/dump@shop.timer", "dump-shop", "<shop><x y><1><2>"),
    ("kubernetes", "cron.yaml", "greet", "hello from pod\n"),
    ("xxl-job", "jobs.csv", "nightly-report", "job.sh <a b> 0 1\n"),
];

#[test]
fn what_is_imported_passes_the_check_is_applied_and_runs() {
    let system = System::sqlite();
    let _scheduler = system.scheduler(0);
    let _runner = system.runner("w", 2, &["--label", "app=1"]);
    write(&system, "tab", "0 0 1 1 * echo \"100\\% it's\"\n");
    write(&system, "units/dump@.timer", "[Timer]\nOnCalendar=yearly\n");
    write(
        &system,
        "units/dump@.service",
        "[Service]\nType=oneshot\nEnvironment=\"A=x y\" \"B=1 2\"\nExecStart=/usr/bin/printf \"<%%s>\" %i ${A} $B\n",
    );
    write(
        &system,
        "cron.yaml",
        "apiVersion: batch/v1\nkind: CronJob\nmetadata: { name: greet }\nspec:\n  schedule: \"0 0 1 1 *\"\n  jobTemplate: { spec: { template: { spec: {\n    restartPolicy: Never,\n    containers: [{ name: a, image: busybox, command: [sh, -c], args: [\"echo $(GREETING) from $0\", pod], env: [{ name: GREETING, value: hello }] }] } } } }\n",
    );
    write(
        &system,
        "jobs.csv",
        "id,job_group,job_desc,schedule_type,schedule_conf,executor_param,executor_route_strategy,glue_type,glue_source\n\
         1,1,Nightly report,CRON,0 0 0 1 1 ?,a b,FIRST,GLUE_SHELL,\"echo \"\"$0 <$1> $2 $3\"\"\"\n",
    );
    for (origin, input, job, output) in ORIGINS {
        let file = format!("{origin}.toml");
        let imported = say(&system, 0, &["import", origin, input]);
        write(&system, &file, &imported.stdout);
        say(&system, 0, &["job", "check", &file]);
        say(&system, 0, &["job", "apply", "-f", &file]);
        let shown = json(&system, 0, &["job", "show", job]);
        assert_eq!(shown["paused"], true, "{shown}");
        say(&system, 0, &["job", "resume", job]);
        assert_eq!(say(&system, 0, &["job", "trigger", job]).stdout, output, "{origin}");
    }
}

#[test]
fn a_person_is_answered_in_their_language() {
    let system = System::sqlite();
    let _scheduler = system.scheduler(0);
    let show = ["job", "show", "nobody"];
    let english = say(&system, 3, &show).stderr;
    let german = say(&system, 3, &[&["--locale", "de-AT"], &show[..]].concat()).stderr;
    assert!(german.contains("Den Job gibt es nicht: "), "{german}");
    assert!(
        english.contains("[NOTFOUND_001]") && german.contains("[NOTFOUND_001]"),
        "{english}{german}"
    );
    let variable = system.command(&show).env("SYSTOLE_LOCALE", "pt_BR.UTF-8").output();
    let said: Said = variable.expect("systole starts").into();
    assert!(said.stderr.contains("O job não existe: "), "{said:?}");
    // Where there are no texts, and what a wrong tag is.
    assert_eq!(
        say(&system, 3, &[&["--locale", "tlh"], &show[..]].concat()).stderr,
        english
    );
    assert!(
        say(&system, 2, &["--locale", "a b", "status"])
            .stderr
            .contains("language tag")
    );
}

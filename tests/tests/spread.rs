//! Jobs over several machines, with real runners: a machine that dies, and a run on each of them.

use std::collections::BTreeSet;
use std::fs::write;
use systole_tests::System;
use systole_tests::system::until;

fn apply(system: &System, text: &str) {
    let file = system.path("jobs.toml");
    write(&file, text).expect("the job file");
    let said = system.say(&["job", "apply", "-f", &file.display().to_string()]);
    assert_eq!(said.code, Some(0), "{said:?}");
}

fn json(system: &System, args: &[&str]) -> serde_json::Value {
    let mut all = vec!["-o", "json"];
    all.extend(args);
    let said = system.say(&all);
    assert_eq!(said.code, Some(0), "{said:?}");
    serde_json::from_str(&said.stdout).expect("JSON")
}

#[test]
fn a_run_whose_machine_dies_is_started_again_on_another_one() {
    for system in [System::sqlite(), System::postgres()] {
        let _scheduler = system.scheduler(0);
        let mut machines = [("a", system.runner("a", 1, &[])), ("b", system.runner("b", 1, &[]))];
        let (ran, on) = (system.path("ran"), system.path("on"));
        // The first one waits for what never comes; the second one ends well.
        apply(
            &system,
            &format!(
                "format = 1\n[[job]]\nname = \"report\"\nkill_grace = \"1s\"\non_lost = \"failover\"\n\
                 shell = 'echo \"$SYSTOLE_RUNNER $SYSTOLE_TASK_ID\" >> {0}; [ $(wc -l < {0}) -gt 1 ] || while [ ! -e {1} ]; do sleep 0.1; done'\n",
                ran.display(),
                on.display()
            ),
        );
        let mut trigger = system.command(&["job", "trigger", "report"]).spawn().expect("starts");
        let first = system.until_lines("ran", 1).remove(0);
        let (dead, first_task) = first.split_once("/0 ").expect("host and task");
        // The machine loses power.
        let (_, machine) = machines
            .iter_mut()
            .find(|(name, _)| *name == dead)
            .expect("it is known");
        machine.kill();
        system.kill_warden(dead);
        let lines = system.until_lines("ran", 2);
        let (alive, second_task) = lines[1].split_once("/0 ").expect("host and task");
        assert_ne!(alive, dead, "{lines:?}");
        let lost = system.until(first_task, &["FAILED"]);
        assert_eq!(lost["outcome"]["kind"], "runner_lost");
        assert_eq!(lost["retried_by"], second_task);
        let again = system.until(second_task, &["FINISHED"]);
        assert_eq!(
            (again["recoveries"].as_u64(), again["attempt"].as_u64()),
            (Some(1), Some(1))
        );
        assert!(trigger.wait().expect("wait").success(), "whoever waits follows the run");
        let job = json(&system, &["job", "show", "report"]);
        assert_eq!(job["running"], serde_json::json!([]), "its place is free: {job}");
        assert_eq!(system.lines("ran").len(), 2, "once there, and once more");
    }
}

#[test]
fn a_broadcast_runs_once_on_each_machine_and_names_those_it_could_not() {
    for system in [System::sqlite(), System::postgres()] {
        let _scheduler = system.scheduler(0);
        let _machines: Vec<_> = ["a", "b", "c"].map(|name| system.runner(name, 2, &[])).into();
        until("three machines are there", || {
            let runners = json(&system, &["runners"]);
            runners["runners"].as_array().is_some_and(|rows| rows.len() == 6)
        });
        let said = system.say(&["runners", "cordon", "c", "--reason", "new disk"]);
        assert_eq!(said.code, Some(0), "{said:?}");
        let ran = system.path("ran");
        apply(
            &system,
            &format!(
                "format = 1\n[[job]]\nname = \"scrub\"\nroute = \"broadcast\"\nbroadcast = {{ max_parallel = 1 }}\n\
                 retry = {{ policy = \"fixed\", max_retries = 1, delay = \"0s\" }}\n\
                 shell = 'echo \"$SYSTOLE_RUNNER $SYSTOLE_SHARD_INDEX/$SYSTOLE_SHARD_TOTAL\" >> {0}; \
                 case $SYSTOLE_RUNNER in b/*) exit $(( $(grep -c ^b {0}) < 2 ));; esac'\n",
                ran.display()
            ),
        );
        let said = system.say(&["job", "trigger", "scrub"]);
        assert_eq!(said.code, Some(0), "{said:?}");
        let lines: Vec<String> = system
            .lines("ran")
            .iter()
            .map(|line| line.replacen("/0 ", " ", 1).replacen("/1 ", " ", 1))
            .collect();
        // One machine after the other; the failed one once more, as the same shard.
        assert_eq!(lines, ["a 0/2", "b 1/2", "b 1/2"]);
        let history = json(&system, &["job", "history", "scrub"]);
        let run = &history["occurrences"][0];
        assert_eq!(
            (run["verdict"].as_str(), run["state"].as_str()),
            (Some("fired"), Some("FINISHED"))
        );
        let set = run["task"].as_str().expect("the set");
        let members = json(&system, &["ls", "--set", set]);
        let members: BTreeSet<(String, String)> = members["tasks"]
            .as_array()
            .expect("tasks")
            .iter()
            .map(|task| {
                let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
                (text(&task["spec"]["target_host"]), text(&task["state"]))
            })
            .collect();
        let expected = [("a", "FINISHED"), ("b", "FAILED"), ("b", "FINISHED"), ("c", "SKIPPED")];
        assert_eq!(
            members,
            expected.map(|(host, state)| (host.into(), state.into())).into()
        );
        let shown = system.say(&["show", set]);
        assert!(
            shown
                .stdout
                .contains("2 of 3 members ended with exit code 0; 1 of 3 was skipped: c"),
            "{shown:?}"
        );
    }
}

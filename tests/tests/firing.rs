//! Triggers while schedulers are killed, and while their clocks are wrong: real processes, real databases. Every slot has one verdict
//! in the end, and none runs twice.

use std::collections::HashSet;
use systole_shared::clock::now_ms;
use systole_shared::time::parse_time;
use systole_tests::System;
use systole_tests::chaos::{Random, rounds};
use systole_tests::skew::Skew;
use systole_tests::slots;
use systole_tests::system::{Process, http_get, until};

fn apply(system: &System, name: &str, text: &str) {
    let file = format!("{name}.toml");
    std::fs::write(system.path(&file), text).expect("written");
    let said = system.say(&["job", "apply", "-f", &file]);
    assert_eq!(said.code, Some(0), "{said:?}");
}

/// A job whose runs write when they were meant for, and when they ran, into a file.
fn told(system: &System, name: &str, trigger: &str) -> String {
    let file = system.path("told").display().to_string();
    format!(
        "[[job]]\nname = \"{name}\"\nblocking = \"concurrent\"\nmax_concurrent = 1000\n\
         command = [\"sh\", \"-c\", 'echo \"$SYSTOLE_JOB $SYSTOLE_SCHEDULED_TIME $(date +%s%3N)\" >> {file}']\n\
         [[job.trigger]]\nname = \"t\"\n{trigger}\n"
    )
}

/// The same without anybody who runs it.
fn untold(name: &str, trigger: &str) -> String {
    format!(
        "[[job]]\nname = \"{name}\"\nblocking = \"concurrent\"\nmax_concurrent = 1000\nqueue = \"nobody\"\n\
         command = [\"true\"]\n[[job.trigger]]\nname = \"t\"\n{trigger}\n"
    )
}

/// Job, time that was meant, time that it was.
fn runs(system: &System) -> Vec<(String, i64, i64)> {
    system
        .lines("told")
        .iter()
        .map(|line| {
            let fields: Vec<&str> = line.split(' ').collect();
            let meant = parse_time(fields[1], 0).expect("a time");
            (fields[0].to_owned(), meant, fields[2].parse().expect("ms"))
        })
        .collect()
}

fn judged_until(system: &System, until_ms: i64) {
    until("every slot is judged", || {
        let left = system
            .db
            .sql(&format!("SELECT count(*) FROM job_trigger WHERE next_ms <= {until_ms}"));
        left == "0"
    });
}

/// No slot ran twice, and all that fired have run.
fn each_ran_once(system: &System) {
    let fired = system.db.sql(
        "SELECT count(*) FROM occurrence AS o JOIN task AS t ON t.id = o.task_id WHERE o.verdict = 'fired' AND t.lane_id IN \
           (SELECT id FROM lane WHERE queue <> 'nobody')",
    );
    let fired: usize = fired.parse().expect("a number");
    until("all that fired has run", || runs(system).len() >= fired);
    let runs = runs(system);
    let slots: HashSet<(&str, i64)> = runs.iter().map(|(job, meant, _)| (job.as_str(), *meant)).collect();
    assert_eq!(slots.len(), runs.len(), "a slot ran twice");
    for (job, meant, at) in &runs {
        assert!(at >= meant, "{job} ran {at}, before its time {meant}");
    }
}

/// D08 (dkron-io/dkron#1210, hashicorp/nomad#11052): whoever is about to fire is killed, again and again.
fn schedulers_are_killed(mut system: System, replicas: usize) {
    for _ in 1..replicas {
        system.another_port();
    }
    let mut schedulers: Vec<Process> = (0..replicas).map(|index| system.scheduler(index)).collect();
    let urls: Vec<String> = system
        .ports
        .iter()
        .map(|port| format!("http://127.0.0.1:{port}"))
        .collect();
    let urls: Vec<&str> = urls.iter().map(String::as_str).collect();
    let _runner = system.runner_at(&urls, "w", 4, &[]);
    // Made one after the other, so that their grids lie apart and some are always being fired.
    let policies = ["\"fire_once\"", "\"skip\"", "\"catch_up\"\nmax_catch_up = 1000"];
    for (n, misfire) in policies.iter().cycle().take(12).enumerate() {
        let schedule = match n {
            9 => "cron = \"*/2 * * * * ?\"\ndialect = \"quartz\"",
            10 => "cron = \"* * * * *\"",
            _ => "fixed_rate = \"1s\"",
        };
        let trigger = format!("{schedule}\nmisfire = {misfire}");
        let name = format!("j{n}");
        let text = if n % 4 == 0 {
            told(&system, &name, &trigger)
        } else {
            untold(&name, &trigger)
        };
        apply(&system, &name, &text);
    }
    let mut random = Random(20_261_130);
    for _ in 0..rounds("SYSTOLE_SCHEDULER_KILLS", 12) {
        random.pause(1_200);
        let mut killed: Vec<usize> = (0..replicas).filter(|_| random.below(2) == 0).collect();
        if killed.is_empty() {
            killed.push(random.below(replicas));
        }
        for &index in &killed {
            schedulers[index].kill();
        }
        // Long enough, at times, for fires to be missed.
        random.pause(2_000);
        for index in killed {
            schedulers[index] = system.scheduler(index);
        }
    }
    let end = now_ms();
    judged_until(&system, end);
    let checked = slots::check(&system.db, end);
    println!("{replicas} schedulers: {checked:?}");
    assert!(checked.slots > 100 && checked.fired > 50, "{checked:?}");
    each_ran_once(&system);
}

#[test]
fn d08_every_slot_has_one_verdict_though_three_schedulers_are_killed() {
    schedulers_are_killed(System::postgres(), 3);
}

#[test]
fn d08_every_slot_has_one_verdict_though_the_only_scheduler_is_killed() {
    schedulers_are_killed(System::sqlite(), 1);
}

const CLOCKS: [&str; 6] = ["--beat", "2s", "--lost-after", "6s", "--check", "500ms"];

/// robfig/cron#480, agronholm/apscheduler#351, sidekiq-scheduler#283: the clock is two hours ahead for a while, and nothing runs
/// until that time has come again.
#[test]
fn d06_a_clock_that_was_two_hours_ahead_for_a_while_stops_no_trigger_and_fires_nothing_twice() {
    let system = System::sqlite();
    let skew = Skew::new(0);
    let _scheduler = system.scheduler_in(0, &CLOCKS, &skew.env());
    let _runner = system.runner("w", 4, &[]);
    apply(&system, "rate", &told(&system, "rate", "fixed_rate = \"1s\""));
    apply(
        &system,
        "cron",
        &told(&system, "cron", "cron = \"* * * * * ?\"\ndialect = \"quartz\""),
    );
    let go = system.path("go").display().to_string();
    let task = system.submit(&[
        "--timeout",
        "60s",
        "--shell",
        &format!("until test -e {go}; do sleep 0.05; done; echo ok"),
    ]);
    system.until(&task, &["RUNNING"]);
    system.until_lines("told", 4);

    skew.set(2 * 3_600_000);
    until("the clock is not believed", || {
        http_get(system.ports[0], "/readyz").is_some_and(|(_, text)| text.contains("the database's clock"))
    });
    let ahead = runs(&system);
    skew.set(0);
    let corrected = now_ms();
    until("it is believed again", || {
        http_get(system.ports[0], "/readyz").is_some_and(|(_, text)| text == "ready\n")
    });
    for job in ["rate", "cron"] {
        until("it fires again", || {
            runs(&system)
                .iter()
                .any(|(name, meant, _)| name == job && *meant > corrected)
        });
    }
    // Within its period and the polls, not when the wrong time has come again.
    let waited = now_ms() - corrected;
    assert!(waited < 20_000, "it took {waited} ms");
    assert!(ahead.iter().all(|(_, meant, _)| *meant <= corrected), "{ahead:?}");
    let end = now_ms();
    judged_until(&system, end);
    println!("{:?}", slots::check(&system.db, end));
    each_ran_once(&system);
    std::fs::write(&go, "").expect("written");
    let ended = system.until(&task, &["FINISHED", "FAILED", "TERMINATED"]);
    assert_eq!(ended["state"], "FINISHED", "{ended}");
    let time = |field: &str| parse_time(ended[field].as_str().expect("a time"), 0).expect("a time");
    let took = time("ended_at") - time("started_at");
    assert!((0..60_000).contains(&took), "{ended}");
}

/// quartznet/quartznet#703, quartz-scheduler/quartz#548: each node compared stored times with a clock of its own.
#[test]
fn d07_replicas_whose_clocks_differ_fire_each_slot_once_by_the_clock_of_the_database() {
    let mut system = System::postgres();
    system.another_port();
    let a_little = Skew::new(30_000);
    let mut right = system.scheduler(0);
    let mut ahead = system.scheduler_in(1, &CLOCKS, &a_little.env());
    let urls: Vec<String> = system
        .ports
        .iter()
        .map(|port| format!("http://127.0.0.1:{port}"))
        .collect();
    let urls: Vec<&str> = urls.iter().map(String::as_str).collect();
    let _runner = system.runner_at(&urls, "w", 4, &[]);
    apply(&system, "rate", &told(&system, "rate", "fixed_rate = \"1s\""));
    system.until_lines("told", 4);
    // The one whose clock is wrong is alone.
    right.kill();
    let count = runs(&system).len();
    system.until_lines("told", count + 4);
    right = system.scheduler(0);
    // By more than clocks may differ: it says so, and leaves what depends on the time to others.
    ahead.kill();
    let much = Skew::new(90_000);
    ahead = system.scheduler_in(1, &CLOCKS, &much.env());
    until("it is told", || {
        http_get(system.ports[1], "/readyz").is_some_and(|(_, text)| text.contains("clock"))
    });
    let count = runs(&system).len();
    system.until_lines("told", count + 4);
    let end = now_ms();
    judged_until(&system, end);
    let checked = slots::check(&system.db, end);
    println!("{checked:?}");
    each_ran_once(&system);
    // Nobody was taken for lost.
    assert_eq!(system.db.sql("SELECT count(*) FROM task WHERE status = 7"), "0");
    drop((right, ahead));
}

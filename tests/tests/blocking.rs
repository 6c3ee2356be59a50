//! Who of a job runs at once, from what the runs themselves say: real schedulers, agents, wardens and children, which are killed.

use systole_shared::clock::now_ms;
use systole_shared::time::parse_time;
use systole_tests::System;
use systole_tests::chaos::{Random, rounds};
use systole_tests::evidence::{at_most, job, runs};
use systole_tests::slots;
use systole_tests::system::{Process, alive, until};

fn apply(system: &System, text: &str) {
    std::fs::write(system.path("jobs.toml"), text).expect("written");
    let said = system.say(&["job", "apply", "-f", "jobs.toml"]);
    assert_eq!(said.code, Some(0), "{said:?}");
}

fn every_second(more: &str) -> String {
    format!("{more}\n[[job.trigger]]\nname = \"t\"\nfixed_rate = \"1s\"\n")
}

fn urls(system: &System) -> Vec<String> {
    system
        .ports
        .iter()
        .map(|port| format!("http://127.0.0.1:{port}"))
        .collect()
}

fn runner(system: &System, name: &str, slots: u32) -> Process {
    let urls = urls(system);
    let urls: Vec<&str> = urls.iter().map(String::as_str).collect();
    system.runner_at(&urls, name, slots, &["--kill-grace", "1s"])
}

fn json(system: &System, args: &[&str]) -> serde_json::Value {
    let said = system.say(&[&["-o", "json"], args].concat());
    assert_eq!(said.code, Some(0), "{args:?}: {said:?}");
    serde_json::from_str(&said.stdout).expect("JSON")
}

fn count(system: &System, question: &str) -> usize {
    system.db.sql(question).parse().expect("a number")
}

/// The file of each policy, and how many of it may run at once.
const POLICIES: [(&str, usize); 5] = [("serial", 1), ("discard", 1), ("cover", 1), ("two", 2), ("group", 1)];

const RUNNERS: [&str; 3] = ["w1", "w2", "w3"];

fn everything_is_killed(mut system: System, replicas: usize) {
    for _ in 1..replicas {
        system.another_port();
    }
    let mut schedulers: Vec<Process> = (0..replicas).map(|index| system.scheduler(index)).collect();
    let mut agents: Vec<Process> = RUNNERS.iter().map(|name| runner(&system, name, 3)).collect();
    let cover = "blocking = \"cover_early\"\nkill_grace = \"1s\"\n[[job.trigger]]\nname = \"t\"\nfixed_rate = \"2s\"\n";
    // It lasts longer than its period, so that each is covered, and does not go at the first signal: it ends by itself within its grace,
    // or is killed after it.
    let stubborn = job(&system, "cover", "cover", "2.6", cover).replace("LASTS", "STUBBORN = \"1\", LASTS");
    apply(
        &system,
        &[
            "[[concurrency_group]]\nname = \"g\"\nlimit = 1\n".to_owned(),
            job(&system, "serial", "serial", "1.2", &every_second("max_waiting = 3")),
            job(
                &system,
                "discard",
                "discard",
                "1.2",
                &every_second("blocking = \"discard_later\""),
            ),
            stubborn,
            job(
                &system,
                "two",
                "two",
                "1.7",
                &every_second("blocking = \"concurrent\"\nmax_concurrent = 2\nmax_waiting = 3"),
            ),
            job(
                &system,
                "g1",
                "group",
                "0.7",
                &every_second("concurrency_group = \"g\"\nmax_waiting = 1"),
            ),
            job(
                &system,
                "g2",
                "group",
                "0.7",
                &every_second("concurrency_group = \"g\"\nmax_waiting = 1"),
            ),
        ]
        .concat(),
    );
    for (log, _) in POLICIES {
        system.until_lines(log, 4);
    }
    let mut random = Random(4_711);
    for round in 0..rounds("SYSTOLE_BLOCKING_KILLS", 8) {
        random.pause(1_500);
        let victim = random.below(RUNNERS.len());
        match random.below(4) {
            0 => {}
            1 => agents[victim].kill(),
            2 => system.kill_warden_if_there(RUNNERS[victim]),
            _ => {
                agents[victim].kill();
                system.kill_warden_if_there(RUNNERS[victim]);
            }
        }
        let scheduler = random.below(replicas);
        if random.below(2) == 0 {
            schedulers[scheduler].kill();
        }
        // Shorter than a runner may be silent, and longer.
        random.pause(if round % 3 == 2 { 9_000 } else { 2_500 });
        if schedulers[scheduler].child.try_wait().expect("wait").is_some() {
            schedulers[scheduler] = system.scheduler(scheduler);
        }
        if agents[victim].child.try_wait().expect("wait").is_some() {
            agents[victim] = runner(&system, RUNNERS[victim], 3);
        }
    }
    // Nothing blocks for ever: each goes on.
    for (log, _) in POLICIES {
        let before = runs(&system, log).len();
        until(&format!("{log} goes on"), || runs(&system, log).len() > before + 1);
    }
    for (log, limit) in POLICIES {
        let seen = at_most(&system, log, limit);
        println!(
            "{log}: {} runs, {} of them to their end",
            seen.len(),
            seen.iter().filter(|run| run.ended).count()
        );
    }
    let together = runs(&system, "two").iter().filter(|run| !run.others.is_empty()).count();
    assert!(together > 0, "two at once were allowed");
    // Runs were covered, and fires were skipped with the run that was in their way.
    assert!(count(&system, "SELECT count(*) FROM task WHERE terminating = 'superseded'") > 0);
    assert!(count(&system, "SELECT count(*) FROM occurrence WHERE reason = 'blocked'") > 0);
    assert_eq!(
        count(
            &system,
            "SELECT count(*) FROM occurrence WHERE reason = 'blocked' AND blocked_by IS NULL"
        ),
        0
    );
    // First in, first out.
    let order: Vec<i64> = runs(&system, "serial").iter().map(|run| run.task).collect();
    assert!(order.is_sorted(), "{order:?}");
    let end = now_ms();
    until("every slot is judged", || {
        count(
            &system,
            &format!("SELECT count(*) FROM job_trigger WHERE next_ms <= {end}"),
        ) == 0
    });
    println!("{:?}", slots::check(&system.db, end));
}

#[test]
fn no_policy_is_broken_though_schedulers_agents_and_wardens_are_killed() {
    everything_is_killed(System::postgres(), 2);
}

#[test]
fn no_policy_is_broken_though_the_only_scheduler_agents_and_wardens_are_killed() {
    everything_is_killed(System::sqlite(), 1);
}

/// dkron-io/dkron#349, dkron-io/dkron#1939, hashicorp/nomad#14505: what an agent left "running" when it died blocked for ever and was
/// not shown; or a restart forgot it.
fn d22(system: &System, restart_scheduler: bool, another_runner: bool) {
    let mut scheduler = system.scheduler(0);
    let mut agent = runner(system, "w1", 2);
    apply(
        system,
        &job(
            system,
            "long",
            "long",
            "600",
            &every_second("blocking = \"discard_later\""),
        ),
    );
    system.until_lines("long", 2);
    let first = runs(system, "long").remove(0);
    let _other = another_runner.then(|| runner(system, "w2", 2));
    agent.kill();
    system.kill_warden("w1");
    until("the command goes with its warden", || !alive(&first.pid));
    if restart_scheduler {
        scheduler.kill();
        scheduler = system.scheduler(0);
    }
    let task = system.until(&first.task.to_string(), &["FAILED"]);
    assert_eq!(task["outcome"]["kind"], "runner_lost", "{task}");
    // Nobody knows that it is dead: it is listed, and what does not fire names it.
    let shown = json(system, &["job", "show", "long"]);
    assert_eq!(shown["running"][0], first.task.to_string(), "{shown}");
    let blocked = format!(
        "SELECT count(*) FROM occurrence WHERE reason = 'blocked' AND blocked_by = {}",
        first.task
    );
    let before = count(system, &blocked);
    until("more fires are blocked", || count(system, &blocked) > before + 1);
    let why = system.say(&["why", "long"]).stdout;
    assert!(why.contains("on w1 ended, but nobody saw its processes end"), "{why}");
    assert_eq!(runs(system, "long").len(), 1, "nothing starts beside it");
    // Its host is back with empty hands: that is the proof.
    agent = runner(system, "w1", 2);
    system.until_lines("long", 4);
    let seen = at_most(system, "long", 1);
    assert_eq!(seen.len(), 2);
    let blocked = format!(
        "SELECT count(*) FROM occurrence WHERE reason = 'blocked' AND blocked_by = {}",
        seen[1].task
    );
    until("the new one is in the way now", || count(system, &blocked) > 0);
    drop((scheduler, agent));
}

#[test]
fn d22_a_run_that_died_with_agent_and_warden_blocks_until_that_is_known() {
    d22(&System::sqlite(), false, false);
}

#[test]
fn d22_a_restart_of_the_scheduler_forgets_nothing_of_it() {
    d22(&System::postgres(), true, false);
}

#[test]
fn d22_a_second_runner_is_given_nothing_meanwhile() {
    d22(&System::sqlite(), true, true);
}

/// rq/rq-scheduler#269, fluentscheduler/FluentScheduler#112: every run moved the grid by its own duration.
#[test]
fn d23_a_rate_that_is_faster_than_its_runs_keeps_its_grid() {
    for system in [System::sqlite(), System::postgres()] {
        let _scheduler = system.scheduler(0);
        let _runner = runner(&system, "w", 2);
        apply(
            &system,
            &job(&system, "b", "b", "1.4", &every_second("blocking = \"discard_later\"")),
        );
        until("six runs are over", || {
            runs(&system, "b").iter().filter(|run| run.ended).count() >= 6
        });
        let seen = at_most(&system, "b", 1);
        let slot = |text: &str| parse_time(text, 0).expect("a time");
        let first = slot(&seen[0].scheduled);
        for run in &seen {
            assert_eq!((slot(&run.scheduled) - first) % 1_000, 0, "{seen:?}");
        }
        let end = now_ms() - 1_000;
        until("every slot is judged", || {
            count(
                &system,
                &format!("SELECT count(*) FROM job_trigger WHERE next_ms <= {end}"),
            ) == 0
        });
        let checked = slots::check(&system.db, end);
        // The slot that passes while it runs is skipped, not run at once.
        assert!(checked.fired >= 5 && checked.others >= 4, "{checked:?}");
        assert_eq!(
            count(
                &system,
                "SELECT count(*) FROM occurrence WHERE verdict = 'skipped' AND reason <> 'blocked'"
            ),
            0
        );
    }
}

/// xuxueli/xxl-job#3491, xuxueli/xxl-job#561, hashicorp/nomad#5487: the policy held within one executor only, and a start by hand was
/// not seen.
#[test]
fn d24_a_policy_holds_for_all_runners_and_for_starts_by_hand() {
    for system in [System::sqlite(), System::postgres()] {
        let _scheduler = system.scheduler(0);
        let _runners: Vec<Process> = RUNNERS.iter().map(|name| runner(&system, name, 2)).collect();
        apply(
            &system,
            &[
                job(
                    &system,
                    "discard",
                    "discard",
                    "4",
                    &every_second("blocking = \"discard_later\""),
                ),
                job(&system, "queue", "queue", "1.5", &every_second("max_waiting = 5")),
                job(
                    &system,
                    "parallel",
                    "parallel",
                    "2.5",
                    &every_second("blocking = \"concurrent\"\nmax_concurrent = 3"),
                ),
            ]
            .concat(),
        );
        system.until_lines("discard", 2);
        system.until_lines("queue", 2);
        for _ in 0..2 {
            let said = system.say(&["job", "enqueue", "queue"]);
            assert_eq!(said.code, Some(0), "{said:?}");
            let running = runs(&system, "discard")
                .last()
                .filter(|run| !run.ended)
                .map(|run| run.task);
            let said = system.say(&["job", "enqueue", "discard"]);
            // It may just have ended; otherwise the run in the way is named.
            if said.code != Some(0) {
                assert!(said.stderr.contains("discard"), "{said:?}");
                if let Some(task) = running {
                    assert!(
                        said.stderr.contains(&task.to_string()) || said.stderr.contains("runs"),
                        "{said:?}"
                    );
                }
            }
        }
        until("each has had its turns", || {
            ["discard", "queue"]
                .iter()
                .all(|log| runs(&system, log).iter().filter(|run| run.ended).count() >= 3)
                && runs(&system, "parallel").len() >= 6
        });
        // A run by hand is in the way of fires, too.
        assert_eq!(system.say(&["job", "pause", "discard"]).code, Some(0));
        until("nothing of it runs", || {
            count(&system, "SELECT count(*) FROM slot WHERE resource = 'job:discard'") == 0
        });
        let said = system.say(&["-o", "id", "job", "enqueue", "discard"]);
        let by_hand = said.stdout.trim().to_owned();
        assert_eq!(system.say(&["job", "resume", "discard"]).code, Some(0));
        until("a fire is blocked by it", || {
            count(
                &system,
                &format!("SELECT count(*) FROM occurrence WHERE reason = 'blocked' AND blocked_by = {by_hand}"),
            ) > 0
        });
        until("it has begun", || {
            runs(&system, "discard")
                .iter()
                .any(|run| run.task.to_string() == by_hand)
        });
        at_most(&system, "discard", 1);
        let queue: Vec<i64> = at_most(&system, "queue", 1).iter().map(|run| run.task).collect();
        assert!(queue.is_sorted(), "{queue:?}");
        let parallel = at_most(&system, "parallel", 3);
        assert!(parallel.iter().any(|run| !run.others.is_empty()), "{parallel:?}");
    }
}

/// kestra-io/kestra#5983, airbytehq/airbyte#28536, Yelp/Tron#159: the fourth moment of a cancel.
#[test]
fn d21_a_cancel_in_the_backoff_ends_the_run_and_the_trigger_goes_on() {
    let system = System::sqlite();
    let _scheduler = system.scheduler(0);
    let _runner = runner(&system, "w", 1);
    let retry = "retry = { policy = \"fixed\", max_retries = 3, delay = \"30s\" }";
    let text = job(&system, "fails", "fails", "0", &every_second(retry)).replace("LASTS", "EXIT = \"1\", LASTS");
    apply(&system, &text);
    system.until_lines("fails", 2);
    let first = runs(&system, "fails").remove(0);
    let retry = system.until(&first.task.to_string(), &["FAILED"])["retried_by"].clone();
    let retry = retry.as_str().expect("a retry").to_owned();
    assert_eq!(system.state(&retry), "CREATED");
    assert_eq!(system.say(&["cancel", &first.task.to_string()]).code, Some(0));
    assert_eq!(system.state(&retry), "TERMINATED");
    // The next fire has the place now.
    system.until_lines("fails", 4);
    let seen = at_most(&system, "fails", 1);
    assert!(seen[1].task.to_string() != retry, "{seen:?}");
    let again = system.say(&["cancel", &first.task.to_string()]);
    assert!(again.stdout.contains("cancelled before"), "{again:?}");
    assert_eq!(system.show(&retry)["retried_by"].as_str(), None);
}

/// graphile/worker#266, apple/cups#3466, sidekiq-rs#39: retries and attempts were mixed up.
#[test]
fn d19_so_many_retries_are_one_run_more() {
    let system = System::sqlite();
    let _scheduler = system.scheduler(0);
    let _runner = runner(&system, "w", 2);
    let log = system.path("count").display().to_string();
    for (retries, attempts) in [("0", 1), ("1", 2), ("3", 4)] {
        let script = format!("echo $SYSTOLE_ATTEMPT >> {log}{retries}; exit 1");
        let said = system.say(&["run", "--retry", retries, "--retry-delay", "100ms", "--shell", &script]);
        assert_eq!(said.code, Some(1), "{said:?}");
        let numbers: Vec<String> = (1..=attempts).map(|n: u32| n.to_string()).collect();
        assert_eq!(system.lines(&format!("count{retries}")), numbers);
    }
    // Success on the last attempt that is permitted; a timeout is an attempt like another.
    let script = format!("echo x >> {log}-third; [ $(wc -l < {log}-third) -ge 3 ] || sleep 60");
    let said = system.say(&[
        "run",
        "--retry",
        "2",
        "--retry-delay",
        "100ms",
        "--timeout",
        "1s",
        "--shell",
        &script,
    ]);
    assert_eq!(said.code, Some(0), "{said:?}");
    assert_eq!(system.lines("count-third").len(), 3);
    for wrong in ["-1", "null", "1000000000"] {
        let said = system.say(&["submit", &format!("--retry={wrong}"), "--", "true"]);
        assert_eq!(said.code, Some(2), "{wrong}: {said:?}");
    }
}

/// What people see of a trigger whose run waits: in lists, in one job, in words, and as JSON.
#[test]
fn a_blocked_trigger_is_shown_as_such_everywhere() {
    let system = System::sqlite();
    let _scheduler = system.scheduler(0);
    let _runner = runner(&system, "w", 1);
    apply(
        &system,
        &job(&system, "a", "a", "600", &every_second("max_waiting = 1")),
    );
    let state = || json(&system, &["trigger", "ls"])["triggers"][0]["state"].clone();
    until("its run waits", || state() == "BLOCKED");
    assert_eq!(system.say(&["trigger", "pause", "a/t"]).code, Some(0));
    assert_eq!(state(), "PAUSED (blocked)");
    for of in ["PAUSED", "BLOCKED"] {
        let said = system.say(&["-o", "id", "trigger", "ls", "--state", of]);
        assert_eq!(said.stdout, "a/t\n", "{of}");
    }
    assert_eq!(
        system.say(&["-o", "id", "trigger", "ls", "--state", "WAITING"]).stdout,
        ""
    );
    let shown = json(&system, &["job", "show", "a"]);
    assert_eq!(shown["triggers"][0]["state"], "PAUSED (blocked)", "{shown}");
    for args in [&["trigger", "ls"][..], &["job", "show", "a"]] {
        let said = system.say(args).stdout;
        assert!(said.contains("PAUSED (blocked)"), "{said}");
    }
    let why = system.say(&["why", "a"]).stdout;
    assert!(
        why.contains("Trigger t is blocked") && why.contains("Trigger t is paused"),
        "{why}"
    );
    let why = json(&system, &["why", "a"]);
    let sentences = why["sentences"].to_string();
    assert!(sentences.contains("Trigger t is blocked"), "{why}");
}

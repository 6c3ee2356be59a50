//! `systole lock` with real processes: two holders never at once, whatever is killed, stopped or cut off. The evidence is written by
//! the commands themselves: each writes its token again and again to one file, so that a token after a higher one is two at once.

use nix::sys::signal::Signal;
use std::time::{Duration, Instant};
use systole_tests::System;
use systole_tests::door::Door;
use systole_tests::system::{Process, until};

/// Writes its token for ever, and its child does.
const TICKS: &str = "while :; do echo $SYSTOLE_FENCING_TOKEN >> ticks; sleep 0.02; done & \
                     while :; do echo $SYSTOLE_FENCING_TOKEN >> ticks; sleep 0.02; done";

fn tokens(system: &System) -> Vec<i64> {
    let lines = system.lines("ticks");
    lines.iter().filter_map(|line| line.parse().ok()).collect()
}

/// The newest token that was written.
fn newest(system: &System) -> i64 {
    tokens(system).into_iter().max().unwrap_or(0)
}

fn assert_never_two(system: &System) {
    let tokens = tokens(system);
    let mut highest = 0;
    for (at, token) in tokens.iter().enumerate() {
        assert!(*token >= highest, "two at once: line {at} has {token} after {highest}");
        highest = *token;
    }
}

fn hold(system: &System, name: &str, options: &[&str]) -> Process {
    let mut args = vec!["lock", "r"];
    args.extend(options);
    args.extend(["--", "sh", "-c", TICKS]);
    system.start(name, &mut system.command(&args))
}

fn until_newer(system: &System, than: i64) -> i64 {
    until("the next holder writes", || newest(system) > than);
    newest(system)
}

fn end(process: &mut Process) {
    process.signal(Signal::SIGTERM);
    process.wait(Duration::from_secs(20));
}

#[test]
fn a_lock_ends_with_the_status_of_its_command_and_says_apart_what_is_not() {
    let system = System::sqlite();
    let scheduler = system.scheduler(0);
    let lock = |command: &[&str]| {
        let mut args = vec!["lock", "r", "--ttl", "5s", "--"];
        args.extend(command);
        system.say(&args)
    };
    let first = lock(&["sh", "-c", "echo $SYSTOLE_FENCING_TOKEN; cat; exit 7"]);
    assert_eq!(first.code, Some(7), "{first:?}");
    let second = lock(&["sh", "-c", "echo $SYSTOLE_FENCING_TOKEN"]);
    assert_eq!(second.code, Some(0), "{second:?}");
    let token = |said: &str| said.trim().parse::<i64>().expect("a token");
    assert!(token(&second.stdout) > token(&first.stdout));
    assert_eq!(lock(&["sh", "-c", "kill -9 $$"]).code, Some(137));
    assert_eq!(lock(&["no-such-program"]).code, Some(127));
    assert_eq!(lock(&["/etc/passwd"]).code, Some(126));

    let mut holder = hold(&system, "holder", &["--ttl", "5s"]);
    let held = until_newer(&system, 0);
    let refused = lock(&["true"]);
    assert_eq!(refused.code, Some(120), "{refused:?}");
    assert!(refused.stderr.contains("is held by"), "{refused:?}");
    let began = Instant::now();
    let late = system.say(&["lock", "r", "--wait", "1s", "--", "true"]);
    assert_eq!(late.code, Some(124), "{late:?}");
    assert!(began.elapsed() >= Duration::from_secs(1));
    let listed = system.say(&["-o", "json", "lock", "ls"]);
    let listed: serde_json::Value = serde_json::from_str(&listed.stdout).expect("JSON");
    assert_eq!(listed["results"][0]["token"], held.to_string(), "{listed}");
    // It is forwarded; the command ends by it, and what it left goes, too.
    holder.signal(Signal::SIGTERM);
    assert_eq!(holder.wait(Duration::from_secs(10)), Some(143));
    let count = tokens(&system).len();
    assert_eq!(lock(&["true"]).code, Some(0), "it was given back");
    assert_eq!(tokens(&system).len(), count);
    drop(scheduler);
    let nobody = lock(&["true"]);
    assert_eq!(nobody.code, Some(125), "{nobody:?}");
}

#[test]
fn a_holder_that_is_killed_takes_its_command_with_it_and_the_next_one_comes() {
    let system = System::sqlite();
    let _scheduler = system.scheduler(0);
    let mut first = hold(&system, "first", &["--ttl", "4s"]);
    let token = until_newer(&system, 0);
    let mut second = hold(&system, "second", &["--ttl", "4s", "--wait", "60s"]);
    first.kill();
    // At once, not by the ttl.
    let count = || tokens(&system).iter().filter(|&&one| one == token).count();
    let mut before = count();
    until("the command of the killed one is gone", || {
        std::thread::sleep(Duration::from_millis(100));
        let now = count();
        std::mem::replace(&mut before, now) == now
    });
    assert_eq!(newest(&system), token, "before the next one");
    until_newer(&system, token);
    end(&mut second);
    assert_never_two(&system);
}

#[test]
fn a_holder_that_stands_still_loses_its_command_before_the_next_one_comes() {
    let system = System::sqlite();
    let _scheduler = system.scheduler(0);
    let mut first = hold(&system, "first", &["--ttl", "4s"]);
    let token = until_newer(&system, 0);
    first.signal(Signal::SIGSTOP);
    let mut second = hold(&system, "second", &["--ttl", "4s", "--wait", "60s"]);
    let next = until_newer(&system, token);
    first.signal(Signal::SIGCONT);
    assert_eq!(first.wait(Duration::from_secs(20)), Some(125));
    assert_eq!(newest(&system), next);
    end(&mut second);
    assert_never_two(&system);
}

#[test]
fn a_holder_that_is_cut_off_ends_its_command_before_the_next_one_comes() {
    let system = System::sqlite();
    let _scheduler = system.scheduler(0);
    let door = Door::open(system.ports[0]);
    let mut command = system.command(&["lock", "r", "--ttl", "4s", "--", "sh", "-c", TICKS]);
    command.env("SYSTOLE_URL", format!("http://127.0.0.1:{}", door.port));
    let mut first = system.start("first", &mut command);
    let token = until_newer(&system, 0);
    let mut second = hold(&system, "second", &["--ttl", "4s", "--wait", "60s"]);
    door.close();
    until_newer(&system, token);
    assert_eq!(first.wait(Duration::from_secs(20)), Some(125));
    assert!(first.log().contains("could not be renewed"), "{}", first.log());
    end(&mut second);
    assert_never_two(&system);
}

#[test]
fn a_replica_that_is_killed_costs_no_holder_its_lease() {
    let mut system = System::postgres();
    let port = system.another_port();
    let mut one = system.scheduler(0);
    let _other = system.scheduler(1);
    let both = format!("{},http://127.0.0.1:{port}", system.url);
    system.url = both;
    let mut first = hold(&system, "first", &["--ttl", "6s"]);
    let token = until_newer(&system, 0);
    let mut second = hold(&system, "second", &["--ttl", "6s", "--wait", "120s"]);
    one.kill();
    // Longer than the ttl.
    let until_then = Instant::now() + Duration::from_secs(9);
    until("its ttl has passed, and more", || Instant::now() > until_then);
    assert_eq!(newest(&system), token);
    assert!(first.child.try_wait().expect("wait").is_none(), "{}", first.log());
    end(&mut first);
    until_newer(&system, token);
    end(&mut second);
    assert_never_two(&system);
}

#[test]
fn a_lease_that_is_taken_away_ends_its_command_and_is_free_then() {
    let system = System::sqlite();
    let _scheduler = system.scheduler(0);
    let mut first = hold(&system, "first", &["--ttl", "6s"]);
    let token = until_newer(&system, 0);
    let mut second = hold(&system, "second", &["--ttl", "6s", "--wait", "60s"]);
    let said = system.say(&["lock", "release", "r", "--reason", "CHG-7"]);
    assert_eq!(said.code, Some(0), "{said:?}");
    assert_eq!(first.wait(Duration::from_secs(20)), Some(121));
    assert!(first.log().contains("taken away by admin: CHG-7"), "{}", first.log());
    until_newer(&system, token);
    end(&mut second);
    assert_never_two(&system);
}

//! On call, with crontabs on many hosts: a scheduler that others can reach, a second machine, the crontabs, and the night.

use crate::nothing_is_left;
use systole_tests::home::Home;
use systole_tests::person::Person;

const CRONTAB: &str = "\
MAILTO=ops
# m h dom mon dow user command
30 2 * * * root echo backup of $(hostname)
*/5 * * * * nobody flock -n /run/x true
@reboot root /usr/local/bin/warm-up
";

#[test]
fn the_first_hour_of_an_on_call_sre() {
    let (jump, host) = (Home::new(), Home::new());
    let port = jump.port;
    let url = format!("https://127.0.0.1:{port}");

    // A scheduler for more than this machine, in a terminal of its own.
    let mut services = Person::at(&jump);
    services.begins(&format!(
        "systole up --listen 0.0.0.0:{port} --tls-self-signed --slots 2"
    ));
    services.sees("scheduler and 2 runner slots");
    services.sees("TLS by this cluster's own authority");
    services.sees("run -- echo hello");

    let mut sre = Person::at(&jump);
    sre.types(&format!("export SYSTOLE_URL={url}"));
    sre.types("systole run -- sh -c 'echo hello; exit 7'")
        .is(7, &["hello\n", "FAILED exit code 7"]);

    // What is typed wrong is said with what to type.
    sre.types("systole run echo hello").is(2, &["systole run -- PROG"]);
    sre.types("systole runers").is(2, &["runners"]);
    sre.types("systole run --timeout 12 -- true")
        .is(2, &["--timeout", "12s"]);
    sre.types("systole run -- no-such-program")
        .is(127, &["there is no no-such-program", "in PATH="]);
    sre.types("systole show 9999").is(3, &["no task 9999", "systole ls"]);
    sre.types("systole run --require place=db --queue-timeout 1s -- true")
        .is(124, &["FAILED queue_timeout"]);

    // The second machine, by the line that is printed.
    let printed = sre.types(&format!("systole join-command --address {url}"));
    printed.is(0, &["for one host, until"]);
    let line = printed.text.lines().find(|line| line.starts_with("echo systole_join_"));
    let line = line
        .unwrap_or_else(|| panic!("no line to paste: {printed:?}"))
        .to_owned();
    let mut db = Person::at(&host);
    db.begins(&format!("{line} --slots 2 --name db-01 --label place=db"));
    sre.types(
        "for i in $(seq 60); do systole runners ls db-01 | grep -q idle && break; sleep 0.5; done; systole runners",
    )
    .is(0, &["db-01/0", "db-01/1", "place=db"]);
    sre.types("systole run --require place=db -- sh -c 'echo on $SYSTOLE_RUNNER'")
        .is(0, &["on db-01/"]);
    sre.types(&format!("{line} --join-only --name db-02"))
        .is(4, &["was used at", "runner@db-01"]);

    // His crontabs: each line becomes a job, paused, or says why not.
    host.write("cron.d", CRONTAB);
    jump.write("cron.d", CRONTAB);
    sre.types("mkdir jobs");
    sre.types(
        "systole import crontab --system cron.d --zone Asia/Tokyo --runner db-01 --prefix db-01. > jobs/db-01.toml",
    )
    .is(1, &["2 imported, paused; 1 not", "not imported", "systole job check"]);
    sre.types("systole job check jobs/").is(0, &["db-01.", "02:30"]);
    sre.types("systole job apply -f jobs/ --dry-run")
        .is(10, &["Nothing was changed"]);
    sre.types("systole job apply -f jobs/").is(0, &["+ db-01."]);
    let jobs = sre.types("systole job ls -o id");
    let backup = jobs.is(0, &[]).text.lines().find(|name| *name == "db-01.echo");
    let backup = backup.unwrap_or_else(|| panic!("{jobs:?}")).to_owned();
    sre.types(&format!("systole job resume {backup} --reason 'out of the crontab'"))
        .is(0, &[]);
    // The same time of UTC all year: there is no summer time in Tokyo.
    sre.types(&format!("systole next --job {backup}"))
        .is(0, &["17:30:00 +00:00", "db-01.echo"]);

    // Something hangs: it is ended with all that it has started.
    let hung = sre.types("systole submit --name hung --runner db-01 --shell 'sleep 1000 & sleep 1000'");
    let id = hung.is(0, &[]).after("task ");
    sre.types(&format!(
        "for i in $(seq 60); do systole show {id} | grep -q RUNNING && break; sleep 0.5; done"
    ))
    .is(0, &[]);
    sre.types(&format!("systole cancel {id} --reason 'wrong month'"))
        .is(0, &[&format!("task {id}")]);
    sre.types(&format!("systole wait {id}")).is(121, &["wrong month"]);
    sre.types(&format!("systole show {id}"))
        .is(0, &["TERMINATED", "\"wrong month\""]);

    // Maintenance: the host gets nothing, and who waits for it is told by whom and how it is lifted.
    sre.types("systole runners drain db-01 --until 2h --reason kernel --wait")
        .is(0, &["drained: nothing runs there"]);
    let waits = sre.types("systole submit --runner db-01 -- echo at last");
    let id = waits.is(0, &[]).after("task ");
    let why = sre.types(&format!("systole why {id}"));
    why.is(
        0,
        &["cordoned by admin, \"kernel\"", "lift: systole runners uncordon db-01"],
    );
    let lift = why.text.split("lift: ").nth(1).and_then(|rest| rest.split(" (").next());
    sre.types(lift.expect("a command to type")).is(0, &[]);
    sre.types(&format!("systole wait {id}; systole logs {id}"))
        .is(0, &["at last"]);

    // The freeze, and one screen for "are we fine?".
    sre.types("systole pause --all --until 30m --reason 'change window'")
        .is(0, &[]);
    sre.types("systole status").is(
        0,
        &["frozen    everything", "change window", "lift: systole resume --all"],
    );
    sre.types("systole resume --all").is(0, &[]);
    sre.types("systole status --since -1h")
        .is(0, &["2 ready", "exit code", "start failed"]);
    sre.begins("systole top");
    sre.until("hosts and tasks", |text| {
        text.contains("db-01") && text.contains("hung")
    });
    sre.presses("q");
    sre.ends().is(0, &[]);

    // Who did it, and a machine that is sold.
    sre.types("systole audit")
        .is(0, &["wrong month", "kernel", "change window"]);
    sre.types("systole token revoke runner@db-01 --reason sold").is(0, &[]);
    db.sees("not known here, or was revoked");
    db.presses("\x03");
    db.ends();

    services.presses("\x03");
    services.ends().is(0, &["stopping the runner, then the scheduler"]);
    drop((sre, services, db));
    nothing_is_left(&jump);
    nothing_is_left(&host);
}

//! Timers with their services, as jobs.

use super::*;
use crate::job::definition::{JobSpec, RetryKind};
use std::collections::BTreeMap;

fn import(units: &[(&str, &str)], timer: &str, options: &Options) -> Import {
    let units: BTreeMap<&str, &str> = units.iter().copied().collect();
    let find = |name: &str| {
        let template = template_of(name).unwrap_or_default();
        let text = units.get(name).or_else(|| units.get(template.as_str())).copied();
        Ok(text
            .map(|text| Source {
                file: format!("/etc/systemd/system/{name}"),
                text: text.to_owned(),
            })
            .into_iter()
            .collect())
    };
    let mut out = Import::default();
    read(timer, &find, options, &mut Names::new(&options.prefix), &mut out);
    out
}

fn options() -> Options {
    Options {
        zone: "Europe/Berlin".into(),
        ..Options::default()
    }
}

fn service(text: &str) -> Result<JobSpec, String> {
    let units = [("a.timer", "[Timer]\nOnCalendar=daily\n"), ("a.service", text)];
    let mut found = import(&units, "a.timer", &options());
    match found.jobs.pop() {
        Some(job) => Ok(job.spec),
        None => Err(found.refused.remove(0).reason),
    }
}

fn timer(text: &str) -> Result<(Vec<TriggerSpec>, Vec<String>), String> {
    let units = [
        ("a.timer", text),
        ("a.service", "[Service]\nUser=x\nExecStart=/bin/true\n"),
    ];
    let mut found = import(&units, "a.timer", &options());
    match found.jobs.pop() {
        Some(job) => Ok((job.spec.trigger, job.notes)),
        None => Err(found.refused.remove(0).reason),
    }
}

#[test]
fn the_times_of_a_timer_become_triggers() {
    let (triggers, notes) = timer("[Timer]\nOnCalendar=Mon..Fri 6:30\nOnCalendar=Sat *-*-1..7 7:00 UTC\nPersistent=yes\nRandomizedDelaySec=5min\nAccuracySec=1us\n").expect("timer");
    assert_eq!(triggers[0].cron.as_deref(), Some("30 6 * * mon-fri"));
    assert_eq!(triggers[1].zone.as_deref(), Some("UTC"));
    assert!(
        triggers[1]
            .rrule
            .as_deref()
            .is_some_and(|rule| rule.contains("BYDAY=SA"))
    );
    for trigger in &triggers {
        assert_eq!(
            (trigger.misfire, trigger.jitter.as_deref()),
            (Some(Misfire::FireOnce), Some("5m"))
        );
    }
    assert!(notes[0].contains("a.timer:6: AccuracySec=1us"), "{notes:?}");

    let (triggers, notes) = timer("[Timer]\nOnBootSec=15min\nOnUnitActiveSec=1d\nOnUnitActiveSec=2h\n").expect("timer");
    assert_eq!(triggers[0].fixed_rate.as_deref(), Some("2h"));
    assert!(notes.iter().any(|note| note.contains("OnBootSec=15min")), "{notes:?}");
    let (triggers, _) = timer("[Timer]\nOnActiveSec=0\nOnUnitInactiveSec=90\n").expect("timer");
    assert_eq!(triggers[0].fixed_delay.as_deref(), Some("1m30s"));
}

#[test]
fn timers_that_are_no_jobs_are_refused_with_the_reason() {
    for (text, words) in [
        ("[Timer]\nOnBootSec=5min\n", "multi-user.target"),
        ("[Timer]\nOnClockChange=yes\n", "no time"),
        ("[Timer]\nOnUnitActiveSec=1h\nOnUnitInactiveSec=1h\n", "whichever"),
        ("[Timer]\nOnCalendar=*-*-32\n", "day 32"),
        ("[Timer]\nOnCalendar=daily\nUnit=b.target\n", "no service"),
        (
            "[Timer]\nOnCalendar=daily\nUnit=b.service\n",
            "b.service, which is not there",
        ),
        ("[Timer]\nOnUnitActiveSec=500ms\n", "fixed_rate"),
    ] {
        let reason = timer(text).expect_err(text);
        assert!(reason.contains(words), "{text}: {reason}");
    }
    let missing = import(&[], "b.timer", &options());
    assert!(missing.refused[0].reason.contains("not there"));
    let template = import(&[("b@.timer", "[Timer]\nOnCalendar=daily\n")], "b@.timer", &options());
    assert!(template.refused[0].reason.contains("b@NAME.timer"));
}

#[test]
fn an_instance_has_its_name_in_its_commands() {
    let units = [
        ("dump@.timer", "[Timer]\nOnCalendar=hourly\n"),
        (
            "dump@.service",
            "[Unit]\nDescription=Dump of %i\n[Service]\nType=oneshot\nUser=postgres\nExecStart=/usr/bin/pg_dump -f /backup/%i.sql %i\n",
        ),
    ];
    let found = import(&units, "dump@shop.timer", &options());
    let spec = &found.jobs[0].spec;
    assert_eq!(spec.name, "dump-shop");
    assert_eq!(spec.description.as_deref(), Some("Dump of shop"));
    assert_eq!(spec.command, ["/usr/bin/pg_dump", "-f", "/backup/shop.sql", "shop"]);
    assert_eq!(found.jobs[0].notes, [""; 0]);
}

#[test]
fn a_service_is_mapped_where_a_job_says_the_same() {
    let spec = service(
        "[Service]\nType=oneshot\nUser=www\nGroup=data\nWorkingDirectory=/srv\nEnvironment=A=1 \"B=x y\"\nEnvironment=C=%p\nEnvironmentFile=-/etc/default/a\n\
         TimeoutStartSec=1h\nTimeoutStopSec=30\nKillSignal=SIGINT\nNice=10\nUMask=0027\nMemoryMax=1G\nCPUQuota=150%\nTasksMax=64\nLimitNOFILE=1024:4096\n\
         Restart=on-failure\nRestartSec=30\nExecStart=/bin/a -x ${A} $C\n",
    )
    .expect("service");
    assert_eq!(spec.shell.as_deref(), Some("set -f\nexec /bin/a -x \"${A}\" $C"));
    assert_eq!((spec.env["B"].as_str(), spec.env["C"].as_str()), ("x y", "a"));
    let texts = [
        &spec.dir,
        &spec.env_file,
        &spec.timeout,
        &spec.kill_grace,
        &spec.kill_signal,
        &spec.umask,
    ];
    assert_eq!(
        texts.map(|text| text.as_deref().unwrap_or_default()),
        ["/srv", "/etc/default/a", "1h", "30s", "INT", "0027"]
    );
    let limits = spec.limits.expect("limits");
    assert_eq!(
        (limits.nice, limits.cpu_max, limits.pids_max),
        (Some(10), Some(1.5), Some(64))
    );
    assert_eq!(
        (limits.memory_max.as_deref(), limits.open_files_max),
        (Some("1G"), Some(4096))
    );
    let retry = spec.retry.expect("retry");
    assert_eq!(
        (retry.policy, retry.max_retries, retry.delay.as_deref()),
        (Some(RetryKind::Fixed), Some(4), Some("30s"))
    );
    assert_eq!(spec.blocking, Some(BlockingKind::DiscardLater));
}

#[test]
fn several_commands_are_one_text_that_ends_with_the_first_failure() {
    let spec = service(
        "[Service]\nType=oneshot\nExecStartPre=-/bin/mkdir /run/x\nExecStart=/bin/a 'b c' ; /bin/d\nExecStart=/bin/e\nExecStartPost=-/bin/f\n",
    )
    .expect("service");
    let text = "set -e\n/bin/mkdir /run/x || true\n/bin/a 'b c'\n/bin/d\n/bin/e\n/bin/f || true";
    assert_eq!(spec.shell.as_deref(), Some(text));
}

#[test]
fn services_that_are_no_jobs_are_refused_with_the_reason() {
    for (text, words) in [
        ("[Service]\nType=forking\nExecStart=/bin/a\n", "without forking"),
        ("[Service]\nRestart=always\nExecStart=/bin/a\n", "never ends"),
        ("[Service]\nRootDirectory=/srv/root\nExecStart=/bin/a\n", "another root"),
        ("[Service]\nType=oneshot\nExecStop=/bin/a\n", "no ExecStart"),
        ("[Service]\nExecStart=/bin/a %v\n", "host only"),
        ("[Service]\nExecStart=/bin/a 'b\n", "not closed"),
        ("[Service]\nExecStart=/bin/a\nWorkingDirectory=srv\n", "dir"),
    ] {
        let reason = service(text).expect_err(text);
        assert!(reason.contains(words), "{text}: {reason}");
    }
}

//! Rows of xxl-job as jobs.

use super::*;

const COLUMNS: &str = "id,job_group,job_desc,author,alarm_email,schedule_type,schedule_conf,misfire_strategy,executor_route_strategy,executor_handler,executor_param,executor_block_strategy,executor_timeout,executor_fail_retry_count,glue_type,glue_source,child_jobid,trigger_status";

fn import_with(rows: &str, channel: Option<&str>, host: Option<&str>) -> Import {
    let options = Options {
        zone: "Asia/Shanghai".into(),
        host: host.map(str::to_owned),
        ..Options::default()
    };
    let files = [
        ("jobs.csv".to_owned(), format!("{COLUMNS}\n{rows}")),
        ("groups.csv".to_owned(), "id,app_name,title\n1,billing,x\n".to_owned()),
    ];
    read(&files, channel, &options, &mut Names::default()).remove(0)
}

fn import(rows: &str) -> Import {
    import_with(rows, None, None)
}

#[test]
fn a_script_keeps_its_arguments_and_its_policies() {
    let found = import(
        "7,1,Nightly report,ann,ops@example.org,CRON,0 30 2 * * ?,FIRE_ONCE_NOW,ROUND,,day=1 x,DISCARD_LATER,600,3,GLUE_SHELL,\"#!/bin/bash\r\necho \"\"$1\"\"\",,1\n",
    );
    let job = &found.jobs[0];
    let spec = &job.spec;
    assert_eq!(
        (spec.name.as_str(), spec.owner.as_deref()),
        ("nightly-report", Some("ann"))
    );
    assert_eq!(spec.command[..2], ["/bin/sh", "-c"]);
    assert!(
        spec.command[2].contains("exec bash job.sh \"$2\""),
        "{:?}",
        spec.command
    );
    assert_eq!(
        spec.command[3..],
        ["nightly-report", "#!/bin/bash\necho \"$1\"", "day=1 x"]
    );
    let trigger = &spec.trigger[0];
    assert_eq!(
        (trigger.cron.as_deref(), trigger.dialect),
        (Some("0 30 2 * * ?"), Some(Dialect::Quartz))
    );
    assert_eq!(
        (trigger.misfire, trigger.zone.as_deref()),
        (Some(Misfire::FireOnce), Some("Asia/Shanghai"))
    );
    assert_eq!(
        (spec.route.clone(), spec.blocking),
        (
            Some(Route::from("round_robin".to_owned())),
            Some(BlockingKind::DiscardLater)
        )
    );
    assert_eq!(
        (spec.timeout.as_deref(), spec.require["app"].as_str()),
        (Some("10m"), "billing")
    );
    assert_eq!(spec.retry.as_ref().and_then(|retry| retry.max_retries), Some(3));
    assert!(job.notes.iter().any(|note| note.contains("--alarm")), "{:?}", job.notes);
}

#[test]
fn every_schedule_and_route_has_its_counterpart() {
    for (kind, setting, field) in [
        ("FIX_RATE", "30", "fixed_rate"),
        ("FIX_DELAY", "30", "fixed_delay"),
        ("NONE", "", "manual"),
    ] {
        let found = import(&format!(
            "1,1,abc,,,{kind},{setting},DO_NOTHING,FIRST,,,,0,0,GLUE_PYTHON,x,,1\n"
        ));
        assert_eq!(found.jobs[0].spec.trigger[0].kind(), Ok(field), "{found:?}");
    }
    for (name, word) in ROUTES {
        let found = import(&format!(
            "1,1,abc,,,NONE,,DO_NOTHING,{name},,,SERIAL_EXECUTION,0,0,GLUE_NODEJS,x,,1\n"
        ));
        assert_eq!(found.jobs[0].spec.route, Some(Route::from(word.to_owned())), "{name}");
    }
    let pinned = import_with(
        "1,1,abc,,a@b,NONE,,DO_NOTHING,ROUND,,,SERIAL_EXECUTION,0,0,GLUE_PHP,x,,1\n",
        Some("dba-mail"),
        Some("db-01"),
    );
    let spec = &pinned.jobs[0].spec;
    assert_eq!((spec.route.clone(), spec.require.len()), (Some(Route::Pinned), 0));
    assert_eq!(
        (spec.alarm[0].when, &spec.alarm[0].to[..]),
        (Some(AlarmWhen::Failure), &["dba-mail".to_owned()][..])
    );
}

#[test]
fn children_follow_their_parents() {
    let row = |id: u32, kind: &str, children: &str| {
        format!(
            "{id},1,job {id} abc,,,NONE,,DO_NOTHING,FIRST,handler,,SERIAL_EXECUTION,0,0,{kind},x,\"{children}\",1\n"
        )
    };
    let rows = [
        row(1, "GLUE_SHELL", "2, 3,9,1"),
        row(2, "GLUE_SHELL", "3"),
        row(3, "GLUE_SHELL", ""),
        row(4, "BEAN", "3,2"),
    ];
    let found = import(&rows.concat());
    let after = |index: usize| {
        let triggers = &found.jobs[index].spec.trigger;
        triggers
            .iter()
            .map(|t| t.after.as_ref().map(|after| after.job.as_str()))
            .collect::<Vec<_>>()
    };
    assert_eq!(after(0), [None]);
    assert_eq!(after(1), [Some("job-1-abc")]);
    assert_eq!(after(2), [Some("job-1-abc"), Some("job-2-abc")]);
    let notes = |index: usize| found.jobs[index].notes.join("\n");
    assert!(notes(0).contains("child_jobid=9: is not in the table"), "{}", notes(0));
    assert!(notes(0).contains("is the job itself"), "{}", notes(0));
    assert!(notes(2).contains("ran after 4, which was not imported"), "{}", notes(2));
    assert!(
        found.refused[0].reason.contains("Java method \"handler\""),
        "{:?}",
        found.refused
    );
}

#[test]
fn rows_that_are_no_jobs_are_refused_with_the_reason() {
    for (row, words) in [
        (
            "1,1,abc,,,NONE,,,FIRST,demo,a=1,,0,0,BEAN,,,1",
            "\"a=1\" in the JVM of the executors \"billing\"",
        ),
        ("1,1,abc,,,NONE,,,FIRST,,,,0,0,GLUE_GROOVY,x,,1", "Groovy"),
        ("1,1,abc,,,NONE,,,FIRST,,,,0,0,GLUE_SHELL,,,1", "without a script"),
        ("1,1,abc,,,NONE,,,FIRST,,,,0,0,GLUE_COBOL,x,,1", "GLUE_COBOL"),
        ("1,1,abc,,,CRON,0 0 0 * * *,,FIRST,,,,0,0,GLUE_SHELL,x,,1", "must be ?"),
        ("1,1,abc,,,FIX_RATE,soon,,FIRST,,,,0,0,GLUE_SHELL,x,,1", "soon"),
        ("1,1,abc,,,YEARLY,,,FIRST,,,,0,0,GLUE_SHELL,x,,1", "YEARLY"),
        ("1,1,abc,,,NONE,,,SIDEWAYS,,,,0,0,GLUE_SHELL,x,,1", "SIDEWAYS"),
        ("1,1,abc,,,NONE,,,FIRST,,,LATER,0,0,GLUE_SHELL,x,,1", "LATER"),
        ("1,1,abc,,,NONE,,,FIRST,,,,soon,0,GLUE_SHELL,x,,1", "executor_timeout"),
    ] {
        let found = import(&format!("{row}\n"));
        assert!(found.jobs.is_empty(), "{row}");
        assert!(found.refused[0].reason.contains(words), "{row}: {:?}", found.refused);
    }
}

#[test]
fn an_old_table_has_cron_and_nothing_else() {
    let text = "INSERT INTO `xxl_job_info` (`id`,`job_group`,`job_cron`,`job_desc`,`glue_type`,`glue_source`) VALUES (5,2,'0 0 0/2 * * ? *','每日','GLUE_SHELL','echo \\'hi\\'');";
    let options = Options {
        zone: "UTC".into(),
        ..Options::default()
    };
    let found = read(
        &[("dump.sql".into(), text.into())],
        None,
        &options,
        &mut Names::default(),
    )
    .remove(0);
    let spec = &found.jobs[0].spec;
    assert_eq!(
        (spec.name.as_str(), spec.trigger[0].cron.as_deref()),
        ("xxl-5", Some("0 0 0/2 * * ? *"))
    );
    assert_eq!(
        (spec.description.as_deref(), spec.require["app"].as_str()),
        (Some("每日"), "2")
    );
    assert_eq!(spec.command[4], "echo 'hi'");
}

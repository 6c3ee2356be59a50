use super::*;
use crate::trigger::calendar::CalendarSpec;
use crate::trigger::plan::plan;
use crate::trigger::schedule::Times as _;

/// 2026-11-29T00:00:00Z.
const NOW: i64 = 1_795_910_400_000;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    trigger: Vec<TriggerSpec>,
    #[serde(default)]
    calendar: Vec<CalendarSpec>,
}

fn read(text: &str) -> File {
    toml::from_str(text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn compile_with(spec: &TriggerSpec, calendars: &BTreeMap<String, Arc<Calendar>>) -> Result<Trigger, Invalid> {
    spec.compile(&Environment {
        job: "nightly-backup",
        created_ms: NOW,
        default_zone: &Zone::utc(),
        calendars,
        registry: &Registry::built_in(),
    })
}

fn compile(spec: &TriggerSpec) -> Result<Trigger, Invalid> {
    compile_with(spec, &BTreeMap::new())
}

fn one(body: &str) -> Result<Trigger, Invalid> {
    compile(&read(&format!("[[trigger]]\nname = \"t\"\n{body}")).trigger[0])
}

fn ms(text: &str) -> i64 {
    DateTime::parse_from_rfc3339(text).expect(text).timestamp_millis()
}

const FILE: &str = r#"
[[calendar]]
name   = "us-bank-holidays"
zone   = "America/New_York"
dates  = ["2026-12-24"]
ranges = [{ from = "2026-12-28", to = "2027-01-01" }]
daily  = [{ from = "17:00", to = "20:00" }]

[[trigger]]
name              = "nightly"
cron              = "30 2 * * *"
dialect           = "unix"
zone              = "Europe/Berlin"
dst_gap           = "shift"
dst_overlap       = "first"
misfire           = "fire_once"
misfire_threshold = "60s"

[[trigger]]
name     = "monthly-full"
rrule    = "FREQ=MONTHLY;BYDAY=1SU;BYHOUR=12;BYMINUTE=0;BYSECOND=0"
zone     = "Europe/Berlin"
start_at = 2026-12-01T00:00:00+01:00
priority = 8
data     = { mode = "full" }

[[trigger]]
name              = "weekdays"
cron              = "0 15 1 ? * MON-FRI"
dialect           = "quartz"
zone              = "America/New_York"
exclude_calendars = ["us-bank-holidays"]
jitter            = "2m"
misfire           = "catch_up"
max_catch_up      = 10
end_at            = 2028-01-01T00:00:00-05:00

[[trigger]]
name               = "intraday"
interval_in_window = { every = "15m", from = "08:00", until = "18:00", weekdays = ["mon", "tue", "wed", "thu", "fri"] }
zone               = "America/New_York"
data               = { table = "quotes" }
misfire            = "skip"

[[trigger]]
name  = "after-extract"
after = { job = "etl.extract", outcome = "finished" }

[[trigger]]
name   = "by-hand"
manual = true

[[trigger]]
name              = "every-30s"
fixed_rate        = "30s"
start_at          = 2026-12-01T00:00:00Z
misfire           = "skip"
misfire_threshold = "10s"

[[trigger]]
name = "once"
at   = "2026-12-01T02:30:00"
zone = "Europe/Berlin"

[[trigger]]
name   = "own"
custom = { kind = "rrule", rule = "FREQ=DAILY;BYHOUR=6;BYMINUTE=0;BYSECOND=0" }
"#;

#[test]
fn triggers_of_job_files_fire_when_they_say() {
    let file = read(FILE);
    let calendars: BTreeMap<String, Arc<Calendar>> = file
        .calendar
        .iter()
        .map(|spec| {
            (
                spec.name.clone(),
                Arc::new(Calendar::new(spec, None, &Zone::utc()).expect("calendar")),
            )
        })
        .collect();
    let expected = [
        ("nightly", Some("2026-11-29T02:30:00+01:00")),
        ("monthly-full", Some("2026-12-06T12:00:00+01:00")),
        ("weekdays", Some("2026-11-30T01:15:00-05:00")),
        ("intraday", Some("2026-11-30T08:00:00-05:00")),
        ("after-extract", None),
        ("by-hand", None),
        ("every-30s", Some("2026-12-01T00:00:00Z")),
        ("once", Some("2026-12-01T02:30:00+01:00")),
        ("own", Some("2026-11-29T06:00:00Z")),
    ];
    assert_eq!(file.trigger.len(), expected.len());
    for (spec, (name, next)) in file.trigger.iter().zip(expected) {
        assert_eq!(spec.name, name);
        let trigger = compile_with(spec, &calendars).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(trigger.next_after(NOW), Ok(next.map(ms)), "{name}");
        assert_eq!(spec.check_fires(&trigger, NOW), Ok(()), "{name}");
        // Stored as JSON it is the same.
        let stored = serde_json::to_string(spec).expect("json");
        assert_eq!(&serde_json::from_str::<TriggerSpec>(&stored).expect(&stored), spec);
    }
    // The grid of a fixed rate is that of its start.
    let rate = compile(&file.trigger[6]).expect("rate");
    let plan = plan(
        &rate,
        rate.first_cursor(NOW).expect("cursor"),
        ms("2026-12-01T00:00:31Z"),
        false,
        10,
    )
    .expect("plan");
    assert_eq!(plan.cursor.next_ms, Some(ms("2026-12-01T00:01:00Z")));
}

#[test]
fn the_odd_days_of_a_trigger_are_known_when_it_is_saved() {
    let nightly = compile(&read(FILE).trigger[0]).expect("trigger");
    let days = nightly.schedule.odd_days(NOW, 2);
    assert_eq!(days.len(), 2);
    assert_eq!(days[0].change.at * 1_000, ms("2027-03-28T01:00:00Z"));
}

#[test]
fn a_delay_counts_from_the_creation() {
    let delay = one("delay = \"5m\"").expect("delay");
    assert_eq!(delay.first_cursor(NOW).expect("cursor").next_ms, Some(NOW + 300_000));
    // Nothing at once, and at once.
    let now = one("delay = \"0\"").expect("delay");
    assert_eq!(now.first_cursor(NOW).expect("cursor").next_ms, Some(NOW));
}

#[test]
fn unknown_fields_are_refused() {
    for text in [
        "[[trigger]]\ncrom = \"* * * * *\"",
        "[[trigger]]\ncron = \"* * * * *\"\nretires = 2",
        "[[trigger]]\nafter = { job = \"a\", outcome = \"finished\", when = 1 }",
        "[[trigger]]\ncron = \"* * * * *\"\nmisfire = \"fire_all\"",
        "[[trigger]]\ncron = \"* * * * *\"\ndialect = \"spring\"",
    ] {
        assert!(toml::from_str::<File>(text).is_err(), "{text}");
    }
    assert!(serde_json::from_str::<TriggerSpec>(r#"{"cron":"* * * * *","uid":0}"#).is_err());
}

#[test]
fn what_is_wrong_names_the_field() {
    for (body, field, words) in [
        ("", "trigger", "no kind"),
        (
            "cron = \"* * * * *\"\nfixed_rate = \"1m\"",
            "trigger",
            "cron and fixed_rate",
        ),
        ("cron = \"60 * * * *\"", "cron", "minute 60"),
        (
            "cron = \"0 9 * * *\"\nzone = \"Europe/Lonndon\"",
            "zone",
            "Europe/London",
        ),
        ("cron = \"0 0 9 * * ?\"", "cron", "quartz"),
        ("fixed_rate = \"30\"", "fixed_rate", "no unit"),
        ("fixed_rate = \"500ms\"", "fixed_rate", "1s to 366d"),
        ("fixed_delay = \"-5s\"", "fixed_delay", "negative"),
        ("fixed_rate = \"1m\"\ndialect = \"unix\"", "dialect", "fixed_rate"),
        ("fixed_rate = \"1m\"\ndst_gap = \"skip\"", "dst_gap", "fixed_rate"),
        ("manual = true\nmisfire = \"skip\"", "misfire", "manual"),
        ("manual = false", "manual", "false"),
        ("at = \"tomorrow\"", "at", "not a time"),
        ("cron = \"* * * * *\"\nmax_catch_up = 5", "max_catch_up", "catch_up"),
        (
            "cron = \"* * * * *\"\nmisfire = \"catch_up\"\nmax_catch_up = 0",
            "max_catch_up",
            "1 to",
        ),
        ("cron = \"* * * * *\"\nmax_fires = 0", "max_fires", "never"),
        ("cron = \"* * * * *\"\npriority = 10", "priority", "0 to 9"),
        ("cron = \"* * * * *\"\njitter = \"25h\"", "jitter", "out of range"),
        (
            "cron = \"* * * * *\"\nexclude_calendars = [\"x\"]",
            "exclude_calendars",
            "no calendar \"x\"",
        ),
        (
            "cron = \"* * * * *\"\nstart_at = 2027-01-01T00:00:00Z\nend_at = 2026-01-01T00:00:00Z",
            "end_at",
            "before",
        ),
        ("custom = { kind = \"moon\" }", "custom.kind", "known are"),
        (
            "after = { job = \"nightly-backup\", outcome = \"ended\" }",
            "after.job",
            "itself",
        ),
        ("rrule = \"FREQ=DAILY;EVERY=2\"", "rrule", "EVERY"),
    ] {
        let error = one(body).expect_err(body);
        assert_eq!(error.field, field, "{body}: {error}");
        assert!(error.message.contains(words), "{body}: {error}");
    }
}

#[test]
fn a_definition_that_would_never_fire_is_refused_when_it_is_new() {
    for (body, field) in [
        ("at = 2020-01-01T00:00:00Z", "at"),
        ("cron = \"0 0 12 1 1 ? 2020\"\ndialect = \"quartz\"", "cron"),
        ("cron = \"0 12 * * *\"\nend_at = 2026-11-01T00:00:00Z", "cron"),
    ] {
        let spec = &read(&format!("[[trigger]]\nname = \"t\"\n{body}")).trigger[0];
        let trigger = compile(spec).expect(body);
        assert_eq!(spec.check_fires(&trigger, NOW).expect_err(body).field, field);
    }
}

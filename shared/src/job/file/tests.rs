use super::*;
use crate::trigger::custom::Registry;
use crate::trigger::zone::Zone;

/// 2026-11-29T00:00:00Z.
const NOW: i64 = 1_795_910_400_000;

fn said(name: &str, text: &str) -> Vec<String> {
    let syntax = Syntax::of_name(name).expect(name);
    let mut set = Set::default();
    set.add(name, JobFile::read(text, syntax));
    let checked = check(&set);
    checked
        .faults
        .iter()
        .map(|(file, fault)| set.say(*file, fault))
        .collect()
}

fn check(set: &Set) -> set::Checked {
    set.check(&CheckContext {
        now_ms: NOW,
        default_zone: &Zone::utc(),
        registry: &Registry::built_in(),
        read_ics: &|file, path| match path {
            "holidays.ics" => Ok("BEGIN:VCALENDAR\r\nBEGIN:VEVENT\r\nUID:1\r\nDTSTART;VALUE=DATE:20261225\r\nEND:VEVENT\r\nEND:VCALENDAR\r\n".into()),
            _ => Err(format!("{path:?} of {file} cannot be read")),
        },
        closed: true,
    })
}

const FILE: &str = r#"format = 1

[defaults]
owner             = "data@example.org"
require           = { pool = "etl" }
concurrency_group = "warehouse"
max_waiting       = 5

[[concurrency_group]]
name  = "warehouse"
limit = 3

[[calendar]]
name  = "holidays"
zone  = "America/New_York"
ics   = "holidays.ics"
dates = [2026-12-24]

[[job]]
name    = "etl.extract"
command = ["extract", "--date", "{{ scheduled_date }}"]
require = { pool = "big" }
limits  = { memory_max = "16GiB", cpu_max = 4.0 }

[[job.trigger]]
cron              = "0 15 1 ? * MON-FRI"
dialect           = "quartz"
zone              = "America/New_York"
exclude_calendars = ["holidays"]
end_at            = 2028-01-01T00:00:00-05:00

[[job]]
name  = "etl.load"
shell = 'load "$SYSTOLE_DATA_TABLE"'
data  = { table = "sales", n = 1 }

[[job.trigger]]
after = { job = "etl.extract", outcome = "finished" }
"#;

const SAME_IN_YAML: &str = r#"
format: 1
defaults:
  owner: data@example.org
  require: { pool: etl }
  concurrency_group: warehouse
  max_waiting: 5
concurrency_group:
- name: warehouse
  limit: 3
calendar:
- name: holidays
  zone: America/New_York
  ics: holidays.ics
  dates: [2026-12-24]
job:
- name: etl.extract
  command: [extract, --date, "{{ scheduled_date }}"]
  require: { pool: big }
  limits: { memory_max: 16GiB, cpu_max: 4.0 }
  trigger:
  - cron: 0 15 1 ? * MON-FRI
    dialect: quartz
    zone: America/New_York
    exclude_calendars: [holidays]
    end_at: 2028-01-01T00:00:00-05:00
- name: etl.load
  shell: load "$SYSTOLE_DATA_TABLE"
  data: { table: sales, n: 1 }
  trigger:
  - after: { job: etl.extract, outcome: finished }
"#;

#[test]
fn toml_and_yaml_say_the_same() {
    let read = |text, syntax| {
        let mut set = Set::default();
        set.add("jobs", JobFile::read(text, syntax));
        let checked = check(&set);
        assert_eq!(checked.faults, []);
        checked
    };
    let (toml, yaml) = (read(FILE, Syntax::Toml), read(SAME_IN_YAML, Syntax::Yaml));
    assert_eq!(toml.jobs.len(), 2);
    for (a, b) in toml.jobs.iter().zip(&yaml.jobs) {
        assert_eq!(a.spec, b.spec);
        assert_eq!(a.spec.fingerprint(), b.spec.fingerprint());
    }
    assert_eq!(toml.groups, yaml.groups);
    assert_eq!(toml.calendars[0].spec, yaml.calendars[0].spec);
    // A job's own table replaces that of the defaults.
    let extract = &toml.jobs[0];
    assert_eq!(extract.spec.require["pool"], "big");
    assert_eq!(toml.jobs[1].spec.require["pool"], "etl");
    assert_eq!(extract.job.concurrency_group.as_deref(), Some("warehouse"));
    assert_eq!(extract.job.max_waiting, 5);
    // Thursday 24 and Friday 25 December are left out, the one by its date, the other by the file.
    let monday = extract.triggers[0].next_after(1_798_080_000_000).expect("next");
    assert_eq!(monday, Some(1_798_438_500_000));
    assert_eq!(extract.warnings, []);
}

#[test]
fn everything_wrong_is_said_with_line_and_column_and_neighbours_are_read() {
    let text = r#"format = 1

[[job]]
name = "good"
command = ["true"]

[[job]]
name = "bad"
command = ["x", 5]
retires = 3
timeout = 12
blocking = "cover_erly"
limits = { memory_max = 4, nicee = 3 }
[job.retry]
policy = "fixed"
max_retries = "two"
[[job.trigger]]
cron = "0 9 * * 1-8"
retires = 1
[[job.trigger]]
fixed_rate = 30

[[job]]
name = "late"
command = ["x"]
timeout = "5"
[[job.trigger]]
name = "odd"
cron = "0 9 * * 1-8"

[[jobs]]
"#;
    assert_eq!(
        said("jobs/a.toml", text),
        [
            "jobs/a.toml:9:17: job bad: command[1]: 5 must be a text; write it in quotes: \"5\"",
            "jobs/a.toml:10:1: job bad: retires: is no field here. Did you mean \"retry\"?",
            "jobs/a.toml:11:11: job bad: timeout: 12 has no unit; write \"12s\" or \"12m\"",
            "jobs/a.toml:12:12: job bad: blocking: \"cover_erly\" is none of serial, discard_later, cover_early, concurrent. Did you mean \"cover_early\"?",
            "jobs/a.toml:13:25: job bad: limits.memory_max: 4 has no unit; write \"4MiB\" or \"4GiB\"",
            "jobs/a.toml:13:28: job bad: limits.nicee: is no field here. Did you mean \"nice\"?",
            "jobs/a.toml:16:15: job bad: retry.max_retries: invalid type: string \"two\", expected u32",
            "jobs/a.toml:19:1: job bad: trigger[0].retires: is no field here; the fields are name, description, cron, fixed_rate, fixed_delay, at, delay, manual, rrule, interval_in_window, custom, after, dialect, zone, dst_gap, dst_overlap, start_at, end_at, max_fires, exclude_calendars, priority, data, jitter, misfire, misfire_threshold, max_catch_up, paused",
            "jobs/a.toml:21:14: job bad: trigger[1].fixed_rate: 30 has no unit; write \"30s\" or \"30m\"",
            "jobs/a.toml:26:11: job late: timeout: \"5\" has no unit; write \"5s\" or \"5m\"",
            "jobs/a.toml:31:3: jobs: is no field here. Did you mean \"job\"?",
        ]
    );
    let file = JobFile::read(text, Syntax::Toml);
    let names: Vec<_> = file.jobs.iter().map(|entry| entry.spec.name.as_str()).collect();
    assert_eq!(names, ["good", "late"]);
}

#[test]
fn what_is_missing_is_said_where_it_would_stand() {
    assert_eq!(
        said(
            "a.toml",
            "[[job]]\nname = \"a\"\n[job.retry]\npolicy = \"fixed\"\nmax_retries = 1\n"
        ),
        [
            "a.toml:1:1: job a: command: is missing; write command = [\"PROGRAM\", \"ARGUMENT\"], or shell = 'TEXT' for a text of /bin/sh",
            "a.toml:3:1: job a: retry.delay: is missing; write for example delay = \"30s\"",
        ]
    );
}

#[test]
fn a_file_that_is_no_toml_or_yaml_says_where() {
    let toml = said("a.toml", "[[job]]\nname = \"a\ncommand = [\"x\"]\nkey\n");
    assert!(toml[0].starts_with("a.toml:2:10: is no TOML: "), "{toml:?}");
    assert!(toml.len() >= 2, "{toml:?}");
    let yaml = said("a.yaml", "job:\n- name: a\n  command: [x\n");
    assert!(
        yaml[0].starts_with("a.yaml:") && yaml[0].contains("is no YAML: "),
        "{yaml:?}"
    );
    for (text, words) in [
        ("a: &x 1", "anchors"),
        ("job: *x", "YAML"),
        ("a: !!str 1", "anchors"),
        ("a: 1\na: 2", "given twice"),
        ("a: 1\n---\nb: 1", "second document"),
        ("- a", "must be a table"),
        ("job: {name: a}", "list of tables"),
    ] {
        let faults = said("a.yml", text);
        assert!(faults[0].contains(words), "{text}: {faults:?}");
    }
    let deep = format!("a: {}{}", "[".repeat(10_000), "]".repeat(10_000));
    assert!(!said("a.yaml", &deep).is_empty());
    let deep = format!("a = {}{}", "[".repeat(10_000), "]".repeat(10_000));
    assert!(!said("a.toml", &deep).is_empty());
    assert_eq!(said("a.toml", ""), [""; 0]);
    assert_eq!(said("a.yaml", "# nothing\n"), [""; 0]);
    assert!(said("a.toml", "format = 2")[0].contains("format = 1"));
    assert!(said("a.toml", &"#".repeat(JOB_FILE_BYTES_MAX + 1))[0].contains("several"));
}

#[test]
fn names_are_taken_once_over_all_files_and_what_is_named_exists() {
    let mut set = Set::default();
    set.add("a.toml", JobFile::read(FILE, Syntax::Toml));
    set.add(
        "b.toml",
        JobFile::read(
            r#"
[[job]]
name = "etl.load"
command = ["x"]
[[job]]
name = "other"
command = ["x"]
concurrency_group = "warhouse"
trigger = [{ cron = "0 1 * * *", exclude_calendars = ["easter"] }, { after = { job = "nobody", outcome = "ended" } }]
[[job]]
name = "shared"
command = ["x"]
concurrency_group = "warehouse"
trigger = [{ at = 2020-01-01T00:00:00Z, exclude_calendars = ["holidays"] }, { after = { job = "nobody", outcome = "ended" } }]
[[calendar]]
name = "broken"
ics = "gone.ics"
[[concurrency_group]]
name = "warehouse"
limit = 1
"#,
            Syntax::Toml,
        ),
    );
    let checked = check(&set);
    let said: Vec<String> = checked
        .faults
        .iter()
        .map(|(file, fault)| set.say(*file, fault))
        .collect();
    assert_eq!(
        said,
        [
            "b.toml:3:8: job etl.load: name: is taken by a job in a.toml; rename one",
            "b.toml:8:21: job other: concurrency_group: there is no group \"warhouse\"; write [[concurrency_group]] with its limit",
            "b.toml:9:54: job other: trigger[0].exclude_calendars: there is no calendar \"easter\"; known: holidays",
            "b.toml:17:7: calendar broken: ics: \"gone.ics\" of b.toml cannot be read",
            "b.toml:19:8: concurrency_group warehouse: name: is taken by an earlier group; a group is said once",
        ]
    );
    let shared = checked.jobs.last().expect("job");
    let warned: Vec<_> = shared.warnings.iter().map(|warning| warning.field.as_str()).collect();
    assert_eq!(warned, ["trigger[0].at", "trigger[1].after"]);
}

#[test]
fn defaults_are_read_like_a_job_but_hold_nothing_of_one_job() {
    assert_eq!(
        said(
            "a.toml",
            "[defaults]\nname = \"x\"\ntimout = \"5m\"\nkill_grace = 5\n[[job]]\nname = \"a\"\ncommand = [\"x\"]\n"
        ),
        [
            "a.toml:2:8: defaults: name: belongs to one job; write it there",
            "a.toml:3:1: defaults: timout: is no field here. Did you mean \"timeout\"?",
            "a.toml:4:14: defaults: kill_grace: 5 has no unit; write \"5s\" or \"5m\"",
        ]
    );
}

/// The messages of serde are put into words by their form.
#[test]
fn fields_within_fields_are_named() {
    for (body, expected) in [
        (
            "env = { PORT = 80 }",
            "env.PORT: 80 must be a text; write it in quotes: \"80\"",
        ),
        ("require = [\"a\"]", "require: invalid type: list, expected a table"),
        (
            "command = \"x\"",
            "command: invalid type: string \"x\", expected a list",
        ),
        (
            "paused = \"yes\"",
            "paused: invalid type: string \"yes\", expected a boolean",
        ),
        ("priority = -1", "priority: invalid value: integer -1, expected u32"),
        (
            "trigger = [{ after = { job = \"a\", outcom = \"ended\" } }]",
            "trigger[0].after.outcom: is no field here. Did you mean \"outcome\"?",
        ),
        (
            "trigger = [{ interval_in_window = { every = 15, from = \"08:00\", until = \"18:00\" } }]",
            "trigger[0].interval_in_window: invalid type: integer 15, expected a string",
        ),
        ("retry = 3", "retry: must be a table with fields"),
        (
            "trigger = { cron = \"0 1 * * *\" }",
            "trigger: must be a list of tables; write [[job.trigger]] in TOML, or \"- …\" in YAML",
        ),
        ("dir = 5", "dir: 5 must be a text; write it in quotes: \"5\""),
        ("on_lost = \"retry\"", "on_lost: \"retry\" is none of fail, failover"),
    ] {
        let text = format!("[[job]]\nname = \"a\"\n{body}\n");
        let faults = said("a.toml", &text);
        assert!(
            faults
                .iter()
                .any(|fault| fault.ends_with(&format!(": job a: {expected}"))),
            "{body}: {faults:?}"
        );
    }
}

#[test]
fn jobs_that_start_each_other_are_refused() {
    let job = |name: &str, after: &str, outcome: &str| {
        format!(
            "[[job]]\nname = \"{name}\"\ncommand = [\"x\"]\n\
             trigger = [{{ manual = true }}, {{ name = \"next\", after = {{ job = \"{after}\", outcome = \"{outcome}\" }} }}]\n"
        )
    };
    let mut set = Set::default();
    let p = job("p", "q", "finished") + &job("z", "p", "ended");
    set.add("a.toml", JobFile::read(&p, Syntax::Toml));
    set.add("b.toml", JobFile::read(&job("q", "p", "failed"), Syntax::Toml));
    let checked = check(&set);
    let said: Vec<String> = checked
        .faults
        .iter()
        .map(|(file, fault)| set.say(*file, fault))
        .collect();
    let ring = "job p: trigger[1].after.job: makes a ring of jobs that start each other again and again: p -> q -> p; ";
    assert!(
        said.len() == 1 && said[0].starts_with("a.toml:4:") && said[0].contains(ring),
        "{said:?}"
    );
    let right: Vec<&str> = checked.jobs.iter().map(|job| job.spec.name.as_str()).collect();
    assert_eq!(right, ["z", "q"]);
}

//! Jobs of xxl-job, from its table `xxl_job_info`: a dump in SQL, or CSV. What is a script becomes a command; what is a method in a
//! JVM is listed as what it is.

mod sql;
mod table;

use super::{Import, Imported, Names, Options, Origin, base, cut};
use crate::job::definition::{AlarmSpec, AlarmWhen, BlockingKind, JobSpec, RetryKind, RetrySpec, Route};
use crate::limits::{DESCRIPTION_CHARS_MAX, RETRIES_MAX};
use crate::time::exact_duration;
use crate::trigger::cron::Dialect;
use crate::trigger::definition::{AfterSpec, TriggerSpec};
use crate::trigger::misfire::Misfire;
use crate::trigger::schedule::AfterOutcome;
use std::collections::BTreeMap;
use table::{GROUPS, JOBS, Row};

/// xxl-job looks for failed runs every ten seconds, and starts them again at once.
const RETRY_DELAY: &str = "10s";
/// A description with fewer letters makes no name.
const NAME_CHARS_MIN: usize = 3;
const NAME_CHARS_MAX: usize = 40;

/// A script of xxl-job: what stands for it in its table, the program, the ending of its file.
const SCRIPTS: [(&str, &str, &str); 6] = [
    ("GLUE_SHELL", "bash", "sh"),
    ("GLUE_PYTHON", "python3", "py"),
    ("GLUE_PYTHON2", "python2", "py"),
    ("GLUE_NODEJS", "node", "js"),
    ("GLUE_PHP", "php", "php"),
    ("GLUE_POWERSHELL", "pwsh", "ps1"),
];

/// With our word for each.
const ROUTES: [(&str, &str); 10] = [
    ("FIRST", "first"),
    ("LAST", "last"),
    ("ROUND", "round_robin"),
    ("RANDOM", "random"),
    ("CONSISTENT_HASH", "hash"),
    ("LEAST_FREQUENTLY_USED", "least_frequently_used"),
    ("LEAST_RECENTLY_USED", "least_recently_used"),
    ("FAILOVER", "failover"),
    ("BUSYOVER", "busyover"),
    ("SHARDING_BROADCAST", "broadcast"),
];

/// A row that is to become a job.
struct Draft<'a> {
    origin: Origin,
    row: &'a Row,
    spec: JobSpec,
    notes: Vec<String>,
}

struct Reader<'a> {
    options: &'a Options,
    /// Who is told where xxl-job sent mails.
    channel: Option<&'a str>,
    /// Names of the groups of executors by their ids.
    groups: BTreeMap<&'a str, &'a str>,
}

fn number(row: &Row, column: &str) -> Result<u64, String> {
    match row.text(column) {
        "" => Ok(0),
        // -1 is none, too.
        text if text.starts_with('-') => Ok(0),
        text => text
            .parse()
            .map_err(|_| format!("{column} is {text:?}, which is no number")),
    }
}

/// The command of a script: written to a file in the fresh directory, so that it has the name and the arguments it was written for
/// (parameter, number and count of the shards).
fn command(program: &str, ending: &str, name: &str, source: &str, parameter: &str) -> Vec<String> {
    let text = format!(
        "printf %s \"$1\" > job.{ending} && exec {program} job.{ending} \"$2\" \"${{SYSTOLE_SHARD_INDEX:-0}}\" \"${{SYSTOLE_SHARD_TOTAL:-1}}\""
    );
    ["/bin/sh", "-c", &text, name, source, parameter]
        .map(str::to_owned)
        .to_vec()
}

impl Reader<'_> {
    fn group<'r>(&'r self, row: &'r Row) -> &'r str {
        let id = row.text("job_group");
        self.groups.get(id).copied().unwrap_or(id)
    }

    fn schedule(&self, row: &Row) -> Result<TriggerSpec, String> {
        let mut trigger = TriggerSpec {
            zone: Some(self.options.zone.clone()),
            misfire: match row.text("misfire_strategy") {
                "FIRE_ONCE_NOW" => Some(Misfire::FireOnce),
                _ => Some(Misfire::Skip),
            },
            ..TriggerSpec::default()
        };
        let (kind, setting) = match row.text("schedule_type") {
            // Before 2.3 there was cron and nothing else.
            "" if row.has("job_cron") => ("CRON", row.text("job_cron")),
            kind => (kind, row.text("schedule_conf")),
        };
        let seconds = || {
            let seconds: u64 = setting
                .trim()
                .parse()
                .map_err(|_| format!("schedule_conf is {setting:?}, and no number of seconds"))?;
            Ok::<_, String>(Some(exact_duration(seconds.saturating_mul(1_000))))
        };
        match kind {
            "CRON" => {
                (trigger.name, trigger.dialect) = ("cron".into(), Some(Dialect::Quartz));
                trigger.cron = Some(setting.trim().to_owned());
            }
            "FIX_RATE" => (trigger.name, trigger.fixed_rate) = ("every".into(), seconds()?),
            "FIX_DELAY" => (trigger.name, trigger.fixed_delay) = ("after-end".into(), seconds()?),
            "NONE" | "" => {
                trigger = TriggerSpec {
                    name: "manual".into(),
                    manual: Some(true),
                    ..TriggerSpec::default()
                }
            }
            other => return Err(format!("schedule_type is {other:?}; CRON, FIX_RATE and NONE are known")),
        }
        Ok(trigger)
    }

    fn route(&self, row: &Row, spec: &mut JobSpec, notes: &mut Vec<String>) -> Result<(), String> {
        let text = row.text("executor_route_strategy");
        if self.options.host.is_some() {
            if text == "SHARDING_BROADCAST" {
                notes.push(
                    "executor_route_strategy=SHARDING_BROADCAST: left out for the one host that was given".into(),
                );
            }
            return Ok(());
        }
        let group = self.group(row);
        if !group.is_empty() {
            spec.require.insert("app".into(), group.to_owned());
            notes.push(format!(
                "runs where a runner has the label app={group} (runner --label), as its group of executors; or change require"
            ));
        }
        if text.is_empty() {
            return Ok(());
        }
        let found = ROUTES.iter().find(|(name, _)| *name == text);
        let Some((_, word)) = found else {
            return Err(format!("executor_route_strategy is {text:?}, which is not known"));
        };
        spec.route = Some(Route::from((*word).to_owned()));
        Ok(())
    }

    fn policies(&self, row: &Row, spec: &mut JobSpec, notes: &mut Vec<String>) -> Result<(), String> {
        spec.blocking = match row.text("executor_block_strategy") {
            "SERIAL_EXECUTION" | "" => None,
            "DISCARD_LATER" => Some(BlockingKind::DiscardLater),
            "COVER_EARLY" => Some(BlockingKind::CoverEarly),
            other => return Err(format!("executor_block_strategy is {other:?}, which is not known")),
        };
        let timeout = number(row, "executor_timeout")?;
        spec.timeout = (timeout > 0).then(|| exact_duration(timeout.saturating_mul(1_000)));
        let retries = number(row, "executor_fail_retry_count")?;
        let max = u32::try_from(retries).unwrap_or(RETRIES_MAX).min(RETRIES_MAX);
        if retries > max.into() {
            notes.push(format!("executor_fail_retry_count={retries}: cut to {RETRIES_MAX}"));
        }
        spec.retry = (max > 0).then(|| RetrySpec {
            policy: Some(RetryKind::Fixed),
            max_retries: Some(max),
            delay: Some(RETRY_DELAY.into()),
            ..RetrySpec::default()
        });
        Ok(())
    }

    fn people(&self, row: &Row, spec: &mut JobSpec, notes: &mut Vec<String>) {
        spec.owner = Some(cut(row.text("author"), DESCRIPTION_CHARS_MAX)).filter(|owner| !owner.is_empty());
        let mail = row.text("alarm_email").trim();
        match self.channel {
            _ if mail.is_empty() => {}
            Some(channel) => {
                notes.push(format!("alarm_email={mail}: became an alarm to the channel {channel}"));
                spec.alarm = vec![AlarmSpec {
                    when: Some(AlarmWhen::Failure),
                    to: vec![channel.to_owned()],
                    ..AlarmSpec::default()
                }];
            }
            None => notes.push(format!(
                "alarm_email={mail}: give --alarm CHANNEL, a channel of the schedulers that mails to it, or write [[job.alarm]]"
            )),
        }
    }

    /// What a row runs, or why nothing here can.
    fn run(&self, row: &Row, spec: &mut JobSpec, notes: &mut Vec<String>) -> Result<(), String> {
        let kind = row.text("glue_type");
        let group = self.group(row);
        if matches!(kind, "BEAN" | "GLUE_GROOVY") {
            let what = if kind == "BEAN" {
                format!("the Java method {:?} (BEAN)", row.text("executor_handler"))
            } else {
                "Groovy code (GLUE_GROOVY)".into()
            };
            let parameter = match row.text("executor_param") {
                "" => String::new(),
                parameter => format!(" with the parameter {:?}", cut(parameter, 200)),
            };
            return Err(format!(
                "is {what}{parameter} in the JVM of the executors {group:?}; give it a command line of its own (java -cp … CLASS, or curl to the application), and a job with that"
            ));
        }
        let Some((_, program, ending)) = SCRIPTS.iter().find(|(name, ..)| *name == kind) else {
            return Err(format!("glue_type is {kind:?}, which is not known"));
        };
        // The editor of the web page sends both ends of a line, which no shell takes.
        let source = row.text("glue_source").replace("\r\n", "\n");
        if source.trim().is_empty() {
            return Err(format!("is {kind} without a script (glue_source)"));
        }
        spec.command = command(program, ending, &spec.name, &source, row.text("executor_param"));
        if row.text("executor_route_strategy") != "SHARDING_BROADCAST"
            && (source.contains("$2") || source.contains("$3"))
        {
            notes.push("the script has the number and the count of shards as its 2nd and 3rd argument: 0 and 1".into());
        }
        Ok(())
    }

    fn job(&self, row: &Row, spec: &mut JobSpec, notes: &mut Vec<String>) -> Result<(), String> {
        self.run(row, spec, notes)?;
        spec.description =
            Some(cut(row.text("job_desc").trim(), DESCRIPTION_CHARS_MAX)).filter(|text| !text.is_empty());
        spec.trigger = vec![self.schedule(row)?];
        self.route(row, spec, notes)?;
        self.policies(row, spec, notes)?;
        self.people(row, spec, notes);
        if row.has("trigger_status") && row.text("trigger_status") != "1" && spec.trigger[0].manual.is_none() {
            notes.push("trigger_status: it was stopped there; imported jobs are paused anyway".into());
        }
        Ok(())
    }
}

/// `1: 每日报表`.
fn title(row: &Row) -> String {
    format!("{}: {}", row.text("id"), cut(row.text("job_desc").trim(), 200))
}

/// A name for a row: of its description where that has letters, else of its number.
fn name(row: &Row) -> String {
    let word = super::word(row.text("job_desc"), "");
    if word.chars().filter(char::is_ascii_alphabetic).count() < NAME_CHARS_MIN {
        return format!("xxl-{}", row.text("id"));
    }
    word.chars().take(NAME_CHARS_MAX).collect()
}

/// `child_jobid` becomes a trigger of each child.
fn children(drafts: &mut [Draft<'_>], refused: &BTreeMap<String, String>) {
    let known: BTreeMap<String, usize> = drafts
        .iter()
        .enumerate()
        .map(|(index, draft)| (draft.row.text("id").to_owned(), index))
        .collect();
    for parent in 0..drafts.len() {
        let ids = drafts[parent].row.text("child_jobid").to_owned();
        let parent_id = drafts[parent].row.text("id").to_owned();
        for id in ids.split(',').map(str::trim).filter(|id| !id.is_empty()) {
            let Some(&child) = known.get(id) else {
                let what = refused.get(id).map_or("is not in the table", |_| "was not imported");
                drafts[parent]
                    .notes
                    .push(format!("child_jobid={id}: {what}; nothing follows"));
                continue;
            };
            if id == parent_id {
                drafts[parent].notes.push(format!(
                    "child_jobid={id}: is the job itself, which xxl-job passes over, too"
                ));
                continue;
            }
            let job = drafts[parent].spec.name.clone();
            let triggers = &mut drafts[child].spec.trigger;
            // A job that others start needs nobody to ask for it.
            triggers.retain(|trigger| trigger.manual.is_none());
            triggers.push(TriggerSpec {
                name: format!("after-{parent_id}"),
                after: Some(AfterSpec {
                    job,
                    outcome: AfterOutcome::Finished,
                }),
                ..TriggerSpec::default()
            });
        }
    }
}

/// What came before a job, and is not here.
fn orphans(draft: &mut Draft<'_>, refused: &BTreeMap<String, String>) {
    let id = draft.row.text("id");
    for (parent, ids) in refused {
        if ids.split(',').any(|child| child.trim() == id) {
            draft.notes.push(format!(
                "ran after {parent}, which was not imported; something else must trigger it"
            ));
        }
    }
}

/// Reads files that belong together: jobs in some of them, groups of executors perhaps in others.
pub fn read(files: &[(String, String)], channel: Option<&str>, options: &Options, names: &mut Names) -> Vec<Import> {
    let tables: Vec<_> = files.iter().map(|(_, text)| table::read(text)).collect();
    let mut reader = Reader {
        options,
        channel,
        groups: BTreeMap::new(),
    };
    for group in tables
        .iter()
        .flatten()
        .flatten()
        .filter(|table| table.name == GROUPS)
        .flat_map(|table| &table.rows)
    {
        reader.groups.insert(group.text("id"), group.text("app_name"));
    }
    let mut imports: Vec<Import> = files.iter().map(|_| Import::default()).collect();
    let mut drafts: Vec<Draft<'_>> = Vec::new();
    // Children of those that were refused, by their ids.
    let mut refused = BTreeMap::new();
    let mut file_of = Vec::new();
    for (index, ((file, _), tables)) in files.iter().zip(&tables).enumerate() {
        let tables = match tables {
            Ok(tables) => tables,
            Err(reason) => {
                imports[index].refuse(Origin::new(file, 1), "file", reason);
                continue;
            }
        };
        for row in tables
            .iter()
            .filter(|table| table.name == JOBS)
            .flat_map(|table| &table.rows)
        {
            let origin = Origin::new(file, row.line);
            let mut spec = base(names.take(&name(row)), options);
            let mut notes = Vec::new();
            match reader.job(row, &mut spec, &mut notes) {
                Ok(()) => {
                    drafts.push(Draft {
                        origin,
                        row,
                        spec,
                        notes,
                    });
                    file_of.push(index);
                }
                Err(reason) => {
                    names.give_back(&spec.name);
                    refused.insert(row.text("id").to_owned(), row.text("child_jobid").to_owned());
                    imports[index].refuse(origin, title(row), reason);
                }
            }
        }
    }
    children(&mut drafts, &refused);
    for (mut draft, index) in drafts.into_iter().zip(file_of) {
        orphans(&mut draft, &refused);
        let job = Imported {
            origin: draft.origin,
            text: title(draft.row),
            spec: draft.spec,
            notes: draft.notes,
        };
        imports[index].add(names, job);
    }
    imports
}

#[cfg(test)]
mod tests;

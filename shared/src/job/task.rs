//! The task of one occurrence of a job.

use super::compile::Job;
use super::data;
use super::template::{self, Facts};
use crate::error::Invalid;
use crate::task::TaskSpec;
use crate::trigger::zone::Zone;
use serde_json::{Map, Value};

/// What a task of a job is made for.
#[derive(Clone, Copy, Debug)]
pub struct Occasion<'a> {
    /// Name of the trigger; `None` for one that was asked for and has none.
    pub trigger: Option<&'a str>,
    /// The logical time, which lateness and retries do not change.
    pub scheduled_ms: i64,
    /// The zone of the trigger.
    pub zone: &'a Zone,
    /// Priority of the trigger, which goes before that of the job.
    pub priority: Option<u32>,
    /// Data of the trigger.
    pub trigger_data: Option<&'a Map<String, Value>>,
    /// Data of the request, or what an `after` trigger hands on.
    pub request_data: Option<&'a Map<String, Value>>,
}

impl Job {
    /// The task of one occurrence. The variables that systole sets are in its `env`, after those of the job.
    pub fn make_task(&self, occasion: &Occasion<'_>) -> Result<TaskSpec, Invalid> {
        let parts = [Some(&self.data), occasion.trigger_data, occasion.request_data];
        let data = data::merge(parts.into_iter().flatten());
        data::check(&data, "data")?;
        let mut task = self.task.clone();
        template::expand(
            &mut task.command,
            &self.templates,
            &Facts {
                scheduled_ms: occasion.scheduled_ms,
                zone: occasion.zone,
                data: &data,
                shard: None,
                task_id: None,
            },
        )?;
        task.priority = occasion.priority.unwrap_or(task.priority);
        task.validate(occasion.scheduled_ms)?;
        // Names that begin with SYSTOLE_ are refused from anybody else, so that these come after the check.
        if let Some(trigger) = occasion.trigger {
            task.env.push(("SYSTOLE_TRIGGER".into(), trigger.into()));
        }
        let time = template::scheduled_time(occasion.zone, occasion.scheduled_ms);
        task.env.push(("SYSTOLE_SCHEDULED_TIME".into(), time));
        task.env.extend(data::variables(&data));
        Ok(task)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::DATA_BYTES_MAX;

    #[test]
    fn a_task_has_the_data_of_job_trigger_and_request_and_its_scheduled_time() {
        let spec: crate::job::JobSpec = serde_json::from_str(
            r#"{"name":"etl.load","command":["load","{{ scheduled_date }}","{{ data.table }}","{{ data.mode }}"],
                "env":{"LANG":"C"},"data":{"table":"sales","mode":"full"},"priority":3,"tags":["etl"]}"#,
        )
        .expect("spec");
        let job = spec.compile().expect("job");
        let zone = Zone::parse("Asia/Tokyo").expect("zone");
        let (of_trigger, of_request) = (
            serde_json::json!({"mode": "delta"}),
            serde_json::json!({"table": "quotes"}),
        );
        let task = job
            .make_task(&Occasion {
                trigger: Some("nightly"),
                scheduled_ms: 1_806_195_600_000,
                zone: &zone,
                priority: Some(9),
                trigger_data: of_trigger.as_object(),
                request_data: of_request.as_object(),
            })
            .expect("task");
        assert_eq!(task.command, ["load", "2027-03-28", "quotes", "delta"]);
        assert_eq!(
            (task.name.as_str(), task.job.as_deref()),
            ("etl.load", Some("etl.load"))
        );
        assert_eq!((task.priority, task.tags.as_slice()), (9, &["etl".to_owned()][..]));
        let env: Vec<_> = task.env.iter().map(|(name, value)| format!("{name}={value}")).collect();
        assert_eq!(
            env,
            [
                "LANG=C",
                "SYSTOLE_TRIGGER=nightly",
                "SYSTOLE_SCHEDULED_TIME=2027-03-28T10:00:00+09:00",
                r#"SYSTOLE_DATA={"mode":"delta","table":"quotes"}"#,
                "SYSTOLE_DATA_MODE=delta",
                "SYSTOLE_DATA_TABLE=quotes",
            ]
        );
    }

    #[test]
    fn data_of_a_request_are_checked_and_end_in_one_argument() {
        let spec: crate::job::JobSpec =
            serde_json::from_str(r#"{"name":"a","command":["x","{{ data.k }}"],"data":{"k":""}}"#).expect("spec");
        let job = spec.compile().expect("job");
        let make = |request: Value| {
            job.make_task(&Occasion {
                trigger: None,
                scheduled_ms: 0,
                zone: &Zone::utc(),
                priority: None,
                trigger_data: None,
                request_data: request.as_object(),
            })
        };
        let task = make(serde_json::json!({"k": "a b\"; rm -rf / {{ data.k }}"})).expect("task");
        assert_eq!(task.command, ["x", "a b\"; rm -rf / {{ data.k }}"]);
        for request in [
            serde_json::json!({"a b": 1}),
            serde_json::json!({"k": "\u{0}"}),
            serde_json::json!({"k": "x".repeat(DATA_BYTES_MAX)}),
        ] {
            assert_eq!(make(request).expect_err("refused").field, "data");
        }
    }
}

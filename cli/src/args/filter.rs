//! Which tasks: the conditions that `ls`, `cancel` and `rerun` share.

use super::value::{since, state, target, task_id, word};
use clap::Args;
use systole_proto::convert::{state_to_wire, time_to_wire};
use systole_proto::v1;
use systole_shared::id::Target;
use systole_shared::task::TaskState;

#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Which tasks")]
pub struct FilterArgs {
    /// Only these states, repeatable or separated by commas
    #[arg(long, value_name = "STATE", value_delimiter = ',', value_parser = state)]
    pub state: Vec<TaskState>,
    /// Only tasks of this job
    #[arg(long, value_name = "JOB", value_parser = word)]
    pub job: Option<String>,
    /// Only tasks of this batch (`submit --batch`)
    #[arg(long, value_name = "BATCH", value_parser = word)]
    pub batch: Option<String>,
    /// Only the members of this broadcast
    #[arg(long, value_name = "TASK", value_parser = task_id, allow_negative_numbers = true)]
    pub set: Option<i64>,
    /// Only tasks of this host or slot
    #[arg(long, value_name = "HOST[/SLOT]", value_parser = target)]
    pub runner: Option<Target>,
    /// Only tasks with this tag
    #[arg(long, value_name = "T", value_parser = word)]
    pub tag: Option<String>,
    /// Only tasks of this name
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Submitted at or after this time, or within this last while, such as 2h
    #[arg(long, value_name = "TIME|DURATION", value_parser = since, allow_hyphen_values = true)]
    pub since: Option<i64>,
    /// Submitted before this time, or longer ago than a while, such as 2h
    #[arg(long, value_name = "TIME|DURATION", value_parser = since, allow_hyphen_values = true)]
    pub until: Option<i64>,
}

impl FilterArgs {
    pub fn to_wire(&self) -> v1::TaskFilter {
        v1::TaskFilter {
            states: self.state.iter().map(|&state| state_to_wire(state).into()).collect(),
            job: self.job.clone().unwrap_or_default(),
            runner: self.runner.as_ref().map(ToString::to_string).unwrap_or_default(),
            tag: self.tag.clone().unwrap_or_default(),
            since_ms: self.since.map_or(0, time_to_wire),
            until_ms: self.until.map_or(0, time_to_wire),
            name: self.name.clone().unwrap_or_default(),
            batch: self.batch.clone().unwrap_or_default(),
            last_attempts: false,
            set_id: self.set.unwrap_or(0),
        }
    }
}

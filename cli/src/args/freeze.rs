//! `pause` and `resume`: freezes.

use super::runners::Until;
use super::value::{reason, until, word};
use clap::Args;

/// Exactly one of them.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub struct ScopeArgs {
    /// Everything
    #[arg(long)]
    pub all: bool,
    /// The tasks of this queue, and the jobs that make such tasks
    #[arg(long, value_name = "Q", value_parser = word)]
    pub queue: Option<String>,
    /// Tasks and jobs with this tag
    #[arg(long, value_name = "T", value_parser = word)]
    pub tag: Option<String>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
What runs goes on. What waits keeps waiting, and goes on in its order afterwards. Fires of jobs
that were due meanwhile are skipped (paused) and not made up: systole backfill does that. Timeouts
in the queue count on. A job by itself: systole job pause. A host: systole runners cordon.")]
pub struct PauseArgs {
    #[command(flatten)]
    pub scope: ScopeArgs,
    /// It ends by itself then: a time, or a duration from now. Paused again, it has the new end
    #[arg(long, value_name = "TIME|DURATION", value_parser = until)]
    pub until: Option<Until>,
    /// Why, for those whose tasks wait
    #[arg(long, value_name = "R", value_parser = reason)]
    pub reason: Option<String>,
}

#[derive(Debug, Args)]
pub struct ResumeArgs {
    #[command(flatten)]
    pub scope: ScopeArgs,
    /// Why, for those who read it later
    #[arg(long, value_name = "R", value_parser = reason)]
    pub reason: Option<String>,
}

impl ScopeArgs {
    /// As it is sent: the kind, and the name.
    pub fn to_wire(&self) -> (String, String) {
        match (&self.queue, &self.tag) {
            (Some(queue), _) => ("queue".into(), queue.clone()),
            (None, Some(tag)) => ("tag".into(), tag.clone()),
            (None, None) => ("all".into(), String::new()),
        }
    }
}

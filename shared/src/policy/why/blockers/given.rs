//! What a task waits for that a runner was given: its runner, or whoever is to hear of its end.

use super::{Blocker, BlockerKind};
use crate::policy::access::Needs;
use crate::policy::stale::BRAKE_ENDS_AFTER;
use crate::task::TaskState;
use crate::time::format_duration;

/// A task that a runner holds, and what is known of the runner.
#[derive(Clone, Debug)]
pub struct AtRunner<'a> {
    pub state: TaskState,
    pub runner: &'a str,
    /// When the runner was last heard; `None`: it is not known any more.
    pub seen_ms: Option<i64>,
    /// It is silent for so long that it is to be declared lost.
    pub silent: bool,
    /// Verdicts on its host are withheld.
    pub withheld: bool,
    pub dispatched_ms: Option<i64>,
    pub lost_after_ms: i64,
}

/// Empty: it runs, and nothing is in its way.
pub fn at_runner(at: &AtRunner<'_>) -> Vec<Blocker> {
    let mut found = Vec::new();
    let host = at.runner.split('/').next().unwrap_or_default();
    match at.state {
        TaskState::Dispatched => found.push(
            Blocker::new(
                BlockerKind::Unreported,
                format!("it was given to {}, which has not reported it yet", at.runner),
            )
            .since(at.dispatched_ms)
            .advice("a runner reports it with its next beat; to see whether it is there")
            .by(Needs::View, format!("systole runners ls {host}")),
        ),
        TaskState::Terminating => found.push(
            Blocker::new(
                BlockerKind::Ending,
                format!("{} is to end it and has not confirmed that", at.runner),
            )
            .advice("its signals and grace: systole show; a runner that is there reports the end by itself"),
        ),
        _ => {}
    }
    if at.silent {
        found.push(
            Blocker::new(BlockerKind::RunnerSilent, format!("{} says nothing", at.runner))
                .since(at.seen_ms)
                .advice(format!(
                    "it is declared lost after {} of silence; start the runner of {host} again and it goes on, or, when the machine is \
                     off for sure",
                    format_duration(at.lost_after_ms.unsigned_abs())
                ))
                .by(Needs::Operate, format!("systole runners rm {host} --dead")),
        );
    }
    if at.withheld {
        found.push(
            Blocker::new(
                BlockerKind::Brake,
                "many hosts fell silent at once, so that their tasks are not declared lost yet",
            )
            .advice(format!(
                "look at the network between runners and schedulers; verdicts come {} after the silence began",
                format_duration(at.lost_after_ms.saturating_mul(BRAKE_ENDS_AFTER).unsigned_abs())
            )),
        );
    }
    found
}

/// A task whose command has ended well, and whose callback is under way.
pub fn callback(url: &str, tries: u32, last_error: &str) -> Blocker {
    let error = match last_error {
        "" => String::new(),
        error => format!(", the last one: {error}"),
    };
    Blocker::new(
        BlockerKind::Callback,
        format!("its callback to {url} is not delivered; {tries} tries so far{error}"),
    )
    .advice("it is tried again by itself; look at the receiver. The command itself has ended well")
}

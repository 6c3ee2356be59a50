//! What became of a task, in sentences. Durations are in them; times of day are not, since who reads them has a zone of his own.

use super::super::retry::{FollowUp, follow_up, is_lost};
use crate::task::signal::signal_name;
use crate::task::{EndDetail, Outcome, OutcomeKind, TaskState};
use crate::time::format_duration;

/// One member of a retry chain.
#[derive(Clone, Debug)]
pub struct Member {
    pub id: i64,
    /// Counts from 1; a replacement has the attempt of the one that it replaces.
    pub attempt: u32,
    pub state: TaskState,
    pub outcome: Option<Outcome>,
    /// `HOST/SLOT`; empty where it was given to none.
    pub runner: String,
    /// From the start of its process to the end; `None`: it did not start, or has not ended.
    pub took_ms: Option<u64>,
}

/// A task that has ended, and what is known of it.
#[derive(Clone, Debug)]
pub struct Ended<'a> {
    pub task: &'a Member,
    /// The chain, the first attempt first.
    pub chain: &'a [Member],
    pub max_retries: u32,
    pub cancelled_by: &'a str,
    pub cancel_reason: &'a str,
    pub detail: Option<&'a EndDetail>,
    pub late_result: Option<&'a Outcome>,
    /// `delivered` or `failed`, and the last error.
    pub callback: Option<(&'a str, &'a str)>,
    /// Bytes of output that are stored.
    pub output_bytes: u64,
}

pub fn story(ended: &Ended<'_>) -> Vec<String> {
    let mut told = vec![end(ended.task)];
    told.extend(meaning(ended).map(str::to_owned));
    told.extend(cancelled(ended));
    if let Some(late) = ended.late_result {
        told.push(format!(
            "Its runner came back later and reported what really happened: {}. State and outcome stay as they were decided.",
            outcome_words(late)
        ));
    }
    told.extend(
        ended
            .detail
            .map(|detail| tree(detail, &ended.task.runner))
            .unwrap_or_default(),
    );
    told.extend(chain(ended));
    match ended.callback {
        Some(("failed", error)) => told.push(format!("Its callback was given up: {error}.")),
        Some(("delivered", _)) => told.push("Its callback was delivered.".into()),
        _ => {}
    }
    if ended.output_bytes > 0 {
        told.push(format!("Its output: systole logs {}.", ended.task.id));
    }
    told
}

/// `exit code 7`, `SIGKILL`, or what was said of it.
fn outcome_words(outcome: &Outcome) -> String {
    match (outcome.kind, outcome.exit_code, outcome.signal) {
        (OutcomeKind::Success, ..) => "success".into(),
        (OutcomeKind::ExitCode, Some(code), _) => format!("exit code {code}"),
        (OutcomeKind::Signal, _, Some(signal)) => signal_name(signal),
        _ => match outcome.message.trim().trim_end_matches('.') {
            "" => outcome.kind.meaning().into(),
            message => message.into(),
        },
    }
}

fn end(task: &Member) -> String {
    let at = match (task.runner.as_str(), task.took_ms) {
        ("", _) | (_, None) => String::new(),
        (runner, Some(ms)) => format!(" after {} on {runner}", format_duration(ms)),
    };
    let how = match &task.outcome {
        Some(outcome) if outcome.kind != OutcomeKind::Success => format!(": {}", outcome_words(outcome)),
        _ => String::new(),
    };
    let started = if task.took_ms.is_none() && matches!(task.state, TaskState::Skipped | TaskState::Terminated) {
        "; nothing of it ran"
    } else {
        ""
    };
    format!("It {}{at}{how}{started}.", words_of(task.state))
}

fn words_of(state: TaskState) -> &'static str {
    match state {
        TaskState::Finished => "ended well, with exit code 0",
        TaskState::Callback => "ended well, with exit code 0, and its callback is being delivered",
        TaskState::Failed => "failed",
        TaskState::Skipped => "was dropped before it started",
        TaskState::Terminated => "was ended by a cancel",
        _ => "has not ended",
    }
}

/// What the outcome is about and what can be done, where that is more than its words say.
fn meaning(ended: &Ended<'_>) -> Option<&'static str> {
    let is_followed = ended.chain.last().is_some_and(|last| last.id > ended.task.id);
    Some(match ended.task.outcome.as_ref()?.kind {
        // The chain says how it went on.
        kind if is_followed && is_lost(kind) => return None,
        OutcomeKind::ExitCode => "That is what the program itself said; systole ran it as it was told to.",
        OutcomeKind::Signal => "systole did not send this signal: the program did, or somebody on its host.",
        OutcomeKind::OutOfMemory => "It needed more memory than its limit, or than its host had: --memory.",
        OutcomeKind::StartFailed => "The program could not be started there; nothing of it ran.",
        OutcomeKind::Timeout => "Its --timeout was over, and its runner ended it.",
        OutcomeKind::QueueTimeout => "No runner was free for it in time: more slots, or a longer --queue-timeout.",
        OutcomeKind::StartTimeout => "Its --start-timeout was over.",
        OutcomeKind::SilenceTimeout => "It wrote nothing for its --silence-timeout, and its runner ended it.",
        OutcomeKind::OutputLimit => "Its --output-on-limit kill ended it.",
        OutcomeKind::RunnerLost => {
            "Whether it finished is not known, so it was not tried again by itself. Look at what it was to do; then: systole rerun."
        }
        OutcomeKind::RunnerRestarted | OutcomeKind::RunnerStopped | OutcomeKind::Fenced => {
            "It may have done a part of its work, so it was not tried again by itself: systole rerun."
        }
        OutcomeKind::MembersFailed => "Each host has a task of its own: systole ls --set, with the number of this one.",
        OutcomeKind::Rejected => "The runner.toml of that host says who may run what there; nothing ran.",
        OutcomeKind::NotStarted => "Nothing of it ran.",
        OutcomeKind::Unreadable => "Nothing of it ran. Look at the database.",
        OutcomeKind::Success | OutcomeKind::Cancelled | OutcomeKind::Skipped => return None,
    })
}

fn cancelled(ended: &Ended<'_>) -> Option<String> {
    if ended.cancelled_by.is_empty() {
        return None;
    }
    let reason = match ended.cancel_reason {
        "" => ", without a reason".into(),
        reason => format!(": \"{reason}\""),
    };
    let late = match ended.task.state {
        TaskState::Terminated => "",
        _ => " The cancel came too late to change how it ended.",
    };
    Some(format!("{} cancelled it{reason}.{late}", ended.cancelled_by))
}

fn tree(detail: &EndDetail, runner: &str) -> Vec<String> {
    let mut told = Vec::new();
    let signals: Vec<String> = detail.signals.iter().map(|sent| signal_name(sent.signal)).collect();
    if !signals.is_empty() {
        told.push(format!("Its runner sent {}.", signals.join(", then ")));
    }
    match detail.leftovers {
        0 => {}
        1 => told.push("1 process was left when the program had ended, and was killed.".into()),
        n => told.push(format!(
            "{n} processes were left when the program had ended, and were killed."
        )),
    }
    match detail.tree_empty {
        Some(true) => told.push("No process of it is left.".into()),
        Some(false) => told.push(format!("Processes of it may still run on {runner}.")),
        None => {}
    }
    if detail.oom_kills > 0 {
        told.push(format!(
            "The kernel ended {} of its processes for want of memory.",
            detail.oom_kills
        ));
    }
    if !detail.note.is_empty() {
        told.push(format!("Its runner notes: {}.", detail.note.trim_end_matches('.')));
    }
    told
}

fn chain(ended: &Ended<'_>) -> Vec<String> {
    let (task, all) = (ended.task, ended.chain);
    let of = ended.max_retries.saturating_add(1).max(task.attempt);
    let at = all.iter().position(|member| member.id == task.id);
    let mut told = Vec::new();
    if let Some(before) = at.and_then(|at| at.checked_sub(1)).and_then(|before| all.get(before)) {
        let how = before.outcome.as_ref().map(outcome_words).unwrap_or_default();
        told.push(format!(
            "It was attempt {} of {of}; the one before it, {}, ended with {how}.",
            task.attempt, before.id
        ));
    }
    if let Some(next) = at.and_then(|at| all.get(at + 1)) {
        let word = if next.attempt == task.attempt {
            "Nothing of it had run, so another took its place"
        } else {
            "It was tried again"
        };
        let last = all.last().filter(|last| last.id != next.id);
        let how = |member: &Member| match &member.outcome {
            Some(outcome) if outcome.kind != OutcomeKind::Success => {
                format!("{} ({})", member.state, outcome_words(outcome))
            }
            _ => member.state.to_string(),
        };
        let last = last.map_or_else(String::new, |last| format!("; the last, {}, is {}", last.id, how(last)));
        told.push(format!("{word}, as {}, which is {}{last}.", next.id, how(next)));
    } else if task.state == TaskState::Failed && ended.max_retries > 0 {
        let kind = task.outcome.as_ref().map(|outcome| outcome.kind);
        let again = kind.is_some_and(|kind| follow_up(kind, 1, 1, 0) == FollowUp::Retry);
        told.push(if !again {
            "Such an end is not tried again.".into()
        } else if task.attempt >= of {
            format!("It was attempt {} of {of}: none is left.", task.attempt)
        } else if !ended.cancelled_by.is_empty() {
            "A cancel ends the chain: it is not tried again.".into()
        } else {
            "Its retry policy does not try such an end again.".into()
        });
    }
    told
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::detail::SignalSent;

    fn member(id: i64, attempt: u32, state: TaskState, outcome: Outcome) -> Member {
        Member {
            id,
            attempt,
            state,
            outcome: Some(outcome),
            runner: "etl-2/1".into(),
            took_ms: Some(12_400),
        }
    }

    fn exit(code: i32) -> Outcome {
        Outcome {
            exit_code: Some(code),
            ..Outcome::new(OutcomeKind::ExitCode, "")
        }
    }

    fn told<'a>(task: &'a Member, chain: &'a [Member], change: impl FnOnce(&mut Ended<'a>)) -> Vec<String> {
        let mut ended = Ended {
            task,
            chain,
            max_retries: 1,
            cancelled_by: "",
            cancel_reason: "",
            detail: None,
            late_result: None,
            callback: None,
            output_bytes: 0,
        };
        change(&mut ended);
        story(&ended)
    }

    #[test]
    fn a_chain_is_told_from_each_of_its_members() {
        let first = member(1842, 1, TaskState::Failed, exit(3));
        let second = member(
            1843,
            2,
            TaskState::Finished,
            Outcome::new(OutcomeKind::Success, "exit code 0"),
        );
        let chain = [first.clone(), second.clone()];
        assert_eq!(
            told(&first, &chain, |ended| ended.output_bytes = 1),
            [
                "It failed after 12.4 s on etl-2/1: exit code 3.",
                "That is what the program itself said; systole ran it as it was told to.",
                "It was tried again, as 1843, which is FINISHED.",
                "Its output: systole logs 1842.",
            ]
        );
        assert_eq!(
            told(&second, &chain, |_| {}),
            [
                "It ended well, with exit code 0 after 12.4 s on etl-2/1.",
                "It was attempt 2 of 2; the one before it, 1842, ended with exit code 3.",
            ]
        );
        let last = member(1843, 2, TaskState::Failed, exit(4));
        let chain = [first, last.clone()];
        assert_eq!(
            told(&last, &chain, |_| {}).last().map(String::as_str),
            Some("It was attempt 2 of 2: none is left.")
        );
    }

    #[test]
    fn a_cancel_is_told_with_who_and_why_and_what_was_left() {
        let task = member(
            7,
            1,
            TaskState::Terminated,
            Outcome::new(OutcomeKind::Cancelled, "cancelled; ended with SIGTERM"),
        );
        let detail = EndDetail {
            tree_empty: Some(true),
            leftovers: 2,
            signals: [15, 9].map(|signal| SignalSent { signal, at_ms: 0 }).into(),
            ..EndDetail::default()
        };
        let said = told(&task, std::slice::from_ref(&task), |ended| {
            (ended.cancelled_by, ended.cancel_reason) = ("ann", "wrong month");
            ended.detail = Some(&detail);
        });
        assert_eq!(
            said,
            [
                "It was ended by a cancel after 12.4 s on etl-2/1: cancelled; ended with SIGTERM.",
                "ann cancelled it: \"wrong month\".",
                "Its runner sent SIGTERM, then SIGKILL.",
                "2 processes were left when the program had ended, and were killed.",
                "No process of it is left.",
            ]
        );
        let waiting = Member {
            runner: String::new(),
            took_ms: None,
            outcome: Some(Outcome::new(
                OutcomeKind::Cancelled,
                "cancelled by ann before it started",
            )),
            ..task
        };
        assert_eq!(
            told(&waiting, &[], |_| {})[0],
            "It was ended by a cancel: cancelled by ann before it started; nothing of it ran."
        );
    }

    #[test]
    fn a_lost_runner_that_comes_back_has_the_last_word_but_not_the_state() {
        let task = member(
            7,
            1,
            TaskState::Failed,
            Outcome::new(OutcomeKind::RunnerLost, "the runner was silent for 1m00s"),
        );
        let late = Outcome::new(OutcomeKind::Success, "exit code 0");
        let said = told(&task, std::slice::from_ref(&task), |ended| {
            ended.late_result = Some(&late)
        });
        assert!(said[1].starts_with("Whether it finished is not known"), "{said:?}");
        assert!(said[2].contains("really happened: success"), "{said:?}");
        assert_eq!(said[3], "Such an end is not tried again.");
    }

    #[test]
    fn every_outcome_has_a_sentence() {
        for &kind in OutcomeKind::ALL {
            let state = match kind {
                OutcomeKind::Success => TaskState::Finished,
                OutcomeKind::Cancelled => TaskState::Terminated,
                OutcomeKind::Skipped => TaskState::Skipped,
                _ => TaskState::Failed,
            };
            let task = member(1, 1, state, Outcome::new(kind, ""));
            for sentence in told(&task, std::slice::from_ref(&task), |_| {}) {
                assert!(
                    sentence.ends_with('.') && !sentence.contains(".."),
                    "{kind}: {sentence}"
                );
            }
        }
    }
}

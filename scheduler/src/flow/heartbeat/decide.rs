//! What each beat of a batch means: asks the pure decisions, and notes the writes they lead to.

use super::batch::stale_answer;
use super::{Beat, BeatResult, Done};
use crate::parked::Answer;
use crate::store::StoreError;
use crate::store::beats::{LateResult, RunnerRow, RunnerWrite};
use crate::store::finish::{End, LiveTask};
use std::collections::{HashMap, HashSet};
use systole_shared::heartbeat::answer::{Redelivery, Step, Subject, answer, not_yet_started, redelivery};
use systole_shared::heartbeat::end::{self, Report};
use systole_shared::heartbeat::identity::{Order, order};
use systole_shared::heartbeat::{ResetReason, Said};
use systole_shared::task::{Outcome, OutcomeKind, TaskState, Transition};

/// What is known of one beat while its transaction runs.
pub(super) struct Turn<'a> {
    pub(super) beat: &'a Beat,
    pub(super) write: RunnerWrite,
    pub(super) answer: Option<Answer>,
    pub(super) acknowledged: Vec<i64>,
    pub(super) park: bool,
    /// Free for a new task.
    pub(super) offer: bool,
}

impl<'a> Turn<'a> {
    /// For a beat of a process that holds no row.
    pub(super) fn without_row(beat: &'a Beat) -> Self {
        Self {
            beat,
            write: RunnerWrite {
                host: beat.registration.host.clone(),
                slot: beat.registration.slot,
                start_no: beat.registration.start_no,
                seq: beat.seq,
                leaving: 0,
                task_id: None,
                held_boot: None,
                redeliveries: 0,
            },
            answer: None,
            acknowledged: Vec::new(),
            park: false,
            offer: false,
        }
    }
}

/// Writes that decisions ask for.
#[derive(Default)]
pub(super) struct Work {
    pub(super) start: Vec<i64>,
    pub(super) time_out: Vec<i64>,
    pub(super) ends: Vec<End>,
    pub(super) late: Vec<LateResult>,
    /// Tasks of jobs that were ended without proof, and whose result has come.
    pub(super) proofs: Vec<i64>,
    /// Results whose output is to be stored.
    pub(super) recorded: HashSet<i64>,
    /// RUN_NEW again: task and how often it was given again.
    pub(super) again: HashMap<i64, u32>,
}

/// What one beat means. `Err` is an answer without any write.
pub(super) fn decide<'a>(
    beat: &'a Beat,
    row: &RunnerRow,
    tasks: &HashMap<i64, LiveTask>,
    is_ahead: impl Fn(&Beat) -> bool,
    work: &mut Work,
) -> Result<Result<Turn<'a>, Done>, StoreError> {
    let who = &beat.registration;
    if row.instance_id != who.instance_id || row.start_no != who.start_no {
        return Ok(Err(Done::Register));
    }
    match order(row.seq, beat.seq) {
        Order::Stale => return Ok(Err(stale_answer())),
        Order::Again => return Ok(again(beat, row, tasks, work)),
        Order::Next => {}
    }
    let mut turn = Turn {
        beat,
        write: RunnerWrite {
            host: row.host.clone(),
            slot: row.slot,
            start_no: row.start_no,
            seq: beat.seq,
            leaving: i64::from(beat.leaving),
            task_id: row.task_id,
            held_boot: row.held_boot.clone(),
            redeliveries: row.redeliveries,
        },
        answer: None,
        acknowledged: Vec::new(),
        park: false,
        offer: false,
    };
    for result in &beat.results {
        record(result, &mut turn, tasks, work)?;
    }
    let step = match beat.said {
        Said::Idle => {
            let held = turn.write.task_id.and_then(|id| tasks.get(&id));
            match held {
                Some(task) => answer(Said::Idle, Subject::Mine(task.state()?)),
                None => answer(Said::Idle, Subject::Nothing),
            }
        }
        Said::Running => {
            let step = answer(Said::Running, named(beat, row, turn.write.task_id, tasks)?);
            if beat.starting { not_yet_started(step) } else { step }
        }
        // The result was settled above; what is left is what to say of the named task.
        Said::Finished | Said::Failed => {
            if turn.acknowledged.contains(&beat.task_id) {
                turn.answer = Some(Answer::Reset(beat.task_id, ResetReason::Ack));
                turn.offer = turn.write.task_id.is_none();
            } else if turn.answer.is_none() {
                turn.answer = Some(Answer::Reset(beat.task_id, ResetReason::Unknown));
            }
            finish_turn(&mut turn, row, is_ahead(beat));
            return Ok(Ok(turn));
        }
    };
    take_step(step, &mut turn, row, tasks, work)?;
    finish_turn(&mut turn, row, is_ahead(beat));
    Ok(Ok(turn))
}

/// The same beat again: nothing is written, and RUN_NEW of the task held is repeated.
fn again<'a>(
    beat: &'a Beat,
    row: &RunnerRow,
    tasks: &HashMap<i64, LiveTask>,
    work: &mut Work,
) -> Result<Turn<'a>, Done> {
    let held = row.task_id.and_then(|id| tasks.get(&id));
    if let (Said::Idle, Some(task)) = (beat.said, held)
        && matches!(task.state(), Ok(TaskState::Dispatched))
    {
        work.again.insert(task.id, u32::try_from(row.redeliveries).unwrap_or(0));
        return Err(Done::Answered {
            // Replaced by the RUN_NEW in `repeat_run_new`.
            answer: Answer::Reset(task.id, ResetReason::Ack),
            acknowledged: Vec::new(),
            park: false,
        });
    }
    Err(stale_answer())
}

/// The relation of the task that a RUNNING beat names to this runner.
fn named(
    beat: &Beat,
    row: &RunnerRow,
    holds: Option<i64>,
    tasks: &HashMap<i64, LiveTask>,
) -> Result<Subject, StoreError> {
    let Some(task) = tasks.get(&beat.task_id) else {
        return Ok(Subject::Unknown);
    };
    let state = task.state()?;
    let here = task.host.as_deref() == Some(row.host.as_str()) && task.slot == Some(row.slot);
    // A live task is this runner's only if its row says so; an ended one by where it was dispatched.
    let mine = if state.is_held() { holds == Some(task.id) } else { here };
    Ok(if mine { Subject::Mine(state) } else { Subject::Foreign })
}

/// Settles one result. It is accepted from whoever names the task with the start it was dispatched to.
pub(super) fn record(
    result: &BeatResult,
    turn: &mut Turn<'_>,
    tasks: &HashMap<i64, LiveTask>,
    work: &mut Work,
) -> Result<(), StoreError> {
    let who = &turn.beat.registration;
    let subject = match tasks.get(&result.task_id) {
        None => Subject::Unknown,
        Some(task) => {
            let mine =
                task.host.as_deref() == Some(who.host.as_str()) && task.start_no == Some(result.dispatched_start_no);
            if mine {
                Subject::Mine(task.state()?)
            } else {
                Subject::Foreign
            }
        }
    };
    let said = if result.report.kind == OutcomeKind::Success {
        Said::Finished
    } else {
        Said::Failed
    };
    match (answer(said, subject), tasks.get(&result.task_id)) {
        (Step::Ended, Some(task)) => {
            // Two results of one task in one batch (an old and a new process): the first counts.
            if work.recorded.insert(task.id) {
                let (transition, outcome) = end::end(
                    task.state()?,
                    task.terminating(),
                    &result.report,
                    task.callback_url.is_some(),
                );
                let (started_age_ms, ended_age_ms) =
                    end::ages(result.started_age_ms, result.ended_age_ms, task.held_ms);
                work.ends.push(End {
                    task: task.clone(),
                    transition,
                    outcome,
                    started_age_ms,
                    ended_age_ms,
                    cancelled_by: None,
                    detail: result.detail.clone(),
                    lost: false,
                    silent_ms: 0,
                });
            }
            turn.acknowledged.push(task.id);
        }
        (Step::KeepLateResult, Some(task)) => {
            let left = result
                .detail
                .as_ref()
                .is_some_and(|detail| detail.tree_empty == Some(false));
            work.proofs.extend((task.is_of_job() && !left).then_some(task.id));
            work.late.push(LateResult {
                task_id: task.id,
                kind: result.report.kind,
                result: late_json(&result.report),
                detail: result.detail.clone(),
            });
            work.recorded.insert(task.id);
            turn.acknowledged.push(task.id);
        }
        (Step::Reset(ResetReason::Ack), _) => turn.acknowledged.push(result.task_id),
        (Step::Reset(reason), _) => {
            // Nothing of the store changes: what the row holds, it holds on.
            turn.answer = Some(Answer::Reset(result.task_id, reason));
            return Ok(());
        }
        (other, _) => return Err(StoreError::Data(format!("a result cannot lead to {other:?}"))),
    }
    if turn.write.task_id == Some(result.task_id) {
        free(turn);
    }
    Ok(())
}

fn free(turn: &mut Turn<'_>) {
    turn.write.task_id = None;
    turn.write.held_boot = None;
    turn.write.redeliveries = 0;
}

fn late_json(report: &Report) -> String {
    let outcome = report.as_outcome();
    serde_json::json!({
        "kind": outcome.kind.name(),
        "exit_code": outcome.exit_code,
        "signal": outcome.signal,
        "message": outcome.message,
    })
    .to_string()
}

fn take_step(
    step: Step,
    turn: &mut Turn<'_>,
    row: &RunnerRow,
    tasks: &HashMap<i64, LiveTask>,
    work: &mut Work,
) -> Result<(), StoreError> {
    let held = turn.write.task_id.and_then(|id| tasks.get(&id));
    match (step, held) {
        (Step::Offer, _) => {
            free(turn);
            turn.offer = true;
        }
        (Step::GoOn, Some(task)) if overdue(task, turn.beat) => {
            work.time_out.push(task.id);
            turn.answer = Some(Answer::Reset(task.id, ResetReason::Stop));
        }
        (Step::GoOn, _) => turn.park = true,
        (Step::Reset(reason), _) => turn.answer = Some(Answer::Reset(turn.beat.task_id, reason)),
        (Step::Started, Some(task)) => {
            work.start.push(task.id);
            turn.write.redeliveries = 0;
            turn.park = true;
        }
        (Step::Redeliver, Some(task)) => {
            let same_boot = row.held_boot.as_deref() == Some(turn.beat.registration.boot_id.as_str());
            let redeliveries = u32::try_from(row.redeliveries).unwrap_or(u32::MAX);
            match redelivery(redeliveries, same_boot) {
                // A runner that does not hear answers gets nothing, and the task is not counted down on it.
                Redelivery::Again if turn.beat.unanswered > 0 => {}
                Redelivery::Again => {
                    turn.write.redeliveries += 1;
                    work.again.insert(task.id, redeliveries + 1);
                    turn.answer = Some(Answer::GoOn(0));
                }
                Redelivery::NeverStarted => settle_held(task, end::never_started(), turn, work),
                Redelivery::Unknowable => settle_held(task, end::rebooted(), turn, work),
            }
        }
        (Step::ChildGone, Some(task)) => settle_held(task, end::child_gone(), turn, work),
        (Step::Stopped, Some(task)) => settle_held(task, end::stopped(task.terminating(), false), turn, work),
        (Step::Started | Step::Redeliver | Step::ChildGone | Step::Stopped | Step::Ended | Step::KeepLateResult, _) => {
            return Err(StoreError::Data(format!("{step:?} without a task")));
        }
    }
    Ok(())
}

/// By the database's clock it has run for longer than it may.
pub(super) fn over_time(task: &LiveTask) -> bool {
    task.timeout_ms
        .zip(task.ran_ms)
        .is_some_and(|(timeout, ran)| ran > timeout)
}

/// The back-up of the runner's own timeout: one beat later.
fn overdue(task: &LiveTask, beat: &Beat) -> bool {
    match (task.timeout_ms, task.ran_ms) {
        (Some(timeout), Some(ran)) => ran > timeout.saturating_add(beat.registration.beat_ms),
        _ => false,
    }
}

fn settle_held(task: &LiveTask, end: (Transition, Outcome), turn: &mut Turn<'_>, work: &mut Work) {
    work.ends.push(End::without_report(task.clone(), end));
    free(turn);
    turn.offer = true;
}

/// Who may get a task, and whose answer may be held back.
fn finish_turn(turn: &mut Turn<'_>, row: &RunnerRow, ahead: bool) {
    let beat = turn.beat;
    if turn.offer {
        turn.park = turn.answer.is_none() && !ahead;
        turn.offer = !ahead && !row.closed && !beat.leaving && beat.unanswered == 0;
    }
}

//! The transaction of a batch of beats: lock, decide, write, claim.

use super::batch::Outcome;
use super::decide::{Turn, Work, decide, over_time};
use super::{Beat, Done};
use crate::parked::Answer;
use crate::store::beats::{self, RunnerRow, RunnerWrite};
use crate::store::claims::{self, Again, ClaimPlan, Offer, Run};
use crate::store::finish;
use crate::store::jobs::settle;
use crate::store::output::{self, Chunk, Max, Stream};
use crate::store::{StoreError, Tx, holds, read};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use systole_shared::heartbeat::ResetReason;

fn is_believed(now_ms: i64, until_ms: Option<i64>) -> bool {
    until_ms.is_some_and(|until| now_ms <= until)
}

/// The transaction. `until_ms`: up to where the database's clock is believed.
pub(super) async fn act(
    tx: &mut Tx,
    beats: &[Arc<Beat>],
    plan: &ClaimPlan,
    newest: i64,
    mut ahead: Arc<HashSet<String>>,
    until_ms: Option<i64>,
) -> Result<Outcome, StoreError> {
    let mut newest = newest;
    if beats.iter().any(|beat| beat.max_task_id > newest) {
        // Another replica stored it a moment ago, or the database was set back.
        let now = read::newest_task_id(tx).await?;
        newest = now.id;
        if now.ahead > 0 {
            ahead = Arc::new(holds::hosts_ahead(tx).await?);
        }
    }
    let (rows, mut tasks) = beats::lock_beats(tx, beats.iter().map(|beat| beat.key()), &named_tasks(beats)).await?;
    if tasks.values().any(over_time) && !is_believed(settle::now_ms(tx).await?, until_ms) {
        // The clock has jumped: only the runner's own knows how long its children ran.
        tasks.values_mut().for_each(|task| task.ran_ms = None);
    }

    let mut outcome = Outcome::default();
    let mut work = Work::default();
    let mut turns: Vec<Result<Turn<'_>, Done>> = Vec::with_capacity(beats.len());
    for beat in beats {
        turns.push(match rows.get(&beat.key()) {
            None => Err(Done::Register),
            Some(row) => decide(beat, row, &tasks, |beat| is_ahead(beat, newest, &ahead), &mut work)?,
        });
    }

    outcome.ahead = beats
        .iter()
        .filter(|beat| beat.max_task_id > newest)
        .map(|beat| (beat.registration.host.clone(), beat.max_task_id))
        .collect();
    let started = beats::start_tasks(tx, &work.start).await?;
    outcome.started = started.iter().map(|row| row.id).collect();
    outcome.start_ms = started.iter().map(|row| row.start_ms).collect();
    beats::time_out_tasks(tx, &work.time_out).await?;
    outcome.ended = finish::end_tasks(tx, &work.ends).await?;
    for late in work.late {
        beats::keep_late_result(tx, late).await?;
    }
    if !work.proofs.is_empty() {
        settle::results_came(tx, &work.proofs, &mut outcome.ended).await?;
    }
    store_output(tx, beats, &work.recorded).await?;

    offer_tasks(tx, &mut turns, plan, &mut outcome).await?;
    repeat_run_new(tx, &mut turns, &rows, &work.again, &mut outcome).await?;
    outcome.ended.extend(std::mem::take(&mut outcome.claimed.ended));

    let writes: Vec<RunnerWrite> = turns.iter().flatten().map(|turn| turn.write.clone()).collect();
    beats::win_runners(tx, &writes).await?;

    outcome.done = turns
        .into_iter()
        .map(|turn| match turn {
            Err(done) => done,
            Ok(turn) => Done::Answered {
                answer: turn.answer.unwrap_or(Answer::GoOn(0)),
                acknowledged: turn.acknowledged,
                park: turn.park,
            },
        })
        .collect();
    Ok(outcome)
}

/// The host has held a task that this database does not know: it went back in time. Nothing is dispatched there until a
/// person has looked.
fn is_ahead(beat: &Beat, newest: i64, ahead: &HashSet<String>) -> bool {
    beat.max_task_id > newest || ahead.contains(&beat.registration.host)
}

/// What the beats name, in order and without repetition.
fn named_tasks(beats: &[Arc<Beat>]) -> Vec<i64> {
    let mut ids: Vec<i64> = Vec::new();
    for beat in beats {
        ids.extend(beat.results.iter().map(|result| result.task_id));
        ids.extend((beat.task_id != 0).then_some(beat.task_id));
    }
    ids.sort_unstable();
    ids.dedup();
    ids
}

pub(super) async fn store_output(tx: &mut Tx, beats: &[Arc<Beat>], recorded: &HashSet<i64>) -> Result<(), StoreError> {
    for result in beats.iter().flat_map(|beat| &beat.results) {
        if !recorded.contains(&result.task_id) {
            continue;
        }
        for (stream, total) in [(Stream::Stdout, result.totals[0]), (Stream::Stderr, result.totals[1])] {
            let chunks: Vec<&Chunk> = result.output.iter().filter(|chunk| chunk.stream == stream).collect();
            if total == 0 && chunks.is_empty() {
                continue;
            }
            for chunk in &chunks {
                output::append(tx, chunk, Max::Unknown, Some(total)).await?;
            }
            if chunks.is_empty() {
                let nothing = Chunk {
                    task_id: result.task_id,
                    stream,
                    start: 0,
                    age_ms: 0,
                    data: Vec::new(),
                };
                output::append(tx, &nothing, Max::Unknown, Some(total)).await?;
            }
        }
    }
    Ok(())
}

async fn offer_tasks(
    tx: &mut Tx,
    turns: &mut [Result<Turn<'_>, Done>],
    plan: &ClaimPlan,
    outcome: &mut Outcome,
) -> Result<(), StoreError> {
    if plan.is_empty() {
        return Ok(());
    }
    let offers: Vec<Offer> = turns
        .iter()
        .flatten()
        .filter(|turn| turn.offer)
        .map(|turn| Offer {
            host: turn.write.host.clone(),
            slot: turn.write.slot,
            start_no: turn.write.start_no,
            group: turn.beat.group,
        })
        .collect();
    if offers.is_empty() {
        return Ok(());
    }
    outcome.claimed = claims::claim(tx, &offers, plan).await?;
    let mut runs: HashMap<(&str, i64), &Run> = outcome
        .claimed
        .runs
        .iter()
        .map(|run| ((run.host.as_str(), run.slot), run))
        .collect();
    for turn in turns.iter_mut().flatten() {
        let Some(run) = runs.remove(&(turn.write.host.as_str(), turn.write.slot)) else {
            continue;
        };
        turn.write.task_id = Some(run.task_id);
        turn.write.held_boot = Some(turn.beat.registration.boot_id.clone());
        turn.write.redeliveries = 0;
        turn.answer = Some(Answer::Run(Box::new(run.clone()), 0));
        turn.park = false;
    }
    Ok(())
}

async fn repeat_run_new(
    tx: &mut Tx,
    turns: &mut [Result<Turn<'_>, Done>],
    rows: &HashMap<(String, i64), RunnerRow>,
    again: &HashMap<i64, u32>,
    outcome: &mut Outcome,
) -> Result<(), StoreError> {
    if again.is_empty() {
        return Ok(());
    }
    let again_to: Vec<Again> = rows
        .values()
        .filter_map(|row| {
            let id = row.task_id.filter(|id| again.contains_key(id))?;
            Some(Again {
                id,
                start_no: row.start_no,
            })
        })
        .collect();
    let (runs, ended) = claims::run_again(tx, &again_to).await?;
    outcome.ended.extend(ended);
    let runs: HashMap<i64, Run> = runs.into_iter().map(|run| (run.task_id, run)).collect();
    let run_new = |id: i64| {
        let run = runs.get(&id)?;
        Some(Answer::Run(Box::new(run.clone()), again.get(&id).copied().unwrap_or(0)))
    };
    for turn in turns {
        match turn {
            Ok(turn) => {
                if let Some(id) = turn.write.task_id.filter(|id| again.contains_key(id)) {
                    turn.answer = run_new(id).or(turn.answer.take());
                }
            }
            Err(Done::Answered { answer, .. }) => {
                if let Answer::Reset(id, ResetReason::Ack) = answer {
                    *answer = run_new(*id).unwrap_or(Answer::GoOn(0));
                }
            }
            Err(Done::Register) => {}
        }
    }
    Ok(())
}

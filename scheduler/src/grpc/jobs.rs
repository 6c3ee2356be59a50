//! The service of jobs.

use super::{actor, backfills, check_batch, check_reason, invalid, item_error, page_limit, status};
use crate::context::{Context, FleetView};
use crate::flow::Refusal;
use crate::flow::jobs::apply::{self, Applied, Definition, Manner, Outcome};
use crate::flow::jobs::view::JobView;
use crate::flow::jobs::{backfill, chains, delete, kept, pause, start, view};
use crate::store::jobs::ledger::{OccurrenceFilter, OccurrenceRow};
use crate::store::jobs::triggers::TriggerRow;
use crate::store::jobs::{JobRow, ListFilter, compiled};
use std::collections::HashSet;
use std::sync::Arc;
use systole_proto::convert::time_to_wire;
use systole_proto::v1;
use systole_proto::v1::job_service_server::JobService;
use systole_shared::error::{Code, Invalid};
use systole_shared::limits::{GET_IDS_MAX, KEY_CHARS_MAX};
use systole_shared::policy::why::{self, Wanted};
use systole_shared::task::spec::check_text;
use tonic::{Request, Response, Status};

/// Items of each kind of one Apply.
const APPLY_MAX: usize = 1_000;
/// A path, for people.
const SOURCE_BYTES_MAX: usize = 1_000;

pub struct Jobs {
    pub ctx: Arc<Context>,
}

fn refused(refusal: Refusal) -> Status {
    status(&refusal)
}

fn applied_to_wire(applied: Applied) -> v1::Applied {
    match applied {
        Applied::Created => v1::Applied::Created,
        Applied::Changed => v1::Applied::Changed,
        Applied::Unchanged => v1::Applied::Unchanged,
        Applied::Overridden => v1::Applied::Overridden,
        Applied::Orphaned => v1::Applied::Orphaned,
        Applied::Deleted => v1::Applied::Deleted,
        Applied::Outdated => v1::Applied::Outdated,
    }
}

fn coming_to_wire(coming: Vec<apply::Coming>) -> Vec<v1::Coming> {
    coming
        .into_iter()
        .map(|coming| v1::Coming {
            job: coming.job,
            trigger: coming.trigger,
            scheduled_at_ms: time_to_wire(coming.scheduled_ms),
        })
        .collect()
}

/// What the definition calls itself, for the results of those that are wrong.
fn name_of(json: &str) -> String {
    let value: serde_json::Value = serde_json::from_str(json).unwrap_or_default();
    let name = value.get("name").and_then(serde_json::Value::as_str);
    name.unwrap_or_default().chars().take(200).collect()
}

fn result_to_wire(kind: &str, json: &str, result: Result<Outcome, Refusal>) -> v1::ApplyResult {
    match result {
        Ok(outcome) => v1::ApplyResult {
            kind: kind.into(),
            name: outcome.name,
            applied: applied_to_wire(outcome.applied).into(),
            error: None,
            version: outcome.version,
            before_json: outcome.before,
            after_json: outcome.after,
            warnings: outcome.warnings,
            next_before: coming_to_wire(outcome.next_before),
            next: coming_to_wire(outcome.next),
        },
        Err(refusal) => v1::ApplyResult {
            kind: kind.into(),
            name: name_of(json),
            error: Some(item_error(&refusal)),
            ..v1::ApplyResult::default()
        },
    }
}

fn pause_to_wire(
    paused: bool,
    until: Option<i64>,
    by: Option<&String>,
    reason: Option<&String>,
    at: Option<i64>,
) -> Option<v1::Pause> {
    paused.then(|| v1::Pause {
        paused,
        until_ms: until.map_or(0, time_to_wire),
        by: by.cloned().unwrap_or_default(),
        reason: reason.cloned().unwrap_or_default(),
        since_ms: at.map_or(0, time_to_wire),
    })
}

fn trigger_to_wire(row: &TriggerRow) -> v1::TriggerStatus {
    v1::TriggerStatus {
        name: row.name.clone(),
        kind: row.kind.clone(),
        state: row.state().in_full(),
        error: row.error.clone(),
        next_at_ms: row.next_ms.map_or(0, time_to_wire),
        fires: u64::try_from(row.fires).unwrap_or(0),
        pause: pause_to_wire(
            row.paused,
            row.paused_until_ms,
            row.paused_by.as_ref(),
            row.pause_reason.as_ref(),
            row.paused_at_ms,
        ),
    }
}

/// Why no live runner can take runs of the job.
fn unserved(row: &JobRow, fleet: &FleetView) -> String {
    compiled::job(row).map_or_else(
        |_| String::new(),
        |job| {
            let wanted = Wanted {
                queue: &job.task.queue,
                require: &job.task.require,
                target: job.task.target.as_ref(),
            };
            why::unserved(&wanted, &fleet.runners)
        },
    )
}

/// `fleet` `None`: nobody asks whether it is served.
fn job_to_wire(view: JobView, fleet: Option<&FleetView>) -> v1::Job {
    let row = view.row;
    v1::Job {
        version: row.version,
        unserved: fleet.map(|fleet| unserved(&row, fleet)).unwrap_or_default(),
        pause: pause_to_wire(
            row.paused,
            row.paused_until_ms,
            row.paused_by.as_ref(),
            row.pause_reason.as_ref(),
            row.paused_at_ms,
        ),
        triggers: view.triggers.iter().map(trigger_to_wire).collect(),
        running: view.slots.iter().map(|slot| slot.root_id).collect(),
        unproven: view
            .slots
            .iter()
            .chain(&view.members)
            .filter_map(|slot| {
                Some(v1::Unproven {
                    task_id: slot.lost_task_id?,
                    host: slot.lost_host.clone().unwrap_or_default(),
                    slot: slot.lost_slot.and_then(|slot| u32::try_from(slot).ok()).unwrap_or(0),
                    since_ms: slot.lost_at_ms.map_or(0, time_to_wire),
                })
            })
            .collect(),
        waiting: view.waiting,
        frozen: super::cluster::freezes_to_wire(&view.freezes),
        created_at_ms: time_to_wire(row.created_at_ms),
        changed_at_ms: time_to_wire(row.changed_at_ms),
        name: row.name,
        json: row.definition,
        origin: row.origin,
        fingerprint: row.fingerprint,
        source: row.source,
        changed_by: row.changed_by,
        code_json: row.code_definition.unwrap_or_default(),
    }
}

fn occurrence_to_wire(row: OccurrenceRow) -> v1::Occurrence {
    v1::Occurrence {
        trigger: row.trigger_name,
        scheduled_at_ms: time_to_wire(row.scheduled_ms),
        until_ms: time_to_wire(row.until_ms),
        fires: u64::try_from(row.fires).unwrap_or(0),
        verdict: row.verdict,
        reason: row.reason,
        into_ms: row.into_ms.map_or(0, time_to_wire),
        task_id: row.task_id.unwrap_or(0),
        blocked_by: row.blocked_by.unwrap_or(0),
        at_ms: time_to_wire(row.at_ms),
        parent_root: row.parent_root,
        backfill_id: row.backfill_id.unwrap_or(0),
        was: row.was,
    }
}

fn bound(ms: u64) -> Option<i64> {
    (ms != 0).then(|| i64::try_from(ms).unwrap_or(i64::MAX))
}

fn bad_page() -> Status {
    status(&Refusal::new(
        Code::InvalidPage,
        "page_token: is not one of ours; leave it out to begin anew",
    ))
}

fn definition(item: &v1::Definition) -> Result<Definition, Refusal> {
    if item.source.len() > SOURCE_BYTES_MAX || item.source.contains('\0') {
        return Err(Invalid::new("source", format!("has more than {SOURCE_BYTES_MAX} bytes, or a NUL")).into());
    }
    Ok(Definition {
        json: item.json.clone(),
        expected_version: item.expected_version,
        source: item.source.clone(),
    })
}

impl Jobs {
    async fn apply_all(&self, request: &v1::ApplyRequest, manner: &Manner) -> Result<Vec<v1::ApplyResult>, Status> {
        let mut results = Vec::new();
        for item in &request.calendars {
            let result = match definition(item) {
                Ok(definition) => kept::apply_calendar(&self.ctx, &definition, &item.ics, manner).await,
                Err(refusal) => Err(refusal),
            };
            results.push(result_to_wire("calendar", &item.json, fatal(result)?));
        }
        for item in &request.groups {
            let result = match definition(item) {
                Ok(definition) => kept::apply_group(&self.ctx, &definition, manner).await,
                Err(refusal) => Err(refusal),
            };
            results.push(result_to_wire("concurrency_group", &item.json, fatal(result)?));
        }
        for item in &request.jobs {
            let result = match definition(item) {
                Ok(definition) => apply::apply_job(&self.ctx, &definition, manner).await,
                Err(refusal) => Err(refusal),
            };
            results.push(result_to_wire("job", &item.json, fatal(result)?));
        }
        Ok(results)
    }

    /// Jobs that come from files which do not hold them any more.
    async fn orphans(
        &self,
        request: &v1::ApplyRequest,
        manner: &Manner,
        results: &mut Vec<v1::ApplyResult>,
    ) -> Result<(), Status> {
        let kept: HashSet<String> = request.jobs.iter().map(|item| name_of(&item.json)).collect();
        for origin in ["code", "overridden"] {
            let mut after = String::new();
            loop {
                let filter = ListFilter {
                    origin: origin.into(),
                    ..ListFilter::default()
                };
                let page = view::list(&self.ctx, filter, after.clone(), 1_000)
                    .await
                    .map_err(refused)?;
                let Some(last) = page.last() else { break };
                after.clone_from(&last.row.name);
                for view in page.into_iter().filter(|view| !kept.contains(&view.row.name)) {
                    let name = view.row.name;
                    let applied = if request.prune {
                        Applied::Deleted
                    } else {
                        Applied::Orphaned
                    };
                    if request.prune && !manner.dry_run {
                        delete::delete(&self.ctx, &name, &manner.by, &manner.reason)
                            .await
                            .map_err(refused)?;
                    }
                    results.push(v1::ApplyResult {
                        kind: "job".into(),
                        name,
                        applied: applied_to_wire(applied).into(),
                        version: view.row.version,
                        before_json: view.row.definition,
                        ..v1::ApplyResult::default()
                    });
                }
            }
        }
        Ok(())
    }
}

/// A refusal of one item is its result; that the database cannot be reached is the call's.
fn fatal(result: Result<Outcome, Refusal>) -> Result<Result<Outcome, Refusal>, Status> {
    match result {
        Err(refusal) if matches!(refusal.code.kind(), systole_shared::error::Kind::Unavailable) => {
            Err(status(&refusal))
        }
        result => Ok(result),
    }
}

#[tonic::async_trait]
impl JobService for Jobs {
    async fn apply(&self, request: Request<v1::ApplyRequest>) -> Result<Response<v1::ApplyResponse>, Status> {
        let by = actor(&request)?.name;
        let request = request.into_inner();
        check_reason(&request.reason)?;
        for (count, field) in [
            (request.jobs.len(), "jobs"),
            (request.calendars.len(), "calendars"),
            (request.groups.len(), "groups"),
        ] {
            if count > APPLY_MAX {
                check_batch(count, APPLY_MAX, field)?;
            }
        }
        if request.prune && !request.complete {
            return Err(invalid(Invalid::new(
                "prune",
                "needs complete: what is missing in a part of the files is not gone",
            )));
        }
        let manner = Manner {
            dry_run: request.dry_run,
            at_start: request.at_start,
            restore: request.restore,
            by,
            reason: request.reason.clone(),
        };
        let mut results = self.apply_all(&request, &manner).await?;
        // With an item that is wrong, it is not known what belongs to the files.
        if request.complete && results.iter().all(|result| result.error.is_none()) {
            self.orphans(&request, &manner, &mut results).await?;
        }
        Ok(Response::new(v1::ApplyResponse { results }))
    }

    async fn get(&self, request: Request<v1::GetJobsRequest>) -> Result<Response<v1::GetJobsResponse>, Status> {
        let names = request.into_inner().names;
        check_batch(names.len(), GET_IDS_MAX, "names")?;
        let fleet = self.ctx.fleet.view(&self.ctx.db, self.ctx.lost_after_ms()).await;
        let fleet = fleet.map_err(|error| status(&Refusal::from(error)))?;
        let results = view::get(&self.ctx, names)
            .await
            .map_err(refused)?
            .into_iter()
            .map(|result| match result {
                Ok(view) => v1::GetJobResult {
                    job: Some(job_to_wire(view, Some(&fleet))),
                    error: None,
                },
                Err(refusal) => v1::GetJobResult {
                    job: None,
                    error: Some(item_error(&refusal)),
                },
            })
            .collect();
        Ok(Response::new(v1::GetJobsResponse { results }))
    }

    async fn list(&self, request: Request<v1::ListJobsRequest>) -> Result<Response<v1::ListJobsResponse>, Status> {
        let request = request.into_inner();
        let limit = page_limit(request.limit)?;
        let filter = ListFilter {
            prefix: request.name_prefix,
            origin: request.origin,
            paused: request.paused,
            in_trouble: request.in_trouble,
        };
        let page = view::list(
            &self.ctx,
            filter,
            request.page_token,
            i64::try_from(limit).unwrap_or(i64::MAX),
        )
        .await
        .map_err(refused)?;
        let next_page_token = match page.last() {
            Some(last) if page.len() == limit => last.row.name.clone(),
            _ => String::new(),
        };
        Ok(Response::new(v1::ListJobsResponse {
            jobs: page.into_iter().map(|view| job_to_wire(view, None)).collect(),
            next_page_token,
        }))
    }

    async fn versions(
        &self,
        request: Request<v1::JobVersionsRequest>,
    ) -> Result<Response<v1::JobVersionsResponse>, Status> {
        let request = request.into_inner();
        let limit = i64::try_from(page_limit(request.limit)?).unwrap_or(i64::MAX);
        let versions = view::versions(&self.ctx, &request.name, limit)
            .await
            .map_err(refused)?
            .into_iter()
            .map(|row| v1::JobVersion {
                version: row.version,
                json: row.definition,
                fingerprint: row.fingerprint,
                origin: row.origin,
                source: row.source,
                changed_at_ms: time_to_wire(row.changed_at_ms),
                changed_by: row.changed_by,
                reason: row.reason,
            })
            .collect();
        Ok(Response::new(v1::JobVersionsResponse { versions }))
    }

    async fn delete(
        &self,
        request: Request<v1::DeleteJobsRequest>,
    ) -> Result<Response<v1::DeleteJobsResponse>, Status> {
        let by = actor(&request)?.name;
        let request = request.into_inner();
        check_reason(&request.reason)?;
        check_batch(request.names.len(), GET_IDS_MAX, "names")?;
        let mut results = Vec::with_capacity(request.names.len());
        for name in &request.names {
            results.push(match delete::delete(&self.ctx, name, &by, &request.reason).await {
                Ok(cancelled) => v1::DeleteJobResult { error: None, cancelled },
                Err(refusal) => v1::DeleteJobResult {
                    error: Some(item_error(&refusal)),
                    cancelled: Vec::new(),
                },
            });
        }
        Ok(Response::new(v1::DeleteJobsResponse { results }))
    }

    async fn set_paused(
        &self,
        request: Request<v1::SetPausedRequest>,
    ) -> Result<Response<v1::SetPausedResponse>, Status> {
        let by = actor(&request)?.name;
        let request = request.into_inner();
        check_reason(&request.reason)?;
        check_batch(request.names.len(), GET_IDS_MAX, "names")?;
        let ask = pause::Ask {
            paused: request.paused,
            until_ms: bound(request.until_ms),
            by,
            reason: request.reason,
        };
        let mut results = Vec::with_capacity(request.names.len());
        for name in &request.names {
            results.push(match pause::set_paused(&self.ctx, name, &ask).await {
                Ok(done) => v1::SetPausedResult {
                    error: None,
                    already: done.already,
                    skipped: done.skipped,
                },
                Err(refusal) => v1::SetPausedResult {
                    error: Some(item_error(&refusal)),
                    ..v1::SetPausedResult::default()
                },
            });
        }
        Ok(Response::new(v1::SetPausedResponse { results }))
    }

    async fn trigger(
        &self,
        request: Request<v1::TriggerJobRequest>,
    ) -> Result<Response<v1::TriggerJobResponse>, Status> {
        let by = actor(&request)?.name;
        let request = request.into_inner();
        check_reason(&request.reason)?;
        check_text(&request.key, "key", KEY_CHARS_MAX).map_err(invalid)?;
        let started = start::start(
            &self.ctx,
            start::Ask {
                job: request.job,
                trigger: (!request.trigger.is_empty()).then_some(request.trigger),
                data: request.data,
                scheduled_ms: bound(request.scheduled_at_ms),
                key: request.key,
                by,
                reason: request.reason,
            },
        )
        .await
        .map_err(refused)?;
        Ok(Response::new(v1::TriggerJobResponse {
            task_id: started.task_id,
            existing: started.existing,
            waiting: started.waiting,
        }))
    }

    async fn occurrences(
        &self,
        request: Request<v1::OccurrencesRequest>,
    ) -> Result<Response<v1::OccurrencesResponse>, Status> {
        let request = request.into_inner();
        let limit = page_limit(request.limit)?;
        let before = match request.page_token.as_str() {
            "" => None,
            token => {
                let (at, id) = token.split_once('/').ok_or_else(bad_page)?;
                let number = |text: &str| text.parse::<i64>().map_err(|_| bad_page());
                Some((number(at)?, number(id)?))
            }
        };
        if !matches!(request.verdict.as_str(), "" | "fired" | "coalesced" | "skipped") {
            return Err(invalid(Invalid::new(
                "verdict",
                "is none; write fired, coalesced or skipped",
            )));
        }
        let filter = OccurrenceFilter {
            job_id: 0,
            trigger: request.trigger,
            since_ms: bound(request.since_ms),
            until_ms: bound(request.until_ms),
            verdict: request.verdict,
            before,
        };
        let rows = view::occurrences(
            &self.ctx,
            &request.job,
            filter,
            i64::try_from(limit).unwrap_or(i64::MAX),
        )
        .await
        .map_err(refused)?;
        let next_page_token = match rows.last() {
            Some(last) if rows.len() == limit => format!("{}/{}", last.scheduled_ms, last.id),
            _ => String::new(),
        };
        Ok(Response::new(v1::OccurrencesResponse {
            occurrences: rows.into_iter().map(occurrence_to_wire).collect(),
            next_page_token,
        }))
    }

    async fn next(&self, request: Request<v1::NextRequest>) -> Result<Response<v1::NextResponse>, Status> {
        let request = request.into_inner();
        let limit = page_limit(request.limit)?;
        let job = (!request.job.is_empty()).then_some(request.job);
        let (coming, now) = view::next(&self.ctx, job, bound(request.until_ms), limit)
            .await
            .map_err(refused)?;
        Ok(Response::new(v1::NextResponse {
            coming: coming_to_wire(coming),
            now_ms: time_to_wire(now),
        }))
    }

    async fn list_calendars(
        &self,
        _: Request<v1::ListCalendarsRequest>,
    ) -> Result<Response<v1::ListCalendarsResponse>, Status> {
        let calendars = view::calendars(&self.ctx)
            .await
            .map_err(refused)?
            .into_iter()
            .map(|row| v1::Calendar {
                name: row.name,
                version: row.version,
                json: row.definition,
                changed_at_ms: time_to_wire(row.changed_at_ms),
                changed_by: row.changed_by,
            })
            .collect();
        Ok(Response::new(v1::ListCalendarsResponse { calendars }))
    }

    async fn list_groups(&self, _: Request<v1::ListGroupsRequest>) -> Result<Response<v1::ListGroupsResponse>, Status> {
        let groups = view::groups(&self.ctx)
            .await
            .map_err(refused)?
            .into_iter()
            .map(|(row, running)| v1::ConcurrencyGroup {
                name: row.name,
                limit: u32::try_from(row.places).unwrap_or(u32::MAX),
                running,
                changed_at_ms: time_to_wire(row.changed_at_ms),
                changed_by: row.changed_by,
            })
            .collect();
        Ok(Response::new(v1::ListGroupsResponse { groups }))
    }

    async fn backfill(&self, request: Request<v1::BackfillRequest>) -> Result<Response<v1::BackfillResponse>, Status> {
        let by = actor(&request)?.name;
        let request = request.into_inner();
        check_reason(&request.reason)?;
        check_text(&request.key, "key", KEY_CHARS_MAX).map_err(invalid)?;
        let ask = backfill::Ask {
            trigger: (!request.trigger.is_empty()).then_some(request.trigger),
            from_ms: i64::try_from(request.from_ms).unwrap_or(i64::MAX),
            to_ms: i64::try_from(request.to_ms).unwrap_or(i64::MAX),
            max_concurrent: (request.max_concurrent != 0).then_some(request.max_concurrent),
            dry_run: request.dry_run,
            key: request.key,
            by,
            reason: request.reason,
            job: request.job,
        };
        let job = ask.job.clone();
        let made = backfill::backfill(&self.ctx, ask).await.map_err(refused)?;
        Ok(Response::new(backfills::made_to_wire(&job, made)))
    }

    async fn list_backfills(
        &self,
        request: Request<v1::ListBackfillsRequest>,
    ) -> Result<Response<v1::ListBackfillsResponse>, Status> {
        let request = request.into_inner();
        let limit = i64::try_from(page_limit(request.limit)?).unwrap_or(i64::MAX);
        let rows = backfill::list(&self.ctx, request.job, limit).await.map_err(refused)?;
        Ok(Response::new(v1::ListBackfillsResponse {
            backfills: rows.into_iter().map(backfills::row_to_wire).collect(),
        }))
    }

    async fn cancel_backfill(
        &self,
        request: Request<v1::CancelBackfillRequest>,
    ) -> Result<Response<v1::CancelBackfillResponse>, Status> {
        let by = actor(&request)?.name;
        let request = request.into_inner();
        check_reason(&request.reason)?;
        let (row, already) = backfill::cancel(&self.ctx, request.id, by, request.reason)
            .await
            .map_err(refused)?;
        Ok(Response::new(v1::CancelBackfillResponse {
            backfill: Some(backfills::row_to_wire(row)),
            already,
        }))
    }

    async fn declare_dead(
        &self,
        request: Request<v1::DeclareDeadRequest>,
    ) -> Result<Response<v1::DeclareDeadResponse>, Status> {
        let by = actor(&request)?.name;
        let request = request.into_inner();
        check_reason(&request.reason)?;
        if request.host.is_empty() {
            return Err(invalid(Invalid::new("host", "is missing; name the host that is dead")));
        }
        let task_ids = chains::declare_dead(&self.ctx, &request.host, &by, &request.reason)
            .await
            .map_err(|error| status(&Refusal::from(error)))?;
        Ok(Response::new(v1::DeclareDeadResponse { task_ids }))
    }
}

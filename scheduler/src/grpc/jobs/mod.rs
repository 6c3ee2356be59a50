//! The service of jobs.

mod wire;

use super::{actor, backfills, check_batch, check_reason, invalid, item_error, page_limit, status};
use crate::context::Context;
use crate::flow::Refusal;
use crate::flow::jobs::apply::Manner;
use crate::flow::jobs::{backfill, chains, delete, kept, next, pause, reset, restore, set, start, view};
use crate::store::StoreError;
use crate::store::jobs::ListFilter;
use crate::store::jobs::ledger::OccurrenceFilter;
use crate::store::jobs::runs::RunQuery;
use std::sync::Arc;
use systole_proto::convert::{state_from_wire, time_to_wire};
use systole_proto::v1;
use systole_proto::v1::job_service_server::JobService;
use systole_shared::error::{Code, Invalid};
use systole_shared::id::Target;
use systole_shared::limits::{GET_IDS_MAX, KEY_CHARS_MAX, REASON_CHARS_MAX};
use systole_shared::task::TaskState;
use systole_shared::task::spec::check_text;
use tonic::{Request, Response, Status};

/// Items of each kind of one Apply.
const APPLY_MAX: usize = 1_000;
/// Calendars with the texts of their iCalendar files in one answer.
const CALENDARS_IN_FULL_MAX: usize = 100;
/// Runs that are passed over; more is a question for a time range.
const RUNS_SKIP_MAX: u32 = 1_000_000;

pub struct Jobs {
    pub ctx: Arc<Context>,
}

fn refused(refusal: Refusal) -> Status {
    status(&refusal)
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

/// One result for each name, in order.
fn result_of<T, W>(result: Result<T, Refusal>, wire: impl FnOnce(Option<v1::ItemError>, Option<T>) -> W) -> W {
    match result {
        Ok(done) => wire(None, Some(done)),
        Err(refusal) => wire(Some(item_error(&refusal)), None),
    }
}

/// What is to happen to jobs, triggers or whatever else has these names, and why.
fn check_names(names: &[String], reason: &str) -> Result<(), Status> {
    check_reason(reason)?;
    check_batch(names.len(), GET_IDS_MAX, "names")
}

/// A version that is expected of one name.
fn check_one(names: usize, version: i64, field: &str) -> Result<(), Status> {
    if version != 0 && names != 1 {
        return Err(invalid(Invalid::new(field, "is that of one job; give one name")));
    }
    Ok(())
}

fn ask(request: v1::TriggerJobRequest, by: &str) -> Result<start::Ask, Invalid> {
    check_text(&request.reason, "reason", REASON_CHARS_MAX)?;
    check_text(&request.key, "key", KEY_CHARS_MAX)?;
    Ok(start::Ask {
        job: request.job,
        trigger: (!request.trigger.is_empty()).then_some(request.trigger),
        data: request.data,
        scheduled_ms: bound(request.scheduled_at_ms),
        key: request.key,
        by: by.to_owned(),
        reason: request.reason,
    })
}

impl Jobs {
    async fn delete_named(
        &self,
        request: Request<v1::DeleteNamedRequest>,
        what: kept::What,
    ) -> Result<Response<v1::DeleteNamedResponse>, Status> {
        let by = actor(&request)?.name;
        let request = request.into_inner();
        check_names(&request.names, &request.reason)?;
        let mut results = Vec::with_capacity(request.names.len());
        for name in &request.names {
            let done = kept::delete(&self.ctx, what, name, &by, &request.reason).await;
            results.push(result_of(done, |error, _| v1::DeleteNamedResult { error }));
        }
        Ok(Response::new(v1::DeleteNamedResponse { results }))
    }
}

fn runs_query(request: v1::RunsRequest) -> Result<RunQuery, Status> {
    if request.skip > RUNS_SKIP_MAX {
        return Err(status(&Refusal::new(
            Code::InvalidPage,
            format!(
                "skip: {} is more than {RUNS_SKIP_MAX}; narrow the time range",
                request.skip
            ),
        )));
    }
    let limit = i64::try_from(page_limit(request.limit)?).unwrap_or(i64::MAX);
    let states: Result<Vec<TaskState>, Status> = request
        .states
        .iter()
        .map(|&state| {
            state_from_wire(state).ok_or_else(|| invalid(Invalid::new("states", "has one that is none; leave it out")))
        })
        .collect();
    let runner = match request.runner.as_str() {
        "" => None,
        text => Some(Target::parse(text, "runner").map_err(invalid)?),
    };
    Ok(RunQuery {
        job: request.job,
        states: states?,
        from_ms: bound(request.from_ms),
        to_ms: bound(request.to_ms),
        trigger: request.trigger,
        runner,
        failed: request.failed,
        skip: i64::from(request.skip),
        limit,
    })
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
            ..Manner::default()
        };
        let items = set::apply(&self.ctx, &request.into(), &manner).await.map_err(refused)?;
        Ok(Response::new(v1::ApplyResponse {
            results: items.into_iter().map(Into::into).collect(),
        }))
    }

    async fn get(&self, request: Request<v1::GetJobsRequest>) -> Result<Response<v1::GetJobsResponse>, Status> {
        let names = request.into_inner().names;
        check_batch(names.len(), GET_IDS_MAX, "names")?;
        let results = view::get(&self.ctx, names)
            .await
            .map_err(refused)?
            .into_iter()
            .map(|result| match result {
                Ok(view) => v1::GetJobResult {
                    job: Some(view.into()),
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
            jobs: page.into_iter().map(Into::into).collect(),
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
            .map(Into::into)
            .collect();
        Ok(Response::new(v1::JobVersionsResponse { versions }))
    }

    async fn delete(
        &self,
        request: Request<v1::DeleteJobsRequest>,
    ) -> Result<Response<v1::DeleteJobsResponse>, Status> {
        let by = actor(&request)?.name;
        let request = request.into_inner();
        check_names(&request.names, &request.reason)?;
        check_one(request.names.len(), request.expected_version, "expected_version")?;
        let mut results = Vec::with_capacity(request.names.len());
        for name in &request.names {
            let done = delete::delete(&self.ctx, name, request.expected_version, &by, &request.reason).await;
            results.push(result_of(done, |error, cancelled| v1::DeleteJobResult {
                error,
                cancelled: cancelled.unwrap_or_default(),
            }));
        }
        Ok(Response::new(v1::DeleteJobsResponse { results }))
    }

    async fn set_paused(
        &self,
        request: Request<v1::SetPausedRequest>,
    ) -> Result<Response<v1::SetPausedResponse>, Status> {
        let by = actor(&request)?.name;
        let request = request.into_inner();
        check_names(&request.names, &request.reason)?;
        let ask = pause::Ask {
            paused: request.paused,
            until_ms: bound(request.until_ms),
            by,
            reason: request.reason,
        };
        let mut results = Vec::with_capacity(request.names.len());
        for name in &request.names {
            let done = pause::set_paused(&self.ctx, name, &ask).await;
            results.push(result_of(done, |error, done| {
                let done = done.unwrap_or_default();
                v1::SetPausedResult {
                    error,
                    already: done.already,
                    skipped: done.skipped,
                }
            }));
        }
        Ok(Response::new(v1::SetPausedResponse { results }))
    }

    async fn trigger(
        &self,
        request: Request<v1::TriggerJobRequest>,
    ) -> Result<Response<v1::TriggerJobResponse>, Status> {
        let by = actor(&request)?.name;
        let request = request.into_inner();
        let ask = ask(request, &by).map_err(invalid)?;
        let started = start::start(&self.ctx, ask).await.map_err(refused)?;
        Ok(Response::new(started.into()))
    }

    async fn enqueue(&self, request: Request<v1::EnqueueRequest>) -> Result<Response<v1::EnqueueResponse>, Status> {
        let by = actor(&request)?.name;
        let items = request.into_inner().items;
        check_batch(items.len(), GET_IDS_MAX, "items")?;
        let mut results = Vec::with_capacity(items.len());
        for item in items {
            let done = match ask(item, &by) {
                Ok(ask) => start::start(&self.ctx, ask).await,
                Err(invalid) => Err(invalid.into()),
            };
            results.push(result_of(done, |error, started| v1::EnqueueResult {
                error,
                run: started.map(Into::into),
            }));
        }
        Ok(Response::new(v1::EnqueueResponse { results }))
    }

    async fn restore(&self, request: Request<v1::RestoreRequest>) -> Result<Response<v1::RestoreResponse>, Status> {
        let by = actor(&request)?.name;
        let request = request.into_inner();
        check_names(&request.names, &request.reason)?;
        check_one(request.names.len(), request.version, "version")?;
        check_one(request.names.len(), request.expected_version, "expected_version")?;
        let ask = restore::Ask {
            version: request.version,
            expected_version: request.expected_version,
            dry_run: request.dry_run,
            by,
            reason: request.reason,
        };
        let mut results = Vec::with_capacity(request.names.len());
        for name in request.names {
            let result = restore::restore(&self.ctx, &name, &ask).await;
            results.push(
                set::Item {
                    kind: "job",
                    name,
                    result,
                }
                .into(),
            );
        }
        Ok(Response::new(v1::RestoreResponse { results }))
    }

    async fn reset_triggers(
        &self,
        request: Request<v1::ResetTriggersRequest>,
    ) -> Result<Response<v1::ResetTriggersResponse>, Status> {
        let by = actor(&request)?.name;
        let request = request.into_inner();
        check_names(&request.names, &request.reason)?;
        let mut results = Vec::with_capacity(request.names.len());
        for name in &request.names {
            let done = reset::reset(&self.ctx, name, &by, &request.reason).await;
            results.push(result_of(done, |error, done| v1::ResetTriggersResult {
                error,
                already: done == Some(0),
            }));
        }
        Ok(Response::new(v1::ResetTriggersResponse { results }))
    }

    async fn runs(&self, request: Request<v1::RunsRequest>) -> Result<Response<v1::RunsResponse>, Status> {
        let query = runs_query(request.into_inner())?;
        let rows = view::runs(&self.ctx, query).await.map_err(refused)?;
        let runs: Result<Vec<v1::Run>, StoreError> = rows.into_iter().map(TryInto::try_into).collect();
        Ok(Response::new(v1::RunsResponse {
            runs: runs.map_err(|error| refused(error.into()))?,
        }))
    }

    async fn count_runs(&self, request: Request<v1::RunsRequest>) -> Result<Response<v1::CountRunsResponse>, Status> {
        let mut request = request.into_inner();
        (request.skip, request.limit) = (0, 0);
        let count = view::count_runs(&self.ctx, runs_query(request)?)
            .await
            .map_err(refused)?;
        Ok(Response::new(v1::CountRunsResponse { count }))
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
            occurrences: rows.into_iter().map(Into::into).collect(),
            next_page_token,
        }))
    }

    async fn next(&self, request: Request<v1::NextRequest>) -> Result<Response<v1::NextResponse>, Status> {
        let request = request.into_inner();
        let limit = page_limit(request.limit)?;
        let job = (!request.job.is_empty()).then_some(request.job);
        let host = (!request.runner.is_empty()).then_some(request.runner);
        let (coming, now) = next::next(&self.ctx, job, host, bound(request.until_ms), limit)
            .await
            .map_err(refused)?;
        Ok(Response::new(v1::NextResponse {
            coming: coming.into_iter().map(Into::into).collect(),
            now_ms: time_to_wire(now),
        }))
    }

    async fn list_calendars(
        &self,
        request: Request<v1::ListCalendarsRequest>,
    ) -> Result<Response<v1::ListCalendarsResponse>, Status> {
        let names = request.into_inner().names;
        if !names.is_empty() {
            check_batch(names.len(), CALENDARS_IN_FULL_MAX, "names")?;
        }
        let calendars = kept::calendars(&self.ctx, names).await.map_err(refused)?;
        Ok(Response::new(v1::ListCalendarsResponse {
            calendars: calendars.into_iter().map(Into::into).collect(),
        }))
    }

    async fn list_groups(&self, _: Request<v1::ListGroupsRequest>) -> Result<Response<v1::ListGroupsResponse>, Status> {
        let groups = kept::groups(&self.ctx).await.map_err(refused)?;
        Ok(Response::new(v1::ListGroupsResponse {
            groups: groups.into_iter().map(Into::into).collect(),
        }))
    }

    async fn delete_calendars(
        &self,
        request: Request<v1::DeleteNamedRequest>,
    ) -> Result<Response<v1::DeleteNamedResponse>, Status> {
        self.delete_named(request, kept::What::Calendar).await
    }

    async fn delete_groups(
        &self,
        request: Request<v1::DeleteNamedRequest>,
    ) -> Result<Response<v1::DeleteNamedResponse>, Status> {
        self.delete_named(request, kept::What::Group).await
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

//! The administration of runners.

use super::{actor, check_batch, check_reason, invalid, item_error, status, until};
use crate::context::Context;
use crate::flow::Refusal;
use crate::flow::fleet;
use crate::flow::forget::{self, ForgetOrder};
use crate::store::cordon::{CordonOrder, Cordoned, Until};
use crate::store::holds::AheadRow;
use crate::store::read::RunnerRow;
use std::collections::HashMap;
use std::sync::Arc;
use systole_proto::convert::{labels_to_wire, time_to_wire};
use systole_proto::v1;
use systole_proto::v1::runner_admin_server::RunnerAdmin;
use systole_shared::error::{Code, Invalid};
use systole_shared::id::Target;
use systole_shared::limits::PAGE_MAX;
use systole_shared::policy::restore;
use systole_shared::time::format_utc;
use tonic::{Request, Response, Status};

pub struct Admin {
    pub ctx: Arc<Context>,
}

#[tonic::async_trait]
impl RunnerAdmin for Admin {
    async fn list(
        &self,
        request: Request<v1::ListRunnersRequest>,
    ) -> Result<Response<v1::ListRunnersResponse>, Status> {
        let request = request.into_inner();
        let limit = match request.limit {
            0 => PAGE_MAX,
            limit if usize::try_from(limit).is_ok_and(|limit| limit <= PAGE_MAX) => {
                usize::try_from(limit).unwrap_or(PAGE_MAX)
            }
            limit => {
                return Err(status(&Refusal::new(
                    Code::InvalidPage,
                    format!("limit: {limit} is outside 1 to {PAGE_MAX}"),
                )));
            }
        };
        let after = match request.page_token.rsplit_once('/') {
            None if request.page_token.is_empty() => (String::new(), -1),
            Some((host, slot)) if slot.parse::<i64>().is_ok() => (host.to_owned(), slot.parse().unwrap_or(-1)),
            _ => {
                return Err(status(&Refusal::new(
                    Code::InvalidPage,
                    "page_token: is not one of ours",
                )));
            }
        };
        let rows = self
            .ctx
            .db
            .runners(after, request.host, i64::try_from(limit).unwrap_or(i64::MAX))
            .await
            .map_err(|error| status(&Refusal::from(error)))?;
        let next_page_token = match rows.last() {
            Some(row) if rows.len() == limit => format!("{}/{}", row.host, row.slot),
            _ => String::new(),
        };
        let held = self.ctx.db.ahead().await;
        let held = held.map_err(|error| status(&Refusal::from(error)))?;
        let held: HashMap<&str, &AheadRow> = held.iter().map(|row| (row.host.as_str(), row)).collect();
        let lost_after = self.ctx.lost_after_ms();
        let shown = |row: &RunnerRow| to_wire(row, lost_after, held.get(row.host.as_str()).copied());
        Ok(Response::new(v1::ListRunnersResponse {
            runners: rows.iter().map(shown).collect(),
            next_page_token,
        }))
    }

    async fn cordon(&self, request: Request<v1::CordonRequest>) -> Result<Response<v1::CordonResponse>, Status> {
        self.set(request, true).await
    }

    async fn uncordon(&self, request: Request<v1::CordonRequest>) -> Result<Response<v1::CordonResponse>, Status> {
        self.set(request, false).await
    }

    async fn remove(
        &self,
        request: Request<v1::RemoveHostRequest>,
    ) -> Result<Response<v1::RemoveHostResponse>, Status> {
        let by = actor(&request)?.name;
        let request = request.into_inner();
        check_reason(&request.reason)?;
        let target = Target::parse(&request.host, "host").map_err(invalid)?;
        if target.slot.is_some() {
            let message = "names a slot; a host is forgotten with all of them: leave the slot out";
            return Err(invalid(Invalid::new("host", message)));
        }
        let order = ForgetOrder {
            host: target.host,
            dead: request.dead,
            by,
            reason: request.reason,
        };
        let forgotten = forget::forget(&self.ctx, order)
            .await
            .map_err(|refusal| status(&refusal))?;
        self.ctx.fleet.forget().await;
        Ok(Response::new(v1::RemoveHostResponse {
            slots: u32::try_from(forgotten.slots).unwrap_or(u32::MAX),
            lost: forgotten.lost,
            waiting: forgotten.waiting,
            more_waiting: forgotten.more_waiting,
        }))
    }
}

impl Admin {
    async fn set(&self, request: Request<v1::CordonRequest>, on: bool) -> Result<Response<v1::CordonResponse>, Status> {
        let by = actor(&request)?.name;
        let request = request.into_inner();
        check_batch(request.runners.len(), PAGE_MAX, "runners")?;
        check_reason(&request.reason)?;
        let until = until(request.until_ms, request.for_ms)?;
        if !on && until != Until::Lifted {
            let message = "only a cordon ends by itself; leave until_ms and for_ms out";
            return Err(invalid(Invalid::new("until_ms", message)));
        }
        let action = match (on, request.drain) {
            (true, true) => "drain",
            (true, false) => "cordon",
            (false, _) => "uncordon",
        };
        let mut results = Vec::with_capacity(request.runners.len());
        for runner in request.runners {
            let order = |target: Target| CordonOrder {
                host: target.host,
                slot: target.slot,
                on,
                until,
                action,
                by: by.clone(),
                reason: request.reason.clone(),
            };
            let (changed, until_ms, error) = match self.set_one(&runner, order).await {
                Ok((changed, until_ms)) => (changed, until_ms, None),
                // What is true of the whole call is not repeated for each item.
                Err(refusal) if refusal.code == Code::StoreUnreachable => return Err(status(&refusal)),
                Err(refusal) => (0, 0, Some(item_error(&refusal))),
            };
            results.push(v1::CordonResult {
                runner,
                changed,
                error,
                until_ms,
            });
        }
        // Whoever asks what a task waits for is told of it at once.
        self.ctx.fleet.forget().await;
        if !on {
            self.ctx.wake.everything();
        }
        Ok(Response::new(v1::CordonResponse { results }))
    }

    /// Changed slots, and until when; 0: until it is lifted, or nothing was changed.
    async fn set_one(&self, runner: &str, order: impl FnOnce(Target) -> CordonOrder) -> Result<(u32, u64), Refusal> {
        let order = order(Target::parse(runner, "runners")?);
        match self.ctx.db.set_cordon(order).await? {
            Cordoned::Done { changed, until_ms } => Ok((
                u32::try_from(changed).unwrap_or(u32::MAX),
                until_ms.filter(|_| changed > 0).map_or(0, time_to_wire),
            )),
            Cordoned::Unknown => {
                let known = self.ctx.fleet.view(&self.ctx.db, self.ctx.lost_after_ms()).await?;
                Err(fleet::no_such_host(&known, runner, "runners"))
            }
            Cordoned::BadTime { now_ms } => Err(Refusal {
                code: Code::InvalidField,
                message: format!(
                    "until: must lie ahead, by at most 366 days; the database's clock says {}",
                    format_utc(now_ms)
                ),
                field: "until".into(),
            }),
        }
    }
}

fn to_wire(row: &RunnerRow, lost_after_ms: i64, held: Option<&AheadRow>) -> v1::Runner {
    v1::Runner {
        host: row.host.clone(),
        slot: u32::try_from(row.slot).unwrap_or(0),
        task_id: row.task_id.unwrap_or(0),
        task_state: row.task_status.map_or(0, i32::from),
        state: fleet::state_of(row, lost_after_ms, held.is_some()).into(),
        seen_at_ms: time_to_wire(row.seen_ms),
        queues: fleet::queues(row),
        labels: labels_to_wire(&fleet::labels(row)),
        version: row.version.clone(),
        cordoned: row.cordoned,
        cordoned_by: row.cordoned_by.clone().unwrap_or_default(),
        cordon_reason: row.cordon_reason.clone().unwrap_or_default(),
        cordoned_at_ms: row.cordoned_at_ms.map_or(0, time_to_wire),
        cordon_until_ms: row.cordon_until_ms.map_or(0, time_to_wire),
        host_cordoned: row.host_cordoned,
        start_no: u64::try_from(row.start_no).unwrap_or(0),
        host_facts: row.facts.clone(),
        clock_skew_ms: row.clock_skew_ms,
        fault: row.fault.as_ref().map(|kind| v1::HostFault {
            kind: kind.clone(),
            detail: row.fault_detail.clone().unwrap_or_default(),
        }),
        fault_at_ms: row.fault_at_ms.map_or(0, time_to_wire),
        hold: held.map(|held| v1::HostHold {
            max_task_id: held.max_task_id,
            message: restore::hold(held.max_task_id),
            since_ms: time_to_wire(held.seen_ms),
        }),
    }
}

//! The administration of runners.

use super::{actor, check_batch, check_reason, item_error, status};
use crate::context::Context;
use crate::flow::Refusal;
use crate::flow::fleet;
use crate::store::read::RunnerRow;
use std::sync::Arc;
use systole_proto::convert::{labels_to_wire, time_to_wire};
use systole_proto::v1;
use systole_proto::v1::runner_admin_server::RunnerAdmin;
use systole_shared::error::Code;
use systole_shared::id::Target;
use systole_shared::limits::PAGE_MAX;
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
        let lost_after = self.ctx.lost_after_ms();
        Ok(Response::new(v1::ListRunnersResponse {
            runners: rows.iter().map(|row| to_wire(row, lost_after)).collect(),
            next_page_token,
        }))
    }

    async fn cordon(&self, request: Request<v1::CordonRequest>) -> Result<Response<v1::CordonResponse>, Status> {
        self.set(request, true).await
    }

    async fn uncordon(&self, request: Request<v1::CordonRequest>) -> Result<Response<v1::CordonResponse>, Status> {
        self.set(request, false).await
    }
}

impl Admin {
    async fn set(&self, request: Request<v1::CordonRequest>, on: bool) -> Result<Response<v1::CordonResponse>, Status> {
        let by = actor(&request)?.name;
        let request = request.into_inner();
        check_batch(request.runners.len(), PAGE_MAX, "runners")?;
        check_reason(&request.reason)?;
        let mut results = Vec::with_capacity(request.runners.len());
        for runner in request.runners {
            let (changed, error) = match self.set_one(&runner, on, &by, &request.reason).await {
                Ok(changed) => (changed, None),
                // What is true of the whole call is not repeated for each item.
                Err(refusal) if refusal.code == Code::StoreUnreachable => return Err(status(&refusal)),
                Err(refusal) => (0, Some(item_error(&refusal))),
            };
            results.push(v1::CordonResult { runner, changed, error });
        }
        if !on {
            self.ctx.wake.everything();
        }
        Ok(Response::new(v1::CordonResponse { results }))
    }

    async fn set_one(&self, runner: &str, on: bool, by: &str, reason: &str) -> Result<u32, Refusal> {
        let target = Target::parse(runner, "runners")?;
        let changed = self
            .ctx
            .db
            .set_cordon(target.host, target.slot, on, by.to_owned(), reason.to_owned())
            .await?;
        match changed {
            Some(changed) => Ok(u32::try_from(changed).unwrap_or(u32::MAX)),
            None => Err(Refusal {
                code: Code::RunnerNotFound,
                message: format!("no runner {runner} is known. See `systole runners ls`"),
                field: "runners".into(),
            }),
        }
    }
}

fn to_wire(row: &RunnerRow, lost_after_ms: i64) -> v1::Runner {
    v1::Runner {
        host: row.host.clone(),
        slot: u32::try_from(row.slot).unwrap_or(0),
        task_id: row.task_id.unwrap_or(0),
        task_state: row.task_status.map_or(0, i32::from),
        state: fleet::state(row, lost_after_ms).into(),
        seen_at_ms: time_to_wire(row.seen_ms),
        queues: fleet::queues(row),
        labels: labels_to_wire(&fleet::labels(row)),
        version: row.version.clone(),
        cordoned: row.cordoned,
        cordoned_by: row.cordoned_by.clone().unwrap_or_default(),
        cordon_reason: row.cordon_reason.clone().unwrap_or_default(),
        cordoned_at_ms: row.cordoned_at_ms.map_or(0, time_to_wire),
        host_cordoned: row.host_cordoned,
        start_no: u64::try_from(row.start_no).unwrap_or(0),
        host_facts: row.facts.clone(),
        clock_skew_ms: row.clock_skew_ms,
        fault: row.fault.as_ref().map(|kind| v1::HostFault {
            kind: kind.clone(),
            detail: row.fault_detail.clone().unwrap_or_default(),
        }),
        fault_at_ms: row.fault_at_ms.map_or(0, time_to_wire),
    }
}

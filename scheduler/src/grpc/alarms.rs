//! Alarms of jobs.

use super::{actor, check_batch, invalid, page_limit, status};
use crate::context::Context;
use crate::flow::Refusal;
use crate::flow::notify;
use crate::store::alarms::{AlarmRow, Filter};
use std::sync::Arc;
use systole_proto::convert::time_to_wire;
use systole_proto::v1;
use systole_proto::v1::alarm_service_server::AlarmService;
use systole_shared::alarm::message::{Now, message};
use systole_shared::alarm::{Kind, Notice};
use systole_shared::error::Invalid;
use systole_shared::limits::GET_IDS_MAX;
use tonic::{Request, Response, Status};

const STATES: [&str; 5] = ["pending", "held", "delivered", "failed", "silenced"];

pub struct Alarms {
    pub ctx: Arc<Context>,
}

fn stored(error: crate::store::StoreError) -> Status {
    status(&Refusal::from(error))
}

#[tonic::async_trait]
impl AlarmService for Alarms {
    async fn list(&self, request: Request<v1::ListAlarmsRequest>) -> Result<Response<v1::ListAlarmsResponse>, Status> {
        let request = request.into_inner();
        let limit = i64::try_from(page_limit(request.limit)?).unwrap_or(i64::MAX);
        if !request.state.is_empty() && !STATES.contains(&request.state.as_str()) {
            return Err(invalid(Invalid::new(
                "state",
                format!("{:?} is none of {}", request.state, STATES.join(", ")),
            )));
        }
        let filter = Filter {
            status: request.state,
            channel: request.channel,
            job: request.job,
            open: request.open,
            below_id: (request.below_id > 0).then_some(request.below_id),
        };
        let rows = self.ctx.db.alarms(filter, limit).await.map_err(stored)?;
        Ok(Response::new(v1::ListAlarmsResponse {
            alarms: rows.into_iter().map(to_wire).collect(),
        }))
    }

    async fn list_channels(
        &self,
        _: Request<v1::ListChannelsRequest>,
    ) -> Result<Response<v1::ListChannelsResponse>, Status> {
        let channels = self.ctx.notifier.channels.iter();
        Ok(Response::new(v1::ListChannelsResponse {
            channels: channels
                .map(|channel| v1::AlarmChannel {
                    name: channel.name.clone(),
                    kind: channel.target.kind().into(),
                })
                .collect(),
        }))
    }

    async fn test(
        &self,
        request: Request<v1::TestChannelRequest>,
    ) -> Result<Response<v1::TestChannelResponse>, Status> {
        let sent = notify::test(&self.ctx, &request.into_inner().channel)
            .await
            .map_err(|refusal| status(&refusal))?;
        Ok(Response::new(v1::TestChannelResponse {
            error: sent.err().unwrap_or_default(),
        }))
    }

    async fn acknowledge(
        &self,
        request: Request<v1::AcknowledgeRequest>,
    ) -> Result<Response<v1::AcknowledgeResponse>, Status> {
        let by = actor(&request)?.name;
        let ids = request.into_inner().ids;
        if !ids.is_empty() {
            check_batch(ids.len(), GET_IDS_MAX, "ids")?;
        }
        let ids = self.ctx.db.acknowledge_alarms(ids, by).await.map_err(stored)?;
        Ok(Response::new(v1::AcknowledgeResponse { ids }))
    }
}

fn to_wire(row: AlarmRow) -> v1::JobAlarm {
    // What a later version has stored is shown as far as it is understood here.
    let notice: Notice = serde_json::from_str(&row.notice).unwrap_or_default();
    let title = match Kind::parse(&row.kind) {
        Some(kind) => message(kind, &notice, &Now::default(), row.raised_at_ms).title,
        None => row.kind.clone(),
    };
    let waits = matches!(row.status.as_str(), "pending" | "held");
    v1::JobAlarm {
        id: row.id,
        channel: row.channel,
        kind: row.kind,
        job: row.job,
        title,
        state: row.status,
        task_ids: notice.tasks.iter().map(|task| task.id).collect(),
        count: notice.count,
        tries: u32::try_from(row.tries).unwrap_or(u32::MAX),
        raised_at_ms: time_to_wire(row.raised_at_ms),
        next_try_at_ms: if waits { time_to_wire(row.next_at_ms) } else { 0 },
        settled_at_ms: row.settled_at_ms.map_or(0, time_to_wire),
        error: row.last_error,
        delivery_id: row.delivery_id,
        acknowledged_by: row.acknowledged_by.unwrap_or_default(),
    }
}

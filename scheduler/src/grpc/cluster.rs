//! The administration of the cluster as a whole.

use super::{actor, check_reason, invalid, status};
use crate::context::Context;
use crate::flow::Refusal;
use crate::flow::alarms::{self, Kind};
use std::sync::Arc;
use systole_proto::convert::time_to_wire;
use systole_proto::v1;
use systole_proto::v1::cluster_admin_server::ClusterAdmin;
use systole_shared::error::Invalid;
use tonic::{Request, Response, Status};

pub struct Cluster {
    pub ctx: Arc<Context>,
}

#[tonic::async_trait]
impl ClusterAdmin for Cluster {
    async fn alarms(&self, _: Request<v1::AlarmsRequest>) -> Result<Response<v1::AlarmsResponse>, Status> {
        let alarms = alarms::open(&self.ctx)
            .await
            .map_err(|error| status(&Refusal::from(error)))?;
        Ok(Response::new(v1::AlarmsResponse {
            alarms: alarms
                .into_iter()
                .map(|alarm| v1::Alarm {
                    kind: alarm.kind.name().into(),
                    message: alarm.message,
                    since_ms: time_to_wire(alarm.since_ms),
                })
                .collect(),
        }))
    }

    async fn confirm(&self, request: Request<v1::ConfirmRequest>) -> Result<Response<v1::ConfirmResponse>, Status> {
        let by = actor(&request)?.name;
        let request = request.into_inner();
        check_reason(&request.reason)?;
        let kind = Kind::parse(&request.kind).ok_or_else(|| {
            invalid(Invalid::new(
                "kind",
                format!("{:?} is no alarm; write clock or restore", request.kind),
            ))
        })?;
        let message = alarms::confirm(&self.ctx, kind, &by, &request.reason)
            .await
            .map_err(|refusal| status(&refusal))?;
        Ok(Response::new(v1::ConfirmResponse { message }))
    }
}

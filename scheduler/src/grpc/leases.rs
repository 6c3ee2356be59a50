//! Leases on the wire.

use super::{actor, check_reason, invalid, page_limit, status};
use crate::context::Context;
use crate::flow::leases;
use crate::store::lease::{LeaseAsk, LeaseRow};
use std::sync::Arc;
use systole_proto::convert::time_to_wire;
use systole_proto::v1;
use systole_proto::v1::lease_service_server::LeaseService;
use systole_shared::error::Invalid;
use systole_shared::limits::{HOLDER_CHARS_MAX, LEASE_TTL_MS_DEFAULT, LEASE_TTL_MS_MAX, LEASE_TTL_MS_MIN, PARK_MS_MAX};
use systole_shared::task::spec::{check_text, check_word};
use tonic::{Request, Response, Status};

pub struct Leases {
    pub ctx: Arc<Context>,
}

fn to_wire(row: LeaseRow) -> v1::Lease {
    v1::Lease {
        token: row.token,
        ttl_ms: u64::try_from(row.ttl_ms).unwrap_or(0),
        acquired_at_ms: time_to_wire(row.acquired_ms),
        renewed_at_ms: time_to_wire(row.renewed_ms),
        expires_at_ms: time_to_wire(row.expires_ms),
        left_ms: u64::try_from(row.expires_ms.saturating_sub(row.now_ms)).unwrap_or(0),
        resource: row.resource,
        holder: row.holder.unwrap_or_default(),
        actor: row.actor,
        revoked_by: row.revoked_by.unwrap_or_default(),
        revoke_reason: row.revoke_reason.unwrap_or_default(),
    }
}

fn refused(refusal: crate::flow::Refusal) -> Status {
    status(&refusal)
}

fn check_holder(resource: &str, holder: &str) -> Result<(), Status> {
    check_word(resource, "resource").map_err(invalid)?;
    if holder.is_empty() {
        return Err(invalid(Invalid::new(
            "holder",
            "is empty; write a value of this acquisition and no other one, such as host:pid:random",
        )));
    }
    check_text(holder, "holder", HOLDER_CHARS_MAX).map_err(invalid)
}

fn in_range(ms: u64, default: u64, (min, max): (u64, u64), field: &str) -> Result<u64, Status> {
    match ms {
        0 => Ok(default),
        ms if (min..=max).contains(&ms) => Ok(ms),
        _ => Err(invalid(Invalid::new(field, format!("must be {min} to {max} ms")))),
    }
}

#[tonic::async_trait]
impl LeaseService for Leases {
    async fn acquire(&self, request: Request<v1::AcquireRequest>) -> Result<Response<v1::AcquireResponse>, Status> {
        let actor = actor(&request)?.name;
        let request = request.into_inner();
        check_holder(&request.resource, &request.holder)?;
        let ttl = (LEASE_TTL_MS_MIN, LEASE_TTL_MS_MAX);
        let ttl_ms = in_range(request.ttl_ms, LEASE_TTL_MS_DEFAULT, ttl, "ttl_ms")?;
        let wait_ms = in_range(request.wait_ms, 0, (0, PARK_MS_MAX), "wait_ms")?;
        let ask = LeaseAsk {
            resource: request.resource,
            holder: request.holder,
            actor,
            ttl_ms: i64::try_from(ttl_ms).unwrap_or(i64::MAX),
        };
        let lease = leases::acquire(&self.ctx, ask, wait_ms).await.map_err(refused)?;
        Ok(Response::new(v1::AcquireResponse {
            lease: Some(to_wire(lease)),
        }))
    }

    async fn renew(&self, request: Request<v1::RenewRequest>) -> Result<Response<v1::RenewResponse>, Status> {
        let request = request.into_inner();
        check_holder(&request.resource, &request.holder)?;
        let lease = leases::renew(&self.ctx, request.resource, request.token, request.holder)
            .await
            .map_err(refused)?;
        Ok(Response::new(v1::RenewResponse {
            lease: Some(to_wire(lease)),
        }))
    }

    async fn release(&self, request: Request<v1::ReleaseRequest>) -> Result<Response<v1::ReleaseResponse>, Status> {
        let request = request.into_inner();
        check_holder(&request.resource, &request.holder)?;
        let released = leases::release(&self.ctx, request.resource, request.token, request.holder)
            .await
            .map_err(refused)?;
        Ok(Response::new(v1::ReleaseResponse { released }))
    }

    async fn get(&self, request: Request<v1::GetLeaseRequest>) -> Result<Response<v1::GetLeaseResponse>, Status> {
        let resource = request.into_inner().resource;
        check_word(&resource, "resource").map_err(invalid)?;
        let row = self.ctx.db.lease(resource).await;
        let row = row.map_err(|error| refused(error.into()))?;
        Ok(Response::new(v1::GetLeaseResponse {
            lease: row.filter(|row| row.holder.is_some()).map(to_wire),
        }))
    }

    async fn list(&self, request: Request<v1::ListLeasesRequest>) -> Result<Response<v1::ListLeasesResponse>, Status> {
        let request = request.into_inner();
        let limit = page_limit(request.limit)?;
        let rows = self
            .ctx
            .db
            .leases(request.page_token, i64::try_from(limit).unwrap_or(i64::MAX))
            .await
            .map_err(|error| refused(error.into()))?;
        let next_page_token = match rows.last() {
            Some(row) if rows.len() == limit => row.resource.clone(),
            _ => String::new(),
        };
        Ok(Response::new(v1::ListLeasesResponse {
            leases: rows.into_iter().map(to_wire).collect(),
            next_page_token,
        }))
    }

    async fn revoke(&self, request: Request<v1::RevokeRequest>) -> Result<Response<v1::RevokeResponse>, Status> {
        let by = actor(&request)?.name;
        let request = request.into_inner();
        check_reason(&request.reason)?;
        check_word(&request.resource, "resource").map_err(invalid)?;
        let signed = (by, request.reason);
        let lease = leases::revoke(&self.ctx, request.resource, request.token, request.now, signed)
            .await
            .map_err(refused)?;
        Ok(Response::new(v1::RevokeResponse {
            lease: Some(to_wire(lease)),
        }))
    }
}

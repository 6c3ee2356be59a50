//! Calls of the service of leases.

use super::{Client, short_answer};
use crate::failure::Failure;
use systole_proto::v1;
use systole_proto::v1::lease_service_client::LeaseServiceClient;
use tonic::transport::Channel;

impl Client {
    fn lease_service(&self) -> LeaseServiceClient<Channel> {
        LeaseServiceClient::new(self.target().channel.clone())
    }

    /// May be repeated: the holder is a value of this acquisition.
    pub async fn acquire_lease(&self, request: v1::AcquireRequest) -> Result<v1::Lease, Failure> {
        let response = self
            .unary(|| async { self.lease_service().acquire(self.request(request.clone())).await })
            .await?;
        response.lease.ok_or_else(short_answer)
    }

    pub async fn renew_lease(&self, request: v1::RenewRequest) -> Result<v1::Lease, Failure> {
        let response = self
            .unary(|| async { self.lease_service().renew(self.request(request.clone())).await })
            .await?;
        response.lease.ok_or_else(short_answer)
    }

    /// A call that is repeated because its answer was lost finds it given back.
    pub async fn release_lease(&self, request: v1::ReleaseRequest) -> Result<bool, Failure> {
        let response = self
            .unary(|| async { self.lease_service().release(self.request(request.clone())).await })
            .await?;
        Ok(response.released)
    }

    pub async fn leases(&self, request: v1::ListLeasesRequest) -> Result<v1::ListLeasesResponse, Failure> {
        self.unary(|| async { self.lease_service().list(self.request(request.clone())).await })
            .await
    }

    pub async fn revoke_lease(&self, request: v1::RevokeRequest) -> Result<v1::Lease, Failure> {
        let response = self
            .unary(|| async { self.lease_service().revoke(self.request(request.clone())).await })
            .await?;
        response.lease.ok_or_else(short_answer)
    }
}

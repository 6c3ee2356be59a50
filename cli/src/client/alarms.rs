//! Calls of the service of alarms.

use super::Client;
use crate::failure::Failure;
use systole_proto::v1;
use systole_proto::v1::alarm_service_client::AlarmServiceClient;
use tonic::transport::Channel;

impl Client {
    fn alarm_service(&self) -> AlarmServiceClient<Channel> {
        AlarmServiceClient::new(self.target().channel.clone())
    }

    pub async fn job_alarms(&self, request: v1::ListAlarmsRequest) -> Result<Vec<v1::JobAlarm>, Failure> {
        let response = self
            .unary(|| async { self.alarm_service().list(self.request(request.clone())).await })
            .await?;
        Ok(response.alarms)
    }

    pub async fn alarm_channels(&self) -> Result<Vec<v1::AlarmChannel>, Failure> {
        let response = self
            .unary(|| async {
                let request = self.request(v1::ListChannelsRequest {});
                self.alarm_service().list_channels(request).await
            })
            .await?;
        Ok(response.channels)
    }

    /// Why the test did not arrive; empty: it did.
    pub async fn test_channel(&self, channel: &str) -> Result<String, Failure> {
        let request = v1::TestChannelRequest {
            channel: channel.to_owned(),
        };
        let response = self
            .unary(|| async { self.alarm_service().test(self.request(request.clone())).await })
            .await?;
        Ok(response.error)
    }

    pub async fn acknowledge_alarms(&self, ids: Vec<i64>) -> Result<Vec<i64>, Failure> {
        let request = v1::AcknowledgeRequest { ids };
        let response = self
            .unary(|| async { self.alarm_service().acknowledge(self.request(request.clone())).await })
            .await?;
        Ok(response.ids)
    }
}

//! Calls of the service of jobs.

use super::{ANSWER_BYTES_MAX, Client, short_answer};
use crate::failure::Failure;
use systole_proto::v1;
use systole_proto::v1::job_service_client::JobServiceClient;
use tonic::transport::Channel;

impl Client {
    fn jobs(&self) -> JobServiceClient<Channel> {
        JobServiceClient::new(self.target().channel.clone()).max_decoding_message_size(ANSWER_BYTES_MAX)
    }

    /// May be repeated: what is stored already is unchanged.
    pub async fn apply_jobs(&self, request: v1::ApplyRequest) -> Result<Vec<v1::ApplyResult>, Failure> {
        let response = self
            .unary(|| async { self.jobs().apply(self.request(request.clone())).await })
            .await?;
        Ok(response.results)
    }

    pub async fn job(&self, name: &str) -> Result<v1::Job, Failure> {
        let request = v1::GetJobsRequest {
            names: vec![name.to_owned()],
        };
        let response = self
            .unary(|| async { self.jobs().get(self.request(request.clone())).await })
            .await?;
        let result = response.results.into_iter().next().ok_or_else(short_answer)?;
        match (result.job, result.error) {
            (_, Some(error)) => Err(Failure::from_item(&error)),
            (Some(job), None) => Ok(job),
            (None, None) => Err(short_answer()),
        }
    }

    pub async fn list_jobs(&self, request: v1::ListJobsRequest) -> Result<v1::ListJobsResponse, Failure> {
        self.unary(|| async { self.jobs().list(self.request(request.clone())).await })
            .await
    }

    /// One result per name, in order.
    pub async fn delete_jobs(&self, request: v1::DeleteJobsRequest) -> Result<Vec<v1::DeleteJobResult>, Failure> {
        let count = request.names.len();
        let response = self
            .unary(|| async { self.jobs().delete(self.request(request.clone())).await })
            .await?;
        complete(response.results, count)
    }

    /// One result per name, in order.
    pub async fn pause_jobs(&self, request: v1::SetPausedRequest) -> Result<Vec<v1::SetPausedResult>, Failure> {
        let count = request.names.len();
        let response = self
            .unary(|| async { self.jobs().set_paused(self.request(request.clone())).await })
            .await?;
        complete(response.results, count)
    }

    /// The request must carry a key, so that a repeated call does not run the job twice.
    pub async fn trigger_job(&self, request: v1::TriggerJobRequest) -> Result<v1::TriggerJobResponse, Failure> {
        self.unary(|| async { self.jobs().trigger(self.request(request.clone())).await })
            .await
    }

    pub async fn occurrences(&self, request: v1::OccurrencesRequest) -> Result<v1::OccurrencesResponse, Failure> {
        self.unary(|| async { self.jobs().occurrences(self.request(request.clone())).await })
            .await
    }

    /// One that makes a backfill must carry a key, so that a repeated call does not make two.
    pub async fn backfill(&self, request: v1::BackfillRequest) -> Result<v1::BackfillResponse, Failure> {
        self.unary(|| async { self.jobs().backfill(self.request(request.clone())).await })
            .await
    }

    pub async fn backfills(&self, request: v1::ListBackfillsRequest) -> Result<v1::ListBackfillsResponse, Failure> {
        self.unary(|| async { self.jobs().list_backfills(self.request(request.clone())).await })
            .await
    }

    pub async fn cancel_backfill(
        &self,
        request: v1::CancelBackfillRequest,
    ) -> Result<v1::CancelBackfillResponse, Failure> {
        self.unary(|| async { self.jobs().cancel_backfill(self.request(request.clone())).await })
            .await
    }

    pub async fn next_fires(&self, request: v1::NextRequest) -> Result<v1::NextResponse, Failure> {
        self.unary(|| async { self.jobs().next(self.request(request.clone())).await })
            .await
    }

    /// One result per item, in order. The items must carry keys.
    pub async fn enqueue_jobs(&self, request: v1::EnqueueRequest) -> Result<Vec<v1::EnqueueResult>, Failure> {
        let count = request.items.len();
        let response = self
            .unary(|| async { self.jobs().enqueue(self.request(request.clone())).await })
            .await?;
        complete(response.results, count)
    }

    /// Newest first.
    pub async fn job_versions(&self, name: &str, limit: u32) -> Result<Vec<v1::JobVersion>, Failure> {
        let request = v1::JobVersionsRequest {
            name: name.to_owned(),
            limit,
        };
        let response = self
            .unary(|| async { self.jobs().versions(self.request(request.clone())).await })
            .await?;
        Ok(response.versions)
    }

    /// One result per name, in order. What was restored already is unchanged.
    pub async fn restore_jobs(&self, request: v1::RestoreRequest) -> Result<Vec<v1::ApplyResult>, Failure> {
        let count = request.names.len();
        let response = self
            .unary(|| async { self.jobs().restore(self.request(request.clone())).await })
            .await?;
        complete(response.results, count)
    }

    /// One result per name, in order.
    pub async fn reset_triggers(
        &self,
        request: v1::ResetTriggersRequest,
    ) -> Result<Vec<v1::ResetTriggersResult>, Failure> {
        let count = request.names.len();
        let response = self
            .unary(|| async { self.jobs().reset_triggers(self.request(request.clone())).await })
            .await?;
        complete(response.results, count)
    }

    /// Those with these names, with the texts of their iCalendar files; no name: all, without them.
    pub async fn calendars(&self, names: Vec<String>) -> Result<Vec<v1::Calendar>, Failure> {
        let request = v1::ListCalendarsRequest { names };
        let response = self
            .unary(|| async { self.jobs().list_calendars(self.request(request.clone())).await })
            .await?;
        Ok(response.calendars)
    }

    pub async fn concurrency_groups(&self) -> Result<Vec<v1::ConcurrencyGroup>, Failure> {
        let response = self
            .unary(|| async { self.jobs().list_groups(self.request(v1::ListGroupsRequest {})).await })
            .await?;
        Ok(response.groups)
    }

    /// One result per name, in order.
    pub async fn delete_calendars(
        &self,
        request: v1::DeleteNamedRequest,
    ) -> Result<Vec<v1::DeleteNamedResult>, Failure> {
        let count = request.names.len();
        let response = self
            .unary(|| async { self.jobs().delete_calendars(self.request(request.clone())).await })
            .await?;
        complete(response.results, count)
    }

    /// One result per name, in order.
    pub async fn delete_groups(&self, request: v1::DeleteNamedRequest) -> Result<Vec<v1::DeleteNamedResult>, Failure> {
        let count = request.names.len();
        let response = self
            .unary(|| async { self.jobs().delete_groups(self.request(request.clone())).await })
            .await?;
        complete(response.results, count)
    }
}

/// One result for each that was asked for.
fn complete<T>(results: Vec<T>, count: usize) -> Result<Vec<T>, Failure> {
    if results.len() == count {
        Ok(results)
    } else {
        Err(short_answer())
    }
}

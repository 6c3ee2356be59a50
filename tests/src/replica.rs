//! A scheduler replica inside the test process, on a real port.

use crate::TestDb;
use std::time::Duration;
use systole_proto::v1;
use systole_proto::v1::access_service_client::AccessServiceClient;
use systole_proto::v1::alarm_service_client::AlarmServiceClient;
use systole_proto::v1::cluster_admin_client::ClusterAdminClient;
use systole_proto::v1::job_service_client::JobServiceClient;
use systole_proto::v1::runner_admin_client::RunnerAdminClient;
use systole_proto::v1::runner_service_client::RunnerServiceClient;
use systole_proto::v1::task_service_client::TaskServiceClient;
use systole_scheduler::config::{Config, Timing};
use systole_scheduler::{Running, StartError};
use tokio_util::sync::CancellationToken;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};

/// Puts the token on each call.
#[derive(Clone)]
pub struct Token(pub Option<MetadataValue<Ascii>>);

impl tonic::service::Interceptor for Token {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(token) = &self.0 {
            request.metadata_mut().insert("authorization", token.clone());
        }
        Ok(request)
    }
}

pub type Tasks = TaskServiceClient<InterceptedService<Channel, Token>>;
pub type Beats = RunnerServiceClient<InterceptedService<Channel, Token>>;
pub type Jobs = JobServiceClient<InterceptedService<Channel, Token>>;
pub type Alarms = AlarmServiceClient<InterceptedService<Channel, Token>>;
pub type Access = AccessServiceClient<InterceptedService<Channel, Token>>;
pub type Cluster = ClusterAdminClient<InterceptedService<Channel, Token>>;
pub type Admin = RunnerAdminClient<InterceptedService<Channel, Token>>;

/// Fast clocks: a lost runner is noticed in seconds.
pub fn fast() -> Timing {
    Timing {
        beat: Duration::from_secs(1),
        lost_after: Duration::from_secs(3),
        check: Duration::from_millis(200),
        poll: Duration::from_millis(200),
        drain_wait: Duration::from_millis(100),
        drain_max: Duration::from_secs(5),
    }
}

pub struct Replica {
    pub running: Running,
    pub shutdown: CancellationToken,
    channel: Channel,
    admin_token: Token,
    runner_token: Token,
}

impl Token {
    /// Of a secret.
    pub fn bearer(secret: &str) -> Self {
        Self(Some(format!("Bearer {secret}").parse().expect("header")))
    }
}

fn token(path: &std::path::Path) -> Token {
    let text = std::fs::read_to_string(path).expect("token file");
    Token::bearer(text.trim())
}

impl Replica {
    pub fn config(db: &TestDb) -> Config {
        let mut config = Config::new(db.url.clone(), "127.0.0.1:0".parse().expect("address"), db.token_dir());
        config.timing = fast();
        config.callbacks.allow_private = true;
        config.callbacks.backoff = Duration::from_millis(50);
        config
    }

    pub async fn start(db: &TestDb) -> Self {
        Self::start_with(Self::config(db)).await
    }

    pub async fn start_with(config: Config) -> Self {
        Self::try_start(config).await.expect("the replica starts")
    }

    pub async fn try_start(config: Config) -> Result<Self, StartError> {
        let shutdown = CancellationToken::new();
        let running = Box::pin(systole_scheduler::start(config, shutdown.clone())).await?;
        let channel = Endpoint::from_shared(format!("http://{}", running.addr))
            .expect("address")
            .connect_lazy();
        Ok(Self {
            admin_token: token(&running.tokens.admin),
            runner_token: token(&running.tokens.runner),
            channel,
            running,
            shutdown,
        })
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.running.addr)
    }

    pub fn tasks(&self) -> Tasks {
        TaskServiceClient::with_interceptor(self.channel.clone(), self.admin_token.clone())
            .max_decoding_message_size(64 << 20)
    }

    pub fn tasks_with(&self, token: Token) -> Tasks {
        TaskServiceClient::with_interceptor(self.channel.clone(), token)
    }

    pub fn admin(&self) -> Admin {
        RunnerAdminClient::with_interceptor(self.channel.clone(), self.admin_token.clone())
    }

    pub fn jobs(&self) -> Jobs {
        JobServiceClient::with_interceptor(self.channel.clone(), self.admin_token.clone())
    }

    pub fn alarms(&self) -> Alarms {
        AlarmServiceClient::with_interceptor(self.channel.clone(), self.admin_token.clone())
    }

    pub fn access(&self) -> Access {
        AccessServiceClient::with_interceptor(self.channel.clone(), self.admin_token.clone())
    }

    pub fn channel(&self) -> Channel {
        self.channel.clone()
    }

    pub fn admin_token(&self) -> Token {
        self.admin_token.clone()
    }

    pub fn cluster(&self) -> Cluster {
        ClusterAdminClient::with_interceptor(self.channel.clone(), self.admin_token.clone())
    }

    pub fn beats(&self) -> Beats {
        RunnerServiceClient::with_interceptor(self.channel.clone(), self.runner_token.clone())
    }

    pub fn runner_token(&self) -> Token {
        self.runner_token.clone()
    }

    /// Stops it in order and waits for its end.
    pub async fn stop(self) {
        self.shutdown.cancel();
        self.running.stopped().await.expect("stops in order");
    }

    /// Submits one task and returns its id.
    pub async fn submit(&self, spec: v1::TaskSpec) -> i64 {
        let result = self.submit_keyed(spec, "").await;
        assert_eq!(result.error, None);
        result.id
    }

    pub async fn submit_keyed(&self, spec: v1::TaskSpec, key: &str) -> v1::SubmitResult {
        let request = v1::SubmitRequest {
            items: vec![v1::SubmitItem {
                spec: Some(spec),
                key: key.into(),
            }],
            reason: String::new(),
        };
        self.tasks()
            .submit(request)
            .await
            .expect("submit")
            .into_inner()
            .results
            .remove(0)
    }

    pub async fn task(&self, id: i64) -> v1::Task {
        let response = self
            .tasks()
            .get(v1::GetRequest { ids: vec![id] })
            .await
            .expect("get")
            .into_inner();
        response
            .results
            .into_iter()
            .next()
            .and_then(|result| result.task)
            .expect("the task exists")
    }

    pub async fn state(&self, id: i64) -> v1::TaskState {
        self.task(id).await.state()
    }

    /// Waits until the task is in this state.
    pub async fn until_state(&self, id: i64, state: v1::TaskState) -> v1::Task {
        crate::wait::until(&format!("task {id} is {}", state.as_str_name()), || async {
            let task = self.task(id).await;
            (task.state() == state).then_some(task)
        })
        .await
    }

    pub async fn cancel(&self, id: i64) -> v1::CancelResult {
        let request = v1::CancelRequest {
            ids: vec![id],
            reason: "test".into(),
            exact: false,
            ..Default::default()
        };
        self.tasks()
            .cancel(request)
            .await
            .expect("cancel")
            .into_inner()
            .results
            .remove(0)
    }
}

/// A task that runs `command`.
pub fn command(command: &[&str]) -> v1::TaskSpec {
    v1::TaskSpec {
        command: command.iter().map(|&part| part.to_owned()).collect(),
        ..Default::default()
    }
}

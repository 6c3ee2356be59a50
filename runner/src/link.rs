//! The way to the schedulers: one connection for all slots, the next address when it fails. Knows
//! calls and their failures, not what a beat means.

use crate::RunnerError;
use crate::config::RunnerConfig;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use systole_proto::convert::{CLUSTER_KEY, RECORDED_KEY};
use systole_proto::v1;
use systole_proto::v1::access_service_client::AccessServiceClient;
use systole_proto::v1::runner_service_client::RunnerServiceClient;
use systole_shared::limits::{BEAT_BYTES_MAX, MESSAGE_BYTES_MAX};
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint};
use tonic::{Code, Request, Status};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Without pings a silent partition is only found by TCP, after many minutes.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(5);
/// The same trouble is logged once in this time, by whichever slot meets it first.
const COMPLAIN_EVERY: Duration = Duration::from_secs(30);

/// Why a beat has no answer that could be acted on.
#[derive(Clone, Debug)]
pub enum Missed {
    /// Nobody answered, or one who cannot speak for the cluster now.
    Unanswered(String),
    /// Another process holds this runner id. Results that were recorded all the same, and the cluster that did.
    Taken {
        text: String,
        recorded: Vec<i64>,
        cluster_id: String,
    },
    /// The token is not accepted.
    Denied(String),
    /// The scheduler does not understand the beat.
    Refused(String),
}

impl Missed {
    pub fn late(deadline: Duration) -> Self {
        Self::Unanswered(format!("no answer within {} s", deadline.as_secs()))
    }
}

/// Kinds of trouble, for [`Link::complain`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Trouble {
    Unanswered,
    Taken,
    Denied,
    Refused,
    OtherCluster,
    Upload,
}

pub struct Link {
    endpoints: Vec<Endpoint>,
    /// Another one after a rotation.
    token: Mutex<MetadataValue<Ascii>>,
    current: Mutex<Current>,
    complained: Mutex<HashMap<Trouble, Instant>>,
}

struct Current {
    index: usize,
    /// Rises with each new connection, so that many slots that fail on one connection change it once.
    generation: u64,
    channel: Channel,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Link {
    /// Connects at the first call. Needs a runtime.
    pub fn new(config: &RunnerConfig) -> Result<Self, RunnerError> {
        let endpoints: Vec<Endpoint> = config
            .urls
            .iter()
            .map(|url| endpoint(url, config.ca_pem.as_deref()))
            .collect::<Result<_, _>>()?;
        let first = endpoints.first().ok_or(RunnerError::NoUrl)?;
        let token = Mutex::new(bearer(&config.token)?);
        let channel = first.connect_lazy();
        Ok(Self {
            endpoints,
            token,
            current: Mutex::new(Current {
                index: 0,
                generation: 0,
                channel,
            }),
            complained: Mutex::default(),
        })
    }

    /// One beat. A failure that could be the connection's makes the next call use another one.
    pub async fn heartbeat(
        &self,
        beat: v1::HeartbeatRequest,
        deadline: Duration,
    ) -> Result<v1::HeartbeatResponse, Missed> {
        let (channel, generation) = self.channel();
        let mut client = RunnerServiceClient::new(channel)
            .max_encoding_message_size(BEAT_BYTES_MAX)
            .max_decoding_message_size(MESSAGE_BYTES_MAX);
        let missed = match tokio::time::timeout(deadline, client.heartbeat(self.request(beat, deadline))).await {
            Ok(Ok(answer)) => return Ok(answer.into_inner()),
            Ok(Err(status)) => classify(&status),
            Err(_) => Missed::late(deadline),
        };
        self.failed(&missed, generation);
        Err(missed)
    }

    /// Beats of many slots. Each answer is told as it comes.
    pub async fn heartbeat_idle(
        &self,
        beats: v1::HeartbeatIdleRequest,
        deadline: Duration,
        mut hear: impl FnMut(v1::IdleAnswer),
    ) -> Result<(), Missed> {
        let (channel, generation) = self.channel();
        let mut client = RunnerServiceClient::new(channel)
            .max_encoding_message_size(MESSAGE_BYTES_MAX)
            .max_decoding_message_size(MESSAGE_BYTES_MAX);
        let call = async {
            let mut messages = client.heartbeat_idle(self.request(beats, deadline)).await?.into_inner();
            while let Some(message) = messages.message().await? {
                message.answers.into_iter().for_each(&mut hear);
            }
            Ok::<(), Status>(())
        };
        let missed = match tokio::time::timeout(deadline, call).await {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(status)) => classify(&status),
            Err(_) => Missed::late(deadline),
        };
        self.failed(&missed, generation);
        Err(missed)
    }

    fn failed(&self, missed: &Missed, generation: u64) {
        if matches!(missed, Missed::Unanswered(_)) {
            self.rotate(generation);
        }
    }

    /// Stores pieces of output. Never changes the connection: the beats watch over it.
    pub async fn upload(
        &self,
        upload: v1::UploadOutputRequest,
        deadline: Duration,
    ) -> Result<v1::UploadOutputResponse, Status> {
        let (channel, _) = self.channel();
        let mut client = RunnerServiceClient::new(channel)
            .max_encoding_message_size(MESSAGE_BYTES_MAX)
            .max_decoding_message_size(MESSAGE_BYTES_MAX);
        within(deadline, client.upload_output(self.request(upload, deadline))).await
    }

    /// Asks that `secret_sha256` takes the place of the token's secret; `secret` is the present one or the new one.
    /// True when it has.
    pub async fn rotate_token(&self, secret: &str, secret_sha256: &str) -> Result<bool, Status> {
        let (channel, generation) = self.channel();
        let mut client = AccessServiceClient::new(channel);
        let message = v1::RotateTokenRequest {
            secret_sha256: secret_sha256.to_owned(),
        };
        let mut request = self.request(message, CONNECT_TIMEOUT);
        let token = bearer(secret).map_err(|error| Status::internal(error.to_string()))?;
        request.metadata_mut().insert("authorization", token);
        let answer = within(CONNECT_TIMEOUT, client.rotate_token(request)).await;
        if let Err(status) = &answer
            && matches!(classify(status), Missed::Unanswered(_))
        {
            self.rotate(generation);
        }
        answer.map(|answer| answer.replaced)
    }

    /// From now on this is the token.
    pub fn set_token(&self, secret: &str) -> Result<(), RunnerError> {
        *locked(&self.token) = bearer(secret)?;
        Ok(())
    }

    /// Waits for somebody who reads a full output.
    pub async fn next_fetch(
        &self,
        request: v1::NextFetchRequest,
        deadline: Duration,
    ) -> Result<v1::NextFetchResponse, Status> {
        let (channel, _) = self.channel();
        let mut client = RunnerServiceClient::new(channel);
        within(deadline, client.next_fetch(self.request(request, deadline))).await
    }

    /// A piece of a full output for him.
    pub async fn put_fetched(
        &self,
        request: v1::PutFetchedRequest,
        deadline: Duration,
    ) -> Result<v1::PutFetchedResponse, Status> {
        let (channel, _) = self.channel();
        let mut client = RunnerServiceClient::new(channel).max_encoding_message_size(MESSAGE_BYTES_MAX);
        within(deadline, client.put_fetched(self.request(request, deadline))).await
    }

    /// Logs a trouble, but not each time: with thousands of slots the log would be nothing else.
    pub fn complain(&self, trouble: Trouble, text: &str) {
        let mut complained = locked(&self.complained);
        let now = Instant::now();
        let due = complained
            .get(&trouble)
            .is_none_or(|last| now.duration_since(*last) >= COMPLAIN_EVERY);
        if due {
            complained.insert(trouble, now);
        }
        drop(complained);
        match (due, trouble) {
            (true, Trouble::Denied | Trouble::Refused) => tracing::error!("{text}"),
            (true, _) => tracing::warn!("{text}"),
            (false, _) => tracing::debug!("{text}"),
        }
    }

    /// The address in use, for messages.
    pub fn address(&self) -> String {
        let index = locked(&self.current).index;
        self.endpoints
            .get(index)
            .map(|endpoint| endpoint.uri().to_string())
            .unwrap_or_default()
    }

    /// The scheduler answers, but not for the right cluster: the next call goes to the next address.
    pub fn leave_current(&self) {
        let (_, generation) = self.channel();
        self.rotate(generation);
    }

    fn channel(&self) -> (Channel, u64) {
        let current = locked(&self.current);
        (current.channel.clone(), current.generation)
    }

    /// A fresh connection to the next address, unless another slot made one meanwhile.
    fn rotate(&self, failed: u64) {
        let mut current = locked(&self.current);
        if current.generation != failed {
            return;
        }
        let index = (current.index + 1) % self.endpoints.len();
        *current = Current {
            index,
            generation: failed + 1,
            channel: self.endpoints[index].connect_lazy(),
        };
    }

    fn request<T>(&self, message: T, deadline: Duration) -> Request<T> {
        let mut request = Request::new(message);
        request
            .metadata_mut()
            .insert("authorization", locked(&self.token).clone());
        request.set_timeout(deadline);
        request
    }
}

fn bearer(secret: &str) -> Result<MetadataValue<Ascii>, RunnerError> {
    if secret.is_empty() {
        return Err(RunnerError::BadToken);
    }
    let mut token: MetadataValue<Ascii> = format!("Bearer {secret}").parse().map_err(|_| RunnerError::BadToken)?;
    token.set_sensitive(true);
    Ok(token)
}

fn metadata<'a>(status: &'a Status, key: &str) -> &'a str {
    let value = status.metadata().get(key);
    value.and_then(|value| value.to_str().ok()).unwrap_or_default()
}

async fn within<T>(
    deadline: Duration,
    call: impl Future<Output = Result<tonic::Response<T>, Status>>,
) -> Result<T, Status> {
    match tokio::time::timeout(deadline, call).await {
        Ok(answer) => answer.map(tonic::Response::into_inner),
        Err(_) => Err(Status::deadline_exceeded(format!(
            "no answer within {} s",
            deadline.as_secs()
        ))),
    }
}

fn classify(status: &Status) -> Missed {
    let text = format!("{:?}: {}", status.code(), status.message());
    match status.code() {
        Code::AlreadyExists => Missed::Taken {
            text,
            recorded: metadata(status, RECORDED_KEY)
                .split(',')
                .filter_map(|id| id.parse().ok())
                .collect(),
            cluster_id: metadata(status, CLUSTER_KEY).to_owned(),
        },
        Code::Unauthenticated | Code::PermissionDenied => Missed::Denied(text),
        Code::InvalidArgument | Code::OutOfRange | Code::FailedPrecondition | Code::Unimplemented => {
            Missed::Refused(text)
        }
        _ => Missed::Unanswered(text),
    }
}

fn endpoint(url: &str, ca_pem: Option<&[u8]>) -> Result<Endpoint, RunnerError> {
    let bad = |reason: &str| RunnerError::BadUrl {
        url: url.to_owned(),
        reason: reason.to_owned(),
    };
    let secure = url.starts_with("https://");
    if !secure && !url.starts_with("http://") {
        return Err(bad("it has no scheme"));
    }
    let endpoint = Endpoint::from_shared(url.to_owned()).map_err(|error| bad(&error.to_string()))?;
    if endpoint.uri().host().is_none_or(str::is_empty) {
        return Err(bad("it names no host"));
    }
    let endpoint = endpoint
        .connect_timeout(CONNECT_TIMEOUT)
        .tcp_nodelay(true)
        .http2_keep_alive_interval(KEEPALIVE_INTERVAL)
        .keep_alive_timeout(KEEPALIVE_TIMEOUT)
        .keep_alive_while_idle(true);
    if secure {
        encrypted(endpoint, ca_pem)
    } else {
        Ok(endpoint)
    }
}

fn encrypted(endpoint: Endpoint, ca_pem: Option<&[u8]>) -> Result<Endpoint, RunnerError> {
    let bad = |error: tonic::transport::Error| {
        let source = std::error::Error::source(&error)
            .map(|s| format!(": {s}"))
            .unwrap_or_default();
        RunnerError::BadCa(format!("{error}{source}"))
    };
    let Some(pem) = ca_pem else {
        return endpoint
            .tls_config(ClientTlsConfig::new().with_native_roots())
            .map_err(bad);
    };
    if !pem.windows(27).any(|part| part == b"-----BEGIN CERTIFICATE-----") {
        return Err(RunnerError::BadCa("it holds no certificate".into()));
    }
    let own = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(pem));
    // A minimal container has no native roots at all: then the given one must do.
    endpoint
        .clone()
        .tls_config(own.clone().with_native_roots())
        .or_else(|_| endpoint.tls_config(own))
        .map_err(bad)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::tests::config;

    fn refused(change: impl FnOnce(&mut RunnerConfig)) -> String {
        let mut config = config(std::path::Path::new("/tmp/x"));
        change(&mut config);
        match Link::new(&config) {
            Ok(_) => panic!("must be refused"),
            Err(error) => error.to_string(),
        }
    }

    #[tokio::test]
    async fn an_address_without_a_scheme_is_refused_with_the_remedy() {
        assert!(refused(|c| c.urls = vec!["scheduler:7070".into()]).contains("write it like http://HOST:PORT"));
        assert!(refused(|c| c.urls.clear()).contains("give at least one"));
        assert!(refused(|c| c.token.clear()).contains("token"));
        assert!(refused(|c| c.token = "a\nb".into()).contains("token"));
        let bad_ca = refused(|c| {
            c.urls = vec!["https://scheduler:7070".into()];
            c.ca_pem = Some(b"nonsense".to_vec());
        });
        assert!(bad_ca.contains("no certificate"), "{bad_ca}");
    }

    #[tokio::test]
    async fn many_failures_of_one_connection_change_it_once() {
        let mut config = config(std::path::Path::new("/tmp/x"));
        config.urls = vec!["http://127.0.0.1:1".into(), "http://127.0.0.1:2".into()];
        let link = Link::new(&config).unwrap();
        for _ in 0..3 {
            link.rotate(0);
        }
        assert_eq!(link.address(), "http://127.0.0.1:2/");
        link.rotate(1);
        assert_eq!(link.address(), "http://127.0.0.1:1/");
    }

    #[test]
    fn failures_are_told_apart() {
        assert!(matches!(classify(&Status::already_exists("")), Missed::Taken { .. }));
        assert!(matches!(classify(&Status::unauthenticated("")), Missed::Denied(_)));
        assert!(matches!(classify(&Status::invalid_argument("")), Missed::Refused(_)));
        assert!(matches!(classify(&Status::unavailable("")), Missed::Unanswered(_)));
    }
}

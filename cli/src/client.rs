//! Calls to a scheduler: finds the token, connects on first use, and hides a short absence.
//!
//! Every call of this client may be repeated safely: reads change nothing, submits carry a key, and
//! cancel, cordon and uncordon say what is to be, not what is to change.

mod alarms;
mod jobs;
mod leases;

use crate::args::Global;
use crate::context;
use crate::failure::{Failure, cause, io_cause, is_refused_connection, is_transient};
use crate::locale;
use crate::paths::{self, Role};
use crate::url::Url;
use std::net::ToSocketAddrs as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use systole_proto::v1;
use systole_proto::v1::access_service_client::AccessServiceClient;
use systole_proto::v1::cluster_admin_client::ClusterAdminClient;
use systole_proto::v1::runner_admin_client::RunnerAdminClient;
use systole_proto::v1::task_service_client::TaskServiceClient;
use systole_shared::limits::GET_IDS_MAX;
use systole_shared::locale::Locale;
use systole_shared::task::trace;
use tokio::time::Instant;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint};
use tonic::{Request, Response, Status, Streaming};

/// How long a call is repeated while schedulers are restarted.
const RETRY_MAX: Duration = Duration::from_secs(5);
/// Nobody listens there and nobody did before: more waiting only delays the message.
const RETRY_REFUSED_MAX: Duration = Duration::from_millis(300);
const RETRY_FIRST: Duration = Duration::from_millis(100);
const CONNECT_MAX: Duration = Duration::from_secs(5);
/// Longest wait for one answer that is not a stream.
const ANSWER_MAX: Duration = Duration::from_secs(20);
/// A page holds up to 1,000 tasks of up to 1 MiB each; a page that is larger than this is an error.
const ANSWER_BYTES_MAX: usize = 256 * 1024 * 1024;

struct Target {
    url: Url,
    channel: Channel,
}

pub struct Client {
    targets: Vec<Target>,
    /// Index of the address in use; the next one is taken when it fails.
    current: AtomicUsize,
    /// Some answer was received.
    answered: AtomicBool,
    authorization: MetadataValue<Ascii>,
    locale: Locale,
    /// Name of the context that led here.
    context: Option<String>,
}

/// Addresses of a client: of its context, if it has one.
pub fn urls(global: &Global) -> Result<Vec<Url>, Failure> {
    match context::chosen(global)? {
        Some(chosen) => chosen.urls(),
        None => service_urls(global),
    }
}

/// Addresses of the command line, else of the environment, else this machine.
pub fn service_urls(global: &Global) -> Result<Vec<Url>, Failure> {
    if !global.url.is_empty() {
        return Ok(global.url.clone());
    }
    let Some(text) = paths::variable("SYSTOLE_URL") else {
        let url = Url::local_default();
        // A scheduler of this user with TLS leaves its authority beside the tokens.
        let secure = paths::found_ca(std::slice::from_ref(&url)).is_some();
        return Ok(vec![if secure { url.with_tls() } else { url }]);
    };
    let urls: Result<Vec<Url>, String> = text.to_string_lossy().split(',').map(Url::parse).collect();
    urls.map_err(|error| Failure::usage(format!("SYSTOLE_URL: {error}")))
}

/// The certificate authority to trust, PEM: the one that is named, else what a scheduler of this user left here.
pub fn ca_pem(global: &Global, urls: &[Url]) -> Result<Option<Vec<u8>>, Failure> {
    let chosen = context::chosen(global)?;
    let explicit = chosen.as_ref().is_some_and(|chosen| chosen.explicit);
    let of_context = chosen.and_then(|chosen| chosen.context.ca);
    let variable = paths::variable("SYSTOLE_CA").map(PathBuf::from);
    let candidates = [
        (global.ca.clone(), "--ca"),
        (of_context.clone().filter(|_| explicit), "the context's authority"),
        (variable.filter(|_| !explicit), "SYSTOLE_CA"),
        (of_context, "the context's authority"),
        (paths::found_ca(urls), "the authority of this scheduler"),
    ];
    let found = candidates.into_iter().find_map(|(path, option)| Some((path?, option)));
    let Some((path, option)) = found else {
        return Ok(None);
    };
    let pem = std::fs::read(&path).map_err(|error| {
        Failure::usage(format!(
            "{option}: {} cannot be read: {}",
            path.display(),
            io_cause(&error)
        ))
    })?;
    if !String::from_utf8_lossy(&pem).contains("-----BEGIN CERTIFICATE-----") {
        return Err(Failure::usage(format!(
            "{option}: {} holds no PEM certificate",
            path.display()
        )));
    }
    Ok(Some(pem))
}

/// The token file that somebody named: the variable, or that of the context, which goes first if it was asked for.
pub fn named_token(global: &Global) -> Result<Option<PathBuf>, Failure> {
    let chosen = context::chosen(global)?;
    let explicit = chosen.as_ref().is_some_and(|chosen| chosen.explicit);
    let of_context = chosen.and_then(|chosen| chosen.context.token_file);
    let variable = paths::variable("SYSTOLE_TOKEN_FILE").map(PathBuf::from);
    Ok(if explicit {
        of_context.or(variable)
    } else {
        variable.or(of_context)
    })
}

/// The token of this role. Where there is none because there is no scheduler either, says the latter.
pub fn token(urls: &[Url], named: Option<&Path>, role: Role) -> Result<String, Failure> {
    match paths::find_token(named, urls, role)? {
        Ok(token) => Ok(token),
        Err(missing) => match urls.first().map(|url| (url, probe(url))) {
            Some((url, Err(cause))) => Err(Failure::no_scheduler(url, &cause)),
            _ => Err(missing),
        },
    }
}

/// Whether anybody listens there.
fn probe(url: &Url) -> Result<(), String> {
    let mut addresses = (url.host.as_str(), url.port)
        .to_socket_addrs()
        .map_err(|error| io_cause(&error))?;
    let address = addresses.next().ok_or("the host has no address")?;
    std::net::TcpStream::connect_timeout(&address, Duration::from_secs(2))
        .map(drop)
        .map_err(|error| io_cause(&error))
}

impl Client {
    /// Does not connect yet. Must be called inside a runtime.
    pub fn new(global: &Global) -> Result<Self, Failure> {
        let urls = urls(global)?;
        let ca = if urls.iter().any(|url| url.secure) {
            ca_pem(global, &urls)?
        } else {
            None
        };
        let name = context::chosen(global)?.map(|chosen| chosen.name);
        let named = named_token(global)?;
        let token = token(&urls, named.as_deref(), Role::Admin)?;
        let mut authorization: MetadataValue<Ascii> = format!("Bearer {token}")
            .parse()
            .map_err(|_| Failure::refused("the token contains characters that cannot be sent"))?;
        authorization.set_sensitive(true);
        let targets: Result<Vec<Target>, Failure> = urls
            .into_iter()
            .map(|url| {
                let channel = endpoint(&url, ca.as_deref())?.connect_lazy();
                Ok(Target { url, channel })
            })
            .collect();
        Ok(Self {
            targets: targets?,
            current: AtomicUsize::new(0),
            answered: AtomicBool::new(false),
            authorization,
            locale: locale::wanted(global),
            context: name,
        })
    }

    fn target(&self) -> &Target {
        &self.targets[self.current.load(Ordering::Relaxed) % self.targets.len()]
    }

    /// Which cluster a question is about, so that nobody answers it for another one.
    pub fn place(&self) -> String {
        match &self.context {
            Some(name) => format!("context {name} ({})", self.url()),
            None => self.url().to_string(),
        }
    }

    /// The address in use.
    pub fn url(&self) -> &Url {
        &self.target().url
    }

    /// Takes the next address after this one failed.
    pub fn turn(&self) {
        self.current.fetch_add(1, Ordering::Relaxed);
    }

    fn request<M>(&self, message: M) -> Request<M> {
        let mut request = Request::new(message);
        request
            .metadata_mut()
            .insert("authorization", self.authorization.clone());
        if self.locale != Locale::En {
            let tag = MetadataValue::from_static(self.locale.tag());
            request.metadata_mut().insert("accept-language", tag);
        }
        request
    }

    fn tasks(&self) -> TaskServiceClient<Channel> {
        TaskServiceClient::new(self.target().channel.clone()).max_decoding_message_size(ANSWER_BYTES_MAX)
    }

    fn admin(&self) -> RunnerAdminClient<Channel> {
        RunnerAdminClient::new(self.target().channel.clone()).max_decoding_message_size(ANSWER_BYTES_MAX)
    }

    fn access(&self) -> AccessServiceClient<Channel> {
        AccessServiceClient::new(self.target().channel.clone()).max_decoding_message_size(ANSWER_BYTES_MAX)
    }

    fn cluster(&self) -> ClusterAdminClient<Channel> {
        ClusterAdminClient::new(self.target().channel.clone()).max_decoding_message_size(ANSWER_BYTES_MAX)
    }

    /// Repeats `call` while the failure is one that passes, for a few seconds.
    async fn unary<T, F>(&self, call: impl Fn() -> F) -> Result<T, Failure>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        let begin = Instant::now();
        let mut pause = RETRY_FIRST;
        loop {
            let answer = match tokio::time::timeout(ANSWER_MAX, call()).await {
                Ok(answer) => answer,
                Err(_) => Err(Status::deadline_exceeded(format!(
                    "no answer for {} s",
                    ANSWER_MAX.as_secs()
                ))),
            };
            let status = match answer {
                Ok(response) => {
                    self.answered.store(true, Ordering::Relaxed);
                    return Ok(response.into_inner());
                }
                Err(status) => status,
            };
            let patience = if is_refused_connection(&status) && !self.answered.load(Ordering::Relaxed) {
                RETRY_REFUSED_MAX
            } else {
                RETRY_MAX
            };
            let failure = Failure::from_status(&status, self.url());
            if !is_transient(&status) || begin.elapsed() + pause > patience {
                return Err(failure);
            }
            self.turn();
            tokio::time::sleep(pause).await;
            pause *= 2;
        }
    }

    /// The item must carry a key, so that a repeated submit does not run twice.
    /// `traceparent`: the W3C trace that the submission belongs to, checked.
    pub async fn submit(
        &self,
        request: v1::SubmitRequest,
        traceparent: Option<&str>,
    ) -> Result<v1::SubmitResult, Failure> {
        let traced = || {
            let mut request = self.request(request.clone());
            if let Some(trace) = traceparent.and_then(|trace| trace.parse().ok()) {
                request.metadata_mut().insert(trace::HEADER, trace);
            }
            request
        };
        let response = self.unary(|| async { self.tasks().submit(traced()).await }).await?;
        let result = response.results.into_iter().next().ok_or_else(short_answer)?;
        match &result.error {
            Some(error) => Err(Failure::from_item(error)),
            None => Ok(result),
        }
    }

    /// One result per item, in order. The items must carry keys.
    pub async fn submit_many(&self, request: v1::SubmitRequest) -> Result<Vec<v1::SubmitResult>, Failure> {
        let count = request.items.len();
        let response = self
            .unary(|| async { self.tasks().submit(self.request(request.clone())).await })
            .await?;
        if response.results.len() == count {
            Ok(response.results)
        } else {
            Err(short_answer())
        }
    }

    /// One result per id, in order.
    pub async fn get_many(&self, ids: &[i64]) -> Result<Vec<v1::GetResult>, Failure> {
        let mut results = Vec::with_capacity(ids.len());
        for ids in ids.chunks(GET_IDS_MAX) {
            let request = v1::GetRequest { ids: ids.to_vec() };
            let response = self
                .unary(|| async { self.tasks().get(self.request(request.clone())).await })
                .await?;
            if response.results.len() != ids.len() {
                return Err(short_answer());
            }
            results.extend(response.results);
        }
        Ok(results)
    }

    pub async fn get(&self, id: i64) -> Result<v1::Task, Failure> {
        let result = self.get_many(&[id]).await?.pop().ok_or_else(short_answer)?;
        match (result.task, result.error) {
            (_, Some(error)) => Err(Failure::from_item(&error)),
            (Some(task), None) => Ok(task),
            (None, None) => Err(short_answer()),
        }
    }

    pub async fn explain(&self, task_id: i64) -> Result<v1::ExplainResponse, Failure> {
        self.unary(|| async { self.tasks().explain(self.request(v1::ExplainRequest { task_id })).await })
            .await
    }

    pub async fn list(&self, request: v1::ListRequest) -> Result<v1::ListResponse, Failure> {
        self.unary(|| async { self.tasks().list(self.request(request.clone())).await })
            .await
    }

    pub async fn count(&self, filter: v1::TaskFilter) -> Result<v1::CountResponse, Failure> {
        let request = v1::CountRequest { filter: Some(filter) };
        self.unary(|| async { self.tasks().count(self.request(request.clone())).await })
            .await
    }

    /// One page of a cancel by filter.
    pub async fn cancel_matching(&self, request: v1::CancelRequest) -> Result<v1::CancelResponse, Failure> {
        self.unary(|| async { self.tasks().cancel(self.request(request.clone())).await })
            .await
    }

    pub async fn cancel(&self, request: v1::CancelRequest) -> Result<Vec<v1::CancelResult>, Failure> {
        let count = request.ids.len();
        let response = self
            .unary(|| async { self.tasks().cancel(self.request(request.clone())).await })
            .await?;
        if response.results.len() == count {
            Ok(response.results)
        } else {
            Err(short_answer())
        }
    }

    pub async fn runners(&self, request: v1::ListRunnersRequest) -> Result<v1::ListRunnersResponse, Failure> {
        self.unary(|| async { self.admin().list(self.request(request.clone())).await })
            .await
    }

    /// Cordons, or uncordons; one result per runner, in order.
    pub async fn cordon(&self, request: v1::CordonRequest, cordon: bool) -> Result<Vec<v1::CordonResult>, Failure> {
        let count = request.runners.len();
        let response = self
            .unary(|| async {
                let request = self.request(request.clone());
                if cordon {
                    self.admin().cordon(request).await
                } else {
                    self.admin().uncordon(request).await
                }
            })
            .await?;
        if response.results.len() == count {
            Ok(response.results)
        } else {
            Err(short_answer())
        }
    }

    /// Forgets a host. A call that is repeated because its answer was lost finds nothing any more.
    pub async fn remove_host(&self, request: v1::RemoveHostRequest) -> Result<v1::RemoveHostResponse, Failure> {
        self.unary(|| async { self.admin().remove(self.request(request.clone())).await })
            .await
    }

    /// Names the secret by its hash, so that a repeated call finds its own token.
    pub async fn create_token(&self, request: v1::CreateTokenRequest) -> Result<v1::Token, Failure> {
        let response = self
            .unary(|| async { self.access().create_token(self.request(request.clone())).await })
            .await?;
        response.token.ok_or_else(short_answer)
    }

    pub async fn tokens(&self) -> Result<Vec<v1::Token>, Failure> {
        let request = v1::ListTokensRequest {};
        let response = self
            .unary(|| async { self.access().list_tokens(self.request(request)).await })
            .await?;
        Ok(response.tokens)
    }

    /// One result per name, in order.
    pub async fn revoke_tokens(&self, request: v1::RevokeTokensRequest) -> Result<Vec<v1::RevokeTokenResult>, Failure> {
        let count = request.names.len();
        let response = self
            .unary(|| async { self.access().revoke_tokens(self.request(request.clone())).await })
            .await?;
        if response.results.len() == count {
            Ok(response.results)
        } else {
            Err(short_answer())
        }
    }

    pub async fn create_join_token(
        &self,
        request: v1::CreateJoinTokenRequest,
    ) -> Result<v1::CreateJoinTokenResponse, Failure> {
        self.unary(|| async { self.access().create_join_token(self.request(request.clone())).await })
            .await
    }

    pub async fn audit(&self, request: v1::ListAuditRequest) -> Result<v1::ListAuditResponse, Failure> {
        self.unary(|| async { self.access().list_audit(self.request(request.clone())).await })
            .await
    }

    pub async fn pause(&self, request: v1::PauseRequest) -> Result<v1::PauseResponse, Failure> {
        self.unary(|| async { self.cluster().pause(self.request(request.clone())).await })
            .await
    }

    /// A call that is repeated because its answer was lost finds nothing to lift.
    pub async fn resume(&self, request: v1::ResumeRequest) -> Result<v1::ResumeResponse, Failure> {
        self.unary(|| async { self.cluster().resume(self.request(request.clone())).await })
            .await
    }

    pub async fn status(&self, request: v1::StatusRequest) -> Result<v1::StatusResponse, Failure> {
        self.unary(|| async { self.cluster().status(self.request(request)).await })
            .await
    }

    pub async fn alarms(&self) -> Result<Vec<v1::Alarm>, Failure> {
        let response = self
            .unary(|| async { self.cluster().alarms(self.request(v1::AlarmsRequest {})).await })
            .await?;
        Ok(response.alarms)
    }

    pub async fn confirm(&self, request: v1::ConfirmRequest) -> Result<v1::ConfirmResponse, Failure> {
        self.unary(|| async { self.cluster().confirm(self.request(request.clone())).await })
            .await
    }

    pub async fn examine(&self) -> Result<v1::ExamineResponse, Failure> {
        self.unary(|| async { self.cluster().examine(self.request(v1::ExamineRequest {})).await })
            .await
    }

    /// One try: a backup that breaks off is begun again by who asked.
    pub async fn backup(&self, request: v1::BackupRequest) -> Result<Streaming<v1::BackupPiece>, Failure> {
        match self.cluster().backup(self.request(request)).await {
            Ok(response) => Ok(response.into_inner()),
            Err(status) => Err(Failure::from_status(&status, self.url())),
        }
    }

    /// One try; `follow` does the rest.
    pub async fn watch_once(&self, request: v1::WatchRequest) -> Result<Streaming<v1::WatchResponse>, Status> {
        self.tasks()
            .watch(self.request(request))
            .await
            .map(Response::into_inner)
    }

    /// One try; `follow` does the rest.
    pub async fn read_output_once(
        &self,
        request: v1::ReadOutputRequest,
    ) -> Result<Streaming<v1::ReadOutputResponse>, Status> {
        self.tasks()
            .read_output(self.request(request))
            .await
            .map(Response::into_inner)
    }
}

fn short_answer() -> Failure {
    Failure::new(
        crate::exit_code::UNREACHABLE,
        "the scheduler's answer is not complete; is it of another version? See `systole --version`",
    )
}

/// Reads like "connection refused" for messages about a stream.
pub fn cause_of(status: &Status) -> String {
    match crate::failure::code_of(status) {
        Some(code) => code.meaning().to_owned(),
        None => cause(status),
    }
}

pub fn endpoint(url: &Url, ca: Option<&[u8]>) -> Result<Endpoint, Failure> {
    let bad = |error: tonic::transport::Error| Failure::usage(format!("{url}: {}", deepest(&error)));
    let endpoint = Endpoint::from_shared(url.as_str().to_owned())
        .and_then(|endpoint| endpoint.user_agent(concat!("systole/", env!("CARGO_PKG_VERSION"))))
        .map_err(bad)?
        .connect_timeout(CONNECT_MAX)
        .tcp_nodelay(true)
        // A peer that vanished without a word is noticed while a stream is open.
        .http2_keep_alive_interval(Duration::from_secs(20))
        .keep_alive_timeout(Duration::from_secs(10))
        // Room for output: the default of 64 KiB is less than one piece of it.
        .initial_stream_window_size(1024 * 1024)
        .initial_connection_window_size(4 * 1024 * 1024);
    if !url.secure {
        return Ok(endpoint);
    }
    // With an authority of its own, a fleet trusts that one and not the whole world besides.
    let tls = match ca {
        Some(pem) => ClientTlsConfig::new().ca_certificate(Certificate::from_pem(pem)),
        None => ClientTlsConfig::new().with_native_roots(),
    };
    endpoint.tls_config(tls).map_err(bad)
}

fn deepest(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(source) => deepest(source),
        None => error.to_string(),
    }
}

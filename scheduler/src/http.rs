//! One port: gRPC, and plain HTTP for health, numbers and tasks; with or without TLS.

mod api;

use crate::auth::guard::{Visitor, guard, is_grpc};
use crate::auth::rules::CALLS;
use crate::config::Strangers;
use crate::context::Context;
use crate::flow::Refusal;
use crate::flow::alarms;
use crate::grpc::access::Access;
use crate::grpc::admin::Admin;
use crate::grpc::alarms::Alarms;
use crate::grpc::cluster::Cluster;
use crate::grpc::jobs::Jobs;
use crate::grpc::leases::Leases;
use crate::grpc::runners::Runners;
use crate::grpc::tasks::Tasks;
use crate::store::StoreError;
use axum::extract::State;
use axum::routing::get;
use http::StatusCode;
use hyper::body::Incoming;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use nix::sys::socket::{setsockopt, sockopt};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};
use systole_proto::v1::access_service_server::AccessServiceServer;
use systole_proto::v1::alarm_service_server::AlarmServiceServer;
use systole_proto::v1::cluster_admin_server::ClusterAdminServer;
use systole_proto::v1::job_service_server::JobServiceServer;
use systole_proto::v1::lease_service_server::LeaseServiceServer;
use systole_proto::v1::runner_admin_server::RunnerAdminServer;
use systole_proto::v1::runner_service_server::RunnerServiceServer;
use systole_proto::v1::task_service_server::TaskServiceServer;
use systole_shared::error::{Code, Kind};
use systole_shared::limits::{BEAT_BYTES_MAX, MESSAGE_BYTES_MAX, STREAMS_PER_CONNECTION_MAX};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;

/// Connections at once, where the process may have as many files.
const CONNECTIONS_MAX: usize = 20_000;
/// Where it may have next to none: runners and people share what is there.
const CONNECTIONS_MIN: usize = 64;
/// Files that are no connections: the database, logs, calls to others.
const FILES_KEPT: u64 = 200;
/// Connections that are not taken are told once in this time.
const ACCEPT_LOG_EVERY: Duration = Duration::from_secs(60);
/// A machine that is gone without a word is noticed within the sum of both, by the kernel: it asks the other side, and this process
/// sleeps on.
const PROBE_EVERY: Duration = Duration::from_secs(10);
const PROBE_MAX: Duration = Duration::from_secs(5);
/// A process that stands still, behind a kernel that answers: within the sum of these.
const KEEPALIVE_EVERY: Duration = Duration::from_secs(30);
const KEEPALIVE_MAX: Duration = Duration::from_secs(5);
/// Upload of output: 16 chunks of 256 KiB would exceed it; uploads are bounded to 2 MiB together.
const RUNNER_BYTES_MAX: usize = 4 * 1024 * 1024;

/// All services and routes.
pub fn router(ctx: Arc<Context>) -> Result<axum::Router, StoreError> {
    let tasks = TaskServiceServer::new(Tasks { ctx: Arc::clone(&ctx) })
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX);
    let runners = RunnerServiceServer::new(Runners { ctx: Arc::clone(&ctx) })
        .max_decoding_message_size(RUNNER_BYTES_MAX.max(BEAT_BYTES_MAX))
        .max_encoding_message_size(RUNNER_BYTES_MAX);
    let admin = RunnerAdminServer::new(Admin { ctx: Arc::clone(&ctx) })
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX);
    let jobs = JobServiceServer::new(Jobs { ctx: Arc::clone(&ctx) })
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX);
    let access = AccessServiceServer::new(Access { ctx: Arc::clone(&ctx) });
    let job_alarms = AlarmServiceServer::new(Alarms { ctx: Arc::clone(&ctx) });
    let cluster = ClusterAdminServer::new(Cluster { ctx: Arc::clone(&ctx) });
    let leases = LeaseServiceServer::new(Leases { ctx: Arc::clone(&ctx) });
    let reflection = tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(systole_proto::DESCRIPTORS)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        .build_v1()
        .map_err(|error| StoreError::Other(format!("reflection: {error}")))?;
    let (reporter, health) = tonic_health::server::health_reporter();
    tokio::spawn(report_health(Arc::clone(&ctx), reporter));
    let grpc = Routes::new(tasks)
        .add_service(runners)
        .add_service(admin)
        .add_service(access)
        .add_service(jobs)
        .add_service(cluster)
        .add_service(leases)
        .add_service(job_alarms)
        .add_service(reflection)
        .add_service(health);
    let plain = axum::Router::new()
        .route("/healthz", get(|| async { "alive\n" }))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
        .merge(api::router())
        .with_state(Arc::clone(&ctx));
    Ok(grpc
        .into_axum_router()
        .merge(plain)
        .fallback(nothing_here)
        // Outermost: whatever is served, and however it came to be a route, has passed it.
        .layer(axum::middleware::from_fn_with_state(ctx, guard)))
}

/// An unknown path, answered in the protocol of the caller.
pub async fn nothing_here(request: axum::extract::Request) -> axum::response::Response {
    if is_grpc(&request) {
        tonic::Status::unimplemented("this scheduler has no such call; is the client of a later version?").into_http()
    } else {
        axum::response::IntoResponse::into_response((
            StatusCode::NOT_FOUND,
            "nothing here; /v1/openapi.json says what is\n",
        ))
    }
}

/// A path that is known, and a method that it does not take.
pub fn wrong_method(methods: &[&str]) -> axum::response::Response {
    let methods = methods.join(", ");
    axum::response::IntoResponse::into_response((
        StatusCode::METHOD_NOT_ALLOWED,
        [(http::header::ALLOW, methods.clone())],
        format!("this path takes {methods}; /v1/openapi.json says more\n"),
    ))
}

/// A refusal over plain HTTP.
pub fn refuse(refusal: &Refusal) -> axum::response::Response {
    let status = match refusal.code {
        Code::TokenMissing => StatusCode::UNAUTHORIZED,
        code => match code.kind() {
            Kind::NotFound => StatusCode::NOT_FOUND,
            Kind::Validation => StatusCode::BAD_REQUEST,
            Kind::Conflict => StatusCode::CONFLICT,
            Kind::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
            Kind::Denied => StatusCode::FORBIDDEN,
            Kind::Exhausted => StatusCode::TOO_MANY_REQUESTS,
            Kind::Unexpected => StatusCode::INTERNAL_SERVER_ERROR,
        },
    };
    let body = serde_json::json!({"error": {
        "code": refusal.code.name(),
        "message": crate::locale::say(refusal),
        "field": refusal.field,
    }});
    let mut response = axum::response::IntoResponse::into_response((
        status,
        [(http::header::CONTENT_TYPE, "application/json")],
        format!("{body}\n"),
    ));
    if status == StatusCode::UNAUTHORIZED {
        response
            .headers_mut()
            .insert(http::header::WWW_AUTHENTICATE, http::HeaderValue::from_static("Bearer"));
    }
    response
}

/// A replica with an alarm is ready all the same: what the alarm does not hold goes on.
async fn metrics(State(ctx): State<Arc<Context>>) -> axum::response::Response {
    match crate::metrics::render(&ctx).await {
        Ok(text) => {
            let kind = (http::header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8");
            axum::response::IntoResponse::into_response(([kind], text))
        }
        Err(error) => refuse(&Refusal::from(error)),
    }
}

async fn ready(State(ctx): State<Arc<Context>>) -> (StatusCode, String) {
    if ctx.is_ready() {
        let mut text = String::from("ready\n");
        if let Some(alarm) = alarms::clock(&ctx) {
            text.push_str(&format!("alarm: {}\n", alarm.message));
        }
        if !ctx.ahead.hosts().is_empty() {
            text.push_str("alarm: the database was set back; see `systole admin alarms`\n");
        }
        (StatusCode::OK, text)
    } else if ctx.draining.is_cancelled() {
        (StatusCode::SERVICE_UNAVAILABLE, "draining\n".into())
    } else {
        (
            StatusCode::SERVICE_UNAVAILABLE,
            "the database cannot be written\n".into(),
        )
    }
}

/// All services of ours, and "" for the whole, as gRPC's health protocol has it.
fn services() -> BTreeSet<&'static str> {
    let paths = CALLS.iter().map(|(path, _)| *path);
    let names = paths.filter_map(|path| Some(path.strip_prefix('/')?.split_once('/')?.0));
    names.filter(|name| name.starts_with("systole.")).chain([""]).collect()
}

async fn report_health(ctx: Arc<Context>, reporter: tonic_health::server::HealthReporter) {
    let names = services();
    loop {
        let status = if ctx.is_ready() {
            tonic_health::ServingStatus::Serving
        } else {
            tonic_health::ServingStatus::NotServing
        };
        for name in &names {
            reporter.set_service_status(*name, status).await;
        }
        if ctx.draining.is_cancelled() {
            return;
        }
        tokio::select! {
            () = tokio::time::sleep(Duration::from_secs(1)) => {}
            () = ctx.draining.cancelled() => {}
        }
    }
}

/// As many as there are files for: a connection that is closed at once is better than a database that cannot be opened.
fn connections_max(files_max: u64) -> usize {
    let room = usize::try_from(files_max.saturating_sub(FILES_KEPT)).unwrap_or(CONNECTIONS_MAX);
    room.clamp(CONNECTIONS_MIN, CONNECTIONS_MAX)
}

fn files_max() -> u64 {
    use nix::sys::resource::{Resource, getrlimit};
    getrlimit(Resource::RLIMIT_NOFILE).map_or(u64::MAX, |(soft, _)| soft)
}

/// Says something at most once in a while, and how often it happened since.
struct Seldom {
    every: Duration,
    last: Option<Instant>,
    unsaid: u64,
}

impl Seldom {
    fn new(every: Duration) -> Self {
        Self {
            every,
            last: None,
            unsaid: 0,
        }
    }

    /// It happened. `Some`: say so now, with the number of times since it was said.
    fn happened(&mut self, now: Instant) -> Option<u64> {
        self.unsaid += 1;
        if self.last.is_some_and(|last| now.duration_since(last) < self.every) {
            return None;
        }
        self.last = Some(now);
        Some(std::mem::take(&mut self.unsaid))
    }
}

/// Serves until `stop`, then lets the calls under way end, at most for `drain_max`.
pub async fn serve(
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    router: axum::Router,
    stop: CancellationToken,
    drain_max: Duration,
    strangers: Strangers,
) {
    let connections_max = connections_max(files_max());
    let places = Arc::new(Semaphore::new(connections_max));
    let (mut failed, mut full) = (Seldom::new(ACCEPT_LOG_EVERY), Seldom::new(ACCEPT_LOG_EVERY));
    let closing = CancellationToken::new();
    let mut connections = tokio::task::JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = stop.cancelled() => break,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                // Out of file descriptors, most likely: wait for some to close, never give up.
                if let Some(times) = failed.happened(Instant::now()) {
                    tracing::warn!(%error, times, "connections cannot be taken");
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        while connections.try_join_next().is_some() {}
        let Ok(place) = Arc::clone(&places).try_acquire_owned() else {
            // The connection is closed.
            if let Some(times) = full.happened(Instant::now()) {
                tracing::warn!(
                    connections_max,
                    times,
                    "there are as many connections as this scheduler takes; with a higher hard limit of open files (LimitNOFILE= of systemd, ulimit -Hn elsewhere) it takes up to {CONNECTIONS_MAX}"
                );
            }
            continue;
        };
        let (tls, router, closing) = (tls.clone(), router.clone(), closing.clone());
        connections.spawn(async move {
            let _place = place;
            tokio::select! {
                () = connection(stream, tls, router, closing.clone(), strangers) => {}
                () = async { closing.cancelled().await; tokio::time::sleep(drain_max).await } => {}
            }
        });
    }
    drop(listener);
    closing.cancel();
    while connections.join_next().await.is_some() {}
}

async fn connection(
    stream: TcpStream,
    tls: Option<TlsAcceptor>,
    router: axum::Router,
    closing: CancellationToken,
    strangers: Strangers,
) {
    // Small answers must not wait for more bytes to send.
    drop(stream.set_nodelay(true));
    if let Err(error) = probe(&stream) {
        tracing::debug!(%error, "the kernel does not watch a connection");
    }
    // Somebody who connects and says nothing must not hold a place.
    let spoke = tokio::time::timeout(strangers.handshake_max, stream.peek(&mut [0])).await;
    if !matches!(spoke, Ok(Ok(1..))) {
        return;
    }
    match tls {
        None => drive(TokioIo::new(stream), router, closing, strangers).await,
        Some(tls) => match tokio::time::timeout(strangers.handshake_max, tls.accept(stream)).await {
            Ok(Ok(stream)) => drive(TokioIo::new(stream), router, closing, strangers).await,
            Ok(Err(error)) => tracing::debug!(%error, "TLS handshake"),
            Err(_) => tracing::debug!("TLS handshake took too long"),
        },
    }
}

/// Has the kernel find out whether the machine at the other end is there.
fn probe(stream: &TcpStream) -> nix::Result<()> {
    let seconds = |time: Duration| u32::try_from(time.as_secs()).unwrap_or(u32::MAX);
    setsockopt(stream, sockopt::TcpKeepIdle, &seconds(PROBE_EVERY))?;
    setsockopt(stream, sockopt::TcpKeepInterval, &seconds(PROBE_MAX))?;
    setsockopt(stream, sockopt::TcpKeepCount, &1)?;
    setsockopt(stream, sockopt::KeepAlive, &true)
}

/// Serves a connection to its end. One that brings no admitted call in time is told to end, so that a call under way is still
/// answered and a balancer opens another one; whoever does not end it then is cut off.
async fn drive<I>(io: I, router: axum::Router, closing: CancellationToken, strangers: Strangers)
where
    I: hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static,
{
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(strangers.handshake_max);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS_PER_CONNECTION_MAX)
        .max_pending_accept_reset_streams(200)
        .keep_alive_interval(KEEPALIVE_EVERY)
        .keep_alive_timeout(KEEPALIVE_MAX);
    let visitor = Arc::new(Visitor::default());
    let served = TowerToHyperService::new(router);
    let noted = Arc::clone(&visitor);
    let service = service_fn(move |mut request: http::Request<Incoming>| {
        request.extensions_mut().insert(Arc::clone(&noted));
        served.call(request)
    });
    let connection = builder.serve_connection(io, service);
    tokio::pin!(connection);
    tokio::select! {
        done = connection.as_mut() => return ended(done),
        () = closing.cancelled() => {}
        () = stranger(&visitor, strangers.admission_max) => tracing::debug!("no admitted call in time"),
    }
    connection.as_mut().graceful_shutdown();
    tokio::select! {
        done = connection.as_mut() => ended(done),
        () = stranger(&visitor, strangers.handshake_max) => tracing::debug!("cut off: no admitted call in time"),
    }
}

/// Resolves after `time` if no call was admitted until then, else never.
async fn stranger(visitor: &Visitor, time: Duration) {
    tokio::time::sleep(time).await;
    if visitor.is_admitted() {
        std::future::pending::<()>().await;
    }
}

fn ended<E: std::fmt::Display>(done: Result<(), E>) {
    if let Err(error) = done {
        tracing::debug!(%error, "connection");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_kernel_watches_a_connection() {
        use nix::sys::socket::getsockopt;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let _client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (stream, _) = listener.accept().await.unwrap();
        probe(&stream).unwrap();
        assert!(getsockopt(&stream, sockopt::KeepAlive).unwrap());
        let times = [
            getsockopt(&stream, sockopt::TcpKeepIdle).unwrap(),
            getsockopt(&stream, sockopt::TcpKeepInterval).unwrap(),
            getsockopt(&stream, sockopt::TcpKeepCount).unwrap(),
        ];
        assert_eq!(times, [10, 5, 1]);
    }

    #[test]
    fn there_are_no_more_connections_than_files() {
        for (files, connections) in [
            (0, 64),
            (100, 64),
            (264, 64),
            (1_024, 824),
            (20_200, 20_000),
            (65_536, 20_000),
            (u64::MAX, 20_000),
        ] {
            assert_eq!(connections_max(files), connections, "{files}");
        }
    }

    #[test]
    fn what_happens_all_the_time_is_said_once_a_minute() {
        let began = Instant::now();
        let mut seldom = Seldom::new(Duration::from_secs(60));
        let said: Vec<Option<u64>> = [0, 1, 59, 60, 61, 200]
            .map(|after| seldom.happened(began + Duration::from_secs(after)))
            .to_vec();
        assert_eq!(said, [Some(1), None, None, Some(3), None, Some(2)]);
    }
}

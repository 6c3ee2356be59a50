//! Tasks over plain HTTP, for programs that speak no gRPC: the same rules, tokens, errors and idempotency. The document is
//! `docs/openapi.json`, served at `/v1/openapi.json`.

use super::refuse;
use crate::auth::Actor;
use crate::context::Context;
use crate::flow::output::{Piece, Read};
use crate::flow::submit::{self, Item};
use crate::flow::{Refusal, cancel, output};
use crate::grpc::tasks::to_wire;
use crate::store::output::Stream;
use crate::store::submit::Stored;
use axum::body::{Body, Bytes};
use axum::extract::{Path, RawQuery, Request, State};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{MethodRouter, get, post};
use axum::{Extension, Router};
use base64::Engine as _;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, LOCATION, X_CONTENT_TYPE_OPTIONS};
use http::{HeaderMap, StatusCode};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::sync::Arc;
use systole_proto::convert::{ERROR_CODE_KEY, ERROR_FIELD_KEY, spec_from_wire};
use systole_proto::json::{Spec, Task};
use systole_proto::v1;
use systole_shared::error::{Code, Invalid};
use systole_shared::json::check_keys;
use systole_shared::limits::REASON_CHARS_MAX;
use systole_shared::task::TaskState;
use systole_shared::task::spec::check_text;
use systole_shared::task::trace;
use systole_shared::time::format_utc;
use tokio::sync::mpsc;

/// A body: one task, of at most 1 MiB, and its JSON.
const BODY_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Pieces of output that wait for a slow reader.
const PIECES_MAX: usize = 8;
/// Version of the shapes; it is in every document.
const FORMAT: u32 = 1;
/// The document of this interface.
pub const OPENAPI: &str = include_str!("../../../docs/openapi.json");

pub fn router() -> Router<Arc<Context>> {
    Router::new()
        .route("/v1/tasks", post(create))
        .route("/v1/tasks/{id}", task_routes())
        .route("/v1/tasks/{id}/output", get(read_output))
        .route(
            "/v1/openapi.json",
            get(|| async { ([(CONTENT_TYPE, "application/json")], OPENAPI) }),
        )
}

fn task_routes() -> MethodRouter<Arc<Context>> {
    get(one).delete(end)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Submission {
    spec: Spec,
    #[serde(default)]
    reason: String,
}

#[derive(Serialize)]
struct OneTask {
    format: u32,
    task: Task,
    /// Nothing new was stored.
    #[serde(skip_serializing_if = "Option::is_none")]
    existing: Option<bool>,
}

type Answer = Result<Response, Refusal>;

fn answer(done: Answer) -> Response {
    done.unwrap_or_else(|refusal| refuse(&refusal))
}

fn invalid(field: &str, message: impl Into<String>) -> Refusal {
    Invalid::new(field, message).into()
}

async fn create(State(ctx): State<Arc<Context>>, Extension(actor): Extension<Actor>, request: Request) -> Response {
    let (head, body) = request.into_parts();
    // A page in a browser cannot send this without asking first.
    let json = head
        .headers
        .get(CONTENT_TYPE)
        .and_then(|kind| kind.to_str().ok())
        .is_some_and(|kind| kind.split(';').next().unwrap_or_default().trim() == "application/json");
    if !json {
        return answer(Err(invalid("content-type", "has to be application/json")));
    }
    if let Err(refusal) = parameters(head.uri.query(), &[]) {
        return answer(Err(refusal));
    }
    match axum::body::to_bytes(body, BODY_BYTES_MAX).await {
        Ok(body) => answer(submit(&ctx, &actor, &head.headers, &body).await),
        Err(_) => answer(Err(invalid(
            "body",
            format!("cannot be read, or is larger than {} MiB", BODY_BYTES_MAX >> 20),
        ))),
    }
}

async fn submit(ctx: &Context, actor: &Actor, headers: &HeaderMap, body: &Bytes) -> Answer {
    check_keys(body, "body")?;
    let submission = parse(body).map_err(|error| invalid("body", format!("does not fit: {error}")))?;
    check_text(&submission.reason, "reason", REASON_CHARS_MAX)?;
    let key = idempotency_key(headers)?;
    // One that makes no sense is as if there was none, as its standard says.
    let trace = headers
        .get(trace::HEADER)
        .and_then(|value| value.to_str().ok())
        .filter(|value| trace::is_traceparent(value));
    let wire = v1::TaskSpec::try_from(&submission.spec)?;
    let item = spec_from_wire(wire).map(|spec| Item { spec, key });
    let mut results = submit::submit(ctx, vec![item], &actor.name, &submission.reason, trace).await?;
    let (id, existing) = match results.pop() {
        Some(Ok(Stored::New(id))) => (id, false),
        Some(Ok(Stored::Existing(id))) => (id, true),
        Some(Err(refusal)) => return Err(refusal),
        Some(Ok(Stored::KeyReused)) | None => {
            return Err(Refusal::new(Code::Unexpected, "a submission was not answered"));
        }
    };
    let task = task(ctx, id).await?;
    let status = if existing { StatusCode::OK } else { StatusCode::CREATED };
    let mut response = document(status, task, Some(existing))?;
    if let Ok(place) = format!("/v1/tasks/{id}").parse() {
        response.headers_mut().insert(LOCATION, place);
    }
    Ok(response)
}

/// Empty: none. Of two keys nobody can say which one a repeated call is known by.
fn idempotency_key(headers: &HeaderMap) -> Result<String, Refusal> {
    const NAME: &str = "idempotency-key";
    let mut given = headers.get_all(NAME).iter();
    match (given.next(), given.next()) {
        (None, _) => Ok(String::new()),
        (Some(_), Some(_)) => Err(invalid(NAME, "is given more than once; send one header")),
        (Some(key), None) => match key.to_str() {
            Ok(key) if !key.is_empty() => Ok(key.to_owned()),
            _ => Err(invalid(NAME, "is empty, or no visible ASCII")),
        },
    }
}

/// For JSON `5.0` is an integer, too: some languages write whole numbers like this.
fn parse(body: &[u8]) -> Result<Submission, serde_json::Error> {
    // The first error has the line and column of the body.
    serde_json::from_slice(body).or_else(|error| {
        let mut value: Value = serde_json::from_slice(body)?;
        whole(&mut value);
        serde_json::from_value(value).map_err(|_| error)
    })
}

/// Writes whole numbers as integers, as far as all digits of them are there.
fn whole(value: &mut Value) {
    const EXACT: f64 = 9_007_199_254_740_992.0;
    match value {
        Value::Number(number) => {
            if let Some(float) = number.as_f64().filter(|_| number.is_f64())
                && float.fract() == 0.0
                && float.abs() <= EXACT
            {
                *value = Value::from(float as i64);
            }
        }
        Value::Array(values) => values.iter_mut().for_each(whole),
        Value::Object(map) => map.values_mut().for_each(whole),
        Value::Null | Value::Bool(_) | Value::String(_) => {}
    }
}

async fn one(State(ctx): State<Arc<Context>>, Path(id): Path<String>, RawQuery(query): RawQuery) -> Response {
    answer(
        async {
            parameters(query.as_deref(), &[])?;
            document(StatusCode::OK, task(&ctx, id_of(&id)?).await?, None)
        }
        .await,
    )
}

async fn end(
    State(ctx): State<Arc<Context>>,
    Extension(actor): Extension<Actor>,
    Path(id): Path<String>,
    RawQuery(query): RawQuery,
) -> Response {
    answer(
        async {
            let given = parameters(query.as_deref(), &["reason", "exact"])?;
            let reason = find(&given, "reason").unwrap_or_default();
            check_text(reason, "reason", REASON_CHARS_MAX)?;
            let exact = flag(&given, "exact")?;
            let mut results = cancel::cancel(&ctx, vec![id_of(&id)?], &actor.name, reason, exact).await?;
            let cancelled = results
                .pop()
                .ok_or_else(|| Refusal::new(Code::Unexpected, "a cancel was not answered"))??;
            // A running one ends when its runner confirms.
            let status = if cancelled.state == TaskState::Terminating {
                StatusCode::ACCEPTED
            } else {
                StatusCode::OK
            };
            document(status, task(&ctx, cancelled.id).await?, None)
        }
        .await,
    )
}

async fn read_output(State(ctx): State<Arc<Context>>, Path(id): Path<String>, RawQuery(query): RawQuery) -> Response {
    answer(open_output(ctx, &id, query.as_deref()).await)
}

async fn open_output(ctx: Arc<Context>, id: &str, query: Option<&str>) -> Answer {
    let given = parameters(query, &["stream", "offset", "follow", "full", "times"])?;
    let stream = match find(&given, "stream") {
        None | Some("stdout") => Stream::Stdout,
        Some("stderr") => Stream::Stderr,
        Some(other) => return Err(invalid("stream", format!("{other:?} is neither stdout nor stderr"))),
    };
    let offset = match find(&given, "offset") {
        None => 0,
        Some(text) => text
            .parse()
            .map_err(|_| invalid("offset", format!("{text:?} is no number of bytes")))?,
    };
    let times = flag(&given, "times")?;
    let read = Read {
        task_id: id_of(id)?,
        streams: vec![(stream, offset)],
        follow: flag(&given, "follow")?,
        times,
        since_ms: None,
        full: flag(&given, "full")?,
    };
    let (sender, mut receiver) = mpsc::channel::<Result<Piece, Refusal>>(PIECES_MAX);
    tokio::spawn(output::read(Arc::clone(&ctx), read, sender));
    // The first piece decides between an error and a stream.
    let first = receiver.recv().await;
    if let Some(Err(refusal)) = first {
        return Err(refusal);
    }
    let pieces = tokio_stream::StreamExt::chain(
        tokio_stream::iter(first),
        tokio_stream::wrappers::ReceiverStream::new(receiver),
    );
    // An error in the middle breaks the body off, so that nobody takes it for whole.
    let bytes = tokio_stream::StreamExt::map(pieces, move |piece| {
        piece.map(|piece| if times { line(&piece) } else { Bytes::from(piece.data) })
    });
    let kind = if times {
        "application/x-ndjson"
    } else {
        "application/octet-stream"
    };
    let headers = [
        (CONTENT_TYPE, kind),
        // Whatever a task wrote is never a page.
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (CACHE_CONTROL, "no-store"),
    ];
    Ok((headers, Body::from_stream(bytes)).into_response())
}

/// A piece of output with the time at which it was seen first.
#[derive(Serialize)]
struct OutputPiece {
    offset: u64,
    /// `null`: not known, as of what only the runner has.
    seen_at: Option<String>,
    /// Base64: a task writes bytes, not text.
    data: String,
    /// Bytes right before `offset` that are not stored.
    gap: u64,
    /// Bytes that were written after `offset` and are not stored; in the last piece only.
    dropped: u64,
}

/// It as a line of JSON.
fn line(piece: &Piece) -> Bytes {
    let piece = OutputPiece {
        offset: piece.offset,
        seen_at: piece.seen_at_ms.map(format_utc),
        data: base64::engine::general_purpose::STANDARD.encode(&piece.data),
        gap: piece.gap,
        dropped: piece.dropped,
    };
    // Numbers and texts: it always serialises.
    let mut line = serde_json::to_vec(&piece).unwrap_or_default();
    line.push(b'\n');
    line.into()
}

fn id_of(text: &str) -> Result<i64, Refusal> {
    text.parse()
        .ok()
        .filter(|id| *id > 0)
        .ok_or_else(|| invalid("id", format!("{text:?} is no task id")))
}

/// The parameters of a query; one that is not known is refused, not left out.
fn parameters(query: Option<&str>, known: &[&str]) -> Result<Vec<(String, String)>, Refusal> {
    let pairs = url_pairs(query.unwrap_or_default());
    match pairs.iter().find(|(name, _)| !known.contains(&name.as_str())) {
        Some((name, _)) => Err(invalid(name, "is no parameter of this call")),
        None => Ok(pairs),
    }
}

fn find<'p>(given: &'p [(String, String)], name: &str) -> Option<&'p str> {
    given
        .iter()
        .find(|(key, _)| key == name)
        .map(|(_, value)| value.as_str())
}

fn flag(given: &[(String, String)], name: &str) -> Result<bool, Refusal> {
    match find(given, name) {
        None | Some("false") => Ok(false),
        Some("true") => Ok(true),
        Some(other) => Err(invalid(name, format!("{other:?} is neither true nor false"))),
    }
}

/// `a=b&c=d`, decoded.
fn url_pairs(query: &str) -> Vec<(String, String)> {
    query
        .split('&')
        .filter(|pair| !pair.is_empty())
        .map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            (decode(name), decode(value))
        })
        .collect()
}

/// Percent signs and plus signs; what is no text becomes U+FFFD.
fn decode(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let hex = text
            .get(at + 1..at + 3)
            .and_then(|hex| u8::from_str_radix(hex, 16).ok());
        match (bytes[at], hex) {
            (b'%', Some(byte)) => {
                out.push(byte);
                at += 2;
            }
            (b'+', _) => out.push(b' '),
            (byte, _) => out.push(byte),
        }
        at += 1;
    }
    String::from_utf8_lossy(&out).into_owned()
}

async fn task(ctx: &Context, id: i64) -> Result<Task, Refusal> {
    let rows = ctx.db.tasks(vec![id]).await?;
    if rows.is_empty() {
        return Err(cancel::no_such_task(id, ctx.db.newest_task_id().await?));
    }
    let tasks = to_wire(ctx, rows).await.map_err(|status| refusal_of(&status))?;
    tasks
        .first()
        .map(Task::from)
        .ok_or_else(|| Refusal::new(Code::Unexpected, "a task was not answered"))
}

fn refusal_of(status: &tonic::Status) -> Refusal {
    let text = |key| status.metadata().get(key).and_then(|value| value.to_str().ok());
    Refusal {
        code: text(ERROR_CODE_KEY).and_then(Code::parse).unwrap_or(Code::Unexpected),
        message: status.message().to_owned(),
        field: text(ERROR_FIELD_KEY).unwrap_or_default().to_owned(),
    }
}

fn document(status: StatusCode, task: Task, existing: Option<bool>) -> Answer {
    let document = OneTask {
        format: FORMAT,
        task,
        existing,
    };
    let body = serde_json::to_string(&document).map_err(|error| Refusal::new(Code::Unexpected, error.to_string()))?;
    let headers = [(CONTENT_TYPE, "application/json"), (CACHE_CONTROL, "no-store")];
    Ok((status, headers, format!("{body}\n")).into_response())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::rules::CALLS;

    fn openapi() -> Value {
        serde_json::from_str(OPENAPI).expect("docs/openapi.json is JSON")
    }

    fn keys(value: &Value) -> Vec<String> {
        let mut keys: Vec<String> = value.as_object().expect("an object").keys().cloned().collect();
        keys.sort();
        keys
    }

    #[test]
    fn an_idempotency_key_is_given_once() {
        let read = |keys: &[&'static str]| {
            let mut headers = HeaderMap::new();
            for &key in keys {
                headers.append("idempotency-key", http::HeaderValue::from_static(key));
            }
            idempotency_key(&headers).map_err(|refusal| (refusal.code, refusal.field, refusal.message))
        };
        assert_eq!(read(&[]), Ok(String::new()));
        assert_eq!(read(&["order 17"]), Ok("order 17".into()));
        for keys in [&["a", "b"][..], &["a", "a"], &["", "a"], &["a", "b", "c"]] {
            let (code, field, message) = read(keys).expect_err("two");
            assert_eq!((code, field.as_str()), (Code::InvalidField, "idempotency-key"));
            assert!(message.contains("more than once"), "{message}");
        }
        assert!(read(&[""]).is_err());
    }

    #[test]
    fn the_document_has_every_route_and_no_other() {
        let openapi = openapi();
        let mut described = Vec::new();
        for (path, methods) in openapi["paths"].as_object().expect("paths") {
            for method in methods.as_object().expect("methods").keys() {
                described.push(format!("{} {path}", method.to_uppercase()));
            }
        }
        described.sort();
        let mut declared: Vec<&str> = CALLS
            .iter()
            .map(|(call, _)| *call)
            .filter(|call| !call.starts_with('/'))
            .collect();
        declared.sort_unstable();
        assert_eq!(
            described, declared,
            "docs/openapi.json and CALLS in auth/rules.rs differ"
        );
    }

    /// What is sent and taken has exactly the fields that are described.
    #[test]
    fn the_document_has_every_field() {
        let schemas = &openapi()["components"]["schemas"];
        let spec = serde_json::to_value(Spec::default()).expect("serialises");
        assert_eq!(keys(&schemas["Spec"]["properties"]), keys(&spec), "Spec");
        let task = Task::from(&v1::Task {
            outcome: Some(v1::Outcome::default()),
            end_detail: Some(v1::EndDetail {
                usage: Some(v1::Usage::default()),
                ..v1::EndDetail::default()
            }),
            callback: Some(v1::Callback::default()),
            ..v1::Task::default()
        });
        let task = serde_json::to_value(task).expect("serialises");
        let piece = line(&Piece {
            stream: Stream::Stdout,
            offset: 0,
            data: Vec::new(),
            seen_at_ms: None,
            gap: 0,
            dropped: 0,
        });
        let piece: Value = serde_json::from_slice(&piece).expect("JSON");
        for (name, value) in [
            ("Task", &task),
            ("Outcome", &task["outcome"]),
            ("EndDetail", &task["end_detail"]),
            ("Usage", &task["end_detail"]["usage"]),
            ("Callback", &task["callback"]),
            ("Limits", &spec["limits"]),
            ("Retry", &spec["retry"]),
            ("OutputPolicy", &spec["output"]),
            ("OutputPiece", &piece),
        ] {
            assert_eq!(keys(&schemas[name]["properties"]), keys(value), "{name}");
        }
    }

    #[test]
    fn a_whole_number_may_have_a_point() {
        let text = br#"{"spec": {"command": ["a"], "timeout_ms": 5.0, "kill_signal": 2e0}}"#;
        let spec = parse(text).expect("fits").spec;
        assert_eq!((spec.timeout_ms, spec.kill_signal), (Some(5), 2));
        let error = |text: &str| parse(text.as_bytes()).err().expect("does not fit").to_string();
        assert!(error(r#"{"spec": {"command": ["a"], "timeout_ms": 5.5}}"#).contains("line 1 column"));
        assert!(error(r#"{"spec": {"command": ["a"], "timeout_ms": 1e300}}"#).contains("floating point"));
    }

    #[test]
    fn a_query_is_decoded_and_what_is_not_known_is_refused() {
        let given = parameters(Some("reason=wrong%20month%2B1+x&exact=true"), &["reason", "exact"]).expect("known");
        assert_eq!(find(&given, "reason"), Some("wrong month+1 x"));
        assert_eq!(flag(&given, "exact").ok(), Some(true));
        assert_eq!(decode("%"), "%");
        assert_eq!(decode("a%zz%4"), "a%zz%4");
        assert_eq!(decode("%ff"), "\u{fffd}");
        assert_eq!(
            parameters(Some("reson=x"), &["reason"]).expect_err("unknown").field,
            "reson"
        );
        assert!(flag(&given, "reason").is_err());
        assert!(id_of("0").is_err() && id_of("x").is_err() && id_of("7").is_ok());
    }
}

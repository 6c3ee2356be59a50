//! One guard before everything that is served: finds what the call needs, and who calls.

use super::stream::{Pass, guarded};
use super::{Actor, Refused, rules};
use crate::context::Context;
use crate::flow::Refusal;
use crate::locale;
use axum::extract::{MatchedPath, Request, State};
use axum::middleware::Next;
use axum::response::Response;
use http::HeaderValue;
use http::header::{AUTHORIZATION, CONTENT_TYPE};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;
use systole_shared::error::Code;
use systole_shared::policy::access::Needs;
use tracing::Instrument as _;

/// By which a call is found in the log: of the request, if it has one, and of each answer.
pub const REQUEST_ID: &str = "x-request-id";
const REQUEST_ID_CHARS_MAX: usize = 64;

/// Whoever is at the other end of one connection, which puts this on each of its requests.
#[derive(Debug, Default)]
pub struct Visitor {
    admitted: AtomicBool,
}

impl Visitor {
    /// Whether a call was admitted by its token. One that needs none says nothing about who makes it.
    pub fn is_admitted(&self) -> bool {
        self.admitted.load(Ordering::Relaxed)
    }

    fn admit(&self) {
        // Written once, and read all the time.
        if !self.is_admitted() {
            self.admitted.store(true, Ordering::Relaxed);
        }
    }
}

/// Whether this speaks gRPC; the answer must, too.
pub fn is_grpc(request: &Request) -> bool {
    request
        .headers()
        .get(CONTENT_TYPE)
        .is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"))
}

/// Lets a call pass whose token may make it, and notes who calls.
pub async fn guard(State(ctx): State<Arc<Context>>, request: Request, next: Next) -> Response {
    let locale = locale::of(request.headers());
    locale::within(locale, pass(ctx, request, next)).await
}

async fn pass(ctx: Arc<Context>, mut request: Request, next: Next) -> Response {
    let grpc = is_grpc(&request);
    let call = match request.extensions().get::<MatchedPath>() {
        _ if grpc => rules::of_grpc(request.uri().path()),
        Some(route) => rules::of_http(request.method(), route.as_str()),
        None => None,
    };
    let Some(call) = call else {
        let route = request.extensions().get::<MatchedPath>();
        let methods = route.map(|route| rules::methods_of(route.as_str())).unwrap_or_default();
        return if grpc || methods.is_empty() {
            crate::http::nothing_here(request).await
        } else {
            crate::http::wrong_method(&methods)
        };
    };
    let (began, needs) = (Instant::now(), rules::CALLS[call].1);
    // Runners call all the time, and what they bring is told task by task.
    let request_id = (needs != Needs::Run).then(|| request_id(&request));
    let span = match &request_id {
        Some(request_id) => tracing::error_span!("call", request_id, call = rules::CALLS[call].0),
        None => tracing::Span::none(),
    };
    let header = request.headers().get(AUTHORIZATION).cloned();
    if needs != Needs::Nothing {
        let text = header.as_ref().and_then(|value| value.to_str().ok());
        let refusal = match admit(&ctx, text, needs) {
            Ok(actor) => {
                if let Some(visitor) = request.extensions().get::<Arc<Visitor>>() {
                    visitor.admit();
                }
                request.extensions_mut().insert(actor);
                None
            }
            Err(refusal) => Some(refusal),
        };
        if let Some(refusal) = refusal {
            ctx.metrics.called(call, began.elapsed(), true);
            return if grpc {
                crate::grpc::status(&refusal).into_http()
            } else {
                crate::http::refuse(&refusal)
            };
        }
    }
    let mut response = next.run(request).instrument(span.clone()).await;
    // A call of gRPC that is refused says so in its head, since it has no body.
    let refused = if grpc {
        response
            .headers()
            .get("grpc-status")
            .is_some_and(|status| status != "0")
    } else {
        response.status().as_u16() >= 400
    };
    ctx.metrics.called(call, began.elapsed(), refused);
    if let Some(value) = request_id.and_then(|id| HeaderValue::try_from(id).ok()) {
        let took_ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
        span.in_scope(|| tracing::debug!(target: "call", refused, took_ms, "answered"));
        response.headers_mut().insert(REQUEST_ID, value);
    }
    // Runners call anew with each beat, and each of those is asked.
    if refused || matches!(needs, Needs::Nothing | Needs::Run) {
        return response;
    }
    let pass = Pass {
        ctx,
        header,
        needs,
        grpc,
    };
    response.map(|body| guarded(body, pass))
}

/// That of the caller, if it is a plain word; else one of our own.
fn request_id(request: &Request) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    request
        .headers()
        .get(REQUEST_ID)
        .and_then(|value| value.to_str().ok())
        .filter(|id| (1..=REQUEST_ID_CHARS_MAX).contains(&id.len()) && id.bytes().all(plain))
        .map_or_else(|| format!("{:016x}", rand::random::<u64>()), str::to_owned)
}

pub(super) fn admit(ctx: &Context, header: Option<&str>, needs: Needs) -> Result<Actor, Refusal> {
    let actor = ctx.tokens.authenticate(header).map_err(|refused| {
        Refusal::new(
            Code::TokenMissing,
            match refused {
                Refused::Missing => "this call needs a token: authorization: Bearer TOKEN".to_owned(),
                Refused::Unknown => {
                    "this token is not known here, or was revoked; use the token file of this scheduler (SYSTOLE_TOKEN_FILE)"
                        .to_owned()
                }
                Refused::Expired(name) => {
                    format!("the token {name} has expired; ask for a new one (`systole token create`)")
                }
            },
        )
    })?;
    if !actor.role.may(needs) {
        return Err(Refusal::new(
            Code::TokenRole,
            format!(
                "the token {} ({}) may not do this: it needs {}",
                actor.name,
                actor.role,
                needs.roles()
            ),
        ));
    }
    Ok(actor)
}

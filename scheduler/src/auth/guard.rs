//! One guard before everything that is served: finds what the call needs, and who calls.

use super::{Actor, Refused, rules};
use crate::context::Context;
use crate::flow::Refusal;
use axum::extract::{MatchedPath, Request, State};
use axum::middleware::Next;
use axum::response::Response;
use http::header::{AUTHORIZATION, CONTENT_TYPE};
use std::sync::Arc;
use std::time::Instant;
use systole_shared::error::Code;
use systole_shared::policy::access::Needs;

/// Whether this speaks gRPC; the answer must, too.
pub fn is_grpc(request: &Request) -> bool {
    request
        .headers()
        .get(CONTENT_TYPE)
        .is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"))
}

/// Lets a call pass whose token may make it, and notes who calls.
pub async fn guard(State(ctx): State<Arc<Context>>, mut request: Request, next: Next) -> Response {
    let grpc = is_grpc(&request);
    let call = match request.extensions().get::<MatchedPath>() {
        _ if grpc => rules::of_grpc(request.uri().path()),
        Some(route) => rules::of_http(request.method(), route.as_str()),
        None => None,
    };
    let Some(call) = call else {
        return crate::http::nothing_here(request).await;
    };
    let (began, needs) = (Instant::now(), rules::CALLS[call].1);
    if needs != Needs::Nothing {
        let header = request
            .headers()
            .get(AUTHORIZATION)
            .and_then(|value| value.to_str().ok());
        let refusal = match admit(&ctx, header, needs) {
            Ok(actor) => {
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
    let response = next.run(request).await;
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
    response
}

fn admit(ctx: &Context, header: Option<&str>, needs: Needs) -> Result<Actor, Refusal> {
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

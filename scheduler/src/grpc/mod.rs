//! gRPC: thin. Translates, calls `flow/`, translates back. No decisions here.

pub mod admin;
pub mod runners;
pub mod tasks;

use crate::auth::{Actor, Role};
use crate::context::Context;
use crate::flow::Refusal;
use std::sync::Arc;
use systole_proto::convert::{ERROR_CODE_KEY, ERROR_FIELD_KEY};
use systole_proto::v1;
use systole_shared::error::{Code, Invalid, Kind};
use systole_shared::limits::REASON_CHARS_MAX;
use systole_shared::task::spec::check_text;
use tonic::metadata::MetadataValue;
use tonic::{Request, Status};

/// The one mapping from refusals to statuses.
pub fn status(refusal: &Refusal) -> Status {
    let code = match refusal.code {
        Code::RunnerIdInUse | Code::KeyReused => tonic::Code::AlreadyExists,
        Code::TokenMissing => tonic::Code::Unauthenticated,
        other => match other.kind() {
            Kind::NotFound => tonic::Code::NotFound,
            Kind::Validation => tonic::Code::InvalidArgument,
            Kind::Conflict => tonic::Code::Aborted,
            Kind::Unavailable => tonic::Code::Unavailable,
            Kind::Denied => tonic::Code::PermissionDenied,
            Kind::Exhausted => tonic::Code::ResourceExhausted,
            Kind::Unexpected => tonic::Code::Internal,
        },
    };
    let mut status = Status::new(code, refusal.message.clone());
    status
        .metadata_mut()
        .insert(ERROR_CODE_KEY, MetadataValue::from_static(refusal.code.name()));
    if let Ok(field) = MetadataValue::try_from(&refusal.field)
        && !refusal.field.is_empty()
    {
        status.metadata_mut().insert(ERROR_FIELD_KEY, field);
    }
    status
}

/// One item of a batch that was refused.
pub fn item_error(refusal: &Refusal) -> v1::ItemError {
    v1::ItemError {
        code: refusal.code.name().into(),
        message: refusal.message.clone(),
        field: refusal.field.clone(),
    }
}

pub fn invalid(invalid: Invalid) -> Status {
    status(&Refusal::from(invalid))
}

/// Refuses an empty or too large batch.
pub fn check_batch(count: usize, max: usize, field: &str) -> Result<(), Status> {
    if count == 0 || count > max {
        return Err(status(&Refusal {
            code: Code::BatchSize,
            message: format!("{field}: has {count} items; 1 to {max} are allowed. Send larger ones in parts"),
            field: field.into(),
        }));
    }
    Ok(())
}

pub fn check_reason(reason: &str) -> Result<(), Status> {
    check_text(reason, "reason", REASON_CHARS_MAX).map_err(invalid)
}

/// Lets a call pass whose token has the right role, and notes who calls.
#[derive(Clone)]
pub struct Guard {
    pub ctx: Arc<Context>,
    pub role: Role,
}

impl tonic::service::Interceptor for Guard {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        let header = request
            .metadata()
            .get("authorization")
            .and_then(|value| value.to_str().ok());
        let actor = self.ctx.tokens.authenticate(header).map_err(|code| {
            status(&Refusal::new(
                code,
                if header.is_none() {
                    "this call needs a token: authorization: Bearer TOKEN"
                } else {
                    "this token is not known here; use the token file of this scheduler (SYSTOLE_TOKEN_FILE)"
                },
            ))
        })?;
        if actor.role != Role::Admin && actor.role != self.role {
            return Err(status(&Refusal::new(
                Code::TokenRole,
                format!("the token {} may not do this: it is for runners only", actor.name),
            )));
        }
        request.extensions_mut().insert(actor);
        Ok(request)
    }
}

/// Who calls; the guard put it there.
pub fn actor<T>(request: &Request<T>) -> Result<Actor, Status> {
    request
        .extensions()
        .get::<Actor>()
        .cloned()
        .ok_or_else(|| Status::internal("the call was not authenticated"))
}

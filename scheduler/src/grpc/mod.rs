//! gRPC: thin. Translates, calls `flow/`, translates back. No decisions here.

pub mod access;
pub mod admin;
pub mod alarms;
mod backfills;
pub mod cluster;
pub mod jobs;
mod join;
pub mod leases;
pub mod runners;
pub mod tasks;

use crate::auth::Actor;
use crate::flow::Refusal;
use crate::locale;
use crate::store::cordon::Until;
use systole_proto::convert::{ERROR_CODE_KEY, ERROR_FIELD_KEY, clean};
use systole_proto::v1;
use systole_shared::error::{Code, Invalid, Kind};
use systole_shared::limits::{DURATION_MS_MAX, PAGE_DEFAULT, PAGE_MAX, REASON_CHARS_MAX, WORD_CHARS_MAX};
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
    let mut status = Status::new(code, locale::say(refusal));
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
        message: locale::say(refusal),
        field: refusal.field.clone(),
    }
}

/// When something that a person sets ends by itself. A time that is over is found in the transaction, by the database's clock.
fn until(until_ms: u64, for_ms: u64) -> Result<Until, Status> {
    let refuse = |field: &str, message: &str| Err(invalid(Invalid::new(field, message.to_owned())));
    let ms = |ms: u64| i64::try_from(ms).unwrap_or(i64::MAX);
    match (until_ms, for_ms) {
        (0, 0) => Ok(Until::Lifted),
        (until, 0) => Ok(Until::Time(ms(until))),
        (0, within) if within <= DURATION_MS_MAX => Ok(Until::Within(ms(within))),
        (0, _) => refuse("for_ms", "must be at most 31,622,400,000 ms (366 days)"),
        (_, _) => refuse("until_ms", "is given together with for_ms; give one of them"),
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

/// Rows of a page.
pub fn page_limit(limit: u32) -> Result<usize, Status> {
    match usize::try_from(limit) {
        Ok(0) => Ok(PAGE_DEFAULT),
        Ok(limit) if limit <= PAGE_MAX => Ok(limit),
        _ => Err(status(&Refusal::new(
            Code::InvalidPage,
            format!("limit: {limit} is outside 1 to {PAGE_MAX}"),
        ))),
    }
}

pub fn check_reason(reason: &str) -> Result<(), Status> {
    check_text(reason, "reason", REASON_CHARS_MAX).map_err(invalid)
}

/// A host that joined speaks for itself alone: whoever has its token can be no other one.
pub fn check_speaks_for<T>(request: &Request<T>, host: &str) -> Result<(), Status> {
    let by = actor(request)?;
    match by.host {
        Some(own) if own != host => Err(status(&Refusal {
            code: Code::TokenRole,
            message: format!(
                "host: the token {} is that of the host {own} and cannot speak for {}; start this runner with --name {own}, or let it \
                 join under its own name (`systole join-command`)",
                by.name,
                clean(host, WORD_CHARS_MAX),
            ),
            field: "host".into(),
        })),
        _ => Ok(()),
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

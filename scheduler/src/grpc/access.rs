//! Tokens, and who did what.

use super::{actor, check_batch, check_reason, invalid, item_error, page_limit, status};
use crate::context::Context;
use crate::flow::Refusal;
use crate::store::audit::{AuditFilter, AuditRow};
use crate::store::tokens::{Created, NewToken, Revoked, TokenRow};
use std::sync::Arc;
use systole_proto::convert::time_to_wire;
use systole_proto::v1;
use systole_proto::v1::access_service_server::AccessService;
use systole_shared::error::{Code, Invalid};
use systole_shared::limits::{DURATION_MS_MAX, PAGE_MAX, TOKENS_MAX};
use systole_shared::policy::access::{Role, check_token_name};
use systole_shared::secret::check_hash;
use tonic::{Request, Response, Status};

pub struct Access {
    pub ctx: Arc<Context>,
}

#[tonic::async_trait]
impl AccessService for Access {
    async fn create_token(
        &self,
        request: Request<v1::CreateTokenRequest>,
    ) -> Result<Response<v1::CreateTokenResponse>, Status> {
        let by = actor(&request)?.name;
        let new = new_token(request.into_inner(), by).map_err(invalid)?;
        let name = new.name.clone();
        let (row, existing) = match self.ctx.db.create_token(new).await.map_err(store)? {
            Created::New(row) => (row, false),
            Created::Existing(row) => (row, true),
            Created::Taken(taken) if taken == name => {
                return Err(refuse(
                    Code::TokenExists,
                    "name",
                    format!(
                        "the token {name} exists; choose another name, or revoke it first (`systole token revoke {name}`)"
                    ),
                ));
            }
            Created::Taken(taken) => {
                return Err(refuse(
                    Code::TokenExists,
                    "secret_sha256",
                    format!("this secret is that of the token {taken}; make another"),
                ));
            }
            Created::Full => {
                return Err(refuse(
                    Code::TokenExists,
                    "name",
                    format!(
                        "there are {TOKENS_MAX} tokens, which is the most; revoked and expired ones are forgotten after 30 days"
                    ),
                ));
            }
        };
        self.reload().await?;
        Ok(Response::new(v1::CreateTokenResponse {
            token: Some(to_wire(&row)),
            existing,
        }))
    }

    async fn list_tokens(
        &self,
        _request: Request<v1::ListTokensRequest>,
    ) -> Result<Response<v1::ListTokensResponse>, Status> {
        let rows = self.ctx.db.tokens().await.map_err(store)?;
        Ok(Response::new(v1::ListTokensResponse {
            tokens: rows.iter().map(to_wire).collect(),
        }))
    }

    async fn revoke_tokens(
        &self,
        request: Request<v1::RevokeTokensRequest>,
    ) -> Result<Response<v1::RevokeTokensResponse>, Status> {
        let by = actor(&request)?.name;
        let request = request.into_inner();
        check_batch(request.names.len(), TOKENS_MAX, "names")?;
        check_reason(&request.reason)?;
        let mut results = Vec::with_capacity(request.names.len());
        for name in request.names {
            let revoked = self
                .ctx
                .db
                .revoke_token(name.clone(), by.clone(), request.reason.clone())
                .await
                .map_err(store)?;
            results.push(revoke_result(name, revoked));
        }
        self.reload().await?;
        Ok(Response::new(v1::RevokeTokensResponse { results }))
    }

    async fn list_audit(
        &self,
        request: Request<v1::ListAuditRequest>,
    ) -> Result<Response<v1::ListAuditResponse>, Status> {
        let request = request.into_inner();
        let limit = page_limit(request.limit)?;
        let text = |text: String| (!text.is_empty()).then_some(text);
        let time = |ms: u64| (ms != 0).then(|| i64::try_from(ms).unwrap_or(i64::MAX));
        let below_id = match request.page_token.as_str() {
            "" => None,
            token => Some(token.parse().map_err(|_| {
                refuse(
                    Code::InvalidPage,
                    "page_token",
                    "is not one of ours; leave it out to begin with the newest".into(),
                )
            })?),
        };
        let filter = AuditFilter {
            actor: text(request.actor),
            action: text(request.action),
            subject: text(request.subject),
            since_ms: time(request.since_ms),
            until_ms: time(request.until_ms),
            below_id,
        };
        let (rows, more) = self.ctx.db.audit(filter, limit.min(PAGE_MAX)).await.map_err(store)?;
        let next_page_token = match rows.last() {
            Some(row) if more => row.id.to_string(),
            _ => String::new(),
        };
        Ok(Response::new(v1::ListAuditResponse {
            entries: rows.into_iter().map(entry).collect(),
            next_page_token,
        }))
    }

    async fn create_join_token(
        &self,
        request: Request<v1::CreateJoinTokenRequest>,
    ) -> Result<Response<v1::CreateJoinTokenResponse>, Status> {
        let by = actor(&request)?.name;
        super::join::create(&self.ctx, by, request.into_inner())
            .await
            .map(Response::new)
    }

    async fn join(&self, request: Request<v1::JoinRequest>) -> Result<Response<v1::JoinResponse>, Status> {
        let response = super::join::join(&self.ctx, request.into_inner()).await?;
        self.reload().await?;
        Ok(Response::new(response))
    }

    async fn rotate_token(
        &self,
        request: Request<v1::RotateTokenRequest>,
    ) -> Result<Response<v1::RotateTokenResponse>, Status> {
        let by = actor(&request)?;
        let response = super::join::rotate(&self.ctx, by, request.into_inner()).await?;
        self.reload().await?;
        Ok(Response::new(response))
    }
}

impl Access {
    /// What was just changed counts here at once.
    async fn reload(&self) -> Result<(), Status> {
        let read = self.ctx.tokens.begin_read();
        self.ctx.tokens.set(read, self.ctx.db.tokens().await.map_err(store)?);
        Ok(())
    }
}

pub(super) fn store(error: crate::store::StoreError) -> Status {
    status(&Refusal::from(error))
}

pub(super) fn refuse(code: Code, field: &str, message: String) -> Status {
    status(&Refusal {
        code,
        message,
        field: field.into(),
    })
}

fn new_token(request: v1::CreateTokenRequest, by: String) -> Result<NewToken, Invalid> {
    check_token_name(&request.name, "name")?;
    systole_shared::task::spec::check_text(&request.reason, "reason", systole_shared::limits::REASON_CHARS_MAX)?;
    let role = Role::parse(&request.role).ok_or_else(|| {
        let names = Role::ALL.map(Role::name).join(", ");
        Invalid::new("role", format!("{:?} is no role; the roles are {names}", request.role))
    })?;
    check_hash(&request.secret_sha256, "secret_sha256")?;
    if request.valid_for_ms > DURATION_MS_MAX {
        return Err(Invalid::new("valid_for_ms", "is longer than 366 days"));
    }
    Ok(NewToken {
        name: request.name,
        role,
        hash: request.secret_sha256,
        valid_for_ms: (request.valid_for_ms != 0).then(|| i64::try_from(request.valid_for_ms).unwrap_or(i64::MAX)),
        by,
        reason: request.reason,
    })
}

fn revoke_result(name: String, revoked: Revoked) -> v1::RevokeTokenResult {
    let refusal = |code, message| {
        Some(item_error(&Refusal {
            code,
            message,
            field: "names".into(),
        }))
    };
    let error = match revoked {
        Revoked::Now | Revoked::Before => None,
        Revoked::Unknown => refusal(
            Code::TokenNotFound,
            format!("no token {name:?} is known. See `systole token ls`"),
        ),
        Revoked::LastAdmin => refusal(
            Code::LastAdmin,
            format!(
                "{name} is the last admin token that does not expire; create another first (`systole token create NAME --role admin`)"
            ),
        ),
    };
    v1::RevokeTokenResult {
        name,
        already: revoked == Revoked::Before,
        error,
    }
}

fn to_wire(row: &TokenRow) -> v1::Token {
    let time = |ms: Option<i64>| ms.map_or(0, time_to_wire);
    v1::Token {
        name: row.name.clone(),
        role: row.role.clone(),
        created_at_ms: time_to_wire(row.created_at_ms),
        created_by: row.created_by.clone(),
        expires_at_ms: time(row.expires_at_ms),
        last_used_at_ms: time(row.last_used_ms),
        revoked_at_ms: time(row.revoked_at_ms),
        revoked_by: row.revoked_by.clone().unwrap_or_default(),
        valid: row.is_valid(),
    }
}

fn entry(row: AuditRow) -> v1::AuditEntry {
    v1::AuditEntry {
        id: row.id,
        at_ms: time_to_wire(row.at_ms),
        actor: row.actor,
        action: row.action,
        subject: row.subject,
        reason: row.reason,
        detail: row.detail,
    }
}

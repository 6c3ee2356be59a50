//! Hosts that join, and secrets that follow each other.

use super::access::{refuse, store};
use super::{check_reason, invalid};
use crate::auth::{Actor, hash};
use crate::context::Context;
use crate::store::join::Joined;
use systole_proto::convert::time_to_wire;
use systole_proto::v1;
use systole_shared::error::{Code, Invalid};
use systole_shared::id::check_host;
use systole_shared::limits::{JOIN_TOKENS_MAX, TOKENS_MAX};
use systole_shared::secret::check_hash;
use systole_shared::time::format_utc;
use tonic::Status;

pub async fn create(
    ctx: &Context,
    by: String,
    request: v1::CreateJoinTokenRequest,
) -> Result<v1::CreateJoinTokenResponse, Status> {
    check_hash(&request.secret_sha256, "secret_sha256").map_err(invalid)?;
    check_reason(&request.reason)?;
    let expires = ctx
        .db
        .put_join(request.secret_sha256, by, request.reason)
        .await
        .map_err(store)?;
    let Some(expires_at_ms) = expires else {
        let message =
            format!("there are {JOIN_TOKENS_MAX} join tokens, which is the most; they are forgotten after a day");
        return Err(refuse(Code::TokenExists, "secret_sha256", message));
    };
    let own = ctx.own_certificate.as_ref();
    Ok(v1::CreateJoinTokenResponse {
        expires_at_ms: time_to_wire(expires_at_ms),
        ca_sha256: own.map_or_else(String::new, |own| own.authority().fingerprint().to_owned()),
        urls: own.map_or_else(Vec::new, |own| own.outward()),
    })
}

pub async fn join(ctx: &Context, request: v1::JoinRequest) -> Result<v1::JoinResponse, Status> {
    if request.join_token.is_empty() {
        return Err(invalid(Invalid::new(
            "join_token",
            "is empty; it is what `systole join-command` prints",
        )));
    }
    check_host(&request.host, "host").map_err(invalid)?;
    check_hash(&request.secret_sha256, "secret_sha256").map_err(invalid)?;
    let joined = ctx
        .db
        .join(hash(&request.join_token), request.host, request.secret_sha256)
        .await
        .map_err(store)?;
    let again = "ask for a new one with `systole join-command`";
    let message = match joined {
        Joined::As(name) => return Ok(v1::JoinResponse { name }),
        Joined::Full => {
            let message = format!(
                "there are {TOKENS_MAX} tokens, which is the most; revoke those that are not used (`systole token ls`)"
            );
            return Err(refuse(Code::TokenExists, "host", message));
        }
        Joined::Unknown => format!("this join token is not known here; {again}"),
        Joined::Expired(at) => format!("this join token expired at {}; {again}", format_utc(at)),
        Joined::Used(at, name) => format!(
            "this join token was used at {} and became {name}; {again}. If that was not you: `systole token revoke {name}`",
            format_utc(at)
        ),
    };
    Err(refuse(Code::TokenMissing, "join_token", message))
}

pub async fn rotate(
    ctx: &Context,
    by: Actor,
    request: v1::RotateTokenRequest,
) -> Result<v1::RotateTokenResponse, Status> {
    let secret = request.secret_sha256;
    check_hash(&secret, "secret_sha256").map_err(invalid)?;
    // Whoever shares a token would lock out all others with it.
    if by.host.is_none() {
        let message = format!(
            "only the tokens of machines that joined get another secret this way, and {} is none; make another token \
             (`systole token create NAME --role {}`) and revoke this one",
            by.name, by.role
        );
        return Err(refuse(Code::TokenRole, "", message));
    }
    let replaced = if by.by_next_secret {
        ctx.db.take_secret(by.name, secret).await.map_err(store)?
    } else {
        // Nothing to offer: the call was made before, with the same secret.
        !ctx.db.offer_secret(by.name, secret).await.map_err(store)?
    };
    Ok(v1::RotateTokenResponse { replaced })
}

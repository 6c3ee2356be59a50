//! Tokens and who did what.

use super::{Problem, text, time};
use serde::Serialize;
use systole_proto::v1;

#[derive(Debug, Serialize)]
pub struct Tokens {
    pub tokens: Vec<Token>,
}

#[derive(Debug, Serialize)]
pub struct Token {
    pub name: String,
    pub role: String,
    pub valid: bool,
    pub created_at: Option<String>,
    pub created_by: String,
    pub expires_at: Option<String>,
    pub last_used_at: Option<String>,
    pub revoked_at: Option<String>,
    pub revoked_by: Option<String>,
}

#[derive(Debug, Serialize)]
pub struct CreatedToken {
    #[serde(flatten)]
    token: Token,
    /// Null where it was written to a file.
    secret: Option<String>,
}

#[derive(Debug, Serialize)]
pub struct JoinCommand<'a> {
    /// What is to be pasted.
    pub command: &'a str,
    pub url: &'a str,
    /// Null where the certificates come from elsewhere.
    pub ca_sha256: Option<&'a str>,
    pub token: &'a str,
    pub expires_at: Option<String>,
}

impl<'a> JoinCommand<'a> {
    pub fn new(command: &'a str, url: &'a str, token: &'a str, made: &'a v1::CreateJoinTokenResponse) -> Self {
        Self {
            command,
            url,
            ca_sha256: (!made.ca_sha256.is_empty()).then_some(made.ca_sha256.as_str()),
            token,
            expires_at: time(made.expires_at_ms),
        }
    }
}

#[derive(Debug, Serialize)]
pub struct RevokedToken {
    pub name: String,
    pub already: bool,
    pub error: Option<Problem>,
}

#[derive(Debug, Serialize)]
pub struct Audit {
    pub entries: Vec<AuditEntry>,
}

#[derive(Debug, Serialize)]
pub struct AuditEntry {
    pub id: String,
    pub at: Option<String>,
    pub actor: String,
    pub action: String,
    pub subject: String,
    pub reason: Option<String>,
    pub detail: Option<String>,
}

impl From<&v1::Token> for Token {
    fn from(token: &v1::Token) -> Self {
        Self {
            name: token.name.clone(),
            role: token.role.clone(),
            valid: token.valid,
            created_at: time(token.created_at_ms),
            created_by: token.created_by.clone(),
            expires_at: time(token.expires_at_ms),
            last_used_at: time(token.last_used_at_ms),
            revoked_at: time(token.revoked_at_ms),
            revoked_by: text(&token.revoked_by),
        }
    }
}

impl CreatedToken {
    pub fn new(token: &v1::Token, secret: Option<&str>) -> Self {
        Self {
            token: Token::from(token),
            secret: secret.map(str::to_owned),
        }
    }
}

impl From<&v1::RevokeTokenResult> for RevokedToken {
    fn from(result: &v1::RevokeTokenResult) -> Self {
        Self {
            name: result.name.clone(),
            already: result.already,
            error: result.error.as_ref().map(Problem::from),
        }
    }
}

impl From<&v1::AuditEntry> for AuditEntry {
    fn from(entry: &v1::AuditEntry) -> Self {
        Self {
            id: entry.id.to_string(),
            at: time(entry.at_ms),
            actor: entry.actor.clone(),
            action: entry.action.clone(),
            subject: entry.subject.clone(),
            reason: text(&entry.reason),
            detail: text(&entry.detail),
        }
    }
}

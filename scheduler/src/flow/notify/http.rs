//! Channels over HTTP: webhooks of systole's own form, and those of known services.

use super::{Channels, Failure, Parcel};
use crate::flow::callback::sign;
use crate::http_client;
use crate::store::StoreError;
use serde_json::Value;
use std::time::Duration;
use systole_shared::alarm::body;
use systole_shared::alarm::channel::{Target, check_url};
use systole_shared::alarm::tail::shown;
use systole_shared::clock::now_ms;

/// Bytes of an answer that are read, to say why it was refused.
const ANSWER_BYTES_MAX: usize = 1_024;
/// Characters of it that are kept.
const ANSWER_CHARS_MAX: usize = 200;

pub struct Http {
    /// Through the proxy of the environment, where there is one.
    outside: reqwest::Client,
    /// For this machine itself.
    here: reqwest::Client,
}

impl Http {
    pub fn new(timeout: Duration) -> Result<Self, StoreError> {
        let builder = || {
            reqwest::Client::builder()
                // A redirect would take the secret somewhere else.
                .redirect(reqwest::redirect::Policy::none())
                .timeout(timeout)
                .user_agent(concat!("systole/", env!("CARGO_PKG_VERSION")))
        };
        let made = |error: reqwest::Error| StoreError::Other(format!("HTTP client: {error}"));
        Ok(Self {
            outside: http_client::build(builder).map_err(made)?,
            here: http_client::build(|| builder().no_proxy()).map_err(made)?,
        })
    }

    fn client(&self, url: &reqwest::Url) -> &reqwest::Client {
        let host = url.host_str().unwrap_or_default();
        let literal = host.trim_start_matches('[').trim_end_matches(']');
        let is_here = host == "localhost" || literal.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback());
        if is_here { &self.here } else { &self.outside }
    }

    pub async fn send(&self, target: &Target, channels: &Channels, parcel: &Parcel<'_>) -> Result<(), Failure> {
        let (notice, message) = (parcel.notice, parcel.message);
        match target {
            Target::Mail(_) => Err(Failure::Never("a mail is not sent over HTTP: this is a bug".into())),
            Target::Webhook { url, secret_file } => {
                let secret = match secret_file {
                    Some(file) => channels.secret(file).await?,
                    None => parcel.secret.to_owned(),
                };
                let body = body::webhook(parcel.delivery_id, parcel.cluster_id, notice, message).to_string();
                let timestamp = now_ms() / 1_000;
                let signature = sign(&secret, parcel.delivery_id, timestamp, &body);
                let headers = [
                    ("webhook-id", parcel.delivery_id.to_owned()),
                    ("webhook-timestamp", timestamp.to_string()),
                    ("webhook-signature", signature),
                ];
                self.post(&channels.value(url).await?, body, &headers).await
            }
            Target::Slack { url } => self.post_json(&channels.value(url).await?, &body::slack(message)).await,
            Target::Teams { url } => self.post_json(&channels.value(url).await?, &body::teams(message)).await,
            Target::PagerDuty { url, key_file } => {
                let key = channels.secret(key_file).await?;
                let body = body::pagerduty(&key, parcel.cluster_id, notice, message);
                self.post_json(&channels.value(url).await?, &body).await
            }
            Target::Ntfy { url, topic, token_file } => {
                let body = body::ntfy(&channels.value(topic).await?, message);
                let headers = match token_file {
                    Some(file) => vec![("authorization", format!("Bearer {}", channels.secret(file).await?))],
                    None => Vec::new(),
                };
                self.post(&channels.value(url).await?, body.to_string(), &headers).await
            }
        }
    }

    async fn post_json(&self, url: &str, body: &Value) -> Result<(), Failure> {
        self.post(url, body.to_string(), &[]).await
    }

    async fn post(&self, url: &str, body: String, headers: &[(&'static str, String)]) -> Result<(), Failure> {
        check_url(url).map_err(|fault| Failure::Again(fault.to_string()))?;
        let url = reqwest::Url::parse(url).map_err(|error| Failure::Again(format!("the URL is wrong: {error}")))?;
        let mut request = self
            .client(&url)
            .post(url)
            .header("content-type", "application/json")
            .body(body);
        for (name, value) in headers {
            request = request.header(*name, value);
        }
        let mut response = request.send().await.map_err(|error| Failure::Again(cause(error)))?;
        let status = response.status();
        if status.is_success() {
            return Ok(());
        }
        let mut answer = Vec::new();
        while let Ok(Some(chunk)) = response.chunk().await {
            answer.extend_from_slice(&chunk);
            if answer.len() >= ANSWER_BYTES_MAX {
                break;
            }
        }
        let answer = shown(&String::from_utf8_lossy(&answer).replace('\n', " "));
        let answer: String = answer.chars().take(ANSWER_CHARS_MAX).collect();
        let text = if answer.is_empty() {
            format!("answered {status}")
        } else {
            format!("answered {status}: {answer}")
        };
        // The same body would be refused again; everything else may be put right by somebody.
        Err(match status.as_u16() {
            400 | 410 | 413 | 422 => Failure::Never(text),
            _ => Failure::Again(text),
        })
    }
}

/// The innermost cause, which says what happened; the outer ones name the URL, which may be a secret.
pub fn cause(error: reqwest::Error) -> String {
    let error = error.without_url();
    let mut cause: &dyn std::error::Error = &error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    shown(&cause.to_string())
}

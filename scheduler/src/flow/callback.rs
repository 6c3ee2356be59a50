//! The callback-er: POSTs the result of every ended task that asked for it, at least once, with a stable
//! delivery id, signed, a bounded number of times. The outcome of the task never depends on it.

use crate::config::Callbacks;
use crate::context::Context;
use crate::http_client;
use crate::store::StoreError;
use crate::store::outbox::{Delivery, Settled};
use crate::store::read::TaskRow;
use base64::Engine as _;
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use systole_shared::clock::now_ms;
use systole_shared::limits::CALLBACK_TRIES_MAX;
use systole_shared::task::TaskState;
use systole_shared::time::format_utc;

/// Longest wait between two tries.
const BACKOFF_MAX: Duration = Duration::from_secs(3_600);
/// … and what [`backoff_ms`] adds to it at most.
pub const WAIT_MAX: Duration = Duration::from_secs(3_600 * 6 / 5);
/// Bytes of an error kept for people.
const ERROR_CHARS_MAX: usize = 300;

/// Sends deliveries; made once.
pub struct Sender {
    client: reqwest::Client,
    config: Callbacks,
}

impl Sender {
    pub fn new(config: Callbacks) -> Result<Self, StoreError> {
        let make = || {
            reqwest::Client::builder()
                // A redirect could lead anywhere, private addresses included.
                .redirect(reqwest::redirect::Policy::none())
                .no_proxy()
                .timeout(config.timeout)
                .user_agent(concat!("systole/", env!("CARGO_PKG_VERSION")))
                .dns_resolver(Arc::new(Resolver {
                    allow_private: config.allow_private,
                }))
        };
        let client = http_client::build(make).map_err(|error| StoreError::Other(format!("HTTP client: {error}")))?;
        Ok(Self { client, config })
    }

    /// One try. Returns whether the receiver answered in time, be it to refuse.
    pub async fn deliver(&self, ctx: &Context, delivery: Delivery) -> bool {
        let again = |error: String| {
            if delivery.tries >= i64::from(CALLBACK_TRIES_MAX) {
                Settled::Failed(error)
            } else {
                Settled::Again(error, backoff_ms(self.config.backoff, delivery.tries))
            }
        };
        let (settled, answered) = match self.attempt(ctx, &delivery).await {
            Ok(()) => (Settled::Delivered, true),
            Err(Failure::Never(error)) => (Settled::Failed(error), true),
            Err(Failure::Again(error)) => (again(error), true),
            Err(Failure::Silent) => (again("no answer in time".into()), false),
        };
        if let Settled::Failed(error) = &settled {
            // Not the URL: its path may be a secret.
            tracing::warn!(task_id = delivery.task_id, error, "callback given up");
        }
        match ctx.db.settle_callback(delivery.task_id, settled).await {
            Ok(done) => ctx.wake.changed(done.into_iter().collect()),
            // The lease runs out and the delivery is tried again: at least once.
            Err(error) => tracing::warn!(task_id = delivery.task_id, %error, "callback not settled"),
        }
        answered
    }

    async fn attempt(&self, ctx: &Context, delivery: &Delivery) -> Result<(), Failure> {
        let rows = ctx
            .db
            .tasks(vec![delivery.task_id])
            .await
            .map_err(|error| Failure::Again(error.to_string()))?;
        let Some(task) = rows.first() else {
            return Err(Failure::Never("the task was deleted".into()));
        };
        let body = body(task, &delivery.delivery_id).map_err(|error| Failure::Never(error.to_string()))?;
        let url =
            reqwest::Url::parse(&delivery.url).map_err(|error| Failure::Never(format!("the URL is wrong: {error}")))?;
        if !self.config.allow_private && url.host_str().and_then(literal).is_some_and(is_private) {
            return Err(Failure::Never(PRIVATE.into()));
        }
        let timestamp = now_ms() / 1_000;
        let response = self
            .client
            .post(url)
            .header("content-type", "application/json")
            .header("webhook-id", &delivery.delivery_id)
            .header("webhook-timestamp", timestamp.to_string())
            .header(
                "webhook-signature",
                sign(&ctx.callback_secret, &delivery.delivery_id, timestamp, &body),
            )
            .body(body)
            .send()
            .await
            .map_err(|error| describe(&error))?;
        let status = response.status();
        if status.is_success() {
            return Ok(());
        }
        let text = format!("answered {status}");
        // "Gone" says that nobody will ever want it.
        Err(if status.as_u16() == 410 {
            Failure::Never(text)
        } else {
            Failure::Again(text)
        })
    }
}

const PRIVATE: &str = "the address is private, and this scheduler delivers to public addresses only (--callback-allow-private lifts that)";

enum Failure {
    /// No later try can help.
    Never(String),
    Again(String),
    /// No answer by the deadline.
    Silent,
}

fn describe(error: &reqwest::Error) -> Failure {
    // The innermost cause says what happened; the outer ones repeat the URL.
    let mut cause: &dyn std::error::Error = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    if error.is_timeout() {
        return Failure::Silent;
    }
    let text: String = cause.to_string().chars().take(ERROR_CHARS_MAX).collect();
    if text == PRIVATE {
        Failure::Never(text)
    } else {
        Failure::Again(text)
    }
}

/// Doubles with each try, up to an hour, and varies by a fifth so that receivers are not hit in step.
pub fn backoff_ms(first: Duration, tries: i64) -> i64 {
    let doublings = u32::try_from((tries - 1).clamp(0, 30)).unwrap_or(0);
    let wait = first.saturating_mul(2_u32.saturating_pow(doublings)).min(BACKOFF_MAX);
    let ms = i64::try_from(wait.as_millis()).unwrap_or(i64::MAX);
    ms + ms / 5 * rand::random_range(0..=100) / 100
}

/// `v1,` and the base64 of HMAC-SHA256 over `id.timestamp.body`, as Standard Webhooks does it.
pub fn sign(secret: &str, id: &str, timestamp: i64, body: &str) -> String {
    let engine = base64::engine::general_purpose::STANDARD;
    let key = secret
        .strip_prefix("whsec_")
        .and_then(|text| engine.decode(text).ok())
        .unwrap_or_else(|| secret.as_bytes().to_vec());
    // A key of any length is valid for HMAC.
    let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(&key) else {
        return String::new();
    };
    mac.update(format!("{id}.{timestamp}.{body}").as_bytes());
    format!("v1,{}", engine.encode(mac.finalize().into_bytes()))
}

/// A new signing secret.
pub fn new_secret() -> String {
    format!(
        "whsec_{}",
        base64::engine::general_purpose::STANDARD.encode(rand::random::<[u8; 32]>())
    )
}

/// The result as JSON; ids are texts, since they may exceed what a JSON number can hold.
fn body(task: &TaskRow, delivery_id: &str) -> Result<String, StoreError> {
    let state = match task.state()? {
        TaskState::Callback => TaskState::Finished,
        state => state,
    };
    let spec = task.spec().unwrap_or_default();
    let outcome = task.outcome()?;
    let time = |ms: Option<i64>| ms.map(format_utc);
    Ok(serde_json::json!({
        "format": 1,
        "type": "task.ended",
        "delivery_id": delivery_id,
        "task": {
            "id": task.id.to_string(),
            "root_id": task.root_id().to_string(),
            "retry_of": task.retry_of.map(|id| id.to_string()),
            "retried_by": task.retried_by.map(|id| id.to_string()),
            "attempt": task.attempt,
            "name": task.name,
            "job": spec.job,
            "tags": spec.tags,
            "state": state.name(),
            "outcome": outcome.map(|outcome| serde_json::json!({
                "kind": outcome.kind.name(),
                "exit_code": outcome.exit_code,
                "signal": outcome.signal,
                "message": outcome.message,
            })),
            "runner": task.host.as_ref().zip(task.slot).map(|(host, slot)| format!("{host}/{slot}")),
            "created_at": time(Some(task.created_at_ms)),
            "started_at": time(task.started_at_ms),
            "ended_at": time(task.ended_at_ms),
            "stdout_bytes": task.stdout_bytes.unwrap_or(0),
            "stderr_bytes": task.stderr_bytes.unwrap_or(0),
        },
    })
    .to_string())
}

/// Resolves names, and keeps only addresses that may be connected to: what was checked is what is used.
struct Resolver {
    allow_private: bool,
}

impl reqwest::dns::Resolve for Resolver {
    fn resolve(&self, name: reqwest::dns::Name) -> reqwest::dns::Resolving {
        let allow_private = self.allow_private;
        Box::pin(async move {
            let found: Vec<SocketAddr> = tokio::net::lookup_host((name.as_str(), 0)).await?.collect();
            let kept: Vec<SocketAddr> = found
                .iter()
                .copied()
                .filter(|addr| allow_private || !is_private(addr.ip()))
                .collect();
            if kept.is_empty() && !found.is_empty() {
                return Err(PRIVATE.into());
            }
            let addrs: reqwest::dns::Addrs = Box::new(kept.into_iter());
            Ok(addrs)
        })
    }
}

/// The address that a host text is, if it is one.
fn literal(host: &str) -> Option<IpAddr> {
    host.trim_start_matches('[').trim_end_matches(']').parse().ok()
}

/// Loopback, private, link-local (cloud metadata), shared, documentation, multicast and other addresses
/// that are not on the public Internet; also when they hide in IPv6 forms.
pub fn is_private(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(v4) => {
            let [a, b, c, _] = v4.octets();
            v4.is_private()
                || v4.is_loopback()
                || v4.is_link_local()
                || v4.is_broadcast()
                || v4.is_documentation()
                || v4.is_multicast()
                || a == 0
                || a >= 240
                || (a == 100 && (64..128).contains(&b))
                || (a == 192 && b == 0 && c == 0)
                || (a == 198 && (b == 18 || b == 19))
        }
        IpAddr::V6(v6) => {
            let s = v6.segments();
            if let Some(v4) = v6.to_ipv4_mapped() {
                return is_private(IpAddr::V4(v4));
            }
            let [high, low] = [s[6].to_be_bytes(), s[7].to_be_bytes()];
            let embedded = IpAddr::V4([high[0], high[1], low[0], low[1]].into());
            let nat64 = s[0] == 0x64 && s[1] == 0xff9b;
            let compatible = s[..6].iter().all(|&part| part == 0);
            v6.is_loopback()
                || v6.is_unspecified()
                || v6.is_multicast()
                || (s[0] & 0xfe00) == 0xfc00
                || (s[0] & 0xffc0) == 0xfe80
                || (s[0] & 0xffc0) == 0xfec0
                || (s[0] == 0x2001 && s[1] == 0xdb8)
                || s[0] == 0x2002
                || ((nat64 || compatible) && is_private(embedded))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_addresses_are_known_in_all_their_forms() {
        for text in [
            "127.0.0.1",
            "10.1.2.3",
            "172.16.0.1",
            "192.168.0.1",
            "169.254.169.254",
            "100.64.0.1",
            "0.0.0.0",
            "224.0.0.1",
            "255.255.255.255",
            "198.18.0.1",
            "::1",
            "::",
            "fe80::1",
            "fc00::1",
            "fd12::1",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "64:ff9b::7f00:1",
            "64:ff9b::a9fe:a9fe",
            "ff02::1",
            "2002:7f00:1::",
            "2001:db8::1",
        ] {
            assert!(is_private(text.parse().expect(text)), "{text}");
        }
        for text in [
            "1.1.1.1",
            "93.184.216.34",
            "2606:4700::1111",
            "64:ff9b::101:101",
            "172.32.0.1",
            "100.128.0.1",
        ] {
            assert!(!is_private(text.parse().expect(text)), "{text}");
        }
    }

    #[test]
    fn the_signature_is_that_of_standard_webhooks() {
        // The example of the specification.
        let signature = sign(
            "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
            "msg_p5jXN8AQM9LWM0D4loKWxJek",
            1_614_265_330,
            "{\"test\": 2432232314}",
        );
        assert_eq!(signature, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }

    #[test]
    fn tries_are_spaced_ever_wider_up_to_an_hour() {
        let first = Duration::from_secs(2);
        for (tries, least) in [(1, 2_000), (2, 4_000), (5, 32_000), (30, 3_600_000)] {
            let wait = backoff_ms(first, tries);
            assert!(wait >= least && wait <= least + least / 5, "{tries}: {wait}");
            assert!(
                u128::from(wait.unsigned_abs()) <= WAIT_MAX.as_millis(),
                "{tries}: {wait}"
            );
        }
    }
}

//! How a host joins: `join-command` prints the line, `runner --join` is what the line does.

use crate::args::{Format, Global, JoinCommandArgs};
use crate::client::{self, Client};
use crate::exit_code;
use crate::failure::{Failure, io_cause};
use crate::output::{self, Output, json, text};
use crate::pinned;
use crate::url::Url;
use std::io::Read as _;
use std::path::Path;
use std::time::Duration;
use systole_proto::v1;
use systole_proto::v1::access_service_client::AccessServiceClient;
use systole_runner::credential::Credential;
use systole_scheduler::auth;
use systole_shared::clock::now_ms;

/// Longest line that is read as a token.
const TOKEN_BYTES_MAX: u64 = 1024;
/// A repeated call has the same answer.
const TRIES: u32 = 5;
const PAUSE: Duration = Duration::from_secs(1);

pub async fn command(global: &Global, args: &JoinCommandArgs) -> Result<u8, Failure> {
    let output = Output::new(global);
    let client = Client::new(global)?;
    let secret = auth::new_secret("systole_join");
    let made = client
        .create_join_token(v1::CreateJoinTokenRequest {
            secret_sha256: auth::hash(&secret),
            reason: args.reason.clone().unwrap_or_default(),
        })
        .await?;
    let url = address(args.address.as_ref(), client.url(), &made.urls)?;
    let pin = match made.ca_sha256.as_str() {
        "" => String::new(),
        fingerprint => format!(" --ca-sha256 {fingerprint}"),
    };
    // `echo` is a word of the shell itself, so the token is in no list of processes.
    let line = format!("echo {secret} | systole runner --join {url}{pin}");
    let document = json::JoinCommand::new(&line, url.as_str(), &secret, &made);
    match output.format {
        Format::Json => json::document(&document),
        Format::Jsonl => json::object(&document),
        Format::Id => output::line(&secret),
        Format::Table | Format::Wide => output::line(&line),
    }
    output.note(&format!(
        "for one host, until {}. Options of the runner (--slots, --label, --name, --join-only …) may follow",
        text::full_time(made.expires_at_ms)
    ));
    Ok(exit_code::OK)
}

/// What the other machine is to be told: what was named, else how we came here, else what the scheduler thinks.
fn address(named: Option<&Url>, used: &Url, offered: &[String]) -> Result<Url, Failure> {
    if let Some(url) = named {
        return secure(url);
    }
    let only_here =
        |url: &Url| url.host == "localhost" || url.host.parse().is_ok_and(|ip: std::net::IpAddr| ip.is_loopback());
    if used.secure && !only_here(used) {
        return Ok(used.clone());
    }
    offered
        .iter()
        .find_map(|text| Url::parse(text).ok().filter(|url| url.secure))
        .ok_or_else(|| {
            Failure::refused(format!(
                "no other machine can join over {used}: start the scheduler with --listen 0.0.0.0:{} --tls-self-signed, or say with \
                 --address https://HOST:PORT where others reach it",
                used.port
            ))
        })
}

fn secure(url: &Url) -> Result<Url, Failure> {
    if url.secure {
        return Ok(url.clone());
    }
    Err(Failure::usage(format!(
        "{url} is not https: others could read the token on its way. Start the scheduler with --tls-self-signed"
    )))
}

/// Exchanges the token on stdin for a credential of this host, kept in the data folder.
pub async fn join(
    global: &Global,
    url: &Url,
    fingerprint: Option<&str>,
    data_dir: &Path,
    host: &str,
) -> Result<Credential, Failure> {
    secure(url)?;
    let ca = match fingerprint {
        Some(fingerprint) => Some(pinned::authority(url, fingerprint)?),
        None => client::ca_pem(global, &[])?,
    };
    let join_token = read_token()?;
    let secret = auth::new_secret("systole_runner");
    let request = v1::JoinRequest {
        join_token,
        host: host.to_owned(),
        secret_sha256: auth::hash(&secret),
    };
    let name = exchange(url, ca.as_deref(), request).await?;
    let credential = Credential {
        urls: vec![url.as_str().to_owned()],
        name,
        host: Some(host.to_owned()),
        ca_pem: ca.map(|pem| String::from_utf8_lossy(&pem).into_owned()),
        secret,
        next_secret: None,
        since_ms: now_ms(),
    };
    credential.save(data_dir).map_err(super::runner::failure)?;
    Ok(credential)
}

async fn exchange(url: &Url, ca: Option<&[u8]>, request: v1::JoinRequest) -> Result<String, Failure> {
    let channel = client::endpoint(url, ca)?.connect_lazy();
    let mut tries = 0;
    loop {
        tries += 1;
        let mut client = AccessServiceClient::new(channel.clone());
        let answer = match tokio::time::timeout(Duration::from_secs(20), client.join(request.clone())).await {
            Ok(answer) => answer,
            Err(_) => Err(tonic::Status::deadline_exceeded("no answer for 20 s")),
        };
        match answer {
            Ok(response) => return Ok(response.into_inner().name),
            Err(status) if tries < TRIES && crate::failure::is_transient(&status) => tokio::time::sleep(PAUSE).await,
            Err(status) => return Err(Failure::from_status(&status, url)),
        }
    }
}

/// One line, from stdin: what is on a command line can be read by every user of the machine.
fn read_token() -> Result<String, Failure> {
    use std::io::{BufRead as _, IsTerminal as _};
    if std::io::stdin().is_terminal() {
        output::note("Paste the join token and press Enter:");
    }
    let mut line = String::new();
    std::io::stdin()
        .lock()
        .take(TOKEN_BYTES_MAX)
        .read_line(&mut line)
        .map_err(|error| {
            Failure::usage(format!(
                "the join token cannot be read from stdin: {}",
                io_cause(&error)
            ))
        })?;
    let token = line.trim();
    if token.is_empty() || !token.bytes().all(|b| b.is_ascii_graphic()) {
        return Err(Failure::usage(
            "--join reads the join token from stdin, one line; paste the whole line that `systole join-command` printed",
        ));
    }
    Ok(token.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_is_one_that_another_machine_reaches() {
        let url = |text: &str| Url::parse(text).expect("url");
        let offered = ["https://10.0.0.5:7410".to_owned()];
        let local = url("https://127.0.0.1:7410");
        let found = |named: Option<&str>, used: &str, offered: &[String]| {
            address(named.map(url).as_ref(), &url(used), offered).map(|url| url.to_string())
        };
        assert_eq!(
            found(None, local.as_str(), &offered).as_deref(),
            Ok("https://10.0.0.5:7410")
        );
        assert_eq!(found(None, "https://lb:443", &offered).as_deref(), Ok("https://lb:443"));
        assert_eq!(
            found(Some("https://x:1"), "http://h:1", &[]).as_deref(),
            Ok("https://x:1")
        );
        for used in ["http://h:1", "https://localhost:1", "https://127.0.0.1:7410"] {
            let failure = found(None, used, &[]).expect_err("refused");
            assert!(failure.message.contains("--tls-self-signed"), "{failure}");
        }
        assert_eq!(
            found(Some("http://x:1"), "http://h:1", &[]).expect_err("refused").exit,
            2
        );
    }
}

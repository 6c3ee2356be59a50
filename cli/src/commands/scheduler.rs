//! `systole scheduler`: one scheduler replica.

use crate::args::{ClusterArgs, Global, LogFormat, SchedulerArgs, StoreArgs};
use crate::failure::Failure;
use crate::service::{Signals, start_log};
use crate::{exit_code, output, paths};
use std::net::SocketAddr;
use std::path::PathBuf;
use systole_scheduler::config::{Alarms, Callbacks, Config, LifeSign, Retention, Timing, Tls, TlsFiles};
use systole_scheduler::{Running, StartError};
use systole_shared::alarm::channel::check_url;
use systole_shared::error::Code;
use tokio_util::sync::CancellationToken;

pub async fn run(global: &Global, args: &SchedulerArgs) -> Result<u8, Failure> {
    let database = database(args.database.as_deref()).ok_or_else(|| {
        Failure::usage("--database is missing; write sqlite:PATH or postgres://USER@HOST/NAME, or set SYSTOLE_DATABASE")
    })?;
    let mut config = config(database, args.listen, &args.store, &args.cluster)?;
    config.insecure_plaintext = args.insecure_plaintext;
    if let (Some(cert), Some(key)) = (&args.tls_cert, &args.tls_key) {
        config.tls = Some(Tls::Files(TlsFiles {
            cert: cert.clone(),
            key: key.clone(),
        }));
    } else {
        config.tls = args.own_tls.tls();
    }
    start_log(&args.log, global.no_color, None)?;
    // One for each connection.
    systole_runner::file_limit::raise();
    let mut signals = Signals::new()?;
    let shutdown = CancellationToken::new();
    let running = Box::pin(systole_scheduler::start(config, shutdown.clone()))
        .await
        .map_err(failure)?;
    if !global.quiet && args.log.log_format == LogFormat::Text {
        output::note(&banner(&running));
    }
    let mut stopped = std::pin::pin!(running.stopped());
    tokio::select! {
        ended = &mut stopped => {
            ended.map_err(failure)?;
            return Err(Failure::unexpected("the scheduler ended by itself; its log says why"));
        }
        _ = signals.next() => {}
    }
    shutdown.cancel();
    signals.or_exit(stopped).await.map_err(failure)?;
    Ok(exit_code::OK)
}

fn banner(running: &Running) -> String {
    let note = running
        .tokens
        .note
        .as_ref()
        .map(|note| format!("\n{note}"))
        .unwrap_or_default();
    format!(
        "systole {}: scheduler, {}, {}{note}",
        env!("CARGO_PKG_VERSION"),
        running.database,
        place(running.addr)
    ) + &authority(running)
}

/// The cluster's own authority and what to do with it; empty without one.
pub fn authority(running: &Running) -> String {
    match running.authority() {
        None => String::new(),
        Some(authority) => format!(
            "\nTLS by this cluster's own authority, SHA-256 {}\nAnother machine joins with what `systole join-command` prints.",
            authority.fingerprint()
        ),
    }
}

/// The address, and who can reach it.
pub fn place(addr: SocketAddr) -> String {
    if addr.ip().is_loopback() {
        format!("{addr} (this machine only)")
    } else {
        addr.to_string()
    }
}

/// The database that was named, on the command line or in the environment.
pub fn database(named: Option<&str>) -> Option<String> {
    named
        .map(str::to_owned)
        .or_else(|| paths::variable("SYSTOLE_DATABASE").map(|text| text.to_string_lossy().into_owned()))
}

pub fn failure(error: StartError) -> Failure {
    Failure::new(error.exit_code(), error.to_string())
}

/// The replica's settings, of the options that `up` and `scheduler` share.
pub fn config(
    database: String,
    listen: SocketAddr,
    store: &StoreArgs,
    cluster: &ClusterArgs,
) -> Result<Config, Failure> {
    check(cluster)?;
    let token_dir = match &store.token_dir {
        Some(dir) => dir.clone(),
        None => paths::token_dir_of(listen)?,
    };
    let mut config = Config::new(database, listen, token_dir);
    config.renew_tokens = store.renew_tokens;
    config.allow_unsafe_database = store.allow_unsafe_database;
    config.connections = store.connections;
    config.jobs.clone_from(&store.jobs);
    config.zone.clone_from(&store.zone);
    config.timing = Timing {
        beat: cluster.beat,
        lost_after: cluster.lost_after,
        check: cluster.check,
        poll: cluster.poll,
        drain_wait: cluster.drain_wait,
        drain_max: cluster.drain_max,
    };
    config.retention = Retention {
        keep: cluster.keep,
        keep_audit: cluster.keep_audit,
        output_budget: cluster.output_budget,
        period: cluster.retention_period,
    };
    config.callbacks = Callbacks {
        allow_private: cluster.callback_allow_private,
        timeout: cluster.callback_timeout,
        backoff: cluster.callback_backoff,
    };
    config.alarms = Alarms {
        file: cluster
            .alarms
            .clone()
            .or_else(|| paths::variable("SYSTOLE_ALARMS").map(PathBuf::from)),
        timeout: cluster.alarm_timeout,
        backoff: cluster.alarm_backoff,
    };
    config.life_sign = life_sign(cluster)?;
    Ok(config)
}

fn life_sign(cluster: &ClusterArgs) -> Result<Option<LifeSign>, Failure> {
    let named = cluster.heartbeat_url.clone();
    let variable = || paths::variable("SYSTOLE_HEARTBEAT_URL").map(|text| text.to_string_lossy().into_owned());
    let Some(url) = named.or_else(variable) else {
        return Ok(None);
    };
    check_url(&url).map_err(|fault| Failure::usage(format!("--heartbeat-url: {}", fault.message)))?;
    Ok(Some(LifeSign {
        url,
        every: cluster.heartbeat_every,
    }))
}

/// Two lost beats are an everyday network hiccup; only the third says that a runner is gone.
fn check(cluster: &ClusterArgs) -> Result<(), Failure> {
    if cluster.lost_after < cluster.beat * 3 {
        let message = format!(
            "--lost-after: {:?} is less than 3 beats of {:?}; raise it, or lower --beat",
            cluster.lost_after, cluster.beat
        );
        return Err(Failure::usage(message).with_code(Code::InvalidField));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Cli, Command};
    use clap::Parser as _;
    use std::time::Duration;

    fn args(line: &[&str]) -> SchedulerArgs {
        match Cli::try_parse_from(["systole", "scheduler"].iter().chain(line))
            .expect("parses")
            .command
        {
            Command::Scheduler(args) => args,
            other => panic!("{other:?}"),
        }
    }

    fn made(line: &[&str]) -> Result<Config, Failure> {
        let args = args(line);
        config("sqlite:x".into(), args.listen, &args.store, &args.cluster)
    }

    #[test]
    fn the_options_have_the_defaults_of_the_product() {
        let config = made(&["--token-dir", "/t"]).expect("valid");
        let product = Config::new("sqlite:x", "127.0.0.1:7410".parse().expect("address"), "/t".into());
        assert_eq!(format!("{config:?}"), format!("{product:?}"));
    }

    #[test]
    fn options_reach_the_replica() {
        let config = made(&[
            "--token-dir",
            "/t",
            "--beat",
            "1s",
            "--lost-after",
            "3s",
            "--keep",
            "0",
            "--output-budget",
            "1MiB",
        ])
        .expect("valid");
        assert_eq!(
            (config.timing.beat, config.timing.lost_after),
            (Duration::from_secs(1), Duration::from_secs(3))
        );
        assert_eq!(
            (config.retention.keep, config.retention.output_budget),
            (Duration::ZERO, 1 << 20)
        );
    }

    #[test]
    fn a_runner_is_not_lost_before_its_third_beat() {
        let failure = made(&["--token-dir", "/t", "--beat", "1s", "--lost-after", "2s"]).expect_err("refused");
        assert!(failure.message.starts_with("--lost-after: "), "{failure}");
        assert_eq!(failure.exit, 2);
    }
}

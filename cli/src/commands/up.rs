//! `systole up`: a scheduler and a runner in one process, for one machine.

use super::runner::own_warden;
use super::scheduler::{self, place};
use crate::args::{Global, LogFormat, UpArgs, WardenTimes};
use crate::failure::Failure;
use crate::service::{Signals, default_slots, labels, queues, start_log};
use crate::url::DEFAULT_PORT;
use crate::{exit_code, output, paths};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use systole_runner::Shutdown;
use systole_runner::config::RunnerConfig;
use systole_scheduler::Running;
use tokio_util::sync::CancellationToken;

/// From TERM to KILL when the runner ends a task.
const KILL_GRACE: std::time::Duration = std::time::Duration::from_secs(10);

pub async fn run(global: &Global, args: &UpArgs) -> Result<u8, Failure> {
    let data_dir = match &args.data_dir {
        Some(dir) => std::path::absolute(dir).unwrap_or_else(|_| dir.clone()),
        None => paths::data_dir()?,
    };
    let database = scheduler::database(args.database.as_deref())
        .unwrap_or_else(|| format!("sqlite:{}", data_dir.join("systole.db").display()));
    let mut config = scheduler::config(database, args.listen, &args.store, &args.cluster)?;
    config.insecure_plaintext = args.insecure_plaintext;
    config.tls = args.own_tls.tls();
    // Checked before anything is started: a wrong label must not leave a scheduler behind.
    let plan = Plan {
        slots: args.slots.unwrap_or_else(default_slots),
        labels: labels(&args.labels)?,
        queues: queues(&args.queues)?,
        data_dir,
        policy: args.policy.absolute(),
    };
    paths::make_private_dir(&plan.data_dir, "--data-dir")?;
    start_log(&args.log, global.no_color)?;
    let signals = Signals::new()?;
    let stop_scheduler = CancellationToken::new();
    let running = Box::pin(systole_scheduler::start(config, stop_scheduler.clone()))
        .await
        .map_err(scheduler::failure)?;
    if !global.quiet && args.log.log == LogFormat::Text {
        output::note(&banner(&running, plan.slots));
    }
    let runner = plan.runner(&running)?;
    serve(running, stop_scheduler, runner, signals).await
}

struct Plan {
    slots: u32,
    labels: std::collections::BTreeMap<String, String>,
    queues: Vec<String>,
    data_dir: PathBuf,
    policy: Option<PathBuf>,
}

impl Plan {
    fn runner(self, running: &Running) -> Result<RunnerConfig, Failure> {
        let path = &running.tokens.runner;
        let token = paths::read_token(path)?.ok_or_else(|| {
            Failure::refused(format!(
                "the runner token {} does not exist, but the database knows one; bring the file back, or make new tokens with --renew-tokens",
                path.display()
            ))
        })?;
        let keep = systole_runner::kept::Keep::default();
        let times = WardenTimes {
            adopt_window: systole_runner::config::ADOPT_WINDOW,
            drain_wait: std::time::Duration::ZERO,
            output_file_max: systole_runner::config::OUTPUT_FILE_MAX,
            keep_output: keep.time,
            keep_output_max: keep.bytes,
        };
        Ok(RunnerConfig {
            urls: vec![local_url(running)],
            token,
            ca_pem: running.authority().map(|authority| authority.pem().as_bytes().to_vec()),
            joined: None,
            host: systole_runner::default_host_name(),
            slots: self.slots,
            queues: self.queues,
            slot_labels: BTreeMap::new(),
            labels: self.labels,
            data_dir: self.data_dir.join("runner"),
            kill_grace: KILL_GRACE,
            warden: own_warden(&times, self.policy.as_deref()),
            drain_wait: times.drain_wait,
            adopt_window: times.adopt_window,
            policy: self.policy,
            output_file_max: times.output_file_max,
            keep_output: keep,
        })
    }
}

/// The address by which this process and this machine reach the scheduler.
fn local_url(running: &Running) -> String {
    let scheme = if running.authority().is_some() { "https" } else { "http" };
    let addr = running.addr;
    format!(
        "{scheme}://{}",
        SocketAddr::new(paths::reachable(addr.ip()), addr.port())
    )
}

/// Runs both until a signal. The runner stops first: it still needs the scheduler to report its tasks.
async fn serve(
    running: Running,
    stop_scheduler: CancellationToken,
    config: RunnerConfig,
    mut signals: Signals,
) -> Result<u8, Failure> {
    let stop_runner = Shutdown::new();
    let mut runner = tokio::spawn(Box::pin(systole_runner::run(config, stop_runner.clone())));
    let mut scheduler = std::pin::pin!(running.stopped());
    tokio::select! {
        ended = &mut scheduler => {
            stop_runner.drain();
            ended.map_err(scheduler::failure)?;
            return Err(Failure::unexpected("the scheduler ended by itself; its log says why"));
        }
        ended = &mut runner => {
            stop_scheduler.cancel();
            let stopped = signals.or_exit(scheduler).await;
            runner_result(ended)?;
            stopped.map_err(scheduler::failure)?;
            return Err(Failure::unexpected("the runner ended by itself; its log says why"));
        }
        _ = signals.next() => {}
    }
    output::note("systole: stopping the runner, then the scheduler; a second signal exits at once");
    let orderly = async {
        stop_runner.drain();
        let runner = runner_result((&mut runner).await);
        stop_scheduler.cancel();
        scheduler.await.map_err(scheduler::failure)?;
        runner
    };
    signals.or_exit(orderly).await?;
    Ok(exit_code::OK)
}

fn runner_result(
    ended: Result<Result<(), systole_runner::RunnerError>, tokio::task::JoinError>,
) -> Result<(), Failure> {
    match ended {
        Ok(result) => result.map_err(super::runner::failure),
        Err(error) => Err(Failure::unexpected(format!("the runner ended by a bug: {error}"))),
    }
}

fn banner(running: &Running, slots: u32) -> String {
    let slots = if slots == 1 {
        "1 runner slot".to_owned()
    } else {
        format!("{slots} runner slots")
    };
    let token_dir = running.tokens.admin.parent().unwrap_or(Path::new("."));
    let note = running
        .tokens
        .note
        .as_ref()
        .map(|note| format!("{note}\n"))
        .unwrap_or_default();
    let call = call(
        &paths::how_to_call_me(),
        running.addr,
        &local_url(running),
        &running.tokens.admin,
    );
    let rows = [
        (format!("{call} run -- echo hello"), "run something"),
        (format!("{call} ls"), "see what ran, and how it ended"),
    ];
    let width = rows
        .iter()
        .map(|(command, _)| command.chars().count())
        .max()
        .unwrap_or(0)
        + 6;
    let next: Vec<String> = rows
        .iter()
        .zip(["Next   ", "       "])
        .map(|((command, what), begin)| format!("{begin}{command:<width$}{what}"))
        .collect();
    format!(
        "systole {}: scheduler and {slots}, {}, {}{}\nAdmin and runner tokens: {}, readable by you alone. Stops with this terminal.\n{note}{}",
        env!("CARGO_PKG_VERSION"),
        running.database,
        place(running.addr),
        scheduler::authority(running),
        paths::with_tilde(token_dir),
        next.join("\n")
    )
}

/// What to type before a command's name so that it reaches this scheduler with its token.
fn call(program: &str, addr: SocketAddr, url: &str, admin_token: &Path) -> String {
    let found = paths::token_dir_of(addr).is_ok_and(|dir| admin_token.parent() == Some(dir.as_path()));
    let token = if found {
        String::new()
    } else {
        format!("SYSTOLE_TOKEN_FILE={} ", admin_token.display())
    };
    let local = addr.port() == DEFAULT_PORT && paths::reachable(addr.ip()) == std::net::IpAddr::from([127, 0, 0, 1]);
    let url = if local { String::new() } else { format!(" --url {url}") };
    format!("{token}{program}{url}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hint_reaches_this_scheduler() {
        let default: SocketAddr = "127.0.0.1:7410".parse().expect("address");
        let other: SocketAddr = "0.0.0.0:7411".parse().expect("address");
        if let Ok(dir) = paths::token_dir_of(default) {
            assert_eq!(
                call("systole", default, "https://127.0.0.1:7410", &dir.join("admin.token")),
                "systole"
            );
        }
        assert_eq!(
            call("./systole", other, "http://127.0.0.1:7411", Path::new("/t/admin.token")),
            "SYSTOLE_TOKEN_FILE=/t/admin.token ./systole --url http://127.0.0.1:7411"
        );
    }
}

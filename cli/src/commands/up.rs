//! `systole up`: a scheduler and a runner in one process, for one machine.

use super::detach;
use super::runner::{self, own_warden};
use super::scheduler::{self, place};
use crate::args::{Global, LogArgs, LogFormat, UpArgs, WardenTimes};
use crate::failure::{Failure, io_cause};
use crate::instance::{self, Facts, Instance};
use crate::log_file::LogFile;
use crate::service::{Signals, default_slots, labels, queues, start_log};
use crate::url::DEFAULT_PORT;
use crate::{exit_code, output, paths};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use systole_runner::Shutdown;
use systole_runner::config::RunnerConfig;
use systole_scheduler::Running;
use tokio_util::sync::CancellationToken;

/// From TERM to KILL when the runner ends a task.
const KILL_GRACE: std::time::Duration = std::time::Duration::from_secs(10);

/// How long a background process waits for its runner before it says that it is ready all the same.
const RUNNER_READY_MAX: std::time::Duration = std::time::Duration::from_secs(30);

/// The folder that was named, or that of this user.
pub fn data_dir(named: Option<&Path>) -> Result<PathBuf, Failure> {
    match named {
        Some(dir) => Ok(std::path::absolute(dir).unwrap_or_else(|_| dir.to_owned())),
        None => paths::data_dir(),
    }
}

/// The log of a process in the background.
pub fn log_path(data_dir: &Path) -> PathBuf {
    data_dir.join("up.log")
}

pub async fn run(global: &Global, args: &UpArgs) -> Result<u8, Failure> {
    let data_dir = data_dir(args.data_dir.as_deref())?;
    if args.detach {
        return Box::pin(detach::start(global, args, &data_dir)).await;
    }
    if args.detached {
        detach::leave_terminal()?;
    }
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
        log: args.log.clone(),
    };
    paths::make_data_dir(&plan.data_dir)?;
    let mut instance = Instance::take(&plan.data_dir)?.map_err(|other| {
        Failure::refused(format!(
            "{}. `{}` ends it; another one needs its own --data-dir and --listen",
            instance::describe(other.as_ref(), &plan.data_dir),
            instance::how_to_end(&plan.data_dir)
        ))
    })?;
    let log = args.detached.then(|| log_path(&plan.data_dir));
    let log_file =
        log.as_deref().map(LogFile::new).transpose().map_err(|error| {
            Failure::unexpected(format!("--data-dir: up.log cannot be written: {}", io_cause(&error)))
        })?;
    start_log(&args.log, global.no_color, log_file)?;
    // One for each connection; the warden and its tasks get the limit that there was before.
    systole_runner::file_limit::raise();
    let signals = Signals::new()?;
    let stop_scheduler = CancellationToken::new();
    let running = Box::pin(systole_scheduler::start(config, stop_scheduler.clone()))
        .await
        .map_err(scheduler::failure)?;
    let facts = Facts {
        pid: std::process::id().cast_signed(),
        url: Some(local_url(&running)),
        version: env!("CARGO_PKG_VERSION").into(),
        log,
        service: instance::is_service(),
    };
    instance.say(&facts)?;
    let banner = banner(&running, plan.slots, &facts, &plan.data_dir);
    let ready = if args.detached {
        Some(detach::Ready { facts, banner })
    } else {
        if !global.quiet && args.log.log_format == LogFormat::Text {
            output::note(&banner);
        }
        None
    };
    let runner = plan.runner(&running)?;
    // Held to the end of the process.
    let _instance = instance;
    serve(running, stop_scheduler, runner, signals, ready).await
}

struct Plan {
    slots: u32,
    labels: std::collections::BTreeMap<String, String>,
    queues: Vec<String>,
    data_dir: PathBuf,
    policy: Option<PathBuf>,
    log: LogArgs,
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
            warden: own_warden(&times, self.policy.as_deref(), &self.log),
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
    mut ready: Option<detach::Ready>,
) -> Result<u8, Failure> {
    let stop_runner = Shutdown::new();
    let (context, host) = (Arc::clone(&running.context), config.host.clone());
    let heard = tokio::time::timeout(RUNNER_READY_MAX, async {
        while !context.registered.knows(&host).await {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    });
    let mut heard = std::pin::pin!(heard);
    let mut runner = tokio::spawn(Box::pin(systole_runner::run(config, stop_runner.clone())));
    let mut scheduler = std::pin::pin!(running.stopped());
    let signal = loop {
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
            signal = signals.next() => break signal,
            _ = &mut heard, if ready.is_some() => if let Some(ready) = ready.take() {
                detach::announce(&ready)?;
            },
        }
    };
    let orderly = async {
        if instance::is_service() {
            // A service manager starts the next one: the tasks go on meanwhile.
            runner::leave(&stop_runner, signal);
        } else {
            output::note("systole: stopping the runner, then the scheduler; a second signal exits at once");
            stop_runner.drain();
        }
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

fn banner(running: &Running, slots: u32, facts: &Facts, data_dir: &Path) -> String {
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
    let end = match &facts.log {
        _ if facts.service => "A service of systemd.".to_owned(),
        Some(log) => format!(
            "In the background: process {}, log {}. `{}` ends it.",
            facts.pid,
            paths::with_tilde(log),
            instance::how_to_end(data_dir)
        ),
        None => "Stops with this terminal; `up --detach` does not.".to_owned(),
    };
    format!(
        "systole {}: scheduler and {slots}, {}, {}{}\nAdmin and runner tokens: {}, readable by you alone. {end}\n{note}{}",
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

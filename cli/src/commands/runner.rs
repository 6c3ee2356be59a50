//! `systole runner`: takes tasks and runs them on this machine.

use super::join;
use crate::args::{Global, LogArgs, LogFormat, RunnerArgs, WardenTimes};
use crate::failure::Failure;
use crate::output::text;
use crate::paths::{self, Role};
use crate::service::{Signals, default_slots, labels, queues, slot_labels, start_log};
use crate::url::Url;
use crate::{client, exit_code, output};
use std::path::Path;
use std::time::Duration;
use systole_runner::config::RunnerConfig;
use systole_runner::credential::Credential;
use systole_runner::warden::client::Origin;
use systole_runner::{RunnerError, Shutdown};
use tokio::signal::unix::SignalKind;

pub async fn run(global: &Global, args: &RunnerArgs) -> Result<u8, Failure> {
    let data_dir = match &args.data_dir {
        Some(dir) => dir.clone(),
        None => paths::data_dir()?.join("runner"),
    };
    let policy = args.policy.absolute();
    let slots = args.slots.unwrap_or_else(default_slots);
    let host = args.name.clone().unwrap_or_else(systole_runner::default_host_name);
    let joined = joined(global, args, &data_dir, &host).await?;
    if args.join_only {
        return Ok(exit_code::OK);
    }
    // Its token speaks for the host as which it joined, whatever this machine is called by now.
    let own = joined.as_ref().and_then(|credential| credential.host.clone());
    let host = match &args.name {
        Some(_) => host,
        None => own.unwrap_or(host),
    };
    let urls = match &joined {
        Some(credential) => addresses(global, args.join.is_some(), credential)?,
        None => client::service_urls(global)?,
    };
    let (token, ca_pem) = match &joined {
        Some(credential) => (
            credential.secret.clone(),
            credential.ca_pem.as_ref().map(|pem| pem.clone().into_bytes()),
        ),
        None => (
            client::token(&urls, args.token_file.as_deref(), Role::Runner)?,
            client::ca_pem(global, &urls)?,
        ),
    };
    let config = RunnerConfig {
        token,
        ca_pem,
        joined: joined.map(|credential| (credential, args.rotate_every)),
        host,
        slots,
        queues: queues(&args.queues)?,
        labels: labels(&args.labels)?,
        slot_labels: slot_labels(&args.slot_labels, slots)?,
        kill_grace: args.kill_grace,
        urls: urls.iter().map(|url| url.as_str().to_owned()).collect(),
        warden: if args.external_warden {
            Origin::Elsewhere
        } else {
            own_warden(&args.warden, policy.as_deref(), &args.log)
        },
        drain_wait: args.warden.drain_wait,
        adopt_window: args.warden.adopt_window,
        policy,
        output_file_max: args.warden.output_file_max,
        keep_output: args.warden.keep(),
        data_dir,
    };
    paths::make_data_dir(&config.data_dir)?;
    start_log(&args.log, global.no_color, None)?;
    let mut signals = Signals::new()?;
    if !global.quiet && args.log.log_format == LogFormat::Text {
        let slots = if config.slots == 1 {
            "1 slot".to_owned()
        } else {
            format!("{} slots", config.slots)
        };
        let urls = urls.iter().map(Url::as_str).collect::<Vec<_>>().join(", ");
        output::note(&format!(
            "systole {}: runner {} with {slots}, for {urls}",
            env!("CARGO_PKG_VERSION"),
            config.host
        ));
    }
    let shutdown = Shutdown::new();
    let mut running = Box::pin(systole_runner::run(config, shutdown.clone()));
    tokio::select! {
        ended = &mut running => {
            ended.map_err(failure)?;
            return Err(Failure::unexpected("the runner ended by itself; its log says why"));
        }
        signal = signals.next() => leave(&shutdown, signal),
    }
    signals.or_exit(running).await.map_err(failure)?;
    Ok(exit_code::OK)
}

/// What this host has of the cluster that it joined, now or before. A token that is named goes before it.
async fn joined(
    global: &Global,
    args: &RunnerArgs,
    data_dir: &Path,
    host: &str,
) -> Result<Option<Credential>, Failure> {
    let Some(url) = &args.join else {
        return match &args.token_file {
            Some(_) => Ok(None),
            None => Credential::load(data_dir).map_err(failure),
        };
    };
    if !global.url.is_empty() {
        return Err(Failure::usage("--join says where the scheduler is; leave out --url"));
    }
    paths::make_data_dir(data_dir)?;
    let credential = join::join(global, url, args.ca_sha256.as_deref(), data_dir, host).await?;
    if !global.quiet {
        output::note(&format!(
            "systole: joined {url} as {}. This starts it again: {}",
            credential.name,
            start_again(args)
        ));
    }
    Ok(Some(credential))
}

/// The command that starts this runner once it has joined: what it is is not kept with its credential.
fn start_again(args: &RunnerArgs) -> String {
    let mut line = vec!["systole".to_owned(), "runner".to_owned()];
    let mut option = |name: &str, value: String| line.extend([name.to_owned(), value]);
    if let Some(name) = &args.name {
        option("--name", name.clone());
    }
    if let Some(slots) = args.slots {
        option("--slots", slots.to_string());
    }
    for queue in &args.queues {
        option("--queue", queue.clone());
    }
    for (key, value) in &args.labels {
        option("--label", format!("{key}={value}"));
    }
    for label in &args.slot_labels {
        let slots = if label.from == label.to {
            label.from.to_string()
        } else {
            format!("{}-{}", label.from, label.to)
        };
        option("--slot-label", format!("{slots}:{}={}", label.key, label.value));
    }
    if let Some(dir) = &args.data_dir {
        option("--data-dir", dir.display().to_string());
    }
    text::command_line(&line)
}

/// Those of the joined cluster, unless others are named. They must be https all the same: the host's own token goes there.
/// What is joined by this very command goes before the environment, which may lead to another cluster.
fn addresses(global: &Global, joins: bool, credential: &Credential) -> Result<Vec<Url>, Failure> {
    if joins || (global.url.is_empty() && paths::variable("SYSTOLE_URL").is_none()) {
        let urls: Result<Vec<Url>, String> = credential.urls.iter().map(|text| Url::parse(text)).collect();
        return urls.map_err(|error| Failure::refused(format!("the credential in --data-dir: {error}; join anew")));
    }
    let urls = client::service_urls(global)?;
    match urls.iter().find(|url| !url.secure) {
        None => Ok(urls),
        Some(url) => Err(Failure::usage(format!(
            "{url} is not https, and this host has joined {} over TLS; use another --data-dir, or --token-file",
            credential.urls.join(", ")
        ))),
    }
}

/// SIGTERM is what a service manager sends before it starts the next version: the tasks go on. A person at the terminal
/// means all of it, and with the first process of a container everything else ends anyway.
pub fn leave(shutdown: &Shutdown, signal: i32) {
    if signal == SignalKind::terminate().as_raw_value() && std::process::id() != 1 {
        output::note("systole: the runner leaves; its tasks go on and are taken over by its next start");
        shutdown.hand_over();
    } else {
        output::note("systole: stopping the runner; its tasks are ended and reported");
        shutdown.drain();
    }
}

/// This very program, also when its file was replaced meanwhile.
pub fn own_warden(times: &WardenTimes, policy: Option<&Path>, log: &LogArgs) -> Origin {
    let ms = |duration: Duration| format!("{}ms", duration.as_millis());
    let mut arguments = vec![
        "warden".to_owned(),
        "--leave-when-idle".to_owned(),
        format!("--adopt-window={}", ms(times.adopt_window)),
        format!("--drain-wait={}", ms(times.drain_wait)),
        format!("--output-file-max={}", times.output_file_max),
        format!("--keep-output={}", ms(times.keep_output)),
        format!("--keep-output-max={}", times.keep_output_max),
    ];
    arguments.extend(log.line());
    if let Some(policy) = policy {
        arguments.push(format!("--policy={}", policy.display()));
    }
    Origin::Program("/proc/self/exe".into(), arguments)
}

pub fn failure(error: RunnerError) -> Failure {
    let exit = match &error {
        RunnerError::NoUrl
        | RunnerError::BadUrl { .. }
        | RunnerError::BadCa(_)
        | RunnerError::Credential(..)
        | RunnerError::Invalid(_)
        | RunnerError::Policy(_) => exit_code::USAGE,
        RunnerError::BadToken | RunnerError::DataDirInUse(_) => exit_code::REFUSED,
        RunnerError::DataDir { .. } | RunnerError::NoWarden(..) | RunnerError::Host(_) => exit_code::NO,
    };
    Failure::new(exit, error.to_string())
}

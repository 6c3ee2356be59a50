//! What `up`, `scheduler` and `runner` have in common: the log, the signals, and checks of their options.

use crate::args::{LogArgs, LogFormat};
use crate::failure::Failure;
use std::collections::BTreeMap;
use std::io::IsTerminal as _;
use systole_shared::error::Code;
use systole_shared::limits::{LABELS_MAX, QUEUES_MAX, SLOTS_MAX};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing_subscriber::EnvFilter;

/// Starts the log on stderr.
pub fn start_log(args: &LogArgs, no_color: bool) -> Result<(), Failure> {
    let filter = match crate::paths::variable("SYSTOLE_LOG") {
        None => EnvFilter::new("info"),
        Some(text) => EnvFilter::try_new(text.to_string_lossy()).map_err(|error| {
            Failure::usage(format!(
                "SYSTOLE_LOG: {error}; write a level such as info, or systole_scheduler=debug"
            ))
        })?,
    };
    let color = std::io::stderr().is_terminal() && !no_color && crate::paths::variable("NO_COLOR").is_none();
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(color);
    let started = match args.log {
        LogFormat::Text => builder.try_init(),
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    };
    started.map_err(|error| Failure::unexpected(format!("the log cannot be started: {error}")))
}

/// The signals that end a service.
pub struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    pub fn new() -> Result<Self, Failure> {
        let listen =
            |kind| signal(kind).map_err(|error| Failure::unexpected(format!("signals cannot be caught: {error}")));
        Ok(Self {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
        })
    }

    /// The number of the next one.
    pub async fn next(&mut self) -> i32 {
        let (interrupt, terminate) = (SignalKind::interrupt(), SignalKind::terminate());
        tokio::select! {
            _ = self.interrupt.recv() => interrupt.as_raw_value(),
            _ = self.terminate.recv() => terminate.as_raw_value(),
        }
    }

    /// Drives an orderly stop to its end; another signal ends the process at once.
    pub async fn or_exit<T>(&mut self, stop: impl Future<Output = T>) -> T {
        tokio::select! {
            done = stop => done,
            number = self.next() => {
                crate::output::note("systole: told a second time; exits at once");
                std::process::exit(128 + number)
            }
        }
    }
}

/// Slots of this machine when nobody says otherwise: one for each core.
pub fn default_slots() -> u32 {
    let cores = std::thread::available_parallelism().map_or(1, |cores| u32::try_from(cores.get()).unwrap_or(SLOTS_MAX));
    cores.min(SLOTS_MAX)
}

/// Labels of a runner, checked.
pub fn labels(pairs: &[(String, String)]) -> Result<BTreeMap<String, String>, Failure> {
    let labels = crate::spec::unique(pairs, "--label")?;
    systole_shared::task::spec::check_labels(&labels, LABELS_MAX, "--label")?;
    Ok(labels)
}

/// Queues of a runner, checked.
pub fn queues(queues: &[String]) -> Result<Vec<String>, Failure> {
    if queues.len() > QUEUES_MAX {
        let message = format!(
            "--queue: {} queues are given; at most {QUEUES_MAX} are allowed",
            queues.len()
        );
        return Err(Failure::usage(message).with_code(Code::InvalidField));
    }
    Ok(queues.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_and_queues_name_their_option() {
        let pair = |key: &str| (key.to_owned(), "1".to_owned());
        for pairs in [vec![pair("gpu"), pair("gpu")], vec![pair("GPU")]] {
            let failure = labels(&pairs).expect_err("refused");
            assert!(failure.message.starts_with("--label: "), "{failure}");
            assert_eq!(failure.exit, 2);
        }
        assert!(
            queues(&vec!["q".into(); 33])
                .expect_err("refused")
                .message
                .starts_with("--queue: ")
        );
        assert!(default_slots() >= 1);
    }
}

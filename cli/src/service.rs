//! What `up`, `scheduler` and `runner` have in common: the log, the signals, and checks of their options.

use crate::args::{LogArgs, LogFormat, SlotLabel};
use crate::failure::Failure;
use crate::log_file::LogFile;
use std::collections::BTreeMap;
use std::io::IsTerminal as _;
use std::sync::Arc;
use std::time::Duration;
use systole_shared::error::Code;
use systole_shared::limits::{LABELS_MAX, QUEUES_MAX, SLOTS_MAX};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::Instant;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::writer::BoxMakeWriter;

/// Two signals within this time are one: wrappers such as `timeout` signal the process and then its group.
const SIGNALS_APART: Duration = Duration::from_millis(500);

/// Starts the log, on stderr unless it is told a file.
pub fn start_log(args: &LogArgs, no_color: bool, file: Option<LogFile>) -> Result<(), Failure> {
    let filter = match crate::paths::variable("SYSTOLE_LOG") {
        None => EnvFilter::new("info"),
        Some(text) => EnvFilter::try_new(text.to_string_lossy()).map_err(|error| {
            Failure::usage(format!(
                "SYSTOLE_LOG: {error}; write a level such as info, or systole_scheduler=debug"
            ))
        })?,
    };
    let filter = if args.log_tasks {
        let steps = "task=debug"
            .parse()
            .map_err(|error| Failure::unexpected(format!("{error}")))?;
        filter.add_directive(steps)
    } else {
        filter
    };
    let color =
        file.is_none() && std::io::stderr().is_terminal() && !no_color && crate::paths::variable("NO_COLOR").is_none();
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(match file {
            Some(file) => BoxMakeWriter::new(Arc::new(file)),
            None => BoxMakeWriter::new(std::io::stderr),
        })
        // A terminal that has gone takes no complaint about a lost line either: it would end in a panic.
        .log_internal_errors(false)
        .with_ansi(color);
    let started = match args.log_format {
        LogFormat::Text => builder.try_init(),
        LogFormat::Json => builder.json().flatten_event(true).with_span_list(false).try_init(),
    };
    started.map_err(|error| Failure::unexpected(format!("the log cannot be started: {error}")))
}

/// The signals that end a service.
pub struct Signals {
    interrupt: Signal,
    terminate: Signal,
    /// `None` where it is ignored, as under `nohup`.
    hangup: Option<Signal>,
    told: Told,
}

/// When the last signal came that counts.
#[derive(Default)]
struct Told(Option<Instant>);

impl Told {
    /// Whether a signal at `now` is one of its own.
    fn counts(&mut self, now: Instant) -> bool {
        let counts = self.0.is_none_or(|last| now.duration_since(last) >= SIGNALS_APART);
        if counts {
            self.0 = Some(now);
        }
        counts
    }
}

/// Whether this process was started with SIGHUP ignored. It is ignored after this call.
#[expect(unsafe_code, reason = "the signal disposition of the process has no safe interface")]
fn hangup_is_ignored() -> bool {
    use nix::sys::signal::{SigHandler, Signal, signal};
    // SAFETY: SIG_IGN installs no handler of ours, so no code can run at an unsafe moment.
    let before = unsafe { signal(Signal::SIGHUP, SigHandler::SigIgn) };
    matches!(before, Ok(SigHandler::SigIgn))
}

impl Signals {
    pub fn new() -> Result<Self, Failure> {
        let listen =
            |kind| signal(kind).map_err(|error| Failure::unexpected(format!("signals cannot be caught: {error}")));
        Ok(Self {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
            hangup: if hangup_is_ignored() {
                None
            } else {
                Some(listen(SignalKind::hangup())?)
            },
            told: Told::default(),
        })
    }

    /// The number of the next one.
    pub async fn next(&mut self) -> i32 {
        loop {
            let hangup = async {
                match &mut self.hangup {
                    Some(hangup) => hangup.recv().await,
                    None => std::future::pending().await,
                }
            };
            let kind = tokio::select! {
                _ = self.interrupt.recv() => SignalKind::interrupt(),
                _ = self.terminate.recv() => SignalKind::terminate(),
                _ = hangup => SignalKind::hangup(),
            };
            if self.told.counts(Instant::now()) {
                return kind.as_raw_value();
            }
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
/// The labels of each slot that has any of its own.
pub fn slot_labels(given: &[SlotLabel], slots: u32) -> Result<BTreeMap<u32, BTreeMap<String, String>>, Failure> {
    let mut found: BTreeMap<u32, BTreeMap<String, String>> = BTreeMap::new();
    for label in given {
        if label.to >= slots {
            return Err(Failure::usage(format!(
                "--slot-label: there is no slot {}; this runner has {slots}, counted from 0",
                label.to
            )));
        }
        for slot in label.from..=label.to {
            let labels = found.entry(slot).or_default();
            if labels.insert(label.key.clone(), label.value.clone()).is_some() {
                return Err(Failure::usage(format!(
                    "--slot-label: slot {slot} is given {:?} twice",
                    label.key
                )));
            }
        }
    }
    Ok(found)
}

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
    fn signals_close_together_are_one() {
        let begin = Instant::now();
        let mut told = Told::default();
        let counted = [0, 1, 499, 500, 999, 1_000, 9_000].map(|ms| told.counts(begin + Duration::from_millis(ms)));
        assert_eq!(counted, [true, false, false, true, false, true, true]);
    }

    #[test]
    fn labels_of_slots_are_spread_over_their_ranges_and_given_once() {
        let label = |from, to, key: &str| SlotLabel {
            from,
            to,
            key: key.into(),
            value: "1".into(),
        };
        let found = slot_labels(&[label(0, 2, "a"), label(1, 1, "b")], 3).expect("they fit");
        let keys: Vec<(u32, Vec<&str>)> = found
            .iter()
            .map(|(slot, labels)| (*slot, labels.keys().map(String::as_str).collect()))
            .collect();
        assert_eq!(keys, [(0, vec!["a"]), (1, vec!["a", "b"]), (2, vec!["a"])]);
        let refused = |given: &[SlotLabel]| slot_labels(given, 3).expect_err("refused").to_string();
        assert!(refused(&[label(0, 3, "a")]).contains("no slot 3; this runner has 3"));
        assert!(refused(&[label(0, 1, "a"), label(1, 1, "a")]).contains("slot 1 is given \"a\" twice"));
    }

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

//! A lease, and the command that runs while it is held.

use crate::args::{Global, HoldArgs};
use crate::client::Client;
use crate::exit_code;
use crate::failure::Failure;
use crate::output::Output;
use nix::sys::signal::{SigSet, Signal, killpg};
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::{Pid, getpgrp, tcgetpgrp, tcsetpgrp};
use std::io::{IsTerminal as _, Write as _};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;
use systole_proto::v1;
use systole_runner::boottime;
use systole_shared::error::Code;
use systole_shared::limits::{LEASE_TTL_MS_MAX, LEASE_TTL_MS_MIN};
use systole_shared::policy::lease::{renew_every_ms, stop_at};
use tokio::process::Child;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

/// How long one call waits at the scheduler; well below the longest wait for an answer.
const PARK_MS: u64 = 10_000;
/// Between two tries while schedulers are restarted.
const RETRY_EVERY: Duration = Duration::from_millis(300);
/// A release that is not answered by then is left to the ttl.
const RELEASE_MAX: Duration = Duration::from_secs(5);
/// What the command left in its group is gone by then, or the kernel has it.
const GONE_MAX: Duration = Duration::from_secs(10);
/// What is passed on to the command.
const FORWARDED: [Signal; 6] = [
    Signal::SIGTERM,
    Signal::SIGINT,
    Signal::SIGHUP,
    Signal::SIGQUIT,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
];

/// A lease that is held here.
struct Lease {
    resource: String,
    holder: String,
    token: i64,
    ttl_ms: u64,
    grace_ms: u64,
    /// When the last call that was granted was sent.
    sent_ms: u64,
}

/// What a renewal came to.
enum News {
    /// Granted; sent then.
    Renewed(u64),
    /// Taken over, or taken away.
    Lost(Failure),
    /// No answer; it is tried again.
    Silent(String),
}

fn usage(message: &str) -> Failure {
    Failure::usage(message.to_owned())
}

/// What this command ends with when it is not the command's own status.
fn exit_of(failure: Failure) -> Failure {
    let exit = match failure.exit {
        exit_code::NOT_FOUND | exit_code::USAGE => exit_code::TASK_REJECTED,
        other => exit_code::of_start(other),
    };
    Failure { exit, ..failure }
}

pub async fn run(global: &Global, output: &Output, args: &HoldArgs) -> Result<u8, Failure> {
    let ttl_ms = u64::try_from(args.ttl.as_millis()).unwrap_or(u64::MAX);
    if !(LEASE_TTL_MS_MIN..=LEASE_TTL_MS_MAX).contains(&ttl_ms) {
        return Err(usage("--ttl: must be 3s to 24h"));
    }
    let client = Arc::new(Client::new(global).map_err(Failure::of_start)?);
    let (signals_to, mut signals) = mpsc::channel(16);
    for number in FORWARDED {
        let mut stream = signal(SignalKind::from_raw(number as i32))
            .map_err(|error| Failure::unexpected(format!("{number} cannot be caught: {error}")))?;
        let to = signals_to.clone();
        tokio::spawn(async move {
            while stream.recv().await.is_some() {
                if to.send(number).await.is_err() {
                    return;
                }
            }
        });
    }
    let wanted = Lease {
        resource: args.resource.clone(),
        holder: holder(),
        token: 0,
        ttl_ms,
        grace_ms: u64::try_from(args.kill_grace.as_millis()).unwrap_or(u64::MAX),
        sent_ms: 0,
    };
    let acquired = tokio::select! {
        acquired = acquire(&client, output, wanted, args.wait) => acquired,
        Some(number) = signals.recv() => return Ok(128 + number as u8),
    };
    let lease = acquired.map_err(exit_of)?;
    output.note(&format!("{}: held, token {}", lease.resource, lease.token));
    let mut running = match Running::start(&lease, args) {
        Ok(running) => running,
        Err(failure) => {
            release(&client, output, &lease).await;
            return Err(failure);
        }
    };
    let exit = running.attend(&client, output, lease, &mut signals).await;
    Ok(exit)
}

/// Of this acquisition and no other one; people read it, too.
fn holder() -> String {
    let host = nix::unistd::gethostname()
        .ok()
        .and_then(|name| name.into_string().ok())
        .unwrap_or_else(|| "unknown".into());
    let random = uuid::Uuid::new_v4().simple().to_string();
    format!("{host}:{}:{}", std::process::id(), &random[..12])
}

async fn acquire(client: &Client, output: &Output, wanted: Lease, wait: Option<Duration>) -> Result<Lease, Failure> {
    let until = wait.map(|wait| tokio::time::Instant::now() + wait);
    let mut told = false;
    loop {
        let left_ms = until.map_or(0, |until| {
            let left = until.saturating_duration_since(tokio::time::Instant::now());
            u64::try_from(left.as_millis()).unwrap_or(u64::MAX)
        });
        let sent_ms = boottime::now_ms();
        let request = v1::AcquireRequest {
            resource: wanted.resource.clone(),
            holder: wanted.holder.clone(),
            ttl_ms: wanted.ttl_ms,
            wait_ms: left_ms.min(PARK_MS),
        };
        let failure = match client.acquire_lease(request).await {
            Ok(lease) => {
                let mut lease = Lease {
                    token: lease.token,
                    sent_ms,
                    ..wanted
                };
                // It was parked, and the ttl counts from when this was sent: from now on it does.
                if boottime::now_ms() - sent_ms > lease.ttl_ms / 10 {
                    lease.sent_ms = boottime::now_ms();
                    client.renew_lease(lease.renewal()).await?;
                }
                return Ok(lease);
            }
            Err(failure) => failure,
        };
        let held = failure.code.as_deref() == Some(Code::LeaseHeld.name());
        match until {
            Some(until) if held && tokio::time::Instant::now() < until => {
                if !told {
                    output.note(&format!("waiting: {}", failure.message));
                    told = true;
                }
                // One that drains answers at once.
                if boottime::now_ms() - sent_ms < 100 {
                    tokio::time::sleep(RETRY_EVERY).await;
                }
            }
            Some(_) if held => {
                return Err(Failure {
                    exit: exit_code::TASK_TIMEOUT,
                    ..failure
                });
            }
            _ => return Err(failure),
        }
    }
}

async fn release(client: &Client, output: &Output, lease: &Lease) {
    let request = v1::ReleaseRequest {
        resource: lease.resource.clone(),
        token: lease.token,
        holder: lease.holder.clone(),
    };
    match tokio::time::timeout(RELEASE_MAX, client.release_lease(request)).await {
        Ok(Ok(_)) => {}
        Ok(Err(failure)) => output.note(&format!(
            "{}: not given back, it ends by its ttl: {failure}",
            lease.resource
        )),
        Err(_) => output.note(&format!("{}: not given back, it ends by its ttl", lease.resource)),
    }
}

impl Lease {
    fn renewal(&self) -> v1::RenewRequest {
        v1::RenewRequest {
            resource: self.resource.clone(),
            token: self.token,
            holder: self.holder.clone(),
        }
    }

    fn tell_silence(&self, output: &Output, last_words: &str) {
        let why = if last_words.is_empty() {
            String::new()
        } else {
            format!(" ({last_words})")
        };
        output.note(&format!(
            "{}: the lease could not be renewed{why}; the command is ended before its time is over",
            self.resource
        ));
    }

    /// When the command must have ended: told to, and dead.
    fn stop(&self) -> (u64, u64) {
        let stop = stop_at(self.ttl_ms, self.grace_ms);
        (self.sent_ms + stop.term_ms, self.sent_ms + stop.kill_ms)
    }
}

fn is_lost(failure: &Failure) -> bool {
    [Code::LeaseHeld, Code::LeaseRevoked]
        .iter()
        .any(|code| failure.code.as_deref() == Some(code.name()))
}

/// Renews for ever, and tells what came of it.
async fn renew(client: Arc<Client>, request: v1::RenewRequest, ttl_ms: u64, sent_ms: u64, news: mpsc::Sender<News>) {
    let every = renew_every_ms(ttl_ms);
    let answer_max = Duration::from_millis((ttl_ms / 6).max(500));
    let mut next_ms = sent_ms + every;
    loop {
        let wait = next_ms.saturating_sub(boottime::now_ms());
        tokio::time::sleep(Duration::from_millis(wait)).await;
        let sent_ms = boottime::now_ms();
        let told = match tokio::time::timeout(answer_max, client.renew_lease(request.clone())).await {
            Ok(Ok(_)) => News::Renewed(sent_ms),
            Ok(Err(failure)) if is_lost(&failure) => News::Lost(failure),
            Ok(Err(failure)) => News::Silent(failure.message),
            Err(_) => {
                client.turn();
                News::Silent("no answer".into())
            }
        };
        next_ms = match told {
            News::Renewed(sent_ms) => sent_ms + every,
            _ => boottime::now_ms() + u64::try_from(RETRY_EVERY.as_millis()).unwrap_or(0),
        };
        if news.send(told).await.is_err() {
            return;
        }
    }
}

/// The command, and the guard beside it.
struct Running {
    child: Child,
    group: Pid,
    guard: Guard,
    /// The terminal is the command's.
    terminal: bool,
}

struct Guard {
    process: std::process::Child,
}

impl Guard {
    fn start() -> Result<Self, Failure> {
        let program = std::env::current_exe()
            .map_err(|error| Failure::unexpected(format!("this program cannot be found: {error}")))?;
        let process = std::process::Command::new(program)
            .arg("lock-guard")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .process_group(0)
            .spawn()
            .map_err(|error| Failure::unexpected(format!("the guard of the lease cannot be started: {error}")))?;
        Ok(Self { process })
    }

    /// One that is dead is noticed by [`Guard::is_dead`].
    fn tell(&mut self, line: &str) {
        if let Some(stdin) = &mut self.process.stdin {
            let _ = stdin.write_all(format!("{line}\n").as_bytes());
        }
    }

    fn is_dead(&mut self) -> bool {
        !matches!(self.process.try_wait(), Ok(None))
    }

    fn end(mut self) {
        self.tell("end");
        drop(self.process.stdin.take());
        let _ = self.process.wait();
    }
}

/// What ended the command before its time.
enum Why {
    Revoked,
    Lost,
}

#[expect(
    unsafe_code,
    reason = "what a child does before its program starts has no safe interface"
)]
fn dies_with_us(command: &mut std::process::Command) {
    // SAFETY: prctl is async-signal-safe, and the closure allocates nothing.
    unsafe {
        command.pre_exec(|| nix::sys::prctl::set_pdeathsig(Signal::SIGKILL).map_err(std::io::Error::from));
    }
}

impl Running {
    fn start(lease: &Lease, args: &HoldArgs) -> Result<Self, Failure> {
        let (program, arguments) = args
            .command
            .split_first()
            .ok_or_else(|| usage("no command was given; write it after --"))?;
        let mut guard = Guard::start()?;
        let (term, kill) = lease.stop();
        guard.tell(&format!("until {term} {kill}"));
        let mut command = std::process::Command::new(program);
        command
            .args(arguments)
            .env("SYSTOLE_FENCING_TOKEN", lease.token.to_string())
            .process_group(0);
        dies_with_us(&mut command);
        let spawned = tokio::process::Command::from(command).spawn();
        let child = match spawned {
            Ok(child) => child,
            Err(error) => {
                guard.end();
                let (exit, what) = if error.kind() == std::io::ErrorKind::NotFound {
                    (exit_code::PROGRAM_NOT_FOUND, "program not found")
                } else {
                    (exit_code::TASK_NOT_STARTED, "could not start")
                };
                let program = program.to_string_lossy();
                return Err(Failure::new(exit, format!("{program}: {what}: {error}")));
            }
        };
        let group = Pid::from_raw(child.id().and_then(|id| i32::try_from(id).ok()).unwrap_or(0));
        guard.tell(&format!("group {group}"));
        let terminal = hand_over_terminal(group);
        Ok(Self {
            child,
            group,
            guard,
            terminal,
        })
    }

    fn signal(&self, number: Signal) {
        let _ = killpg(self.group, number);
        if matches!(
            number,
            Signal::SIGTERM | Signal::SIGKILL | Signal::SIGHUP | Signal::SIGINT
        ) {
            // A stopped process takes no signal before it goes on.
            let _ = killpg(self.group, Signal::SIGCONT);
        }
    }

    /// Until the command has ended, which it does when the lease is lost.
    async fn attend(
        &mut self,
        client: &Arc<Client>,
        output: &Output,
        mut lease: Lease,
        signals: &mut mpsc::Receiver<Signal>,
    ) -> u8 {
        let (news_to, mut news) = mpsc::channel(4);
        let renewals = tokio::spawn(renew(
            Arc::clone(client),
            lease.renewal(),
            lease.ttl_ms,
            lease.sent_ms,
            news_to,
        ));
        let mut why: Option<Why> = None;
        // By `CLOCK_BOOTTIME`; `None` of the first: it was told.
        let (mut term_ms, mut kill_ms) = (Some(lease.stop().0), lease.stop().1);
        let mut last_words = String::new();
        let status = loop {
            let now = boottime::now_ms();
            if now >= kill_ms || self.guard.is_dead() {
                why.get_or_insert(Why::Lost);
                self.signal(Signal::SIGKILL);
            } else if term_ms.is_some_and(|term| now >= term) {
                if why.is_none() {
                    why = Some(Why::Lost);
                    lease.tell_silence(output, &last_words);
                }
                term_ms = None;
                self.signal(Signal::SIGTERM);
            }
            // Looked at again and again: a suspend ends no sleep early.
            let next = term_ms.unwrap_or(kill_ms).saturating_sub(now).clamp(10, 200);
            tokio::select! {
                status = self.child.wait() => break status.ok(),
                Some(number) = signals.recv() => self.signal(number),
                Some(told) = news.recv() => match told {
                    News::Renewed(sent_ms) if why.is_none() => {
                        lease.sent_ms = sent_ms;
                        let (term, kill) = lease.stop();
                        (term_ms, kill_ms) = (Some(term), kill);
                        self.guard.tell(&format!("until {term} {kill}"));
                    }
                    News::Lost(failure) if why.is_none() => {
                        output.note(&format!("{}; the command is ended", failure.message));
                        let revoked = failure.code.as_deref() == Some(Code::LeaseRevoked.name());
                        why = Some(if revoked { Why::Revoked } else { Why::Lost });
                        let now = boottime::now_ms();
                        kill_ms = kill_ms.min(now + lease.grace_ms);
                        term_ms = Some(now);
                        self.guard.tell(&format!("until {now} {kill_ms}"));
                    }
                    News::Silent(text) => last_words = text,
                    News::Renewed(_) | News::Lost(_) => {}
                },
                () = tokio::time::sleep(Duration::from_millis(next)) => {}
            }
        };
        renewals.abort();
        // The guard was faster, or this process stood still.
        if why.is_none()
            && status.is_some_and(|status| status.signal().is_some())
            && boottime::now_ms() >= lease.stop().0
        {
            why = Some(Why::Lost);
            lease.tell_silence(output, &last_words);
        }
        let gone = self.end_group().await;
        if self.terminal {
            take_back_terminal();
        }
        if gone {
            release(client, output, &lease).await;
        } else {
            output.note(&format!(
                "{}: processes of the command cannot be ended, so the lease is not given back; it ends by its ttl",
                lease.resource
            ));
        }
        match why {
            Some(Why::Revoked) => exit_code::TASK_CANCELLED,
            Some(Why::Lost) => exit_code::NO_VERDICT,
            None => status.map_or(exit_code::NO_VERDICT, exit_of_child),
        }
    }

    /// What the command left in its group holds nothing any more; then the guard may go.
    async fn end_group(&mut self) -> bool {
        let until = tokio::time::Instant::now() + GONE_MAX;
        let mut gone = true;
        while killpg(self.group, Signal::SIGKILL).is_ok() {
            if tokio::time::Instant::now() > until {
                gone = false;
                break;
            }
            // Orphans of the command come to this process, if anybody made it their reaper.
            let _ = waitpid(Pid::from_raw(-self.group.as_raw()), Some(WaitPidFlag::WNOHANG));
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        self.guard.tell("end");
        drop(self.guard.process.stdin.take());
        let _ = self.guard.process.wait();
        gone
    }
}

fn exit_of_child(status: ExitStatus) -> u8 {
    let of_signal = || status.signal().map(|signal| signal.saturating_add(128));
    status
        .code()
        .or_else(of_signal)
        .and_then(|code| u8::try_from(code).ok())
        .unwrap_or(exit_code::NO)
}

/// A command that reads a terminal must be in its foreground. True: it is now.
fn hand_over_terminal(group: Pid) -> bool {
    let stdin = std::io::stdin();
    if !stdin.is_terminal() || tcgetpgrp(&stdin) != Ok(getpgrp()) {
        return false;
    }
    // From the background a terminal is given away only by whoever does not hear of it.
    let mut mask = SigSet::empty();
    mask.add(Signal::SIGTTOU);
    let _ = mask.thread_block();
    let given = tcsetpgrp(&stdin, group).is_ok();
    // It may have asked for input before.
    let _ = killpg(group, Signal::SIGCONT);
    given
}

fn take_back_terminal() {
    let _ = tcsetpgrp(std::io::stdin(), getpgrp());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_holder_is_a_new_one_each_time_and_names_this_process() {
        let (one, two) = (holder(), holder());
        assert_ne!(one, two);
        assert!(one.contains(&format!(":{}:", std::process::id())), "{one}");
    }

    #[test]
    fn the_command_is_told_and_ended_before_the_ttl_counted_from_what_was_sent() {
        let lease = Lease {
            resource: "a".into(),
            holder: "h".into(),
            token: 1,
            ttl_ms: 30_000,
            grace_ms: 5_000,
            sent_ms: 100_000,
        };
        assert_eq!(lease.stop(), (122_000, 127_000));
    }

    #[test]
    fn a_refusal_is_not_the_commands_own_status() {
        for (exit, expected) in [
            (exit_code::REFUSED, exit_code::TASK_REJECTED),
            (exit_code::UNREACHABLE, exit_code::NO_VERDICT),
            (exit_code::TASK_TIMEOUT, exit_code::TASK_TIMEOUT),
        ] {
            assert_eq!(exit_of(Failure::new(exit, "no")).exit, expected);
        }
        assert_eq!(exit_of_child(ExitStatus::from_raw(3 << 8)), 3);
        assert_eq!(exit_of_child(ExitStatus::from_raw(15)), 143);
    }
}

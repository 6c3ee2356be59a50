//! `systole run`: submits a task, shows its output as it comes, and ends like it.
//!
//! Three things go on at once: the states of the chain, the output of its current member, and Ctrl-C.
//! They are told apart from each other in [`Run`]; `follow` hides broken connections from it.

use super::{now_ms, stdin};
use crate::args::{Format, Global, TaskArgs};
use crate::client::Client;
use crate::failure::Failure;
use crate::follow::{self, Follow, Follower, OutputEvent, StateEvent, Wanted, is_over};
use crate::output::notes::{Notes, gist};
use crate::output::sink::{Place, Sink};
use crate::output::{self, Output, json, text};
use crate::{exit_code, spec};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use systole_proto::convert::state_from_wire;
use systole_proto::v1;
use systole_shared::task::TaskState;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::Instant;

/// A task that waits no longer than this is not worth a word.
const WAIT_SILENT: Duration = Duration::from_secs(1);
/// Two interrupts within this time are one: wrappers such as `timeout` signal the process and its group.
const INTERRUPTS_APART: Duration = Duration::from_millis(100);
/// How long the rest of the output is waited for after the end; the scheduler waits half as long itself.
const REST_MAX: Duration = Duration::from_secs(60);

pub async fn run(global: &Global, args: &TaskArgs) -> Result<u8, Failure> {
    let output = Output::new(global);
    let request = spec::submission(args, systole_shared::clock::now_ms())?;
    let client = Arc::new(Client::new(global).map_err(Failure::of_start)?);
    let key = request.items.first().map(|item| item.key.clone()).unwrap_or_default();
    let trace = spec::trace(args);
    let submit = async {
        let submitted = client.submit(request, trace.as_deref()).await?;
        // Only a key that somebody chose can be known to them.
        let known = submitted.existing && args.key.is_some();
        Ok(Started {
            id: submitted.id,
            note: known.then(|| "this key was submitted before; this is its output".into()),
        })
    };
    start_and_follow(&client, output, &key, submit).await
}

/// A task that a call made.
pub struct Started {
    pub id: i64,
    /// What to say of it first.
    pub note: Option<String>,
}

/// Makes a task by a call that carries this key, follows it, and ends like it.
pub async fn start_and_follow(
    client: &Arc<Client>,
    output: Output,
    key: &str,
    call: impl Future<Output = Result<Started, Failure>>,
) -> Result<u8, Failure> {
    // Before the call: from here on Ctrl-C must not leave a task behind without a word.
    let mut signals = Signals::new()?;
    let notes = Arc::new(Notes::new(output.quiet));
    let (started, interrupted) = answered(call, key, &mut signals, &notes)
        .await
        .map_err(Failure::of_start)?;
    output::submitted(started.id);
    if let Some(note) = &started.note {
        notes.line(&format!("task {}  {note}", started.id));
    }
    if stdin::has_bytes() {
        notes.line(stdin::NOT_PASSED_ON);
    }
    let mut run = Run::new(Arc::clone(client), output, notes, started.id);
    if interrupted {
        run.interrupt();
    }
    let exit = run.follow(&mut signals).await?;
    if !run.terminated {
        run.write_answer();
    }
    Ok(exit)
}

/// The signals that `run` answers.
struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

enum Told {
    /// Ctrl-C.
    Interrupt,
    /// SIGTERM.
    Terminate,
}

impl Signals {
    fn new() -> Result<Self, Failure> {
        let listen =
            |kind| signal(kind).map_err(|error| Failure::unexpected(format!("Ctrl-C cannot be caught: {error}")));
        Ok(Self {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
        })
    }

    async fn next(&mut self) -> Told {
        tokio::select! {
            _ = self.interrupt.recv() => Told::Interrupt,
            _ = self.terminate.recv() => Told::Terminate,
        }
    }
}

/// Left before the answer to the call came.
fn left_early(exit: u8, key: &str) -> Failure {
    let message = format!("left before the scheduler answered: the task may have been made (key {key})");
    Failure::new(exit, message)
}

/// Waits for the answer, and notes whether Ctrl-C was pressed meanwhile. A second Ctrl-C does not wait for it.
async fn answered(
    call: impl Future<Output = Result<Started, Failure>>,
    key: &str,
    signals: &mut Signals,
    notes: &Notes,
) -> Result<(Started, bool), Failure> {
    let mut interrupted: Option<Instant> = None;
    let mut call = std::pin::pin!(call);
    loop {
        tokio::select! {
            result = &mut call => return result.map(|started| (started, interrupted.is_some())),
            told = signals.next() => match (told, interrupted) {
                (Told::Terminate, _) => return Err(left_early(exit_code::TERMINATED, key)),
                (Told::Interrupt, None) => {
                    interrupted = Some(Instant::now());
                    notes.line("the task is cancelled as soon as the scheduler answers; press Ctrl-C again to leave it");
                }
                (Told::Interrupt, Some(first)) if first.elapsed() < INTERRUPTS_APART => {}
                (Told::Interrupt, Some(_)) => return Err(left_early(exit_code::INTERRUPTED, key)),
            },
        }
    }
}

struct Run {
    client: Arc<Client>,
    output: Output,
    notes: Arc<Notes>,
    root: i64,
    /// The member of the chain whose output is shown.
    current: i64,
    /// Why the current member waits, and since when for this reason.
    reason: String,
    reason_since: Instant,
    tasks: BTreeMap<i64, v1::Task>,
    /// All output of the current member was written.
    output_over: bool,
    /// It was said that the current member waits.
    told_waiting: bool,
    told_running: bool,
    /// When Ctrl-C was pressed.
    interrupted: Option<Instant>,
    cancel_confirmed: Arc<AtomicBool>,
    /// SIGTERM came: nothing more is written to stdout, which may be stuck.
    terminated: bool,
}

impl Run {
    fn new(client: Arc<Client>, output: Output, notes: Arc<Notes>, id: i64) -> Self {
        Self {
            client,
            output,
            notes,
            root: id,
            current: id,
            reason: String::new(),
            reason_since: Instant::now(),
            tasks: BTreeMap::new(),
            output_over: false,
            told_waiting: false,
            told_running: false,
            interrupted: None,
            cancel_confirmed: Arc::default(),
            terminated: false,
        }
    }

    /// Follows the chain to its end and returns how to exit.
    async fn follow(&mut self, signals: &mut Signals) -> Result<u8, Failure> {
        let follow = Follow {
            chain: true,
            is_over,
            curious: true,
        };
        let mut states = follow::states(Arc::clone(&self.client), [self.root], follow);
        let mut output = self.start_output();
        let mut over_since = None;
        loop {
            tokio::select! {
                Some(event) = states.events.recv() => self.state(event)?,
                Some(event) = output.events.recv() => self.output(event)?,
                told = signals.next() => match (told, self.interrupted) {
                    (Told::Terminate, _) => {
                        self.terminate();
                        return Ok(exit_code::TERMINATED);
                    }
                    (Told::Interrupt, None) => self.interrupt(),
                    (Told::Interrupt, Some(first)) if first.elapsed() < INTERRUPTS_APART => {}
                    (Told::Interrupt, Some(_)) => {
                        self.leave();
                        return Ok(exit_code::INTERRUPTED);
                    }
                },
                () = tokio::time::sleep_until(self.reason_since + WAIT_SILENT), if self.is_due() => {}
                () = tokio::time::sleep(REST_MAX), if over_since.is_some() => self.give_up_output(),
            }
            self.tell_state();
            let over = self.tasks.get(&self.current).is_some_and(is_over);
            over_since = if over {
                over_since.or(Some(Instant::now()))
            } else {
                None
            };
            if over && self.output_over {
                match self.next().await {
                    None => return Ok(self.exit()),
                    Some(next) => {
                        self.begin(next);
                        output = self.start_output();
                        over_since = None;
                    }
                }
            }
        }
    }

    fn start_output(&self) -> Follower<OutputEvent> {
        // With -o json, jsonl or id, stdout is for the answer alone.
        let stdout = if self.output.format.is_for_people() {
            Place::Stdout
        } else {
            Place::Stderr
        };
        // It is the user's own command: its bytes pass unchanged.
        let sink = Sink::new(stdout, Place::Stderr, false, Arc::clone(&self.notes));
        let wanted = Wanted {
            task_id: self.current,
            only: None,
            follow: true,
            since_ms: None,
            times: false,
            full: false,
        };
        follow::output(Arc::clone(&self.client), wanted, sink)
    }

    fn begin(&mut self, next: i64) {
        self.current = next;
        self.reason = String::new();
        self.reason_since = Instant::now();
        self.output_over = false;
        self.told_waiting = false;
        self.told_running = false;
    }

    fn state(&mut self, event: StateEvent) -> Result<(), Failure> {
        match event {
            StateEvent::Task(task) => {
                self.tasks.insert(task.id, *task);
            }
            StateEvent::Lost(cause) => self.notes.line(&format!(
                "task {}  no scheduler answers ({}); trying again",
                self.current,
                text::clean(&cause)
            )),
            StateEvent::Back => self
                .notes
                .line(&format!("task {}  a scheduler answers again", self.current)),
            StateEvent::Failed(failure) => return Err(self.no_verdict(failure)),
        }
        Ok(())
    }

    fn output(&mut self, event: OutputEvent) -> Result<(), Failure> {
        match event {
            OutputEvent::End => self.output_over = true,
            OutputEvent::Closed(error) => {
                if !self.tasks.get(&self.current).is_some_and(is_over) {
                    self.notes.line(&format!(
                        "task {0} goes on without its reader; `systole cancel {0}` ends it",
                        self.current
                    ));
                }
                output::give_up(&error);
            }
            OutputEvent::Failed(failure) => return Err(self.no_verdict(failure)),
        }
        Ok(())
    }

    /// The task exists, but what becomes of it will not be known here.
    fn no_verdict(&self, mut failure: Failure) -> Failure {
        self.notes.clear();
        failure.exit = exit_code::NO_VERDICT;
        failure.message = format!(
            "{}. What became of task {2} is not known: `systole show {1}`",
            failure.message.trim_end_matches('.'),
            self.current,
            self.current
        );
        failure
    }

    fn give_up_output(&mut self) {
        if !self.output_over {
            self.notes
                .line(&format!("task {}  the rest of its output did not come", self.current));
            self.output_over = true;
        }
    }

    fn current_state(&self) -> Option<TaskState> {
        self.tasks
            .get(&self.current)
            .and_then(|task| state_from_wire(task.state))
    }

    fn is_waiting(&self) -> bool {
        matches!(
            self.current_state(),
            Some(TaskState::Created | TaskState::Queued | TaskState::Dispatched)
        )
    }

    /// It waits, and the reason was not told yet.
    fn is_due(&self) -> bool {
        self.is_waiting() && self.reason_since.elapsed() < WAIT_SILENT
    }

    /// Says that it waits, and why; or that it runs, if that was awaited. A reason that passes within a
    /// second, such as being handed over, is not worth a line.
    fn tell_state(&mut self) {
        let Some(task) = self.tasks.get(&self.current) else {
            return;
        };
        if self.is_waiting() {
            let why = match task.waiting_for.as_str() {
                "" => "a runner is being given it",
                why => why,
            };
            let reason = gist(why);
            if reason != self.reason {
                // The first reason counts from the submission on.
                if !self.reason.is_empty() {
                    self.reason_since = Instant::now();
                }
                self.reason = reason;
            }
            if self.reason_since.elapsed() >= WAIT_SILENT {
                self.notes.status(&format!("task {}  waiting: {why}", task.id));
                self.told_waiting = true;
            }
        } else if self.current_state() == Some(TaskState::Running) && !self.told_running {
            self.told_running = true;
            if self.told_waiting || self.output.format == Format::Wide {
                let runner = text::clean(&text::runner(task));
                self.notes.line(&format!("task {}  running on {runner}", task.id));
            }
        }
    }

    /// Says how the current member ended; returns the one that follows it.
    async fn next(&self) -> Option<i64> {
        let task = self.tasks.get(&self.current)?;
        let next = match task.retried_by {
            0 => None,
            id => self.client.get(id).await.ok(),
        };
        self.notes.clear();
        let failed = exit_code::of_task(task) != exit_code::OK;
        if failed || self.notes.is_terminal() {
            let line = text::end_line(task, next.as_ref(), now_ms(), self.output.color_notes);
            self.notes.line(&format!("{line}{}", hint(task)));
        }
        (task.retried_by != 0).then_some(task.retried_by)
    }

    fn exit(&self) -> u8 {
        if self.interrupted.is_some() {
            return exit_code::INTERRUPTED;
        }
        self.tasks
            .get(&self.current)
            .map_or(exit_code::NO_VERDICT, exit_code::of_task)
    }

    /// The first Ctrl-C: cancels the chain, however long the schedulers are away.
    fn interrupt(&mut self) {
        self.interrupted = Some(Instant::now());
        self.notes.line(&format!(
            "cancelling task {}; press Ctrl-C again to leave it",
            self.current
        ));
        let (client, confirmed) = (Arc::clone(&self.client), Arc::clone(&self.cancel_confirmed));
        let request = v1::CancelRequest {
            ids: vec![self.root],
            reason: "Ctrl-C".into(),
            exact: false,
            ..Default::default()
        };
        let (notes, id) = (Arc::clone(&self.notes), self.current);
        tokio::spawn(async move {
            loop {
                match client.cancel(request.clone()).await {
                    // An item that is refused has ended: the state tells.
                    Ok(_) => return confirmed.store(true, Ordering::Relaxed),
                    Err(failure) if failure.exit == exit_code::UNREACHABLE => tokio::time::sleep(WAIT_SILENT).await,
                    Err(failure) => {
                        return notes.line(&format!(
                            "task {id} is not cancelled: {}",
                            text::clean(&failure.to_string())
                        ));
                    }
                }
            }
        });
    }

    /// SIGTERM: says what is left behind.
    fn terminate(&mut self) {
        self.terminated = true;
        if self.interrupted.is_some() {
            self.leave();
        } else if !self.tasks.get(&self.current).is_some_and(is_over) {
            self.notes
                .line(&format!("task {0} goes on; systole cancel {0} ends it", self.current));
        }
    }

    /// The second Ctrl-C: says what is left behind.
    fn leave(&self) {
        let id = self.current;
        let what = if self.cancel_confirmed.load(Ordering::Relaxed) {
            format!("left task {id}: it is cancelled and its runner is still ending it; see `systole show {id}`")
        } else {
            format!("left task {id} running: the scheduler has not confirmed the cancel; see `systole show {id}`")
        };
        self.notes.line(&what);
    }

    /// The answer for programs: the last task of the chain.
    fn write_answer(&self) {
        let Some(task) = self.tasks.get(&self.current) else {
            return;
        };
        match self.output.format {
            Format::Table | Format::Wide => {}
            Format::Json => json::document(&json::OneTask {
                task: json::Task::from(task),
            }),
            Format::Jsonl => json::object(&json::Task::from(task)),
            Format::Id => output::line(&task.id.to_string()),
        }
    }
}

/// The most likely reason for a first failure: the command names a file that is here, and ran elsewhere.
fn hint(task: &v1::Task) -> &'static str {
    let Some(spec) = &task.spec else { return "" };
    let kind = task.outcome.as_ref().map_or("", |outcome| outcome.kind.as_str());
    if !spec.dir.is_empty() || task.retried_by != 0 || !matches!(kind, "exit_code" | "start_failed") {
        return "";
    }
    let names_a_file_here = spec
        .command
        .iter()
        .flat_map(|argument| argument.split_whitespace())
        .any(|word| !word.starts_with(['/', '-']) && word.contains(['/', '.']) && std::path::Path::new(word).is_file());
    if names_a_file_here {
        ". It ran in a fresh directory; --here runs it where you are."
    } else {
        ""
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(command: &[&str], dir: &str) -> v1::Task {
        v1::Task {
            outcome: Some(v1::Outcome {
                kind: "exit_code".into(),
                exit_code: Some(2),
                ..v1::Outcome::default()
            }),
            spec: Some(v1::TaskSpec {
                command: command.iter().map(|&word| word.to_owned()).collect(),
                dir: dir.into(),
                ..v1::TaskSpec::default()
            }),
            ..v1::Task::default()
        }
    }

    #[test]
    fn a_file_of_this_directory_that_was_not_there_is_a_hint() {
        // Tests run in the folder of the crate.
        assert!(hint(&failed(&["python", "src/main.rs"], "")).contains("--here"));
        assert!(hint(&failed(&["sh", "-c", "cat Cargo.toml | wc"], "")).contains("--here"));
        assert_eq!(hint(&failed(&["python", "src/main.rs"], "/elsewhere")), "");
        assert_eq!(hint(&failed(&["python", "no/such.py", "src"], "")), "");
    }
}

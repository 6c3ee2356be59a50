//! `systole wait`: until tasks have ended.

use super::now_ms;
use crate::args::{Format, Global, WaitArgs};
use crate::client::Client;
use crate::exit_code;
use crate::failure::Failure;
use crate::follow::{self, Follow, StateEvent, is_ended};
use crate::output::{self, Output, json, text};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use systole_proto::v1;
use systole_shared::error::Code;
use systole_shared::limits::GET_IDS_MAX;
use tokio::signal::unix::{SignalKind, signal};

pub async fn run(global: &Global, args: &WaitArgs) -> Result<u8, Failure> {
    if let Some(batch) = &args.batch {
        return super::wait_batch::run(global, args, batch).await;
    }
    let output = Output::new(global);
    if args.tasks.len() > GET_IDS_MAX {
        let message = format!(
            "TASK: {} ids are given; at most {GET_IDS_MAX} are allowed. Wait for them in parts",
            args.tasks.len()
        );
        return Err(Failure::usage(message).with_code(Code::BatchSize));
    }
    let client = Arc::new(Client::new(global).map_err(Failure::of_start)?);
    let mut waiting = Waiting::new(args);
    if let Some(exit) = waiting.begin(&client).await? {
        return Ok(exit);
    }
    waiting.write_ended(&output);
    let exit = match waiting.finish(client, args, &output).await? {
        End::Ended if args.any => waiting.exit_of_any(),
        End::Ended => waiting.exit(),
        End::TimeIsOver => waiting.tell_rest(" is still "),
        End::Interrupted => {
            waiting.tell_rest(" goes on; it is ");
            exit_code::INTERRUPTED
        }
    };
    if output.format == Format::Json {
        json::document(&json::Tasks {
            tasks: waiting
                .asked
                .iter()
                .filter_map(|&id| waiting.newest(id))
                .map(json::Task::from)
                .collect(),
        });
    }
    Ok(exit)
}

enum End {
    Ended,
    TimeIsOver,
    Interrupted,
}

struct Waiting {
    /// Each id once, in the order they were given.
    asked: Vec<i64>,
    chain: bool,
    tasks: BTreeMap<i64, v1::Task>,
    /// Those of `asked` whose end was written.
    written: BTreeSet<i64>,
}

impl Waiting {
    fn new(args: &WaitArgs) -> Self {
        let mut seen = BTreeSet::new();
        Self {
            asked: args.tasks.iter().copied().filter(|&id| seen.insert(id)).collect(),
            chain: !args.exact,
            tasks: BTreeMap::new(),
            written: BTreeSet::new(),
        }
    }

    /// Looks everything up. `Some` when an id is not known: then nothing is waited for.
    async fn begin(&mut self, client: &Client) -> Result<Option<u8>, Failure> {
        let mut exit = None;
        let mut ids = self.asked.clone();
        while !ids.is_empty() {
            for result in client.get_many(&ids).await.map_err(Failure::of_start)? {
                if let Some(error) = result.error {
                    let failure = Failure::from_item(&error).of_start();
                    output::error(&failure.to_string());
                    exit = exit.or(Some(failure.exit));
                } else if let Some(task) = result.task {
                    self.tasks.insert(task.id, task);
                }
            }
            if exit.is_some() {
                break;
            }
            // The members that follow, until the newest of each chain is known.
            ids = self
                .tasks
                .values()
                .map(|task| task.retried_by)
                .filter(|id| self.chain && *id != 0)
                .collect();
            ids.retain(|id| !self.tasks.contains_key(id));
        }
        Ok(exit)
    }

    async fn finish(&mut self, client: Arc<Client>, args: &WaitArgs, output: &Output) -> Result<End, Failure> {
        let mut interrupts = signal(SignalKind::interrupt())
            .map_err(|error| Failure::unexpected(format!("Ctrl-C cannot be caught: {error}")))?;
        let follow = Follow {
            chain: self.chain,
            is_over: is_ended,
            curious: false,
        };
        let rest: BTreeSet<i64> = self
            .rest()
            .filter_map(|id| self.newest(id))
            .map(|task| task.id)
            .collect();
        let mut states = follow::states(client, rest, follow);
        let deadline = async {
            match args.timeout {
                Some(timeout) => tokio::time::sleep(timeout).await,
                None => std::future::pending().await,
            }
        };
        let mut deadline = std::pin::pin!(deadline);
        while self.rest().next().is_some() && !(args.any && self.rest().count() < self.asked.len()) {
            tokio::select! {
                event = states.events.recv() => match event {
                    Some(StateEvent::Task(task)) => {
                        self.tasks.insert(task.id, *task);
                        self.write_ended(output);
                    }
                    Some(StateEvent::Lost(cause)) => output.note(&format!("no scheduler answers ({}); trying again", text::clean(&cause))),
                    Some(StateEvent::Back) => output.note("a scheduler answers again"),
                    Some(StateEvent::Failed(mut failure)) => {
                        failure.exit = exit_code::NO_VERDICT;
                        return Err(failure);
                    }
                    None => return Err(Failure::new(exit_code::NO_VERDICT, "the tasks cannot be followed any more; look at `systole ls`")),
                },
                () = &mut deadline => return Ok(End::TimeIsOver),
                _ = interrupts.recv() => return Ok(End::Interrupted),
            }
        }
        Ok(End::Ended)
    }

    /// The newest member that is known of this task's chain.
    fn newest(&self, id: i64) -> Option<&v1::Task> {
        let mut task = self.tasks.get(&id)?;
        while self.chain && task.retried_by != 0 {
            match self.tasks.get(&task.retried_by) {
                Some(next) => task = next,
                None => break,
            }
        }
        Some(task)
    }

    /// The task that this one came to: ended, and nothing follows.
    fn last(&self, id: i64) -> Option<&v1::Task> {
        self.newest(id)
            .filter(|task| is_ended(task) && (!self.chain || task.retried_by == 0))
    }

    /// Those that have not ended.
    fn rest(&self) -> impl Iterator<Item = i64> {
        self.asked.iter().copied().filter(|&id| self.last(id).is_none())
    }

    fn write_ended(&mut self, output: &Output) {
        let fresh: Vec<i64> = self
            .asked
            .iter()
            .copied()
            .filter(|id| !self.written.contains(id) && self.last(*id).is_some())
            .collect();
        for id in fresh {
            // Two ids of one chain come to the same end, which is told once.
            let told: Vec<i64> = self
                .written
                .iter()
                .filter_map(|&id| self.last(id))
                .map(|task| task.id)
                .collect();
            if let Some(task) = self.last(id).filter(|task| !told.contains(&task.id)) {
                match output.format {
                    // The status line of one task is what a script looks at; people read the line.
                    Format::Table | Format::Wide if output.quiet => {}
                    Format::Table | Format::Wide => output::line(&text::end_line(task, None, now_ms(), output.color)),
                    Format::Jsonl => json::object(&json::Task::from(task)),
                    Format::Id => output::line(&task.id.to_string()),
                    Format::Json => {}
                }
            }
            self.written.insert(id);
        }
    }

    /// Names those that have not ended; the answer is no.
    fn tell_rest(&self, words: &str) -> u8 {
        for id in self.rest() {
            if let Some(task) = self.newest(id) {
                output::note(&format!("task {}{words}{}", task.id, text::state_name(task.state)));
            }
        }
        exit_code::NO
    }

    /// That of the first that has ended, in the order they were given.
    fn exit_of_any(&self) -> u8 {
        let ended = self.asked.iter().find_map(|&id| self.last(id));
        ended.map_or(exit_code::NO_VERDICT, exit_code::of_task)
    }

    /// Of one task its own; of several whether all succeeded.
    fn exit(&self) -> u8 {
        let exit = |id: i64| self.last(id).map_or(exit_code::NO_VERDICT, exit_code::of_task);
        match self.asked.as_slice() {
            [id] => exit(*id),
            ids if ids.iter().all(|&id| exit(id) == exit_code::OK) => exit_code::OK,
            _ => exit_code::NO,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use systole_proto::convert::state_to_wire;
    use systole_shared::task::TaskState;

    fn waiting(asked: &[i64], exact: bool, tasks: &[(i64, TaskState, i64)]) -> Waiting {
        let mut waiting = Waiting::new(&WaitArgs {
            tasks: asked.to_vec(),
            batch: None,
            any: false,
            timeout: None,
            exact,
        });
        for &(id, state, retried_by) in tasks {
            let kind = if state == TaskState::Failed {
                "exit_code"
            } else {
                "success"
            };
            let task = v1::Task {
                id,
                state: state_to_wire(state) as i32,
                retried_by,
                outcome: Some(v1::Outcome {
                    kind: kind.into(),
                    exit_code: Some(7),
                    ..v1::Outcome::default()
                }),
                ..v1::Task::default()
            };
            waiting.tasks.insert(id, task);
        }
        waiting
    }

    #[test]
    fn a_chain_ends_with_its_last_member() {
        use TaskState::{Failed, Finished, Running};
        let tasks = [(5, Failed, 6), (6, Running, 0)];
        assert_eq!(waiting(&[5], false, &tasks).rest().collect::<Vec<_>>(), [5]);
        let exact = waiting(&[5], true, &tasks);
        assert_eq!((exact.rest().next(), exact.exit()), (None, 7));
        let done = waiting(&[5], false, &[(5, Failed, 6), (6, Finished, 0)]);
        assert_eq!((done.rest().next(), done.exit()), (None, 0));
        let unknown = waiting(&[5], false, &[(5, Failed, 6)]);
        assert_eq!(
            unknown.rest().collect::<Vec<_>>(),
            [5],
            "a successor that is not known yet"
        );
    }

    #[test]
    fn the_first_that_ends_answers_for_any() {
        use TaskState::{Failed, Running};
        let any = waiting(&[1, 2, 3], false, &[(1, Running, 0), (2, Failed, 0), (3, Running, 0)]);
        assert_eq!(any.exit_of_any(), 7);
    }

    #[test]
    fn several_tasks_end_with_yes_or_no() {
        use TaskState::{Callback, Failed, Finished};
        assert_eq!(waiting(&[1, 2], false, &[(1, Finished, 0), (2, Finished, 0)]).exit(), 0);
        assert_eq!(waiting(&[1, 2], false, &[(1, Finished, 0), (2, Failed, 0)]).exit(), 1);
        assert_eq!(
            waiting(&[2, 2], false, &[(2, Failed, 0)]).exit(),
            7,
            "one task, named twice"
        );
        assert_eq!(
            waiting(&[1], false, &[(1, Callback, 0)]).rest().count(),
            1,
            "its callback is not delivered yet"
        );
    }
}

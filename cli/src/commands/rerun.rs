//! `systole rerun`: tasks that have ended, once more.

use super::{batch, many};
use crate::args::{Format, Global, RerunArgs};
use crate::client::Client;
use crate::exit_code;
use crate::failure::Failure;
use crate::output::{self, Output, json, text};
use systole_proto::convert::{state_from_wire, state_to_wire};
use systole_proto::v1;
use systole_shared::task::TaskState;

/// Tasks of one call. A task may have 1 MiB, so pages are kept well below the bound of the contract.
const PAGE: usize = 10;
const PAGE_OF_LIST: u32 = 200;
/// Bytes of specifications of one submission.
const CALL_BYTES_MAX: usize = 4 * 1024 * 1024;

pub async fn run(global: &Global, args: &RerunArgs) -> Result<u8, Failure> {
    let output = Output::new(global);
    let client = Client::new(global)?;
    if args.many.dry_run && !args.tasks.is_empty() {
        return Err(Failure::usage(
            "--dry-run is for conditions such as --failed; for single tasks see `systole show`",
        ));
    }
    let mut rerun = Rerun::new(&client, &output, args);
    if args.tasks.is_empty() {
        let mut filter = args.filter.to_wire();
        if args.failed {
            filter.states = vec![state_to_wire(TaskState::Failed).into()];
        }
        super::joblog::only_ended(&mut filter);
        if let Some(exit) = many::agreed(&client, &output, &filter, &args.many, "Run").await? {
            return Ok(exit);
        }
        rerun.matching(filter).await?;
    } else {
        for ids in args.tasks.chunks(PAGE) {
            let mut tasks = Vec::new();
            for result in client.get_many(ids).await? {
                match (result.task, result.error) {
                    (Some(task), _) => tasks.push(task),
                    (None, Some(error)) => rerun.refuse(&Failure::from_item(&error)),
                    (None, None) => {}
                }
            }
            rerun.submit(tasks).await?;
        }
    }
    Ok(rerun.finish())
}

/// As it was, but at once, and in a batch of its own if it was in one.
pub(super) fn again(mut spec: v1::TaskSpec, batch: &str) -> v1::TaskSpec {
    (spec.run_at_ms, spec.delay_ms) = (0, 0);
    if !spec.batch.is_empty() {
        spec.batch = batch.to_owned();
    }
    spec
}

struct Rerun<'a> {
    client: &'a Client,
    output: &'a Output,
    reason: String,
    /// Makes a repeated call find its own tasks.
    invocation: String,
    batch: String,
    used_batch: bool,
    done: Vec<json::Rerun>,
    count: u64,
    exit: u8,
}

impl<'a> Rerun<'a> {
    fn new(client: &'a Client, output: &'a Output, args: &RerunArgs) -> Self {
        let default = match args.tasks.as_slice() {
            [id] => format!("rerun of {id}"),
            _ => "rerun".into(),
        };
        Self {
            client,
            output,
            reason: args.many.reason.clone().unwrap_or(default),
            invocation: uuid::Uuid::new_v4().simple().to_string(),
            batch: batch::new_id(),
            used_batch: false,
            done: Vec::new(),
            count: 0,
            exit: exit_code::OK,
        }
    }

    fn refuse(&mut self, failure: &Failure) {
        output::error(&failure.to_string());
        if self.exit == exit_code::OK {
            self.exit = failure.exit;
        }
    }

    /// Page by page, newest first: what is made here has higher ids and is not met again.
    async fn matching(&mut self, filter: v1::TaskFilter) -> Result<(), Failure> {
        let mut page_token = String::new();
        loop {
            let request = v1::ListRequest {
                filter: Some(filter.clone()),
                limit: PAGE_OF_LIST,
                page_token,
            };
            let response = self.client.list(request).await?;
            self.submit(response.tasks).await?;
            page_token = response.next_page_token;
            if page_token.is_empty() {
                return Ok(());
            }
        }
    }

    async fn submit(&mut self, tasks: Vec<v1::Task>) -> Result<(), Failure> {
        let mut items: Vec<(i64, v1::SubmitItem)> = Vec::new();
        let mut bytes = 0;
        for task in tasks {
            if task.set_size > 0 {
                self.refuse(&Failure::refused(format!(
                    "task {} is a broadcast, which its job makes: `systole job trigger {}`",
                    task.id,
                    task.spec.as_ref().map_or("", |spec| spec.job.as_str())
                )));
                continue;
            }
            let ended = state_from_wire(task.state).is_some_and(TaskState::is_terminal);
            let Some(spec) = task.spec.clone().filter(|_| ended) else {
                self.refuse(&Failure::refused(format!(
                    "task {} has not ended ({}); `systole wait {}` does, `systole cancel {}` ends it",
                    task.id,
                    text::state_name(task.state),
                    task.id,
                    task.id
                )));
                continue;
            };
            bytes += spec.command.iter().map(String::len).sum::<usize>();
            self.used_batch |= !spec.batch.is_empty();
            let spec = again(spec, &self.batch);
            let key = format!("rerun:{}:{}", self.invocation, task.id);
            items.push((task.id, v1::SubmitItem { spec: Some(spec), key }));
            if bytes > CALL_BYTES_MAX {
                self.call(std::mem::take(&mut items)).await?;
                bytes = 0;
            }
        }
        self.call(items).await
    }

    async fn call(&mut self, items: Vec<(i64, v1::SubmitItem)>) -> Result<(), Failure> {
        if items.is_empty() {
            return Ok(());
        }
        let (of, items): (Vec<i64>, Vec<v1::SubmitItem>) = items.into_iter().unzip();
        let request = v1::SubmitRequest {
            items,
            reason: self.reason.clone(),
        };
        let results = self.client.submit_many(request).await?;
        for (of, result) in of.into_iter().zip(results) {
            if let Some(error) = &result.error {
                let mut failure = Failure::from_item(error);
                failure.message = format!("task {of}: {}", failure.message);
                self.refuse(&failure);
                continue;
            }
            self.count += 1;
            let made = json::Rerun {
                of: of.to_string(),
                id: result.id.to_string(),
                existing: result.existing,
            };
            match self.output.format {
                Format::Json => self.done.push(made),
                Format::Jsonl => json::object(&made),
                Format::Id => output::line(&made.id),
                Format::Table | Format::Wide => {
                    let note = if made.existing {
                        " (one with its unique key waits or runs)"
                    } else {
                        ""
                    };
                    output::line(&format!("task {} again as {}{note}", made.of, made.id));
                }
            }
        }
        Ok(())
    }

    fn finish(self) -> u8 {
        if self.output.format == Format::Json {
            json::document(&json::Results { results: self.done });
        }
        if self.used_batch && self.count > 0 {
            self.output.note(&format!("batch {}", self.batch));
        }
        self.exit
    }
}

//! `systole submit`: stores a task and prints its id.

use crate::args::{Format, Global, SubmitArgs};
use crate::client::Client;
use crate::failure::Failure;
use crate::output::{self, Output, json};
use crate::{exit_code, spec};

pub async fn run(global: &Global, args: &SubmitArgs) -> Result<u8, Failure> {
    if let Some(path) = &args.batch {
        return super::batch::run(global, args, path).await;
    }
    let output = Output::new(global);
    let mut request = spec::submission(&args.task, systole_shared::clock::now_ms())?;
    let trace = spec::trace(&args.task);
    if let (Some(unique), Some(spec)) = (
        &args.unique,
        request.items.first_mut().and_then(|item| item.spec.as_mut()),
    ) {
        spec.unique_key.clone_from(unique);
    }
    let client = Client::new(global)?;
    let result = client.submit(request, trace.as_deref()).await?;
    output::submitted(result.id);
    let submitted = json::Submitted {
        id: result.id.to_string(),
        existing: result.existing,
    };
    match output.format {
        Format::Table | Format::Wide => {
            // Only a key that somebody chose can be known to them.
            let known = match (result.existing, &args.unique, &args.task.key) {
                (true, Some(_), None) => "  (it waits or runs: nothing new was submitted)",
                (true, Some(_), Some(_)) => "  (this key was submitted before, or the task waits or runs)",
                (true, None, Some(_)) => "  (this key was submitted before)",
                _ => "",
            };
            output::line(&format!("task {}{known}", result.id));
        }
        Format::Json => json::document(&submitted),
        Format::Jsonl => json::object(&submitted),
        Format::Id => output::line(&submitted.id),
    }
    Ok(exit_code::OK)
}

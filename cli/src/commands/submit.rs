//! `systole submit`: stores a task and prints its id.

use crate::args::{Format, Global, TaskArgs};
use crate::client::Client;
use crate::failure::Failure;
use crate::output::{self, Output, json};
use crate::{exit_code, spec};

pub async fn run(global: &Global, args: &TaskArgs) -> Result<u8, Failure> {
    let output = Output::new(global);
    let request = spec::submission(args, systole_shared::clock::now_ms())?;
    let trace = spec::trace(args);
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
            let known = if result.existing && args.key.is_some() {
                "  (this key was submitted before)"
            } else {
                ""
            };
            output::line(&format!("task {}{known}", result.id));
        }
        Format::Json => json::document(&submitted),
        Format::Jsonl => json::object(&submitted),
        Format::Id => output::line(&submitted.id),
    }
    Ok(exit_code::OK)
}

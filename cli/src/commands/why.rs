//! `systole why`: what a task waits for and who can lift that, or what became of it. Of a job: [`super::job::why`].

use super::job::why::Asked;
use super::now_ms;
use crate::args::{Format, Global, Subject, WhyArgs};
use crate::client::Client;
use crate::exit_code;
use crate::failure::Failure;
use crate::output::{self, Output, color, json, text};
use systole_proto::convert::state_from_wire;
use systole_proto::v1;
use systole_shared::task::TaskState;
use systole_shared::time::format_duration;

pub async fn run(global: &Global, args: &WhyArgs) -> Result<u8, Failure> {
    let (name, at) = match (&args.subject, &args.at) {
        (Subject::Task(id), None) if args.zone.is_none() => return task(global, *id).await,
        // With a time it can only be a job.
        (Subject::Task(id), at) => (id.to_string(), at.as_ref()),
        (Subject::Job { at: Some(_), .. }, Some(_)) => {
            return Err(Failure::usage(
                "--at: the time is given twice; write it after @ or here",
            ));
        }
        (Subject::Job { name, at }, again) => (name.clone(), at.as_ref().or(again.as_ref())),
    };
    let asked = match (at, &args.zone) {
        (Some(text), zone) => Some(Asked::new(text, zone.as_deref())?),
        (None, Some(_)) => return Err(Failure::usage("--zone: there is no time to read in it; add --at TIME")),
        (None, None) => None,
    };
    super::job::why::run(global, &name, asked.as_ref()).await
}

async fn task(global: &Global, id: i64) -> Result<u8, Failure> {
    let output = Output::new(global);
    let explained = Client::new(global)?.explain(id).await?;
    let Some(task) = &explained.task else {
        return Err(Failure::unexpected(format!(
            "the scheduler did not say what task {id} is"
        )));
    };
    match output.format {
        Format::Json | Format::Jsonl => {
            let answer = json::Explained {
                task: json::Task::from(task),
                sentences: explained.story.clone(),
                blockers: explained.blockers.iter().map(json::Blocker::from).collect(),
            };
            json::one(output.format, &answer);
        }
        Format::Id => output::line(&task.id.to_string()),
        Format::Table | Format::Wide => {
            for line in lines(task, &explained, now_ms(), output.color) {
                output::line(&line);
            }
        }
    }
    Ok(exit_code::OK)
}

pub(super) fn lines(task: &v1::Task, explained: &v1::ExplainResponse, now: u64, colored: bool) -> Vec<String> {
    let state = state_from_wire(task.state);
    let painted = color::paint(&text::state_name(task.state), color::of_state(state), colored);
    let long = since(task, state).map_or_else(String::new, |ms| {
        format!(" for {}", format_duration(explained.now_ms.saturating_sub(ms)))
    });
    let mut lines = vec![format!(
        "task {}  {painted}{long}  {}",
        task.id,
        text::clean(&text::name(task))
    )];
    let told = explained.story.iter().cloned().chain(
        explained
            .blockers
            .iter()
            .flat_map(|blocker| blocker_lines(blocker, now)),
    );
    lines.extend(told.map(|line| format!("  {}", text::clean(&line))));
    if lines.len() == 1 {
        lines.push(format!("  {}", nothing(task, state)));
    }
    lines
}

/// Since when it is in its state.
fn since(task: &v1::Task, state: Option<TaskState>) -> Option<u64> {
    let ms = match state? {
        TaskState::Created => task.created_at_ms,
        TaskState::Queued => task.queued_at_ms,
        TaskState::Dispatched => task.dispatched_at_ms,
        TaskState::Running => task.started_at_ms,
        _ => 0,
    };
    (ms != 0).then_some(ms)
}

fn nothing(task: &v1::Task, state: Option<TaskState>) -> String {
    match state {
        Some(TaskState::Created) => "Nothing holds it: its time has come, and it is being admitted.".into(),
        Some(TaskState::Queued) => "Nothing holds it: a free runner fits and is being given it.".into(),
        Some(TaskState::Running) => format!(
            "It runs on {}, and nothing is in its way. What it writes: systole logs -f {}",
            text::clean(&text::runner(task)),
            task.id
        ),
        _ => "Nothing holds it.".into(),
    }
}

/// One blocker: what and since when, and below it what lifts it.
pub fn blocker_lines(blocker: &v1::Blocker, now: u64) -> Vec<String> {
    let time = |word: &str, ms: u64| match ms {
        0 => String::new(),
        ms => format!(" {word} {}", text::short_time(ms, now)),
    };
    let mut lines = vec![format!(
        "{}{}{}",
        blocker.message,
        time("since", blocker.since_ms),
        time("until", blocker.until_ms)
    )];
    let roles = match blocker.roles.as_str() {
        "" => String::new(),
        roles => format!(" ({roles})"),
    };
    match (blocker.advice.as_str(), blocker.command.as_str()) {
        ("", "") => {}
        (advice, "") => lines.push(format!("  {advice}")),
        ("", command) => lines.push(format!("  lift: {command}{roles}")),
        (advice, command) => lines.push(format!("  {advice}: {command}{roles}")),
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::golden::{self, NOW, THEN};
    use systole_proto::convert::state_to_wire;

    #[test]
    fn each_blocker_is_followed_by_what_lifts_it() {
        let blocker = |message: &str, advice: &str, command: &str| v1::Blocker {
            message: message.into(),
            advice: advice.into(),
            command: command.into(),
            roles: if command.is_empty() { "" } else { "operator or admin" }.into(),
            ..v1::Blocker::default()
        };
        let task = v1::Task {
            id: 1851,
            state: state_to_wire(TaskState::Queued).into(),
            queued_at_ms: 1,
            spec: Some(v1::TaskSpec {
                name: "gpu\x1btrain".into(),
                ..v1::TaskSpec::default()
            }),
            ..v1::Task::default()
        };
        let mut explained = v1::ExplainResponse {
            blockers: vec![
                blocker("db-01 cordoned by ann", "", "systole runners uncordon db-01"),
                blocker("db-02 is lost", "start it again; else", "systole runners rm db-02"),
                blocker("db-03 can start nothing", "make room", ""),
            ],
            now_ms: 7_440_001,
            ..v1::ExplainResponse::default()
        };
        assert_eq!(
            lines(&task, &explained, 0, false),
            [
                "task 1851  QUEUED for 2h04m  gpu^[train",
                "  db-01 cordoned by ann",
                "    lift: systole runners uncordon db-01 (operator or admin)",
                "  db-02 is lost",
                "    start it again; else: systole runners rm db-02 (operator or admin)",
                "  db-03 can start nothing",
                "    make room",
            ]
        );
        explained.blockers.clear();
        assert_eq!(
            lines(&task, &explained, 0, false)[1],
            "  Nothing holds it: a free runner fits and is being given it."
        );
    }

    #[test]
    fn the_answers_are_as_they_were() {
        let blocker = |message: &str, since_ms, until_ms, advice: &str, command: &str| v1::Blocker {
            message: message.into(),
            since_ms,
            until_ms,
            advice: advice.into(),
            command: command.into(),
            roles: if command.is_empty() { "" } else { "operator or admin" }.into(),
            ..v1::Blocker::default()
        };
        let waits = v1::ExplainResponse {
            blockers: vec![
                blocker(
                    "db-01 cordoned by ann, \"kernel\"",
                    THEN,
                    NOW + 86_400_000,
                    "",
                    "systole runners uncordon db-01",
                ),
                blocker(
                    "gpu-03 has gpu=1 and is lost",
                    THEN,
                    0,
                    "start the runner of gpu-03 again; when the machine is gone for good",
                    "systole runners rm gpu-03",
                ),
                blocker("db-02 can start nothing: disk full", THEN, 0, "put db-02 right", ""),
            ],
            now_ms: NOW,
            ..v1::ExplainResponse::default()
        };
        let ended = v1::ExplainResponse {
            story: vec![
                "It failed after 12.4 s on etl-2/1: exit code 75.".into(),
                "It was attempt 4 of 4: none is left.".into(),
            ],
            ..v1::ExplainResponse::default()
        };
        let calm = v1::ExplainResponse {
            now_ms: NOW,
            ..v1::ExplainResponse::default()
        };
        let mut text = String::new();
        for (state, explained) in [
            (TaskState::Queued, &waits),
            (TaskState::Failed, &ended),
            (TaskState::Queued, &calm),
            (TaskState::Running, &calm),
            (TaskState::Created, &calm),
        ] {
            let task = golden::task(1_851, state);
            text.push_str(&format!("{}\n", lines(&task, explained, NOW, false).join("\n")));
        }
        golden::check("why", &text);
    }
}

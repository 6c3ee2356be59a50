//! `systole runners drain`: no new tasks, and what still runs.

use super::now_ms;
use super::runners::{name, of_host, order, tell_cordon};
use crate::args::{DrainArgs, Format};
use crate::client::Client;
use crate::failure::Failure;
use crate::output::{self, Output, json, text};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use systole_proto::v1;
use systole_shared::id::Target;

/// How often a drain looks at what still runs.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Tasks that are named one by one.
const NAMED_MAX: usize = 20;

pub async fn run(client: &Client, output: &Output, args: &DrainArgs) -> Result<u8, Failure> {
    let request = v1::CordonRequest {
        drain: true,
        ..order(&args.cordon)
    };
    let results = client.cordon(request, true).await?;
    if output.format.is_for_people() {
        tell_cordon(output, &results, true);
    }
    let refused = super::tell_errors(results.iter().filter_map(|result| result.error.as_ref()));
    let targets: Vec<&Target> = args
        .cordon
        .which
        .runners
        .iter()
        .zip(&results)
        .filter(|(_, result)| result.error.is_none())
        .map(|(target, _)| target)
        .collect();
    let mut runners = look(client, &targets).await?;
    if output.format.is_for_people() {
        tell_held(client, &runners).await?;
    }
    let mut opened = None;
    while args.wait && runners.iter().any(is_held) {
        opened = runners.iter().find(|runner| !runner.cordoned).map(name);
        if opened.is_some() {
            break;
        }
        tokio::time::sleep(LOOK_EVERY).await;
        let after = look(client, &targets).await?;
        if output.format.is_for_people() {
            for line in ended(&runners, &after) {
                output.note(&line);
            }
        }
        runners = after;
    }
    let held: Vec<&v1::Runner> = runners.iter().filter(|runner| is_held(runner)).collect();
    match output.format {
        Format::Json | Format::Jsonl => json::one(
            output.format,
            &json::Drain {
                results: results.iter().map(json::CordonResult::from).collect(),
                waits_for: held.iter().map(|&runner| json::Held::from(runner)).collect(),
            },
        ),
        Format::Id => held.iter().for_each(|runner| output::line(&runner.task_id.to_string())),
        Format::Table | Format::Wide if targets.is_empty() => {}
        Format::Table | Format::Wide if held.is_empty() => output::line("drained: nothing runs there"),
        Format::Table | Format::Wide if args.wait => {}
        Format::Table | Format::Wide => {
            output.note("what runs goes on; the same with --wait ends when nothing runs there any more");
        }
    }
    match opened {
        // Somebody wants it to work again, or the time of the cordon is over: this would never end.
        Some(runner) => Err(Failure::unexpected(format!(
            "{runner} gets new tasks again: its cordon was lifted, or its time is over. Drain it once more if it is to be empty"
        ))),
        None => Ok(refused),
    }
}

fn is_held(runner: &v1::Runner) -> bool {
    runner.task_id != 0
}

/// The runners that are drained, as they are now.
async fn look(client: &Client, targets: &[&Target]) -> Result<Vec<v1::Runner>, Failure> {
    let hosts: BTreeSet<&str> = targets.iter().map(|target| target.host.as_str()).collect();
    let mut all = Vec::new();
    for host in hosts {
        let runners = of_host(client, host).await?;
        all.extend(runners.into_iter().filter(|runner| {
            targets
                .iter()
                .any(|target| target.host == host && target.slot.is_none_or(|slot| slot == runner.slot))
        }));
    }
    Ok(all)
}

/// One line for each task that still runs, up to a bound.
async fn tell_held(client: &Client, runners: &[v1::Runner]) -> Result<(), Failure> {
    let held: Vec<&v1::Runner> = runners.iter().filter(|runner| is_held(runner)).collect();
    let named: Vec<i64> = held.iter().take(NAMED_MAX).map(|runner| runner.task_id).collect();
    if named.is_empty() {
        return Ok(());
    }
    let results = client.get_many(&named).await?;
    let tasks: BTreeMap<i64, v1::Task> = results
        .into_iter()
        .filter_map(|result| result.task)
        .map(|task| (task.id, task))
        .collect();
    let now = now_ms();
    for runner in held.iter().take(NAMED_MAX) {
        output::line(&held_line(runner, tasks.get(&runner.task_id), now));
    }
    if held.len() > NAMED_MAX {
        output::line(&format!("… and {} more: systole runners", held.len() - NAMED_MAX));
    }
    Ok(())
}

fn held_line(runner: &v1::Runner, task: Option<&v1::Task>, now: u64) -> String {
    let silent = if runner.state == "lost" {
        format!(
            " (the runner is silent since {})",
            text::short_time(runner.seen_at_ms, now)
        )
    } else {
        String::new()
    };
    let what = task.map_or_else(String::new, |task| {
        format!(
            "  {}  {}  {}",
            text::state_name(task.state),
            text::took(task, now),
            text::name(task)
        )
    });
    format!("{}: waits for task {}{what}{silent}", name(runner), runner.task_id)
}

/// What is not held any more.
fn ended(before: &[v1::Runner], after: &[v1::Runner]) -> Vec<String> {
    let left = after.iter().filter(|runner| is_held(runner)).count();
    before
        .iter()
        .filter(|was| is_held(was))
        .filter(|was| {
            !after
                .iter()
                .any(|is| (is.slot, is.task_id) == (was.slot, was.task_id) && is.host == was.host)
        })
        .map(|was| format!("{}: task {} is over; {left} left", name(was), was.task_id))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runner(slot: u32, task_id: i64) -> v1::Runner {
        v1::Runner {
            host: "a".into(),
            slot,
            task_id,
            state: "busy".into(),
            ..v1::Runner::default()
        }
    }

    #[test]
    fn a_drain_tells_what_has_ended_and_what_is_left() {
        let before = [runner(0, 7), runner(1, 8), runner(2, 0)];
        let after = [runner(0, 0), runner(1, 8), runner(2, 0)];
        assert_eq!(ended(&before, &after), ["a/0: task 7 is over; 1 left"]);
        assert!(ended(&after, &after).is_empty());
        // A slot that went with its task.
        assert_eq!(ended(&before[..1], &[]), ["a/0: task 7 is over; 0 left"]);
    }

    #[test]
    fn a_task_that_waits_for_a_silent_runner_says_so() {
        let mut lost = runner(0, 7);
        assert_eq!(held_line(&lost, None, 0), "a/0: waits for task 7");
        lost.state = "lost".into();
        assert!(held_line(&lost, None, 0).contains("is silent since"));
    }

    #[test]
    fn the_lines_are_as_they_were() {
        let task = crate::golden::task(7, systole_shared::task::TaskState::Running);
        let mut lost = runner(1, 8);
        (lost.state, lost.seen_at_ms) = ("lost".into(), crate::golden::THEN);
        let text = format!(
            "{}\n{}\n{}\n",
            held_line(&runner(0, 7), Some(&task), crate::golden::NOW),
            held_line(&lost, None, crate::golden::NOW),
            ended(&[runner(0, 7), runner(1, 8)], &[runner(1, 8)]).join("\n")
        );
        crate::golden::check("drain", &text);
    }
}

//! What runs of a job say themselves: each writes that it began, which others live at that moment, and that it ended. Nothing of it
//! comes from a scheduler or a runner.

use crate::System;
use std::collections::{BTreeMap, BTreeSet};

/// Whoever has the same `EVIDENCE` in its environment and is of another task is another run, or what is left of one.
const SCRIPT: &str = r#"
[ -z "$STUBBORN" ] || trap '' TERM
echo "start $SYSTOLE_TASK_ID $$ $SYSTOLE_SCHEDULED_TIME" >> "$EVIDENCE"
others=""
for file in $(grep -lzxs "EVIDENCE=$EVIDENCE" /proc/[0-9]*/environ); do
  task=$(tr '\0' '\n' < "$file" 2>/dev/null | sed -n 's/^SYSTOLE_TASK_ID=//p')
  [ "$task" = "$SYSTOLE_TASK_ID" ] || [ -z "$task" ] || others="$others $task"
done
echo "with $SYSTOLE_TASK_ID$others" >> "$EVIDENCE"
sleep "$LASTS"
[ -z "$EXIT" ] || exit "$EXIT"
echo "end $SYSTOLE_TASK_ID $$" >> "$EVIDENCE"
"#;

/// A job of such runs. `log`: the file that they write to, common to those that must not overlap; `lasts`: seconds.
pub fn job(system: &System, name: &str, log: &str, lasts: &str, more: &str) -> String {
    let script = system.path("evidence.sh");
    if !script.exists() {
        std::fs::write(&script, SCRIPT).expect("written");
    }
    format!(
        "[[job]]\nname = \"{name}\"\ncommand = [\"sh\", \"{}\"]\nenv = {{ EVIDENCE = \"{}\", LASTS = \"{lasts}\" }}\n{more}\n",
        script.display(),
        system.path(log).display()
    )
}

/// One run that began.
#[derive(Clone, Debug)]
pub struct Run {
    pub task: i64,
    pub pid: String,
    /// When it was meant for.
    pub scheduled: String,
    pub ended: bool,
    /// Runs that were not over when it began.
    pub others: BTreeSet<i64>,
}

/// What the file says, in the order in which they began.
pub fn runs(system: &System, log: &str) -> Vec<Run> {
    let lines = system.lines(log);
    let task_of = |text: &str| text.parse::<i64>().expect("a task");
    let mut runs: Vec<Run> = Vec::new();
    let mut at: BTreeMap<i64, usize> = BTreeMap::new();
    // Those that will say that they ended, and have not yet.
    let ends: BTreeSet<i64> = lines
        .iter()
        .filter_map(|line| line.strip_prefix("end "))
        .filter_map(|rest| rest.split(' ').next().map(task_of))
        .collect();
    for line in &lines {
        let words: Vec<&str> = line.split(' ').collect();
        match words.as_slice() {
            ["start", task, pid, scheduled] => {
                let task = task_of(task);
                let open = runs.iter().filter(|run| !run.ended && ends.contains(&run.task));
                let others = open.map(|run| run.task).collect();
                assert!(at.insert(task, runs.len()).is_none(), "task {task} began twice");
                runs.push(Run {
                    task,
                    pid: (*pid).to_owned(),
                    scheduled: (*scheduled).to_owned(),
                    ended: false,
                    others,
                });
            }
            ["with", task, others @ ..] => runs[at[&task_of(task)]]
                .others
                .extend(others.iter().map(|one| task_of(one))),
            ["end", task, _] => runs[at[&task_of(task)]].ended = true,
            // The last one may be half written.
            _ => {}
        }
    }
    runs
}

/// No more than so many at once.
pub fn at_most(system: &System, log: &str, count: usize) -> Vec<Run> {
    let runs = runs(system, log);
    for run in &runs {
        assert!(run.others.len() < count, "{log}: {run:?} of {runs:?}");
    }
    runs
}

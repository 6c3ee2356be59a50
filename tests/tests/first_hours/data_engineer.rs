//! From SLURM and GNU parallel, with files in a folder: many at once, which of them failed, and once more only those.

use crate::nothing_is_left;
use systole_tests::home::Home;
use systole_tests::person::Person;

/// Fails for what is not a number; writes its result beside its input.
const CLEAN: &str = "\
read -r value < \"$1\"
case $value in *[!0-9]*) echo \"$1: not a number: $value\" >&2; exit 3;; esac
echo $((value * 2)) > \"$1.out\"
";

/// Reports as it goes, and ends when it is told.
const TRAIN: &str = "\
for epoch in 1 2 3; do echo \"epoch $epoch of fold $1\"; done
until test -e enough; do sleep 0.1; done
echo trained
";

#[test]
fn the_first_hour_of_a_data_engineer() {
    let home = Home::new();
    for number in 1..=20 {
        let text = if number % 7 == 0 { "seven" } else { "21" };
        home.write(&format!("proj/data/{number:02}.csv"), &format!("{text}\n"));
    }
    home.write("proj/clean.sh", CLEAN);
    home.write("proj/train.sh", TRAIN);
    let mut her = Person::at(&home);
    her.types("cd proj");
    her.types(&format!("systole up --detach --slots 4 --listen {}", home.listen()))
        .is(0, &["scheduler and 4 runner slots", "In the background", "ends it"]);

    // Her directory, not a fresh one: the program says so itself.
    her.types("systole run -- sh ./clean.sh data/01.csv").is(
        2,
        &["FAILED", "It ran in a fresh directory; --here runs it where you are."],
    );
    her.types("systole run --here -- sh ./clean.sh data/01.csv; cat data/01.csv.out")
        .is(0, &["42"]);
    her.types("systole run -- cat < data/01.csv")
        .is(0, &["what waits on stdin here is not passed on", "FINISHED"]);

    // What nothing can run says so while it waits.
    her.begins("systole run --require gpu=1 -- nvidia-smi");
    her.sees("no live runner has gpu=1");
    her.presses("\x03");
    her.ends().is(130, &["TERMINATED"]);

    // A training: followed, in a second terminal looked at and ended.
    let started = her.types("systole submit --here --name train -- sh train.sh 3");
    let id = started.is(0, &[]).after("task ");
    her.begins(&format!("systole logs -f {id}"));
    her.sees("epoch 3 of fold 3");
    let mut second = Person::at(&home);
    second.types("cd proj");
    second.types("systole ls").is(0, &["RUNNING", "train"]);
    second.types("touch enough").is(0, &[]);
    her.ends().is(0, &["epoch 1 of fold 3", "trained"]);
    second.types(&format!("systole wait {id}")).is(0, &["FINISHED"]);

    // All files at once; which failed; only those again.
    let many = her.types("ls data/*.csv | sed 's|.*|sh clean.sh &|' | systole submit --batch - --here --name clean");
    let batch = many.is(0, &["20 tasks stored"]).after("batch ");
    her.types(&format!("systole wait --batch {batch}"))
        .is(1, &["20 tasks ended", "18 FINISHED", "2 FAILED"]);
    her.types(&format!("systole ls --batch {batch} --state FAILED"))
        .is(0, &["exit code 3"])
        .not("FINISHED");
    her.types(&format!("systole logs --batch {batch} 2>&1 | grep 'not a number'"))
        .is(0, &["data/07.csv: not a number: seven", "data/14.csv"]);
    her.types("echo 7 | tee data/07.csv > data/14.csv").is(0, &[]);
    let again = her.types(&format!("systole rerun --batch {batch} --failed --yes"));
    let second_batch = again.is(0, &["again as"]).after("batch ");
    her.types(&format!("systole wait --batch {second_batch}; ls data/*.out | wc -l"))
        .is(0, &["2 tasks ended: 2 FINISHED", "20"]);
    her.types(&format!(
        "systole ls --batch {batch} --joblog > joblog.tsv; head -1 joblog.tsv; wc -l < joblog.tsv"
    ))
    .is(0, &["Seq", "Exitval", "21"]);

    // The same lines under one name: what is stored is not stored twice; a wrong line is named by its number.
    home.write("proj/lines", "true\n{\"shell\": \"true\", \"timeout\": 12}\n\n{\"shell\": \"exit 4\", \"retry\": 1, \"retry_delay\": \"1s\"}\n");
    her.types("systole submit --batch lines --key nightly")
        .is(2, &["line 2: timeout: ", "12s", "2 tasks stored, 1 line refused"]);
    her.types("sed -i '2d' lines; systole submit --batch lines --key other")
        .is(0, &["2 tasks stored"]);
    her.types("systole submit --batch lines --key other")
        .is(0, &["2 of them before"]);
    // A wait is for the last attempt.
    her.types("systole wait --batch other")
        .is(1, &["2 tasks ended: 1 FINISHED, 1 FAILED"]);
    her.types("systole ls --batch other")
        .is(0, &["(2 of 2)", "exit code 4"]);

    // Before her eyes; ended by a key.
    let hung = her.types("systole submit --name hung -- sleep 1000");
    let id = hung.is(0, &[]).after("task ");
    her.begins("systole top");
    her.until("it runs", |text| {
        text.contains("RUNNING") && text.contains("4 slots busy")
    });
    her.presses("c");
    her.until("it asks", |text| {
        text.contains("[y/N]") && text.contains(&format!("task {id}"))
    });
    her.presses("y");
    her.until("it is ended", |text| text.contains("TERMINATED"));
    her.presses("q");
    her.ends().is(0, &[]);

    // The laptop is closed: the terminals go, the tasks do not.
    let night = her.types("systole submit --here --shell 'until test -e morning; do sleep 0.1; done; exit 9'");
    let id = night.is(0, &[]).after("task ");
    drop((her, second));
    let mut morning = Person::at(&home);
    morning
        .types(&format!(
            "for i in $(seq 60); do systole show {id} | grep -q RUNNING && break; sleep 0.5; done; systole show {id}"
        ))
        .is(0, &["RUNNING"]);
    morning
        .types(&format!("touch proj/morning; systole wait {id}"))
        .is(9, &["FAILED exit code 9"]);
    morning.types("systole down").is(0, &["stopped"]);
    drop(morning);
    nothing_is_left(&home);
}

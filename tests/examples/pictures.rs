//! Makes the pictures of the documentation from a system that runs: `cargo run -p systole-tests --example pictures`.

use std::path::{Path, PathBuf};
use systole_tests::home::Home;
use systole_tests::system::until;
use systole_tests::terminal::Terminal;

fn main() {
    std::fs::create_dir_all(folder()).expect("made");
    let home = Home::new();
    let say = |args: &[&str]| home.say(args).stdout.trim().to_owned();
    let up = ["up", "--detach", "--slots", "4", "--label", "dc=fra", "--listen"];
    assert_eq!(
        home.say(&[&up[..], &[&home.listen()]].concat()).code,
        Some(0),
        "it starts"
    );

    // An ordinary day: what has ended, what runs, what waits, and a host that is to be left alone.
    let submit = |name: &str, more: &[&str], script: &str| {
        let args = [&["-o", "id", "submit", "--name", name][..], more, &["--shell", script]].concat();
        say(&args)
    };
    say(&["wait", &submit("report-daily", &[], "echo 18 pages")]);
    say(&[
        "wait",
        &submit("etl.extract", &[], "echo connection refused >&2; exit 75"),
    ]);
    let wrong = submit("report-monthly", &[], "sleep 1000");
    until("it runs", || say(&["show", &wrong]).contains("RUNNING"));
    say(&["cancel", &wrong, "--reason", "wrong month"]);
    say(&["wait", &wrong]);
    submit("gpu-train", &["--require", "gpu=1"], "nvidia-smi");
    let load = "for i in $(seq 18200 18204); do echo rows: $i; done; exec sleep 1000";
    let backup = submit("nightly-backup", &[], load);
    until("it writes", || say(&["logs", &backup]).contains("18204"));

    picture(&home, "top", 24, &["top"], |text| {
        text.contains("rows: 18204") && text.contains("gpu-train")
    });
    picture(&home, "ls", 9, &["ls"], |text| text.contains("report-daily"));
    picture(&home, "status", 14, &["status"], |text| text.contains("needs a person"));
    picture(
        &home,
        "why",
        6,
        &["why", &say(&["ls", "--name", "gpu-train", "-o", "id"])],
        |text| text.contains("gpu=1"),
    );
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/pictures")
}

/// What `systole ARGS` shows once `fact` holds, without the empty rows below.
fn picture(home: &Home, name: &str, rows: u16, args: &[&str], fact: impl Fn(&str) -> bool) {
    let terminal = Terminal::start(&home.command(args), rows, 100);
    terminal.until(name, fact);
    let file = folder().join(format!("{name}.svg"));
    std::fs::write(&file, terminal.picture()).expect("written");
    println!("{}\n{}", file.display(), terminal.text());
}

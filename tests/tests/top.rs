//! `systole top` on a real pseudo-terminal, against a running `systole up`.

use nix::sys::signal::Signal;
use std::process::Command;
use std::time::Duration;
use systole_tests::system::{Process, Said, System, binary, http_get, until};
use systole_tests::terminal::Terminal;

/// A user's own machine, with `up` running.
struct Desk {
    system: System,
    up: Process,
}

impl Desk {
    fn new() -> Self {
        let system = System::sqlite();
        let up = Self::up(&system);
        Self { system, up }
    }

    fn up(system: &System) -> Process {
        let port = system.ports[0];
        let mut command = Command::new(binary());
        command
            .args(["up", "--listen", &format!("127.0.0.1:{port}"), "--slots", "2"])
            .env("HOME", system.folder.path())
            .env_remove("XDG_CONFIG_HOME")
            .env_remove("XDG_DATA_HOME");
        let up = system.start("up", &mut command);
        until("it is ready", || {
            http_get(port, "/readyz").is_some_and(|(status, _)| status == 200)
        });
        up
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = self.system.command(args);
        command.env_remove("SYSTOLE_TOKEN_FILE");
        command
    }

    fn say(&self, args: &[&str]) -> Said {
        self.command(args).output().expect("starts").into()
    }

    fn submit(&self, script: &str) -> String {
        let said = self.say(&["-o", "id", "submit", "--name", "watched", "--shell", script]);
        assert_eq!(said.code, Some(0), "{said:?}");
        said.stdout.trim().to_owned()
    }

    fn state(&self, id: &str) -> String {
        let said = self.say(&["-o", "json", "show", id]);
        let value: serde_json::Value = serde_json::from_str(&said.stdout).expect("JSON");
        value["task"]["state"].as_str().expect("state").to_owned()
    }

    fn top(&self, rows: u16, columns: u16) -> Terminal {
        Terminal::start(&self.command(&["top", "--every", "1s"]), rows, columns)
    }

    fn stop(mut self) {
        self.up.signal(Signal::SIGINT);
        self.up.wait(Duration::from_secs(60));
    }
}

/// Whether a row of the tasks says that this one is in this state.
fn has(text: &str, id: &str, state: &str) -> bool {
    text.lines().any(|line| {
        let mut words = line.split_whitespace();
        words.next() == Some(id) && words.next() == Some(state)
    })
}

#[test]
fn top_shows_cancels_and_reruns_a_task_on_a_real_terminal() {
    let desk = Desk::new();
    let id = desk.submit("echo hello from it; exec sleep 600");
    let mut top = desk.top(24, 100);
    top.until("the task runs", |text| {
        text.contains("RUNNING") && text.contains("watched")
    });
    top.sees("hello from it");
    top.sees("1 of 2 slots busy");

    // A narrow window: columns go, the task stays. The last column is there only when it was drawn anew, and not just cut.
    top.resize(14, 40);
    top.until("it is drawn anew", |text| {
        has(text, &id, "RUNNING")
            && text.contains("WHY / OUTCOME")
            && text.lines().all(|line| line.chars().count() <= 40)
    });
    top.press("w");
    // The line is broken there.
    top.sees("nothing is in its");
    top.press("w");

    top.press("c");
    top.sees("[y/N]");
    top.sees(&format!("Cancel: task {id}"));
    top.press("n");
    top.sees("nothing was changed");
    assert_eq!(desk.state(&id), "RUNNING");
    top.press("cy");
    top.until("it is cancelled", |text| has(text, &id, "TERMINATED"));
    assert_eq!(desk.state(&id), "TERMINATED");

    top.press("r");
    top.sees("Run once more");
    top.press("y");
    top.sees(&format!("task {id} again as"));
    // Of a filter nothing is left but what it is about.
    top.resize(24, 100);
    top.press("ff");
    top.sees("running tasks at");
    top.until("only what runs", |text| {
        text.contains("RUNNING") && !text.contains("TERMINATED")
    });

    top.press("q");
    assert_eq!(top.ends(), Some(0));
    top.is_given_back();
    drop(top);
    desk.stop();
}

#[test]
fn top_gives_the_terminal_back_however_it_ends() {
    let desk = Desk::new();
    for (end, code) in [
        (None, 0),
        (Some(Signal::SIGTERM), 143),
        (Some(Signal::SIGHUP), 129),
        (Some(Signal::SIGINT), 130),
    ] {
        let mut top = desk.top(24, 80);
        top.sees("no such task");
        match end {
            Some(signal) => top.signal(signal),
            // Ctrl-C, as a key.
            None => top.press("\x03"),
        }
        assert_eq!(top.ends(), Some(code), "{end:?}");
        top.is_given_back();
    }
    desk.stop();
}

#[test]
fn top_goes_on_when_its_scheduler_is_away_for_a_while() {
    let mut desk = Desk::new();
    let top = desk.top(24, 100);
    top.sees("no such task");
    desk.up.kill();
    top.sees("no scheduler at");
    desk.up = Desk::up(&desk.system);
    top.until("it is back", |text| {
        text.contains("slots busy") && !text.contains("no scheduler at")
    });
    drop(top);
    desk.stop();
}

#[test]
fn top_refuses_what_is_no_terminal() {
    let desk = Desk::new();
    let said = desk.say(&["top"]);
    assert_eq!(said.code, Some(2), "{said:?}");
    assert!(
        said.stderr.contains("here is none") && said.stderr.contains("systole ls -o json"),
        "{said:?}"
    );
    assert!(said.stdout.is_empty(), "{said:?}");
    let said = desk.say(&["top", "--every", "10ms"]);
    assert!(said.code == Some(2) && said.stderr.contains("1s or more"), "{said:?}");
    desk.stop();
}

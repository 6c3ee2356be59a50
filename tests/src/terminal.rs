//! A program on a pseudo-terminal, and what a person would see there.

use nix::pty::{OpenptyResult, Winsize, openpty};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::num::NonZeroU16;
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

pub struct Terminal {
    child: Child,
    keyboard: File,
    /// The side of the program, to look at its settings.
    slave: OwnedFd,
    screen: Arc<Mutex<vt100::Parser>>,
    settings: String,
}

/// Longest wait for anything on the screen.
const WAIT_MAX: Duration = Duration::from_secs(60);

impl Terminal {
    /// Starts the program of `command`, with its arguments and variables, on a terminal of its own.
    pub fn start(command: &Command, rows: u16, columns: u16) -> Self {
        let size = Winsize {
            ws_row: rows,
            ws_col: columns,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        let OpenptyResult { master, slave } = openpty(Some(&size), None).expect("a pseudo-terminal");
        let side = || Stdio::from(slave.try_clone().expect("descriptor"));
        // A session whose terminal this is: then a new size is told by SIGWINCH.
        let mut session = Command::new("setsid");
        session
            .arg("--ctty")
            .arg(command.get_program())
            .args(command.get_args())
            .env("TERM", "xterm-256color")
            .stdin(side())
            .stdout(side())
            .stderr(side());
        if let Some(folder) = command.get_current_dir() {
            session.current_dir(folder);
        }
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => session.env(name, value),
                None => session.env_remove(name),
            };
        }
        let settings = settings(&slave);
        let child = session.spawn().expect("setsid starts");
        let screen = Arc::new(Mutex::new(vt100::Parser::new(size_of(rows), size_of(columns), 0)));
        let mut shown = File::from(master.try_clone().expect("descriptor"));
        let parser = Arc::clone(&screen);
        std::thread::spawn(move || {
            let mut bytes = [0; 4_096];
            // Reading ends when both sides are gone.
            while let Ok(count) = shown.read(&mut bytes) {
                if count == 0 {
                    return;
                }
                parser.lock().expect("no panic").process(&bytes[..count]);
            }
        });
        Self {
            child,
            keyboard: File::from(master),
            slave,
            screen,
            settings,
        }
    }

    /// Of the program itself: `setsid` becomes it.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn press(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).expect("keys");
    }

    pub fn text(&self) -> String {
        self.screen.lock().expect("no panic").screen().contents()
    }

    /// What is on the screen, down to its last line that is not empty, as an SVG.
    pub fn picture(&self) -> String {
        let parser = self.screen.lock().expect("no panic");
        let text = parser.screen().contents();
        let rows = text.trim_end().lines().count();
        crate::picture::svg(parser.screen(), u16::try_from(rows).expect("rows of a screen"))
    }

    /// Waits until this is seen.
    #[track_caller]
    pub fn sees(&self, what: &str) {
        self.until(what, |text| text.contains(what));
    }

    #[track_caller]
    pub fn until(&self, what: &str, fact: impl Fn(&str) -> bool) {
        let end = Instant::now() + WAIT_MAX;
        loop {
            let text = self.text();
            if fact(&text) {
                return;
            }
            assert!(Instant::now() < end, "waited a minute to see: {what}\n{text}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// As somebody who pulls at the corner of the window.
    pub fn resize(&self, rows: u16, columns: u16) {
        self.screen
            .lock()
            .expect("no panic")
            .screen_mut()
            .set_size(size_of(rows), size_of(columns));
        let (rows, columns) = (rows.to_string(), columns.to_string());
        self.stty(&["rows", &rows, "cols", &columns]);
    }

    fn stty(&self, args: &[&str]) {
        let _ = stty(&self.slave, args);
    }

    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).expect("pid"));
        kill(pid, signal).expect("signal");
    }

    /// Waits for the end of the program: its exit code.
    #[track_caller]
    pub fn ends(&mut self) -> Option<i32> {
        let end = Instant::now() + WAIT_MAX;
        loop {
            if let Some(status) = self.child.try_wait().expect("wait") {
                return status.code();
            }
            assert!(Instant::now() < end, "the program does not end:\n{}", self.text());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Whether the program gave the terminal back as it was: its settings, its screen and its cursor.
    #[track_caller]
    pub fn is_given_back(&self) {
        assert_eq!(settings(&self.slave), self.settings);
        let end = Instant::now() + WAIT_MAX;
        // What was written last may not have been read yet.
        loop {
            let parser = self.screen.lock().expect("no panic");
            if !parser.screen().alternate_screen() && !parser.screen().hide_cursor() {
                return;
            }
            drop(parser);
            assert!(Instant::now() < end, "the screen was not given back");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn size_of(side: u16) -> NonZeroU16 {
    NonZeroU16::new(side).expect("a terminal has rows and columns")
}

fn stty<S: AsRef<OsStr>>(terminal: &OwnedFd, args: &[S]) -> String {
    let output = Command::new("stty")
        .args(args)
        .stdin(Stdio::from(terminal.try_clone().expect("descriptor")))
        .output()
        .expect("stty");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// All settings of the terminal but its size.
fn settings(terminal: &OwnedFd) -> String {
    stty(terminal, &["-g"])
}

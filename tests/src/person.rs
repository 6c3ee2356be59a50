//! A person at a terminal: a shell on a real pseudo-terminal, what they type there, and what they see until the next prompt.

use crate::home::Home;
use crate::terminal::Terminal;

/// Room for the longest answer of a test: what has gone off the screen is not looked at.
const ROWS: u16 = 100;
const COLUMNS: u16 = 160;

pub struct Person {
    terminal: Terminal,
    /// Number of the line at the prompt.
    line: usize,
    /// What is in front of their commands.
    seen_from: usize,
}

/// What a line that was typed has shown, and the exit status that the shell has of it.
#[derive(Debug)]
pub struct Seen {
    pub code: i32,
    pub text: String,
}

impl Seen {
    /// It ended with this status, and showed each of these.
    #[track_caller]
    pub fn is(&self, code: i32, words: &[&str]) -> &Self {
        assert_eq!(self.code, code, "{self:?}");
        for word in words {
            assert!(self.text.contains(word), "it does not show {word:?}:\n{}", self.text);
        }
        self
    }

    #[track_caller]
    pub fn not(&self, word: &str) -> &Self {
        assert!(!self.text.contains(word), "it shows {word:?}:\n{}", self.text);
        self
    }

    /// The word behind this one, such as the id behind `task `.
    #[track_caller]
    pub fn after(&self, word: &str) -> String {
        let found = self
            .text
            .split(word)
            .nth(1)
            .and_then(|rest| rest.split_whitespace().next());
        let found = found.unwrap_or_else(|| panic!("nothing follows {word:?}:\n{}", self.text));
        found.trim_end_matches([',', ':', ';', '.']).to_owned()
    }
}

impl Person {
    /// Opens a terminal at home.
    pub fn at(home: &Home) -> Self {
        let mut shell = home.program("bash");
        // The prompt says how the line before ended.
        shell
            .args(["--noprofile", "--norc", "-i"])
            .env("PS1", "[\\#:$?] $ ")
            .env_remove("PROMPT_COMMAND")
            .env_remove("NO_COLOR");
        let mut person = Self {
            terminal: Terminal::start(&shell, ROWS, COLUMNS),
            line: 1,
            seen_from: 1,
        };
        person.prompt_is_there();
        person
    }

    fn prompt_is_there(&mut self) {
        let prompt = prompt(self.line);
        self.terminal.until("the prompt", |text| text.contains(&prompt));
    }

    /// Types a line that does not end by itself.
    pub fn begins(&mut self, line: &str) {
        self.seen_from = self.line;
        self.line += 1;
        self.terminal.press(&format!("{line}\n"));
    }

    /// Waits for the prompt after a line that was begun.
    #[track_caller]
    pub fn ends(&mut self) -> Seen {
        self.prompt_is_there();
        let text = self.terminal.text();
        let (before, behind) = text.rsplit_once(&prompt(self.line)).expect("the prompt is there");
        let code = behind.split(']').next().and_then(|code| code.parse().ok());
        let shown = before
            .rsplit_once(&prompt(self.seen_from))
            .map_or(before, |(_, shown)| shown);
        // Not what was typed.
        let shown = shown.split_once('\n').map_or("", |(_, shown)| shown);
        Seen {
            code: code.unwrap_or_else(|| panic!("no exit status in the prompt:\n{text}")),
            text: shown.to_owned(),
        }
    }

    /// Types a line and waits for its end.
    #[track_caller]
    pub fn types(&mut self, line: &str) -> Seen {
        self.begins(line);
        self.ends()
    }

    /// Presses keys within what runs.
    pub fn presses(&mut self, keys: &str) {
        self.terminal.press(keys);
    }

    /// Waits until the line that was begun shows this.
    #[track_caller]
    pub fn sees(&self, what: &str) {
        let prompt = prompt(self.seen_from);
        self.terminal.until(what, |text| {
            let shown = text.rsplit_once(&prompt).map_or(text, |(_, shown)| shown);
            shown.split_once('\n').is_some_and(|(_, shown)| shown.contains(what))
        });
    }

    /// Waits until the whole screen is so: of a program that has all of it.
    #[track_caller]
    pub fn until(&self, what: &str, fact: impl Fn(&str) -> bool) {
        self.terminal.until(what, fact);
    }
}

fn prompt(line: usize) -> String {
    format!("[{line}:")
}

//! Notes about a task on stderr, beside its output: lines, and one status line that is updated in place on
//! a terminal. Shared by the part that follows the state and the part that writes the output.

use super::text::clean;
use std::io::{IsTerminal as _, Write as _};
use std::sync::{Mutex, MutexGuard, PoisonError};

pub struct Notes {
    quiet: bool,
    terminal: bool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// A status line stands on the terminal.
    in_place: bool,
    /// What was said last, without what changes every second.
    said: String,
    /// The output on the terminal did not end its line.
    mid_line: bool,
}

impl Notes {
    pub fn new(quiet: bool) -> Self {
        Self {
            quiet,
            terminal: std::io::stderr().is_terminal(),
            state: Mutex::default(),
        }
    }

    pub fn is_terminal(&self) -> bool {
        self.terminal
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A line that stays. It is cleaned by its maker, who may have coloured it.
    pub fn line(&self, text: &str) {
        if self.quiet {
            return;
        }
        let mut state = self.state();
        let mut bytes = begin_line(&mut state);
        bytes.push_str(text);
        bytes.push('\n');
        write(&bytes);
    }

    /// The status line: replaced on a terminal, elsewhere written when it says something new.
    pub fn status(&self, text: &str) {
        if self.quiet {
            return;
        }
        let text = clean(text);
        let mut state = self.state();
        if self.terminal {
            let width = usize::from(super::terminal_width(true).unwrap_or(80)).saturating_sub(1);
            let mut bytes = begin_line(&mut state);
            bytes.push_str(&cut(&text, width));
            state.in_place = true;
            write(&bytes);
        } else {
            let gist = gist(&text);
            if gist != state.said {
                state.said = gist;
                write(&format!("{text}\n"));
            }
        }
    }

    /// Takes the status line away, before output is written.
    pub fn clear(&self) {
        let mut state = self.state();
        if state.in_place {
            let bytes = begin_line(&mut state);
            write(&bytes);
        }
    }

    /// Whether the output on the terminal ended its line.
    pub fn set_mid_line(&self, mid_line: bool) {
        self.state().mid_line = mid_line && self.terminal;
    }
}

/// What brings the cursor to an empty line.
fn begin_line(state: &mut State) -> String {
    let begin = match (state.in_place, state.mid_line) {
        (true, _) => "\r\x1b[K",
        (false, true) => "\n",
        (false, false) => "",
    };
    state.in_place = false;
    state.mid_line = false;
    begin.to_owned()
}

fn write(text: &str) {
    let mut stderr = std::io::stderr().lock();
    let _ = stderr.write_all(text.as_bytes());
    let _ = stderr.flush();
}

fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    let mut short: String = text.chars().take(width.saturating_sub(1)).collect();
    short.push('…');
    short
}

/// The text without what is in parentheses: "4 of 4 slots busy (longest: 1830, 12m)" grows with every second.
pub fn gist(text: &str) -> String {
    let mut depth = 0_u32;
    text.chars()
        .filter(|&c| {
            match c {
                '(' => depth += 1,
                ')' => depth = depth.saturating_sub(1),
                _ => return depth == 0,
            }
            false
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_growing_time_is_nothing_new() {
        assert_eq!(
            gist("4 of 4 slots busy (longest: 1830, 12m)"),
            gist("4 of 4 slots busy (longest: 1830, 13m)")
        );
        assert_ne!(gist("4 of 4 slots busy (x)"), gist("3 of 4 slots busy (x)"));
    }

    #[test]
    fn a_status_line_fits_its_terminal() {
        assert_eq!(cut("abcdef", 6), "abcdef");
        assert_eq!(cut("abcdefg", 6), "abcde…");
    }
}

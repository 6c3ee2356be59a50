//! The terminal while `systole top` has it, and how it gets it back: at the end, on an error, and on a panic.

use crate::failure::{Failure, io_cause};
use crossterm::cursor::{Hide, Show};
use crossterm::execute;
use crossterm::terminal::{EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode};
use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use std::io::{IsTerminal as _, Stdout, stdout};
use std::sync::Once;

pub struct Screen {
    pub terminal: Terminal<CrosstermBackend<Stdout>>,
}

/// Gives the terminal back. Twice does no harm.
fn leave() {
    // If the terminal is gone there is nothing to give back.
    let _ = execute!(stdout(), LeaveAlternateScreen, Show);
    let _ = disable_raw_mode();
}

/// A message of a panic must not be drawn on the screen that goes.
fn leave_on_panic() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            leave();
            before(panic);
        }));
    });
}

/// Whether there is a terminal to draw on.
pub fn is_there() -> bool {
    let dumb = crate::paths::variable("TERM").is_some_and(|term| term == "dumb");
    stdout().is_terminal() && !dumb
}

impl Screen {
    pub fn enter() -> Result<Self, Failure> {
        let failed = |error: std::io::Error| {
            leave();
            Failure::unexpected(format!("the terminal cannot be drawn on: {}", io_cause(&error)))
        };
        leave_on_panic();
        enable_raw_mode().map_err(failed)?;
        execute!(stdout(), EnterAlternateScreen, Hide).map_err(failed)?;
        let terminal = Terminal::new(CrosstermBackend::new(stdout())).map_err(failed)?;
        Ok(Self { terminal })
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        leave();
    }
}

//! Everything that is written: data to stdout, the rest to stderr.
//!
//! A closed pipe (`systole ls | head`) ends the process quietly, as a program that knows nothing of pipes
//! would end. SIGPIPE stays ignored until then: with its default action, a scheduler that closes a
//! connection while we write to it would kill the client too, for a vectored write to a socket raises it.

pub mod color;
pub mod end;
pub mod json;
pub mod neutral;
pub mod notes;
pub mod sink;
pub mod table;
pub mod text;

pub use systole_proto::facts;

use crate::args::{Format, Global};
use std::io::{IsTerminal as _, Write as _};
use std::sync::OnceLock;

/// The task that this process submitted.
static SUBMITTED: OnceLock<i64> = OnceLock::new();

/// How this command was asked to write.
#[derive(Clone, Debug)]
pub struct Output {
    pub format: Format,
    pub quiet: bool,
    /// Colours on stdout.
    pub color: bool,
    /// Colours on stderr.
    pub color_notes: bool,
    /// Columns of the terminal; `None` where stdout is none, and nothing is cut.
    pub width: Option<u16>,
}

impl Output {
    pub fn new(global: &Global) -> Self {
        let wanted = !global.no_color && crate::paths::variable("NO_COLOR").is_none();
        let stdout = std::io::stdout().is_terminal();
        Self {
            format: global.output,
            quiet: global.quiet,
            color: wanted && stdout,
            color_notes: wanted && std::io::stderr().is_terminal(),
            width: terminal_width(false),
        }
    }

    /// One line on stderr, unless `-q`.
    pub fn note(&self, line: &str) {
        if !self.quiet {
            note(line);
        }
    }
}

/// Columns of the terminal on stdout or stderr, if it is one.
pub fn terminal_width(stderr: bool) -> Option<u16> {
    let mut table = comfy_table::Table::new();
    if stderr {
        table.use_stderr();
    }
    // A terminal of unknown size says 0.
    table.width().filter(|&width| width > 0)
}

/// From here on, an error of stdout names this task: nobody must submit it again because its id was lost.
pub fn submitted(id: i64) {
    let _ = SUBMITTED.set(id);
}

/// What to say when stdout takes no more.
fn lost(submitted: Option<i64>, cause: &str) -> String {
    let what = submitted.map_or_else(String::new, |id| format!("task {id} was submitted, but "));
    format!("{what}the output cannot be written: {cause}")
}

/// Data for stdout.
pub fn data(bytes: &[u8]) {
    let mut stdout = std::io::stdout().lock();
    if let Err(error) = stdout.write_all(bytes).and_then(|()| stdout.flush()) {
        // Without this answer the id is known to nobody, even if its reader went on purpose.
        if error.kind() == std::io::ErrorKind::BrokenPipe && SUBMITTED.get().is_some() {
            self::error(&lost(SUBMITTED.get().copied(), "its reader has gone"));
        }
        give_up(&error);
    }
}

/// One line for stdout.
pub fn line(text: &str) {
    data(format!("{text}\n").as_bytes());
}

/// One line for stderr. If nobody can read it, there is nobody to tell.
pub fn note(text: &str) {
    let _ = std::io::stderr().lock().write_all(format!("{text}\n").as_bytes());
}

/// An error message. Control characters in it may come from anywhere.
pub fn error(message: &str) {
    note(&format!("error: {}", text::clean(message)));
}

/// Ends the process because stdout takes no more: quietly if its reader has gone.
pub fn give_up(error: &std::io::Error) -> ! {
    if error.kind() == std::io::ErrorKind::BrokenPipe {
        end_by_closed_pipe();
    }
    self::error(&lost(SUBMITTED.get().copied(), &crate::failure::io_cause(error)));
    std::process::exit(i32::from(crate::exit_code::NO));
}

/// Ends as the default action of SIGPIPE does, so that the shell sees what it expects.
#[expect(unsafe_code, reason = "the signal disposition of the process has no safe interface")]
pub fn end_by_closed_pipe() -> ! {
    use nix::sys::signal::{SigHandler, Signal, raise, signal};
    // SAFETY: SIG_DFL installs no handler of ours, so no code can run at an unsafe moment.
    let _ = unsafe { signal(Signal::SIGPIPE, SigHandler::SigDfl) };
    let _ = raise(Signal::SIGPIPE);
    std::process::exit(128 + Signal::SIGPIPE as i32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_output_names_the_submitted_task() {
        assert_eq!(lost(None, "no space"), "the output cannot be written: no space");
        assert_eq!(
            lost(Some(650), "no space"),
            "task 650 was submitted, but the output cannot be written: no space"
        );
    }
}

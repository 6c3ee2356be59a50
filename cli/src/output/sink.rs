//! Where the output of a task goes, byte for byte or made harmless for a terminal.

use super::neutral::Neutraliser;
use super::notes::Notes;
use std::io::{IsTerminal as _, Write as _};
use std::sync::Arc;
use systole_proto::v1::OutputStream;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    Stdout,
    Stderr,
}

impl Place {
    fn is_terminal(self) -> bool {
        match self {
            Self::Stdout => std::io::stdout().is_terminal(),
            Self::Stderr => std::io::stderr().is_terminal(),
        }
    }

    fn write(self, bytes: &[u8]) -> std::io::Result<()> {
        match self {
            Self::Stdout => {
                let mut stdout = std::io::stdout().lock();
                stdout.write_all(bytes)?;
                stdout.flush()
            }
            Self::Stderr => std::io::stderr().lock().write_all(bytes),
        }
    }
}

/// One stream of the task and the place it goes to.
struct Lane {
    place: Place,
    terminal: bool,
    /// What comes may be hostile, and this is where it would act.
    guard: Option<Neutraliser>,
}

pub struct Sink {
    stdout: Lane,
    stderr: Lane,
    notes: Arc<Notes>,
}

impl Sink {
    /// `stdout` and `stderr` of the task go to these places. With `guard`, control characters that would
    /// reach a terminal are made visible.
    pub fn new(stdout: Place, stderr: Place, guard: bool, notes: Arc<Notes>) -> Self {
        let lane = |place: Place| {
            let terminal = place.is_terminal();
            Lane {
                place,
                terminal,
                guard: (guard && terminal).then(Neutraliser::default),
            }
        };
        Self {
            stdout: lane(stdout),
            stderr: lane(stderr),
            notes,
        }
    }

    /// Writes on another thread: a reader that does not read must not keep Ctrl-C from being heard.
    pub async fn write(&mut self, stream: OutputStream, bytes: Vec<u8>) -> std::io::Result<()> {
        let lane = if stream == OutputStream::Stderr {
            &mut self.stderr
        } else {
            &mut self.stdout
        };
        let bytes = match &mut lane.guard {
            Some(guard) => guard.push(&bytes),
            None => bytes,
        };
        let (place, terminal) = (lane.place, lane.terminal);
        self.put(place, terminal, bytes).await
    }

    /// Writes what was held back: the beginning of a character or colour that never came to its end.
    pub async fn finish(&mut self) -> std::io::Result<()> {
        for stream in [OutputStream::Stdout, OutputStream::Stderr] {
            let lane = if stream == OutputStream::Stderr {
                &mut self.stderr
            } else {
                &mut self.stdout
            };
            let rest = lane.guard.as_mut().map(Neutraliser::finish).unwrap_or_default();
            let (place, terminal) = (lane.place, lane.terminal);
            self.put(place, terminal, rest).await?;
        }
        Ok(())
    }

    async fn put(&self, place: Place, terminal: bool, bytes: Vec<u8>) -> std::io::Result<()> {
        let Some(&last) = bytes.last() else { return Ok(()) };
        self.notes.clear();
        if terminal {
            self.notes.set_mid_line(last != b'\n');
        }
        match tokio::task::spawn_blocking(move || place.write(&bytes)).await {
            Ok(result) => result,
            Err(_) => Err(std::io::Error::other("the writing thread ended")),
        }
    }
}

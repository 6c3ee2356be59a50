//! Where the output of a task goes, byte for byte or made harmless for a terminal.

use super::neutral::Neutraliser;
use super::notes::Notes;
use std::io::{IsTerminal as _, Write as _};
use std::sync::Arc;
use systole_proto::v1::OutputStream;
use systole_shared::time::format_utc;

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
    /// The last byte did not end its line.
    mid_line: bool,
}

pub struct Sink {
    stdout: Lane,
    stderr: Lane,
    notes: Arc<Notes>,
}

/// A line has the time of its first byte.
fn stamped(bytes: &[u8], ms: u64, mid_line: &mut bool) -> Vec<u8> {
    let time = match i64::try_from(ms) {
        Ok(1..) => format_utc(i64::try_from(ms).unwrap_or(0)),
        Ok(_) | Err(_) => "-".into(),
    };
    let mut out = Vec::with_capacity(bytes.len() * 2);
    for line in bytes.split_inclusive(|&byte| byte == b'\n') {
        if !*mid_line {
            out.extend(time.as_bytes());
            out.push(b' ');
        }
        out.extend(line);
        *mid_line = !line.ends_with(b"\n");
    }
    out
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
                mid_line: false,
            }
        };
        Self {
            stdout: lane(stdout),
            stderr: lane(stderr),
            notes,
        }
    }

    /// Writes on another thread: a reader that does not read must not keep Ctrl-C from being heard.
    /// With a time, each line begins with it.
    pub async fn write(
        &mut self,
        stream: OutputStream,
        bytes: Vec<u8>,
        seen_at_ms: Option<u64>,
    ) -> std::io::Result<()> {
        let lane = if stream == OutputStream::Stderr {
            &mut self.stderr
        } else {
            &mut self.stdout
        };
        let bytes = match &mut lane.guard {
            Some(guard) => guard.push(&bytes),
            None => bytes,
        };
        let bytes = match seen_at_ms {
            Some(ms) => stamped(&bytes, ms, &mut lane.mid_line),
            None => bytes,
        };
        let (place, terminal) = (lane.place, lane.terminal);
        self.put(place, terminal, bytes).await
    }

    /// A line with a time is not gone on with after a gap.
    pub async fn end_line(&mut self, stream: OutputStream) -> std::io::Result<()> {
        let lane = if stream == OutputStream::Stderr {
            &mut self.stderr
        } else {
            &mut self.stdout
        };
        if !std::mem::take(&mut lane.mid_line) {
            return Ok(());
        }
        let (place, terminal) = (lane.place, lane.terminal);
        self.put(place, terminal, b"\n".to_vec()).await
    }

    /// Says something at this place of the output, beside it.
    pub fn note(&self, text: &str) {
        self.notes.line(text);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_has_the_time_of_its_first_byte() {
        let mut mid_line = false;
        let mut say = |bytes: &[u8], ms| String::from_utf8(stamped(bytes, ms, &mut mid_line)).expect("text");
        let (a, b) = (format_utc(1_800_000_000_000), format_utc(1_800_000_001_000));
        assert_eq!(say(b"one\ntw", 1_800_000_000_000), format!("{a} one\n{a} tw"));
        assert_eq!(say(b"o\r20%\n\nx", 1_800_000_001_000), format!("o\r20%\n{b} \n{b} x"));
        assert_eq!(say(b"\n", 0), "\n");
        assert_eq!(say(b"old\n", 0), "- old\n");
        assert_eq!(say(b"", 5), "");
    }
}

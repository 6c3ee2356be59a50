//! Where the output of a task goes, byte for byte or made harmless for a terminal.

use super::notes::Notes;
use super::text::visible;
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
    /// Makes control characters harmless.
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

    /// Writes what was held back: the beginning of a character that never came to its end.
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

/// Makes control characters other than newline, tab and carriage return visible. Pieces may end in the
/// middle of a character, so a beginning is held back until the rest comes.
#[derive(Debug, Default)]
pub struct Neutraliser {
    held: Vec<u8>,
}

impl Neutraliser {
    pub fn push(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut input = std::mem::take(&mut self.held);
        input.extend_from_slice(bytes);
        let whole = input.len() - unfinished(&input);
        self.held = input.split_off(whole);
        neutral(&input)
    }

    pub fn finish(&mut self) -> Vec<u8> {
        neutral(&std::mem::take(&mut self.held))
    }
}

/// Bytes at the end that may become a character when more comes; at most 3.
fn unfinished(bytes: &[u8]) -> usize {
    match std::str::from_utf8(bytes) {
        Ok(_) => 0,
        Err(_) => (1..=bytes.len().min(3))
            .find(|&count| {
                let tail = &bytes[bytes.len() - count..];
                // `error_len` is None only for a sequence that is right so far and too short.
                std::str::from_utf8(tail).is_err_and(|error| error.valid_up_to() == 0 && error.error_len().is_none())
            })
            .unwrap_or(0),
    }
}

fn neutral(bytes: &[u8]) -> Vec<u8> {
    let mut out = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\n' | '\t' | '\r' => out.push(c),
                c if c.is_control() => out.push_str(&visible(c)),
                c => out.push(c),
            }
        }
        // Bytes that are no text may be control characters to an old terminal (0x9b begins a sequence).
        for byte in chunk.invalid() {
            out.push_str(&format!("\\x{byte:02x}"));
        }
    }
    out.into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(pieces: &[&[u8]]) -> String {
        let mut neutraliser = Neutraliser::default();
        let mut out = Vec::new();
        for piece in pieces {
            out.extend(neutraliser.push(piece));
        }
        out.extend(neutraliser.finish());
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn text_passes_and_control_characters_do_not() {
        assert_eq!(all(&["a\tb\r\né 日本\n".as_bytes()]), "a\tb\r\né 日本\n");
        assert_eq!(all(&[b"\x1b]0;title\x07\x1b[2J\x08\x00"]), "^[]0;title^G^[[2J^H^@");
        assert_eq!(all(&["\u{9b}31m\u{7f}".as_bytes()]), "\\x9b31m^?");
        assert_eq!(all(&[b"\x9b31m\xff"]), "\\x9b31m\\xff");
    }

    #[test]
    fn a_character_may_be_cut_anywhere() {
        let text = "é日𝄞\u{9b}x";
        for cut in 0..=text.len() {
            let (a, b) = text.as_bytes().split_at(cut);
            assert_eq!(all(&[a, b]), "é日𝄞\\x9bx", "cut at {cut}");
        }
        let bytes: Vec<&[u8]> = text.as_bytes().chunks(1).collect();
        assert_eq!(all(&bytes), "é日𝄞\\x9bx");
    }

    #[test]
    fn an_unfinished_character_is_shown_at_the_end() {
        assert_eq!(all(&[b"a\xe6\x97"]), "a\\xe6\\x97");
    }

    #[test]
    fn what_is_written_has_no_escape_whatever_comes() {
        let every: Vec<u8> = (0..=255).collect();
        let out = all(&[&every, &every]);
        assert!(out.chars().all(|c| !c.is_control() || matches!(c, '\n' | '\t' | '\r')));
    }
}

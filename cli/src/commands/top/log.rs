//! The last lines of a task's output, made harmless for the screen. Bounded in lines, and each line in characters.

use crate::output::neutral::Neutraliser;
use std::collections::VecDeque;

/// Lines that are kept.
pub const LINES_MAX: usize = 2_000;
/// Characters of a line that are kept; what follows is left out.
const LINE_CHARS_MAX: usize = 1_000;
/// Columns from one tab stop to the next.
const TAB: usize = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum From {
    Stdout,
    Stderr,
    /// Not of the task: a word of ours.
    Us,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    pub from: From,
    pub text: String,
}

/// One stream whose last line may not be whole.
#[derive(Debug, Default)]
struct Stream {
    guard: Neutraliser,
    partial: String,
    /// Characters of `partial`.
    chars: usize,
    /// A carriage return came: what follows draws the line anew, unless it is the newline.
    returned: bool,
}

#[derive(Debug)]
pub struct Log {
    pub task: i64,
    whole: VecDeque<Line>,
    stdout: Stream,
    stderr: Stream,
}

impl Log {
    pub fn new(task: i64) -> Self {
        Self {
            task,
            whole: VecDeque::new(),
            stdout: Stream::default(),
            stderr: Stream::default(),
        }
    }

    /// Returns how many lines are new.
    pub fn push(&mut self, stderr: bool, data: &[u8]) -> usize {
        let (stream, from) = if stderr {
            (&mut self.stderr, From::Stderr)
        } else {
            (&mut self.stdout, From::Stdout)
        };
        let harmless = stream.guard.push(data);
        let text = String::from_utf8_lossy(&harmless);
        let mut new = 0;
        let mut rest = text.as_ref();
        while let Some(c) = rest.chars().next() {
            let mut length = c.len_utf8();
            match c {
                '\n' => {
                    let text = stream.take();
                    self.whole.push_back(Line { from, text });
                    new += 1;
                }
                // The Neutraliser lets only whole colours pass; here they say nothing.
                '\x1b' => length = rest.find('m').map_or(rest.len(), |at| at + 1),
                '\r' => stream.returned = true,
                '\t' => {
                    for _ in 0..TAB - stream.chars % TAB {
                        stream.add(' ');
                    }
                }
                c => stream.add(c),
            }
            rest = &rest[length..];
        }
        self.bound();
        new
    }

    pub fn note(&mut self, text: &str) {
        self.whole.push_back(Line {
            from: From::Us,
            text: crate::output::text::clean(text),
        });
        self.bound();
    }

    fn bound(&mut self) {
        let over = self.whole.len().saturating_sub(LINES_MAX);
        self.whole.drain(..over);
    }

    /// All lines, those that are not whole yet last.
    pub fn lines(&self) -> impl DoubleEndedIterator<Item = Line> {
        let partial = [(&self.stdout, From::Stdout), (&self.stderr, From::Stderr)];
        let partial = partial
            .into_iter()
            .filter(|(stream, _)| !stream.partial.is_empty())
            .map(|(stream, from)| Line {
                from,
                text: stream.partial.clone(),
            });
        self.whole.iter().cloned().chain(partial)
    }

    /// The last lines before the newest `scroll`, at most `count`, the oldest first.
    pub fn window(&self, scroll: usize, count: usize) -> Vec<Line> {
        let mut lines: Vec<Line> = self.lines().rev().skip(scroll).take(count).collect();
        lines.reverse();
        lines
    }
}

impl Stream {
    fn add(&mut self, c: char) {
        if self.returned {
            self.take();
        }
        if self.chars < LINE_CHARS_MAX {
            self.partial.push(c);
            self.chars += 1;
        }
    }

    fn take(&mut self) -> String {
        (self.chars, self.returned) = (0, false);
        std::mem::take(&mut self.partial)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(log: &Log) -> Vec<String> {
        log.lines().map(|line| line.text).collect()
    }

    #[test]
    fn lines_come_in_pieces_of_two_streams_and_cannot_steer_the_screen() {
        let mut log = Log::new(1);
        assert_eq!(log.push(false, b"one\r\ntw"), 1);
        log.push(true, b"err\n");
        log.push(false, b"o\n\x1b[31mred\x1b[0m\x1b[2J\ta");
        assert_eq!(texts(&log), ["one", "err", "two", "red^[[2J        a"]);
        log.push(false, "\n 10 %\r 20 %\ré".as_bytes());
        assert_eq!(texts(&log).last().map(String::as_str), Some("é"));
        log.note("gone\x07");
        assert_eq!(log.window(1, 1)[0].text, "gone^G");
    }

    #[test]
    fn lines_and_their_lengths_are_bounded() {
        let mut log = Log::new(1);
        for n in 0..LINES_MAX + 100 {
            log.push(false, format!("{n}\n").as_bytes());
        }
        log.push(false, "ä".repeat(1 << 20).as_bytes());
        let lines = texts(&log);
        assert_eq!(lines.len(), LINES_MAX + 1);
        assert_eq!(lines[0], "100");
        assert_eq!(lines[LINES_MAX].chars().count(), LINE_CHARS_MAX);
        let window: Vec<String> = log.window(2, 2).into_iter().map(|line| line.text).collect();
        assert_eq!(window, ["2097", "2098"]);
    }
}

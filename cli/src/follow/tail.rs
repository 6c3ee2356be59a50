//! Where the last lines of a stream begin: looked for from its end backwards, in pieces of bounded size, so
//! that a few lines of a long output cost little. Knows bytes and offsets, not connections.

use std::ops::Range;
use systole_proto::v1;

/// Most questions are about a screen or two.
const PIECE_FIRST_BYTES: u64 = 64 * 1024;
/// What is held in memory at once.
const PIECE_BYTES_MAX: u64 = 1024 * 1024;

/// The last lines of what was stored when it was asked.
#[derive(Clone, Copy, Debug)]
pub struct Tail {
    /// Of each stream.
    pub lines: u64,
    pub stdout: Stretch,
    pub stderr: Stretch,
}

/// The last bytes of a stream that are stored without a gap.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stretch {
    /// Where a reader who wants all of it begins: before the gap, so that he is told of it.
    pub from: u64,
    pub start: u64,
    pub end: u64,
}

impl Tail {
    pub fn of(task: &v1::Task, lines: u64) -> Self {
        let stretch = |bytes: u64, gap: Option<v1::OutputGap>| {
            let gap = gap.unwrap_or_default();
            Stretch {
                from: gap.offset,
                start: gap.offset + gap.bytes,
                end: bytes + gap.bytes,
            }
        };
        Self {
            lines,
            stdout: stretch(task.stdout_bytes, task.stdout_gap),
            stderr: stretch(task.stderr_bytes, task.stderr_gap),
        }
    }
}

/// A search in one stream. A line ends with a newline; the last one also without.
#[derive(Debug)]
pub struct Search {
    /// Newlines still to be found.
    lines: u64,
    /// All before this byte is still to be looked at.
    end: u64,
    /// Where the lines begin, as far as it is known.
    begin: u64,
    /// There is nothing to look at before this byte.
    start: u64,
    piece_bytes: u64,
}

impl Search {
    /// For the last `lines` of what is stored.
    pub fn new(lines: u64, stored: Stretch) -> Self {
        let (end, begin) = if lines == 0 {
            (0, stored.end)
        } else {
            // The last byte begins no line: a newline there is the end of the last one.
            (stored.end.saturating_sub(1), stored.from)
        };
        Self {
            lines,
            end,
            begin,
            start: stored.start,
            piece_bytes: PIECE_FIRST_BYTES,
        }
    }

    /// The bytes to look at next; `None`: the search is over.
    pub fn next(&self) -> Option<Range<u64>> {
        (self.end > self.start).then(|| self.end.saturating_sub(self.piece_bytes).max(self.start)..self.end)
    }

    /// Looks at the bytes of [`Self::next`]. `None`: they are not stored any more.
    pub fn look(&mut self, piece: Option<&[u8]>) {
        let Some(piece) = piece else {
            self.begin = self.end;
            self.end = 0;
            return;
        };
        let start = self.end.saturating_sub(piece.len() as u64);
        let newlines = piece.iter().enumerate().rev().filter(|&(_, &byte)| byte == b'\n');
        for (at, _) in newlines {
            self.lines -= 1;
            if self.lines == 0 {
                self.begin = start + at as u64 + 1;
                self.end = 0;
                return;
            }
        }
        self.end = start;
        self.piece_bytes = (self.piece_bytes * 2).min(PIECE_BYTES_MAX);
    }

    /// Where the lines begin, once the search is over.
    pub fn begin(&self) -> u64 {
        self.begin
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(end: u64) -> Stretch {
        Stretch {
            end,
            ..Stretch::default()
        }
    }

    #[test]
    fn lines_are_looked_for_up_to_the_gap_and_if_there_are_too_few_the_gap_is_told() {
        let stored = b"head\n.......tail\nend\n";
        let stretch = Stretch {
            from: 5,
            start: 12,
            end: 21,
        };
        for (lines, begin) in [(1, 17), (2, 5), (9, 5), (0, 21)] {
            let mut search = Search::new(lines, stretch);
            while let Some(range) = search.next() {
                assert!(range.start >= 12, "{range:?}");
                let at = |offset: u64| usize::try_from(offset).expect("small");
                search.look(Some(&stored[at(range.start)..at(range.end)]));
            }
            assert_eq!(search.begin(), begin, "{lines}");
        }
    }

    /// The last lines, and the bytes that were looked at.
    fn tail(lines: u64, stored: &[u8]) -> (&[u8], u64) {
        let at = |offset: u64| usize::try_from(offset).expect("small");
        let mut search = Search::new(lines, whole(stored.len() as u64));
        let mut looked = 0;
        while let Some(range) = search.next() {
            let length = range.end - range.start;
            assert!((1..=PIECE_BYTES_MAX).contains(&length), "{search:?}");
            looked += length;
            search.look(Some(&stored[at(range.start)..at(range.end)]));
        }
        (&stored[at(search.begin())..], looked)
    }

    #[test]
    fn the_last_lines_are_found() {
        let cases: [(u64, &[u8], &[u8]); 15] = [
            (1, b"", b""),
            (0, b"a\nb\n", b""),
            (1, b"a\nb\n", b"b\n"),
            (1, b"a\nb", b"b"),
            (2, b"a\nb", b"a\nb"),
            (2, b"a\nb\nc\n", b"b\nc\n"),
            (3, b"a\nb\nc\n", b"a\nb\nc\n"),
            (u64::MAX, b"a\nb\nc\n", b"a\nb\nc\n"),
            (1, b"\n", b"\n"),
            (1, b"\n\n", b"\n"),
            (2, b"a\n\n\n", b"\n\n"),
            (1, b"a", b"a"),
            (1, b"a\n\0\x1b\xff", b"\0\x1b\xff"),
            (1, b"a\r\nb\r\n", b"b\r\n"),
            (1, b"\na", b"a"),
        ];
        for (lines, stored, expected) in cases {
            assert_eq!(tail(lines, stored).0, expected, "{lines} of {stored:?}");
        }
    }

    #[test]
    fn lines_are_found_across_the_edges_of_pieces() {
        let first = usize::try_from(PIECE_FIRST_BYTES).expect("small");
        // The newline before the last line is the first byte of the last piece, the last one before it, …
        for distance in first - 2..first + 4 {
            let mut stored = vec![b'x'; 4 * first];
            let newline = stored.len() - distance;
            stored[newline] = b'\n';
            assert_eq!(tail(1, &stored).0.len(), distance - 1);
            assert_eq!(tail(2, &stored).0.len(), stored.len());
        }
        let stored = b"0123456\n".repeat(400_000);
        for lines in [
            1, 8_191, 8_192, 8_193, 24_576, 24_577, 300_000, 399_999, 400_000, 400_001,
        ] {
            let expected = lines.min(400_000) * 8;
            assert_eq!(tail(lines, &stored).0.len() as u64, expected, "{lines}");
        }
    }

    #[test]
    fn a_few_lines_of_a_long_output_cost_little() {
        let stored = b"0123456\n".repeat(1_000_000);
        assert_eq!(tail(10, &stored).1, PIECE_FIRST_BYTES);
        assert!(tail(20_000, &stored).1 < 4 * 20_000 * 8);
    }

    #[test]
    fn what_is_not_stored_any_more_ends_the_search() {
        let mut search = Search::new(3, whole(100_001));
        search.look(Some(&vec![b'x'; 65_536]));
        search.look(None);
        assert_eq!((search.next(), search.begin()), (None, 100_000 - 65_536));
    }
}

//! Makes the output of a task harmless for a terminal: what could move its cursor, rename its window or
//! answer in its user's name is shown instead. Knows bytes that come in pieces, not where they go.
//!
//! No escape character passes but as part of a whole colour sequence, so a terminal never begins to read a
//! command: what follows an escape is text, however long it is, and nothing of it has to be remembered.

use super::text::visible;

const ESCAPE: char = '\x1b';
/// The longest colour sequence that passes; two true colours with all attributes have about 50 bytes.
const COLOUR_BYTES_MAX: usize = 64;
const COLOUR_RESET: &str = "\x1b[0m";

/// Shows control characters other than newline, tab and carriage return (`^[`, `^G`, `\x9b`), and `U+FFFD`
/// for what is no text. Colours pass. Pieces may end in the middle of a character or of a colour, so a
/// beginning is held back until the rest comes.
#[derive(Debug, Default)]
pub struct Neutraliser {
    /// Shorter than [`COLOUR_BYTES_MAX`].
    held: Vec<u8>,
    /// A colour passed and was not taken back.
    coloured: bool,
}

impl Neutraliser {
    pub fn push(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut input = std::mem::take(&mut self.held);
        input.extend_from_slice(bytes);
        let whole = input.len() - unfinished(&input);
        self.held = input.split_off(whole);
        self.neutral(&input).into_bytes()
    }

    /// What was held back, and the end of a colour that would dye the prompt.
    pub fn finish(&mut self) -> Vec<u8> {
        let held = std::mem::take(&mut self.held);
        let mut out = self.neutral(&held);
        if std::mem::take(&mut self.coloured) {
            out.push_str(COLOUR_RESET);
        }
        out.into_bytes()
    }

    fn neutral(&mut self, bytes: &[u8]) -> String {
        let mut out = String::with_capacity(bytes.len());
        for chunk in bytes.utf8_chunks() {
            let mut text = chunk.valid();
            while let Some(c) = text.chars().next() {
                let mut length = c.len_utf8();
                match c {
                    '\n' | '\t' | '\r' => out.push(c),
                    ESCAPE => match colour(text.as_bytes()) {
                        Colour::Whole(bytes) => {
                            length = bytes;
                            out.push_str(&text[..length]);
                            // "0", "00;0" and nothing at all take all colours back.
                            self.coloured = text[2..length - 1].contains(|c| !matches!(c, '0' | ';'));
                        }
                        Colour::Begun | Colour::No => out.push_str(&visible(c)),
                    },
                    c if c.is_control() => out.push_str(&visible(c)),
                    c => out.push(c),
                }
                text = &text[length..];
            }
            // To an old terminal these bytes may be control characters (0x9b begins a sequence).
            if !chunk.invalid().is_empty() {
                out.push(char::REPLACEMENT_CHARACTER);
            }
        }
        out
    }
}

/// What begins with an escape character.
enum Colour {
    /// `ESC [ … m` of so many bytes.
    Whole(usize),
    /// It may become one.
    Begun,
    No,
}

fn colour(bytes: &[u8]) -> Colour {
    match bytes.get(1) {
        None => return Colour::Begun,
        Some(b'[') => {}
        Some(_) => return Colour::No,
    }
    let seen = &bytes[..bytes.len().min(COLOUR_BYTES_MAX)];
    // Digits and separators only: `ESC [ > 4 m` sets how keys are reported.
    match seen.iter().skip(2).position(|byte| !matches!(byte, b'0'..=b';')) {
        Some(count) if seen[2 + count] == b'm' => Colour::Whole(count + 3),
        None if seen.len() < COLOUR_BYTES_MAX => Colour::Begun,
        _ => Colour::No,
    }
}

/// Bytes at the end that may become a colour or a character when more comes.
fn unfinished(bytes: &[u8]) -> usize {
    let recent = &bytes[bytes.len().saturating_sub(COLOUR_BYTES_MAX)..];
    if let Some(at) = recent.iter().rposition(|&byte| char::from(byte) == ESCAPE)
        && matches!(colour(&recent[at..]), Colour::Begun)
    {
        return recent.len() - at;
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn all(pieces: &[&[u8]]) -> String {
        let mut neutraliser = Neutraliser::default();
        let mut out = Vec::new();
        for piece in pieces {
            out.extend(neutraliser.push(piece));
            assert!(neutraliser.held.len() < COLOUR_BYTES_MAX);
        }
        out.extend(neutraliser.finish());
        String::from_utf8(out).expect("text")
    }

    /// The same, however the bytes are cut.
    fn cut_anywhere(bytes: &[u8]) -> String {
        let whole = all(&[bytes]);
        for cut in 0..=bytes.len() {
            let (a, b) = bytes.split_at(cut);
            assert_eq!(all(&[a, b]), whole, "cut at {cut}");
        }
        let single: Vec<&[u8]> = bytes.chunks(1).collect();
        assert_eq!(all(&single), whole, "byte by byte");
        whole
    }

    #[test]
    fn text_passes_and_control_characters_do_not() {
        assert_eq!(cut_anywhere("a\tb\r\né日𝄞\n".as_bytes()), "a\tb\r\né日𝄞\n");
        assert_eq!(cut_anywhere(b"\x07\x08\x00\x7f\x0e"), "^G^H^@^?^N");
    }

    #[test]
    fn sequences_are_shown() {
        for (bytes, shown) in [
            (b"\x1b[2J\x1b[1;1H".as_slice(), "^[[2J^[[1;1H"),
            (b"\x1b]0;title\x07x", "^[]0;title^Gx"),
            (b"\x1b]52;c;cm0=\x1b\\x", "^[]52;c;cm0=^[\\x"),
            (b"\x1bP$q\"p\x1b\\x", "^[P$q\"p^[\\x"),
            (b"\x1bc\x1b(0\x1b7", "^[c^[(0^[7"),
            (b"\x1b[6n\x1b[?25l", "^[[6n^[[?25l"),
            (b"\x1b[>4;2m\x1b[?4m\x1b[4 m", "^[[>4;2m^[[?4m^[[4 m"),
            (b"\x1b\x1b[2K", "^[^[[2K"),
        ] {
            assert_eq!(cut_anywhere(bytes), shown);
        }
    }

    #[test]
    fn c1_controls_are_shown_and_what_is_no_text_is_replaced() {
        assert_eq!(
            cut_anywhere("\u{9b}2J\u{9d}0;x\u{9c}".as_bytes()),
            "\\x9b2J\\x9d0;x\\x9c"
        );
        assert_eq!(cut_anywhere(b"\x9b2J\xff"), "\u{fffd}2J\u{fffd}");
        assert_eq!(cut_anywhere(b"a\xe6\x97"), "a\u{fffd}", "a character that has no end");
        assert_eq!(cut_anywhere(b"\x1b[3\xff1m"), "^[[3\u{fffd}1m");
    }

    #[test]
    fn colours_pass_and_end_with_the_output() {
        for text in [
            "\x1b[31mred\x1b[0m\n",
            "\x1b[1;38;5;0mx\x1b[m",
            "\x1b[4:3mx\x1b[00;0m",
            "\x1b[1;2;3;4;5;7;9;38;2;255;255;255;48;2;255;255;255mx\x1b[0m",
        ] {
            assert_eq!(cut_anywhere(text.as_bytes()), text);
        }
        assert_eq!(cut_anywhere(b"\x1b[31mred"), "\x1b[31mred\x1b[0m");
        assert_eq!(cut_anywhere(b"\x1b\x1b[7mx"), "^[\x1b[7mx\x1b[0m");
        assert_eq!(cut_anywhere(b"\x1b]0;\x1b[0mx"), "^[]0;\x1b[0mx", "nothing was begun");
    }

    #[test]
    fn a_sequence_without_an_end_is_held_only_so_long() {
        for length in [
            0,
            1,
            COLOUR_BYTES_MAX - 3,
            COLOUR_BYTES_MAX - 2,
            COLOUR_BYTES_MAX,
            5_000,
        ] {
            let digits = "1".repeat(length);
            let open = format!("\x1b[{digits}");
            assert_eq!(cut_anywhere(open.as_bytes()), format!("^[[{digits}"), "{length}");
            let whole = format!("{open}m");
            let passes = whole.len() <= COLOUR_BYTES_MAX;
            assert_eq!(cut_anywhere(whole.as_bytes()).starts_with(ESCAPE), passes, "{length}");
        }
        assert_eq!(cut_anywhere(b"a\x1b"), "a^[");
    }

    #[test]
    fn what_is_written_has_no_escape_whatever_comes() {
        let every: Vec<u8> = (0..=255).collect();
        let out = all(&[&every, &every]);
        assert!(out.chars().all(|c| !c.is_control() || matches!(c, '\n' | '\t' | '\r')));
    }
}

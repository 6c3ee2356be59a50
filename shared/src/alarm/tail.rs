//! The last lines of an output, made harmless for whatever shows them: mails, chats, terminals.

/// Characters of one line that are kept.
const LINE_CHARS_MAX: usize = 300;
/// A longer sequence is no sequence.
const SEQUENCE_CHARS_MAX: usize = 256;

/// The last `count` lines that are not empty. Colours and other terminal commands are left out, what else is no text is shown
/// (`^G`), and of a line that a carriage return wrote over only what was left to see remains.
pub fn last_lines(bytes: &[u8], count: usize) -> Vec<String> {
    let text = String::from_utf8_lossy(bytes);
    let mut lines: Vec<String> = text
        .rsplit('\n')
        .map(|line| shown(line.trim_end_matches('\r')))
        .filter(|line| !line.trim().is_empty())
        .take(count)
        .collect();
    lines.reverse();
    lines
}

/// One line of text from elsewhere, harmless and bounded.
pub fn shown(line: &str) -> String {
    let line = line.rsplit('\r').next().unwrap_or(line);
    let mut out = String::new();
    let mut kept = 0;
    let mut chars = line.chars();
    while let Some(c) = chars.next() {
        if kept >= LINE_CHARS_MAX {
            out.push('…');
            break;
        }
        if c == '\x1b' {
            let rest = chars.as_str();
            if let Some(length) = sequence(rest) {
                chars = rest[length..].chars();
                continue;
            }
        }
        kept += 1;
        match c {
            '\t' => out.push(' '),
            c if u32::from(c) < 0x20 || c == '\x7f' => {
                out.push('^');
                out.push(char::from(u8::try_from(u32::from(c)).unwrap_or(0) ^ 0x40));
            }
            c if c.is_control() || turns_text(c) => out.push(char::REPLACEMENT_CHARACTER),
            c => out.push(c),
        }
    }
    out.trim_end().to_owned()
}

/// Characters that change the direction of what follows: a line could read as another one.
fn turns_text(c: char) -> bool {
    matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{2028}' | '\u{2029}')
}

/// Bytes of the terminal command after an escape character; `None`: it is none that is whole.
fn sequence(rest: &str) -> Option<usize> {
    let mut chars = rest.char_indices().take(SEQUENCE_CHARS_MAX);
    match chars.next()? {
        (_, '[') => chars
            .find(|(_, c)| !matches!(c, ' '..='?'))
            .filter(|(_, c)| matches!(c, '@'..='~'))
            .map(|(at, _)| at + 1),
        // Titles and links: up to BEL, or ESC \.
        (_, ']') => {
            let mut escaped = false;
            chars
                .find(|&(_, c)| {
                    let over = c == '\x07' || (escaped && c == '\\');
                    escaped = c == '\x1b';
                    over
                })
                .map(|(at, _)| at + 1)
        }
        (at, c) if c.is_ascii_alphanumeric() => Some(at + 1),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_lines_are_text_and_nothing_else() {
        for (bytes, expected) in [
            (&b"one\ntwo\n\nthree\n"[..], vec!["two", "three"]),
            (b"no end", vec!["no end"]),
            (b"", vec![]),
            (b" 10%\r 50%\r100% done\r\n", vec!["100% done"]),
            (b"\x1b[1;31mred\x1b[0m and \x1b]0;title\x07rest", vec!["red and rest"]),
            (b"\x1b]8;;http://x\x1b\\link", vec!["link"]),
            (b"bell\x07 cut \x1b[12", vec!["bell^G cut ^[[12"]),
            (b"bad \xff byte", vec!["bad \u{fffd} byte"]),
            ("turn \u{202e}txet".as_bytes(), vec!["turn \u{fffd}txet"]),
            ("c1 \u{9b}31m".as_bytes(), vec!["c1 \u{fffd}31m"]),
        ] {
            assert_eq!(last_lines(bytes, 2), expected, "{:?}", String::from_utf8_lossy(bytes));
        }
    }

    #[test]
    fn a_line_is_bounded() {
        let lines = last_lines(&vec![b'x'; 100_000], 10);
        assert_eq!(lines[0].chars().count(), LINE_CHARS_MAX + 1);
        assert!(lines[0].ends_with('…'));
        let escapes = "\x1b[".repeat(50_000);
        assert!(last_lines(escapes.as_bytes(), 1)[0].chars().count() <= 2 * LINE_CHARS_MAX + 1);
    }
}

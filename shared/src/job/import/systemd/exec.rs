//! Command lines and other lists of words of unit files: quotes, escapes, specifiers, variables.

use crate::job::import::sh_word;

/// What `%` stands for in a unit.
#[derive(Clone, Debug, Default)]
pub struct Specifiers {
    /// `backup@db.service`.
    pub unit: String,
    /// Only this host runs it.
    pub host: Option<String>,
    /// Of a user's own manager, whose folders are not those of the system.
    pub of_user: bool,
}

/// Undoes the escapes of names of units: `-` is `/`, `\x2d` is `-`.
fn unescape(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        rest = after;
        let hex = match (first, after) {
            (b'\\', [b'x', a, b, ..]) => std::str::from_utf8(&[*a, *b])
                .ok()
                .and_then(|hex| u8::from_str_radix(hex, 16).ok()),
            _ => None,
        };
        match (hex, first) {
            (Some(byte), _) => {
                bytes.push(byte);
                rest = &rest[3..];
            }
            (None, b'-') => bytes.push(b'/'),
            (None, other) => bytes.push(*other),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

impl Specifiers {
    fn name(&self) -> &str {
        self.unit.rsplit_once('.').map_or(self.unit.as_str(), |(name, _)| name)
    }

    fn prefix(&self) -> &str {
        self.name().split_once('@').map_or(self.name(), |(prefix, _)| prefix)
    }

    fn instance(&self) -> &str {
        self.name().split_once('@').map_or("", |(_, instance)| instance)
    }

    fn value(&self, specifier: char) -> Result<String, String> {
        let last = || self.prefix().rsplit('-').next().unwrap_or_default();
        let path = || {
            let of = if self.instance().is_empty() {
                self.prefix()
            } else {
                self.instance()
            };
            format!("/{}", unescape(of).trim_start_matches('/'))
        };
        let of_system = |value: &str| {
            if self.of_user {
                return Err(format!("%{specifier} depends on whose manager it is; write the value"));
            }
            Ok(value.to_owned())
        };
        Ok(match specifier {
            '%' => "%".into(),
            'n' => self.unit.clone(),
            'N' => self.name().to_owned(),
            'p' => self.prefix().to_owned(),
            'P' => unescape(self.prefix()),
            'i' => self.instance().to_owned(),
            'I' => unescape(self.instance()),
            'j' => last().to_owned(),
            'J' => unescape(last()),
            'f' => path(),
            'T' => "/tmp".into(),
            'V' => "/var/tmp".into(),
            't' => of_system("/run")?,
            'S' => of_system("/var/lib")?,
            'C' => of_system("/var/cache")?,
            'L' => of_system("/var/log")?,
            'E' => of_system("/etc")?,
            'D' => of_system("/usr/share")?,
            'h' => of_system("/root")?,
            'u' | 'g' => of_system("root")?,
            'U' | 'G' => of_system("0")?,
            'H' => match &self.host {
                Some(host) => host.clone(),
                None => return Err("%H is the name of the host; give --runner HOST, or write the name".into()),
            },
            'l' | 's' | 'q' | 'm' | 'b' | 'v' | 'a' | 'o' | 'w' | 'W' | 'A' | 'B' | 'M' => {
                return Err(format!(
                    "%{specifier} is known on the host only; write the value, or a shell that finds it out"
                ));
            }
            other => return Err(format!("%{other} is not known; a % is written %%")),
        })
    }

    pub fn expand(&self, text: &str) -> Result<String, String> {
        let mut out = String::new();
        let mut characters = text.chars();
        while let Some(c) = characters.next() {
            match c {
                '%' => match characters.next() {
                    Some(specifier) => out.push_str(&self.value(specifier)?),
                    None => out.push('%'),
                },
                c => out.push(c),
            }
        }
        Ok(out)
    }
}

/// The character that an escape stands for; what is no escape stays as it is.
fn escape(rest: &mut std::iter::Peekable<std::str::Chars<'_>>, out: &mut String) {
    let Some(c) = rest.next() else {
        out.push('\\');
        return;
    };
    let (radix, count) = match c {
        'x' => (16, 2),
        'u' => (16, 4),
        'U' => (16, 8),
        '0'..='7' => (8, 3),
        _ => {
            let plain = match c {
                'a' => '\x07',
                'b' => '\x08',
                'f' => '\x0c',
                'n' => '\n',
                'r' => '\r',
                't' => '\t',
                'v' => '\x0b',
                's' => ' ',
                '\\' | '"' | '\'' => c,
                other => {
                    out.push('\\');
                    other
                }
            };
            out.push(plain);
            return;
        }
    };
    let mut ahead = rest.clone();
    let digits: String = std::iter::successors((radix == 8).then_some(c).or_else(|| ahead.next()), |_| ahead.next())
        .take(count)
        .collect();
    let code = u32::from_str_radix(&digits, radix)
        .ok()
        .filter(|_| digits.len() == count);
    match code
        .and_then(char::from_u32)
        .filter(|c| *c != '\0' && (count > 3 || c.is_ascii()))
    {
        Some(decoded) => {
            out.push(decoded);
            let used = if radix == 8 { count - 1 } else { count };
            rest.by_ref().take(used).for_each(drop);
        }
        None => out.extend(['\\', c]),
    }
}

/// The words of a line.
pub fn words(text: &str) -> Result<Vec<String>, String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        match (quote, c) {
            (None, c) if c.is_ascii_whitespace() => words.extend(word.take()),
            (None, '"' | '\'') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (Some(open), c) if c == open => quote = None,
            // A word of its own that does not separate commands.
            (None, '\\') if word.is_none() && rest.peek() == Some(&';') => {
                rest.next();
                word = Some("\\;".into());
            }
            (_, '\\') => escape(&mut rest, word.get_or_insert_default()),
            (_, c) => word.get_or_insert_default().push(c),
        }
    }
    if quote.is_some() {
        return Err("a quote is not closed".into());
    }
    words.extend(word);
    Ok(words)
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Text(String),
    Variable(String),
}

/// One command of an `Exec…=` line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Command {
    words: Vec<Word>,
    /// `-`: its failure does not count.
    pub may_fail: bool,
    pub notes: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Word {
    pieces: Vec<Piece>,
    /// `$NAME` alone: no word, one or several.
    splits: bool,
}

impl Word {
    fn plain(text: String) -> Self {
        Self {
            pieces: vec![Piece::Text(text)],
            splits: false,
        }
    }

    fn text(&self) -> Option<String> {
        let texts = self.pieces.iter().map(|piece| match piece {
            Piece::Text(text) => Some(text.as_str()),
            Piece::Variable(_) => None,
        });
        texts.collect()
    }

    fn shell(&self) -> String {
        let piece = |piece: &Piece| match piece {
            Piece::Text(text) => sh_word(text),
            Piece::Variable(name) if self.splits => format!("${name}"),
            Piece::Variable(name) => format!("\"${{{name}}}\""),
        };
        self.pieces.iter().map(piece).collect()
    }
}

fn is_variable(name: &str) -> bool {
    !name.is_empty()
        && !name.starts_with(|c: char| c.is_ascii_digit())
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

fn variables(text: &str) -> Result<Word, String> {
    if let Some(name) = text.strip_prefix('$').filter(|name| !name.starts_with(['{', '$'])) {
        if !is_variable(name) {
            return Err(format!(
                "{text:?} begins with $ and is no variable; systemd would drop the word. Write $$ for a $"
            ));
        }
        return Ok(Word {
            pieces: vec![Piece::Variable(name.to_owned())],
            splits: true,
        });
    }
    let mut pieces = Vec::new();
    let mut plain = String::new();
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        plain.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix('$') {
            plain.push('$');
            rest = after;
        } else if let Some((name, after)) = rest.strip_prefix('{').and_then(|inner| inner.split_once('}')) {
            if !is_variable(name) {
                return Err(format!("${{{name}}} is no variable; write $$ for a $"));
            }
            if !plain.is_empty() {
                pieces.push(Piece::Text(std::mem::take(&mut plain)));
            }
            pieces.push(Piece::Variable(name.to_owned()));
            rest = after;
        } else {
            plain.push('$');
        }
    }
    plain.push_str(rest);
    if !plain.is_empty() || pieces.is_empty() {
        pieces.push(Piece::Text(plain));
    }
    Ok(Word { pieces, splits: false })
}

impl Command {
    fn read(words: &[String], specifiers: &Specifiers) -> Result<Self, String> {
        let mut command = Self::default();
        let Some((first, rest)) = words.split_first() else {
            return Err("is empty".into());
        };
        let program = first.trim_start_matches(['-', '@', ':', '+', '!']);
        let prefixes = &first[..first.len() - program.len()];
        if program.starts_with('|') {
            return Err("the prefix | (a login shell) is not known here".into());
        }
        if program.is_empty() {
            return Err("has no program".into());
        }
        command.may_fail = prefixes.contains('-');
        if prefixes.contains(['+', '!']) {
            command
                .notes
                .push("its prefix gave it more rights than User=; here it has those of the job".into());
        }
        command.words.push(Word::plain(specifiers.expand(program)?));
        let mut arguments = rest;
        if prefixes.contains('@')
            && let Some((name, after)) = rest.split_first()
        {
            arguments = after;
            command
                .notes
                .push(format!("the prefix @ called it {name:?}; here it has its own name"));
        }
        for word in arguments {
            if word == "\\;" {
                command.words.push(Word::plain(";".into()));
                continue;
            }
            let word = specifiers.expand(word)?;
            command.words.push(if prefixes.contains(':') {
                Word::plain(word)
            } else {
                variables(&word)?
            });
        }
        Ok(command)
    }

    /// Program and arguments, where it has no variables.
    pub fn argv(&self) -> Option<Vec<String>> {
        self.words.iter().map(Word::text).collect()
    }

    pub fn splits(&self) -> bool {
        self.words.iter().any(|word| word.splits)
    }

    /// As a line of `/bin/sh`.
    pub fn shell(&self) -> String {
        self.words.iter().map(Word::shell).collect::<Vec<_>>().join(" ")
    }

    /// Names of variables that become words.
    pub fn split_variables(&self) -> impl Iterator<Item = &str> {
        self.words
            .iter()
            .filter(|word| word.splits)
            .filter_map(|word| match &word.pieces[..] {
                [Piece::Variable(name)] => Some(name.as_str()),
                _ => None,
            })
    }
}

/// The commands of a line, which ` ; ` separates.
pub fn commands(text: &str, specifiers: &Specifiers) -> Result<Vec<Command>, String> {
    words(text)?
        .split(|word| word == ";")
        .filter(|words| !words.is_empty())
        .map(|words| Command::read(words, specifiers))
        .collect()
}

/// `Environment=`: `NAME=VALUE` words.
pub fn assignments(text: &str, specifiers: &Specifiers) -> Result<Vec<(String, String)>, String> {
    words(text)?
        .iter()
        .map(|word| {
            let word = specifiers.expand(word)?;
            match word.split_once('=') {
                Some((name, value)) if is_variable(name) => Ok((name.to_owned(), value.to_owned())),
                _ => Err(format!("{word:?} is not NAME=VALUE")),
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn specifiers() -> Specifiers {
        Specifiers {
            unit: "pg-dump@srv-data\\x2d1.service".into(),
            ..Specifiers::default()
        }
    }

    fn argv(text: &str) -> Vec<String> {
        let commands = commands(text, &specifiers()).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(commands.len(), 1, "{text}");
        commands[0].argv().unwrap_or_else(|| panic!("{text} has variables"))
    }

    #[test]
    fn words_are_quoted_and_escaped_as_systemd_does() {
        for (text, expected) in [
            ("/bin/a  b\tc", &["/bin/a", "b", "c"][..]),
            (
                r#"/bin/a "b c" 'd "e"' f"g h"i"#,
                &["/bin/a", "b c", "d \"e\"", "fg hi"],
            ),
            (
                r"/bin/a x\x20y \101 \u00fc a\sb \t\\",
                &["/bin/a", "x y", "A", "ü", "a b", "\t\\"],
            ),
            (
                r#"/bin/sh -c 'it\'s "$$HOME" %%d'"#,
                &["/bin/sh", "-c", "it's \"$HOME\" %d"],
            ),
            (r"/bin/a \; \d \xzz", &["/bin/a", ";", "\\d", "\\xzz"]),
            (r#"/bin/a "" ''"#, &["/bin/a", "", ""]),
            ("/bin/a cost$5 a$B", &["/bin/a", "cost$5", "a$B"]),
            (":/bin/a $B ${C}", &["/bin/a", "$B", "${C}"]),
            ("-@/bin/a z --x", &["/bin/a", "--x"]),
        ] {
            assert_eq!(argv(text), expected, "{text}");
        }
    }

    #[test]
    fn specifiers_are_those_of_the_unit() {
        assert_eq!(
            argv("/bin/a %n %N %p %P %i %I %j %f %S/x 100%%"),
            [
                "/bin/a",
                "pg-dump@srv-data\\x2d1.service",
                "pg-dump@srv-data\\x2d1",
                "pg-dump",
                "pg/dump",
                "srv-data\\x2d1",
                "srv/data-1",
                "dump",
                "/srv/data-1",
                "/var/lib/x",
                "100%"
            ]
        );
        let of_user = Specifiers {
            of_user: true,
            host: Some("db-01".into()),
            ..specifiers()
        };
        assert_eq!(of_user.expand("%H").as_deref(), Ok("db-01"));
        for (text, specifiers, words) in [
            ("%H", &specifiers(), "--runner"),
            ("%h", &of_user, "whose manager"),
            ("%v", &of_user, "host only"),
            ("100%y", &of_user, "%%"),
        ] {
            let error = specifiers.expand(text).expect_err(text);
            assert!(error.contains(words), "{text}: {error}");
        }
    }

    #[test]
    fn variables_are_left_to_a_shell_that_splits_as_systemd_does() {
        let read = |text: &str| commands(text, &specifiers()).expect(text).remove(0);
        let command = read("/bin/a $OPTS --to=${TO}/x \"a b${C}\" $$HOME");
        assert_eq!(command.argv(), None);
        assert_eq!(command.shell(), "/bin/a $OPTS --to=\"${TO}\"/x 'a b'\"${C}\" '$HOME'");
        for (text, words) in [
            ("/bin/a it's", "not closed"),
            ("/bin/a $X/y", "no variable"),
            ("/bin/a ${X:-y}", "no variable"),
            ("|/bin/a", "login shell"),
            ("-", "no program"),
        ] {
            let error = commands(text, &specifiers()).expect_err(text);
            assert!(error.contains(words), "{text}: {error}");
        }
    }

    #[test]
    fn several_commands_are_told_apart() {
        let all = commands("-/bin/a x ; +/bin/b \\; ; /bin/c $Z", &specifiers()).expect("commands");
        let shells: Vec<_> = all.iter().map(Command::shell).collect();
        assert_eq!(shells, ["/bin/a x", "/bin/b ';'", "/bin/c $Z"]);
        assert!(all[0].may_fail && !all[1].may_fail);
        assert_eq!(all[1].notes.len(), 1);
        assert!(all[2].splits() && all[2].split_variables().eq(["Z"]));
    }

    #[test]
    fn assignments_are_words() {
        let text = r#"A=1 "B=two words" 'C=%i' D= E="x y""#;
        let found = assignments(text, &specifiers()).expect("assignments");
        let found: Vec<_> = found
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()))
            .collect();
        assert_eq!(
            found,
            [
                ("A", "1"),
                ("B", "two words"),
                ("C", "srv-data\\x2d1"),
                ("D", ""),
                ("E", "x y")
            ]
        );
        assert!(assignments("A", &specifiers()).is_err());
    }
}

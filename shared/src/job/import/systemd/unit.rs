//! The text of unit files: sections, settings, continued lines, drop-ins.

use crate::job::import::Origin;

/// One file of a unit: itself, or a drop-in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Source {
    pub file: String,
    pub text: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    pub section: String,
    pub key: String,
    pub value: String,
    pub origin: Origin,
}

/// A unit with its drop-ins, in the order in which they count.
#[derive(Clone, Debug, Default)]
pub struct Unit {
    pub settings: Vec<Setting>,
    /// Lines that are nothing.
    pub faults: Vec<(Origin, String)>,
}

/// A backslash that is not itself escaped stands at the end.
fn goes_on(line: &str) -> bool {
    line.bytes().rev().take_while(|&b| b == b'\\').count() % 2 == 1
}

impl Unit {
    pub fn read(sources: &[Source]) -> Self {
        let mut unit = Self::default();
        for source in sources {
            unit.read_source(source);
        }
        unit
    }

    fn read_source(&mut self, source: &Source) {
        let mut section = String::new();
        // A line that is not over, and where it began.
        let mut open: Option<(usize, String)> = None;
        let mut lines = source.text.lines().enumerate().peekable();
        while let Some((index, line)) = lines.next() {
            let line = line.trim_start();
            // Comments may stand between the parts of a line.
            if line.starts_with(['#', ';']) || (line.trim_end().is_empty() && open.is_none()) {
                continue;
            }
            let (begin, mut whole) = open.take().unwrap_or((index, String::new()));
            if goes_on(line) && lines.peek().is_some() {
                whole.push_str(&line[..line.len() - 1]);
                whole.push(' ');
                open = Some((begin, whole));
                continue;
            }
            whole.push_str(line);
            self.read_line(&mut section, whole.trim(), Origin::new(&source.file, begin + 1));
        }
        if let Some((begin, whole)) = open {
            self.read_line(&mut section, whole.trim(), Origin::new(&source.file, begin + 1));
        }
    }

    fn read_line(&mut self, section: &mut String, line: &str, origin: Origin) {
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            name.clone_into(section);
            return;
        }
        match line.split_once('=') {
            Some((key, value)) if !section.is_empty() => self.settings.push(Setting {
                section: section.clone(),
                key: key.trim_end().to_owned(),
                value: value.trim().to_owned(),
                origin,
            }),
            Some(_) => self.faults.push((origin, format!("{line}: stands in no section"))),
            None => self.faults.push((origin, format!("{line}: is no setting"))),
        }
    }

    /// All values of a setting that adds up; an empty one forgets those before it.
    pub fn all(&self, section: &str, key: &str) -> Vec<&Setting> {
        let mut found: Vec<&Setting> = Vec::new();
        for setting in self.settings.iter().filter(|s| s.section == section && s.key == key) {
            if setting.value.is_empty() {
                found.clear();
            } else {
                found.push(setting);
            }
        }
        found
    }

    /// The value of a setting that is given once: the last; an empty one is none.
    pub fn last(&self, section: &str, key: &str) -> Option<&Setting> {
        let is = |s: &&Setting| s.section == section && s.key == key;
        self.settings.iter().rfind(is).filter(|s| !s.value.is_empty())
    }

    pub fn is_yes(&self, section: &str, key: &str) -> bool {
        self.last(section, key).is_some_and(|setting| is_yes(&setting.value))
    }
}

pub fn is_yes(value: &str) -> bool {
    let words = ["1", "yes", "y", "true", "t", "on"];
    words.iter().any(|word| value.eq_ignore_ascii_case(word))
}

const UNITS: [(u64, &[&str]); 9] = [
    (1, &["us", "usec", "µs", "μs"]),
    (1_000, &["ms", "msec"]),
    (1_000_000, &["s", "sec", "second", "seconds", ""]),
    (60_000_000, &["m", "min", "minute", "minutes"]),
    (3_600_000_000, &["h", "hr", "hour", "hours"]),
    (86_400_000_000, &["d", "day", "days"]),
    (604_800_000_000, &["w", "week", "weeks"]),
    // As systemd counts them.
    (2_629_800_000_000, &["M", "month", "months"]),
    (31_557_600_000_000, &["y", "year", "years"]),
];

/// A time span as systemd reads it, ms; `None` is `infinity`. A bare number is seconds.
pub fn span_ms(text: &str) -> Result<Option<u64>, String> {
    let text = text.trim();
    let bad = || format!("{text:?} is no time span of systemd");
    if text == "infinity" {
        return Ok(None);
    }
    if text.is_empty() {
        return Err(bad());
    }
    let mut rest = text;
    let mut total: u64 = 0;
    while !rest.is_empty() {
        let digits = rest
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(rest.len());
        let (whole, part) = rest[..digits].split_once('.').unwrap_or((&rest[..digits], ""));
        rest = rest[digits..].trim_start();
        let end = rest.find(|c: char| !c.is_alphabetic()).unwrap_or(rest.len());
        let (unit, _) = UNITS
            .iter()
            .find(|(_, names)| names.contains(&&rest[..end]))
            .ok_or_else(bad)?;
        rest = rest[end..].trim_start();
        // Of fractions only what can be told: millionths.
        let part: String = part.chars().chain("000000".chars()).take(6).collect();
        let (whole, part): (u64, u64) = (whole.parse().map_err(|_| bad())?, part.parse().map_err(|_| bad())?);
        total = whole
            .checked_mul(*unit)
            .and_then(|us| us.checked_add(part * (unit / 1_000) / 1_000))
            .and_then(|us| us.checked_add(total))
            .ok_or_else(bad)?;
    }
    Ok(Some(total / 1_000))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unit(text: &str) -> Unit {
        Unit::read(&[Source {
            file: "a.service".into(),
            text: text.into(),
        }])
    }

    #[test]
    fn lines_go_on_and_comments_stand_between() {
        let unit = unit(
            "# x\n[Service]\nExecStart=/bin/a \\\n  # not me\n  ; nor me\n  --b \\\n\t--c\n\nNice = 5 \nbroken\n[X\nEnd=a\\\\\n",
        );
        let values: Vec<_> = unit
            .settings
            .iter()
            .map(|s| (s.key.as_str(), s.value.as_str(), s.origin.line))
            .collect();
        assert_eq!(
            values,
            [
                ("ExecStart", "/bin/a  --b  --c", 3),
                ("Nice", "5", 9),
                ("End", "a\\\\", 12)
            ]
        );
        assert_eq!(unit.faults.len(), 2, "{:?}", unit.faults);
    }

    #[test]
    fn an_empty_value_forgets_those_before_it() {
        let unit =
            unit("[Timer]\nOnCalendar=daily\nOnCalendar=\nOnCalendar=weekly\nOnCalendar=monthly\nUnit=a\nUnit=\n");
        let all: Vec<_> = unit
            .all("Timer", "OnCalendar")
            .iter()
            .map(|s| s.value.as_str())
            .collect();
        assert_eq!(all, ["weekly", "monthly"]);
        assert_eq!(unit.last("Timer", "Unit"), None);
    }

    #[test]
    fn time_spans_are_those_of_systemd() {
        for (text, ms) in [
            ("90", Some(90_000)),
            ("1h 30min", Some(5_400_000)),
            ("1h30m5s", Some(5_405_000)),
            ("2 weeks", Some(1_209_600_000)),
            ("1.5h", Some(5_400_000)),
            ("500ms", Some(500)),
            ("1M", Some(2_629_800_000)),
            ("5us", Some(0)),
            ("infinity", None),
        ] {
            assert_eq!(span_ms(text), Ok(ms), "{text}");
        }
        for text in ["", "x", "5 parsecs", "-5s", "1..5s", "99999999999999999y"] {
            assert!(span_ms(text).is_err(), "{text}");
        }
    }
}

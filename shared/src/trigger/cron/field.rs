//! One field of a cron expression: what it may contain in each dialect, and its set of numbers.

use super::Dialect;

/// What a field is called, and which numbers and names it may have.
pub struct Field {
    pub name: &'static str,
    pub min: u32,
    pub max: u32,
    /// The first is `names_from`.
    pub names: &'static [&'static str],
    pub names_from: u32,
}

pub const MONTHS: [&str; 12] = [
    "JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC",
];
pub const WEEKDAYS: [&str; 7] = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"];

const fn numbers(name: &'static str, min: u32, max: u32) -> Field {
    Field {
        name,
        min,
        max,
        names: &[],
        names_from: 0,
    }
}

pub const SECOND: Field = numbers("second", 0, 59);
pub const MINUTE: Field = numbers("minute", 0, 59);
pub const HOUR: Field = numbers("hour", 0, 23);
pub const DAY_OF_MONTH: Field = numbers("day of month", 1, 31);
pub const MONTH: Field = Field {
    name: "month",
    min: 1,
    max: 12,
    names: &MONTHS,
    names_from: 1,
};
pub const DAY_OF_WEEK_UNIX: Field = Field {
    name: "day of week",
    min: 0,
    max: 7,
    names: &WEEKDAYS,
    names_from: 0,
};
pub const DAY_OF_WEEK_QUARTZ: Field = Field {
    name: "day of week",
    min: 1,
    max: 7,
    names: &WEEKDAYS,
    names_from: 1,
};
pub const YEAR: Field = numbers("year", 1970, 2199);

/// A number as it was written.
#[derive(Clone, Copy)]
pub struct Number {
    pub value: u32,
    pub named: bool,
}

/// One item of a list that is a plain set of numbers: `*`, `7`, `1-5`, `*/15`, `10-30/5`, in Quartz `5/10` and `FRI-MON`.
pub struct Range {
    from: u32,
    to: u32,
    step: u32,
    /// Quartz ranges go around: `22-2` is 22, 23, 0, 1, 2.
    around: bool,
    /// It starts at every value, or at one and goes on to the end: an interval, not a list of fixed values.
    pub interval: bool,
}

impl Field {
    /// The allowed numbers, in words.
    fn allowed(&self) -> String {
        let note = match (self.name, self.max, self.min) {
            ("day of week", _, 0) => " (0 and 7 are Sunday)",
            ("day of week", _, _) => " (1 is Sunday, 7 is Saturday)",
            _ => "",
        };
        format!("{}–{}{note}", self.min, self.max)
    }

    /// Reads a number or a name and checks its range.
    pub fn number(&self, text: &str) -> Result<Number, String> {
        let name = self.name;
        if !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) {
            let value = text.parse::<u32>().unwrap_or(u32::MAX);
            if value < self.min || value > self.max {
                return Err(format!("{name} {text} is outside {}", self.allowed()));
            }
            return Ok(Number { value, named: false });
        }
        if let Some(index) = position(self.names, text) {
            return Ok(Number {
                value: self.names_from + index,
                named: true,
            });
        }
        if position(&WEEKDAYS, text).is_some() {
            return Err(format!(
                "{text} is a day of the week and stands in the field {name}; move it to the field day of week"
            ));
        }
        if position(&MONTHS, text).is_some() {
            return Err(format!(
                "{text} is a month and stands in the field {name}; move it to the field month"
            ));
        }
        let names = match self.names {
            [first, .., last] => format!(" or {first}–{last}"),
            _ => String::new(),
        };
        if text.is_empty() {
            return Err(format!("{name}: a number is missing; write {}{names}", self.allowed()));
        }
        Err(format!(
            "{name} {text:?} is not a number; write {}{names}",
            self.allowed()
        ))
    }

    /// Reads one item that is a plain set of numbers.
    pub fn range(&self, item: &str, dialect: Dialect) -> Result<Range, String> {
        let name = self.name;
        let (base, step) = match item.split_once('/') {
            Some((base, step)) => (base, Some(self.step(item, step, dialect)?)),
            None => (item, None),
        };
        if base == "*" {
            return Ok(Range {
                from: self.min,
                to: if dialect == Dialect::Unix && self.max == 7 {
                    6
                } else {
                    self.max
                },
                step: step.unwrap_or(1),
                around: false,
                interval: true,
            });
        }
        let (from, to) = match base.split_once('-') {
            Some((from, to)) => (self.number(from)?, Some(self.number(to)?)),
            None => (self.number(base)?, None),
        };
        if dialect == Dialect::Quartz && step.is_some() && (from.named || to.is_some_and(|to| to.named)) {
            return Err(format!(
                "{name} {item:?}: Quartz ignores a step after a name; write the number{}",
                if to.is_some() { "s" } else { "" }
            ));
        }
        match (to, step) {
            (None, None) => Ok(Range {
                from: from.value,
                to: from.value,
                step: 1,
                around: false,
                interval: false,
            }),
            (None, Some(_)) if dialect == Dialect::Unix => Err(format!(
                "{name} {item:?}: a step needs a range in the unix dialect; write {:?}",
                format!("{}-{}/{}", base, self.max, &item[base.len() + 1..])
            )),
            (None, Some(step)) => Ok(Range {
                from: from.value,
                to: self.max,
                step,
                around: false,
                interval: true,
            }),
            (Some(to), step) => {
                let around = from.value > to.value;
                if around && (dialect == Dialect::Unix || self.max > 1_000) {
                    return Err(self.backward(base, from, to));
                }
                Ok(Range {
                    from: from.value,
                    to: to.value,
                    step: step.unwrap_or(1),
                    around,
                    interval: false,
                })
            }
        }
    }

    fn step(&self, item: &str, step: &str, dialect: Dialect) -> Result<u32, String> {
        let name = self.name;
        let value = match step.parse::<u32>() {
            Ok(value) if step.bytes().all(|b| b.is_ascii_digit()) => value,
            _ => {
                return Err(format!(
                    "{name} {item:?}: the step {step:?} is not a number; write for example */5"
                ));
            }
        };
        if value == 0 {
            return Err(format!("{name} {item:?}: a step is 1 or more; write for example */5"));
        }
        // crontab takes any step; where it is larger than the range only the first value is left.
        if dialect == Dialect::Quartz && self.max < 1_000 && value > self.max {
            return Err(format!("{name} {item:?}: the step {value} is larger than {}", self.max));
        }
        Ok(value)
    }

    fn backward(&self, base: &str, from: Number, to: Number) -> String {
        let name = self.name;
        let least = if self.min == 0 && self.max == 7 { 6 } else { self.max };
        let list = match (from.value, to.value) {
            // SUN is 0 here; as the end of a week it is meant as 7.
            (from, 0) if self.max == 7 => format!("{from}-7"),
            (from, to) => {
                let run = |a: u32, b: u32| if a == b { a.to_string() } else { format!("{a}-{b}") };
                format!("{},{}", run(from, least), run(self.min, to))
            }
        };
        if self.max > 1_000 {
            return format!("{name} {base:?} runs backwards; write the smaller year first");
        }
        format!("{name} {base:?} runs backwards, which crontab never matches; write {list:?}")
    }
}

fn position(names: &[&str], text: &str) -> Option<u32> {
    names
        .iter()
        .position(|name| name.eq_ignore_ascii_case(text))
        .and_then(|index| u32::try_from(index).ok())
}

impl Range {
    /// The numbers of the range; `field` must be the one that read it.
    pub fn values(&self, field: &Field) -> impl Iterator<Item = u32> {
        let size = field.max - field.min + 1;
        let min = field.min;
        let to = if self.around { self.to + size } else { self.to };
        (self.from..=to)
            .step_by(usize::try_from(self.step).unwrap_or(usize::MAX))
            .map(move |value| (value - min) % size + min)
    }
}

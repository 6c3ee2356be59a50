//! YAML 1.2 with places: plain words are texts but for `true`, `false`, `null` and numbers, so that neither `on` nor `06:00` becomes
//! something else. Anchors and tags are refused: `[defaults]` says once what several jobs share, and no short file
//! becomes an endless one.

use super::Fault;
use super::tree::{Place, Tree, join};
use saphyr_parser::{Event, Parser, ScalarStyle, ScanError, Span, StrInput};
use serde_json::{Map, Value};

/// Tables and lists within each other.
const DEPTH_MAX: usize = 32;

struct Reader<'a> {
    parser: Parser<'a, StrInput<'a>>,
    tree: Tree,
}

fn place(span: Span) -> Place {
    Place {
        line: span.start.line(),
        column: span.start.col() + 1,
    }
}

fn fault(place: Place, message: impl Into<String>) -> Fault {
    Fault {
        place: Some(place),
        subject: String::new(),
        field: String::new(),
        message: message.into(),
    }
}

fn scan_fault(error: &ScanError) -> Fault {
    let marker = error.marker();
    let place = Place {
        line: marker.line(),
        column: marker.col() + 1,
    };
    fault(place, format!("is no YAML: {}", error.info()))
}

/// A plain scalar by the core schema.
fn plain(text: &str) -> Value {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Value::Null,
        "true" | "True" | "TRUE" => return true.into(),
        "false" | "False" | "FALSE" => return false.into(),
        _ => {}
    }
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    // 007 is no number for people, who would write it for a mode or an id.
    let leading_zero = digits.len() > 1 && digits.starts_with('0') && !digits.starts_with("0.");
    if !digits.starts_with(|c: char| c.is_ascii_digit()) || leading_zero {
        return Value::String(text.to_owned());
    }
    if let Ok(number) = text.parse::<i64>() {
        return number.into();
    }
    let numeric = text
        .bytes()
        .all(|b| b.is_ascii_digit() || matches!(b, b'.' | b'-' | b'+' | b'e' | b'E'));
    let number = if numeric { text.parse().ok() } else { None };
    match number.and_then(serde_json::Number::from_f64) {
        Some(number) => Value::Number(number),
        None => Value::String(text.to_owned()),
    }
}

impl<'a> Reader<'a> {
    fn next(&mut self) -> Result<(Event<'a>, Span), Fault> {
        match self.parser.next() {
            Some(Ok(event)) => Ok(event),
            Some(Err(error)) => Err(scan_fault(&error)),
            None => Ok((Event::StreamEnd, Span::default())),
        }
    }

    fn value(&mut self, path: &str, event: Event<'a>, span: Span, depth: usize) -> Result<Value, Fault> {
        let here = place(span);
        self.tree.add_value(path, here);
        if depth > DEPTH_MAX {
            return Err(fault(here, format!("is nested deeper than {DEPTH_MAX}")));
        }
        match event {
            Event::Scalar(_, _, anchor, tag) if anchor != 0 || tag.is_some() => Err(no_anchors(here)),
            Event::SequenceStart(anchor, tag) | Event::MappingStart(anchor, tag) if anchor != 0 || tag.is_some() => {
                Err(no_anchors(here))
            }
            Event::Alias(_) => Err(no_anchors(here)),
            Event::Scalar(text, ScalarStyle::Plain, ..) => Ok(plain(&text)),
            Event::Scalar(text, ..) => Ok(Value::String(text.into_owned())),
            Event::SequenceStart(..) => {
                let mut items = Vec::new();
                loop {
                    let (event, span) = self.next()?;
                    if event == Event::SequenceEnd {
                        return Ok(Value::Array(items));
                    }
                    let item = self.value(&format!("{path}[{}]", items.len()), event, span, depth + 1)?;
                    items.push(item);
                }
            }
            Event::MappingStart(..) => {
                let mut map = Map::new();
                loop {
                    let (event, span) = self.next()?;
                    let key = match event {
                        Event::MappingEnd => return Ok(Value::Object(map)),
                        Event::Scalar(_, _, anchor, tag) if anchor != 0 || tag.is_some() => {
                            return Err(no_anchors(place(span)));
                        }
                        Event::Scalar(text, ..) => text.into_owned(),
                        _ => return Err(fault(place(span), "a key must be a word")),
                    };
                    let inner = join(path, &key);
                    self.tree.add_key(&inner, place(span));
                    let (event, value_span) = self.next()?;
                    let value = self.value(&inner, event, value_span, depth + 1)?;
                    if map.insert(key, value).is_some() {
                        return Err(fault(place(span), format!("{inner} is given twice")));
                    }
                }
            }
            _ => Err(fault(here, "is no YAML: it ends too early")),
        }
    }
}

fn no_anchors(place: Place) -> Fault {
    fault(
        place,
        "anchors, aliases and tags are not read; write the value in full, or in defaults what all jobs of the file share",
    )
}

pub fn parse(text: &str) -> Result<Tree, Vec<Fault>> {
    let mut reader = Reader {
        parser: Parser::new_from_str(text),
        tree: Tree::default(),
    };
    let mut read = || -> Result<(), Fault> {
        loop {
            let (event, span) = reader.next()?;
            match event {
                Event::StreamEnd => return Ok(()),
                Event::StreamStart | Event::DocumentEnd | Event::Nothing => {}
                Event::DocumentStart(_) if !reader.tree.value.is_null() => {
                    return Err(fault(
                        place(span),
                        "a second document is not read; write the jobs in one list",
                    ));
                }
                Event::DocumentStart(_) => {
                    let (event, span) = reader.next()?;
                    reader.tree.value = reader.value("", event, span, 0)?;
                }
                _ => return Err(fault(place(span), "is no YAML: a document is expected")),
            }
        }
    };
    match read() {
        Ok(()) => Ok(reader.tree),
        Err(fault) => Err(vec![fault]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_words_stay_texts() {
        for (text, value) in [
            ("on", Value::from("on")),
            ("06:00", "06:00".into()),
            ("1_000", "1_000".into()),
            ("0644", "0644".into()),
            ("1e3", 1000.0.into()),
            ("-5", (-5).into()),
            ("0.25", 0.25.into()),
            ("0", 0.into()),
            ("30s", "30s".into()),
            ("2026-12-24", "2026-12-24".into()),
            ("yes", "yes".into()),
            ("true", true.into()),
            (".inf", ".inf".into()),
            ("~", Value::Null),
        ] {
            assert_eq!(plain(text), value, "{text}");
        }
    }
}

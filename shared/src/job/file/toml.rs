//! TOML with places.

use super::Fault;
use super::tree::{Lines, Place, Tree, join};
use serde_json::{Map, Value};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// Errors of one file that are said.
const ERRORS_MAX: usize = 20;

struct Reader<'a> {
    lines: Lines<'a>,
    tree: Tree,
    faults: Vec<Fault>,
}

impl Reader<'_> {
    fn fault(&mut self, place: Place, path: &str, message: impl Into<String>) {
        self.faults.push(Fault {
            place: Some(place),
            subject: String::new(),
            field: path.to_owned(),
            message: message.into(),
        });
    }

    fn table(&mut self, path: &str, table: &DeTable<'_>) -> Value {
        let mut map = Map::new();
        for (key, value) in table {
            let name: &str = key.get_ref();
            let path = join(path, name);
            let place = self.lines.place(key.span().start);
            self.tree.add_key(&path, place);
            map.insert(name.to_owned(), self.value(&path, value));
        }
        Value::Object(map)
    }

    fn value(&mut self, path: &str, value: &Spanned<DeValue<'_>>) -> Value {
        let place = self.lines.place(value.span().start);
        self.tree.add_value(path, place);
        match value.get_ref() {
            DeValue::String(text) => Value::String(text.to_string()),
            DeValue::Integer(number) => match i64::from_str_radix(number.as_str(), number.radix()) {
                Ok(number) => number.into(),
                Err(_) => {
                    self.fault(place, path, format!("{number} is too large a number"));
                    Value::Null
                }
            },
            DeValue::Float(number) => {
                let finite = number.as_str().parse().ok().and_then(serde_json::Number::from_f64);
                match finite {
                    Some(number) => Value::Number(number),
                    None => {
                        self.fault(place, path, format!("{number} is no number that can be used here"));
                        Value::Null
                    }
                }
            }
            DeValue::Boolean(value) => (*value).into(),
            // Written as it was: whoever expects a time reads it.
            DeValue::Datetime(time) => Value::String(time.to_string()),
            DeValue::Array(items) => {
                let items = items.iter().enumerate();
                items
                    .map(|(index, item)| self.value(&format!("{path}[{index}]"), item))
                    .collect()
            }
            DeValue::Table(table) => self.table(path, table),
        }
    }
}

pub fn parse(text: &str) -> Result<Tree, Vec<Fault>> {
    let (table, errors) = DeTable::parse_recoverable(text);
    let mut reader = Reader {
        lines: Lines::new(text),
        tree: Tree::default(),
        faults: Vec::new(),
    };
    for error in errors.iter().take(ERRORS_MAX) {
        let place = reader.lines.place(error.span().map_or(0, |span| span.start));
        reader.fault(
            place,
            "",
            format!("is no TOML: {}", error.message().replace('\n', ", ")),
        );
    }
    if !errors.is_empty() {
        return Err(reader.faults);
    }
    reader.tree.value = reader.table("", table.get_ref());
    if reader.faults.is_empty() {
        Ok(reader.tree)
    } else {
        Err(reader.faults)
    }
}

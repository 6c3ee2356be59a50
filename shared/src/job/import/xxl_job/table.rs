//! Rows by the names of their columns, from SQL or CSV.

use std::collections::BTreeMap;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Row {
    /// From 1.
    pub line: usize,
    values: BTreeMap<String, String>,
}

impl Row {
    pub fn new(line: usize, columns: &[String], values: Vec<Option<String>>) -> Self {
        let pairs = columns.iter().zip(values);
        Self {
            line,
            values: pairs
                .filter_map(|(name, value)| Some((name.trim().to_ascii_lowercase(), value?)))
                .collect(),
        }
    }

    /// A value; empty where there is none.
    pub fn text(&self, column: &str) -> &str {
        self.values.get(column).map_or("", String::as_str)
    }

    pub fn has(&self, column: &str) -> bool {
        self.values.contains_key(column)
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    pub name: String,
    pub rows: Vec<Row>,
}

pub const JOBS: &str = "xxl_job_info";
pub const GROUPS: &str = "xxl_job_group";

/// The table that the columns of a CSV belong to.
fn table_of(columns: &[String]) -> Option<&'static str> {
    let has = |name: &str| columns.iter().any(|column| column.eq_ignore_ascii_case(name));
    if has("glue_type") {
        Some(JOBS)
    } else if has("app_name") {
        Some(GROUPS)
    } else {
        None
    }
}

/// Reads a CSV whose first line has the names of the columns, in any order; `None` where it is none of the known tables.
fn csv(text: &str) -> Option<Result<Table, String>> {
    let first = text.lines().next()?;
    let delimiter = [b',', b';', b'\t']
        .into_iter()
        .max_by_key(|&b| first.bytes().filter(|&c| c == b).count())?;
    let mut reader = csv::ReaderBuilder::new()
        .delimiter(delimiter)
        .from_reader(text.as_bytes());
    let columns: Vec<String> = reader
        .headers()
        .ok()?
        .iter()
        .map(|name| name.trim().to_owned())
        .collect();
    let name = table_of(&columns)?;
    let read = reader.records().map(|record| {
        let record = record.map_err(|error| error.to_string())?;
        let line = record.position().map_or(0, csv::Position::line);
        let value = |text: &str| (!matches!(text, "NULL" | "\\N")).then(|| text.to_owned());
        Ok::<_, String>(Row::new(
            usize::try_from(line).unwrap_or(0),
            &columns,
            record.iter().map(value).collect(),
        ))
    });
    Some(read.collect::<Result<_, _>>().map(|rows| Table {
        name: name.to_owned(),
        rows,
    }))
}

/// Reads the tables of a file, SQL or CSV. A refusal is one sentence.
pub fn read(text: &str) -> Result<Vec<Table>, String> {
    let text = text.trim_start_matches('\u{feff}');
    let tables = match csv(text) {
        Some(table) => vec![table?],
        None => super::sql::read(text, &[JOBS, GROUPS])?,
    };
    if tables.iter().all(|table| table.rows.is_empty()) {
        return Err(format!(
            "has no rows of {JOBS}; give a dump (mysqldump DATABASE {JOBS} {GROUPS}), or a CSV whose first line has the names of the columns"
        ));
    }
    Ok(tables)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_csv_has_its_columns_in_any_order() {
        let text = "\u{feff}GLUE_TYPE;id;\"job_desc\"\nBEAN;1;\"two\nlines; \"\"quoted\"\"\"\nGLUE_SHELL;2;NULL\n";
        let tables = read(text).expect("tables");
        assert_eq!(tables[0].name, JOBS);
        let rows = &tables[0].rows;
        assert_eq!(
            (rows[0].text("id"), rows[0].text("job_desc"), rows[0].line),
            ("1", "two\nlines; \"quoted\"", 2)
        );
        assert_eq!(
            (rows[1].text("glue_type"), rows[1].has("job_desc"), rows[1].line),
            ("GLUE_SHELL", false, 4)
        );
        assert_eq!(read("id,app_name\n1,shop\n").expect("groups")[0].name, GROUPS);
        assert!(read("id,glue_type\n1\n").expect_err("too few").contains("1"));
        assert!(read("a,b\n1,2\n").expect_err("another table").contains("mysqldump"));
    }
}

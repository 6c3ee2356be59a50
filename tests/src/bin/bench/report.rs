//! The table that is printed, and the JSON beside it.

use crate::Result;
use std::path::Path;

/// One line of the table.
pub struct Row {
    name: String,
    value: f64,
    unit: &'static str,
    note: String,
}

#[derive(Default)]
pub struct Report {
    rows: Vec<Row>,
}

impl Report {
    pub fn add(&mut self, name: impl Into<String>, value: f64, unit: &'static str, note: impl Into<String>) {
        let row = Row {
            name: name.into(),
            value,
            unit,
            note: note.into(),
        };
        println!(
            "{:<58} {:>12} {:<8} {}",
            row.name,
            pretty(row.value),
            row.unit,
            row.note
        );
        self.rows.push(row);
    }

    pub fn value(&self, name: &str) -> f64 {
        self.rows
            .iter()
            .find(|row| row.name == name)
            .map_or(f64::NAN, |row| row.value)
    }

    pub fn write(&self, path: &Path) -> Result<()> {
        let rows: Vec<serde_json::Value> = self
            .rows
            .iter()
            .map(|row| serde_json::json!({"name": row.name, "value": row.value, "unit": row.unit, "note": row.note}))
            .collect();
        let cores = std::thread::available_parallelism()?.get();
        let text = serde_json::to_string_pretty(&serde_json::json!({"format": 1, "cores": cores, "rows": rows}))?;
        std::fs::write(path, text + "\n")?;
        println!("\nJSON: {}", path.display());
        Ok(())
    }
}

pub fn pretty(value: f64) -> String {
    if value >= 1_000.0 {
        format!("{value:.0}")
    } else {
        format!("{value:.2}")
    }
}

pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

pub fn quantile(values: &mut [f64], q: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let at = ((values.len() as f64 - 1.0) * q).round();
    values.get(at as usize).copied().unwrap_or(f64::NAN)
}

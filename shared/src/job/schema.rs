//! The schema of job files, for editors. The file is `docs/job.schema.json`; a program that embeds the scheduler and registers routes
//! publishes what [`schema`] makes of it.

use crate::policy::route;
use serde_json::{Value, json};

const FILE: &str = include_str!("../../../docs/job.schema.json");

/// The schema with all routes that this program knows. Kinds of triggers need nothing: `custom` takes any word with any settings, and
/// whether there is such a kind its scheduler says.
pub fn schema() -> Value {
    // The file is part of the program, and tests read it.
    let mut schema: Value = serde_json::from_str(FILE).unwrap_or_default();
    if let Some(routes) = schema.pointer_mut("/$defs/job/properties/route/enum") {
        *routes = json!(route::words());
    }
    schema
}

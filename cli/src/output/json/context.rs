//! Named clusters.

use serde::Serialize;

#[derive(Debug, Serialize)]
pub struct Contexts {
    pub contexts: Vec<Context>,
}

#[derive(Debug, Serialize)]
pub struct Context {
    pub name: String,
    pub current: bool,
    pub urls: Vec<String>,
    pub ca: Option<String>,
    pub token_file: Option<String>,
}

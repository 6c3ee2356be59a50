//! What `doctor` found.

use serde::Serialize;
use systole_shared::policy::doctor;

#[derive(Debug, Serialize)]
pub struct Findings {
    /// Findings of level `problem`.
    pub problems: usize,
    pub findings: Vec<Finding>,
}

#[derive(Debug, Serialize)]
pub struct Finding {
    /// `ok`, `note` or `problem`.
    pub level: &'static str,
    pub check: String,
    pub subject: String,
    pub message: String,
    /// Empty where there is nothing to do.
    pub remedy: String,
}

impl From<&doctor::Finding> for Finding {
    fn from(finding: &doctor::Finding) -> Self {
        Self {
            level: finding.level.name(),
            check: finding.check.clone(),
            subject: finding.subject.clone(),
            message: finding.message.clone(),
            remedy: finding.remedy.clone(),
        }
    }
}

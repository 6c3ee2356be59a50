//! Ends that a worker holds until its agent says that a scheduler has them.

use super::Worker;
use crate::journal::{Begin, Ended, TaskFiles};
use crate::kept;
use crate::task_log;
use crate::warden::health::fault_of;
use crate::warden::protocol::FromWarden;
use systole_shared::task::OutcomeKind;

/// An end that is not forgotten yet.
pub(super) struct Kept {
    pub(super) ended: Ended,
    /// Absent for ends of an earlier warden.
    pub(super) files: Option<TaskFiles>,
    pub(super) nobody_inside: bool,
    /// It is on disk. Until then it is tried again whenever the host is well again.
    pub(super) is_written: bool,
}

impl Worker {
    pub(super) fn record(&mut self, begin: &Begin, kind: &str, message: &str) {
        let kind = OutcomeKind::parse(kind).unwrap_or(OutcomeKind::NotStarted);
        self.keep(Ended::without_child(begin, kind, message), None, false);
    }

    /// Writes an end down, and tells it.
    pub(super) fn keep(&mut self, ended: Ended, files: Option<TaskFiles>, nobody_inside: bool) {
        let written = match &files {
            Some(files) => files.end(&ended),
            None => self.shared.place.journal.end(&ended),
        };
        if let Err(error) = &written {
            tracing::error!(task_id = ended.task_id, %error, "a result could not be written down; it is lost if the warden stops before it is reported");
            self.shared
                .health
                .failed(fault_of(error, "the end of a task cannot be written down"));
            self.tell_health();
        }
        task_log::written(&ended);
        self.say(&FromWarden::Ended(Box::new(ended.clone())));
        self.kept.insert(
            ended.task_id,
            Kept {
                ended,
                files,
                nobody_inside,
                is_written: written.is_ok(),
            },
        );
    }

    pub(super) fn forget(&mut self, task_id: i64) {
        let Some(kept) = self.kept.remove(&task_id) else { return };
        let journal = &self.shared.place.journal;
        if kept.ended.detail.output_until_ms.is_some() {
            if let Err(error) = kept::keep(&self.shared.plan.data_dir, task_id) {
                tracing::warn!(task_id, %error, "the full output of a task could not be kept");
            }
            if let Err(error) = journal.remove(task_id) {
                tracing::warn!(task_id, %error, "the directory of an ended task could not be removed");
            }
            return self.shared.tidy_kept();
        }
        let done = match kept.files {
            Some(files) => journal.recycle(task_id, files, kept.nobody_inside),
            None => journal.remove(task_id),
        };
        if let Err(error) = done {
            tracing::warn!(task_id, %error, "the directory of an ended task could not be removed");
        }
    }

    pub(super) fn set_aside(&mut self, task_id: i64) {
        if self.kept.remove(&task_id).is_none() {
            return;
        }
        if let Err(error) = self.shared.place.journal.set_aside(task_id) {
            tracing::warn!(task_id, %error, "what a task left could not be moved to unclaimed/");
        }
    }

    /// Ends that could not be written down before.
    pub(super) fn write_again(&mut self) {
        for kept in self.kept.values_mut().filter(|kept| !kept.is_written) {
            let written = match &kept.files {
                Some(files) => files.end(&kept.ended),
                None => self.shared.place.journal.end(&kept.ended),
            };
            kept.is_written = written.is_ok();
        }
    }
}

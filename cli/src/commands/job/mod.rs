//! `systole job`: jobs, from files and in the scheduler; `systole next` and `systole why` of a job.

mod apply;
mod change;
mod check;
mod diff;
mod edit;
mod files;
mod history;
mod init;
mod list;
mod next;
mod plan;
mod start;
mod versions;
pub mod why;
pub(super) mod words;

pub use change::{pause, resume};
pub use files::read_text;
pub use next::next;
pub use plan::write as write_plan;
pub use words::{pause as pause_in_words, wire_fire, zone_named};

use crate::args::{Global, JobAction, JobArgs};
use crate::failure::Failure;

pub async fn run(global: &Global, args: &JobArgs) -> Result<u8, Failure> {
    match &args.action {
        JobAction::Init(args) => init::run(global, args),
        JobAction::Check(args) => check::run(global, args),
        JobAction::Apply(args) => apply::run(global, args).await,
        JobAction::Ls(args) => list::ls(global, args).await,
        JobAction::Show(args) => list::show(global, args).await,
        JobAction::Edit(args) => edit::run(global, args).await,
        JobAction::Pause(args) => change::pause(global, args).await,
        JobAction::Resume(args) => change::resume(global, args).await,
        JobAction::Trigger(args) => start::trigger(global, args).await,
        JobAction::Enqueue(args) => start::enqueue(global, args).await,
        JobAction::History(args) if args.versions => versions::list(global, args).await,
        JobAction::History(args) => history::history(global, args).await,
        JobAction::Diff(args) => diff::run(global, args).await,
        JobAction::Restore(args) => versions::restore(global, args).await,
        JobAction::Next(args) => next::of_job(global, args).await,
        JobAction::Rm(args) => change::rm(global, args).await,
    }
}

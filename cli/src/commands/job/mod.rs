//! `systole job`: jobs, from files and in the scheduler; and `systole why`.

mod apply;
mod change;
mod check;
mod files;
mod history;
mod init;
mod list;
pub(super) mod words;

pub use files::read_text;
pub use history::why;

use crate::args::{Global, JobAction, JobArgs};
use crate::failure::Failure;

pub async fn run(global: &Global, args: &JobArgs) -> Result<u8, Failure> {
    match &args.action {
        JobAction::Init(args) => init::run(global, args),
        JobAction::Check(args) => check::run(global, args),
        JobAction::Apply(args) => apply::run(global, args).await,
        JobAction::Ls(args) => list::ls(global, args).await,
        JobAction::Show(args) => list::show(global, args).await,
        JobAction::Pause(args) => change::pause(global, args).await,
        JobAction::Resume(args) => change::resume(global, args).await,
        JobAction::Trigger(args) => change::trigger(global, args).await,
        JobAction::History(args) => history::history(global, args).await,
        JobAction::Next(args) => list::next(global, args).await,
        JobAction::Rm(args) => change::rm(global, args).await,
    }
}

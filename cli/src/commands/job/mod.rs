//! `systole job`: jobs, from files and in the scheduler.

mod check;
mod files;
mod init;

pub use files::read_text;

use crate::args::{Global, JobAction, JobArgs};
use crate::failure::Failure;

pub async fn run(global: &Global, args: &JobArgs) -> Result<u8, Failure> {
    match &args.action {
        JobAction::Init(args) => init::run(global, args),
        JobAction::Check(args) => check::run(global, args),
    }
}

//! One file per command. A command takes its options and returns its exit status.

mod admin;
mod alarm;
mod audit;
mod backfill;
mod backup;
mod batch;
mod calendar;
mod cancel;
pub mod completions;
mod concurrency_group;
mod context;
mod cron;
mod detach;
mod doctor;
mod drain;
mod forget;
mod freeze;
mod import;
mod job;
mod joblog;
mod join;
pub mod lock;
mod logs;
mod ls;
mod man;
mod many;
mod pages;
pub mod reference;
mod rerun;
mod run;
mod runner;
mod runners;
mod scheduler;
mod service;
mod show;
mod status;
mod stdin;
mod submit;
mod token;
mod top;
mod trigger;
mod up;
mod wait;
mod wait_batch;
pub mod warden;
mod why;

use crate::args::{Cli, Command};
use crate::failure::Failure;
use crate::{exit_code, output};
use systole_proto::v1;

pub async fn dispatch(cli: &Cli) -> Result<u8, Failure> {
    let global = &cli.global;
    if global.context.is_some() && cli.command.is_service() {
        return Err(Failure::usage(
            "--context is for commands that ask a cluster; a service is told its --url",
        ));
    }
    match &cli.command {
        Command::Up(args) => up::run(global, args).await,
        Command::Down(args) => detach::down(global, args).await,
        Command::Service(args) => service::run(global, args),
        Command::Backup(args) => backup::run(global, args).await,
        Command::Scheduler(args) => scheduler::run(global, args).await,
        Command::Runner(args) => runner::run(global, args).await,
        Command::Run(args) => run::run(global, args).await,
        Command::Submit(args) => submit::run(global, args).await,
        Command::Ls(args) => ls::run(global, args).await,
        Command::Show(args) => show::run(global, args).await,
        Command::Logs(args) => logs::run(global, args).await,
        Command::Wait(args) => wait::run(global, args).await,
        Command::Cancel(args) => cancel::run(global, args).await,
        Command::Rerun(args) => rerun::run(global, args).await,
        Command::Runners(args) => runners::run(global, args).await,
        Command::Pause(args) => freeze::pause(global, args).await,
        Command::Resume(args) => freeze::resume(global, args).await,
        Command::Lock(args) => lock::run(global, args).await,
        Command::LockGuard(_) => lock::run_guard(),
        Command::Status(args) => status::run(global, args).await,
        Command::Doctor(args) => doctor::run(global, args).await,
        Command::Top(args) => top::run(global, args).await,
        Command::Token(args) => token::run(global, args).await,
        Command::JoinLine(args) => join::command(global, args).await,
        Command::Audit(args) => audit::run(global, args).await,
        Command::Admin(args) => admin::run(global, args).await,
        Command::Backfill(args) => backfill::run(global, args).await,
        Command::Job(args) => job::run(global, args).await,
        Command::Alarm(args) => alarm::run(global, args).await,
        Command::Trigger(args) => trigger::run(global, args).await,
        Command::Calendar(args) => calendar::run(global, args).await,
        Command::ConcurrencyGroup(args) => concurrency_group::run(global, args).await,
        Command::Next(args) => job::next(global, args).await,
        Command::Why(args) => why::run(global, args).await,
        Command::Import(args) => import::run(global, args),
        Command::Context(args) => context::run(global, args),
        Command::Cron(args) => cron::run(global, args),
        Command::Completions(args) => Ok(completions::run(args)),
        Command::Reference(args) => reference::run(args),
        Command::Warden(args) => warden::run(global, args),
    }
}

/// Tells what was refused beside the results, whatever their form. The exit status is that of the first.
fn tell_errors<'e>(errors: impl Iterator<Item = &'e v1::ItemError>) -> u8 {
    let mut exit = exit_code::OK;
    for error in errors {
        let failure = Failure::from_item(error);
        output::error(&failure.to_string());
        if exit == exit_code::OK {
            exit = failure.exit;
        }
    }
    exit
}

/// This machine's time, for display.
pub fn now_ms() -> u64 {
    u64::try_from(systole_shared::clock::now_ms()).unwrap_or(0)
}

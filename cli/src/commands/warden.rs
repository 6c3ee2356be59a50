//! `systole warden`: the process that has a runner's children.

use super::runner::failure;
use crate::args::{Global, WardenArgs};
use crate::failure::Failure;
use crate::service::start_log;
use crate::{exit_code, paths};
use systole_runner::warden::{self, Plan};

pub fn run(global: &Global, args: &WardenArgs) -> Result<u8, Failure> {
    let data_dir = match &args.data_dir {
        Some(dir) => std::path::absolute(dir).unwrap_or_else(|_| dir.clone()),
        None => paths::data_dir()?.join("runner"),
    };
    paths::make_data_dir(&data_dir)?;
    start_log(&args.log, global.no_color, None)?;
    let plan = Plan {
        data_dir,
        stays: !args.leave_when_idle,
        drain_wait: args.times.drain_wait,
        adopt_window: args.times.adopt_window,
        policy: args.policy.absolute(),
        output_file_max: args.times.output_file_max,
        keep_output: args.times.keep(),
    };
    warden::run(plan).map_err(failure)?;
    Ok(exit_code::OK)
}

//! `systole completions`: a script for the shell.

use crate::args::{Cli, CompletionsArgs};
use crate::{exit_code, output};
use clap::CommandFactory as _;

pub fn run(args: &CompletionsArgs) -> u8 {
    // Made in memory first: the generator panics when a pipe is closed under it.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "systole", &mut script);
    output::data(&script);
    exit_code::OK
}

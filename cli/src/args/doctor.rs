//! `doctor`: what goes wrong in practice.

use clap::Args;
use std::path::PathBuf;

#[derive(Debug, Args)]
#[command(after_help = "\
It looks at this machine (clock, token, data folder, limits, policy), at the way to the scheduler, and asks the scheduler about
itself, its database and the hosts. It changes nothing.

  ok       as it should be
  note     worth knowing; nothing breaks
  problem  a person is needed; the line below says what to do

Exit status: 1 when there is a problem, also when no scheduler answers.")]
pub struct DoctorArgs {
    /// Of the scheduler or runner on this machine [default: $XDG_DATA_HOME/systole or ~/.local/share/systole]
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
}

//! The runner: takes tasks from schedulers and supervises one child process per slot.
//!
//! Who calls it: the command line (`systole runner`) and the tests, through [`run`]. It talks to
//! schedulers through the contract only and must not know how they store or choose tasks. What an
//! answer means is decided by `systole_shared::heartbeat::react`; this crate makes it happen.
//!
//! It is two processes. The agent ([`run`] wires it; `agent` is the loop of one slot, `link` the way to the schedulers)
//! talks to the cluster. The [`warden`] beside it has the children: `child` starts them, `warden` watches and ends them,
//! `journal` is what is known of them on disk, and `spare` keeps folders of former tasks for later ones.
//! What a host allows at all is in [`policy`].

#[cfg(not(target_os = "linux"))]
compile_error!(
    "systole is for Linux: how it supervises tasks rests on subreapers, control groups and pidfds. On another system use a Linux \
     container or virtual machine, ssh, or the HTTP interface of a scheduler (README.md, \"What it does not do\")"
);

mod agent;
mod backoff;
pub mod boottime;
mod child;
pub mod config;
pub mod credential;
mod error;
pub mod file_limit;
mod host;
mod journal;
pub mod kept;
mod link;
pub mod policy;
mod procfs;
mod protect;
mod rotate;
mod rounds;
mod run;
mod shutdown;
mod spare;
mod state_dir;
mod sweep;
mod task_log;
pub mod warden;

pub use error::RunnerError;
pub use host::default_host_name;
pub use run::run;
pub use shutdown::Shutdown;

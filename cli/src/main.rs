//! The one binary `systole`: the client commands, and the services `up`, `scheduler` and `runner`.
//!
//! Data goes to stdout, everything else to stderr. Each command is a file under `commands` and
//! returns its exit status or a [`Failure`](failure::Failure); this file alone ends the process.

mod args;
mod client;
mod commands;
mod context;
mod exit_code;
mod failure;
mod follow;
#[cfg(test)]
mod golden;
mod instance;
mod locale;
mod log_file;
mod output;
mod paths;
mod pinned;
mod service;
mod spec;
mod url;

use failure::Failure;
use std::process::ExitCode;

/// That of musl has one lock for all threads.
#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // Both TLS users of this process (client and scheduler) take the process default. It can only
    // be set already by ourselves, so the result says nothing.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let cli = parse();
    match start(&cli) {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            output::error(&failure.to_string());
            ExitCode::from(failure.exit)
        }
    }
}

fn parse() -> args::Cli {
    args::parse(std::env::args_os()).unwrap_or_else(|error| {
        // If nobody reads this, there is nobody to tell.
        let _ = error.print();
        if args::forgot_dashes(&error, std::env::args_os()) {
            output::note("tip: put -- before the program: systole run -- PROG ARG…");
        }
        std::process::exit(error.exit_code())
    })
}

/// Of a scheduler: a core is left to the thread of its database, or to the database itself. On two cores threads that wake one another
/// take more than the second one brings: a task waits 0.6 ms longer for its start (docs/performance.md).
fn threads() -> usize {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    cores.saturating_sub(1).max(1)
}

fn start(cli: &args::Cli) -> Result<u8, Failure> {
    if let args::Command::Completions(completions) = &cli.command {
        return Ok(commands::completions::run(completions));
    }
    if let args::Command::LockGuard(_) = &cli.command {
        return commands::lock::run_guard();
    }
    // Before anything makes a thread: the warden is one process with few threads, each of its own making.
    if let args::Command::Warden(warden) = &cli.command {
        return commands::warden::run(&cli.global, warden);
    }
    // A client asks one question and goes: threads would only cost start time. A runner has little to do beside its warden, and
    // one thread does that with fewer wake-ups than many.
    let mut builder = if cli.command.is_parallel() {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        builder.worker_threads(threads());
        builder
    } else {
        tokio::runtime::Builder::new_current_thread()
    };
    let runtime = builder
        .enable_all()
        .build()
        .map_err(|error| Failure::unexpected(format!("the runtime could not be started: {error}")))?;
    let result = runtime.block_on(Box::pin(commands::dispatch(cli)));
    // A thread that is stuck writing to a full pipe must not keep the process.
    runtime.shutdown_background();
    result
}

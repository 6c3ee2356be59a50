//! The runner as a whole, with real processes, against a scheduler that says what the test wants.

mod children;
mod environment;
mod fake;
mod faults;
mod limits;
mod output;
mod policy;
mod protocol;
mod restart;
mod spare;
mod together;

//! Everything that keeps a task from going on, and who can lift it. Sentences are without times: those are beside them, so that
//! whoever shows them does so in his own zone.
//!
//! A file for each stage of a task: waiting for a place or its time (`created.rs`), for a runner (`queued.rs`), given to one (`given.rs`).

mod created;
mod given;
mod queued;

pub use created::{Held, Holder, delayed, held};
pub use given::{AtRunner, at_runner, callback};
pub use queued::{BEFORE_MAX, Queued, queued};

use crate::policy::access::Needs;

/// Hosts, or tasks, that blockers of one kind name one by one; the rest is counted.
pub const NAMED_MAX: usize = 10;

macro_rules! kinds {
    ($($variant:ident = $name:literal, $doc:literal;)*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum BlockerKind { $(#[doc = $doc] $variant,)* }

        impl BlockerKind {
            pub const ALL: &[BlockerKind] = &[$(BlockerKind::$variant,)*];

            /// On the wire and in JSON.
            pub fn name(self) -> &'static str {
                match self { $(BlockerKind::$variant => $name,)* }
            }
        }
    };
}

kinds! {
    Frozen = "frozen", "everything, its queue or a tag of it is frozen";
    NoRunner = "no_runner", "no live runner may take it";
    RunnerLost = "runner_lost", "a host that could take it is lost";
    RunnerLeft = "runner_left", "a host that could take it was shut down";
    Cordoned = "cordoned", "somebody said that a host gets nothing new";
    Faulty = "faulty", "a host can start nothing";
    Restored = "restored", "hosts get nothing since the database was set back";
    Busy = "busy", "all slots that could take it hold tasks";
    Backlog = "backlog", "other tasks come first";
    Place = "place", "the place of its job is taken";
    Unproven = "unproven", "the place of its job is taken by a task that nobody saw end";
    Behind = "behind", "other runs of its job wait before it";
    Group = "group", "its concurrency group is full";
    Delayed = "delayed", "its time has not come";
    RetryDelay = "retry_delay", "the delay of its retry is not over";
    Clock = "clock", "the database's clock is not believed";
    Unreported = "unreported", "its runner has not reported it yet";
    RunnerSilent = "runner_silent", "the runner that holds it says nothing";
    Brake = "brake", "many hosts fell silent at once, so that none is declared lost";
    Ending = "ending", "its runner is to end it";
    Callback = "callback", "its callback is not delivered yet";
}

/// One thing that a task waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocker {
    pub kind: BlockerKind,
    pub message: String,
    /// Since when, ms of the database's clock.
    pub since_ms: Option<i64>,
    /// When it ends by itself.
    pub until_ms: Option<i64>,
    /// What is to be done, for a person; empty: nothing, it passes by itself.
    pub advice: String,
    /// The command that lifts it; empty: none of systole does.
    pub command: String,
    /// What the caller of the command must be allowed.
    pub needs: Option<Needs>,
}

impl Blocker {
    fn new(kind: BlockerKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            since_ms: None,
            until_ms: None,
            advice: String::new(),
            command: String::new(),
            needs: None,
        }
    }

    fn since(mut self, ms: Option<i64>) -> Self {
        self.since_ms = ms;
        self
    }

    fn until(mut self, ms: Option<i64>) -> Self {
        self.until_ms = ms;
        self
    }

    fn advice(mut self, advice: impl Into<String>) -> Self {
        self.advice = advice.into();
        self
    }

    fn by(mut self, needs: Needs, command: impl Into<String>) -> Self {
        self.command = command.into();
        self.needs = Some(needs);
        self
    }
}

/// Of a list, those that are named, and how many are not.
fn named<T>(mut all: Vec<T>) -> (Vec<T>, usize) {
    let more = all.len().saturating_sub(NAMED_MAX);
    all.truncate(NAMED_MAX);
    (all, more)
}

#[cfg(test)]
mod tests;

//! Which state follows which. Each transition becomes one guarded write: its `from` list is the
//! `WHERE`, so the database decides races, and a lost race is a normal answer.

use super::TaskState::{self, *};

macro_rules! transitions {
    ($($variant:ident: [$($from:ident),+] => $to:ident, $by:literal, $doc:literal;)*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Transition { $(#[doc = $doc] $variant,)* }

        impl Transition {
            pub const ALL: &[Transition] = &[$(Transition::$variant,)*];

            /// The states it may leave.
            pub fn from(self) -> &'static [TaskState] {
                match self { $(Transition::$variant => &[$($from),+],)* }
            }

            /// The state it leads to.
            pub fn to(self) -> TaskState {
                match self { $(Transition::$variant => $to,)* }
            }

            /// Which part of the product makes it.
            pub fn made_by(self) -> &'static str {
                match self { $(Transition::$variant => $by,)* }
            }

            /// What happened, one line.
            pub fn meaning(self) -> &'static str {
                match self { $(Transition::$variant => $doc,)* }
            }
        }
    };
}

transitions! {
    Admit: [Created] => Queued, "admission", "its time has come";
    Dispatch: [Queued] => Dispatched, "dispatch", "a runner was idle and fits";
    Spread: [Queued] => Running, "broadcast", "its members were made, one for each host";
    Start: [Dispatched] => Running, "heartbeat", "the runner reported the child alive";
    Succeed: [Dispatched, Running, Terminating] => Finished, "heartbeat", "the child ended with exit code 0 and nothing is to follow";
    SucceedThenCall: [Dispatched, Running, Terminating] => Callback, "heartbeat", "the child ended with exit code 0 and a callback is due";
    CallbackDone: [Callback] => Finished, "callback", "the callback was delivered or given up";
    Fail: [Dispatched, Running] => Failed, "heartbeat, reaper", "the child failed, could not start, timed out, or its runner was lost";
    FailTerminating: [Terminating] => Failed, "heartbeat, reaper", "a timed-out child ended, or was never started";
    FailWaiting: [Queued] => Failed, "timeout", "no runner took it within its queue timeout";
    CancelWaiting: [Created, Queued] => Terminated, "cancel", "cancelled before a runner had it";
    CancelHeld: [Dispatched, Running] => Terminating, "cancel, timeout", "the runner is told to end the child";
    Terminate: [Terminating] => Terminated, "heartbeat, reaper", "a cancelled child ended, or its runner was lost";
    Skip: [Created, Queued] => Skipped, "admission", "dropped before it started";
}

impl Transition {
    /// True when this write may leave `state`.
    pub fn leaves(self, state: TaskState) -> bool {
        self.from().contains(&state)
    }
}

/// The table of states and transitions as Markdown, for the documentation (a test compares it).
pub fn markdown() -> String {
    let mut text = String::from("| state | meaning |\n| --- | --- |\n");
    for state in TaskState::ALL {
        text.push_str(&format!("| {state} | {} |\n", state.meaning()));
    }
    text.push_str("\n| from | to | what happened | made by |\n| --- | --- | --- | --- |\n");
    for transition in Transition::ALL {
        let from: Vec<_> = transition.from().iter().map(|state| state.name()).collect();
        text.push_str(&format!(
            "| {} | {} | {} | {} |\n",
            from.join(", "),
            transition.to(),
            transition.meaning(),
            transition.made_by()
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terminal_is_terminal() {
        for transition in Transition::ALL {
            for from in transition.from() {
                assert!(!from.is_terminal(), "{transition:?} leaves {from}");
            }
        }
    }

    #[test]
    fn every_state_but_created_is_reached_and_every_live_state_is_left() {
        for state in TaskState::ALL {
            let reached = Transition::ALL.iter().any(|t| t.to() == state);
            let left = Transition::ALL.iter().any(|t| t.leaves(state));
            assert_eq!(reached, state != Created, "{state} reached");
            assert_eq!(left, !state.is_terminal(), "{state} left");
        }
    }

    #[test]
    fn the_documentation_shows_this_table() {
        let docs = include_str!("../../../docs/task-lifecycle.md");
        assert!(
            docs.contains(&markdown()),
            "docs/task-lifecycle.md must contain:\n{}",
            markdown()
        );
    }
}

//! The ten states of a task. The number of a state is the same in the contract and in the database.

use std::fmt;

macro_rules! states {
    ($($variant:ident = $number:literal, $name:literal, $doc:literal;)*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(i16)]
        pub enum TaskState { $(#[doc = $doc] $variant = $number,)* }

        impl TaskState {
            /// All ten, in the order of their numbers.
            pub const ALL: [TaskState; 10] = [$(TaskState::$variant,)*];

            /// The name, as people and programs see it.
            pub fn name(self) -> &'static str {
                match self { $(TaskState::$variant => $name,)* }
            }

            /// What it means, one line.
            pub fn meaning(self) -> &'static str {
                match self { $(TaskState::$variant => $doc,)* }
            }
        }
    };
}

states! {
    Created = 1, "CREATED", "stored, not yet eligible: its time has not come";
    Queued = 2, "QUEUED", "eligible; the next idle runner that fits takes it";
    Dispatched = 3, "DISPATCHED", "given to one runner, which has not reported it yet";
    Running = 4, "RUNNING", "the runner reported the child alive";
    Callback = 5, "CALLBACK", "the child ended with success; its callback is being delivered";
    Finished = 6, "FINISHED", "ended with exit code 0";
    Failed = 7, "FAILED", "ended without success; the outcome says how";
    Skipped = 8, "SKIPPED", "dropped before it started";
    Terminating = 9, "TERMINATING", "a cancel or timeout was decided; the runner has not confirmed the end";
    Terminated = 10, "TERMINATED", "ended by a cancel";
}

impl TaskState {
    /// The number in the contract and in the database.
    pub fn number(self) -> i16 {
        self as i16
    }

    pub fn from_number(number: i16) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.number() == number)
    }

    /// Case does not matter.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|state| state.name().eq_ignore_ascii_case(name))
    }

    /// Ended; never changes again.
    pub fn is_terminal(self) -> bool {
        matches!(self, Self::Finished | Self::Failed | Self::Skipped | Self::Terminated)
    }

    /// A runner holds it.
    pub fn is_held(self) -> bool {
        matches!(self, Self::Dispatched | Self::Running | Self::Terminating)
    }

    /// The child has ended, or never will start: nothing more will run for this task.
    pub fn child_is_over(self) -> bool {
        self.is_terminal() || self == Self::Callback
    }
}

impl fmt::Display for TaskState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_round_trip() {
        for (index, state) in TaskState::ALL.into_iter().enumerate() {
            assert_eq!(usize::try_from(state.number()), Ok(index + 1));
            assert_eq!(TaskState::from_number(state.number()), Some(state));
            assert_eq!(TaskState::parse(&state.name().to_lowercase()), Some(state));
        }
        assert_eq!(TaskState::from_number(0), None);
        assert_eq!(TaskState::from_number(11), None);
    }
}

//! A warden that does not answer: it is stopped (SIGSTOP), or one of its threads waits for a disk. Its sockets are open and take
//! what they are sent, so only a question without an answer tells. Pure; counts looks and has no clock.

use std::time::Duration;
use systole_shared::policy::host_fault::{FaultKind, HostFault};

/// How often each worker of the warden is asked.
pub const LOOK_EVERY: Duration = Duration::from_secs(5);
/// Looks in a row that find the question without an answer: so a stalled warden is known after 25 to 30 s. Longer than one start
/// may take by itself: it waits up to twice 10 s for a file server that does not answer, which is the task's own affair.
const LOOKS_MAX: u32 = 5;

/// What one worker owes.
#[derive(Debug, Default)]
pub struct Silence {
    asked: bool,
    looks: u32,
}

impl Silence {
    /// True: it is to be asked now. Else it owes an answer since an earlier look.
    pub fn look(&mut self) -> bool {
        if self.asked {
            self.looks = self.looks.saturating_add(1);
            return false;
        }
        self.asked = true;
        true
    }

    /// Whatever came, somebody sent it.
    pub fn heard(&mut self) {
        *self = Self::default();
    }

    pub fn is_stalled(&self) -> bool {
        self.looks >= LOOKS_MAX
    }
}

/// The fault of a host whose warden is, or was, this process.
pub fn fault_of_silence(warden: u32) -> HostFault {
    HostFault {
        kind: FaultKind::WardenStalled,
        detail: format!(
            "the warden (process {warden}), which starts and ends the tasks of this host, does not answer: it is gone or stopped, or waits for a disk"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_is_stalled_after_five_looks_without_an_answer_and_until_it_answers() {
        let mut silence = Silence::default();
        assert!(silence.look(), "it is asked");
        for _ in 1..LOOKS_MAX {
            assert!(!silence.look() && !silence.is_stalled());
        }
        for _ in 0..10 {
            assert!(!silence.look() && silence.is_stalled(), "it is not asked twice");
        }
        silence.heard();
        assert!(!silence.is_stalled() && silence.look());
    }

    #[test]
    fn a_slow_answer_is_an_answer() {
        let mut silence = Silence::default();
        for _ in 0..10 {
            assert!(silence.look() && !silence.look() && !silence.look() && !silence.is_stalled());
            silence.heard();
        }
    }

    #[test]
    fn a_start_that_waits_for_a_file_server_is_no_stall() {
        assert!(LOOK_EVERY * LOOKS_MAX > Duration::from_secs(20));
    }
}

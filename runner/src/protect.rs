//! This process goes on when the host has no memory left: the kernel looks for others first.

use crate::child::fork::remember_oom_score;
use std::fs;

const OWN: &str = "/proc/self/oom_score_adj";
/// Half of what would rule it out altogether: a process of ours that leaks may still be ended.
const SCORE: i32 = -500;

/// Lowers the score of this process where it may, and sees to it that its tasks do not inherit it.
pub fn from_want_of_memory() {
    let Some(found) = fs::read_to_string(OWN)
        .ok()
        .and_then(|text| text.trim().parse::<i32>().ok())
    else {
        return;
    };
    if found > SCORE && fs::write(OWN, SCORE.to_string()).is_err() && found >= 0 {
        // Not permitted, as usual for a user: then its tasks are as it is.
        return;
    }
    // A lower one was given to us, by whoever started us, and not to the tasks.
    remember_oom_score(found.max(0));
}

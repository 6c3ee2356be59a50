//! Leases of applications: when one that somebody holds may be given to somebody else.

/// A clock of the database that jumps by less than this is believed at once (see [`super::clock`]); an expiry that is further back
/// than this is one whatever it did.
pub const JUMP_MS_MAX: i64 = 60_000;

/// What decides about a lease that has a holder.
#[derive(Clone, Copy, Debug)]
pub struct Held {
    pub ttl_ms: i64,
    /// By the database's clock.
    pub expires_ms: i64,
    pub now_ms: i64,
    /// The latest time that is believed; `None`: the clock is not.
    pub believed_ms: Option<i64>,
    /// For how long this replica has seen that it was not renewed, by its own clock; `None`: it has not looked before.
    pub unchanged_ms: Option<i64>,
}

/// Whether the holder has had to give it up. Its command ends before its ttl, counted from when it sent its last renewal, by its own
/// clock. So one clock must have seen the ttl pass: that of this replica, or that of the database where it is believed and no jump
/// that passes as a true time could have made it up.
pub fn is_over(held: Held) -> bool {
    let expired = held.now_ms >= held.expires_ms;
    let seen = held.unchanged_ms.is_some_and(|ms| ms >= held.ttl_ms);
    // The database's clock was set back, and says nothing for hours: twice the time, by the clock of this replica alone.
    let seen_twice = held.unchanged_ms.is_some_and(|ms| ms >= held.ttl_ms.saturating_mul(2));
    let long_ago = held
        .believed_ms
        .is_some_and(|believed| held.now_ms.min(believed) >= held.expires_ms.saturating_add(JUMP_MS_MAX));
    (expired && seen) || seen_twice || long_ago
}

/// When a holder stops its command, in ms after it sent the renewal that was granted: first the request to end, then the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stop {
    pub term_ms: u64,
    pub kill_ms: u64,
}

/// A holder renews at a third of the ttl.
pub fn renew_every_ms(ttl_ms: u64) -> u64 {
    ttl_ms / 3
}

/// The command is dead by `kill_ms`, which lies before the ttl by a tenth of it (at least 500 ms, at most 5 s): for what a kill takes,
/// and for clocks that run at different speeds. The grace is shortened so that a second renewal may come before.
pub fn stop_at(ttl_ms: u64, grace_ms: u64) -> Stop {
    let kill_ms = ttl_ms.saturating_sub((ttl_ms / 10).clamp(500, 5_000));
    let grace_ms = grace_ms.min(ttl_ms / 4);
    Stop {
        term_ms: kill_ms.saturating_sub(grace_ms),
        kill_ms,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::{LEASE_TTL_MS_MAX, LEASE_TTL_MS_MIN};

    fn held(now_ms: i64, believed_ms: Option<i64>, unchanged_ms: Option<i64>) -> Held {
        Held {
            ttl_ms: 30_000,
            expires_ms: 1_000_000,
            now_ms,
            believed_ms,
            unchanged_ms,
        }
    }

    #[test]
    fn a_lease_is_over_when_a_clock_that_can_be_trusted_has_seen_its_ttl_pass() {
        let now = 1_000_001;
        for (what, held, over) in [
            (
                "it has just expired, and nobody has looked",
                held(now, Some(now), None),
                false,
            ),
            (
                "it was seen unchanged for its ttl",
                held(now, Some(now), Some(30_000)),
                true,
            ),
            (
                "the clock is not believed, but it was seen",
                held(now, None, Some(30_000)),
                true,
            ),
            ("not for long enough", held(now, Some(now), Some(29_999)), false),
            ("it expired long ago", held(1_060_000, Some(1_060_000), None), true),
            ("not so long ago", held(1_059_999, Some(1_059_999), None), false),
            (
                "the clock jumped by an hour, unseen",
                held(4_600_000, Some(1_000_500), None),
                false,
            ),
            (
                "the clock jumped by an hour, and is held",
                held(4_600_000, None, Some(5_000)),
                false,
            ),
            (
                "the clock was set back by an hour",
                held(-2_600_000, None, Some(59_999)),
                false,
            ),
            (
                "and twice the ttl has passed",
                held(-2_600_000, None, Some(60_000)),
                true,
            ),
            ("it was renewed", held(999_999, Some(999_999), Some(0)), false),
        ] {
            assert_eq!(is_over(held), over, "{what}");
        }
    }

    #[test]
    fn a_command_is_dead_before_the_ttl_and_two_renewals_come_before_it_is_asked_to_end() {
        for ttl in [LEASE_TTL_MS_MIN, 10_000, 30_000, 600_000, LEASE_TTL_MS_MAX] {
            for grace in [0, 1_000, 10_000, 3_600_000] {
                let stop = stop_at(ttl, grace);
                assert!(stop.kill_ms + 500 <= ttl, "{ttl} {grace}: {stop:?}");
                assert!(stop.term_ms <= stop.kill_ms, "{ttl} {grace}: {stop:?}");
                // The first renewal is sent at a third; there is time for another try.
                assert!(stop.term_ms >= renew_every_ms(ttl) * 3 / 2, "{ttl} {grace}: {stop:?}");
            }
        }
        assert_eq!(
            stop_at(30_000, 5_000),
            Stop {
                term_ms: 22_000,
                kill_ms: 27_000
            }
        );
    }
}

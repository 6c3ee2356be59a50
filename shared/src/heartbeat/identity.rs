//! Who may speak for a host: `(instance_id, start_no)` belongs to the host process, not to a slot.

/// What the store knows of a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    pub instance_id: String,
    pub start_no: i64,
    /// It said goodbye: its id is free at once.
    pub left: bool,
    /// Since the last beat of any of its slots, by the database's clock.
    pub silent_ms: i64,
}

/// What the store remembers of a process that lost the host to another instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replaced {
    pub start_no: i64,
    /// How long ago it first asked to have the host back, ms.
    pub knocked_ms: Option<i64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Identity {
    /// The host is new: register it.
    New,
    /// The process that holds the host.
    Holder,
    /// The holder's restart: takes over all slots at once.
    Restart,
    /// Another instance may take the id: the holder left or missed a beat. The holder's tasks stay with
    /// the reaper, since nothing proves that their children are dead.
    Successor,
    /// An earlier start of the holder: refused for ever.
    Old,
    /// Another instance holds the id and is alive: wait.
    Taken,
}

/// A newcomer waits until the holder missed one beat by this much, ms.
pub const TAKE_OVER_SLACK_MS: i64 = 5_000;

/// A process that was replaced is believed to live when it asks again this many beats after it first did.
const KNOCK_BEATS: std::ops::RangeInclusive<i64> = 1..=4;

/// The first knock is too long ago: the next one is a first one again.
pub fn is_knock_over(knocked_ms: i64, beat_ms: i64) -> bool {
    knocked_ms > KNOCK_BEATS.end() * beat_ms
}

/// `replaced`: what is remembered of this instance, when it lost the host before. One of its beats that was held up on
/// its way must not take the host from a successor; a process that lives asks again and again.
pub fn identify(
    holder: Option<&Holder>,
    instance_id: &str,
    start_no: i64,
    beat_ms: i64,
    replaced: Option<Replaced>,
) -> Identity {
    let Some(holder) = holder else {
        return Identity::New;
    };
    if holder.instance_id == instance_id {
        return match start_no.cmp(&holder.start_no) {
            std::cmp::Ordering::Less => Identity::Old,
            std::cmp::Ordering::Equal => Identity::Holder,
            std::cmp::Ordering::Greater => Identity::Restart,
        };
    }
    match replaced {
        Some(replaced) if start_no < replaced.start_no => return Identity::Old,
        Some(replaced) if start_no == replaced.start_no => {
            let lives = replaced
                .knocked_ms
                .is_some_and(|ms| ms >= KNOCK_BEATS.start() * beat_ms && !is_knock_over(ms, beat_ms));
            if !lives {
                return Identity::Taken;
            }
        }
        // Started again since: a newcomer as any other.
        Some(_) | None => {}
    }
    if holder.left || holder.silent_ms > beat_ms + TAKE_OVER_SLACK_MS {
        Identity::Successor
    } else {
        Identity::Taken
    }
}

/// The order of beats within one start of one slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Newer than all before: it acts.
    Next,
    /// The same beat again: changes nothing, and gets the RUN_NEW of the task held again.
    Again,
    /// Overtaken by a later beat: changes nothing, is answered GO_ON.
    Stale,
}

pub fn order(row_seq: i64, seq: i64) -> Order {
    match seq.cmp(&row_seq) {
        std::cmp::Ordering::Less => Order::Stale,
        std::cmp::Ordering::Equal => Order::Again,
        std::cmp::Ordering::Greater => Order::Next,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holder(left: bool, silent_ms: i64) -> Holder {
        Holder {
            instance_id: "A".into(),
            start_no: 5,
            left,
            silent_ms,
        }
    }

    #[test]
    fn a_higher_start_takes_over_and_a_lower_one_is_refused_for_ever() {
        let live = holder(false, 0);
        assert_eq!(identify(None, "A", 1, 30_000, None), Identity::New);
        assert_eq!(identify(Some(&live), "A", 5, 30_000, None), Identity::Holder);
        assert_eq!(identify(Some(&live), "A", 6, 30_000, None), Identity::Restart);
        assert_eq!(identify(Some(&live), "A", 4, 30_000, None), Identity::Old);
        assert_eq!(
            identify(Some(&holder(true, 99_999)), "A", 4, 30_000, None),
            Identity::Old
        );
    }

    #[test]
    fn another_instance_waits_for_the_holder_to_leave_or_to_miss_a_beat() {
        assert_eq!(
            identify(Some(&holder(false, 34_000)), "B", 1, 30_000, None),
            Identity::Taken
        );
        assert_eq!(
            identify(Some(&holder(false, 35_001)), "B", 1, 30_000, None),
            Identity::Successor
        );
        assert_eq!(
            identify(Some(&holder(true, 0)), "B", 1, 30_000, None),
            Identity::Successor
        );
    }

    #[test]
    fn a_replaced_process_gets_the_host_back_only_when_it_asks_again_and_again() {
        let free = holder(true, 99_999);
        for (start_no, knocked_ms, expected) in [
            (3, None, Identity::Taken),
            (3, Some(0), Identity::Taken),
            (3, Some(29_999), Identity::Taken),
            (3, Some(30_000), Identity::Successor),
            (3, Some(120_000), Identity::Successor),
            // One beat an hour ago and one now are no sign of life.
            (3, Some(120_001), Identity::Taken),
            (2, Some(60_000), Identity::Old),
            (4, None, Identity::Successor),
        ] {
            let replaced = Some(Replaced {
                start_no: 3,
                knocked_ms,
            });
            let identity = identify(Some(&free), "B", start_no, 30_000, replaced);
            assert_eq!(identity, expected, "start {start_no}, knocked {knocked_ms:?}");
        }
        // The holder is alive: however often it asks.
        let replaced = Some(Replaced {
            start_no: 3,
            knocked_ms: Some(60_000),
        });
        assert_eq!(
            identify(Some(&holder(false, 0)), "B", 3, 30_000, replaced),
            Identity::Taken
        );
    }

    #[test]
    fn only_a_higher_seq_acts() {
        assert_eq!(order(7, 8), Order::Next);
        assert_eq!(order(7, 7), Order::Again);
        assert_eq!(order(7, 6), Order::Stale);
    }
}

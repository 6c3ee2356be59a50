//! Pauses of triggers and jobs, and when a trigger is to be looked at.

/// A pause: of a trigger, or of its whole job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pause {
    pub paused: bool,
    /// It ends then by itself; `None`: somebody must end it.
    pub until_ms: Option<i64>,
}

impl Pause {
    /// It is paused then: its end, if it has one, has not come.
    pub fn holds_at(self, at_ms: i64) -> bool {
        self.paused && self.until_ms.is_none_or(|until| at_ms < until)
    }
}

/// Until when a trigger is held back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Held {
    No,
    Until(i64),
    Open,
}

/// The pauses of a trigger and of its job together.
pub fn held(trigger: Pause, job: Pause) -> Held {
    held_by([trigger, job])
}

/// All pauses together. One whose end has passed counts until the slots in it have their verdict.
pub fn held_by(pauses: impl IntoIterator<Item = Pause>) -> Held {
    pauses
        .into_iter()
        .filter(|pause| pause.paused)
        .fold(Held::No, |held, pause| match (held, pause.until_ms) {
            (Held::Open, _) | (_, None) => Held::Open,
            (Held::Until(one), Some(other)) => Held::Until(one.max(other)),
            (Held::No, Some(until)) => Held::Until(until),
        })
}

/// When a trigger with this next fire is to be looked at.
pub fn due_ms(next_ms: Option<i64>, held: Held) -> Option<i64> {
    match held {
        Held::No => next_ms,
        Held::Until(until) => next_ms.map(|next| next.max(until)),
        Held::Open => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longer_of_two_pauses_holds() {
        let no = Pause::default();
        let open = Pause {
            paused: true,
            until_ms: None,
        };
        let until = |ms| Pause {
            paused: true,
            until_ms: Some(ms),
        };
        for (trigger, job, expected, due) in [
            (no, no, Held::No, Some(50)),
            (until(10), no, Held::Until(10), Some(50)),
            (until(10), until(70), Held::Until(70), Some(70)),
            (no, until(60), Held::Until(60), Some(60)),
            (open, until(60), Held::Open, None),
            (until(60), open, Held::Open, None),
        ] {
            assert_eq!(held(trigger, job), expected);
            assert_eq!(due_ms(Some(50), expected), due);
            assert_eq!(due_ms(None, expected), None);
        }
        for (pause, at, holds) in [
            (no, 0, false),
            (open, 99, true),
            (until(10), 9, true),
            (until(10), 10, false),
        ] {
            assert_eq!(pause.holds_at(at), holds, "{pause:?} {at}");
        }
        // An end that is not asked for does not hold.
        let ended = Pause {
            paused: false,
            until_ms: Some(99),
        };
        assert_eq!(held(ended, no), Held::No);
    }
}

//! What the end of a run of a job means for its alarms.

use super::rule::{Rule, When};

/// How the runs of a job ended of late.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Health {
    /// Runs that have failed since the last success.
    pub failures: i64,
    pub success_ms: Option<i64>,
    /// The latest scheduled time of a run that succeeded.
    pub success_scheduled_ms: Option<i64>,
    /// Somebody was told that it fails or is late, and not yet that it works again.
    pub trouble: bool,
}

/// How a run ended: its last attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunEnd {
    Succeeded {
        at_ms: i64,
        scheduled_ms: Option<i64>,
    },
    Failed,
    /// Cancelled, or dropped before it started: neither good nor bad.
    Neither,
}

/// The health of a job after a run, and which of its rules (by their index) have something to tell.
pub fn after_run(health: Health, end: RunEnd, rules: &[Rule]) -> (Health, Vec<usize>) {
    let which = |wanted: &dyn Fn(&When) -> bool| {
        let hits = rules.iter().enumerate().filter(|(_, rule)| wanted(&rule.when));
        hits.map(|(index, _)| index).collect::<Vec<_>>()
    };
    let mut next = health;
    match end {
        RunEnd::Neither => (next, Vec::new()),
        RunEnd::Failed => {
            next.failures = health.failures.saturating_add(1);
            let told =
                which(&|when| matches!(when, When::Failure { in_a_row } if next.failures >= i64::from(*in_a_row)));
            // Where nothing else is told, a recovery is one after any failure.
            let only_recoveries = !rules
                .iter()
                .any(|rule| matches!(rule.when, When::Failure { .. } | When::Late(_)));
            next.trouble |= only_recoveries;
            (next, told)
        }
        RunEnd::Succeeded { at_ms, scheduled_ms } => {
            next.failures = 0;
            next.success_ms = health.success_ms.max(Some(at_ms));
            next.success_scheduled_ms = health.success_scheduled_ms.max(scheduled_ms);
            next.trouble = false;
            let told = if health.trouble {
                which(&|when| *when == When::Recovery)
            } else {
                Vec::new()
            };
            (next, told)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(when: When) -> Rule {
        Rule {
            when,
            to: vec!["a".into()],
            silence_ms: 0,
        }
    }

    const OK: RunEnd = RunEnd::Succeeded {
        at_ms: 50,
        scheduled_ms: Some(40),
    };

    #[test]
    fn each_end_tells_what_its_rules_say() {
        let rules = [
            rule(When::Failure { in_a_row: 1 }),
            rule(When::Failure { in_a_row: 3 }),
            rule(When::Recovery),
        ];
        let health = |failures, trouble| Health {
            failures,
            trouble,
            ..Health::default()
        };
        for (before, end, failures, told) in [
            (health(0, false), RunEnd::Failed, 1, vec![0]),
            (health(1, true), RunEnd::Failed, 2, vec![0]),
            (health(2, true), RunEnd::Failed, 3, vec![0, 1]),
            (health(3, true), RunEnd::Failed, 4, vec![0, 1]),
            (health(3, true), RunEnd::Neither, 3, vec![]),
            (health(3, true), OK, 0, vec![2]),
            // Nobody was told of the failures, so nobody waits for the good news.
            (health(3, false), OK, 0, vec![]),
            (health(0, false), OK, 0, vec![]),
        ] {
            let (after, rules) = after_run(before, end, &rules);
            assert_eq!((after.failures, rules), (failures, told), "{before:?} {end:?}");
        }
    }

    #[test]
    fn a_success_is_the_latest_of_both_clocks() {
        let before = Health {
            success_ms: Some(60),
            success_scheduled_ms: Some(10),
            ..Health::default()
        };
        let (after, _) = after_run(before, OK, &[]);
        assert_eq!((after.success_ms, after.success_scheduled_ms), (Some(60), Some(40)));
        let (failed, _) = after_run(after, RunEnd::Failed, &[]);
        assert_eq!(failed.success_ms, Some(60));
    }

    #[test]
    fn a_job_that_only_wants_recoveries_hears_of_them_after_any_failure() {
        let rules = [rule(When::Recovery)];
        let (failed, told) = after_run(Health::default(), RunEnd::Failed, &rules);
        assert_eq!((failed.trouble, told), (true, vec![]));
        let (well, told) = after_run(failed, OK, &rules);
        assert_eq!((well.trouble, told), (false, vec![0]));
    }
}

//! Freezes: what is neither dispatched nor fired until a time, or until somebody lifts it.

use super::pause::Pause;
use crate::error::Invalid;
use crate::task::spec::check_word;
use crate::time::format_utc;

/// What a freeze covers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    All,
    Queue(String),
    /// Of tasks, and of jobs.
    Tag(String),
}

impl Scope {
    /// As it is stored and sent: `all`, `queue` or `tag`, and the name of the queue or tag.
    pub fn parse(kind: &str, name: &str) -> Result<Self, Invalid> {
        let named = |scope: fn(String) -> Self| {
            check_word(name, "name")?;
            Ok(scope(name.to_owned()))
        };
        match kind {
            "all" if name.is_empty() => Ok(Self::All),
            "all" => Err(Invalid::new(
                "name",
                "is given with the scope all, which has none; leave it out",
            )),
            "queue" => named(Self::Queue),
            "tag" => named(Self::Tag),
            other => Err(Invalid::new(
                "scope",
                format!("{other:?} is no scope; write all, queue or tag"),
            )),
        }
    }

    pub fn kind(&self) -> &'static str {
        match self {
            Self::All => "all",
            Self::Queue(_) => "queue",
            Self::Tag(_) => "tag",
        }
    }

    pub fn name(&self) -> &str {
        match self {
            Self::All => "",
            Self::Queue(name) | Self::Tag(name) => name,
        }
    }

    pub fn covers(&self, queue: &str, tags: &[String]) -> bool {
        match self {
            Self::All => true,
            Self::Queue(name) => name == queue,
            Self::Tag(name) => tags.contains(name),
        }
    }

    /// Whether no task of this queue may start, whatever its tags.
    pub fn covers_queue(&self, queue: &str) -> bool {
        self.covers(queue, &[])
    }

    /// `everything`, `queue etl`, `tag nightly`.
    pub fn words(&self) -> String {
        match self {
            Self::All => "everything".into(),
            Self::Queue(name) => format!("queue {name}"),
            Self::Tag(name) => format!("tag {name}"),
        }
    }

    /// The command that lifts it.
    pub fn lift(&self) -> String {
        match self {
            Self::All => "systole resume --all".into(),
            Self::Queue(name) => format!("systole resume --queue {name}"),
            Self::Tag(name) => format!("systole resume --tag {name}"),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Freeze {
    pub scope: Scope,
    pub by: String,
    pub reason: String,
    pub since_ms: i64,
    /// It ends then by itself; `None`: somebody must lift it.
    pub until_ms: Option<i64>,
    /// It was lifted, or its time was over.
    pub ended_ms: Option<i64>,
}

impl Freeze {
    /// As a pause of what it covers: one that has ended is a pause up to then.
    pub fn pause(&self) -> Pause {
        Pause {
            paused: true,
            until_ms: self.ended_ms.or(self.until_ms),
        }
    }

    /// Why something waits, and who can lift it.
    pub fn words(&self) -> String {
        let what = match &self.scope {
            Scope::All => "frozen".to_owned(),
            scope => format!("{} is frozen", scope.words()),
        };
        let until = self
            .until_ms
            .map_or_else(String::new, |ms| format!(" until {}", format_utc(ms)));
        let reason = if self.reason.is_empty() {
            String::new()
        } else {
            format!(", \"{}\"", self.reason)
        };
        format!("{what} by {}{until}{reason}; lift: {}", self.by, self.scope.lift())
    }
}

/// The freezes that hold a task of this queue with these tags, or the triggers of a job that makes such tasks.
pub fn over<'f>(freezes: &'f [Freeze], queue: &'f str, tags: &'f [String]) -> impl Iterator<Item = &'f Freeze> {
    freezes.iter().filter(move |freeze| freeze.scope.covers(queue, tags))
}

/// The one of them that holds longest.
pub fn longest<'f>(freezes: impl Iterator<Item = &'f Freeze>) -> Option<&'f Freeze> {
    freezes.max_by_key(|freeze| freeze.pause().until_ms.unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn freeze(scope: Scope, until_ms: Option<i64>) -> Freeze {
        Freeze {
            scope,
            by: "ann".into(),
            reason: "CHG-1042".into(),
            since_ms: 0,
            until_ms,
            ended_ms: None,
        }
    }

    #[test]
    fn a_scope_covers_what_it_names() {
        let tags = ["nightly".to_owned()];
        for (kind, name, covers, queue) in [
            ("all", "", true, true),
            ("queue", "etl", true, true),
            ("queue", "default", false, false),
            ("tag", "nightly", true, false),
            ("tag", "etl", false, false),
        ] {
            let scope = Scope::parse(kind, name).expect("a scope");
            assert_eq!((scope.kind(), scope.name()), (kind, name));
            assert_eq!(scope.covers("etl", &tags), covers, "{scope:?}");
            assert_eq!(scope.covers_queue("etl"), queue, "{scope:?}");
        }
        for (kind, name, field) in [
            ("", "", "scope"),
            ("job", "a", "scope"),
            ("all", "a", "name"),
            ("queue", "", "name"),
            ("tag", "a b", "name"),
        ] {
            assert_eq!(
                Scope::parse(kind, name).expect_err("no scope").field,
                field,
                "{kind} {name}"
            );
        }
    }

    #[test]
    fn what_waits_is_told_by_the_freeze_that_holds_longest_with_the_command_that_lifts_it() {
        let freezes = [
            freeze(Scope::Queue("etl".into()), Some(1_796_018_400_000)),
            freeze(Scope::Tag("x".into()), None),
            freeze(Scope::All, Some(1_796_000_000_000)),
        ];
        let tags = ["x".to_owned()];
        let said = |tags: &[String]| longest(over(&freezes, "etl", tags)).expect("frozen").words();
        assert_eq!(
            said(&[]),
            format!(
                "queue etl is frozen by ann until {}, \"CHG-1042\"; lift: systole resume --queue etl",
                format_utc(1_796_018_400_000)
            )
        );
        assert_eq!(
            said(&tags),
            "tag x is frozen by ann, \"CHG-1042\"; lift: systole resume --tag x"
        );
        assert!(longest(over(&freezes[..2], "default", &[])).is_none());
    }

    #[test]
    fn one_that_was_lifted_is_a_pause_up_to_then() {
        let mut one = freeze(Scope::All, Some(900));
        assert_eq!(one.pause().until_ms, Some(900));
        one.ended_ms = Some(500);
        assert_eq!(one.pause().until_ms, Some(500));
    }
}
